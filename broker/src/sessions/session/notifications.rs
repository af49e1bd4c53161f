//! Notifications of a client whose session is known.

use std::sync::Arc;

use bytes::Bytes;
use protocol::{
    envelope::Message, error::Refusal, ids::RequestId, json, method::Method, phase::SessionPhase,
};

use crate::backends::link::Link;

use super::{
    Session, list_changes::send_list_changed, questions, requests::without_private_meta,
    state::InFlight,
};

/// Handles a notification. A notification gets no answer, whatever is wrong with it. Returns `Err`
/// if a rate limit drops it.
pub fn handle_notification(session: &Arc<Session>, message: &Message) -> Result<(), Refusal> {
    if !is_rate_exempt(session, message) {
        session.tenant.take_notification_budget(&session.caller.principal)?;
    }
    let Some(message) = without_private_meta(message) else { return Ok(()) };
    let message = &*message;
    match message.method {
        Method::Initialized => initialized(session),
        Method::Cancelled => cancelled(session, message),
        Method::Progress => questions::progress(session, message),
        Method::RootsListChanged => roots_changed(session, message),
        Method::TasksStatus => questions::client_task_status(session, message),
        _ => session.shared.metrics.dropped_notification("unknown"),
    }
    Ok(())
}

/// Returns whether the rate limit leaves this notification alone: the first `initialized` of a
/// session, and the first cancellation of each request.
fn is_rate_exempt(session: &Session, message: &Message) -> bool {
    match message.method {
        Method::Initialized => session.lock().phase == SessionPhase::AwaitingInitialized,
        Method::Cancelled => {
            let named = message
                .fields
                .request_id
                .map(|span| RequestId::from_raw(span.slice(&message.frame)));
            named.is_some_and(|id| {
                session.lock().in_flight.get(&id).is_some_and(InFlight::can_be_cancelled)
            })
        }
        _ => false,
    }
}

fn initialized(session: &Session) {
    let held = {
        let mut state = session.lock();
        let Ok(phase) = state.phase.advance(SessionPhase::Ready) else { return };
        session.shared.metrics.phase(state.phase.name(), phase.name());
        state.phase = phase;
        state.lists.take_held()
    };
    held.into_iter().for_each(|method| send_list_changed(session, method));
}

/// Cancels a request. MCP 2025-11-25, Cancellation: unknown, finished and malformed requests are
/// ignored.
fn cancelled(session: &Session, message: &Message) {
    let Some(span) = message.fields.request_id else { return };
    let in_flight =
        session.lock().in_flight.get(&RequestId::from_raw(span.slice(&message.frame))).cloned();
    // A task has a cancellation of its own (same section), so a request that makes a task cannot be
    // cancelled.
    if let Some(in_flight) = in_flight {
        in_flight.cancel(reason(message));
    }
}

/// Relays the notification to the backends that know of this client's roots.
fn roots_changed(session: &Session, message: &Message) {
    if !session.agreement.client.roots_list_changed {
        return;
    }
    let links: Vec<_> = session.lock().links.all().cloned().collect();
    let uses_client_roots = |link: &&Arc<Link>| {
        link.declared.roots_list_changed && link.backend.roots.include_clients()
    };
    for connection in links.iter().filter(uses_client_roots).filter_map(|link| link.live()) {
        connection.roots_changed(message.frame.clone());
    }
}

/// Returns the `reason` of a cancellation as JSON text, if it is a string.
fn reason(message: &Message) -> Option<Bytes> {
    let params = message.params?.slice(&message.frame);
    let document =
        json::Document::parse(&params, &json::Limits::with_bytes_max(params.len())).ok()?;
    let reason =
        document.root().get("reason").filter(|value| value.kind() == json::ValueKind::String)?;
    Some(params.slice_ref(reason.raw()))
}
