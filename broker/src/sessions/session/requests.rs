//! The requests of a session that are in flight: their limits, their ids and their count.

use std::{
    borrow::Cow,
    collections::hash_map::Entry,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    ids::RequestId,
    method::Method,
    splice,
};

use super::{OpenCall, Session, observation, state::InFlight};
use crate::metrics::RequestOutcome;

/// Marks an answer as being written to its stream until it is dropped.
pub struct AnswerDelivery(Arc<Session>);

impl Drop for AnswerDelivery {
    fn drop(&mut self) {
        self.0.answers_in_delivery.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Session {
    /// Checks that the phase allows the request and that no request in flight has its id.
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

    /// Counts a request in, if there is capacity for it and its id is free.
    /// [`Session::close_request`] counts it out.
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
        self.shared.limiters.overload.count_pending(true);
        Ok(())
    }

    fn insert_in_flight(&self, id: RequestId, in_flight: InFlight) -> Result<(), Refusal> {
        // A pooled session serves many clients. The tenant's limit applies to each of them.
        let max = if self.kind.has_client() {
            self.shared.config.limits.calls_in_flight_per_session
        } else {
            usize::MAX
        };
        let mut state = self.lock();
        state.check_accepting()?;
        if state.in_flight.len() >= max {
            self.tenant.counts.rate_limited("calls_in_flight_per_session");
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

    /// Counts a request out and frees its id. The returned guard marks its answer as being
    /// delivered, and a drain waits for the guard.
    pub fn close_request(self: &Arc<Self>, id: &RequestId) -> Option<AnswerDelivery> {
        let mut state = self.lock();
        let removed = state.in_flight.remove(id)?;
        self.answers_in_delivery.fetch_add(1, Ordering::Relaxed);
        drop(state);
        match removed {
            InFlight::Call(call) => self.release_call_slot(&*call),
            _ => self.decrement_pending(),
        }
        Some(AnswerDelivery(self.clone()))
    }

    /// Gives back the call's permit among the open requests, once. The client has an answer or a
    /// task, although the backend may still work on the call. The permit at the backend stays until
    /// that ends.
    pub(in crate::sessions) fn release_call_slot(&self, call: &dyn OpenCall) {
        if call.take_slot_release() {
            self.decrement_pending();
        }
    }

    fn decrement_pending(&self) {
        self.tenant.close_call();
        self.shared.metrics.requests_pending(-1);
        self.shared.limiters.overload.count_pending(false);
    }

    /// Counts a request of this client that is over.
    pub fn request_finished(&self, method: Method, outcome: RequestOutcome, took: Duration) {
        count_outcome(self, method, outcome, took);
        observation::end(self, outcome);
    }

    /// Cancels the request with this id, because the transport reports that its client does not
    /// wait any more.
    pub fn cancel_request(&self, id: &RequestId) {
        let in_flight = self.lock().in_flight.get(id).cloned();
        if let Some(in_flight) = in_flight {
            in_flight.cancel(None);
        }
    }
}

fn count_outcome(session: &Session, method: Method, outcome: RequestOutcome, took: Duration) {
    let (metrics, seconds) = (&session.shared.metrics, took.as_secs_f64());
    metrics.request_finished(method, outcome, session.transport, seconds);
    session.tenant.counts.request_finished(method, outcome, took);
}

/// Counts a refused request whose telemetry was discarded.
pub fn count_refused(session: &Session, method: Method, took: Duration) {
    count_outcome(session, method, RequestOutcome::Refused, took);
}

/// Returns a message without the members that only the broker reads. `None` if it cannot be
/// rewritten.
pub(super) fn without_private_meta(message: &Message) -> Option<Cow<'_, Message>> {
    if !message.fields.meta_has_own {
        return Some(Cow::Borrowed(message));
    }
    splice::without_own_meta(message, |_| false).ok().map(Cow::Owned)
}

fn id_in_flight() -> Refusal {
    Refusal::new(ErrorKind::InvalidRequest, "a request with this id is in flight already")
}
