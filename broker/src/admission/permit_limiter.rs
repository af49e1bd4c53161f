//! Permits of sessions, calls and connections by tenant and principal, over all replicas.
//!
//! With a shared Redis, a replica takes a permit that it holds without a request. Otherwise
//! [`PermitLimiter::keep`] sends Redis one exchange for all waiting callers. Exchanges never
//! overlap, so reports arrive in order. `keep` also renews the lease of this replica's permits, and
//! returns the permits that it does not use. Without Redis each replica has its part, and one
//! process the whole.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rules::{
    limits::replicas::{
        PERMIT_REQUESTS_BATCH_MAX, PERMITS_KEPT, PERMITS_LEASE, PERMITS_RENEW_INTERVAL,
        PERMITS_REPORT_RENEWALS, PERMITS_RETURN_INTERVAL, PERMITS_WAIT_MAX,
    },
    shared_permits::{HeldPermits, PermitAttempt, SharedPermits, reserve_report_renewals},
    shared_rate_limit::{ReplicaShare, SharingMode},
};
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};

use super::replica_sharing::{ReplicaSharing, SharedLimit};
use crate::{
    metrics::Metrics,
    persistence::{PermitsLifetime, PermitsRequest, Persistence},
    ticks::ticks,
};

const LIFETIME: PermitsLifetime = PermitsLifetime { lease: PERMITS_LEASE, kept: PERMITS_KEPT };

type Reports = Vec<Arc<SharedPermits>>;

/// The permits of one process.
#[derive(Debug)]
pub struct PermitLimiter {
    sharing: Arc<ReplicaSharing>,
    /// All scopes, if Redis is configured. A scope has one value, because Redis has one entry.
    scopes: Mutex<HashMap<String, Arc<SharedPermits>>>,
    urgent: Mutex<UrgentReports>,
    wanted: Notify,
    /// Scopes that may hold too many permits or too few.
    due: Mutex<Reports>,
    /// Number of batches of urgent reports that are over.
    batches: watch::Sender<u64>,
    started: Instant,
    metrics: Arc<Metrics>,
}

/// Scopes for which callers wait.
#[derive(Debug, Default)]
struct UrgentReports {
    /// Number of this batch.
    batch: u64,
    permits: Reports,
}

/// A caller that needs a permit soon. Dropped once it has taken the permit or was refused.
#[derive(Debug)]
pub struct WaitingCaller<'a>(&'a SharedPermits);

impl Drop for WaitingCaller<'_> {
    fn drop(&mut self) {
        self.0.stop_waiting();
    }
}

/// The limit is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoPermit;

/// A permit. Dropping it frees the permit.
#[derive(Debug)]
pub struct SharedPermit {
    permits: Arc<SharedPermits>,
    limiter: Arc<PermitLimiter>,
    kept: bool,
}

impl SharedPermit {
    /// Leaves the permit taken. The caller returns it with [`PermitLimiter::release`].
    pub fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for SharedPermit {
    fn drop(&mut self) {
        if !self.kept {
            self.limiter.release(&self.permits);
        }
    }
}

impl PermitLimiter {
    pub fn new(sharing: Arc<ReplicaSharing>, started: Instant, metrics: Arc<Metrics>) -> Self {
        Self {
            sharing,
            scopes: Mutex::default(),
            urgent: Mutex::default(),
            wanted: Notify::new(),
            due: Mutex::default(),
            batches: watch::Sender::new(0),
            started,
            metrics,
        }
    }

    /// Returns the permits of a scope. `reserve_max`: permits to reserve ahead at most.
    pub fn permits(&self, name: String, reserve_max: u32) -> Arc<SharedPermits> {
        if !self.sharing.has_redis() {
            return SharedPermits::new(name, reserve_max);
        }
        let mut scopes = self.scopes.lock();
        let permits = scopes.entry(name.clone());
        permits.or_insert_with(|| SharedPermits::new(name, reserve_max)).clone()
    }

