//! Sweeper of the stores: removes expired rows, except those of the audit log, and counts the
//! remaining tasks.
//!
//! Every replica sweeps at its own moments. The first one that finds a row removes it. Sessions
//! are swept only when live replicas must have renewed their leases. Every replica counts, which
//! may read all rows of a kind. A replica repeats a slow count less often, so that counts cost the
//! store little however many rows and replicas there are.

use std::{sync::Arc, time::Duration};

use config::{Config, SessionConfig};
use records::{ApprovalState, GrantState, TaskClaimScope, TaskStatus};
use rules::limits::{
    SWEEP_EVENTS, SWEEP_INTERVAL, SWEEP_ROUNDS_MAX, SWEEP_ROWS,
    approvals::{APPROVAL_EXPIRED_KEPT, APPROVAL_KEPT},
    replicas::COUNT_PAUSE_TIMES,
};
use storage::StoreError;
use tokio::time::{Instant, sleep};

use super::Persistence;
use crate::metrics::Metrics;

/// Sweeps until the future is dropped.
pub async fn sweep(persistence: Arc<Persistence>, config: Arc<Config>, metrics: Arc<Metrics>) {
    let mut paces = CountPaces::default();
    loop {
        // The interval is random, so that replicas that started together spread.
        sleep(SWEEP_INTERVAL.mul_f64(rand::random_range(0.5..1.5))).await;
        metrics.rows_unreadable(persistence.store.unreadable_rows());
        metrics.hot_store(persistence.hot.engine(), persistence.hot.is_connected());
        let sweep = Sweep { persistence: &persistence, metrics: &metrics };
        // An error is in the log and counted already. The next round does the rest.
        let _later = sweep.count_grants(&mut paces.grants).await;
        let _later = sweep.approvals(&mut paces.approvals).await;
        let _later = sweep.sessions(&config.session).await;
        let _later = sweep.tasks(&mut paces.tasks).await;
        let _later = sweep.results().await;
        let _later = sweep.events(config.events.log_retention()).await;
    }
}

#[derive(Debug, Default)]
struct CountPaces {
    grants: CountPace,
    approvals: CountPace,
    tasks: CountPace,
}

/// How often the rows of one kind are counted.
#[derive(Debug, Default)]
struct CountPace {
    /// Time of the next count. `None`: none was made so far.
    due: Option<Instant>,
}

impl CountPace {
    /// Counts if that is due. Returns `None` otherwise.
    async fn count<T>(
        &mut self,
        counting: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<Option<T>, StoreError> {
        let started_at = Instant::now();
        if self.due.is_some_and(|due| started_at < due) {
            return Ok(None);
        }
        let counted = counting.await;
        // A count that failed because the store is away sets no pause.
        if !matches!(counted, Err(StoreError::Unavailable { .. })) {
            self.due = Some(Instant::now() + started_at.elapsed() * COUNT_PAUSE_TIMES);
        }
        counted.map(Some)
    }
}

struct Sweep<'s> {
    persistence: &'s Persistence,
    metrics: &'s Metrics,
}

impl Sweep<'_> {
    async fn count_grants(&self, pace: &mut CountPace) -> Result<(), StoreError> {
        let counting = self.persistence.run("count_grants", self.persistence.store.grant_counts());
        let Some(counts) = pace.count(counting).await? else { return Ok(()) };
        for state in GrantState::ALL {
            let count = counts.iter().find(|(counted, _)| *counted == state);
            self.metrics.oauth.grants(state.name(), count.map_or(0, |(_, count)| *count));
        }
        Ok(())
    }

    async fn approvals(&self, pace: &mut CountPace) -> Result<(), StoreError> {
        let store = &self.persistence.store;
        for _ in 0..SWEEP_ROUNDS_MAX {
            let expired = self
                .persistence
                .run("expire_approvals", store.expire_approvals(SWEEP_ROWS))
                .await?;
            self.metrics.approvals.expired(expired);
            let removing = store.remove_approvals(APPROVAL_KEPT, APPROVAL_EXPIRED_KEPT, SWEEP_ROWS);
            let removed = self.persistence.run("remove_approvals", removing).await?;
            self.metrics.expired("approvals", removed);
            if expired.max(removed) < u64::from(SWEEP_ROWS) {
                break;
            }
        }
        let counting = self.persistence.run("count_approvals", store.approval_counts());
        let Some(counts) = pace.count(counting).await? else { return Ok(()) };
        for state in ApprovalState::ALL {
            let count = counts.iter().find(|(counted, _)| *counted == state);
            self.metrics.approvals.stored(state, count.map_or(0, |(_, count)| *count));
        }
        Ok(())
    }

    async fn sessions(&self, config: &SessionConfig) -> Result<(), StoreError> {
        for _ in 0..SWEEP_ROUNDS_MAX {
            if !may_sweep_sessions(self.persistence, config.lease) {
                break;
            }
            let sweeping = self.persistence.store.sweep_sessions(config.idle, SWEEP_ROWS);
            let gone = self.persistence.run("sweep_sessions", sweeping).await?;
            self.metrics.expired("sessions", gone.len() as u64);
            for session in &gone {
                self.persistence.forget_session(session).await;
            }
            if gone.len() < SWEEP_ROWS as usize {
                break;
            }
        }
        Ok(())
    }

    async fn tasks(&self, pace: &mut CountPace) -> Result<(), StoreError> {
        for _ in 0..SWEEP_ROUNDS_MAX {
            let gone = self
                .persistence
                .run("expire_tasks", self.persistence.store.expire_tasks(SWEEP_ROWS))
                .await?;
            self.metrics.expired("tasks", gone.len() as u64);
            if gone.len() < SWEEP_ROWS as usize {
                break;
            }
        }
        let counting = self.persistence.run("count_tasks", self.persistence.store.task_counts());
        let Some(counts) = pace.count(counting).await? else { return Ok(()) };
        for status in TaskStatus::ALL {
            let count = counts
                .iter()
                .find(|(counted, _)| *counted == status)
                .map_or(0, |(_, count)| *count);
            self.metrics.stored_tasks(status, count);
        }
        Ok(())
    }

    async fn results(&self) -> Result<(), StoreError> {
        for _ in 0..SWEEP_ROUNDS_MAX {
            let removing = self.persistence.store.remove_results(SWEEP_ROWS);
            let removed = self.persistence.run("remove_results", removing).await?;
            self.metrics.expired("results", removed);
            if removed < u64::from(SWEEP_ROWS) {
                break;
            }
        }
        Ok(())
    }

    async fn events(&self, retain: Duration) -> Result<(), StoreError> {
        let Some(events) = &self.persistence.events else { return Ok(()) };
        for _ in 0..SWEEP_ROUNDS_MAX {
            let gone = self
                .persistence
                .run_on(
                    events.engine(),
                    "expire_events",
                    events.expire_events(retain, SWEEP_EVENTS),
                )
                .await?;
            self.metrics.expired("events", gone);
            if gone < u64::from(SWEEP_EVENTS) {
                break;
            }
        }
        Ok(())
    }
}

