//! Questions of backends to this client: sampling, elicitation, roots, and tasks of the client.
//!
//! A question goes out under an id of the broker, unique in the session. The client's answer goes
//! back under the backend's id, and only to the connection that sent the request. Questions of
//! tasks come from the store, and their answers go there, because the task may run on another
//! replica. Every question ends: it is answered, withdrawn, expired, or refused when the client is
//! gone.

use std::{
    sync::{Arc, Weak},
    time::Instant,
};

use bytes::Bytes;
use protocol::{
    downlevel,
    envelope::{Message, RefusedMessage},
    error::{ErrorKind, Refusal},
    handshake,
    ids::{BackendId, RequestId, TaskId},
    json,
    method::Method,
    splice::Splice,
    stateless,
    version::Version,
};
use records::{SessionKey, TaskInput, TaskRecord, WriteOp, WriteOutcome};
use rules::{event_log::EventKind, limits::ELICITATIONS_PER_ANSWER_MAX, tasks};

use super::{
    Agreement, Session,
    requests::without_private_meta,
    state::{Destination, Question, SessionState},
};
use crate::{
    backends::link::connection::{Connection, pending::QuestionOwner},
    oauth::{self, TokenSource},
    persistence::{StoreRetry, Wakeup, fault_point},
    sessions::{session::OpenCall, stream::EventStream, task_limits::task_limit_refusal},
    telemetry::child_span::ChildSpan,
};

/// Sends a backend's request to the client, if the client declared the capability for it.
pub fn send_question(
    session: &Arc<Session>,
    connection: &Arc<Connection>,
    message: &Message,
    call: Option<Arc<dyn OpenCall>>,
) -> Result<(), Refusal> {
    let Agreement { version, client, .. } = &session.agreement;
    client.permits(message, *version)?;
    let converted = downlevel::downgrade_request(*version, message).and_then(tasks::decoded);
    let message = converted.as_ref().unwrap_or(message);
    let backend_id = message
        .id
        .clone()
        .ok_or_else(|| Refusal::new(ErrorKind::InvalidRequest, "a request must have an id"))?;
    if !session.kind.has_client() && !may_require_input(call.as_ref()) {
        return cancel_without_request(connection, message, &backend_id);
    }
    let stream =
        call.as_ref().map(|call| call.stream().clone()).filter(|stream| !stream.is_unreachable());
    let span = ChildSpan::question(call.as_ref().and_then(|call| call.observed()), message);
    if let Some(call) = &call {
        call.question_opened();
    }
    let question = Question {
        destination: Destination::Backend {
            connection: connection.clone(),
            backend_id,
            progress_token: message
                .fields
                .meta_progress_token
                .map(|span| span.slice(&message.frame)),
        },
        call,
        stream: stream.clone(),
        requested_at: Instant::now(),
        span,
    };
    let (number, frame) = record_question(session, message, question)?;
    if connection.is_closed() {
        // The thread that closed the connection may have looked for questions before this one was
        // noted.
        withdraw(session, number, "the backend's connection ended");
        return Ok(());
    }
    let sent = match &stream {
        Some(stream) => stream.push(Instant::now(), EventKind::Message, frame).is_ok(),
        None => {
            session.deliver(EventKind::Message, frame);
            true
        }
    };
    if !sent {
        let _refused = session.lock().questions.take(number);
        return Err(Refusal::new(ErrorKind::Overloaded, "the client does not read its stream"));
    }
    Ok(())
}

/// Returns whether the answer to this call may carry a request to the client. A client without a
/// session gets requests in no other way.
fn may_require_input(call: Option<&Arc<dyn OpenCall>>) -> bool {
    call.is_some_and(|call| stateless::may_require_input(call.method()))
}

