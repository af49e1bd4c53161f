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

use super::{Session, State, questions::Question, record::BackendSession, requests::InFlight, stored::Unstored};
use crate::{
    actors::{link::Link, stream::EventStream},
    durable::fault_point,
    limits::{CLOSING_UP_MAX, MOVE_ON_MAX},
};

/// How often it is looked whether the last call of a session that moved is over.
const LAST_CALL_POLL: Duration = Duration::from_millis(50);
/// The same of one that is about to be given away: its clients wait.
const CLOSING_UP_POLL: Duration = Duration::from_millis(5);

/// What a session that leaves has to be cleaned up of.
struct Remains {
    in_flight: Vec<InFlight>,
    questions: Vec<Question>,
    links: Vec<Arc<Link>>,
    backend_sessions: Vec<(BackendId, BackendSession)>,
    streams: Vec<Arc<EventStream>>,
}

/// What became of an attempt to give a session away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
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
        let ending = self.take_apart(&mut state);
        drop(state);
        self.finish("idle", ending);
        true
    }

    /// Ends the session: its calls are cancelled, its questions answered for it, its streams closed, its links given back.
    pub fn end(self: &Arc<Self>, why: &str) {
        let mut state = self.lock();
        if self.is_leaving() {
            return;
        }
        let ending = self.take_apart(&mut state);
        drop(state);
        self.finish(why, ending);
    }

    fn take_apart(&self, state: &mut State) -> Remains {
        self.leaving.store(true, Ordering::Relaxed);
        self.go_to(state, SessionPhase::Closed);
        self.shared.metrics.subscriptions(-i64::try_from(state.subscriptions.len()).unwrap_or(0));
        state.subscriptions.clear();
        Remains {
            in_flight: state.in_flight.values().cloned().collect(),
            questions: state.questions.drain().map(|(_, question)| question).collect(),
            links: state.links.drain().map(|(_, link)| link).collect(),
            backend_sessions: state.backend_sessions.drain().collect(),
            streams: state.streams.take_all(),
        }
    }

    fn go_to(&self, state: &mut State, phase: SessionPhase) {
        if self.kept {
            self.shared.metrics.phase(state.phase.name(), phase.name());
        }
        state.phase = phase;
    }

    fn finish(self: &Arc<Self>, why: &str, remains: Remains) {
        if self.kept {
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
        self.depart();
    }

    /// It is counted here no longer.
    fn depart(self: &Arc<Self>) {
        self.tenant.close_session(self);
        self.shared.tasks.forget_session(self);
        if self.kept {
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
            self.go_to(&mut state, SessionPhase::Closing);
            state.streams.all().for_each(|stream| stream.stop_logging());
            state.streams.all_general().iter().for_each(|stream| stream.pause());
        }
        tracing::info!(session = %self.digest, tenant = %self.tenant.id, why, "session left to its new owner");
        self.depart();
        let session = self.clone();
        self.shared.running.spawn(async move {
            session.last_call().await;
            session.hand_over_links();
        });
    }

    async fn last_call(&self) {
        // A question its client can only answer elsewhere would keep its call for ever.
        let questions: Vec<Question> = self.lock().questions.drain().map(|(_, question)| question).collect();
        questions.iter().for_each(|question| question.refuse("the client is gone"));
        let over = async {
            while self.calls_in_flight() > 0 {
                tokio::time::sleep(LAST_CALL_POLL).await;
            }
        };
        let _cut = tokio::time::timeout(self.shared.config.timeouts.call_max, over).await;
    }

    /// Everything closes, and nobody is told goodbye.
    fn hand_over_links(self: &Arc<Self>) {
        let mut state = self.lock();
        let remains = self.take_apart(&mut state);
        drop(state);
        remains.questions.iter().for_each(|question| question.refuse("the client is gone"));
        remains.in_flight.iter().for_each(|request| request.cancel(None));
        for stream in &remains.streams {
            stream.pause(); // what is left is read first, then the word on when to come back
            stream.close();
        }
        remains.links.iter().for_each(|link| link.hand_over(self));
    }

    /// Gives the session away: stores all of it, lets go of the row, sends its client back. Nothing in flight is cut,
    /// unless `forced`. Whoever begins this sees it through.
    pub async fn release(self: &Arc<Self>, forced: bool) -> Released {
        if let Err(stays) = self.come_to_rest(forced).await {
            return stays;
        }
        match self.store_release().await {
            Ok(()) => {
                fault_point::passed("session.released");
                self.shared.metrics.session_released();
                tracing::info!(session = %self.digest, tenant = %self.tenant.id, "session released");
            }
            Err(Unstored::Fenced) => tracing::info!(session = %self.digest, "session was another's already"),
            // Our row still: the next owner waits for the end of our lease.
            Err(Unstored::Refused(refusal)) => tracing::warn!(session = %self.digest, %refusal, "session released unstored"),
        }
        // Not before: the answers that are cut are due on their streams, and the next owner says so.
        self.lock().streams.all().for_each(|stream| stream.stop_logging());
        self.hand_over_links();
        self.depart();
        Released::Done
    }

    /// Ends a session whose client could not find it elsewhere, on the terms of [`Session::release`].
    pub async fn end_at_rest(self: &Arc<Self>, why: &str, forced: bool) -> Released {
        if let Err(stays) = self.come_to_rest(forced).await {
            return stays;
        }
        let mut state = self.lock();
        let remains = self.take_apart(&mut state);
        drop(state);
        self.finish(why, remains);
        Released::Done
    }

    /// Begins to leave when nothing is in flight but what can be asked for elsewhere, and is rid of that, too.
    async fn come_to_rest(self: &Arc<Self>, forced: bool) -> Result<(), Released> {
        let mut begun = self.begin_release(forced);
        if begun == Begun::Restless {
            let rests = async {
                loop {
                    tokio::time::sleep(CLOSING_UP_POLL).await;
                    let again = self.begin_release(false);
                    if matches!(again, Begun::Leaving | Begun::Gone) {
                        return again;
                    }
                }
            };
            begun = tokio::time::timeout(CLOSING_UP_MAX, rests).await.unwrap_or(Begun::Busy);
            let mut state = self.lock();
            let calls = state.calls();
            state.unrest.open_up(calls);
            drop(state);
        }
        match begun {
            Begun::Gone => return Err(Released::Gone),
            Begun::Busy | Begun::Restless => return Err(Released::Busy),
            Begun::Leaving => {}
        }
        self.move_waits_on().await;
        Ok(())
    }

    /// Waits while requests are held back because the session may leave.
    pub(super) async fn stays_or_leaves(&self) {
        while self.lock().unrest.closing_up && !self.is_leaving() {
            tokio::time::sleep(CLOSING_UP_POLL).await;
        }
    }

    /// Nothing new begins here from now on, if nothing is in the way.
    fn begin_release(&self, forced: bool) -> Begun {
        let mut state = self.lock();
        if self.is_leaving() {
            return Begun::Gone;
        }
        let is_busy = state.questions.values().any(|question| !question.is_task_input())
            || self.settling.load(Ordering::Relaxed) > 0
            || state.in_flight.values().any(|request| !request.is_transferable());
        if is_busy && !forced {
            let calls = state.calls();
            return state.unrest.kept_busy(calls);
        }
        self.leaving.store(true, Ordering::Relaxed);
        state.moved = true;
        self.go_to(&mut state, SessionPhase::Closing);
        Begun::Leaving
    }

    /// Requests that only wait leave this process before the session does, so that its next owner knows of them.
    async fn move_waits_on(&self) {
        let waits = |state: &State| state.in_flight.values().filter(|request| request.is_transferable()).count();
        self.lock().in_flight.values().for_each(InFlight::hand_off);
        let all_gone = async {
            while waits(&self.lock()) + self.settling.load(Ordering::Relaxed) > 0 {
                tokio::time::sleep(CLOSING_UP_POLL).await;
            }
        };
        let _left_are_cut = tokio::time::timeout(MOVE_ON_MAX, all_gone).await;
    }
}

