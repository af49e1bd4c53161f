//! Going away: each session is given away as soon as no call of it is in flight, so that its client finds it elsewhere, or
//! here after a restart. So is each task, unless its call was sent and may not be sent again: that may finish. What is still
//! busy when the grace is over is given away all the same.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, future, stream};
use storage::SessionKey;

use super::Broker;
use crate::{
    limits::{CLOSE_WAIT, RELEASED_AT_ONCE},
    sessions::session::{ReleaseOutcome, Session},
};

/// The part of the grace in which calls of tasks may finish that could as well be sent again elsewhere.
const FINISHING_SHARE: u32 = 20;
/// How often it is looked whether a busy session has come to rest.
const REST_POLL: Duration = Duration::from_millis(20);

impl Broker {
    /// Gives one session away, if nothing of it is in flight or it must go now.
    pub async fn release(self: &Arc<Self>, session: &Arc<Session>, forced: bool) -> ReleaseOutcome {
        let (broker, session) = (self.clone(), session.clone());
        // A task of its own: what is begun is finished, whoever waits for it.
        let releasing = self.shared.running.spawn(async move {
            let place = broker.adopting.place(&session.key);
            let _only_one = place.lock().await;
            if session.ends_with_connection() {
                return broker.end_here(&session, forced).await;
            }
            let released = session.release(forced).await;
            if released == ReleaseOutcome::Done {
                broker.shared.durable.hot.forget_owner(&session.key).await;
                broker.take_out(&session);
            }
            released
        });
        releasing.await.unwrap_or(ReleaseOutcome::Gone)
    }

    /// Ends a session whose client could not find it elsewhere, on the same terms.
    async fn end_here(self: &Arc<Self>, session: &Arc<Session>, forced: bool) -> ReleaseOutcome {
        const WHY: &str = "the broker goes away";
        let released = session.quiesce_and_end(WHY, forced).await;
        if released == ReleaseOutcome::Done {
            self.close_session(session, WHY);
        }
        released
    }

    /// Waits while a session is being given away: before that is done nobody else can take it.
    pub async fn release_settled(&self, session: &SessionKey) {
        let place = self.adopting.place(session);
        let _over = place.lock().await;
    }

    /// Gives the sessions away, busy ones when the grace is over, then says goodbye to backends. `true` when no call was cut.
    pub async fn finish_drain(self: &Arc<Self>, grace: Duration) -> bool {
        let begun = Instant::now();
        // Beside the sessions: of those there may be thousands, and each takes its time.
        let handing_over = async {
            loop {
                self.shared.tasks.hand_off(begun.elapsed() >= grace / FINISHING_SHARE);
                tokio::time::sleep(REST_POLL).await;
            }
        };
        let all_gone = async {
            while self.release_all(false).await > 0
                || self.shared.tasks.running() > 0
                || self.shared.modern.calls_in_flight() > 0
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
            tracing::warn!(calls, "the grace period is over, calls are cut");
            self.shared.modern.end_all();
            self.give_up_tasks().await;
            self.release_all(true).await;
        }
        self.tenants.iter().for_each(|tenant| {
            tenant.value().backends().iter().for_each(|backend| backend.close())
        });
        self.shared.running.close();
        if tokio::time::timeout(CLOSE_WAIT, self.shared.running.wait()).await.is_err() {
            tracing::warn!(tasks = self.shared.running.len(), "some links did not close in time");
        }
        clean
    }

    /// Tasks that still run are left to whoever claims them.
    async fn give_up_tasks(&self) {
        self.shared.tasks.release_all();
        let released = async {
            while self.shared.tasks.running() > 0 {
                tokio::time::sleep(REST_POLL).await;
            }
        };
        let _in_time = tokio::time::timeout(CLOSE_WAIT, released).await;
    }

    /// Returns how many are left, because they are busy.
    async fn release_all(self: &Arc<Self>, forced: bool) -> usize {
        let all = self.all_sessions();
        let released = stream::iter(&all)
            .map(|session| self.release(session, forced))
            .buffer_unordered(RELEASED_AT_ONCE);
        released.filter(|released| future::ready(*released == ReleaseOutcome::Busy)).count().await
    }
}