/// Answers a backend's request that cannot reach a client without a session: an elicitation is
/// cancelled, and any other request is refused.
fn cancel_without_request(
    connection: &Connection,
    message: &Message,
    backend_id: &RequestId,
) -> Result<(), Refusal> {
    if message.method != Method::ElicitationCreate {
        return Err(Refusal::new(
            ErrorKind::MethodNotFound,
            "the client has no open request whose answer could carry this request",
        ));
    }
    connection.send_later(handshake::success(backend_id, br#"{"action":"cancel"}"#));
    Ok(())
}

/// Notes a question in the session and at its connection. Returns its number and the frame for the
/// client.
fn record_question(
    session: &Arc<Session>,
    message: &Message,
    question: Question,
) -> Result<(u64, Bytes), Refusal> {
    let mut state = session.lock();
    let number = state.admit_question(message)?;
    if let Destination::Backend { connection, backend_id, .. } = &question.destination {
        let inbound: Weak<Session> = Arc::downgrade(session);
        let owner = QuestionOwner { inbound, number };
        connection.pending().record_question(backend_id.clone(), owner);
    }
    let frame = question_frame(message, number, question.span.as_ref());
    state.questions.insert(number, question);
    Ok((number, frame))
}

/// Sends the client a question of a task, on the stream where it waits for that task. `None` if the
/// client cannot answer it, or has it already.
pub(in crate::sessions) fn send_task_input(
    session: &Arc<Session>,
    record: &TaskRecord,
    input: &TaskInput,
    stream: &Arc<EventStream>,
) -> Option<u64> {
    let message = tasks::decoded(Bytes::copy_from_slice(&input.request))?;
    session.agreement.client.permits(&message, session.agreement.version).ok()?;
    if stream.is_unreachable() {
        return None;
    }
    let question = Question {
        destination: Destination::TaskInput {
            task: record.task.clone(),
            creator: record.session,
            number: input.number,
        },
        call: None,
        stream: Some(stream.clone()),
        requested_at: Instant::now(),
        span: None, // the runner of the task has it
    };
    let number = {
        let mut state = session.lock();
        if state.questions.shows_task_input(&record.task, input.number) {
            return None;
        }
        let number = state.admit_question(&message).ok()?;
        state.questions.insert(number, question);
        number
    };
    let frame =
        tasks::with_id(&question_frame(&message, number, None), &RequestId::from_u64(number));
    if stream.push(Instant::now(), EventKind::Message, frame).is_err() {
        let _unseen = session.lock().questions.take(number);
        return None;
    }
    Some(number)
}

/// Returns the backend's key of a question, if its revision has such keys.
pub(in crate::sessions) fn input_key(session: &Session, number: u64) -> Option<String> {
    let (connection, id) = match &session.lock().questions.get(number)?.destination {
        Destination::Backend { connection, backend_id, .. } => {
            (connection.clone(), backend_id.clone())
        }
        Destination::TaskInput { .. } => return None,
    };
    connection.stateless()?.input_key(&id)
}

/// Answers the backend's question with an error instead of sending it to the client.
pub(in crate::sessions) fn refuse(session: &Arc<Session>, number: u64, refusal: &Refusal) {
    let Some(question) = session.lock().questions.take(number) else { return };
    session.shared.metrics.error(refusal.kind.code());
    question.refuse_with(refusal);
}

/// Handles the client's answer to a question. An answer to no open question is ignored, because it
/// may be late.
pub fn handle_answer(session: &Arc<Session>, message: &Message) {
    let Some(message) = without_private_meta(message) else { return };
    let message = &*message;
    let number = message.id.as_ref().and_then(RequestId::as_u64);
    let Some(mut question) = number.and_then(|number| session.lock().questions.take(number)) else {
        session.shared.metrics.dropped_answer("client_unknown_id");
        return;
    };
    if session.kind.has_client() && !may_continue(&question) {
        let text = "the access policy does not allow the client this call now, so the broker does not forward its answer";
        return question.refuse_with(&Refusal::new(ErrorKind::InvalidRequest, text));
    }
    if let Some(span) = question.span.take() {
        span.finish(message, Method::Unknown);
    }
    match &question.destination {
        Destination::Backend { connection, backend_id, .. } => {
            let version = connection
                .negotiated()
                .map_or(Version::LATEST_WITH_SESSIONS, |agreed| agreed.version);
            let converted = match downlevel::convert_response(version, message) {
                Ok(converted) => converted.and_then(tasks::decoded),
                Err(refusal) => return question.refuse_with(&refusal),
            };
            let message = converted.as_ref().unwrap_or(message);
            let mut splice = Splice::new(&message.frame);
            if let Some(span) = message.id_span {
                splice.replace(span, backend_id.raw().to_vec());
            }
            if let Some(id) = message.text(message.fields.task_task_id) {
                session.lock().questions.record_client_task(&id, connection);
            }
            connection.send_later(splice.finish());
        }
        Destination::TaskInput { task, creator, number } => {
            let answer = answer_input(
                session.clone(),
                task.clone(),
                *creator,
                *number,
                tasks::input_answer(message),
            );
            session.shared.running.spawn(answer);
        }
    }
}

/// Returns whether the access policy still allows the call that a question belongs to. A client
/// without a session is checked when it sends its request again.
fn may_continue(question: &Question) -> bool {
    question.call.as_ref().is_none_or(|call| call.recheck_access("answers").is_ok())
}

/// Ends the question that a malformed answer of the client names. The backend gets an error.
pub fn handle_malformed_answer(session: &Session, rejected: &RefusedMessage) {
    let answers = rejected.answers.as_ref().filter(|_| rejected.id.is_none());
    let Some(number) = answers.and_then(|id| id.as_u64()) else { return };
    let question = session.lock().questions.take(number);
    if let Some(question) = question {
        let why = format!("the answer of the client is malformed: {}", rejected.refusal.message);
        question.refuse_with(&Refusal::new(ErrorKind::Internal, why));
    }
}

/// Stores the client's answer to a question of a task. The first answer counts, from any session.
/// If the tenant's tasks have no bytes left for the answer, the broker stores a short error
/// instead. The backend gets that error, because the broker cannot refuse a response of the client.
async fn answer_input(
    session: Arc<Session>,
    task: TaskId,
    creator: SessionKey,
    number: i64,
    mut answer: Bytes,
) {
    let settings = session.shared.task_settings();
    let mut bytes_max = settings.bytes_per_tenant as u64;
    let give_up = Instant::now() + session.shared.config.timeouts.client_request;
    let mut retry = StoreRetry::default();
    loop {
        let (of, bytes) = (task.clone(), answer.to_vec());
        let write = WriteOp::AnswerInput { task: of, number, answer: bytes, bytes_max };
        match session.shared.persistence.write(write).await {
            Ok(WriteOutcome::Done) => {
                fault_point::hit("task.input.answered");
                return session
                    .shared
                    .persistence
                    .hot
                    .publish(Wakeup::Task { task, session: creator });
            }
            Ok(WriteOutcome::LimitReached(limit)) => {
                let refusal = task_limit_refusal(limit, settings);
                (answer, bytes_max) = (session.refusal_frame(&refusal, None), u64::MAX);
            }
            Ok(_) => return session.shared.metrics.dropped_answer("late"),
            Err(_) if Instant::now() < give_up => retry.pause().await,
            Err(refusal) => {
                return tracing::warn!(session = %session.digest, %refusal, "the broker could not store a client's answer to a task");
            }
        }
    }
}

/// Sends the client's status of a task only to the connection of the backend that the client runs
/// it for.
pub(super) fn client_task_status(session: &Session, message: &Message) {
    let Some(id) = message.text(message.fields.task_id) else { return };
    let connection = session.lock().questions.client_task(&id);
    match connection {
        Some(connection) => connection.send_later(message.frame.clone()),
        None => session.shared.metrics.dropped_notification("task"),
    }
}

/// Sends the client's progress on a question under the backend's own token.
pub fn progress(session: &Session, message: &Message) {
    let Some(span) = message.fields.progress_token else { return };
    let number =
        std::str::from_utf8(span.of(&message.frame)).ok().and_then(|text| text.parse::<u64>().ok());
    let state = session.lock();
    let Some(question) = number.and_then(|number| state.questions.get(number)) else { return };
    if let Destination::Backend { connection, progress_token: Some(token), .. } =
        &question.destination
    {
        connection.send_later(Splice::new(&message.frame).replace(span, token.to_vec()).finish());
    }
}

/// Withdraws a question whose answer the backend no longer needs, and notifies the client.
pub fn withdraw(session: &Session, number: u64, why: &str) {
    let question = session.lock().questions.take(number);
    if let Some(question) = question {
        send_withdrawn(session, number, &question, why);
    }
}

/// Expires a question (MCP 2025-11-25, Lifecycle, Timeouts). The client gets a cancellation, and
/// the backend an error.
pub(super) fn expire(session: &Session, number: u64) {
    let question = session.lock().questions.take(number);
    if let Some(question) = question {
        question
            .refuse_with(&Refusal::new(ErrorKind::Timeout, "the client did not answer in time"));
        send_withdrawn(session, number, &question, "no answer in time");
    }
}

fn send_withdrawn(session: &Session, number: u64, question: &Question, why: &str) {
    let params = format!("{{\"requestId\":{number},\"reason\":{}}}", json::quote(why));
    let frame = handshake::notification(Method::Cancelled, Some(params.as_bytes()));
    match &question.stream {
        Some(stream) if stream.is_connected() => {
            let _cut = stream.push(Instant::now(), EventKind::Message, frame);
        }
        _ => session.deliver(EventKind::Message, frame),
    }
}

/// Returns whether this client received the request to open the URL of this elicitation.
pub fn was_elicited(session: &Session, id: &str) -> bool {
    session.lock().questions.was_elicited(id)
}

/// Notes the URLs that a backend's error requires the client to open (MCP 2025-11-25, Elicitation:
/// -32042). An answer may name [`ELICITATIONS_PER_ANSWER_MAX`]: the session keeps those of other
/// backends too.
pub fn record_elicitations_required(session: &Session, answer: &Message) {
    let Some(data) = answer.bytes(answer.fields.error_data) else { return };
    let Ok(document) = json::Document::parse(data, &json::Limits::with_bytes_max(data.len()))
    else {
        return;
    };
    let elicitations = document.root().get("elicitations");
    let mut state = session.lock();
    for id in elicitations
        .into_iter()
        .flat_map(|list| list.elements())
        .filter_map(|one| one.get("elicitationId"))
        .take(ELICITATIONS_PER_ANSWER_MAX)
    {
        if let Some(id) = id.as_str() {
            state.record_elicitation(&id);
        }
    }
}

/// Notifies the client that the requested account at this backend is connected (MCP
/// 2025-11-25, Elicitation).
pub fn complete_connection(session: &Session, backend: &BackendId) {
    let ids = {
        let mut state = session.lock();
        let ids = state.questions.take_elicited(&oauth::connect_elicitation(backend));
        state.dirty.state |= !ids.is_empty();
        ids
    };
    for id in ids {
        let params = format!(r#"{{"elicitationId":{}}}"#, json::quote(&id));
        let frame = handshake::notification(Method::ElicitationComplete, Some(params.as_bytes()));
        session.deliver(EventKind::Message, frame);
    }
}

/// Notifies the client of an adopted session which of the requested accounts are connected by now.
/// The process that served the page may not have had the session.
pub async fn complete_connections(session: &Session) {
    for backend in session.tenant.backends() {
        let id_prefix = oauth::connect_elicitation(&backend.id);
        let is_elicited = session.lock().questions.elicited().any(|id| id.starts_with(&id_prefix));
        let accounts = backend.tokens.as_ref().and_then(TokenSource::user);
        if let Some(accounts) = accounts.filter(|_| is_elicited)
            && accounts.has_all_scopes(&session.caller.principal).await
        {
            complete_connection(session, &backend.id);
        }
    }
}

/// Returns the backend's request with a number of the broker as its id and progress token.
fn question_frame(message: &Message, number: u64, span: Option<&ChildSpan>) -> Bytes {
    let digits = number.to_string().into_bytes();
    let mut splice = Splice::new(&message.frame);
    for span in [message.id_span, message.fields.meta_progress_token].into_iter().flatten() {
        splice.replace(span, digits.clone());
    }
    if let Some(caused) = span {
        caused.put_into_meta(&mut splice, message);
    }
    splice.finish()
}

impl SessionState {
    /// Gives a question its number, if the session is here and there is capacity for one more.
    fn admit_question(&mut self, message: &Message) -> Result<u64, Refusal> {
        self.check_present()?;
        let number = self.questions.next_number()?;
        if let Some(id) = message.text(message.fields.elicitation_id) {
            self.record_elicitation(&id);
        }
        Ok(number)
    }

    fn record_elicitation(&mut self, id: &str) {
        self.dirty.state |= self.questions.record_elicitation(id);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json as value;

    use super::*;
    use crate::{broker::Broker, persistence::Stores, sessions::stateless::tests::pooled_session};

    #[tokio::test]
    async fn an_answer_with_many_elicitations_leaves_room_for_others() {
        let broker = Broker::over(Stores::in_memory().await);
        let session = pooled_session(&broker);
        let answer = |ids: Vec<String>| {
            let elicitations: Vec<_> =
                ids.iter().map(|id| value!({"mode": "url", "elicitationId": id})).collect();
            let data = value!({"elicitations": elicitations});
            let error = value!({"code": -32042, "message": "m", "data": data});
            let frame = value!({"jsonrpc": "2.0", "id": 1, "error": error}).to_string();
            Message::decode(Bytes::from(frame), &json::Limits::default()).unwrap()
        };
        record_elicitations_required(&session, &answer(vec!["first".to_owned()]));
        let many = (0..=ELICITATIONS_PER_ANSWER_MAX).map(|number| number.to_string()).collect();
        record_elicitations_required(&session, &answer(many));
        let last = (ELICITATIONS_PER_ANSWER_MAX - 1).to_string();
        assert!(was_elicited(&session, "first") && was_elicited(&session, &last));
        assert!(!was_elicited(&session, &ELICITATIONS_PER_ANSWER_MAX.to_string()));
    }
}
