//! A message from a backend, on its way to the client it belongs to.
//!
//! An answer goes to whoever waits for its wire id. Everything else needs an owner: the call on whose stream it came, the
//! call it names, or the one session behind the link. What has no owner is refused (requests) or dropped and counted
//! (notifications); it never goes to somebody who merely happens to be there.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use protocol::{
    envelope::{Kind, Message},
    error::{ErrorKind, Refusal},
    handshake,
    ids::RequestId,
    json,
    method::Method,
    splice::Splice,
    version::Version,
};

use super::{
    call::Call,
    link::{Link, connection::Connection},
    session::Session,
    stream::EventStream,
};
use crate::rules::{
    catalog::Endpoint,
    event_log::EventKind,
    log_level::{self, LogLevel},
    names,
    sharing::LinkScope,
};

/// Takes one message of a backend. `origin` is the call on whose stream it came, where the wire tells.
pub fn receive(link: &Arc<Link>, connection: &Arc<Connection>, message: Message, origin: Option<&Arc<Call>>) {
    match message.kind {
        Kind::Result => {
            // Before whoever waits for the answer runs: the task's next message may be right behind.
            link.backend.shared.tasks.note_created(link, connection, &message);
            connection.answered(message);
        }
        Kind::Error => connection.answered(message),
        Kind::Request => request(link, connection, &message, origin),
        Kind::Notification => notification(link, connection, &message, origin),
    }
}

/// Whom a message without an address is for.
struct Owner {
    session: Arc<Session>,
    /// The call it belongs to, when there is exactly one it can belong to.
    call: Option<Arc<Call>>,
}

impl Owner {
    fn stream(&self) -> Option<&Arc<EventStream>> {
        self.call.as_ref().map(|call| &call.stream)
    }
}

fn owner(link: &Arc<Link>, connection: &Connection, message: &Message, origin: Option<&Arc<Call>>) -> Option<Owner> {
    if let Some(call) = origin {
        return Some(Owner { session: call.session.clone(), call: Some(call.clone()) });
    }
    if message.fields.meta_related_task_id.is_some() {
        let (session, task) = link.backend.shared.tasks.owner_of(link, message)?;
        // MCP 2025-11-25, Tasks: who waits for the outcome has a stream open for what the task needs.
        let call = connection.result_call_of(&task).or_else(|| connection.latest_call_of(&session));
        return Some(Owner { session, call });
    }
    match &link.scope {
        // Nothing says whose it is, and guessing could show it to another user of the tenant.
        LinkScope::Catalog | LinkScope::Tenant => None,
        LinkScope::Session(_) => {
            let session = link.sessions().into_iter().next()?;
            let call = connection.latest_call_of(&session);
            Some(Owner { session, call })
        }
        LinkScope::Principal(..) => connection.only_call().map(|call| Owner { session: call.session.clone(), call: Some(call) }),
    }
}

fn request(link: &Arc<Link>, connection: &Arc<Connection>, message: &Message, origin: Option<&Arc<Call>>) {
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
    let version = connection.negotiated().map_or(Version::LATEST_LEGACY, |agreed| agreed.version);
    let nobody = || Refusal::new(ErrorKind::MethodNotFound, "no client is there to be asked on this connection");
    let asked = link
        .declared
        .permits(message, version)
        .and_then(|()| owner(link, connection, message, origin).ok_or_else(nobody))
        .and_then(|owner| owner.session.ask(link, connection, message, owner.call.as_ref()));
    if let Err(refusal) = asked {
        link.backend.shared.metrics.error(refusal.kind.code());
        connection.send_later(refusal.to_response(Some(&id), &crate::request_id()));
    }
}

