//! The ways a session leaves this process: it ends for everybody, it is given away, or another took it.
//!
//! Only an end is told to the backends. What was given away or taken is still the client's: its links are dropped without
//! a goodbye, so that the next owner goes on with the sessions there, and its streams are paused, so that the client comes
//! back and is led to that owner. What only waits for something stored goes on waiting there. A session that is bound to its
//! connection can only end, and does so as soon as nothing but such waits is in flight.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use protocol::{
    ids::{BackendId, RequestId},
    phase::SessionPhase,
};

use super::{
    Session, SessionState, persisted_state::StoreFailure, questions::Question,
    record::BackendSession, requests::InFlight,
};
use crate::{
    actors::{link::Link, stream::EventStream},
    limits::{CLOSING_UP_MAX, MOVE_ON_MAX},
    persistence::fault_point,
};

/// How often it is looked whether the last call of a session that moved is over.
const DRAIN_POLL: Duration = Duration::from_millis(50);
/// The same of one that is about to be given away: its clients wait.
const QUIESCE_POLL: Duration = Duration::from_millis(5);

/// What a session that leaves has to be cleaned up of.
struct Teardown {
    in_flight: Vec<InFlight>,
    questions: Vec<Question>,
    links: Vec<Arc<Link>>,
    backend_sessions: Vec<(BackendId, BackendSession)>,
    streams: Vec<Arc<EventStream>>,
}

/// What became of an attempt to give a session away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseOutcome {
    Done,
    /// Something is in flight.
    Busy,
    /// It left already.
    Gone,
}

impl Session {
    /// Ends the session if nothing was heard of its client for this long. A request that comes at the same moment finds
    /// the session over, or keeps it.
    pub fn end_if_idle(self: &Arc<Self>, limit: Duration) -> bool {
        if self.idle_for() <= limit {
            return false;
        }
        let mut state = self.lock();
        if self.is_leaving() || !state.in_flight.is_empty() || self.since_touched() <= limit {
            return false;
        }
        let ending = self.begin_teardown(&mut state);
        drop(state);
        self.finish_teardown("idle", ending);
        true
    }

    /// Ends the session: its calls are cancelled, its questions answered for it, its streams closed, its links given back.
    pub fn end(self: &Arc<Self>, why: &str) {
        let mut state = self.lock();
        if self.is_leaving() {
            return;
        }
        let ending = self.begin_teardown(&mut state);
        drop(state);
        self.finish_teardown(why, ending);
    }

    fn begin_teardown(&self, state: &mut SessionState) -> Teardown {
        self.leaving.store(true, Ordering::Relaxed);
        self.set_phase(state, SessionPhase::Closed);
        self.shared.metrics.subscriptions(-i64::try_from(state.subscriptions.len()).unwrap_or(0));
        state.subscriptions.clear();
        Teardown {
            in_flight: state.in_flight.values().cloned().collect(),
            questions: state.questions.drain().map(|(_, question)| question).collect(),
            links: state.links.drain().map(|(_, link)| link).collect(),
            backend_sessions: state.backend_sessions.drain().collect(),
            streams: state.streams.take_all(),
        }
    }

    fn set_phase(&self, state: &mut SessionState, phase: SessionPhase) {
        if self.has_client {
            self.shared.metrics.phase(state.phase.name(), phase.name());
        }
        state.phase = phase;
    }

    fn finish_teardown(self: &Arc<Self>, why: &str, remains: Teardown) {
        if self.has_client {
            tracing::info!(session = %self.digest, tenant = %self.tenant.id, why, "session ended");
        }
        remains.questions.iter().for_each(|question| question.refuse("the client is gone"));
        remains.in_flight.iter().for_each(|request| request.cancel(None));
        for stream in &remains.streams {
            stream.stop_logging(); // the log forgets the session as a whole
            stream.close();
        }
        for (backend, stored) in remains.backend_sessions {
            let unused = match remains.links.iter().find(|link| link.backend.id == backend) {
                Some(link) => link.take_resumption(),
                None => Some(stored),
            };
            if let (Some(unused), Some(backend)) = (unused, self.tenant.backend(&backend)) {
                self.shared.running.spawn(Link::end_unused(backend, unused));
            }
        }
        remains.links.iter().for_each(|link| link.detach(self));
        self.deregister();
    }

    /// It is counted here no longer.
    fn deregister(self: &Arc<Self>) {
        self.tenant.close_session(self);
        self.shared.tasks.unregister_session(self);
        if self.has_client {
            self.shared.metrics.sessions(self.transport, "open", -1);
        }
    }

