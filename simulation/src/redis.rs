//! The Redis that the simulated replicas share, without its budgets and permits: hints and wakeups.
//! It forgets its hints when it is flushed, and does nothing while it is away.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use records::SessionKey;
use storage::{
    HotStore, MemoryHotStore, OwnerHint, Wakeup,
    hot::{
        BudgetGrant, BudgetRequest, PermitsAnswer, PermitsLifetime, PermitsRequest,
        WAKEUPS_BUFFERED_MAX,
    },
};
use tokio::sync::broadcast;

use crate::weather::Weather;

pub(crate) struct SimulatedRedis {
    wakeups: broadcast::Sender<Wakeup>,
    hints: Mutex<Arc<MemoryHotStore>>,
    weather: Weather,
}

impl SimulatedRedis {
    pub(crate) fn start(weather: &Weather) -> Arc<Self> {
        let (wakeups, _) = broadcast::channel(WAKEUPS_BUFFERED_MAX);
        Arc::new(Self { wakeups, hints: Mutex::default(), weather: weather.clone() })
    }

    /// Forgets everything.
    pub(crate) fn flush(&self) {
        *self.hints.lock() = Arc::default();
    }

    fn hints(&self) -> Option<Arc<MemoryHotStore>> {
        self.is_connected().then(|| Arc::clone(&self.hints.lock()))
    }
}

#[async_trait]
impl HotStore for SimulatedRedis {
    fn engine(&self) -> &'static str {
        "memory"
    }

    async fn owner_hint(&self, session: &SessionKey) -> Option<OwnerHint> {
        self.hints()?.owner_hint(session).await
    }

    async fn put_owner_hint(&self, session: &SessionKey, owner: &OwnerHint, ttl: Duration) {
        if let Some(hints) = self.hints() {
            hints.put_owner_hint(session, owner, ttl).await;
        }
    }

    async fn remove_owner_hint(&self, session: &SessionKey) {
        if let Some(hints) = self.hints() {
            hints.remove_owner_hint(session).await;
        }
    }

    fn publish(&self, wake: Wakeup) {
        if self.is_connected() {
            // Without a receiver, nothing is sent.
            let _unheard = self.wakeups.send(wake);
        }
    }

    fn subscribe(&self) -> broadcast::Receiver<Wakeup> {
        self.wakeups.subscribe()
    }

    async fn take_from_budgets(&self, requests: &[BudgetRequest]) -> Option<Vec<BudgetGrant>> {
        self.hints()?.take_from_budgets(requests).await
    }

    async fn settle_permits(
        &self,
        lifetime: PermitsLifetime,
        requests: &[PermitsRequest],
    ) -> Option<PermitsAnswer> {
        self.hints()?.settle_permits(lifetime, requests).await
    }

    fn is_connected(&self) -> bool {
        !self.weather.is_redis_away()
    }

    // It outlives its replicas.
    async fn close(&self) {}
}
