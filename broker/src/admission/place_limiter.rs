//! Places of sessions, calls and connections by tenant and principal, over all replicas.
//!
//! With a shared Redis, a replica takes a place that it holds without a request. Otherwise
//! [`PlaceLimiter::keep`] sends Redis one exchange for all waiting callers. Exchanges never
//! overlap, so reports arrive in order. `keep` also renews the lease of this replica's places, and
//! returns the places that it does not use. Without Redis each replica has its part, and one
//! process the whole.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rules::{
    limits::replicas::{
        PLACES_ASKED_AT_ONCE, PLACES_KEPT, PLACES_LEASE, PLACES_RENEW_INTERVAL,
        PLACES_REPORT_RENEWALS, PLACES_RETURN_INTERVAL, PLACES_WAIT_MAX,
    },
    shared_places::{PlaceAttempt, PlacesHeld, SharedPlaces, reserve_report_renewals},
    shared_rate_limit::SharingMode,
};
use tokio::{
    sync::{Notify, watch},
    time::{MissedTickBehavior, interval, timeout},
};

use super::replica_sharing::ReplicaSharing;
use crate::{
    metrics::Metrics,
    persistence::{Persistence, PlacesLifetime, PlacesRequest},
};

const LIFETIME: PlacesLifetime = PlacesLifetime { lease: PLACES_LEASE, kept: PLACES_KEPT };

type Reports = Vec<Arc<SharedPlaces>>;

/// The places of one process.
#[derive(Debug)]
pub struct PlaceLimiter {
    sharing: Arc<ReplicaSharing>,
    /// All scopes, if Redis is configured. A scope has one value, because Redis has one entry.
    known: Mutex<HashMap<String, Arc<SharedPlaces>>>,
    urgent: Mutex<UrgentReports>,
    wanted: Notify,
    /// Scopes that may hold too many places or too few.
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
    places: Reports,
}

/// A caller that needs a place soon. Dropped once it has taken the place or was refused.
#[derive(Debug)]
pub struct WaitingCaller<'a>(&'a SharedPlaces);

impl Drop for WaitingCaller<'_> {
    fn drop(&mut self) {
        self.0.stop_waiting();
    }
}

/// The limit is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoPlace;

/// A place. Dropping it frees the place.
#[derive(Debug)]
pub struct PlacePermit {
    places: Arc<SharedPlaces>,
    limiter: Arc<PlaceLimiter>,
    kept: bool,
}

impl PlacePermit {
    /// Leaves the place taken. The caller returns it with [`PlaceLimiter::release`].
    pub fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for PlacePermit {
    fn drop(&mut self) {
        if !self.kept {
            self.limiter.release(&self.places);
        }
    }
}

impl PlaceLimiter {
    pub fn new(sharing: Arc<ReplicaSharing>, started: Instant, metrics: Arc<Metrics>) -> Self {
        Self {
            sharing,
            known: Mutex::default(),
            urgent: Mutex::default(),
            wanted: Notify::new(),
            due: Mutex::default(),
            batches: watch::Sender::new(0),
            started,
            metrics,
        }
    }

    /// Returns the places of a scope. `reserve_max`: places to reserve ahead at most.
    pub fn places(&self, name: String, reserve_max: u32) -> Arc<SharedPlaces> {
        if !self.sharing.has_redis() {
            return SharedPlaces::new(name, reserve_max);
        }
        let mut known = self.known.lock();
        let places = known.entry(name.clone());
        places.or_insert_with(|| SharedPlaces::new(name, reserve_max)).clone()
    }

    /// Returns whether replicas share places through Redis, also while it is away.
    pub fn is_shared(&self) -> bool {
        self.sharing.has_redis()
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Takes a place that this replica holds. Never waits.
    pub fn try_take(&self, places: &Arc<SharedPlaces>, max: usize) -> Result<(), NoPlace> {
        match places.try_take(count(max), self.sharing.shares(), || self.now()) {
            PlaceAttempt::Taken => {
                if self.sharing.has_redis() && places.try_enqueue_refill() {
                    self.ask_soon(places);
                }
                Ok(())
            }
            PlaceAttempt::Ask | PlaceAttempt::Full => Err(NoPlace),
        }
    }

    /// Takes a place. Requests one from Redis if this replica holds none.
    pub async fn take(
        self: &Arc<Self>,
        places: &Arc<SharedPlaces>,
        max: usize,
    ) -> Result<PlacePermit, NoPlace> {
        let _waiting = match self.wait_for_place(places, max) {
            Ok(ready) => ready,
            Err(asking) => Some(self.ask(places, asking).await),
        };
        self.try_take(places, max)?;
        Ok(PlacePermit { places: places.clone(), limiter: self.clone(), kept: false })
    }

    /// Returns at once if this replica needs no answer of Redis for the next place. Otherwise
    /// returns the caller, which must [`PlaceLimiter::ask`].
    pub fn wait_for_place<'a>(
        &self,
        places: &'a Arc<SharedPlaces>,
        max: usize,
    ) -> Result<Option<WaitingCaller<'a>>, WaitingCaller<'a>> {
        if !self.sharing.has_redis() {
            return Ok(None);
        }
        let needs_answer = places.wait_for_place(count(max), self.sharing.shares(), || self.now());
        let waiting = WaitingCaller(places);
        if needs_answer { Err(waiting) } else { Ok(Some(waiting)) }
    }

