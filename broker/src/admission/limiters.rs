//! The limiters that the whole process shares.

use std::{sync::Arc, time::Instant};

use config::Config;
use protocol::ids::PrincipalId;
use rules::limits::LONG_FIRST_MESSAGES_MAX;
use tokio::sync::Semaphore;

use super::{
    concurrency_limit::{ConcurrencyLimiter, TenantShare},
    overload::OverloadManager,
    permit_limiter::PermitLimiter,
    rate_limiter::RateLimiter,
    replica_sharing::ReplicaSharing,
};
use crate::metrics::Metrics;

/// The limiters of this process. Each is shared by all tenants.
#[derive(Debug)]
pub struct Limiters {
    /// Permits for calls at backends. Tenants share them by their weight.
    pub calls: Arc<ConcurrencyLimiter<TenantShare, PrincipalId>>,
    /// Limits of requests per second.
    pub rates: Arc<RateLimiter>,
    /// Limits of sessions, calls and connections by tenant and principal.
    pub permits: Arc<PermitLimiter>,
    pub overload: Arc<OverloadManager>,
    /// Permits for long messages of clients that are not authenticated yet.
    pub unauthenticated_messages: Arc<Semaphore>,
}

impl Limiters {
    /// `started` is the origin of the limiters' clock.
    pub fn new(config: &Config, metrics: &Arc<Metrics>, started: Instant) -> Self {
        let redis = config.storage.redis_url.is_some();
        let calls = ConcurrencyLimiter::new(
            config.limits.calls_in_flight,
            config.limits.calls_queued,
            metrics.queue_depth("calls"),
        );
        let sharing = ReplicaSharing::new(redis, config.limits.without_redis, metrics.clone());
        Self {
            calls,
            rates: Arc::new(RateLimiter::new(sharing.clone(), started, metrics.clone())),
            permits: Arc::new(PermitLimiter::new(sharing, started, metrics.clone())),
            overload: OverloadManager::new(&config.overload, metrics.clone()),
            unauthenticated_messages: Arc::new(Semaphore::new(LONG_FIRST_MESSAGES_MAX)),
        }
    }
}