/// Whether a session can be given away now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begun {
    Leaving,
    /// Something takes its time.
    Busy,
    /// Nothing takes long, but there is always something: new requests are held back until the session has left.
    Restless,
    Gone,
}

/// What keeps a session here that is to be given away.
#[derive(Debug, Default)]
pub(super) struct Unrest {
    /// Nothing begins that would keep it any longer.
    pub(super) closing_up: bool,
    /// What was in flight when it was first too busy, and still is.
    kept_by: HashSet<RequestId>,
}

impl Unrest {
    /// Long calls may take their time. A client that has one short call after the other in flight would never leave: once
    /// all that was in flight at one time is over, what comes next is held back.
    fn kept_busy(&mut self, calls: HashSet<RequestId>) -> Begun {
        if self.closing_up {
            return Begun::Restless;
        }
        if self.kept_by.is_empty() {
            self.kept_by = calls;
            return Begun::Busy;
        }
        self.kept_by.retain(|id| calls.contains(id));
        self.closing_up = self.kept_by.is_empty();
        if self.closing_up { Begun::Restless } else { Begun::Busy }
    }

    /// Requests are taken again; what came meanwhile and takes long may do so.
    fn open_up(&mut self, calls: HashSet<RequestId>) {
        *self = Self { closing_up: false, kept_by: calls };
    }
}

impl State {
    fn calls(&self) -> HashSet<RequestId> {
        self.in_flight.iter().filter(|(_, request)| !request.is_transferable()).map(|(id, _)| id.clone()).collect()
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
        let mut unrest = Unrest::default();
        let looks = [[1, 2], [2, 3], [3, 4], [4, 5]].map(|ids| unrest.kept_busy(calls(&ids)));
        assert_eq!(looks, [Begun::Busy, Begun::Busy, Begun::Restless, Begun::Restless]);
    }

    #[test]
    fn a_long_call_may_take_its_time() {
        let mut unrest = Unrest::default();
        for short in 2..20 {
            assert_eq!(unrest.kept_busy(calls(&[1, short])), Begun::Busy);
        }
        assert_eq!(unrest.kept_busy(calls(&[20])), Begun::Restless);
        unrest.open_up(calls(&[20]));
        assert_eq!((unrest.kept_busy(calls(&[20, 21])), unrest.kept_busy(calls(&[21]))), (Begun::Busy, Begun::Restless));
    }
}
