//! Once a second: idle sessions, unanswered questions, links nobody uses, what sessions have to be written behind, and among
//! whom the room of the broker is shared.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use super::Broker;
use crate::{
    backends::backend::Backend,
    limits::{FLUSHED_AT_ONCE, REAPER_INTERVAL},
    sessions::session::Session,
};

pub(super) async fn reap(broker: Weak<Broker>) {
    let mut tick = tokio::time::interval(REAPER_INTERVAL);
    let writing = Arc::new(AtomicBool::new(false));
    loop {
        tick.tick().await;
        let Some(broker) = broker.upgrade() else { return };
        let now = Instant::now();
        for session in broker.all_sessions() {
            if session.is_leaving() {
                broker.take_out(&session); // by whoever learned that it is another's
                continue;
            }
            session.tick(now);
            broker.close_if_idle(&session);
        }
        broker.shared.modern.tick(now);
        let tenants: Vec<_> = broker.tenants.iter().map(|tenant| tenant.value().clone()).collect();
        tenants
            .iter()
            .flat_map(|tenant| tenant.backends())
            .for_each(|backend| backend.close_idle_links(now));
        let states = tenants.iter().flat_map(|tenant| {
            let state = |backend: Arc<Backend>| {
                (tenant.id.clone(), backend.id.clone(), backend.state().name())
            };
            tenant.backends().into_iter().map(state)
        });
        broker.shared.metrics.observed.backends(states);
        broker.share_room();
        write_behind(&broker, &writing);
    }
}

/// One round at a time: a store that is slow gets no second one on top.
fn write_behind(broker: &Arc<Broker>, writing: &Arc<AtomicBool>) {
    let idle = broker.shared.config.session.idle;
    let unstored: Vec<_> =
        broker.all_sessions().into_iter().filter(|session| session.is_dirty(idle)).collect();
    if unstored.is_empty() || writing.swap(true, Ordering::Acquire) {
        return;
    }
    let writing = writing.clone();
    broker.shared.running.spawn(async move {
        store_all(&unstored).await;
        writing.store(false, Ordering::Release);
    });
}

async fn store_all(sessions: &[Arc<Session>]) {
    for some in sessions.chunks(FLUSHED_AT_ONCE) {
        let stored = futures_util::future::join_all(some.iter().map(Session::flush)).await;
        if let Some(refusal) = stored.into_iter().find_map(Result::err) {
            tracing::debug!(%refusal, sessions = sessions.len(), "what sessions have to store waits");
            return; // the next round tries again
        }
    }
}
