//! Rates of requests by tenant, principal, backend and tool, over all replicas.
//!
//! A request takes from its [`SharedRateLimiter`]s, which never wait. With a shared Redis,
//! [`RateLimiter::keep`] settles all used limiters with it in the background. While Redis is
//! unavailable, `limits.without_redis` decides. Without Redis, each replica admits its part, by the
//! number of leases in the database.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU8, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use protocol::error::{ErrorKind, Refusal};
use rules::{
    gcra::Rate,
    limits::{BUDGET_ASK_INTERVAL, BUDGET_ASKS_AT_ONCE, REPLICAS_COUNT_INTERVAL},
    shared_rate_limit::{QuotaGrant, QuotaRequest, ReplicaShare, SharedRateLimiter, SharingMode},
};
use tokio::sync::Notify;

use crate::{
    config::RedisOutagePolicy,
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
    sharing: AtomicU8,
    replicas: AtomicU32,
    without: SharingMode,
    /// Limiters to settle with the hot store, each once.
    queue: Mutex<Vec<Arc<SharedRateLimiter>>>,
    wanted: Notify,
    started: Instant,
    metrics: Arc<Metrics>,
}

const ALL: [SharingMode; 5] = [
    SharingMode::LocalShare,
    SharingMode::Global,
    SharingMode::LocalFallback,
    SharingMode::Unlimited,
    SharingMode::Refuse,
];

impl RateLimiter {
    /// Creates the rates. `redis`: budgets are shared through Redis. `started`: the origin of the
    /// limiters' clock.
    pub fn new(
        redis: bool,
        without: RedisOutagePolicy,
        started: Instant,
        metrics: Arc<Metrics>,
    ) -> Self {
        let without = match without {
            RedisOutagePolicy::LocalShare => SharingMode::LocalFallback,
            RedisOutagePolicy::Unlimited => SharingMode::Unlimited,
            RedisOutagePolicy::Refuse => SharingMode::Refuse,
        };
        let sharing = if redis { SharingMode::Global } else { SharingMode::LocalShare };
        metrics.limits.rates_shared(redis);
        metrics.limits.rates_replicas(1);
        Self {
            sharing: AtomicU8::new(sharing as u8),
            replicas: AtomicU32::new(1),
            without,
            queue: Mutex::default(),
            wanted: Notify::new(),
            started,
            metrics,
        }
    }

