//! Housekeeping, once a second:
//!
//! - idle sessions, unanswered questions and unused links;
//! - state of sessions that is written behind;
//! - shares of the tenants in the capacity for calls.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use rules::limits::{FLUSHED_AT_ONCE, REAPER_INTERVAL};

use super::Broker;
use crate::{
    backends::backend::Backend,
    sessions::session::{Session, SessionPersister, expiry},
    ticks::ticks,
};

pub(super) async fn run(broker: Weak<Broker>) {
    let mut tick = ticks(REAPER_INTERVAL);
    let writing = Arc::new(AtomicBool::new(false));
    loop {
        tick.tick().await;
        let Some(broker) = broker.upgrade() else { return };
        // A fault in one round must not end those after it.
        if catch_unwind(AssertUnwindSafe(|| run_round(&broker))).is_err() {
            tracing::error!("a round of housekeeping failed inside the broker");
        }
        write_behind(&broker, &writing);
    }
}

fn run_round(broker: &Arc<Broker>) {
    let now = Instant::now();
    for session in broker.all_sessions() {
        if session.is_leaving() {
            broker.remove_session(&session); // by the task that learned of the other owner
            continue;
        }
        expiry::expire(&session, now);
        broker.close_if_idle(&session);
    }
    broker.stateless.tick(now);
    let tenants: Vec<_> = broker.tenants.iter().map(|tenant| tenant.value().clone()).collect();
    tenants
        .iter()
        .flat_map(|tenant| tenant.backends())
        .for_each(|backend| backend.close_idle_links(now));
    let states = tenants.iter().flat_map(|tenant| {
        let state = |backend: Arc<Backend>| {
            (tenant.id.clone(), backend.id.clone(), backend.health.state().name())
        };
        tenant.backends().into_iter().map(state)
    });
    broker.shared.metrics.observability.backends(states);
    broker.recompute_shares();
}

/// Starts one round at a time, so that a slow store does not get a second one.
fn write_behind(broker: &Arc<Broker>, writing: &Arc<AtomicBool>) {
    let idle = broker.shared.config.session.idle;
    let unstored: Vec<_> = broker
        .all_sessions()
        .into_iter()
        .filter(|session| SessionPersister::new(session).is_dirty(idle))
        .collect();
    if unstored.is_empty() || writing.swap(true, Ordering::Acquire) {
        return;
    }
    let round = WriteRound(writing.clone());
    broker.shared.running.spawn(async move {
        store_all(&unstored).await;
        drop(round);
    });
}

/// A round of writes. Its end, also by a panic, permits the next one.
struct WriteRound(Arc<AtomicBool>);

impl Drop for WriteRound {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

async fn store_all(sessions: &[Arc<Session>]) {
    for some in sessions.chunks(FLUSHED_AT_ONCE) {
        let stored = futures_util::future::join_all(
            some.iter().map(|session| SessionPersister::new(session).flush()),
        )
        .await;
        if let Some(refusal) = stored.into_iter().find_map(Result::err) {
            tracing::debug!(%refusal, sessions = sessions.len(), "the state of sessions could not be stored yet");
            return; // the next round tries again
        }
    }
}
