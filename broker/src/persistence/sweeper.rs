//! Sweeper of the stores: removes expired rows, except those of the audit log, and counts the
//! remaining tasks.
//!
//! Every replica sweeps at its own moments. The first one that finds a row removes it.

use std::{sync::Arc, time::Duration};

use records::{ApprovalState, GrantState, TaskStatus};
use rules::limits::{
    SWEEP_EVENTS, SWEEP_INTERVAL, SWEEP_ROUNDS_MAX, SWEEP_ROWS,
    approvals::{APPROVAL_EXPIRED_KEPT, APPROVAL_KEPT},
};
use storage::StoreError;
use tokio::time::sleep;

use super::Persistence;
use crate::{config::Config, metrics::Metrics};

/// Sweeps until the future is dropped.
pub async fn sweep(durable: Arc<Persistence>, config: Arc<Config>, metrics: Arc<Metrics>) {
    loop {
        // The interval is random, so that replicas that started together spread.
        sleep(SWEEP_INTERVAL.mul_f64(rand::random_range(0.5..1.5))).await;
        metrics.rows_unreadable(durable.store.unreadable_rows());
        metrics.hot_store(durable.hot.engine(), durable.hot.is_connected());
        let sweep = Sweep { durable: &durable, metrics: &metrics };
        // An error is in the log and counted already. The next round does the rest.
        let _later = sweep.count_grants().await;
        let _later = sweep.approvals().await;
        let _later = sweep.sessions(config.session.idle).await;
        let _later = sweep.tasks().await;
        let _later = sweep.results().await;
        let _later = sweep.events(config.events.retain).await;
    }
}

struct Sweep<'s> {
    durable: &'s Persistence,
    metrics: &'s Metrics,
}

impl Sweep<'_> {
    async fn count_grants(&self) -> Result<(), StoreError> {
        let counts = self.durable.ask("grant_counts", self.durable.store.grant_counts()).await?;
        for state in GrantState::ALL {
            let count = counts.iter().find(|(counted, _)| *counted == state);
            self.metrics.oauth.grants(state.name(), count.map_or(0, |(_, count)| *count));
        }
        Ok(())
    }

    async fn approvals(&self) -> Result<(), StoreError> {
        let store = &self.durable.store;
        for _ in 0..SWEEP_ROUNDS_MAX {
            let expired =
                self.durable.ask("expire_approvals", store.expire_approvals(SWEEP_ROWS)).await?;
            self.metrics.approvals.expired(expired);
            let removing = store.remove_approvals(APPROVAL_KEPT, APPROVAL_EXPIRED_KEPT, SWEEP_ROWS);
            let removed = self.durable.ask("remove_approvals", removing).await?;
            self.metrics.expired("approvals", removed);
            if expired.max(removed) < u64::from(SWEEP_ROWS) {
                break;
            }
        }
        let counts = self.durable.ask("approval_counts", store.approval_counts()).await?;
        for state in ApprovalState::ALL {
            let count = counts.iter().find(|(counted, _)| *counted == state);
            self.metrics.approvals.stored(state, count.map_or(0, |(_, count)| *count));
        }
        Ok(())
    }

    async fn sessions(&self, idle: Duration) -> Result<(), StoreError> {
        for _ in 0..SWEEP_ROUNDS_MAX {
            let gone = self
                .durable
                .ask("sweep_sessions", self.durable.store.sweep_sessions(idle, SWEEP_ROWS))
                .await?;
            self.metrics.expired("sessions", gone.len() as u64);
            for session in &gone {
                self.durable.forget_session(session).await;
            }
            if gone.len() < SWEEP_ROWS as usize {
                break;
            }
        }
        Ok(())
    }

    async fn tasks(&self) -> Result<(), StoreError> {
        for _ in 0..SWEEP_ROUNDS_MAX {
            let gone = self
                .durable
                .ask("expire_tasks", self.durable.store.expire_tasks(SWEEP_ROWS))
                .await?;
            self.metrics.expired("tasks", gone.len() as u64);
            if gone.len() < SWEEP_ROWS as usize {
                break;
            }
        }
        let counts = self.durable.ask("task_counts", self.durable.store.task_counts()).await?;
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
            let removing = self.durable.store.remove_results(SWEEP_ROWS);
            let removed = self.durable.ask("remove_results", removing).await?;
            self.metrics.expired("results", removed);
            if removed < u64::from(SWEEP_ROWS) {
                break;
            }
        }
        Ok(())
    }

    async fn events(&self, retain: Duration) -> Result<(), StoreError> {
        let Some(events) = &self.durable.events else { return Ok(()) };
        for _ in 0..SWEEP_ROUNDS_MAX {
            let gone = self
                .durable
                .ask_of(
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
