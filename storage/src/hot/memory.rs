//! Hot store of a broker without other replicas, or without a Redis that they share. Hints and
//! wakeups stay in the process.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use records::SessionKey;
use tokio::sync::broadcast;

use super::{
    BudgetGrant, BudgetRequest, HotStore, OwnerHint, PermitsAnswer, PermitsLifetime,
    PermitsRequest, WAKEUPS_BUFFERED_MAX, Wakeup, budget::settle, permits::settle_alone,
    recency_cache::RecencyCache,
};

/// Number of hints kept. Above it the oldest are dropped.
const HINTS_MAX: usize = 16_384;
/// Number of budgets kept. Above it the oldest are dropped, and with them the record of their use.
const BUDGETS_MAX: usize = 65_536;

/// The [`HotStore`] of one process.
#[derive(Debug)]
pub struct MemoryHotStore {
    wakeups: broadcast::Sender<Wakeup>,
    owners: Mutex<RecencyCache<SessionKey, (OwnerHint, Instant)>>,
    budgets: Mutex<RecencyCache<String, f64>>,
    started_at: Instant,
    closed: AtomicBool,
}

impl Default for MemoryHotStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryHotStore {
    pub fn new() -> Self {
        let (wakeups, _) = broadcast::channel(WAKEUPS_BUFFERED_MAX);
        let (owners, budgets) =
            (Mutex::new(RecencyCache::new(HINTS_MAX)), Mutex::new(RecencyCache::new(BUDGETS_MAX)));
        Self {
            wakeups,
            owners,
            budgets,
            started_at: Instant::now(),
            closed: AtomicBool::new(false),
        }
    }

    fn owners(&self) -> MutexGuard<'_, RecencyCache<SessionKey, (OwnerHint, Instant)>> {
        self.owners.lock()
    }
}

#[async_trait]
impl HotStore for MemoryHotStore {
    fn engine(&self) -> &'static str {
        "memory"
    }

    async fn owner_hint(&self, session: &SessionKey) -> Option<OwnerHint> {
        let owners = self.owners();
        let (owner, until) = owners.get(session)?;
        (*until > Instant::now()).then(|| owner.clone())
    }

    async fn put_owner_hint(&self, session: &SessionKey, owner: &OwnerHint, ttl: Duration) {
        if self.is_connected() {
            self.owners().insert(*session, (owner.clone(), Instant::now() + ttl));
        }
    }

    async fn remove_owner_hint(&self, session: &SessionKey) {
        self.owners().remove(session);
    }

    fn publish(&self, wake: Wakeup) {
        if self.is_connected() && !wake.is_too_long() {
            let _ = self.wakeups.send(wake); // without a subscriber nothing is sent
        }
    }

    fn subscribe(&self) -> broadcast::Receiver<Wakeup> {
        self.wakeups.subscribe()
    }

    async fn take_from_budgets(&self, requests: &[BudgetRequest]) -> Option<Vec<BudgetGrant>> {
        let now_us = self.started_at.elapsed().as_secs_f64() * 1_000_000.0;
        let mut budgets = self.budgets.lock();
        let mut take = |request: &BudgetRequest| {
            let (state, share) = settle(budgets.get(&request.name).copied(), now_us, request);
            budgets.insert(request.name.clone(), state);
            share
        };
        self.is_connected().then(|| requests.iter().map(&mut take).collect())
    }

    async fn settle_permits(
        &self,
        _lifetime: PermitsLifetime,
        requests: &[PermitsRequest],
    ) -> Option<PermitsAnswer> {
        self.is_connected().then(|| settle_alone(requests))
    }

    fn is_connected(&self) -> bool {
        !self.closed.load(Ordering::Relaxed)
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        *self.owners() = RecencyCache::new(HINTS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::MemoryHotStore;
    use crate::conformance::hot::Replicas;

    /// Returns the same store twice, because the process is its only replica.
    fn replicas() -> Replicas {
        let hot = Arc::new(MemoryHotStore::new());
        [hot.clone(), hot]
    }

    crate::hot_conformance!(memory, ((), super::super::replicas()));
}