    /// Returns whether replicas share permits through Redis, also while it is away.
    pub fn is_shared(&self) -> bool {
        self.sharing.has_redis()
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn shares(&self) -> ReplicaShare {
        self.sharing.shares(SharedLimit::Permits)
    }

    /// Takes a permit that this replica holds. Never waits.
    pub fn try_take(&self, permits: &Arc<SharedPermits>, max: usize) -> Result<(), NoPermit> {
        match permits.try_take(count(max), self.shares(), || self.now()) {
            PermitAttempt::Taken => {
                if self.sharing.has_redis() && permits.try_enqueue_refill() {
                    self.enqueue_urgent(permits);
                }
                Ok(())
            }
            PermitAttempt::NeedsReport | PermitAttempt::Full => Err(NoPermit),
        }
    }

    /// Takes a permit. Requests one from Redis if this replica holds none.
    pub async fn take(
        self: &Arc<Self>,
        permits: &Arc<SharedPermits>,
        max: usize,
    ) -> Result<SharedPermit, NoPermit> {
        let _waiting = match self.wait_for_permit(permits, max) {
            Ok(ready) => ready,
            Err(waiting) => Some(self.wait_for_report(permits, waiting).await),
        };
        self.try_take(permits, max)?;
        Ok(SharedPermit { permits: permits.clone(), limiter: self.clone(), kept: false })
    }

    /// Returns at once if this replica needs no answer of Redis for the next permit. Otherwise
    /// returns the caller, which must [`PermitLimiter::wait_for_report`].
    pub fn wait_for_permit<'a>(
        &self,
        permits: &'a Arc<SharedPermits>,
        max: usize,
    ) -> Result<Option<WaitingCaller<'a>>, WaitingCaller<'a>> {
        if !self.sharing.has_redis() {
            return Ok(None);
        }
        let needs_answer = permits.wait_for_permit(count(max), self.shares(), || self.now());
        let waiting = WaitingCaller(permits);
        if needs_answer { Err(waiting) } else { Ok(Some(waiting)) }
    }

