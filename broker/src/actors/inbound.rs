//! A message from a backend, on its way to the client it belongs to.
//!
//! An answer goes to whoever waits for its wire id. Everything else needs an owner: the call on whose stream it came, the
//! call it names, or the one session behind the link. What has no owner is refused (requests) or dropped and counted
//! (notifications); it never goes to somebody who merely happens to be there.

use std::sync::Arc;

use bytes::Bytes;
use protocol::{
    envelope::{Kind, Message},
    error::{ErrorKind, Refusal},
    handshake,
    ids::RequestId,
    json,
    method::Method,
    splice::Splice,
    stateless::{inputs::required_capability, request::capability_required},
    version::Version,
};

use super::{
    asker::Asker,
    call::Call,
    link::{Link, connection::Connection},
    session::Session,
    tasks::{self, run::TaskRun},
};
use crate::rules::{
    endpoint::Endpoint,
    event_log::EventKind,
    exposed_names,
    link_sharing::LinkScope,
    log_level::{self, LogLevel},
};

/// Takes one message of a backend. `origin` is the call on whose stream it came, where the wire tells.
pub fn receive(
    link: &Arc<Link>,
    connection: &Arc<Connection>,
    message: Message,
    origin: Option<&Asker>,
) {
    match message.kind {
        Kind::Result => {
            // Before whoever waits for the answer runs: the backend's next message may be about the task it has just made.
            task_created(link, connection, &message);
            connection.deliver_answer(message);
        }
        Kind::Error => connection.deliver_answer(message),
        // MCP 2026-07-28, Transports: only clients send requests, and they send no responses.
        Kind::Request if connection.modern().is_some() => {
            link.backend.shared.metrics.dropped_notification("request");
            tracing::warn!(backend = %link.backend.id, method = message.method.name(), "a backend that speaks 2026-07-28 sent a request");
        }
        Kind::Request => request(link, connection, &message, origin),
        Kind::Notification if connection.modern().is_some() => {
            if let Some(message) = connection.modern().and_then(|modern| modern.admit(&message)) {
                notification(link, connection, &message, origin);
            }
        }
        Kind::Notification => notification(link, connection, &message, origin),
    }
}

/// Whoever waits for the answer may be a task to which the backend made one of its own.
pub(super) fn task_created(link: &Arc<Link>, connection: &Connection, answer: &Message) {
    if answer.kind != Kind::Result {
        return;
    }
    let Some(backend_task) = answer.text(answer.fields.task_task_id) else { return };
    let wire_id = answer.id.as_ref().and_then(RequestId::as_u64);
    if let Some(Asker::Task(run)) = wire_id.and_then(|wire_id| connection.asker_by_wire_id(wire_id))
    {
        run.track_backend_task(link, connection, &backend_task);
    }
}

/// Whom a message without an address is for.
enum Recipient {
    Session {
        session: Arc<Session>,
        /// The call it belongs to, when there is exactly one it can belong to.
        call: Option<Arc<Call>>,
    },
    Task(Arc<TaskRun>),
}

impl From<Asker> for Recipient {
    fn from(asker: Asker) -> Self {
        match asker {
            Asker::Call(call) => Self::Session { session: call.session.clone(), call: Some(call) },
            Asker::Task(run) => Self::Task(run),
        }
    }
}

fn recipient(
    link: &Arc<Link>,
    connection: &Connection,
    message: &Message,
    origin: Option<&Asker>,
) -> Option<Recipient> {
    if let Some(asker) = origin {
        return Some(asker.clone().into());
    }
    if let Some(backend_task) = message.text(message.fields.meta_related_task_id) {
        return link.backend.shared.tasks.by_backend_task(link, &backend_task).map(Recipient::Task);
    }
    match &link.scope {
        // Nothing says whose it is, and guessing could show it to another user of the tenant.
        LinkScope::Catalog | LinkScope::Tenant => None,
        // One client is behind it, through calls and through tasks.
        LinkScope::Session(_) | LinkScope::Task(_) => {
            // Several requests that know nothing of each other may go over it.
            if link.sessions().iter().any(|session| !session.has_client) {
                return connection.only_asker().map(Recipient::from);
            }
            let only_session = || {
                link.sessions()
                    .into_iter()
                    .next()
                    .map(|session| Recipient::Session { session, call: None })
            };
            let only_task = || link.runs().into_iter().next().map(Recipient::Task);
            connection.likely_asker().map(Recipient::from).or_else(only_session).or_else(only_task)
        }
        LinkScope::Principal(..) => connection.only_asker().map(Recipient::from),
    }
}