    /// Waits until Redis has answered a report of this scope, or is away.
    pub async fn ask<'a>(
        &self,
        places: &'a Arc<SharedPlaces>,
        waiting: WaitingCaller<'a>,
    ) -> WaitingCaller<'a> {
        let mut batches = self.batches.subscribe();
        let batch = self.ask_soon(places);
        let _in_time = timeout(PLACES_WAIT_MAX, batches.wait_for(|over| *over > batch)).await;
        waiting
    }

    /// Queues a report of this scope before all that are only due. Returns the number of its batch.
    fn ask_soon(&self, places: &Arc<SharedPlaces>) -> u64 {
        let batch = {
            let mut urgent = self.urgent.lock();
            urgent.places.push(places.clone());
            urgent.batch
        };
        self.wanted.notify_one();
        batch
    }

    /// Reserves places for calls that are to be expected, so that the first one need not wait.
    pub fn expect_use(&self, places: &Arc<SharedPlaces>, max: usize) {
        if self.sharing.shares().sharing == SharingMode::Global && places.expect_use(count(max)) {
            self.ask_soon(places);
        }
    }

    /// Applies a changed limit to what this replica has reserved.
    pub fn set_max(&self, places: &Arc<SharedPlaces>, max: usize) {
        if self.sharing.has_redis() && places.set_max(count(max)) && places.try_enqueue() {
            self.due.lock().push(places.clone());
        }
    }

    /// Takes a place beyond any limit, because its holder was admitted elsewhere.
    pub fn take_forced(&self, places: &Arc<SharedPlaces>, max: usize) {
        places.take_forced(count(max));
        self.report_if_due(places);
    }

    /// Returns a place.
    pub fn release(&self, places: &Arc<SharedPlaces>) {
        places.release();
        self.report_if_due(places);
    }

    fn report_if_due(&self, places: &Arc<SharedPlaces>) {
        if self.sharing.has_redis() && places.is_report_due() && places.try_enqueue() {
            self.due.lock().push(places.clone());
        }
    }

    /// Settles places with Redis until the stores are dropped.
    pub async fn keep(self: Arc<Self>, durable: Weak<Persistence>) {
        if !self.sharing.has_redis() {
            return;
        }
        let mut ticks = interval(PLACES_RETURN_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut renewed, mut renewals) = (None::<Instant>, 0_u32);
        loop {
            // Both are cancel-safe: a notification, and an interval's tick.
            let is_tick = tokio::select! {
                () = self.wanted.notified() => false,
                _ = ticks.tick() => true,
            };
            let Some(durable) = durable.upgrade() else { return };
            self.settle_urgent(&durable).await;
            if !is_tick {
                continue;
            }
            if renewed.is_none_or(|at| at.elapsed() >= PLACES_RENEW_INTERVAL) {
                renewed = Some(Instant::now());
                renewals = renewals.wrapping_add(1);
                self.renew(&durable, renewals).await;
            }
            // While Redis is away, one renewal each second finds out whether it is back.
            if self.sharing.shares().sharing == SharingMode::Global {
                self.settle_due(&durable).await;
            }
        }
    }

    /// Renews the lease, and queues the reports that are due with this renewal.
    async fn renew(&self, durable: &Persistence, renewals: u32) {
        self.exchange(durable, &[]).await;
        let all = renewals.is_multiple_of(PLACES_REPORT_RENEWALS);
        let reserves =
            renewals.is_multiple_of(reserve_report_renewals(self.sharing.shares().replicas));
        let mut known = self.known.lock();
        known.retain(|_, places| Arc::strong_count(places) > 1 || places.is_present());
        let mut due = self.due.lock();
        for places in known.values() {
            let has_reserve = places.note_renewal();
            let is_due =
                (has_reserve && reserves) || places.is_report_due() || (all && places.is_present());
            if is_due && places.try_enqueue() {
                due.push(places.clone());
            }
        }
    }

    async fn settle_urgent(&self, durable: &Persistence) {
        let (batch, mut places) = {
            let mut urgent = self.urgent.lock();
            urgent.batch += u64::from(!urgent.places.is_empty());
            (urgent.batch, std::mem::take(&mut urgent.places))
        };
        places.sort_unstable_by_key(Arc::as_ptr);
        places.dedup_by(|one, other| Arc::ptr_eq(one, other));
        for some in places.chunks(PLACES_ASKED_AT_ONCE) {
            self.exchange(durable, some).await;
        }
        self.batches.send_replace(batch);
    }

    async fn settle_due(&self, durable: &Persistence) {
        let due = std::mem::take(&mut *self.due.lock());
        for some in due.chunks(PLACES_ASKED_AT_ONCE) {
            self.exchange(durable, some).await;
            some.iter().for_each(|places| self.report_if_due(places));
            self.settle_urgent(durable).await;
        }
    }

    /// Reports to the hot store and stores its answers.
    async fn exchange(&self, durable: &Persistence, places: &[Arc<SharedPlaces>]) {
        let replicas = self.sharing.shares().replicas;
        let reports: Vec<_> = places.iter().map(|places| places.next_report(replicas)).collect();
        let requests: Vec<PlacesRequest> = places
            .iter()
            .zip(&reports)
            .map(|(places, report)| PlacesRequest {
                name: places.name.clone(),
                max: report.max,
                in_use: report.in_use,
                wanted: report.wanted,
            })
            .collect();
        let started_at = Instant::now();
        let answer = durable.hot.settle_places(LIFETIME, &requests).await;
        let engine = durable.hot.engine();
        self.metrics.store("settle_places", engine, started_at.elapsed(), answer.is_none());
        let Some(answer) = answer else {
            self.sharing.note_answer(false);
            return;
        };
        let now = self.now();
        for ((places, report), grant) in places.iter().zip(&reports).zip(&answer.grants) {
            places.settle(*report, PlacesHeld { held: grant.held, others: grant.others }, now);
        }
        if self.sharing.note_answer(true) || !answer.renewed {
            self.report_all();
        }
    }

    /// Queues a report of every scope that has places here, because Redis may have lost them.
    fn report_all(&self) {
        let known = self.known.lock();
        let mut due = self.due.lock();
        for places in known.values().filter(|places| places.is_present()) {
            if places.try_enqueue() {
                due.push(places.clone());
            }
        }
    }
}