/// Returns whether a session whose owner has no lease is certainly without an owner.
///
/// An outage of the database can last longer than the idle time. All leases have lapsed then, and
/// all stored sessions are idle, although replicas serve them from memory. This process may be the
/// first one to be back. It sweeps once it has held its new lease for so long that every live
/// replica has renewed its own and reclaimed its sessions. Each replica waits in this way after its
/// own return, so no sweep of another replica comes earlier. A replica that is back later counts as
/// dead.
fn may_sweep_sessions(persistence: &Persistence, lease: Duration) -> bool {
    !persistence.is_shared()
        || persistence.lease.claim_scope(lease) == Some(TaskClaimScope::Unowned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::persistence::tests::{Meddled, persistence_over};

    #[tokio::test]
    async fn shared_sessions_are_swept_once_every_owner_had_time_to_renew_its_lease() {
        let (lease, metrics) = (Duration::from_millis(50), Metrics::new(false));
        let config = SessionConfig { lease, idle: Duration::ZERO, resume: Duration::ZERO };
        let store = Meddled::start("a server").await;
        let persistence = persistence_over(&store);
        let sweep = Sweep { persistence: &persistence, metrics: &metrics };
        sweep.sessions(&config).await.unwrap();
        persistence.lease.extend(Instant::now(), lease);
        sweep.sessions(&config).await.unwrap();
        assert_eq!(store.count("sweep_sessions"), 0, "the outage may be over just now");
        persistence.lease.extend_for_good();
        sleep(3 * lease).await;
        sweep.sessions(&config).await.unwrap();
        assert_eq!(store.count("sweep_sessions"), 1);
    }

    #[tokio::test]
    async fn a_process_that_is_alone_sweeps_sessions_at_once() {
        let (lease, metrics) = (Duration::from_secs(60), Metrics::new(false));
        let config = SessionConfig { lease, idle: Duration::ZERO, resume: Duration::ZERO };
        let store = Meddled::start("sqlite").await;
        let persistence = persistence_over(&store);
        Sweep { persistence: &persistence, metrics: &metrics }.sessions(&config).await.unwrap();
        assert_eq!(store.count("sweep_sessions"), 1);
    }

    /// Returns whether a count that takes so long, and ends like this, was made.
    async fn counted(
        pace: &mut CountPace,
        takes: Duration,
        end: Result<(), StoreError>,
    ) -> Result<bool, StoreError> {
        let counting = async {
            sleep(takes).await;
            end
        };
        Ok(pace.count(counting).await?.is_some())
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_count_is_repeated_less_often_and_an_outage_delays_none() {
        let mut pace = CountPace::default();
        let (fast, slow) = (Duration::from_millis(1), Duration::from_secs(1));
        for _ in 0..3 {
            assert_eq!(counted(&mut pace, fast, Ok(())).await, Ok(true));
            sleep(SWEEP_INTERVAL / 2).await;
        }
        let away = StoreError::Unavailable { detail: "a test".into() };
        assert_eq!(counted(&mut pace, slow, Err(away.clone())).await, Err(away));
        assert_eq!(counted(&mut pace, slow, Ok(())).await, Ok(true));
        sleep(slow * (COUNT_PAUSE_TIMES - 1)).await;
        assert_eq!(counted(&mut pace, fast, Ok(())).await, Ok(false));
        sleep(slow).await;
        let busy = StoreError::Busy { detail: "a test".into() };
        assert_eq!(counted(&mut pace, slow, Err(busy.clone())).await, Err(busy));
        assert_eq!(counted(&mut pace, fast, Ok(())).await, Ok(false));
    }
}
