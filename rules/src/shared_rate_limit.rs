//! Rate of one scope (a tenant, a principal, a backend, a tool), on one replica of several.
//!
//! If replicas share a hot store, each takes a *stock* from the shared budget in advance. Requests
//! beyond the stock use this replica's own share of the rate, unless the budget is known to be
//! empty. The replica reports them to the hot store later (`unreported`). So no request waits for
//! the hot store. The replicas together exceed the budget at most by what is not reported yet.
//!
//! Invariant: use of the own share while budgets are shared is reported exactly once.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use super::gcra::{GcraLimiter, Rate, nanoseconds};

/// Time after which an unused stock is dropped.
const STOCK_KEPT: Duration = Duration::from_secs(1);
/// Time that a stock lasts at the full rate, so that little of it lies unused.
const STOCK_AHEAD: Duration = Duration::from_millis(40);
/// Longest wait in a refusal while the budget is not known to be empty, because more stock was
/// requested.
const MORE_SOON: Duration = Duration::from_millis(50);

/// The way in which replicas share a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharingMode {
    /// Each replica has its part.
    LocalShare,
    /// The replicas use the hot store.
    Global,
    /// The hot store is unavailable. Until it is back, each replica has its part and reports its
    /// use later.
    LocalFallback,
    /// The hot store is unavailable. Requests pass without being counted.
    Unlimited,
    /// The hot store is unavailable. All requests are refused.
    Refuse,
}

/// The sharing mode and the number of replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaShare {
    pub sharing: SharingMode,
    pub replicas: u32,
}

/// A request to the hot store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaRequest {
    pub rate: Rate,
    pub used: u32,
    pub wanted: u32,
}

/// The answer of the hot store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaGrant {
    pub granted: u32,
    /// Requests that are left in the budget, without the granted ones.
    pub remaining: u32,
    pub wait: Duration,
}

#[derive(Debug)]
pub struct SharedRateLimiter {
    /// Name of the budget, which is equal on all replicas.
    pub name: String,
    /// This replica's own share.
    own: GcraLimiter,
    stock: AtomicU32,
    stocked_at_ns: AtomicU64,
    /// Time until which the budget is empty.
    none_until_ns: AtomicU64,
    /// Use of the own share that is not reported yet.
    unreported: AtomicU32,
    /// Requests since the last exchange with the hot store.
    demand: AtomicU32,
    /// Set while an exchange with the hot store is queued.
    queued: AtomicBool,
    /// The last rate, packed.
    rate: AtomicU64,
}

impl SharedRateLimiter {
    pub fn new(name: String) -> Arc<Self> {
        Arc::new(Self {
            name,
            own: GcraLimiter::default(),
            stock: AtomicU32::new(0),
            stocked_at_ns: AtomicU64::new(0),
            none_until_ns: AtomicU64::new(0),
            unreported: AtomicU32::new(0),
            demand: AtomicU32::new(0),
            queued: AtomicBool::new(false),
            rate: AtomicU64::new(0),
        })
    }

    /// Takes one request, or returns the wait.
    pub fn try_acquire(
        &self,
        rate: Rate,
        shares: ReplicaShare,
        now: Duration,
    ) -> Result<(), Duration> {
        if shares.sharing == SharingMode::LocalShare {
            return self.own.try_acquire(rate, shares.replicas, now);
        }
        self.rate
            .store(u64::from(rate.per_second) << 32 | u64::from(rate.burst), Ordering::Relaxed);
        add(&self.demand, 1);
        match shares.sharing {
            SharingMode::Unlimited => return Ok(()),
            SharingMode::Refuse => return Err(STOCK_KEPT),
            SharingMode::LocalFallback => {
                self.own.try_acquire(rate, shares.replicas, now)?;
                add(&self.unreported, 1);
                return Ok(());
            }
            SharingMode::Global | SharingMode::LocalShare => {}
        }
        if self.take_of_stock(now) {
            return Ok(());
        }
        let none_until = self.none_until_ns.load(Ordering::Relaxed);
        if let Some(wait) = none_until.checked_sub(nanoseconds(now)).filter(|wait| *wait > 0) {
            return Err(Duration::from_nanos(wait));
        }
        self.own.try_acquire(rate, shares.replicas, now).map_err(|wait| wait.min(MORE_SOON))?;
        add(&self.unreported, 1);
        Ok(())
    }