fn count(max: usize) -> u32 {
    u32::try_from(max).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use testkit::eventually;

    use super::*;
    use crate::{
        auth::Keys,
        config::RedisOutagePolicy,
        persistence::{Stores, node::NodeSettings},
    };

    const MAX: usize = 50;

    /// Returns a limiter that shares places through a hot store.
    async fn shared() -> (Arc<PlaceLimiter>, Arc<Persistence>) {
        let metrics = Arc::new(Metrics::new(false));
        let (node, seal) = (NodeSettings::fresh_name("a"), Keys::from_root(b"root").seal);
        let durable = Persistence::new(Stores::in_memory().await, node, seal, metrics.clone());
        let sharing = ReplicaSharing::new(true, RedisOutagePolicy::LocalShare, metrics.clone());
        let limiter = Arc::new(PlaceLimiter::new(sharing, Instant::now(), metrics));
        tokio::spawn(limiter.clone().keep(Arc::downgrade(&durable)));
        (limiter, durable)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn concurrent_callers_get_the_limit_and_a_cancelled_one_holds_no_place() {
        let (limiter, _durable) = shared().await;
        let places = limiter.places("sessions/a".into(), 0);
        let callers = (0..4 * MAX).map(|_| {
            let (limiter, places) = (limiter.clone(), places.clone());
            tokio::spawn(async move { limiter.take(&places, MAX).await })
        });
        let taken: Vec<_> =
            join_all(callers).await.into_iter().filter_map(|taken| taken.unwrap().ok()).collect();
        assert_eq!((taken.len(), places.in_use() as usize), (MAX, MAX));
        drop(taken);
        for _ in 0..MAX {
            let _given_up = timeout(Duration::ZERO, limiter.take(&places, MAX)).await;
        }
        eventually("all places to be returned", || async {
            if places.is_present() { Err(places.clone()) } else { Ok(()) }
        })
        .await;
        assert!(limiter.take(&places, MAX).await.is_ok());
    }

    #[tokio::test]
    async fn concurrent_calls_get_the_places_that_they_waited_for() {
        let (limiter, _durable) = shared().await;
        let calls = limiter.places("calls/a".into(), 4);
        for _ in 0..3 {
            let waiting = (0..MAX).map(|_| async {
                match limiter.wait_for_place(&calls, MAX) {
                    Ok(ready) => ready,
                    Err(asking) => Some(limiter.ask(&calls, asking).await),
                }
            });
            let waiting = join_all(waiting).await;
            assert!((0..MAX).all(|_| limiter.try_take(&calls, MAX).is_ok()));
            drop(waiting);
            assert_eq!(limiter.try_take(&calls, MAX), Err(NoPlace));
            (0..MAX).for_each(|_| limiter.release(&calls));
        }
    }

    #[tokio::test]
    async fn calls_within_the_reserve_never_wait_and_refill_it() {
        const MANY: usize = 10_000;
        let (limiter, _durable) = shared().await;
        let calls = limiter.places("calls/a".into(), 64);
        let reserved = || async {
            match limiter.wait_for_place(&calls, MANY) {
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
        let limiter = PlaceLimiter::new(sharing, Instant::now(), metrics);
        let places = limiter.places("calls/a".into(), 64);
        assert!(matches!(limiter.wait_for_place(&places, MAX), Ok(None)));
        assert!((0..MAX).all(|_| limiter.try_take(&places, MAX).is_ok()));
        assert_eq!(limiter.try_take(&places, MAX), Err(NoPlace));
        limiter.release(&places);
        assert!(limiter.try_take(&places, MAX).is_ok());
        assert!(limiter.due.lock().is_empty() && limiter.known.lock().is_empty());
    }
}
