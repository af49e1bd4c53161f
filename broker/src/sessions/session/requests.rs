//! What a client sends, once its session is known: requests, notifications, answers.

use std::{
    borrow::Cow,
    collections::hash_map::Entry,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use protocol::{
    envelope::{Message, OWN_META},
    error::{ErrorKind, Refusal},
    ids::RequestId,
    json,
    method::Method,
    phase::SessionPhase,
    splice::Splice,
};
use tokio_util::sync::CancellationToken;

use super::Session;
use crate::{
    metrics::RequestOutcome,
    rules::{endpoint::Endpoint, routing::ResourceTarget},
    sessions::session::OpenCall,
};

/// A request that is not answered yet.
#[derive(Debug, Clone)]
pub(in crate::sessions) enum InFlight {
    /// On its way to a backend.
    Call(Arc<dyn OpenCall>),
    /// Worked on by the broker itself.
    Local(CancellationToken),
    /// The same, and all it does is wait for something stored, which the next owner of the session can do as well.
    Transferable { cancelled: CancellationToken, moved: CancellationToken },
    /// The same, and nothing cancels it.
    Uncancellable,
}

impl InFlight {
    /// Whoever owns the session next goes on with it.
    pub(super) fn hand_off(&self) {
        if let InFlight::Transferable { moved, .. } = self {
            moved.cancel();
        }
    }

    /// Nothing of it is lost when it goes on elsewhere.
    pub(super) fn is_transferable(&self) -> bool {
        matches!(self, InFlight::Transferable { .. })
    }

    /// It was not cancelled before.
    fn can_be_cancelled(&self) -> bool {
        match self {
            InFlight::Call(call) => !call.is_cancelled(),
            InFlight::Local(cancelled) | InFlight::Transferable { cancelled, .. } => {
                !cancelled.is_cancelled()
            }
            InFlight::Uncancellable => false,
        }
    }

    pub(super) fn cancel(&self, reason: Option<Bytes>) {
        match self {
            InFlight::Call(call) => call.cancel(reason),
            InFlight::Local(cancelled) | InFlight::Transferable { cancelled, .. } => {
                cancelled.cancel()
            }
            InFlight::Uncancellable => {}
        }
    }
}

/// An answer on its way into its stream.
pub struct AnswerDelivery(Arc<Session>);

impl Drop for AnswerDelivery {
    fn drop(&mut self) {
        self.0.answers_in_delivery.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Session {
    /// A resource of a stream of notifications is held to what a subscription is held to.
    pub(super) fn check_listen(&self, target: &ResourceTarget) -> Result<(), Refusal> {
        let Some(backend) = self.tenant.backend(&target.backend) else { return Ok(()) };
        self.tenant.take_backend_budget(&backend, None)?;
        backend.policy.admits_resource(&target.uri)
    }

    /// What a backend offers that this process has not reached once yet, nobody knows: a session from before a restart may
    /// well name some of it.
    pub(in crate::sessions) fn unavailable_if_unlisted(&self, refusal: Refusal) -> Refusal {
        let missing = [
            ErrorKind::ToolNotFound,
            ErrorKind::PromptNotFound,
            ErrorKind::ResourceNotFound,
            ErrorKind::ReferenceNotFound,
        ];
        let aggregated = self.endpoint == Endpoint::Aggregated;
        if aggregated
            && missing.contains(&refusal.kind)
            && self.tenant.backends().iter().any(|backend| backend.is_never_reached())
        {
            let text = "this is known of no backend, and not every backend could be reached so far";
            return Refusal::new(ErrorKind::BackendUnavailable, text);
        }
        refusal
    }

    /// The phase allows the request, and no call in flight has its id.
    pub(in crate::sessions) fn check_phase_and_id(
        &self,
        message: &Message,
        id: &RequestId,
    ) -> Result<(), Refusal> {
        let state = self.lock();
        state.check_accepting()?;
        state.phase.admits(message.method)?;
        if state.in_flight.contains_key(id) { Err(id_in_flight()) } else { Ok(()) }
    }

    /// Counts a request in, if there is room for it and its id is free. [`Session::close_request`] counts it out.
    pub(in crate::sessions) fn open_request(
        &self,
        id: RequestId,
        in_flight: InFlight,
    ) -> Result<(), Refusal> {
        self.tenant.open_call()?;
        if let Err(refusal) = self.insert_in_flight(id, in_flight) {
            self.tenant.close_call();
            return Err(refusal);
        }
        self.shared.metrics.requests_pending(1);
        self.shared.overload.count_pending(true);
        Ok(())
    }

    fn insert_in_flight(&self, id: RequestId, in_flight: InFlight) -> Result<(), Refusal> {
        // Without a client of its own it serves many, each within the limit of the tenant.
        let max = if self.has_client {
            self.shared.config.limits.calls_in_flight_per_session
        } else {
            usize::MAX
        };
        let mut state = self.lock();
        state.check_accepting()?;
        if state.in_flight.len() >= max {
            self.shared.metrics.rate_limited("calls_in_flight_per_session");
            return Err(Refusal::new(
                ErrorKind::TooManyCalls,
                format!("the session has {max} calls in flight, which is its limit"),
            ));
        }
        match state.in_flight.entry(id) {
            Entry::Occupied(_) => Err(id_in_flight()),
            Entry::Vacant(free) => {
                free.insert(in_flight);
                Ok(())
            }
        }
    }

    /// The request with this id is over and its id free again. Its answer is being handed over for as long as the returned
    /// guard lives: a drain waits for that.
    pub fn close_request(self: &Arc<Self>, id: &RequestId) -> Option<AnswerDelivery> {
        let mut state = self.lock();
        let left = state.in_flight.remove(id)?;
        self.answers_in_delivery.fetch_add(1, Ordering::Relaxed);
        drop(state);
        match left {
            InFlight::Call(call) => self.release_call_slot(&*call),
            _ => self.decrement_pending(),
        }
        Some(AnswerDelivery(self.clone()))
    }

    /// Nobody waits for an answer to this call any more, though its backend may be at it: its client has one, or a task. The
    /// place it has at its backend is another, which it keeps until that is done.
    pub(in crate::sessions) fn release_call_slot(&self, call: &dyn OpenCall) {
        if call.take_slot_release() {
            self.decrement_pending();
        }
    }

    fn decrement_pending(&self) {
        self.tenant.close_call();
        self.shared.metrics.requests_pending(-1);
        self.shared.overload.count_pending(false);
    }

    /// Counts a request of this client that is over.
    pub fn request_finished(&self, method: Method, outcome: RequestOutcome, took: Duration) {
        self.shared.metrics.request_finished(method, outcome, self.transport, took.as_secs_f64());
        self.shared.metrics.tenant_request_finished(&self.tenant.id, outcome);
        self.end_observation(outcome);
    }

    /// Takes a notification. It has no answer, whatever is wrong with it; an `Err` says that it was dropped and counted, as a
    /// rate is used up.
    pub fn handle_notification(self: &Arc<Self>, message: &Message) -> Result<(), Refusal> {
        if !self.is_rate_exempt(message) {
            self.tenant.take_notification_budget(&self.caller.principal)?;
        }
        let Some(message) = without_private_meta(message) else { return Ok(()) };
        let message = &*message;
        match message.method {
            Method::Initialized => self.initialized(),
            Method::Cancelled => self.cancelled(message),
            Method::Progress => self.question_progress(message),
            Method::RootsListChanged => self.roots_changed(message),
            Method::TasksStatus => self.client_task_status(message),
            _ => self.shared.metrics.dropped_notification("unknown"),
        }
        Ok(())
    }

    /// What frees something is heard however much was asked: once for each session, and once for each request, which was paid
    /// for.
    fn is_rate_exempt(&self, message: &Message) -> bool {
        match message.method {
            Method::Initialized => self.lock().phase == SessionPhase::AwaitingInitialized,
            Method::Cancelled => {
                let named = message
                    .fields
                    .request_id
                    .map(|span| RequestId::from_raw(span.slice(&message.frame)));
                named.is_some_and(|id| {
                    self.lock().in_flight.get(&id).is_some_and(InFlight::can_be_cancelled)
                })
            }
            _ => false,
        }
    }

    fn initialized(&self) {
        let held = {
            let mut state = self.lock();
            let Ok(phase) = state.phase.advance(SessionPhase::Ready) else { return };
            self.shared.metrics.phase(state.phase.name(), phase.name());
            state.phase = phase;
            std::mem::take(&mut state.held_changes)
        };
        held.into_iter().for_each(|method| self.send_list_changed(method));
    }

    /// Its client does not wait for the answer to this request any more, and the wire says so.
    pub fn cancel_request(&self, id: &RequestId) {
        let in_flight = self.lock().in_flight.get(id).cloned();
        if let Some(in_flight) = in_flight {
            in_flight.cancel(None);
        }
    }

    /// MCP 2025-11-25, Cancellation: unknown, finished and malformed ones are ignored.
    fn cancelled(&self, message: &Message) {
        let Some(span) = message.fields.request_id else { return };
        let in_flight =
            self.lock().in_flight.get(&RequestId::from_raw(span.slice(&message.frame))).cloned();
        // A task has a cancellation of its own (same section), which is why what makes one cannot be cancelled.
        if let Some(in_flight) = in_flight {
            in_flight.cancel(reason(message));
        }
    }

    /// Relayed to the backends that were told this client has roots.
    fn roots_changed(&self, message: &Message) {
        if !self.client.roots_list_changed {
            return;
        }
        let links: Vec<_> = self.lock().links.values().cloned().collect();
        for connection in links
            .iter()
            .filter(|link| link.declared.roots_list_changed)
            .filter_map(|link| link.live())
        {
            connection.roots_changed(message.frame.clone());
        }
    }
}

/// A message without what is between its client and the broker, a key of that client among it. `None`: it cannot be made.
pub(super) fn without_private_meta(message: &Message) -> Option<Cow<'_, Message>> {
    if !message.fields.meta_has_own {
        return Some(Cow::Borrowed(message));
    }
    without_own_meta(message, |_| false).ok().map(Cow::Owned)
}

pub(in crate::sessions) fn without_own_meta(
    message: &Message,
    is_kept: impl Fn(&str) -> bool,
) -> Result<Message, Refusal> {
    let Some(meta) = message.fields.meta.filter(|_| message.fields.meta_has_own) else {
        return Ok(message.clone());
    };
    let frame = Splice::new(&message.frame)
        .retain_members(meta, |key| !key.starts_with(OWN_META) || is_kept(key))
        .finish();
    let limits = json::Limits { bytes_max: frame.len(), ..json::Limits::default() };
    Message::decode(frame, &limits).map_err(|rejected| rejected.refusal)
}

fn id_in_flight() -> Refusal {
    Refusal::new(ErrorKind::InvalidRequest, "a request with this id is in flight already")
}

/// The `reason` of a cancellation as JSON text, if it is a string.
fn reason(message: &Message) -> Option<Bytes> {
    let params = message.params?.slice(&message.frame);
    let document = json::Document::parse(&params, &json::Limits::default()).ok()?;
    let reason =
        document.root().get("reason").filter(|value| value.kind() == json::ValueKind::String)?;
    Some(params.slice_ref(reason.raw()))
}