    /// Waits until Redis has answered a report of this scope, or is away.
    pub async fn wait_for_report<'a>(
        &self,
        permits: &'a Arc<SharedPermits>,
        waiting: WaitingCaller<'a>,
    ) -> WaitingCaller<'a> {
        let mut batches = self.batches.subscribe();
        let batch = self.enqueue_urgent(permits);
        let _in_time = timeout(PERMITS_WAIT_MAX, batches.wait_for(|over| *over > batch)).await;
        waiting
    }

    /// Queues a report of this scope before all that are only due. Returns the number of its batch.
    fn enqueue_urgent(&self, permits: &Arc<SharedPermits>) -> u64 {
        let batch = {
            let mut urgent = self.urgent.lock();
            urgent.permits.push(permits.clone());
            urgent.batch
        };
        self.wanted.notify_one();
        batch
    }

    /// Reserves permits for calls that are to be expected, so that the first one need not wait.
    pub fn expect_use(&self, permits: &Arc<SharedPermits>, max: usize) {
        if self.shares().sharing == SharingMode::Global && permits.expect_use(count(max)) {
            self.enqueue_urgent(permits);
        }
    }

    /// Applies a changed limit to what this replica has reserved.
    pub fn set_max(&self, permits: &Arc<SharedPermits>, max: usize) {
        if self.sharing.has_redis() && permits.set_max(count(max)) && permits.try_enqueue() {
            self.due.lock().push(permits.clone());
        }
    }

    /// Takes a permit beyond any limit, because its holder was admitted elsewhere.
    pub fn take_forced(&self, permits: &Arc<SharedPermits>, max: usize) {
        permits.take_forced(count(max));
        self.report_if_due(permits);
    }

    /// Returns a permit.
    pub fn release(&self, permits: &Arc<SharedPermits>) {
        permits.release();
        self.report_if_due(permits);
    }

    fn report_if_due(&self, permits: &Arc<SharedPermits>) {
        if self.sharing.has_redis() && permits.is_report_due() && permits.try_enqueue() {
            self.due.lock().push(permits.clone());
        }
    }

    /// Settles permits with Redis until the stores are dropped.
    pub async fn keep(self: Arc<Self>, persistence: Weak<Persistence>) {
        if !self.sharing.has_redis() {
            return;
        }
        let mut ticks = ticks(PERMITS_RETURN_INTERVAL);
        let (mut renewed, mut renewals) = (None::<Instant>, 0_u32);
        loop {
            // Both are cancel-safe: a notification, and an interval's tick.
            let is_tick = tokio::select! {
                () = self.wanted.notified() => false,
                _ = ticks.tick() => true,
            };
            let Some(persistence) = persistence.upgrade() else { return };
            self.exchange_urgent(&persistence).await;
            if !is_tick {
                continue;
            }
            if renewed.is_none_or(|at| at.elapsed() >= PERMITS_RENEW_INTERVAL) {
                renewed = Some(Instant::now());
                renewals = renewals.wrapping_add(1);
                self.renew(&persistence, renewals).await;
            }
            // While Redis is away, one renewal each second finds out whether it is back.
            if self.shares().sharing == SharingMode::Global {
                self.exchange_due(&persistence).await;
            }
        }
    }

    /// Renews the lease, and queues the reports that are due with this renewal.
    async fn renew(&self, persistence: &Persistence, renewals: u32) {
        self.exchange(persistence, &[]).await;
        let all = renewals.is_multiple_of(PERMITS_REPORT_RENEWALS);
        let reserves = renewals.is_multiple_of(reserve_report_renewals(self.shares().replicas));
        let mut scopes = self.scopes.lock();
        scopes.retain(|_, permits| Arc::strong_count(permits) > 1 || permits.is_present());
        let mut due = self.due.lock();
        for permits in scopes.values() {
            let has_reserve = permits.record_renewal();
            let is_due = (has_reserve && reserves)
                || permits.is_report_due()
                || (all && permits.is_present());
            if is_due && permits.try_enqueue() {
                due.push(permits.clone());
            }
        }
    }

    async fn exchange_urgent(&self, persistence: &Persistence) {
        let (batch, mut permits) = {
            let mut urgent = self.urgent.lock();
            urgent.batch += u64::from(!urgent.permits.is_empty());
            (urgent.batch, std::mem::take(&mut urgent.permits))
        };
        permits.sort_unstable_by_key(Arc::as_ptr);
        permits.dedup_by(|one, other| Arc::ptr_eq(one, other));
        for some in permits.chunks(PERMIT_REQUESTS_BATCH_MAX) {
            self.exchange(persistence, some).await;
        }
        self.batches.send_replace(batch);
    }

    async fn exchange_due(&self, persistence: &Persistence) {
        let due = std::mem::take(&mut *self.due.lock());
        for some in due.chunks(PERMIT_REQUESTS_BATCH_MAX) {
            self.exchange(persistence, some).await;
            some.iter().for_each(|permits| self.report_if_due(permits));
            self.exchange_urgent(persistence).await;
        }
    }

    /// Reports to the hot store and stores its answers.
    async fn exchange(&self, persistence: &Persistence, permits: &[Arc<SharedPermits>]) {
        let replicas = self.shares().replicas;
        let reports: Vec<_> = permits.iter().map(|permits| permits.next_report(replicas)).collect();
        let requests: Vec<PermitsRequest> = permits
            .iter()
            .zip(&reports)
            .map(|(permits, report)| PermitsRequest {
                name: permits.name.clone(),
                max: report.max,
                in_use: report.in_use,
                wanted: report.wanted,
            })
            .collect();
        let started_at = Instant::now();
        let answer = persistence.hot.settle_permits(LIFETIME, &requests).await;
        let engine = persistence.hot.engine();
        self.metrics.store("settle_permits", engine, started_at.elapsed(), answer.is_none());
        let Some(answer) = answer else {
            self.sharing.record_answer(SharedLimit::Permits, false);
            return;
        };
        let now = self.now();
        for ((permits, report), grant) in permits.iter().zip(&reports).zip(&answer.grants) {
            permits.settle(*report, HeldPermits { held: grant.held, others: grant.others }, now);
        }
        if self.sharing.record_answer(SharedLimit::Permits, true) || !answer.renewed {
            self.report_all();
        }
    }

    /// Queues a report of every scope that has permits here, because Redis may have lost them.
    fn report_all(&self) {
        let scopes = self.scopes.lock();
        let mut due = self.due.lock();
        for permits in scopes.values().filter(|permits| permits.is_present()) {
            if permits.try_enqueue() {
                due.push(permits.clone());
            }
        }
    }
}

