//! Questions of backends to this client: sampling, elicitation, roots, and the tasks a client keeps.
//!
//! A question travels under an id of ours, unique in the session; the client's answer goes back under the backend's id, to
//! the connection that asked and to no other. What a task needs comes from the store and goes back there: whoever carries
//! the task out may be on another replica. Every question ends: answered, withdrawn, expired, or refused for a client that
//! is gone.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use bytes::Bytes;
use protocol::{
    downlevel,
    envelope::Message,
    error::{ErrorKind, Refusal},
    handshake,
    ids::{RequestId, TaskId},
    json,
    method::Method,
    splice::Splice,
    stateless,
    version::Version,
};

use super::{Session, SessionState, requests::without_private_meta};
use crate::{
    backends::link::{connection::Connection, pending::QuestionOwner},
    limits::{
        CLIENT_TASKS_MAX, ELICITATION_ID_BYTES_MAX, ELICITATIONS_MAX, QUESTIONS_MAX,
        STORE_RETRY_FIRST, STORE_RETRY_MAX,
    },
    persistence::{SessionKey, TaskInput, TaskRecord, Wakeup, WriteOp, WriteOutcome, fault_point},
    rules::{event_log::EventKind, tasks},
    sessions::{session::OpenCall, stream::EventStream},
    telemetry::child_span::ChildSpan,
};

/// A question the client has not answered yet.
#[derive(Debug)]
pub(super) struct Question {
    destination: Destination,
    call: Option<Arc<dyn OpenCall>>,
    stream: Option<Arc<EventStream>>,
    asked_at: Instant,
    span: Option<ChildSpan>,
}

/// Where the answer goes.
#[derive(Debug)]
enum Destination {
    Backend {
        connection: Arc<Connection>,
        backend_id: RequestId,
        /// The backend's progress token, when it asked for progress.
        progress_token: Option<Bytes>,
    },
    /// Into the record of a task.
    TaskInput { task: TaskId, maker: SessionKey, number: i64 },
}

impl Question {
    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.asked_at)
    }

    /// Answers for the client.
    pub(super) fn refuse(&self, why: &str) {
        self.refuse_with(&Refusal::new(ErrorKind::Internal, why));
    }

    /// A task goes on waiting: another session may answer it, and its owner knows when it is too late.
    fn refuse_with(&self, refusal: &Refusal) {
        if let Destination::Backend { connection, backend_id, .. } = &self.destination {
            connection.send_later(refusal.to_response(Some(backend_id), &crate::request_id()));
        }
    }

    /// Whoever waits for the task next shows it again.
    pub(super) fn is_task_input(&self) -> bool {
        matches!(self.destination, Destination::TaskInput { .. })
    }

    fn is_about(&self, task: &TaskId, number: i64) -> bool {
        matches!(&self.destination, Destination::TaskInput { task: asked, number: known, .. } if asked == task && *known == number)
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        if let Destination::Backend { connection, backend_id, .. } = &self.destination {
            connection.pending().forget_question(backend_id);
        }
        if let Some(call) = &self.call {
            call.question_closed();
        }
    }
}