    /// Another owns the session now. Calls in flight may finish on the connections they have; nothing is stored any more.
    pub fn abandon(self: &Arc<Self>, why: &str) {
        {
            let mut state = self.lock();
            if self.leaving.swap(true, Ordering::Relaxed) {
                return;
            }
            state.moved = true;
            self.set_phase(&mut state, SessionPhase::Closing);
            state.streams.all().for_each(|stream| stream.stop_logging());
            state.streams.all_general().iter().for_each(|stream| stream.pause());
        }
        tracing::info!(session = %self.digest, tenant = %self.tenant.id, why, "session left to its new owner");
        self.deregister();
        let session = self.clone();
        self.shared.running.spawn(async move {
            session.drain_calls().await;
            session.hand_off_links();
        });
    }

    async fn drain_calls(&self) {
        // A question its client can only answer elsewhere would keep its call for ever.
        let questions: Vec<Question> =
            self.lock().questions.drain().map(|(_, question)| question).collect();
        questions.iter().for_each(|question| question.refuse("the client is gone"));
        let over = async {
            while self.calls_in_flight() > 0 {
                tokio::time::sleep(DRAIN_POLL).await;
            }
        };
        let _cut = tokio::time::timeout(self.shared.config.timeouts.call_max, over).await;
    }

    /// Everything closes, and nobody is told goodbye.
    fn hand_off_links(self: &Arc<Self>) {
        let mut state = self.lock();
        let remains = self.begin_teardown(&mut state);
        drop(state);
        remains.questions.iter().for_each(|question| question.refuse("the client is gone"));
        remains.in_flight.iter().for_each(|request| request.cancel(None));
        for stream in &remains.streams {
            stream.pause(); // what is left is read first, then the word on when to come back
            stream.close();
        }
        remains.links.iter().for_each(|link| link.hand_off(self));
    }

    /// Gives the session away: stores all of it, lets go of the row, sends its client back. Nothing in flight is cut,
    /// unless `forced`. Whoever begins this sees it through.
    pub async fn release(self: &Arc<Self>, forced: bool) -> ReleaseOutcome {
        if let Err(stays) = self.quiesce(forced).await {
            return stays;
        }
        match self.store_release().await {
            Ok(()) => {
                fault_point::passed("session.released");
                self.shared.metrics.session_released();
                tracing::info!(session = %self.digest, tenant = %self.tenant.id, "session released");
            }
            Err(StoreFailure::Fenced) => {
                tracing::info!(session = %self.digest, "session was another's already")
            }
            // Our row still: the next owner waits for the end of our lease.
            Err(StoreFailure::Refused(refusal)) => {
                tracing::warn!(session = %self.digest, %refusal, "session released unstored")
            }
        }
        // Not before: the answers that are cut are due on their streams, and the next owner says so.
        self.lock().streams.all().for_each(|stream| stream.stop_logging());
        self.hand_off_links();
        self.deregister();
        ReleaseOutcome::Done
    }

    /// Ends a session whose client could not find it elsewhere, on the terms of [`Session::release`].
    pub async fn quiesce_and_end(self: &Arc<Self>, why: &str, forced: bool) -> ReleaseOutcome {
        if let Err(stays) = self.quiesce(forced).await {
            return stays;
        }
        let mut state = self.lock();
        let remains = self.begin_teardown(&mut state);
        drop(state);
        self.finish_teardown(why, remains);
        ReleaseOutcome::Done
    }

    /// Begins to leave when nothing is in flight but what can be asked for elsewhere, and is rid of that, too.
    async fn quiesce(self: &Arc<Self>, forced: bool) -> Result<(), ReleaseOutcome> {
        let mut begun = self.try_begin_release(forced);
        if begun == ReleaseAttempt::Quiescing {
            let rests = async {
                loop {
                    tokio::time::sleep(QUIESCE_POLL).await;
                    let again = self.try_begin_release(false);
                    if matches!(again, ReleaseAttempt::Leaving | ReleaseAttempt::Gone) {
                        return again;
                    }
                }
            };
            begun =
                tokio::time::timeout(CLOSING_UP_MAX, rests).await.unwrap_or(ReleaseAttempt::Busy);
            let mut state = self.lock();
            let calls = state.calls();
            state.quiesce.resume_requests(calls);
            drop(state);
        }
        match begun {
            ReleaseAttempt::Gone => return Err(ReleaseOutcome::Gone),
            ReleaseAttempt::Busy | ReleaseAttempt::Quiescing => return Err(ReleaseOutcome::Busy),
            ReleaseAttempt::Leaving => {}
        }
        self.hand_off_waits().await;
        Ok(())
    }