    fn take_of_stock(&self, now: Duration) -> bool {
        let stocked_at = self.stocked_at_ns.load(Ordering::Relaxed);
        if nanoseconds(now).saturating_sub(stocked_at) > nanoseconds(STOCK_KEPT) {
            self.stock.store(0, Ordering::Relaxed);
            return false;
        }
        self.stock
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |stock| stock.checked_sub(1))
            .is_ok()
    }

    /// Returns one request to the budget, because it was counted elsewhere.
    pub fn refund(&self, rate: Rate, shares: ReplicaShare) {
        match shares.sharing {
            SharingMode::LocalShare => self.own.refund(rate, shares.replicas),
            SharingMode::Global | SharingMode::LocalFallback => {
                if self
                    .unreported
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |unreported| {
                        unreported.checked_sub(1)
                    })
                    .is_ok()
                {
                    self.own.refund(rate, shares.replicas);
                } else {
                    add(&self.stock, 1);
                }
            }
            SharingMode::Unlimited | SharingMode::Refuse => {}
        }
    }

    /// Returns whether the caller must queue an exchange with the hot store.
    pub fn try_enqueue(&self) -> bool {
        !self.queued.swap(true, Ordering::AcqRel)
    }

    /// Returns the request for the next exchange.
    pub fn next_request(&self, shares: ReplicaShare, now: Duration) -> QuotaRequest {
        self.queued.store(false, Ordering::Release);
        let packed = self.rate.load(Ordering::Relaxed);
        let rate =
            Rate { per_second: ((packed >> 32) as u32).max(1), burst: (packed as u32).max(1) };
        let demand = self.demand.swap(0, Ordering::Relaxed);
        // Use that the rate has restored meanwhile is not reported any more.
        let used = self.unreported.swap(0, Ordering::Relaxed).min(self.own.consumed(
            rate,
            shares.replicas,
            now,
        ));
        let ahead = (u128::from(rate.per_second) * STOCK_AHEAD.as_millis() / 1_000).max(1) as u32;
        let wanted = demand
            .saturating_add(demand / 2)
            .min(ahead)
            .saturating_sub(self.stock.load(Ordering::Relaxed));
        QuotaRequest { rate, used, wanted }
    }

    /// Stores the answer of the hot store.
    pub fn apply_grant(
        &self,
        want: QuotaRequest,
        got: QuotaGrant,
        shares: ReplicaShare,
        now: Duration,
    ) {
        let share = got.remaining / shares.replicas.max(1);
        add(&self.stock, got.granted - self.settle_excess(share, got.granted));
        self.stocked_at_ns.store(nanoseconds(now), Ordering::Relaxed);
        let none_until = if got.remaining == 0 { nanoseconds(now + got.wait) } else { 0 };
        self.none_until_ns.store(none_until, Ordering::Relaxed);
        let own = share.saturating_sub(self.unreported.load(Ordering::Relaxed));
        self.own.set_remaining(want.rate, shares.replicas, now, own);
    }

    /// Settles use during the exchange beyond this replica's share of the budget with the granted
    /// requests, which the hot store has counted. Returns how many of them it uses up.
    fn settle_excess(&self, share: u32, granted: u32) -> u32 {
        let excess = |unreported: u32| unreported.saturating_sub(share).min(granted);
        let without = |unreported: u32| Some(unreported - excess(unreported));
        let (Ok(before) | Err(before)) =
            self.unreported.fetch_update(Ordering::Relaxed, Ordering::Relaxed, without);
        excess(before)
    }

    /// Keeps the use for a later report, because the hot store did not answer.
    pub fn restore_unreported(&self, want: QuotaRequest) {
        add(&self.unreported, want.used);
        self.none_until_ns.store(0, Ordering::Relaxed);
    }

    /// Returns whether a new limiter would have the same state.
    fn is_idle(&self, now: Duration) -> bool {
        let (none_until, now_ns) = (self.none_until_ns.load(Ordering::Relaxed), nanoseconds(now));
        self.own.is_full(now)
            && none_until <= now_ns
            && self.unreported.load(Ordering::Relaxed) == 0
    }
}

fn add(number: &AtomicU32, more: u32) {
    let _always_some = number
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| Some(held.saturating_add(more)));
}

/// Interval at which a full map is searched for idle limiters.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Bytes of a name from which a scope shares the common limiter.
const NAME_BYTES_MAX: usize = 512;

/// Limiters of scopes that clients choose, up to a limit. Idle ones are dropped, never one in use.
/// Scopes without capacity share one.
#[derive(Debug)]
pub struct RateLimiterMap<K> {
    known: HashMap<K, Arc<SharedRateLimiter>>,
    max: usize,
    others: Arc<SharedRateLimiter>,
    swept_at: Option<Duration>,
}

