//! The way in which this replica shares rates and permits with the others: through Redis, or by its
//! part. One value for both, so that an outage shows once.

use std::sync::{
    Arc,
    atomic::{AtomicU8, AtomicU32, Ordering},
};

use rules::shared_rate_limit::{ReplicaShare, SharingMode};

use crate::{config::RedisOutagePolicy, metrics::Metrics, persistence::Persistence};

const ALL: [SharingMode; 5] = [
    SharingMode::LocalShare,
    SharingMode::Global,
    SharingMode::LocalFallback,
    SharingMode::Unlimited,
    SharingMode::Refuse,
];

#[derive(Debug)]
pub struct ReplicaSharing {
    sharing: AtomicU8,
    replicas: AtomicU32,
    has_redis: bool,
    without: SharingMode,
    metrics: Arc<Metrics>,
}

impl ReplicaSharing {
    /// `redis`: replicas share through Redis. `without`: what applies while it is away.
    pub fn new(redis: bool, without: RedisOutagePolicy, metrics: Arc<Metrics>) -> Arc<Self> {
        let without = match without {
            RedisOutagePolicy::LocalShare => SharingMode::LocalFallback,
            RedisOutagePolicy::Unlimited => SharingMode::Unlimited,
            RedisOutagePolicy::Refuse => SharingMode::Refuse,
        };
        let sharing = if redis { SharingMode::Global } else { SharingMode::LocalShare };
        metrics.limits.rates_shared(redis);
        metrics.limits.rates_replicas(1);
        Arc::new(Self {
            sharing: AtomicU8::new(sharing as u8),
            replicas: AtomicU32::new(1),
            has_redis: redis,
            without,
            metrics,
        })
    }

    /// Returns the mode and the number of replicas now.
    pub fn shares(&self) -> ReplicaShare {
        let sharing = ALL[usize::from(self.sharing.load(Ordering::Relaxed)) % ALL.len()];
        ReplicaShare { sharing, replicas: self.replicas.load(Ordering::Relaxed) }
    }

    /// Returns whether Redis is configured.
    pub fn has_redis(&self) -> bool {
        self.has_redis
    }

    /// Counts the replicas that share: those with a lease that do not drain.
    pub(super) async fn count_replicas(&self, persistence: &Persistence) {
        let Ok(nodes) = persistence.timed("list_nodes", persistence.store.live_nodes()).await
        else {
            return;
        };
        let living =
            nodes.iter().filter(|node| !node.draining && !node.remaining_lease.is_zero()).count();
        let living = u32::try_from(living).unwrap_or(u32::MAX).max(1);
        self.replicas.store(living, Ordering::Relaxed);
        self.metrics.limits.rates_replicas(living);
    }

    /// Notes whether the hot store answered. Logs only a change. Returns whether the hot store is
    /// back.
    pub(super) fn record_answer(&self, answered: bool) -> bool {
        let sharing = if answered { SharingMode::Global } else { self.without };
        let before = self.sharing.swap(sharing as u8, Ordering::Relaxed);
        if before == sharing as u8 {
            return false;
        }
        self.metrics.limits.rates_shared(answered);
        if answered {
            tracing::info!(
                "rates and the limits of sessions, calls and connections apply across all replicas again"
            );
        } else {
            let replicas = self.replicas.load(Ordering::Relaxed);
            tracing::warn!(without_redis = ?self.without, replicas, "Redis is unavailable: rates and the limits of sessions, calls and connections do not apply across replicas");
        }
        answered
    }
}