/// The catalog's link declares every capability, so that a backend shows all it has; nobody is behind it to be asked.
fn catalog_answer(method: Method, id: &RequestId) -> Bytes {
    match method {
        Method::RootsList => handshake::success(id, br#"{"roots":[]}"#),
        Method::ElicitationCreate => handshake::success(id, br#"{"action":"cancel"}"#),
        _ => Refusal::new(ErrorKind::MethodNotFound, "this connection only reads lists").to_response(Some(id), &crate::request_id()),
    }
}

fn notification(link: &Arc<Link>, connection: &Arc<Connection>, message: &Message, origin: Option<&Arc<Call>>) {
    match message.method {
        Method::Progress => progress(link, connection, message),
        Method::Cancelled => cancelled(connection, message),
        Method::ToolsListChanged | Method::PromptsListChanged | Method::ResourcesListChanged => link.backend.refresh(),
        Method::ResourcesUpdated => link.subscriptions.updated(link, message),
        Method::LogMessage => log_message(link, connection, message, origin),
        Method::TasksStatus => task_status(link, message),
        Method::ElicitationComplete => elicitation_complete(link, message, origin),
        _ => match owner(link, connection, message, origin) {
            Some(owner) => deliver(&owner, EventKind::Message, exposed_task(link, message)),
            None => link.backend.shared.metrics.dropped_notification("unattributed"),
        },
    }
}

/// Progress names its call by our own token (MCP 2025-11-25, Progress: only for tokens of active requests).
fn progress(link: &Arc<Link>, connection: &Arc<Connection>, message: &Message) {
    let fields = &message.fields;
    let token = message.bytes(fields.progress_token).and_then(|text| std::str::from_utf8(text).ok()).and_then(|text| text.parse().ok());
    let Some(wire_id) = token else { return };
    let Some(call) = connection.call_by_wire_id(wire_id) else {
        task_progress(link, connection, message, wire_id);
        return;
    };
    call.touch();
    let value = message.bytes(fields.progress).and_then(|text| std::str::from_utf8(text).ok()).and_then(|text| text.parse::<f64>().ok());
    let (Some(client_token), Some(span), Some(value)) = (&call.progress_token, fields.progress_token, value) else { return };
    if !call.progress_advances(value) {
        call.session.shared.metrics.dropped_notification("progress");
        return;
    }
    let frame = Splice::new(&message.frame).replace(span, client_token.to_vec()).finish();
    let owner = Owner { session: call.session.clone(), call: Some(call) };
    deliver(&owner, EventKind::Passing, frame);
}

/// A task keeps the token of the call that made it until it is over (MCP 2025-11-25, Tasks).
fn task_progress(link: &Arc<Link>, connection: &Arc<Connection>, message: &Message, wire_id: u64) {
    let owner = link.backend.shared.tasks.progress_owner(connection, wire_id);
    match owner.zip(message.fields.progress_token) {
        Some(((session, token), span)) => {
            let mut splice = Splice::new(&message.frame);
            splice.replace(span, token.to_vec());
            link.backend.shared.tasks.expose_related(link, message, &mut splice);
            session.deliver(EventKind::Passing, splice.finish());
        }
        None => link.backend.shared.metrics.dropped_notification("progress"),
    }
}

/// The backend withdraws a question it asked a client.
fn cancelled(connection: &Arc<Connection>, message: &Message) {
    let Some(span) = message.fields.request_id else { return };
    let backend_id = RequestId::from_raw(span.slice(&message.frame));
    if let Some((session, question)) = connection.take_asked(&backend_id) {
        session.withdraw_question(question, "the backend no longer needs the answer");
    }
}

/// A log message goes to the call it came with, or to the sessions behind the link, each through its own filter.
fn log_message(link: &Arc<Link>, connection: &Arc<Connection>, message: &Message, origin: Option<&Arc<Call>>) {
    let level = message.text(message.fields.level).and_then(|text| LogLevel::parse(&text));
    let send = |owner: &Owner| {
        if log_level::passes(level, owner.session.log_level()) {
            deliver(owner, EventKind::Passing, exposed_task(link, message));
        }
    };
    if let Some(owner) = owner(link, connection, message, origin) {
        send(&owner);
    } else if matches!(link.scope, LinkScope::Principal(..)) {
        link.sessions().into_iter().for_each(|session| send(&Owner { session, call: None }));
    } else if !link.is_catalog() {
        link.backend.shared.metrics.dropped_notification("unattributed");
    }
}

fn task_status(link: &Arc<Link>, message: &Message) {
    let Some((session, frame)) = link.backend.shared.tasks.status_changed(link, message) else {
        link.backend.shared.metrics.dropped_notification("task");
        return;
    };
    session.deliver(EventKind::Message, frame);
}

/// Only the client that was asked hears that its elicitation is complete (MCP 2025-11-25, Elicitation).
fn elicitation_complete(link: &Arc<Link>, message: &Message, origin: Option<&Arc<Call>>) {
    let Some(id) = message.text(message.fields.elicitation_id) else { return };
    if let Some(call) = origin.filter(|call| call.session.was_elicited(&id)) {
        deliver(&Owner { session: call.session.clone(), call: Some(call.clone()) }, EventKind::Message, message.frame.clone());
        return;
    }
    match link.sessions().into_iter().find(|session| session.was_elicited(&id)) {
        Some(session) => session.deliver(EventKind::Message, message.frame.clone()),
        None => link.backend.shared.metrics.dropped_notification("elicitation"),
    }
}

/// The message with our task id in its `_meta`.
fn exposed_task(link: &Arc<Link>, message: &Message) -> Bytes {
    let mut splice = Splice::new(&message.frame);
    link.backend.shared.tasks.expose_related(link, message, &mut splice);
    splice.finish()
}

fn deliver(owner: &Owner, kind: EventKind, frame: Bytes) {
    match owner.stream() {
        // A client that left before anything was streamed has no way back to that stream.
        Some(stream) if !stream.is_lost() => {
            let _cut = stream.push(Instant::now(), kind, frame);
            let dropped = stream.take_left_out();
            (0..dropped).for_each(|_| owner.session.shared.metrics.dropped_notification("slow_client"));
        }
        _ => owner.session.deliver(kind, frame),
    }
}

/// `notifications/resources/updated` as one session sees it.
pub fn updated_frame(session: &Session, link: &Link, uri: &str) -> Bytes {
    let shown = shown_uri(session, link, uri);
    handshake::notification(Method::ResourcesUpdated, Some(format!("{{\"uri\":{}}}", json::quote(&shown)).as_bytes()))
}

/// A backend's URI as one session's client names it.
pub fn shown_uri(session: &Session, link: &Link, uri: &str) -> String {
    match &session.endpoint {
        Endpoint::Aggregated => names::exposed_uri(&link.backend.id, uri),
        Endpoint::Single(_) => uri.to_owned(),
    }
}
