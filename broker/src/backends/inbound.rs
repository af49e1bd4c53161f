//! Routing of messages from a backend to the client that they belong to.
//!
//! An answer goes to the request that waits for its wire id. A notification about lists or resources
//! goes to each subscriber of the link, and a log message may go to all its clients. Any other
//! message needs one owner:
//!
//! - the call on whose stream it came;
//! - the call that it names;
//! - the only session behind the link.
//!
//! A request without an owner is refused. A notification without an owner is dropped and counted.
//! The broker never sends either to an unrelated client.

use std::sync::Arc;

use bytes::Bytes;
use protocol::{
    envelope::{Body, Kind, Message, RefusedMessage, decode_body},
    error::{ErrorKind, Refusal},
    handshake,
    ids::RequestId,
    json::Limits,
    method::Method,
    splice,
    stateless::inputs::name_missing_capability,
    version::{Batches, Version},
};
use rules::{
    catalog::ListKind,
    event_log::EventKind,
    link_sharing::LinkScope,
    log_level::{self, LogLevel},
};

use super::{
    fault_lines::RepeatedFault,
    link::{
        Link,
        connection::{
            Connection,
            requester::{Inbound, Requester},
        },
        era::Era,
    },
};

/// Decodes one message of a backend, or a batch of one that speaks 2025-03-26.
pub fn decode(
    connection: &Connection,
    frame: Bytes,
    limits: &Limits,
) -> Result<Body, RefusedMessage> {
    let batches =
        connection.negotiated().map_or(Batches::Refused, |agreed| agreed.version.batches());
    decode_body(frame, limits, batches)
}

/// Takes a message of a backend, or each message of a batch as if it had come alone (MCP 2025-03-26,
/// Basic: receivers support batches).
pub fn receive_body(
    link: &Arc<Link>,
    connection: &Arc<Connection>,
    body: Body,
    origin: Option<&Arc<dyn Requester>>,
) {
    let messages = match body {
        Body::One(message) => return receive(link, connection, message, origin),
        Body::Batch(messages) => messages,
    };
    for message in messages {
        match message {
            Ok(message) => receive(link, connection, message, origin),
            Err(rejected) => connection.broken_message(&rejected, b""),
        }
    }
}

/// Takes one message of a backend. `origin` is the call on whose stream it came, if the wire shows
/// it.
pub fn receive(
    link: &Arc<Link>,
    connection: &Arc<Connection>,
    message: Message,
    origin: Option<&Arc<dyn Requester>>,
) {
    // Only the broker sets these members. The connection removes them from answers
    // (`Connection::send_and_wait`), after it has read them itself.
    let is_forged = message.fields.meta_has_own && !message.is_response();
    let message = match is_forged.then(|| splice::without_own_meta(&message, |_| false)) {
        None => message,
        Some(Ok(without)) => without,
        Some(Err(_)) => return link.backend.context.metrics.dropped_notification("noise"),
    };
    match message.kind {
        Kind::Result => {
            // First, before the waiter for the answer runs: the next message may be about the task
            // that the backend has just created.
            task_created(connection, &message);
            connection.deliver_answer(message);
        }
        Kind::Error => connection.deliver_answer(message),
        // MCP 2026-07-28, Transports: only clients send requests, and they send no responses.
        Kind::Request if connection.stateless().is_some() => {
            link.backend.context.metrics.dropped_notification("request");
            let (tenant, backend) = (&link.backend.tenant, &link.backend.id);
            let lines = &link.backend.resources.fault_lines;
            let checked = lines.check(tenant, backend, RepeatedFault::Request);
            if let Some(left_out) = checked {
                tracing::warn!(%tenant, %backend, left_out, method = message.method.name(), "a backend sent a request, which MCP 2026-07-28 does not allow: the broker dropped it");
            }
        }
        Kind::Request => request(link, connection, &message, origin),
        Kind::Notification if connection.stateless().is_some() => {
            if let Some(message) =
                connection.stateless().and_then(|stateless| stateless.admit(&message))
            {
                notification(link, connection, &message, origin);
            }
        }
        Kind::Notification => notification(link, connection, &message, origin),
    }
}

/// Reports the id of a backend's task to the task run that waits for this answer.
pub(super) fn task_created(connection: &Connection, answer: &Message) {
    if answer.kind != Kind::Result {
        return;
    }
    let Some(backend_task) = answer.text(answer.fields.task_task_id) else { return };
    let wire_id = answer.id.as_ref().and_then(RequestId::as_wire_id);
    if let Some(requester) =
        wire_id.and_then(|wire_id| connection.pending().requester_by_wire_id(wire_id))
    {
        requester.task_created(connection, &backend_task);
    }
}

