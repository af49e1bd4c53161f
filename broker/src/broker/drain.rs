//! Drain of the broker.
//!
//! Each session is released as soon as no call of it is in flight. Its client finds it elsewhere,
//! or here after a restart. Each task is released too, unless its call was sent and may not be sent
//! again. Such a call may finish. After the grace period everything that is still busy is released.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, future, stream};
use records::SessionKey;
use rules::limits::{CLOSE_WAIT, RELEASED_AT_ONCE};

use super::Broker;
use crate::sessions::session::{ReleaseMode, ReleaseOutcome, Session, SessionRelease};

/// Divisor of the grace period. In that part of it calls of tasks may finish that could be sent
/// again elsewhere.
const FINISHING_SHARE: u32 = 20;
/// Interval of the check whether a busy session can be released.
const REST_POLL: Duration = Duration::from_millis(20);

impl Broker {
    /// Starts the drain: no new sessions from now on. Each session is served until it is released.
    pub fn drain(&self) {
        if !self.shared.shutdown.is_draining() {
            tracing::info!("draining: no new sessions");
            self.shared.shutdown.draining.cancel();
            self.tasks.drain();
        }
    }

    pub fn draining(&self) -> bool {
        self.shared.shutdown.is_draining()
    }

    /// Ends the streams that wait for no answer. Their clients resume them at another replica.
    pub fn close_streams(&self) {
        self.shared.shutdown.closing.cancel();
    }

    /// Answers the requests that other replicas still run for clients of this one.
    pub fn give_up_forwarded(&self) {
        self.shared.shutdown.grace_over.cancel();
    }

    /// Resolves once a drain has started.
    pub async fn drain_requested(&self) {
        self.shared.shutdown.draining.cancelled().await;
    }

    /// Releases one session, or leaves it here if it is busy and the mode is
    /// [`ReleaseMode::Graceful`].
    pub async fn release(
        self: &Arc<Self>,
        session: &Arc<Session>,
        mode: ReleaseMode,
    ) -> ReleaseOutcome {
        let (broker, session) = (self.clone(), session.clone());
        // The release runs in a task of its own, so that it is completed even if the caller is
        // dropped.
        let releasing = self.shared.running.spawn(async move {
            let lock = broker.adoption_locks.lock(&session.key);
            let _only_one = lock.lock().await;
            if session.transport.ends_with_connection() {
                return broker.end_here(&session, mode).await;
            }
            let released = SessionRelease::new(&session, mode).release().await;
            if released == ReleaseOutcome::Done {
                broker.shared.persistence.hot.remove_owner_hint(&session.key).await;
                broker.remove_session(&session);
            }
            released
        });
        releasing.await.unwrap_or(ReleaseOutcome::Gone)
    }

    /// Ends a session that belongs to its connection, so that no other replica can continue it.
    async fn end_here(
        self: &Arc<Self>,
        session: &Arc<Session>,
        mode: ReleaseMode,
    ) -> ReleaseOutcome {
        const WHY: &str = "the broker is shutting down";
        let released = SessionRelease::new(session, mode).quiesce_and_end(WHY).await;
        if released == ReleaseOutcome::Done {
            self.close_session(session, WHY);
        }
        released
    }

    /// Waits while a session is being released. No replica can take it before that is done.
    pub async fn wait_for_release(&self, session: &SessionKey) {
        let lock = self.adoption_locks.lock(session);
        let _over = lock.lock().await;
    }

    /// Releases the sessions, busy ones after the grace period, then closes the backends. Returns
    /// true if no call was cut.
    pub async fn finish_drain(self: &Arc<Self>, grace: Duration) -> bool {
        let started_at = Instant::now();
        // Tasks are handed off alongside the sessions. There may be thousands of sessions, and each
        // takes its time.
        let handing_over = async {
            loop {
                self.tasks.hand_off(started_at.elapsed() >= grace / FINISHING_SHARE);
                tokio::time::sleep(REST_POLL).await;
            }
        };
        let all_gone = async {
            while self.release_all(ReleaseMode::Graceful).await > 0
                || self.tasks.running() > 0
                || self.stateless.calls_in_flight() > 0
                || !self.shared.oauth.renewals.is_empty()
            {
                tokio::time::sleep(REST_POLL).await;
            }
        };
        let going = async {
            tokio::select! {
                never = handing_over => never,
                () = all_gone => {}
            }
        };
        let clean = tokio::time::timeout(grace, going).await.is_ok();
        if !clean {
            let calls =
                self.all_sessions().iter().map(|session| session.calls_in_flight()).sum::<usize>();
            tracing::warn!(
                calls,
                "the grace period has ended: the broker cancels the remaining calls"
            );
            self.stateless.end_all();
            self.give_up_tasks().await;
            self.release_all(ReleaseMode::Forced).await;
        }
        self.tenants.iter().for_each(|tenant| {
            tenant.value().backends().iter().for_each(|backend| backend.close())
        });
        let (running, renewals) = (&self.shared.running, &self.shared.oauth.renewals);
        running.close();
        renewals.close();
        let closed = async { tokio::join!(running.wait(), renewals.wait()) };
        if tokio::time::timeout(CLOSE_WAIT, closed).await.is_err() {
            tracing::warn!(
                tasks = running.len(),
                renewals = renewals.len(),
                "some links or renewals of tokens did not end in time"
            );
        }
        clean
    }

    /// Releases the tasks that still run, for other replicas to claim.
    async fn give_up_tasks(&self) {
        self.tasks.release_all();
        let released = async {
            while self.tasks.running() > 0 {
                tokio::time::sleep(REST_POLL).await;
            }
        };
        let _in_time = tokio::time::timeout(CLOSE_WAIT, released).await;
    }

    /// Releases all sessions. Returns how many stay because they are busy.
    async fn release_all(self: &Arc<Self>, mode: ReleaseMode) -> usize {
        let all = self.all_sessions();
        let released = stream::iter(&all)
            .map(|session| self.release(session, mode))
            .buffer_unordered(RELEASED_AT_ONCE);
        released.filter(|released| future::ready(*released == ReleaseOutcome::Busy)).count().await
    }
}
