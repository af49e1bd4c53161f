//! Whether this replica shares rates and permits with the others through Redis, or uses its part of
//! each limit. In a Redis cluster, rates and permits are on different servers, so that one of them
//! can be unavailable alone. The log and the metric report both as one outage.

use std::sync::{
    Arc,
    atomic::{AtomicU8, AtomicU32, Ordering},
};

use config::RedisOutagePolicy;
use parking_lot::Mutex;
use rules::shared_rate_limit::{ReplicaShare, SharingMode};

use crate::{metrics::Metrics, persistence::Persistence};

const ALL: [SharingMode; 5] = [
    SharingMode::LocalShare,
    SharingMode::Global,
    SharingMode::LocalFallback,
    SharingMode::Unlimited,
    SharingMode::Refuse,
];

/// What replicas share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SharedLimit {
    Rates,
    Permits,
}

#[derive(Debug)]
pub struct ReplicaSharing {
    /// The mode of each [`SharedLimit`].
    modes: [AtomicU8; 2],
    replicas: AtomicU32,
    has_redis: bool,
    without: SharingMode,
    /// Whether both are shared, as the log and the metric have it.
    reported: Mutex<bool>,
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
            modes: [AtomicU8::new(sharing as u8), AtomicU8::new(sharing as u8)],
            replicas: AtomicU32::new(1),
            has_redis: redis,
            without,
            reported: Mutex::new(redis),
            metrics,
        })
    }

    /// Returns the mode of this limit and the number of replicas now.
    pub(super) fn shares(&self, of: SharedLimit) -> ReplicaShare {
        let mode = self.modes[of as usize].load(Ordering::Relaxed);
        let sharing = ALL[usize::from(mode) % ALL.len()];
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

    /// Notes whether the hot store answered a request about this limit. Returns whether it is back.
    pub(super) fn record_answer(&self, of: SharedLimit, answered: bool) -> bool {
        let sharing = if answered { SharingMode::Global } else { self.without };
        let before = self.modes[of as usize].swap(sharing as u8, Ordering::AcqRel);
        if before == sharing as u8 {
            return false;
        }
        self.report_change();
        answered
    }

    /// Logs a change of what both limits together have.
    fn report_change(&self) {
        let mut reported = self.reported.lock();
        let mut modes = self.modes.iter().map(|mode| mode.load(Ordering::Acquire));
        let is_shared = modes.all(|mode| mode == SharingMode::Global as u8);
        if std::mem::replace(&mut *reported, is_shared) == is_shared {
            return;
        }
        self.metrics.limits.rates_shared(is_shared);
        if is_shared {
            tracing::info!(
                "rates and the limits of sessions, calls and connections apply across all replicas again"
            );
        } else {
            let replicas = self.replicas.load(Ordering::Relaxed);
            tracing::warn!(without_redis = ?self.without, replicas, "Redis is unavailable: rates and the limits of sessions, calls and connections do not apply across replicas");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outage_of_one_limit_leaves_the_other_alone_and_is_reported_once() {
        let metrics = Arc::new(Metrics::new(false));
        let sharing = ReplicaSharing::new(true, RedisOutagePolicy::Refuse, metrics.clone());
        let modes =
            || [SharedLimit::Rates, SharedLimit::Permits].map(|of| sharing.shares(of).sharing);
        let is_reported = || metrics.render().contains("mcp_rates_shared 0");
        assert_eq!((modes(), is_reported()), ([SharingMode::Global; 2], false));
        for _ in 0..3 {
            assert!(!sharing.record_answer(SharedLimit::Rates, false));
            assert!(!sharing.record_answer(SharedLimit::Permits, true), "they were never away");
            assert_eq!(modes(), [SharingMode::Refuse, SharingMode::Global]);
            assert!(is_reported(), "an answer about permits is none about rates");
        }
        assert!(!sharing.record_answer(SharedLimit::Permits, false));
        assert!(sharing.record_answer(SharedLimit::Rates, true));
        assert_eq!(modes(), [SharingMode::Global, SharingMode::Refuse]);
        assert!(is_reported());
        assert!(sharing.record_answer(SharedLimit::Permits, true));
        assert_eq!((modes(), is_reported()), ([SharingMode::Global; 2], false));
    }
}