    /// Returns the time on the limiters' clock.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn shares(&self) -> ReplicaShare {
        let sharing = ALL[usize::from(self.sharing.load(Ordering::Relaxed)) % ALL.len()];
        ReplicaShare { sharing, replicas: self.replicas.load(Ordering::Relaxed) }
    }

    /// Takes one request from the rate.
    pub fn take(
        &self,
        scope: RateScope,
        meter: &Arc<SharedRateLimiter>,
        rate: Rate,
    ) -> Result<(), Refusal> {
        let shares = self.shares();
        let taken = meter.try_acquire(rate, shares, self.now());
        if shares.sharing != SharingMode::LocalShare && meter.try_enqueue() {
            self.queue.lock().push(meter.clone());
            self.wanted.notify_one();
        }
        taken.map_err(|wait| {
            self.metrics.rate_limited(scope.name());
            let text = format!("the request rate of the {} is used up", scope.name());
            Refusal::new(ErrorKind::RateLimited, text)
                .with("scope", scope.name())
                .retry_after(at_least_a_millisecond(wait))
        })
    }

    /// Returns to the rate what [`RateLimiter::take`] took.
    pub fn give_back(&self, meter: &SharedRateLimiter, rate: Rate) {
        meter.refund(rate, self.shares());
    }

    /// Settles used rates with the hot store until the stores are dropped.
    pub async fn keep(self: Arc<Self>, durable: Weak<Persistence>) {
        let asks = self.shares().sharing == SharingMode::Global;
        let mut counted: Option<Instant> = None;
        while let Some(durable) = durable.upgrade() {
            if !asks && !durable.is_shared() {
                return;
            }
            if durable.is_shared()
                && counted.is_none_or(|at| at.elapsed() >= REPLICAS_COUNT_INTERVAL)
            {
                counted = Some(Instant::now());
                self.count_replicas(&durable).await;
            }
            let _or_counted_anew =
                tokio::time::timeout(REPLICAS_COUNT_INTERVAL, self.wanted.notified()).await;
            let meters = std::mem::take(&mut *self.queue.lock());
            for some in meters.chunks(BUDGET_ASKS_AT_ONCE) {
                self.ask(&durable, some).await;
            }
            tokio::time::sleep(BUDGET_ASK_INTERVAL).await;
        }
    }

    /// Counts the replicas that share the rates: those with a lease that do not drain.
    async fn count_replicas(&self, durable: &Persistence) {
        let Ok(nodes) = durable.timed("nodes", durable.store.live_nodes()).await else { return };
        let living =
            nodes.iter().filter(|node| !node.draining && !node.lease_left.is_zero()).count();
        let living = u32::try_from(living).unwrap_or(u32::MAX).max(1);
        self.replicas.store(living, Ordering::Relaxed);
        self.metrics.limits.rates_replicas(living);
    }

    async fn ask(&self, durable: &Persistence, meters: &[Arc<SharedRateLimiter>]) {
        let (shares, now) = (self.shares(), self.now());
        let wants: Vec<QuotaRequest> =
            meters.iter().map(|meter| meter.next_request(shares, now)).collect();
        let ask = |(meter, want): (&Arc<SharedRateLimiter>, &QuotaRequest)| BudgetRequest {
            name: meter.name.clone(),
            per_second: want.rate.per_second,
            burst: want.rate.burst,
            used: want.used,
            wanted: want.wanted,
        };
        let asks: Vec<BudgetRequest> = meters.iter().zip(&wants).map(ask).collect();
        let begun = Instant::now();
        let answer = durable.hot.take_from_budgets(&asks).await;
        self.metrics.store(
            "take_from_budgets",
            durable.hot.engine(),
            begun.elapsed(),
            answer.is_none(),
        );
        let answered = answer.is_some();
        match answer {
            Some(got) => {
                let now = self.now();
                for ((meter, want), BudgetGrant { granted, left, wait }) in
                    meters.iter().zip(&wants).zip(got)
                {
                    meter.apply_grant(*want, QuotaGrant { granted, left, wait }, shares, now);
                }
            }
            None => {
                meters.iter().zip(&wants).for_each(|(meter, want)| meter.restore_unreported(*want))
            }
        }
        self.is_shared(answered);
    }

    /// Notes whether the hot store answered. Logs only a change.
    fn is_shared(&self, answered: bool) {
        let sharing = if answered { SharingMode::Global } else { self.without };
        let before = self.sharing.swap(sharing as u8, Ordering::Relaxed);
        if before == sharing as u8 {
            return;
        }
        self.metrics.limits.rates_shared(answered);
        if answered {
            tracing::info!("rates hold over all replicas again");
        } else {
            let replicas = self.replicas.load(Ordering::Relaxed);
            tracing::warn!(without_redis = ?self.without, replicas, "Redis is away: rates do not hold over all replicas");
        }
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

    fn rates(redis: bool, without: RedisOutagePolicy) -> RateLimiter {
        RateLimiter::new(redis, without, Instant::now(), Arc::new(Metrics::new(false)))
    }

    #[test]
    fn a_refusal_says_whose_rate_it_is_and_when_to_come_back() {
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
    fn while_redis_is_away_it_is_as_configured_and_that_shows() {
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
            rates.is_shared(false);
            assert!(!shared(&rates));
            let taken =
                (0..100).filter(|_| rates.take(RateScope::Tenant, &meter, rate).is_ok()).count();
            assert_eq!(taken, expected, "{without:?}");
            assert_eq!(rates.queue.lock().len(), 1, "it is asked whether Redis is back");
            rates.is_shared(true);
            assert!(shared(&rates));
        }
    }
}