    /// Waits while requests are held back because the session may leave.
    pub(super) async fn wait_while_quiescing(&self) {
        while self.lock().quiesce.is_quiescing && !self.is_leaving() {
            tokio::time::sleep(QUIESCE_POLL).await;
        }
    }

    /// Nothing new begins here from now on, if nothing is in the way.
    fn try_begin_release(&self, forced: bool) -> ReleaseAttempt {
        let mut state = self.lock();
        if self.is_leaving() {
            return ReleaseAttempt::Gone;
        }
        let is_busy = state.questions.values().any(|question| !question.is_task_input())
            || self.answers_in_delivery.load(Ordering::Relaxed) > 0
            || state.in_flight.values().any(|request| !request.is_transferable());
        if is_busy && !forced {
            let calls = state.calls();
            return state.quiesce.note_busy(calls);
        }
        self.leaving.store(true, Ordering::Relaxed);
        state.moved = true;
        self.set_phase(&mut state, SessionPhase::Closing);
        ReleaseAttempt::Leaving
    }

    /// Requests that only wait leave this process before the session does, so that its next owner knows of them.
    async fn hand_off_waits(&self) {
        let waits = |state: &SessionState| {
            state.in_flight.values().filter(|request| request.is_transferable()).count()
        };
        self.lock().in_flight.values().for_each(InFlight::hand_off);
        let all_gone = async {
            while waits(&self.lock()) + self.answers_in_delivery.load(Ordering::Relaxed) > 0 {
                tokio::time::sleep(QUIESCE_POLL).await;
            }
        };
        let _left_are_cut = tokio::time::timeout(MOVE_ON_MAX, all_gone).await;
    }
}

/// Whether a session can be given away now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReleaseAttempt {
    Leaving,
    /// Something takes its time.
    Busy,
    /// Nothing takes long, but there is always something: new requests are held back until the session has left.
    Quiescing,
    Gone,
}

/// What keeps a session here that is to be given away.
#[derive(Debug, Default)]
pub(super) struct QuiesceState {
    /// Nothing begins that would keep it any longer.
    pub(super) is_quiescing: bool,
    /// What was in flight when it was first too busy, and still is.
    blocking_calls: HashSet<RequestId>,
}

impl QuiesceState {
    /// Long calls may take their time. A client that has one short call after the other in flight would never leave: once
    /// all that was in flight at one time is over, what comes next is held back.
    fn note_busy(&mut self, calls: HashSet<RequestId>) -> ReleaseAttempt {
        if self.is_quiescing {
            return ReleaseAttempt::Quiescing;
        }
        if self.blocking_calls.is_empty() {
            self.blocking_calls = calls;
            return ReleaseAttempt::Busy;
        }
        self.blocking_calls.retain(|id| calls.contains(id));
        self.is_quiescing = self.blocking_calls.is_empty();
        if self.is_quiescing { ReleaseAttempt::Quiescing } else { ReleaseAttempt::Busy }
    }

    /// Requests are taken again; what came meanwhile and takes long may do so.
    fn resume_requests(&mut self, calls: HashSet<RequestId>) {
        *self = Self { is_quiescing: false, blocking_calls: calls };
    }
}

impl SessionState {
    fn calls(&self) -> HashSet<RequestId> {
        self.in_flight
            .iter()
            .filter(|(_, request)| !request.is_transferable())
            .map(|(id, _)| id.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(ids: &[u64]) -> HashSet<RequestId> {
        ids.iter().map(|id| RequestId::from_u64(*id)).collect()
    }

    #[test]
    fn calls_that_overlap_all_the_time_do_not_keep_a_session() {
        let mut unrest = QuiesceState::default();
        let looks = [[1, 2], [2, 3], [3, 4], [4, 5]].map(|ids| unrest.note_busy(calls(&ids)));
        assert_eq!(
            looks,
            [
                ReleaseAttempt::Busy,
                ReleaseAttempt::Busy,
                ReleaseAttempt::Quiescing,
                ReleaseAttempt::Quiescing
            ]
        );
    }

    #[test]
    fn a_long_call_may_take_its_time() {
        let mut unrest = QuiesceState::default();
        for short in 2..20 {
            assert_eq!(unrest.note_busy(calls(&[1, short])), ReleaseAttempt::Busy);
        }
        assert_eq!(unrest.note_busy(calls(&[20])), ReleaseAttempt::Quiescing);
        unrest.resume_requests(calls(&[20]));
        assert_eq!(
            (unrest.note_busy(calls(&[20, 21])), unrest.note_busy(calls(&[21]))),
            (ReleaseAttempt::Busy, ReleaseAttempt::Quiescing)
        );
    }
}