fn request(
    link: &Arc<Link>,
    connection: &Arc<Connection>,
    message: &Message,
    origin: Option<&Asker>,
) {
    let Some(id) = message.id.clone() else { return };
    if message.method == Method::Ping {
        connection.send_later(handshake::success(&id, b"{}"));
        return;
    }
    if link.is_catalog() {
        connection.send_later(catalog_answer(message.method, &id));
        return;
    }
    // First what was declared on this connection, which is never more than what the clients behind it can do.
    let version =
        connection.negotiated().map_or(Version::LATEST_WITH_SESSIONS, |agreed| agreed.version);
    let asked = link.declared.permits(message, version).and_then(|()| {
        match recipient(link, connection, message, origin) {
            Some(Recipient::Session { session, call }) => {
                session.ask(connection, message, call.as_ref())
            }
            Some(Recipient::Task(run)) => tasks::ask_client(&run, connection, message),
            // Who has no session can not be asked now, for which an elicitation has an answer.
            None if message.method == Method::ElicitationCreate
                && link.sessions().iter().any(|session| !session.has_client) =>
            {
                connection.send_later(handshake::success(&id, br#"{"action":"cancel"}"#));
                Ok(())
            }
            None => Err(Refusal::new(
                ErrorKind::MethodNotFound,
                "no client is there to be asked on this connection",
            )),
        }
    });
    if let Err(refusal) = asked {
        link.backend.shared.metrics.error(refusal.kind.code());
        connection.send_later(refusal.to_response(Some(&id), &crate::request_id()));
    }
}

/// What a backend needs before it answers the request of `asker`: asked of that client and of nobody else.
pub fn need_input(
    link: &Arc<Link>,
    connection: &Arc<Connection>,
    question: &Message,
    asker: &Asker,
) {
    let asked = match asker {
        Asker::Call(call) => call.session.ask(connection, question, Some(call)),
        Asker::Task(run) => tasks::ask_client(run, connection, question),
    };
    if let Err(refusal) = asked {
        // A request that stands alone is told what it would have to declare (MCP 2026-07-28, Basic: Error Codes).
        let declares_itself = matches!(asker, Asker::Call(call) if !call.session.has_client);
        let refusal = match required_capability(question)
            .filter(|_| declares_itself && is_undeclared(&refusal))
        {
            Some(required) => capability_required(required, refusal.message),
            None => refusal,
        };
        link.backend.shared.metrics.error(refusal.kind.code());
        connection.send_later(refusal.to_response(question.id.as_ref(), &crate::request_id()));
    }
}

fn is_undeclared(refusal: &Refusal) -> bool {
    matches!(refusal.kind, ErrorKind::CapabilityMissing | ErrorKind::InvalidParams)
}

/// The catalog's link declares every capability, so that a backend shows all it has; nobody is behind it to be asked.
fn catalog_answer(method: Method, id: &RequestId) -> Bytes {
    match method {
        Method::RootsList => handshake::success(id, br#"{"roots":[]}"#),
        Method::ElicitationCreate => handshake::success(id, br#"{"action":"cancel"}"#),
        _ => Refusal::new(ErrorKind::MethodNotFound, "this connection only reads lists")
            .to_response(Some(id), &crate::request_id()),
    }
}

fn notification(
    link: &Arc<Link>,
    connection: &Arc<Connection>,
    message: &Message,
    origin: Option<&Asker>,
) {
    match message.method {
        Method::Progress => progress(link, connection, message),
        Method::Cancelled => cancelled(connection, message),
        Method::ToolsListChanged | Method::PromptsListChanged | Method::ResourcesListChanged => {
            link.backend.refresh()
        }
        Method::ResourcesUpdated => link.subscriptions.on_updated(link, message),
        Method::LogMessage => log_message(link, connection, message, origin),
        Method::TasksStatus => task_status(link, message),
        Method::ElicitationComplete => elicitation_complete(link, message, origin),
        _ => match recipient(link, connection, message, origin) {
            Some(owner) => deliver(&owner, EventKind::Message, message),
            None => link.backend.shared.metrics.dropped_notification("unattributed"),
        },
    }
}

/// Progress names its call by our own token (MCP 2025-11-25, Progress: only for tokens of active requests).
fn progress(link: &Arc<Link>, connection: &Arc<Connection>, message: &Message) {
    let fields = &message.fields;
    let token = message
        .bytes(fields.progress_token)
        .and_then(|text| std::str::from_utf8(text).ok())
        .and_then(|text| text.parse().ok());
    let Some(wire_id) = token else { return };
    match connection.asker_by_wire_id(wire_id) {
        Some(Asker::Call(call)) => call_progress(call, message),
        Some(Asker::Task(run)) => run.progress(message),
        // A task keeps the token of the call that made it until it is over (MCP 2025-11-25, Tasks).
        None => match link.backend.shared.tasks.by_token(connection, wire_id) {
            Some(run) => run.progress(message),
            None => link.backend.shared.metrics.dropped_notification("progress"),
        },
    }
}

fn call_progress(call: Arc<Call>, message: &Message) {
    let fields = &message.fields;
    call.touch();
    let value = message
        .bytes(fields.progress)
        .and_then(|text| std::str::from_utf8(text).ok())
        .and_then(|text| text.parse::<f64>().ok());
    let (Some(client_token), Some(span), Some(value)) =
        (&call.progress_token, fields.progress_token, value)
    else {
        return;
    };
    if !call.progress_advances(value) {
        call.session.shared.metrics.dropped_notification("progress");
        return;
    }
    let mut splice = Splice::new(&message.frame);
    splice.replace(span, client_token.to_vec());
    if let Some(params) = message.params.filter(|_| {
        call.session.client_dialect().strict && !call.session.version.progress_message()
    }) {
        splice.remove_member(params, "message");
    }
    let frame = splice.finish();
    deliver_to(&call.session.clone(), Some(&call), EventKind::Droppable, frame);
}

/// The backend withdraws a question it asked a client.
fn cancelled(connection: &Arc<Connection>, message: &Message) {
    let Some(span) = message.fields.request_id else { return };
    let backend_id = RequestId::from_raw(span.slice(&message.frame));
    if let Some(asked) = connection.take_question(&backend_id) {
        asked.withdraw("the backend no longer needs the answer");
    }
}

/// A log message goes to the call it came with, or to the sessions behind the link, each through its own filter.
fn log_message(
    link: &Arc<Link>,
    connection: &Arc<Connection>,
    message: &Message,
    origin: Option<&Asker>,
) {
    let level = message.text(message.fields.level).and_then(|text| LogLevel::parse(&text));
    if let Some(owner) = recipient(link, connection, message, origin) {
        let wanted = match &owner {
            Recipient::Session { session, .. } => session.log_level(),
            Recipient::Task(run) => {
                run.creator().map_or_else(|| run.log_level(), |session| session.log_level())
            }
        };
        if log_level::passes(level, wanted) {
            deliver(&owner, EventKind::Droppable, message);
        }
    } else if matches!(link.scope, LinkScope::Principal(..)) {
        let listening = link
            .sessions()
            .into_iter()
            .filter(|session| log_level::passes(level, session.log_level()));
        listening.for_each(|session| session.deliver(EventKind::Droppable, message.frame.clone()));
    } else if !link.is_catalog() {
        link.backend.shared.metrics.dropped_notification("unattributed");
    }
}

fn task_status(link: &Arc<Link>, message: &Message) {
    let backend_task = message.text(message.fields.task_id);
    match backend_task
        .and_then(|backend_task| link.backend.shared.tasks.by_backend_task(link, &backend_task))
    {
        Some(run) => run.backend_task_changed(),
        None => link.backend.shared.metrics.dropped_notification("task"),
    }
}

/// Only the client that was asked hears that its elicitation is complete (MCP 2025-11-25, Elicitation).
fn elicitation_complete(link: &Arc<Link>, message: &Message, origin: Option<&Asker>) {
    let Some(id) = message.text(message.fields.elicitation_id) else { return };
    if let Some(Asker::Call(call)) =
        origin.filter(|asker| matches!(asker, Asker::Call(call) if call.session.was_elicited(&id)))
    {
        deliver_to(&call.session, Some(call), EventKind::Message, message.frame.clone());
        return;
    }
    let tasks = &link.backend.shared.tasks;
    let with_tasks = link.runs().into_iter().flat_map(|run| tasks.listeners(&run));
    match link.sessions().into_iter().chain(with_tasks).find(|session| session.was_elicited(&id)) {
        Some(session) => session.deliver(EventKind::Message, message.frame.clone()),
        None => link.backend.shared.metrics.dropped_notification("elicitation"),
    }
}

fn deliver(owner: &Recipient, kind: EventKind, message: &Message) {
    match owner {
        Recipient::Session { session, call } => {
            deliver_to(session, call.as_ref(), kind, message.frame.clone())
        }
        Recipient::Task(run) => run.relay(kind, message),
    }
}

fn deliver_to(session: &Arc<Session>, call: Option<&Arc<Call>>, kind: EventKind, frame: Bytes) {
    // A client that left before anything was streamed has no way back to that stream.
    match call.map(|call| &call.stream).filter(|stream| !stream.is_unreachable()) {
        Some(stream) => session.push_to(stream, kind, frame),
        None => session.deliver(kind, frame),
    }
}

/// `notifications/resources/updated` as one session sees it.
pub fn updated_frame(session: &Session, link: &Link, uri: &str) -> Bytes {
    let shown = exposed_uri(session, link, uri);
    handshake::notification(
        Method::ResourcesUpdated,
        Some(format!("{{\"uri\":{}}}", json::quote(&shown)).as_bytes()),
    )
}

/// A backend's URI as one session's client names it.
pub fn exposed_uri(session: &Session, link: &Link, uri: &str) -> String {
    match &session.endpoint {
        Endpoint::Aggregated => exposed_names::exposed_uri(&link.backend.id, uri),
        Endpoint::Single(_) => uri.to_owned(),
    }
}
