//! The ways in which a session leaves this process: it ends, it is released, or another process
//! took it.
//!
//! Backends learn only of an end. A session that was released or taken still belongs to its client:
//!
//! - Its links are dropped without a message, so that the next owner resumes the sessions there.
//! - Its streams are paused, so that the client comes back and reaches the new owner.
//! - Requests that only wait for stored state wait there.
//!
//! A session that is bound to its connection can only end. It ends as soon as nothing but such
//! waits is in flight.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use protocol::{
    error::{ErrorKind, Refusal},
    ids::{BackendId, RequestId},
    phase::SessionPhase,
};
use rules::client_transport::Transport;

use super::{
    Session,
    delivery::can_resume_later,
    state::{InFlight, Question, SessionState},
};
use crate::{
    backends::link::{BackendSession, Link},
    sessions::stream::EventStream,
};

/// Interval of the check whether the last call of a session that moved is over.
const DRAIN_POLL: Duration = Duration::from_millis(50);

/// State that a leaving session has to clean up.
pub(super) struct Teardown {
    in_flight: Vec<InFlight>,
    questions: Vec<Question>,
    links: Vec<Arc<Link>>,
    backend_sessions: Vec<(BackendId, BackendSession)>,
    streams: Vec<Arc<EventStream>>,
}

impl Session {
    /// Ends the session if it has been idle for this long. A request or stream that comes at the
    /// same moment finds the session over, or keeps it.
    pub fn end_if_idle(self: &Arc<Self>, limit: Duration) -> bool {
        if self.idle_for() <= limit {
            return false;
        }
        let mut state = self.lock();
        let is_busy = !state.in_flight.is_empty() || state.streams.any_connected();
        let now = self.shared.uptime_ms();
        if self.is_leaving() || is_busy || self.clock.since_touched(now) <= limit {
            return false;
        }
        let teardown = Teardown::start(self, &mut state);
        drop(state);
        teardown.finish(self, "idle");
        true
    }

    /// Ends the session: cancels its calls, refuses its questions, closes its streams, releases its
    /// links.
    pub fn end(self: &Arc<Self>, why: &str) {
        let mut state = self.lock();
        if self.is_leaving() {
            return;
        }
        let teardown = Teardown::start(self, &mut state);
        drop(state);
        teardown.finish(self, why);
    }

    pub(super) fn set_phase(&self, state: &mut SessionState, phase: SessionPhase) {
        if self.kind.has_client() {
            self.shared.metrics.phase(state.phase.name(), phase.name());
        }
        state.phase = phase;
    }

    /// Removes the session from the counts and the registry of this process.
    pub(super) fn deregister(self: &Arc<Self>) {
        self.tenant.close_session(self);
        self.shared.registry.remove(self);
        if self.kind.has_client() {
            self.shared.metrics.sessions(self.transport, "open", -1);
            self.tenant.counts.sessions(-1);
        }
    }

    /// Leaves the session to its new owner. Calls in flight may finish on their connections.
    /// Nothing is stored any more.
    pub fn abandon(self: &Arc<Self>, why: &str) {
        {
            let mut state = self.lock();
            if self.leaving.swap(true, Ordering::Relaxed) {
                return;
            }
            state.ownership.moved = true;
            self.set_phase(&mut state, SessionPhase::Closing);
            state.streams.all().for_each(|stream| stream.stop_logging());
            state.streams.all_general().iter().for_each(|stream| stream.pause());
        }
        tracing::info!(session = %self.digest, tenant = %self.tenant.id, why, "session left to its new owner");
        self.deregister();
        let session = self.clone();
        self.shared.running.spawn(async move {
            drain_calls(&session).await;
            hand_off_links(&session);
            session.shared.persistence.release_log(&session.key);
        });
    }
}