/// Returns the recipient of a message without an address.
fn recipient(
    link: &Arc<Link>,
    connection: &Connection,
    message: &Message,
    origin: Option<&Arc<dyn Requester>>,
) -> Option<Arc<dyn Inbound>> {
    let as_inbound = |requester: Arc<dyn Requester>| requester as Arc<dyn Inbound>;
    if let Some(requester) = origin {
        return Some(requester.clone());
    }
    if let Some(backend_task) = message.text(message.fields.meta_related_task_id) {
        return link.tasks.requester(&backend_task).map(as_inbound);
    }
    match &link.scope {
        // Nothing names the owner. A guess could show the message to another user of the tenant.
        LinkScope::Catalog | LinkScope::Probe | LinkScope::Tenant => None,
        // One client is behind the link, through calls and through tasks.
        LinkScope::Session(_) | LinkScope::Task(_) => {
            // Unrelated requests may share the link.
            if link.has_stateless_clients() {
                return connection.pending().only_requester().map(as_inbound);
            }
            let only_client =
                || link.clients().into_iter().next().map(|client| client as Arc<dyn Inbound>);
            let only_task = || link.task_runs().into_iter().next().map(as_inbound);
            connection
                .pending()
                .likely_requester()
                .map(as_inbound)
                .or_else(only_client)
                .or_else(only_task)
        }
        LinkScope::Principal(..) => connection.pending().only_requester().map(as_inbound),
    }
}