impl<K: Eq + Hash + Clone> RateLimiterMap<K> {
    /// Creates a map. `others` names the limiter that scopes without capacity share.
    pub fn new(max: usize, others: String) -> Self {
        Self { known: HashMap::new(), max, others: SharedRateLimiter::new(others), swept_at: None }
    }

    pub fn get_or_insert(
        &mut self,
        key: &K,
        now: Duration,
        name: impl FnOnce() -> String,
    ) -> Arc<SharedRateLimiter> {
        if let Some(known) = self.known.get(key) {
            return known.clone();
        }
        if self.known.len() >= self.max
            && self.swept_at.is_none_or(|at| now.saturating_sub(at) >= SWEEP_EVERY)
        {
            self.swept_at = Some(now);
            self.known.retain(|_, meter| Arc::strong_count(meter) > 1 || !meter.is_idle(now));
        }
        let name = name();
        if self.known.len() >= self.max || name.len() > NAME_BYTES_MAX {
            return self.others.clone();
        }
        let meter = SharedRateLimiter::new(name);
        self.known.insert(key.clone(), meter.clone());
        meter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(10);
    const RATE: Rate = Rate { per_second: 100, burst: 30 };
    const THREE: ReplicaShare = ReplicaShare { sharing: SharingMode::Global, replicas: 3 };
    const SINGLE_REPLICA: ReplicaShare =
        ReplicaShare { sharing: SharingMode::LocalShare, replicas: 1 };

    fn meter() -> Arc<SharedRateLimiter> {
        SharedRateLimiter::new("m".into())
    }

    fn taken_at_once(meter: &SharedRateLimiter, shares: ReplicaShare, now: Duration) -> usize {
        (0..1_000).take_while(|_| meter.try_acquire(RATE, shares, now).is_ok()).count()
    }

    #[test]
    fn ungranted_requests_use_the_local_share_and_are_reported() {
        let meter = meter();
        assert_eq!(taken_at_once(&meter, THREE, START), 10);
        let want = meter.next_request(THREE, START);
        assert_eq!((want.used, want.wanted), (10, 4), "a stock for forty milliseconds");
        meter.apply_grant(
            want,
            QuotaGrant { granted: 4, remaining: 0, wait: Duration::from_millis(7) },
            THREE,
            START,
        );
        assert_eq!(taken_at_once(&meter, THREE, START), 4);
        assert_eq!(meter.try_acquire(RATE, THREE, START), Err(Duration::from_millis(7)));
        assert_eq!(meter.next_request(THREE, START).used, 0, "it was told once");
    }

    #[test]
    fn use_during_an_exchange_does_not_overdraw_the_budget() {
        let (meter, single) = (meter(), ReplicaShare { replicas: 1, ..THREE });
        assert!((0..28).all(|_| meter.try_acquire(RATE, single, START).is_ok()));
        let want = meter.next_request(single, START);
        assert_eq!(want.used, 28);
        // The store grants one of the last two requests. This replica uses both meanwhile.
        assert_eq!(taken_at_once(&meter, single, START), 2);
        let got = QuotaGrant { granted: 1, remaining: 1, wait: Duration::ZERO };
        meter.apply_grant(want, got, single, START);
        assert_eq!(taken_at_once(&meter, single, START), 0, "the budget is used up");
        assert_eq!(meter.next_request(single, START).used, 1, "the store counted the other");
    }

    #[test]
    fn unreported_usage_is_reported_later_minus_the_refilled_part() {
        let meter = meter();
        assert_eq!(taken_at_once(&meter, THREE, START), 10);
        let want = meter.next_request(THREE, START);
        meter.restore_unreported(want);
        assert_eq!(meter.next_request(THREE, START).used, 10);
        meter.restore_unreported(want);
        assert_eq!(meter.next_request(THREE, START + Duration::from_millis(150)).used, 5);
    }

    #[test]
    fn a_share_of_the_remaining_budget_is_used_without_a_request() {
        let meter = meter();
        let want = meter.next_request(THREE, START);
        meter.apply_grant(
            QuotaRequest { rate: RATE, ..want },
            QuotaGrant { granted: 0, remaining: 12, wait: Duration::ZERO },
            THREE,
            START,
        );
        assert_eq!(taken_at_once(&meter, THREE, START), 4);
    }

    #[test]
    fn an_old_stock_expires() {
        let meter = meter();
        meter.apply_grant(
            QuotaRequest { rate: RATE, used: 0, wanted: 4 },
            QuotaGrant { granted: 4, remaining: 0, wait: Duration::ZERO },
            THREE,
            START,
        );
        assert!(meter.take_of_stock(START + Duration::from_millis(900)));
        assert!(!meter.take_of_stock(START + Duration::from_millis(1_100)));
        assert!(!meter.take_of_stock(START + Duration::from_millis(900)));
    }

    #[test]
    fn without_the_hot_store_the_configured_policy_applies() {
        let meter = meter();
        for (sharing, expected) in [
            (SharingMode::LocalShare, 10),
            (SharingMode::LocalFallback, 0),
            (SharingMode::Unlimited, 1_000),
            (SharingMode::Refuse, 0),
        ] {
            assert_eq!(
                taken_at_once(&meter, ReplicaShare { sharing, replicas: 3 }, START),
                expected,
                "{sharing:?}"
            );
        }
    }

    #[test]
    fn a_26_client_chosen_scopes_use_bounded_memory_and_used_ones_are_kept() {
        let mut meters = RateLimiterMap::new(10, "others".into());
        let of = |meters: &mut RateLimiterMap<u32>, key: u32, now| {
            meters.get_or_insert(&key, now, || format!("scope {key}"))
        };
        for key in 0..10 {
            assert_eq!(taken_at_once(&of(&mut meters, key, START), SINGLE_REPLICA, START), 30);
        }
        assert_eq!(of(&mut meters, 11, START).name, "others", "all are in use");
        assert_eq!(
            taken_at_once(&of(&mut meters, 3, START), SINGLE_REPLICA, START),
            0,
            "and none has forgotten"
        );
        let later = START + Duration::from_secs(2);
        assert_eq!(of(&mut meters, 11, later).name, "scope 11");
        assert_eq!(meters.known.len(), 1);
        assert_eq!(
            meters.get_or_insert(&12, later, || "x".repeat(NAME_BYTES_MAX + 1)).name,
            "others"
        );
    }

    /// The hot store's side, as `storage` implements it.
    struct Store {
        next_at: f64,
    }

    impl Store {
        fn settle(&mut self, now: f64, want: QuotaRequest) -> QuotaGrant {
            let interval = 1.0 / f64::from(RATE.per_second);
            let capacity = interval * f64::from(RATE.burst - 1) + 0.05;
            let spent = self.next_at.max(now) + f64::from(want.used) * interval - now;
            let free =
                if spent <= capacity { ((capacity - spent) / interval) as u32 + 1 } else { 0 };
            let granted = free.min(want.wanted);
            self.next_at = now + spent + f64::from(granted) * interval;
            let wait = if free > granted { 0.0 } else { (self.next_at - now - capacity).max(0.0) };
            QuotaGrant { granted, remaining: free - granted, wait: Duration::from_secs_f64(wait) }
        }
    }

    /// Simulates three replicas with this many requests per second each. The exchange with the hot
    /// store starts every 25 ms and takes 5 ms.
    fn admitted_in_ten_seconds(load: [u32; 3]) -> u32 {
        let (mut store, meters) = (Store { next_at: 0.0 }, [meter(), meter(), meter()]);
        let (mut admitted, mut due, mut requested) = (0, [0.0; 3], [None, None, None]);
        for ms in 0..10_000_u64 {
            let now = START + Duration::from_millis(ms);
            for (at, meter) in meters.iter().enumerate() {
                due[at] += f64::from(load[at]) / 1_000.0;
                while due[at] >= 1.0 {
                    due[at] -= 1.0;
                    admitted += u32::from(meter.try_acquire(RATE, THREE, now).is_ok());
                }
                if ms % 25 == at as u64 * 3 {
                    let want = meter.next_request(THREE, now);
                    requested[at] = Some((want, store.settle(now.as_secs_f64(), want), ms + 5));
                }
                if let Some((want, got, _)) = requested[at].take_if(|(_, _, at)| *at == ms) {
                    meter.apply_grant(want, got, THREE, now);
                }
            }
        }
        admitted
    }

    #[test]
    fn three_replicas_admit_the_rate_of_one_within_two_percent() {
        let exact = f64::from(RATE.burst + 10 * RATE.per_second);
        for load in [[500, 500, 500], [3_000, 0, 0], [1_000, 100, 10], [60, 60, 60]] {
            let admitted = admitted_in_ten_seconds(load);
            let error = (f64::from(admitted) - exact) / exact;
            assert!(error.abs() <= 0.02, "{load:?}: {admitted} of {exact}, {error}");
        }
        assert_eq!(
            admitted_in_ten_seconds([30, 30, 30]),
            900,
            "a tenant below the rate is not refused"
        );
    }
}