impl Session {
    /// Passes a backend's request on to the client, if the client said it can answer such.
    pub fn ask(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        message: &Message,
        call: Option<Arc<dyn OpenCall>>,
    ) -> Result<(), Refusal> {
        self.client.permits(message, self.version)?;
        let told = downlevel::question_for(self.version, message).and_then(tasks::decoded);
        let message = told.as_ref().unwrap_or(message);
        let backend_id = message
            .id
            .clone()
            .ok_or_else(|| Refusal::new(ErrorKind::InvalidRequest, "a request has an id"))?;
        // A client without a session can only be asked in the answer to its request, and not in that to every request.
        if !self.has_client
            && call.as_ref().is_none_or(|call| !stateless::may_require_input(call.method()))
        {
            if message.method != Method::ElicitationCreate {
                return Err(Refusal::new(
                    ErrorKind::MethodNotFound,
                    "no request is there in whose answer the client could be asked",
                ));
            }
            connection.send_later(handshake::success(&backend_id, br#"{"action":"cancel"}"#));
            return Ok(());
        }
        let stream = call
            .as_ref()
            .map(|call| call.stream().clone())
            .filter(|stream| !stream.is_unreachable());
        let mut question = Question {
            destination: Destination::Backend {
                connection: connection.clone(),
                backend_id: backend_id.clone(),
                progress_token: message
                    .fields
                    .meta_progress_token
                    .map(|span| span.slice(&message.frame)),
            },
            call: call.clone(),
            stream: stream.clone(),
            asked_at: Instant::now(),
            span: None,
        };
        let span = ChildSpan::question(call.as_ref().and_then(|call| call.observed()), message);
        if let Some(call) = call {
            call.question_opened();
        }
        let (number, frame) = {
            let mut state = self.lock();
            let number = state.admit_question(message)?;
            let session: Weak<Self> = Arc::downgrade(self);
            connection.pending().note_question(backend_id, QuestionOwner { who: session, number });
            let frame = question_frame(message, number, span.as_ref());
            question.span = span;
            state.questions.insert(number, question);
            (number, frame)
        };
        if connection.is_closed() {
            // Whoever closed it may have looked before the question was there.
            self.withdraw_question(number, "the backend's connection ended");
            return Ok(());
        }
        let sent = match &stream {
            Some(stream) => stream.push(Instant::now(), EventKind::Message, frame).is_ok(),
            None => {
                self.deliver(EventKind::Message, frame);
                true
            }
        };
        if !sent {
            let _refused = self.lock().questions.remove(&number);
            return Err(Refusal::new(ErrorKind::Overloaded, "the client does not read its stream"));
        }
        Ok(())
    }

    /// Asks the client for something a task needs, on the stream where it waits for that task. `None`: it cannot be asked,
    /// or is being asked already.
    pub(in crate::sessions) fn send_task_input(
        self: &Arc<Self>,
        record: &TaskRecord,
        input: &TaskInput,
        stream: &Arc<EventStream>,
    ) -> Option<u64> {
        let message = tasks::decoded(Bytes::copy_from_slice(&input.request))?;
        self.client.permits(&message, self.version).ok()?;
        if stream.is_unreachable() {
            return None;
        }
        let question = Question {
            destination: Destination::TaskInput {
                task: record.task.clone(),
                maker: record.session,
                number: input.number,
            },
            call: None,
            stream: Some(stream.clone()),
            asked_at: Instant::now(),
            span: None, // whoever carries the task out has it
        };
        let number = {
            let mut state = self.lock();
            let shown = |other: &Question| {
                other.is_about(&record.task, input.number)
                    && other.stream.as_ref().is_some_and(|stream| !stream.is_unreachable())
            };
            if state.questions.values().any(shown) {
                return None;
            }
            let number = state.admit_question(&message).ok()?;
            state.questions.insert(number, question);
            number
        };
        let frame =
            tasks::with_id(&question_frame(&message, number, None), &RequestId::from_u64(number));
        if stream.push(Instant::now(), EventKind::Message, frame).is_err() {
            let _unseen = self.lock().questions.remove(&number);
            return None;
        }
        Some(number)
    }

    /// By which name the backend knows a question, where its revision has such names.
    pub(in crate::sessions) fn input_key(&self, number: u64) -> Option<String> {
        let (connection, id) = match &self.lock().questions.get(&number)?.destination {
            Destination::Backend { connection, backend_id, .. } => {
                (connection.clone(), backend_id.clone())
            }
            Destination::TaskInput { .. } => return None,
        };
        connection.modern()?.input_key(&id)
    }

    /// The client's answer to a question. One that answers nothing we asked is ignored (it may simply be late).
    pub fn handle_answer(self: &Arc<Self>, message: &Message) {
        let Some(message) = without_private_meta(message) else { return };
        let message = &*message;
        let number = message.id.as_ref().and_then(RequestId::as_u64);
        let Some(mut question) = number.and_then(|number| self.lock().questions.remove(&number))
        else {
            self.shared.metrics.dropped_answer("client_unknown_id");
            return;
        };
        if let Some(span) = question.span.take() {
            span.answered(message, Method::Unknown);
        }
        match &question.destination {
            Destination::Backend { connection, backend_id, .. } => {
                let version = connection
                    .negotiated()
                    .map_or(Version::LATEST_WITH_SESSIONS, |agreed| agreed.version);
                let told = match downlevel::answer_for(version, message) {
                    Ok(told) => told.and_then(tasks::decoded),
                    Err(refusal) => return question.refuse_with(&refusal),
                };
                let message = told.as_ref().unwrap_or(message);
                let mut splice = Splice::new(&message.frame);
                if let Some(span) = message.id_span {
                    splice.replace(span, backend_id.raw().to_vec());
                }
                if let Some(id) = message.text(message.fields.task_task_id) {
                    self.lock().note_client_task(&id, connection);
                }
                connection.send_later(splice.finish());
            }
            Destination::TaskInput { task, maker, number } => {
                let answer = self.clone().answer_input(
                    task.clone(),
                    *maker,
                    *number,
                    tasks::input_answer(message),
                );
                self.shared.running.spawn(answer);
            }
        }
    }

    /// The client's answer to something a task needs. The first one counts, from whichever session it comes.
    async fn answer_input(
        self: Arc<Self>,
        task: TaskId,
        maker: SessionKey,
        number: i64,
        answer: Bytes,
    ) {
        let give_up = Instant::now() + self.shared.config.timeouts.client_request;
        let mut wait = STORE_RETRY_FIRST;
        loop {
            let write =
                WriteOp::AnswerInput { task: task.clone(), number, answer: answer.to_vec() };
            match self.shared.durable.write(write).await {
                Ok(WriteOutcome::Done) => {
                    fault_point::passed("task.input.answered");
                    return self.shared.durable.hot.wake(Wakeup::Task { task, session: maker });
                }
                Ok(_) => return self.shared.metrics.dropped_answer("late"),
                Err(_) if Instant::now() < give_up => tokio::time::sleep(wait).await,
                Err(refusal) => {
                    return tracing::warn!(session = %self.digest, %refusal, "a client's answer to a task is lost");
                }
            }
            wait = (wait * 2).min(STORE_RETRY_MAX);
        }
    }

    /// The client tells how a task it works on for a backend is going: only that backend's connection hears it.
    pub(super) fn client_task_status(&self, message: &Message) {
        let Some(id) = message.text(message.fields.task_id) else { return };
        let connection = self.lock().client_tasks.get(&*id).and_then(Weak::upgrade);
        match connection {
            Some(connection) => connection.send_later(message.frame.clone()),
            None => self.shared.metrics.dropped_notification("task"),
        }
    }

    /// Progress of the client on a question goes back under the backend's own token.
    pub fn question_progress(&self, message: &Message) {
        let Some(span) = message.fields.progress_token else { return };
        let number = std::str::from_utf8(span.of(&message.frame))
            .ok()
            .and_then(|text| text.parse::<u64>().ok());
        let state = self.lock();
        let Some(question) = number.and_then(|number| state.questions.get(&number)) else { return };
        if let Destination::Backend { connection, progress_token: Some(token), .. } =
            &question.destination
        {
            connection
                .send_later(Splice::new(&message.frame).replace(span, token.to_vec()).finish());
        }
    }

    /// The backend (or its connection) no longer needs the answer: the client is told so.
    pub fn withdraw_question(&self, number: u64, why: &str) {
        let question = self.lock().questions.remove(&number);
        if let Some(question) = question {
            self.send_withdrawn(number, &question, why);
        }
    }

    /// The client took too long (MCP 2025-11-25, Lifecycle, Timeouts): it is told, and the backend gets an error.
    pub(super) fn expire_question(&self, number: u64) {
        let question = self.lock().questions.remove(&number);
        if let Some(question) = question {
            question.refuse_with(&Refusal::new(
                ErrorKind::Timeout,
                "the client did not answer in time",
            ));
            self.send_withdrawn(number, &question, "no answer in time");
        }
    }

    fn send_withdrawn(&self, number: u64, question: &Question, why: &str) {
        let params = format!("{{\"requestId\":{number},\"reason\":{}}}", json::quote(why));
        let frame = handshake::notification(Method::Cancelled, Some(params.as_bytes()));
        match &question.stream {
            Some(stream) if stream.is_connected() => {
                let _cut = stream.push(Instant::now(), EventKind::Message, frame);
            }
            _ => self.deliver(EventKind::Message, frame),
        }
    }

    /// Whether this client was asked to open the URL of this elicitation.
    pub fn was_elicited(&self, id: &str) -> bool {
        self.lock().elicited.contains(id)
    }

    /// The backend's error asks the client to open URLs (MCP 2025-11-25, Elicitation: -32042).
    pub fn note_elicitations_required(&self, answer: &Message) {
        let Some(data) = answer.bytes(answer.fields.error_data) else { return };
        let Ok(document) = json::Document::parse(data, &json::Limits::default()) else { return };
        let elicitations = document.root().get("elicitations");
        let mut state = self.lock();
        for id in elicitations
            .into_iter()
            .flat_map(|list| list.elements())
            .filter_map(|one| one.get("elicitationId"))
        {
            if let Some(id) = id.as_str() {
                state.note_elicited(&id);
            }
        }
    }
}

/// The backend's request under a number of ours, which is its progress token too.
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
    /// Gives a question its number, if there is room for one more.
    fn admit_question(&mut self, message: &Message) -> Result<u64, Refusal> {
        self.check_present()?;
        if self.questions.len() >= QUESTIONS_MAX {
            return Err(Refusal::new(
                ErrorKind::Overloaded,
                "too many questions wait for this client",
            ));
        }
        if let Some(id) = message.text(message.fields.elicitation_id) {
            self.note_elicited(&id);
        }
        let number = self.next_question;
        self.next_question += 1;
        Ok(number)
    }

    fn note_elicited(&mut self, id: &str) {
        if self.elicited.len() < ELICITATIONS_MAX && id.len() <= ELICITATION_ID_BYTES_MAX {
            self.dirty.state |= self.elicited.insert(id.to_owned());
        }
    }

    fn note_client_task(&mut self, id: &str, connection: &Arc<Connection>) {
        self.client_tasks.retain(|_, connection| connection.strong_count() > 0);
        if self.client_tasks.len() < CLIENT_TASKS_MAX && id.len() <= ELICITATION_ID_BYTES_MAX {
            self.client_tasks.insert(id.to_owned(), Arc::downgrade(connection));
        }
    }
}