fn count(max: usize) -> u32 {
    u32::try_from(max).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use config::RedisOutagePolicy;
    use futures_util::future::join_all;
    use testkit::eventually;

    use super::*;
    use crate::{
        auth::Keys,
        persistence::{Stores, node::NodeSettings},
    };

    const MAX: usize = 50;

    /// Returns a limiter that shares permits through a hot store.
    async fn shared() -> (Arc<PermitLimiter>, Arc<Persistence>) {
        let metrics = Arc::new(Metrics::new(false));
        let (node, seal) = (NodeSettings::fresh_name("a"), Keys::from_root(b"root").seal);
        let persistence = Persistence::new(Stores::in_memory().await, node, seal, metrics.clone());
        let sharing = ReplicaSharing::new(true, RedisOutagePolicy::LocalShare, metrics.clone());
        let limiter = Arc::new(PermitLimiter::new(sharing, Instant::now(), metrics));
        tokio::spawn(limiter.clone().keep(Arc::downgrade(&persistence)));
        (limiter, persistence)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn concurrent_callers_get_the_limit_and_a_cancelled_one_holds_no_permit() {
        let (limiter, _durable) = shared().await;
        let permits = limiter.permits("sessions/a".into(), 0);
        let callers = (0..4 * MAX).map(|_| {
            let (limiter, permits) = (limiter.clone(), permits.clone());
            tokio::spawn(async move { limiter.take(&permits, MAX).await })
        });
        let taken: Vec<_> =
            join_all(callers).await.into_iter().filter_map(|taken| taken.unwrap().ok()).collect();
        assert_eq!((taken.len(), permits.in_use() as usize), (MAX, MAX));
        drop(taken);
        for _ in 0..MAX {
            let _given_up = timeout(Duration::ZERO, limiter.take(&permits, MAX)).await;
        }
        eventually("all permits to be returned", || async {
            if permits.is_present() { Err(permits.clone()) } else { Ok(()) }
        })
        .await;
        assert!(limiter.take(&permits, MAX).await.is_ok());
    }

    #[tokio::test]
    async fn concurrent_calls_get_the_permits_that_they_waited_for() {
        let (limiter, _durable) = shared().await;
        let calls = limiter.permits("calls/a".into(), 4);
        for _ in 0..3 {
            let waiting = (0..MAX).map(|_| async {
                match limiter.wait_for_permit(&calls, MAX) {
                    Ok(ready) => ready,
                    Err(waiting) => Some(limiter.wait_for_report(&calls, waiting).await),
                }
            });
            let waiting = join_all(waiting).await;
            assert!((0..MAX).all(|_| limiter.try_take(&calls, MAX).is_ok()));
            drop(waiting);
            assert_eq!(limiter.try_take(&calls, MAX), Err(NoPermit));
            (0..MAX).for_each(|_| limiter.release(&calls));
        }
    }

    #[tokio::test]
    async fn calls_within_the_reserve_never_wait_and_refill_it() {
        const MANY: usize = 10_000;
        let (limiter, _durable) = shared().await;
        let calls = limiter.permits("calls/a".into(), 64);
        let reserved = || async {
            match limiter.wait_for_permit(&calls, MANY) {
                Ok(_ready) => Ok(()),
                Err(_asking) => Err(calls.clone()),
            }
        };
        assert!(reserved().await.is_err());
        limiter.expect_use(&calls, MANY);
        eventually("a reserve before the first call", reserved).await;
        for _ in 0..5 {
            for _ in 0..60 {
                assert!(reserved().await.is_ok());
                assert!(limiter.try_take(&calls, MANY).is_ok());
            }
            eventually("a reserve for sixty more", || async {
                let held = calls.held();
                if held - calls.in_use() >= 60 { Ok(()) } else { Err(held) }
            })
            .await;
        }
    }

    #[test]
    fn a_single_process_has_the_whole_limit_without_a_store() {
        let metrics = Arc::new(Metrics::new(false));
        let sharing = ReplicaSharing::new(false, RedisOutagePolicy::Refuse, metrics.clone());
        let limiter = PermitLimiter::new(sharing, Instant::now(), metrics);
        let permits = limiter.permits("calls/a".into(), 64);
        assert!(matches!(limiter.wait_for_permit(&permits, MAX), Ok(None)));
        assert!((0..MAX).all(|_| limiter.try_take(&permits, MAX).is_ok()));
        assert_eq!(limiter.try_take(&permits, MAX), Err(NoPermit));
        limiter.release(&permits);
        assert!(limiter.try_take(&permits, MAX).is_ok());
        assert!(limiter.due.lock().is_empty() && limiter.scopes.lock().is_empty());
    }
}
