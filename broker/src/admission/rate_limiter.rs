//! Rates of requests by tenant, principal, backend and tool, over all replicas.
//!
//! A request takes from its [`SharedRateLimiter`]s, which never wait. With a shared Redis,
//! [`RateLimiter::keep`] settles all used limiters with it in the background. While Redis is
//! unavailable, `limits.without_redis` decides. Without Redis, each replica admits its part, by the
//! number of leases in the database. The count of the leases delays no settlement.

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
    shared_rate_limit::{QuotaGrant, QuotaRequest, ReplicaShare, SharedRateLimiter, SharingMode},
};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use super::replica_sharing::{ReplicaSharing, SharedLimit};
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

    fn shares(&self) -> ReplicaShare {
        self.sharing.shares(SharedLimit::Rates)
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
            let text = format!("the {} has exceeded its request rate", scope.name());
            Refusal::new(ErrorKind::RateLimited, text)
                .with("scope", scope.name())
                .retry_after(at_least_a_millisecond(wait))
        })
    }

    /// Returns to the rate what [`RateLimiter::take`] took.
    pub fn give_back(&self, meter: &SharedRateLimiter, rate: Rate) {
        meter.refund(rate, self.shares());
    }

    /// Settles used rates with the hot store, and counts the replicas, until the stores are dropped.
    pub async fn keep(self: Arc<Self>, persistence: Weak<Persistence>) {
        tokio::join!(self.settle(&persistence), self.count_replicas(&persistence));
    }

    /// Settles used rates. After a failure, it asks again at an interval, also without new requests.
    async fn settle(&self, persistence: &Weak<Persistence>) {
        if !self.sharing.has_redis() {
            return;
        }
        loop {
            let _or_asked_again = timeout(REPLICAS_COUNT_INTERVAL, self.wanted.notified()).await;
            let Some(persistence) = persistence.upgrade() else { return };
            let meters = std::mem::take(&mut *self.queue.lock());
            for some in meters.chunks(BUDGET_REQUESTS_BATCH_MAX) {
                self.exchange(&persistence, some).await;
            }
            drop(persistence);
            sleep(BUDGET_SETTLE_INTERVAL).await;
        }
    }

    async fn count_replicas(&self, persistence: &Weak<Persistence>) {
        while let Some(persistence) = persistence.upgrade().filter(|stores| stores.is_shared()) {
            self.sharing.count_replicas(&persistence).await;
            drop(persistence);
            sleep(REPLICAS_COUNT_INTERVAL).await;
        }
    }

    async fn exchange(&self, persistence: &Persistence, meters: &[Arc<SharedRateLimiter>]) {
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
                meters.iter().zip(&wants).for_each(|(meter, want)| meter.restore_unreported(*want));
                self.ask_again(meters);
            }
        }
        self.sharing.record_answer(SharedLimit::Rates, answered);
    }

    /// Queues one of these limiters, so that a replica without requests learns that the hot store is
    /// back. The others report with their next request.
    fn ask_again(&self, meters: &[Arc<SharedRateLimiter>]) {
        let mut queue = self.queue.lock();
        if queue.is_empty() {
            queue.extend(meters.first().filter(|meter| meter.try_enqueue()).cloned());
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
    use config::RedisOutagePolicy;
    use testkit::eventually;

    use super::*;
    use crate::persistence::tests::{Meddled, persistence_over};

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

    #[tokio::test]
    async fn a_silent_database_delays_no_settlement_with_redis() {
        let store = Meddled::start("a server").await;
        store.silence_live_nodes();
        let persistence = persistence_over(&store);
        let rates = Arc::new(rates(true, RedisOutagePolicy::LocalShare));
        tokio::spawn(rates.clone().keep(Arc::downgrade(&persistence)));
        eventually("the count of replicas", async || match store.count("live_nodes") {
            0 => Err(()),
            _ => Ok(()),
        })
        .await;
        let meter = SharedRateLimiter::new("m".into());
        rates.take(RateScope::Tenant, &meter, Rate { per_second: 100, burst: 100 }).unwrap();
        eventually("the rate to be settled", async || {
            if rates.queue.lock().is_empty() { Ok(()) } else { Err(()) }
        })
        .await;
    }

    #[tokio::test]
    async fn an_unanswered_report_is_sent_again_without_new_requests() {
        let store = Meddled::start("a server").await;
        let persistence = persistence_over(&store);
        persistence.hot.close().await;
        let rates = rates(true, RedisOutagePolicy::LocalShare);
        let meter = SharedRateLimiter::new("m".into());
        rates.take(RateScope::Tenant, &meter, Rate { per_second: 100, burst: 100 }).unwrap();
        for _ in 0..2 {
            let queued = std::mem::take(&mut *rates.queue.lock());
            assert_eq!(queued.len(), 1);
            rates.exchange(&persistence, &queued).await;
            assert_eq!(rates.shares().sharing, SharingMode::LocalFallback);
        }
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
            rates.sharing.record_answer(SharedLimit::Rates, false);
            assert!(!shared(&rates));
            let taken =
                (0..100).filter(|_| rates.take(RateScope::Tenant, &meter, rate).is_ok()).count();
            assert_eq!(taken, expected, "{without:?}");
            assert_eq!(rates.queue.lock().len(), 1, "it is asked whether Redis is back");
            rates.sharing.record_answer(SharedLimit::Rates, true);
            assert!(shared(&rates));
        }
    }
}
