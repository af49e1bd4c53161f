//! The release of a session to another process, as soon as it is not busy.
//!
//! New requests are held back while the last short requests end. Requests that only wait for
//! stored state are handed off, and the next owner continues them.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use protocol::phase::SessionPhase;
use rules::limits::{CLOSING_UP_MAX, MOVE_ON_MAX};

use super::{
    Session,
    persisted_state::{SessionPersister, StoreFailure},
    state::{InFlight, ReleaseAttempt, SessionState},
    teardown::{Teardown, hand_off_links},
};
use crate::persistence::fault_point;

/// Interval of the check whether a quiescing session may leave. Its client's requests wait
/// meanwhile.
const QUIESCE_POLL: Duration = Duration::from_millis(5);

/// Outcome of an attempt to release a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseOutcome {
    Done,
    /// A request is in flight.
    Busy,
    /// The session had left already.
    Gone,
}

/// Treatment of a busy session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseMode {
    /// A busy session stays, so that its calls can end.
    Graceful,
    /// A busy session leaves too. Its calls in flight are cut.
    Forced,
}

/// The release of one session to its next owner.
#[derive(Debug, Clone, Copy)]
pub struct SessionRelease<'s> {
    session: &'s Arc<Session>,
    mode: ReleaseMode,
}

impl<'s> SessionRelease<'s> {
    pub fn new(session: &'s Arc<Session>, mode: ReleaseMode) -> Self {
        Self { session, mode }
    }

    /// Releases the session: stores its state, releases the row, and makes its client reconnect.
    /// The caller must not cancel this.
    pub async fn release(self) -> ReleaseOutcome {
        if let Err(outcome) = self.quiesce().await {
            return outcome;
        }
        match SessionPersister::new(self.session).store_release().await {
            Ok(()) => {
                fault_point::hit("session.released");
                self.session.shared.metrics.session_released();
                tracing::info!(session = %self.session.digest, tenant = %self.session.tenant.id, "session released");
            }
            Err(StoreFailure::Fenced) => {
                tracing::info!(session = %self.session.digest, "another replica already owned the session")
            }
            // This process still owns the row, so the next owner waits for the end of its lease.
            Err(StoreFailure::Refused(refusal)) => {
                tracing::warn!(session = %self.session.digest, %refusal, "the broker could not store the release of a session")
            }
        }
        // Not earlier: the log must hold that the cut answers are still pending, for the next
        // owner.
        self.session.lock().streams.all().for_each(|stream| stream.stop_logging());
        hand_off_links(self.session);
        self.session.deregister();
        ReleaseOutcome::Done
    }

    /// Ends a session that no other replica can continue. A busy session is treated as in
    /// [`SessionRelease::release`].
    pub async fn quiesce_and_end(self, why: &str) -> ReleaseOutcome {
        if let Err(outcome) = self.quiesce().await {
            return outcome;
        }
        let mut state = self.session.lock();
        let teardown = Teardown::start(self.session, &mut state);
        drop(state);
        teardown.finish(self.session, why);
        ReleaseOutcome::Done
    }

    /// Begins to leave when only transferable requests are in flight, and hands those off.
    async fn quiesce(self) -> Result<(), ReleaseOutcome> {
        let mut attempt = self.try_start(self.mode);
        if attempt == ReleaseAttempt::Quiescing {
            let quiesced = async {
                loop {
                    tokio::time::sleep(QUIESCE_POLL).await;
                    let again = self.try_start(ReleaseMode::Graceful);
                    if matches!(again, ReleaseAttempt::Leaving | ReleaseAttempt::Gone) {
                        return again;
                    }
                }
            };
            attempt = tokio::time::timeout(CLOSING_UP_MAX, quiesced)
                .await
                .unwrap_or(ReleaseAttempt::Busy);
            let mut state = self.session.lock();
            let calls = state.calls();
            state.ownership.quiesce.resume_requests(calls);
            drop(state);
        }
        match attempt {
            ReleaseAttempt::Gone => return Err(ReleaseOutcome::Gone),
            ReleaseAttempt::Busy | ReleaseAttempt::Quiescing => return Err(ReleaseOutcome::Busy),
            ReleaseAttempt::Leaving => {}
        }
        self.hand_off_waits().await;
        Ok(())
    }

    /// Begins to leave, unless the mode lets a busy session stay. A leaving session accepts nothing
    /// new.
    fn try_start(self, mode: ReleaseMode) -> ReleaseAttempt {
        let mut state = self.session.lock();
        if self.session.is_leaving() {
            return ReleaseAttempt::Gone;
        }
        let is_busy = state.questions.any_of_backends()
            || self.session.answers_in_delivery.load(Ordering::Relaxed) > 0
            || state.in_flight.values().any(|request| !request.is_transferable());
        if is_busy && mode == ReleaseMode::Graceful {
            let calls = state.calls();
            return state.ownership.quiesce.record_busy(calls);
        }
        self.session.leaving.store(true, Ordering::Relaxed);
        state.ownership.moved = true;
        self.session.set_phase(&mut state, SessionPhase::Closing);
        ReleaseAttempt::Leaving
    }

    /// Hands off the requests that only wait. They leave before the session does, so that its next
    /// owner has them.
    async fn hand_off_waits(self) {
        let waits = |state: &SessionState| {
            state.in_flight.values().filter(|request| request.is_transferable()).count()
        };
        self.session.lock().in_flight.values().for_each(InFlight::hand_off);
        let all_gone = async {
            while waits(&self.session.lock())
                + self.session.answers_in_delivery.load(Ordering::Relaxed)
                > 0
            {
                tokio::time::sleep(QUIESCE_POLL).await;
            }
        };
        let _rest_is_cut = tokio::time::timeout(MOVE_ON_MAX, all_gone).await;
    }
}

/// Waits while requests are held back because the session may leave.
pub(in crate::sessions) async fn wait_while_quiescing(session: &Session) {
    while session.lock().ownership.quiesce.is_quiescing && !session.is_leaving() {
        tokio::time::sleep(QUIESCE_POLL).await;
    }
}