impl Teardown {
    /// Ends the session under its lock, and takes out what is left to clean up.
    pub(super) fn start(session: &Session, state: &mut SessionState) -> Self {
        session.leaving.store(true, Ordering::Relaxed);
        session.set_phase(state, SessionPhase::Closed);
        session
            .shared
            .metrics
            .subscriptions(-i64::try_from(state.subscriptions.len()).unwrap_or(0));
        state.subscriptions.clear();
        let (links, backend_sessions) = state.links.take_all();
        Self {
            in_flight: state.in_flight.values().cloned().collect(),
            questions: state.questions.take_all(),
            links,
            backend_sessions,
            streams: state.streams.take_all(),
        }
    }

    /// Cancels and closes what is left, with a message to each backend.
    pub(super) fn finish(self, session: &Arc<Session>, why: &str) {
        if session.kind.has_client() {
            tracing::info!(session = %session.digest, tenant = %session.tenant.id, why, "session ended");
        }
        self.questions.iter().for_each(|question| question.refuse("the client is gone"));
        for stream in &self.streams {
            stream.stop_logging(); // the log forgets the session as a whole
        }
        // Other transports report the end by codes: of their connection, or of a stream of QUIC.
        let has_http_streams = session.kind.has_client() && session.transport == Transport::Http;
        for request in &self.in_flight {
            if has_http_streams {
                request.stream().give_up_answers(Instant::now(), |id| ended_frame(session, id));
            }
            request.cancel(None);
        }
        self.streams.iter().for_each(|stream| stream.close());
        for (backend, stored) in self.backend_sessions {
            let unused = match self.links.iter().find(|link| link.backend.id == backend) {
                Some(link) => link.take_resumption(),
                None => Some(stored),
            };
            if let (Some(unused), Some(backend)) = (unused, session.tenant.backend(&backend)) {
                session.shared.running.spawn(Link::end_unused(backend, unused));
            }
        }
        self.links.iter().for_each(|link| link.detach(session));
        session.deregister();
    }

    /// Closes everything without a message to the backends.
    fn hand_off(self, session: &Arc<Session>) {
        self.questions.iter().for_each(|question| question.refuse("the client is gone"));
        let has_http_streams = session.kind.has_client() && session.transport == Transport::Http;
        for request in &self.in_flight {
            if has_http_streams && !can_resume_later(session, request.stream()) {
                request.stream().give_up_answers(Instant::now(), |id| moved_frame(session, id));
            }
            request.cancel(None);
        }
        for stream in &self.streams {
            stream.pause(); // what is left is read first, then the time of the reconnection
            stream.close();
        }
        self.links.iter().for_each(|link| link.hand_off(session));
    }
}

/// Returns the answer to a request that was in flight when its session ended.
fn ended_frame(session: &Session, id: &RequestId) -> Bytes {
    unknown_outcome(session, id, "the session ended before the answer")
}

/// Returns the answer to a request that was in flight when its session went to another owner.
fn moved_frame(session: &Session, id: &RequestId) -> Bytes {
    unknown_outcome(session, id, "the session went to another process before the answer")
}

fn unknown_outcome(session: &Session, id: &RequestId, why: &str) -> Bytes {
    let text = format!("{why}; the backend may have carried out the request");
    session.refusal_frame(&Refusal::new(ErrorKind::OutcomeUnknown, text), Some(id))
}

/// Closes everything without a message to the backends.
pub(super) fn hand_off_links(session: &Arc<Session>) {
    let mut state = session.lock();
    let teardown = Teardown::start(session, &mut state);
    drop(state);
    teardown.hand_off(session);
}

/// Waits for the calls in flight, as long as a call may take.
async fn drain_calls(session: &Session) {
    // A question that its client can only answer elsewhere would keep its call open for ever.
    let questions = session.lock().questions.take_all();
    questions.iter().for_each(|question| question.refuse("the client is gone"));
    let over = async {
        while session.calls_in_flight() > 0 {
            tokio::time::sleep(DRAIN_POLL).await;
        }
    };
    let _cut = tokio::time::timeout(session.shared.config.timeouts.call_max, over).await;
}