fn request(
    link: &Arc<Link>,
    connection: &Arc<Connection>,
    message: &Message,
    origin: Option<&Arc<dyn Requester>>,
) {
    let Some(id) = message.id.clone() else { return };
    if message.method == Method::Ping {
        connection.send_later(handshake::success(&id, b"{}"));
        return;
    }
    if message.method == Method::RootsList && link.backend.roots.are_configured() {
        return answer_roots_list(link, connection, message, origin);
    }
    if link.has_no_client() {
        connection.send_later(catalog_answer(message.method, &id));
        return;
    }
    // First the declaration of this connection, which never exceeds the capabilities of its
    // clients.
    let version =
        connection.negotiated().map_or(Version::LATEST_WITH_SESSIONS, |agreed| agreed.version);
    let forwarded = link.declared.permits(message, version).and_then(|()| {
        match recipient(link, connection, message, origin) {
            Some(recipient) => recipient.need_input(connection, message),
            // No request can be sent to a client without a session. An elicitation has an answer
            // for that.
            None if message.method == Method::ElicitationCreate && link.has_stateless_clients() => {
                connection.send_later(handshake::success(&id, br#"{"action":"cancel"}"#));
                Ok(())
            }
            None => Err(Refusal::new(
                ErrorKind::MethodNotFound,
                "this connection has no client that can answer the request",
            )),
        }
    });
    if let Err(refusal) = forwarded {
        link.backend.context.metrics.error(refusal.kind.code());
        connection.send_later(refusal.to_response(Some(&id), &crate::request_id()));
    }
}

/// Answers `roots/list` of a backend with the roots of its operator. Forwards it to a client too
/// where the mode demands it and a client is connected.
fn answer_roots_list(
    link: &Arc<Link>,
    connection: &Arc<Connection>,
    message: &Message,
    origin: Option<&Arc<dyn Requester>>,
) {
    let Some(id) = message.id.clone() else { return };
    let roots = &link.backend.roots;
    if roots.include_clients()
        && !link.has_no_client()
        && let Some(client) = recipient(link, connection, message, origin)
    {
        connection.pending().merge_roots(id.clone(), roots.clone());
        if client.need_input(connection, message).is_ok() {
            return;
        }
        connection.pending().take_merged_roots(&id);
    }
    connection.send_later(roots.answer(&id));
}

/// Sends a question to the client of `requester`, and to no other client. The backend needs the
/// answer before it answers the request.
pub fn need_input(
    link: &Arc<Link>,
    connection: &Arc<Connection>,
    question: &Message,
    requester: &Arc<dyn Requester>,
) {
    if let Err(refusal) = requester.clone().need_input(connection, question) {
        let declares_itself = requester.client_era() == Era::Stateless;
        let refusal =
            if declares_itself { name_missing_capability(refusal, question) } else { refusal };
        link.backend.context.metrics.error(refusal.kind.code());
        connection.send_later(refusal.to_response(question.id.as_ref(), &crate::request_id()));
    }
}

/// Answers a request on the catalog's link. It declares every capability, so that a backend shows
/// all it has, but no client is behind it.
fn catalog_answer(method: Method, id: &RequestId) -> Bytes {
    match method {
        Method::RootsList => handshake::success(id, br#"{"roots":[]}"#),
        Method::ElicitationCreate => handshake::success(id, br#"{"action":"cancel"}"#),
        _ => Refusal::new(
            ErrorKind::MethodNotFound,
            "this connection only reads lists and has no client",
        )
        .to_response(Some(id), &crate::request_id()),
    }
}

fn notification(
    link: &Arc<Link>,
    connection: &Arc<Connection>,
    message: &Message,
    origin: Option<&Arc<dyn Requester>>,
) {
    match message.method {
        Method::Progress => progress(link, connection, message),
        Method::Cancelled => cancelled(connection, message),
        // It reads what is there and ends.
        _ if link.is_probe() => {}
        Method::ToolsListChanged | Method::PromptsListChanged | Method::ResourcesListChanged => {
            if !link.backend.principal_lists.is_on() {
                link.backend.refresh();
            }
            link.on_lists_changed(changed_lists(message.method));
        }
        Method::ResourcesUpdated => {
            if !link.subscriptions.on_updated(&link.backend.id, message) {
                link.backend.context.metrics.dropped_notification("updated");
            }
        }
        Method::LogMessage => log_message(link, connection, message, origin),
        Method::TasksStatus => task_status(link, message),
        Method::ElicitationComplete => elicitation_complete(link, message, origin),
        _ => match recipient(link, connection, message, origin) {
            Some(recipient) => recipient.receive(EventKind::Message, message),
            None => link.backend.context.metrics.dropped_notification("unattributed"),
        },
    }
}

/// Returns the lists that a notification is about.
fn changed_lists(notified: Method) -> &'static [ListKind] {
    match notified {
        Method::ToolsListChanged => &[ListKind::Tools],
        Method::PromptsListChanged => &[ListKind::Prompts],
        _ => &[ListKind::Resources, ListKind::ResourceTemplates],
    }
}

/// Forwards progress, which names its call by the broker's token (MCP 2025-11-25, Progress: only
/// for tokens of active requests).
fn progress(link: &Arc<Link>, connection: &Arc<Connection>, message: &Message) {
    let fields = &message.fields;
    let token = message
        .bytes(fields.progress_token)
        .and_then(|text| std::str::from_utf8(text).ok())
        .and_then(|text| text.parse().ok());
    let Some(wire_id) = token else { return };
    let value = message
        .bytes(fields.progress)
        .and_then(|text| std::str::from_utf8(text).ok())
        .and_then(|text| text.parse::<f64>().ok());
    // A task keeps the token of the call that created it until it is over (MCP 2025-11-25, Tasks).
    match connection
        .pending()
        .requester_by_wire_id(wire_id)
        .or_else(|| connection.pending().task_by_token(wire_id))
    {
        Some(requester) => {
            requester.touch();
            if let (Some(token), Some(value)) = (fields.progress_token, value) {
                requester.progress(message, token, value);
            }
        }
        None => link.backend.context.metrics.dropped_notification("progress"),
    }
}

/// Withdraws a question that the backend cancelled.
fn cancelled(connection: &Arc<Connection>, message: &Message) {
    let Some(span) = message.fields.request_id else { return };
    let backend_id = RequestId::from_raw(span.slice(&message.frame));
    if let Some(question) = connection.pending().take_question(&backend_id) {
        question.withdraw("the backend no longer needs the answer");
    }
}

/// Forwards a log message to the call that it came with, or to the sessions behind the link. Each
/// session applies its own filter.
fn log_message(
    link: &Arc<Link>,
    connection: &Arc<Connection>,
    message: &Message,
    origin: Option<&Arc<dyn Requester>>,
) {
    let level = message.text(message.fields.level).and_then(|text| LogLevel::parse(&text));
    if let Some(recipient) = recipient(link, connection, message, origin) {
        if log_level::passes(level, recipient.log_level()) {
            recipient.receive(EventKind::Droppable, message);
        }
    } else if matches!(link.scope, LinkScope::Principal(..)) {
        let listening = link
            .clients()
            .into_iter()
            .filter(|client| log_level::passes(level, client.log_level()));
        listening.for_each(|client| client.receive(EventKind::Droppable, message));
    } else if !link.has_no_client() {
        link.backend.context.metrics.dropped_notification("unattributed");
    }
}

fn task_status(link: &Arc<Link>, message: &Message) {
    let backend_task = message.text(message.fields.task_id);
    match backend_task.and_then(|backend_task| link.tasks.requester(&backend_task)) {
        Some(run) => run.backend_task_changed(),
        None => link.backend.context.metrics.dropped_notification("task"),
    }
}

/// Forwards the end of an elicitation to the client that received it (MCP 2025-11-25, Elicitation).
fn elicitation_complete(link: &Arc<Link>, message: &Message, origin: Option<&Arc<dyn Requester>>) {
    let Some(id) = message.text(message.fields.elicitation_id) else { return };
    let is_taken =
        origin.is_some_and(|requester| {
            !requester.is_task() && requester.complete_elicitation(&id, message)
        }) || link.clients().iter().any(|client| client.complete_elicitation(&id, message))
            || link.task_runs().iter().any(|run| run.complete_elicitation(&id, message));
    if !is_taken {
        link.backend.context.metrics.dropped_notification("elicitation");
    }
}
