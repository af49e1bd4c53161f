//! Rates of requests by tenant, principal, backend and tool, over all replicas.
//!
//! A request takes from its [`SharedRateLimiter`]s, which never wait. With a shared Redis,
//! [`RateLimiter::keep`] settles all used limiters with it in the background. While Redis is
//! unavailable, `limits.without_redis` decides. Without Redis, each replica admits its part, by the
//! number of leases in the database.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use protocol::error::{ErrorKind, Refusal};
use rules::{
    gcra::Rate,
    limits::{
        BUDGET_REQUESTS_BATCH_MAX, BUDGET_SETTLE_INTERVAL, replicas::REPLICAS_COUNT_INTERVAL,
    },
    shared_rate_limit::{QuotaGrant, QuotaRequest, SharedRateLimiter, SharingMode},
};
use tokio::sync::Notify;

use super::replica_sharing::ReplicaSharing;
use crate::{
    metrics::Metrics,
    persistence::{BudgetGrant, BudgetRequest, Persistence},
};

/// The scope of a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateScope {
    Tenant,
    Principal,
    Backend,
    Tool,
}

impl RateScope {
    /// Returns the scope as it is in `mcp_rate_limited_total{scope}` and in refusals.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Principal => "principal",
            Self::Backend => "backend",
            Self::Tool => "tool",
        }
    }
}

/// The rates of one process.
#[derive(Debug)]
pub struct RateLimiter {
    sharing: Arc<ReplicaSharing>,
    /// Limiters to exchange with the hot store, each once.
    queue: Mutex<Vec<Arc<SharedRateLimiter>>>,
    wanted: Notify,
    started: Instant,
    metrics: Arc<Metrics>,
}

impl RateLimiter {
    /// Creates the rates. `started`: the origin of the limiters' clock.
    pub fn new(sharing: Arc<ReplicaSharing>, started: Instant, metrics: Arc<Metrics>) -> Self {
        Self { sharing, queue: Mutex::default(), wanted: Notify::new(), started, metrics }
    }

    /// Returns the time on the limiters' clock.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Takes one request from the rate.
    pub fn take(
        &self,
        scope: RateScope,
        meter: &Arc<SharedRateLimiter>,
        rate: Rate,
    ) -> Result<(), Refusal> {
        let shares = self.sharing.shares();
        let taken = meter.try_acquire(rate, shares, self.now());
        if shares.sharing != SharingMode::LocalShare && meter.try_enqueue() {
            self.queue.lock().push(meter.clone());
            self.wanted.notify_one();
        }
        taken.map_err(|wait| {
            self.metrics.rate_limited(scope.name());
            let text = format!("the {} has exceeded its request rate", scope.name());
            Refusal::new(ErrorKind::RateLimited, text)
                .with("scope", scope.name())
                .retry_after(at_least_a_millisecond(wait))
        })
    }

    /// Returns to the rate what [`RateLimiter::take`] took.
    pub fn give_back(&self, meter: &SharedRateLimiter, rate: Rate) {
        meter.refund(rate, self.sharing.shares());
    }

    /// Settles used rates with the hot store until the stores are dropped.
    pub async fn keep(self: Arc<Self>, persistence: Weak<Persistence>) {
        let is_global = self.sharing.shares().sharing == SharingMode::Global;
        let mut counted: Option<Instant> = None;
        while let Some(persistence) = persistence.upgrade() {
            if !is_global && !persistence.is_shared() {
                return;
            }
            if persistence.is_shared()
                && counted.is_none_or(|at| at.elapsed() >= REPLICAS_COUNT_INTERVAL)
            {
                counted = Some(Instant::now());
                self.sharing.count_replicas(&persistence).await;
            }
            let _or_counted_anew =
                tokio::time::timeout(REPLICAS_COUNT_INTERVAL, self.wanted.notified()).await;
            let meters = std::mem::take(&mut *self.queue.lock());
            for some in meters.chunks(BUDGET_REQUESTS_BATCH_MAX) {
                self.exchange(&persistence, some).await;
            }
            tokio::time::sleep(BUDGET_SETTLE_INTERVAL).await;
        }
    }

    async fn exchange(&self, persistence: &Persistence, meters: &[Arc<SharedRateLimiter>]) {
        let (shares, now) = (self.sharing.shares(), self.now());
        let wants: Vec<QuotaRequest> =
            meters.iter().map(|meter| meter.next_request(shares, now)).collect();
        let ask = |(meter, want): (&Arc<SharedRateLimiter>, &QuotaRequest)| BudgetRequest {
            name: meter.name.clone(),
            per_second: want.rate.per_second,
            burst: want.rate.burst,
            used: want.used,
            wanted: want.wanted,
        };
        let requests: Vec<BudgetRequest> = meters.iter().zip(&wants).map(ask).collect();
        let started_at = Instant::now();
        let answer = persistence.hot.take_from_budgets(&requests).await;
        self.metrics.store(
            "take_from_budgets",
            persistence.hot.engine(),
            started_at.elapsed(),
            answer.is_none(),
        );
        let answered = answer.is_some();
        match answer {
            Some(got) => {
                let now = self.now();
                for ((meter, want), BudgetGrant { granted, remaining, wait }) in
                    meters.iter().zip(&wants).zip(got)
                {
                    meter.apply_grant(*want, QuotaGrant { granted, remaining, wait }, shares, now);
                }
            }
            None => {
                meters.iter().zip(&wants).for_each(|(meter, want)| meter.restore_unreported(*want))
            }
        }
        self.sharing.record_answer(answered);
    }
}

/// Rounds a wait up to at least a millisecond, so that no client retries at once.
fn at_least_a_millisecond(wait: Duration) -> Duration {
    Duration::from_millis(
        u64::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX).max(1),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RedisOutagePolicy;

    fn rates(redis: bool, without: RedisOutagePolicy) -> RateLimiter {
        let metrics = Arc::new(Metrics::new(false));
        let sharing = ReplicaSharing::new(redis, without, metrics.clone());
        RateLimiter::new(sharing, Instant::now(), metrics)
    }

    #[test]
    fn a_refusal_contains_the_scope_and_the_retry_time() {
        let (rates, meter) =
            (rates(false, RedisOutagePolicy::Refuse), SharedRateLimiter::new("m".into()));
        let rate = Rate { per_second: 2, burst: 1 };
        rates.take(RateScope::Tool, &meter, rate).unwrap();
        let refusal = rates.take(RateScope::Tool, &meter, rate).unwrap_err();
        assert_eq!((refusal.kind.code(), refusal.kind.http_status()), (1003, 429));
        let wait = refusal.retry_after.unwrap();
        assert!(
            wait <= Duration::from_millis(500) && wait > Duration::from_millis(300),
            "{wait:?}"
        );
        assert_eq!(refusal.data, [("scope", "tool".into())]);
        assert!(rates.metrics.render().contains(r#"mcp_rate_limited_total{scope="tool"} 1"#));
        rates.give_back(&meter, rate);
        rates.take(RateScope::Tool, &meter, rate).unwrap();
    }

    #[test]
    fn a_redis_outage_applies_the_configured_policy_and_is_reported() {
        let rate = Rate { per_second: 1, burst: 2 };
        for (without, expected) in [
            (RedisOutagePolicy::LocalShare, 2),
            (RedisOutagePolicy::Unlimited, 100),
            (RedisOutagePolicy::Refuse, 0),
        ] {
            let (rates, meter) = (rates(true, without), SharedRateLimiter::new("m".into()));
            let shared =
                |rates: &RateLimiter| rates.metrics.render().contains("mcp_rates_shared 1");
            assert!(shared(&rates));
            rates.sharing.record_answer(false);
            assert!(!shared(&rates));
            let taken =
                (0..100).filter(|_| rates.take(RateScope::Tenant, &meter, rate).is_ok()).count();
            assert_eq!(taken, expected, "{without:?}");
            assert_eq!(rates.queue.lock().len(), 1, "it is asked whether Redis is back");
            rates.sharing.record_answer(true);
            assert!(shared(&rates));
        }
    }
}
