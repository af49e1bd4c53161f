//! Permits of one scope (the calls, sessions or connections of a tenant, the sessions of a
//! principal), on one replica of several.
//!
//! The hot store keeps for each replica how many permits it *holds*. Together they hold at most the
//! limit. A replica uses the permits that it holds without the hot store, and asks for more when it
//! needs them. It reserves some ahead, asks again once half of them are used, and returns those that
//! it does not use. A report is absolute: it replaces the former one, so no lost message can leak a
//! permit.
//!
//! Invariants, while the hot store is available:
//!
//! - A permit is taken only while fewer are in use than are held. [`SharedPermits::take_forced`] is
//!   the exception, for a session that was admitted elsewhere.
//! - `held` sinks before the hot store learns of it, and rises afterwards. One caller settles at a
//!   time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{
    gcra::nanoseconds,
    limits::replicas::{PERMITS_IDLE_RENEWALS, PERMITS_REFUSED_FOR, PERMITS_RESERVE_REPORTERS},
    shared_rate_limit::{ReplicaShare, SharingMode},
};

/// Part of the free permits that all replicas together reserve ahead.
const RESERVED_PART: u32 = 8;

/// The answer to an attempt to take a permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PermitAttempt {
    Taken,
    /// The limit is reached.
    Full,
    /// This replica holds no further permit. The hot store may have one.
    NeedsReport,
}

/// A report to the hot store, with a request for permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PermitsReport {
    /// The limit over all replicas.
    pub max: u32,
    /// Permits in use, which count even beyond the limit.
    pub in_use: u32,
    /// Permits that the replica wants to hold, those in use included.
    pub wanted: u32,
    /// Permits in use and permits that callers wait for.
    needed: u32,
}

/// The answer of the hot store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldPermits {
    /// Permits that this replica holds now.
    pub held: u32,
    /// Permits that the other replicas hold.
    pub others: u32,
}

/// Returns the number of renewals after which a replica reports its reserves again. A report costs
/// the hot store something for each replica. Were each to report at each renewal, the cost would
/// grow with the square of their number.
pub fn reserve_report_renewals(replicas: u32) -> u32 {
    (replicas / PERMITS_RESERVE_REPORTERS).max(1)
}

#[derive(Debug)]
pub struct SharedPermits {
    /// Name of the scope, which is equal on all replicas.
    pub name: String,
    /// Permits to reserve ahead at most.
    reserve_max: u32,
    in_use: AtomicU32,
    /// Callers that wait for a permit.
    waiting: AtomicU32,
    held: AtomicU32,
    /// Permits reserved ahead, as of the last report.
    reserve: AtomicU32,
    /// Unused permits below which the reserve is to be refilled.
    refill_below: AtomicU32,
    /// Most permits in use since the last report.
    peak: AtomicU32,
    /// Permits that no replica holds, as of the last exchange. All of them before the first one.
    free: AtomicU32,
    /// Time until which this replica gets no further permit.
    full_until_ns: AtomicU64,
    /// The last limit.
    max: AtomicU32,
    /// Renewals since the last use.
    idle_renewals: AtomicU32,
    /// Set while a report is queued.
    queued: AtomicBool,
    /// Set while a refill is queued.
    refilling: AtomicBool,
    /// Set while a report may not have reached the hot store.
    unsettled: AtomicBool,
}

impl SharedPermits {
    pub fn new(name: String, reserve_max: u32) -> Arc<Self> {
        Arc::new(Self {
            name,
            reserve_max,
            in_use: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            held: AtomicU32::new(0),
            reserve: AtomicU32::new(0),
            refill_below: AtomicU32::new(0),
            peak: AtomicU32::new(0),
            free: AtomicU32::new(u32::MAX),
            full_until_ns: AtomicU64::new(0),
            max: AtomicU32::new(0),
            idle_renewals: AtomicU32::new(0),
            queued: AtomicBool::new(false),
            refilling: AtomicBool::new(false),
            unsettled: AtomicBool::new(false),
        })
    }

    /// Returns the permits that this replica can use without the hot store.
    fn capacity(&self, max: u32, shares: ReplicaShare) -> u32 {
        match shares.sharing {
            SharingMode::LocalShare | SharingMode::LocalFallback if shares.replicas > 1 => {
                (max / shares.replicas).max(1)
            }
            SharingMode::LocalShare | SharingMode::LocalFallback | SharingMode::Unlimited => max,
            SharingMode::Global | SharingMode::Refuse => self.held.load(Ordering::SeqCst).min(max),
        }
    }

    /// Takes a permit, if this replica has one. [`SharedPermits::release`] returns it.
    pub fn try_take(
        &self,
        max: u32,
        shares: ReplicaShare,
        now: impl FnOnce() -> Duration,
    ) -> PermitAttempt {
        let capacity = self.capacity(max, shares);
        let one_more = |in_use: u32| (in_use < capacity).then_some(in_use + 1);
        if let Ok(before) = self.in_use.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more) {
            if shares.sharing == SharingMode::LocalShare {
                return PermitAttempt::Taken;
            }
            self.record_use(before + 1, max);
            // A report that lowers the capacity meanwhile either counts this permit or is seen
            // here.
            if before < self.capacity(max, shares) {
                return PermitAttempt::Taken;
            }
            self.in_use.fetch_sub(1, Ordering::SeqCst);
        }
        if shares.sharing == SharingMode::Global && self.can_get_more(max, now) {
            PermitAttempt::NeedsReport
        } else {
            PermitAttempt::Full
        }
    }

    /// Returns whether the hot store may have a permit. Notes the limit for the report.
    fn can_get_more(&self, max: u32, now: impl FnOnce() -> Duration) -> bool {
        let can = self.in_use.load(Ordering::SeqCst) < max
            && self.full_until_ns.load(Ordering::Relaxed) <= nanoseconds(now());
        if can {
            self.max.store(max, Ordering::Relaxed);
        }
        can
    }

    fn record_use(&self, in_use: u32, max: u32) {
        if self.peak.load(Ordering::Relaxed) < in_use {
            self.peak.fetch_max(in_use, Ordering::Relaxed);
        }
        self.max.store(max, Ordering::Relaxed);
    }

    /// Takes a permit beyond any limit, because its holder was admitted elsewhere.
    pub fn take_forced(&self, max: u32) {
        let in_use = self.in_use.fetch_add(1, Ordering::SeqCst) + 1;
        self.record_use(in_use, max);
    }

    /// Returns a permit.
    pub fn release(&self) {
        self.in_use.fetch_sub(1, Ordering::SeqCst);
    }

    /// Counts in a caller that needs a permit soon, until [`SharedPermits::stop_waiting`]. Returns
    /// whether the hot store must be asked first.
    pub fn wait_for_permit(
        &self,
        max: u32,
        shares: ReplicaShare,
        now: impl FnOnce() -> Duration,
    ) -> bool {
        let waiting = self.waiting.fetch_add(1, Ordering::AcqRel) + 1;
        let needed = self.in_use.load(Ordering::SeqCst).saturating_add(waiting);
        shares.sharing == SharingMode::Global
            && needed > self.capacity(max, shares)
            && self.can_get_more(max, now)
    }

    pub fn stop_waiting(&self) {
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns whether what this replica holds differs too much from what it uses.
    pub fn is_report_due(&self) -> bool {
        let (in_use, held) =
            (self.in_use.load(Ordering::Relaxed), self.held.load(Ordering::Relaxed));
        in_use > held || held - in_use > self.reserve.load(Ordering::Relaxed).saturating_mul(2)
    }

    /// Returns whether the caller must queue a refill, because half of the reserve is used.
    pub fn try_enqueue_refill(&self) -> bool {
        let unused =
            self.held.load(Ordering::Relaxed).saturating_sub(self.in_use.load(Ordering::Relaxed));
        unused < self.refill_below.load(Ordering::Relaxed)
            && !self.refilling.swap(true, Ordering::AcqRel)
    }

    /// Notes that calls are to be expected. Returns whether the caller must queue a refill, because
    /// nothing is reserved for them.
    pub fn expect_use(&self, max: u32) -> bool {
        if self.reserve_max == 0 || self.held.load(Ordering::Relaxed) > 0 {
            return false;
        }
        self.max.store(max, Ordering::Relaxed);
        self.idle_renewals.store(0, Ordering::Relaxed);
        !self.refilling.swap(true, Ordering::AcqRel)
    }

    /// Sets a changed limit. Returns whether the hot store must learn of it, because this replica
    /// may hold more than its part of the new one.
    pub fn set_max(&self, max: u32) -> bool {
        self.max.swap(max, Ordering::Relaxed) != max && self.is_present()
    }

    /// Returns whether the caller must queue a report.
    pub fn try_enqueue(&self) -> bool {
        !self.queued.load(Ordering::Relaxed) && !self.queued.swap(true, Ordering::AcqRel)
    }

    /// Notes a renewal. Returns whether it has a reserve, which [`reserve_report_renewals`] has
    /// reported.
    pub fn record_renewal(&self) -> bool {
        if self.in_use.load(Ordering::Relaxed) > 0 || self.peak.load(Ordering::Relaxed) > 0 {
            self.idle_renewals.store(0, Ordering::Relaxed);
        } else {
            let more = |count: u32| Some(count.saturating_add(1));
            let _always_some =
                self.idle_renewals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        }
        self.reserve_max > 0 && self.held.load(Ordering::Relaxed) > 0
    }

    /// Returns the next report. It is outstanding until [`SharedPermits::settle`], or lost.
    pub fn next_report(&self, replicas: u32) -> PermitsReport {
        self.queued.store(false, Ordering::Release);
        self.refilling.store(false, Ordering::Release);
        self.unsettled.store(true, Ordering::Relaxed);
        let max = self.max.load(Ordering::Relaxed);
        let in_use = self.in_use.load(Ordering::SeqCst);
        let peak = self.peak.swap(in_use, Ordering::Relaxed).max(in_use);
        let needed = in_use.saturating_add(self.waiting.load(Ordering::SeqCst));
        let held = self.held.load(Ordering::SeqCst);
        let reserve = if self.idle_renewals.load(Ordering::Relaxed) < PERMITS_IDLE_RENEWALS {
            // What this replica has reserved already is free too.
            let free =
                self.free.load(Ordering::Relaxed).saturating_add(held.saturating_sub(needed));
            (free.min(max) / RESERVED_PART / replicas.max(1)).min(self.reserve_max)
        } else {
            0
        };
        self.reserve.store(reserve, Ordering::Relaxed);
        let wanted = needed.max(peak).saturating_add(reserve).min(max);
        if wanted < held {
            self.held.store(wanted, Ordering::SeqCst);
            // A permit that was taken before the change counts.
            self.held
                .store(wanted.max(self.in_use.load(Ordering::SeqCst)).min(held), Ordering::SeqCst);
        }
        let in_use = self.in_use.load(Ordering::SeqCst);
        PermitsReport { max, in_use, wanted: wanted.max(in_use), needed }
    }

    /// Stores the answer to a report.
    pub fn settle(&self, report: PermitsReport, got: HeldPermits, now: Duration) {
        self.held.store(got.held, Ordering::SeqCst);
        let free = report.max.saturating_sub(got.others).saturating_sub(got.held);
        self.free.store(free, Ordering::Relaxed);
        // Without a grant there is nothing to refill: callers send a request once they need a
        // permit.
        let reserved =
            got.held.saturating_sub(report.needed).min(self.reserve.load(Ordering::Relaxed));
        self.refill_below.store(reserved / 2, Ordering::Relaxed);
        let full_until =
            if got.held < report.needed { nanoseconds(now + PERMITS_REFUSED_FOR) } else { 0 };
        self.full_until_ns.store(full_until, Ordering::Relaxed);
        self.unsettled.store(false, Ordering::Relaxed);
    }

    pub fn in_use(&self) -> u32 {
        self.in_use.load(Ordering::Relaxed)
    }

    /// Returns the permits that this replica can use without a request.
    pub fn held(&self) -> u32 {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns whether the hot store may have an entry of this replica, or must get one.
    pub fn is_present(&self) -> bool {
        self.in_use.load(Ordering::SeqCst) > 0
            || self.held.load(Ordering::SeqCst) > 0
            || self.waiting.load(Ordering::SeqCst) > 0
            || self.unsettled.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const NOW: Duration = Duration::from_secs(10);
    const LATER: Duration = Duration::from_secs(11);
    const TWO: ReplicaShare = ReplicaShare { sharing: SharingMode::Global, replicas: 2 };

    /// The hot store's side, as `storage` implements it: what each replica holds.
    #[derive(Debug, Default)]
    struct Store(BTreeMap<usize, u32>);

    impl Store {
        fn settle(&mut self, replica: usize, report: PermitsReport) -> HeldPermits {
            let others = self.0.iter().filter(|(name, _)| **name != replica).map(|(_, held)| held);
            let others: u32 = others.sum();
            let held = report.in_use.max(report.wanted.min(report.max.saturating_sub(others)));
            self.0.insert(replica, held);
            HeldPermits { held, others }
        }

        fn exchange(&mut self, replica: usize, permits: &SharedPermits, now: Duration) {
            let report = permits.next_report(2);
            let got = self.settle(replica, report);
            permits.settle(report, got, now);
        }
    }

    /// Takes a permit, and asks the store once if it must.
    fn take(store: &mut Store, replica: usize, permits: &SharedPermits, max: u32) -> bool {
        let needs_report = permits.wait_for_permit(max, TWO, || LATER);
        if needs_report {
            store.exchange(replica, permits, NOW);
        }
        let taken = permits.try_take(max, TWO, || LATER) == PermitAttempt::Taken;
        permits.stop_waiting();
        taken
    }

    fn taken_at_once(permits: &SharedPermits, max: u32, shares: ReplicaShare) -> usize {
        let take = || permits.try_take(max, shares, || NOW) == PermitAttempt::Taken;
        (0..1_000).take_while(|_| take()).count()
    }

    #[test]
    fn two_replicas_share_the_limit_and_a_returned_permit_moves() {
        let (mut store, ours, theirs) = (
            Store::default(),
            SharedPermits::new("a".into(), 0),
            SharedPermits::new("a".into(), 0),
        );
        assert!((0..3).all(|_| take(&mut store, 1, &ours, 5)));
        assert!((0..2).all(|_| take(&mut store, 2, &theirs, 5)));
        assert!(!take(&mut store, 1, &ours, 5) && !take(&mut store, 2, &theirs, 5));
        ours.release();
        assert!(ours.is_report_due());
        // The first report still has the peak, the second one returns the permit.
        (0..2).for_each(|_| store.exchange(1, &ours, NOW));
        assert!(!ours.is_report_due() && take(&mut store, 2, &theirs, 5));
        assert!(!take(&mut store, 1, &ours, 5));
    }

    #[test]
    fn a_full_scope_is_not_requested_again_at_once() {
        let (mut store, ours) = (Store::default(), SharedPermits::new("a".into(), 0));
        store.0.insert(2, 5);
        assert_eq!(ours.try_take(5, TWO, || NOW), PermitAttempt::NeedsReport);
        assert!(ours.wait_for_permit(5, TWO, || NOW));
        store.exchange(1, &ours, NOW);
        assert_eq!(ours.try_take(5, TWO, || NOW), PermitAttempt::Full);
        assert!(!ours.wait_for_permit(5, TWO, || NOW));
        assert_eq!(ours.try_take(5, TWO, || LATER), PermitAttempt::NeedsReport);
    }

    #[test]
    fn calls_are_reserved_ahead_by_the_free_permits_and_not_for_an_idle_tenant() {
        let (mut store, calls) = (Store::default(), SharedPermits::new("a".into(), 64));
        assert!(take(&mut store, 1, &calls, 10_000));
        assert_eq!(store.0[&1], 65);
        assert_eq!(taken_at_once(&calls, 10_000, TWO), 64, "without the store");
        (0..65).for_each(|_| calls.release());
        (0..2).for_each(|_| store.exchange(1, &calls, NOW));
        assert_eq!(store.0[&1], 64);
        store.0.insert(2, 9_900);
        (0..2).for_each(|_| store.exchange(1, &calls, NOW));
        assert_eq!(store.0[&1], 6, "an eighth of a half of the hundred that are free");
        for renewal in 0..=PERMITS_IDLE_RENEWALS {
            assert!(calls.record_renewal(), "{renewal}");
        }
        store.exchange(1, &calls, NOW);
        assert_eq!((store.0[&1], calls.record_renewal(), calls.is_present()), (0, false, false));
    }

    #[test]
    fn more_replicas_report_their_reserves_less_often() {
        assert_eq!([1, 2, 7, 8, 64].map(reserve_report_renewals), [1, 1, 1, 2, 16]);
        for replicas in 1..=1_000_u32 {
            let at_each_renewal = replicas.div_ceil(reserve_report_renewals(replicas));
            assert!(at_each_renewal <= 2 * PERMITS_RESERVE_REPORTERS, "{replicas}");
        }
    }

    #[test]
    fn a_reserve_is_refilled_once_before_it_is_exhausted() {
        let (mut store, calls) = (Store::default(), SharedPermits::new("a".into(), 64));
        assert!(calls.expect_use(10_000) && !calls.expect_use(10_000));
        store.exchange(1, &calls, NOW);
        assert_eq!((store.0[&1], calls.expect_use(10_000)), (64, false), "it has a reserve");
        let take = || assert_eq!(calls.try_take(10_000, TWO, || NOW), PermitAttempt::Taken);
        (0..32).for_each(|_| take());
        assert!(!calls.try_enqueue_refill());
        take();
        assert!(calls.try_enqueue_refill() && !calls.try_enqueue_refill());
        store.exchange(1, &calls, NOW);
        assert_eq!((store.0[&1], calls.try_enqueue_refill()), (33 + 64, false));
        // Without a further permit, only a caller that needs one asks.
        store.0.insert(2, 9_903);
        (0..64).for_each(|_| take());
        assert!(calls.try_enqueue_refill());
        store.exchange(1, &calls, NOW);
        assert_eq!((store.0[&1], calls.try_enqueue_refill()), (97, false));
        let sessions = SharedPermits::new("b".into(), 0);
        assert!(!sessions.expect_use(10_000) && !sessions.try_enqueue_refill());
    }

    #[test]
    fn a_lower_limit_reduces_the_reserved_permits() {
        let (mut store, calls) = (Store::default(), SharedPermits::new("a".into(), 64));
        assert!(!calls.set_max(10_000), "it holds nothing");
        assert!(calls.expect_use(10_000));
        store.exchange(1, &calls, NOW);
        assert!(calls.set_max(100) && !calls.set_max(100));
        store.exchange(1, &calls, NOW);
        assert_eq!(store.0[&1], 6, "an eighth of a half");
        assert!(calls.set_max(4));
        store.exchange(1, &calls, NOW);
        assert_eq!(store.0[&1], 0);
    }

    #[test]
    fn without_the_hot_store_the_configured_policy_applies() {
        for (sharing, replicas, expected) in [
            (SharingMode::LocalShare, 1, 10),
            (SharingMode::LocalShare, 3, 3),
            (SharingMode::LocalFallback, 3, 3),
            (SharingMode::LocalFallback, 30, 1),
            (SharingMode::Unlimited, 3, 10),
            (SharingMode::Refuse, 3, 2),
        ] {
            let (mut store, permits) = (Store::default(), SharedPermits::new("a".into(), 0));
            store.exchange(1, &permits, NOW);
            assert!((0..2).all(|_| take(&mut store, 1, &permits, 10)));
            (0..2).for_each(|_| permits.release());
            let shares = ReplicaShare { sharing, replicas };
            assert_eq!(taken_at_once(&permits, 10, shares), expected, "{shares:?}");
        }
    }

    #[test]
    fn permits_taken_elsewhere_count_beyond_the_limit() {
        let (mut store, ours, theirs) = (
            Store::default(),
            SharedPermits::new("a".into(), 0),
            SharedPermits::new("a".into(), 0),
        );
        (0..4).for_each(|_| ours.take_forced(3));
        assert!(ours.is_report_due());
        store.exchange(1, &ours, NOW);
        assert_eq!((store.0[&1], ours.is_report_due()), (4, false));
        assert!(!take(&mut store, 2, &theirs, 3));
        (0..2).for_each(|_| ours.release());
        (0..2).for_each(|_| store.exchange(1, &ours, NOW));
        assert!(take(&mut store, 2, &theirs, 3));
    }

    #[test]
    fn a_report_that_was_lost_is_sent_again() {
        let (mut store, ours) = (Store::default(), SharedPermits::new("a".into(), 0));
        assert!(take(&mut store, 1, &ours, 3));
        ours.release();
        (0..2).for_each(|_| _ = ours.next_report(2));
        assert!(ours.is_present(), "the store still has its permit");
        (0..2).for_each(|_| store.exchange(1, &ours, NOW));
        assert!(!ours.is_present());
    }

    /// One step of three replicas.
    #[derive(Debug, Clone)]
    enum Step {
        Take(usize),
        Release(usize),
        /// A report goes out. Its answer comes later, if at all.
        Report(usize),
        Answer(usize),
        /// The answer to the outstanding report is lost.
        Lose(usize),
        /// `kill -9`, and a new process. The store still has the entry of the old one.
        Kill(usize),
        /// The entries of the killed processes end.
        Expire,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let replica = 0..3_usize;
        let step = prop_oneof![
            6 => replica.clone().prop_map(Step::Take),
            4 => replica.clone().prop_map(Step::Release),
            3 => replica.clone().prop_map(Step::Report),
            3 => replica.clone().prop_map(Step::Answer),
            1 => replica.clone().prop_map(Step::Lose),
            1 => replica.prop_map(Step::Kill),
            1 => Just(Step::Expire),
        ];
        prop::collection::vec(step, 1..200)
    }

    struct Process {
        name: usize,
        permits: Arc<SharedPermits>,
        outstanding: Option<(PermitsReport, HeldPermits)>,
    }

    impl Process {
        fn new(name: usize, reserve: u32) -> Self {
            Self { name, permits: SharedPermits::new("a".into(), reserve), outstanding: None }
        }

        fn answer(&mut self) {
            if let Some((report, got)) = self.outstanding.take() {
                self.permits.settle(report, got, NOW);
            }
        }

        fn report(&mut self, store: &mut Store) {
            if self.outstanding.is_none() {
                let report = self.permits.next_report(3);
                self.outstanding = Some((report, store.settle(self.name, report)));
            }
        }
    }

    proptest! {
        /// In every order of takes, returns, reports, losses and crashes, all replicas together use
        /// at most the limit. The permits of a crashed replica are free after its lease. No permit
        /// leaks.
        #[test]
        fn replicas_never_use_more_than_the_limit_and_leak_no_permit(
            steps in steps(),
            max in 1_u32..40,
            reserve in prop_oneof![Just(0_u32), Just(4)],
        ) {
            let (mut store, mut names) = (Store::default(), 3);
            let mut replicas = [0, 1, 2].map(|name| Process::new(name, reserve));
            for step in steps {
                match step {
                    Step::Take(at) => {
                        let process = &mut replicas[at];
                        let needs_report = process.permits.wait_for_permit(max, TWO, || LATER);
                        if needs_report && process.outstanding.is_none() {
                            process.report(&mut store);
                            process.answer();
                        }
                        let _taken = process.permits.try_take(max, TWO, || LATER);
                        process.permits.stop_waiting();
                    }
                    Step::Release(at) if replicas[at].permits.in_use() > 0 => {
                        replicas[at].permits.release();
                    }
                    Step::Release(_) => {}
                    Step::Report(at) => replicas[at].report(&mut store),
                    Step::Answer(at) => replicas[at].answer(),
                    Step::Lose(at) => replicas[at].outstanding = None,
                    Step::Kill(at) => {
                        replicas[at] = Process::new(names, reserve);
                        names += 1;
                    }
                    Step::Expire => {
                        let alive = replicas.each_ref().map(|process| process.name);
                        store.0.retain(|name, _| alive.contains(name));
                    }
                }
                let used: u32 = replicas.iter().map(|process| process.permits.in_use()).sum();
                prop_assert!(used <= max, "{used} of {max}");
            }
            for process in &mut replicas {
                process.outstanding = None;
                while process.permits.in_use() > 0 {
                    process.permits.release();
                }
            }
            let alive = replicas.each_ref().map(|process| process.name);
            store.0.retain(|name, _| alive.contains(name));
            for process in &replicas {
                store.exchange(process.name, &process.permits, NOW);
                (0..=PERMITS_IDLE_RENEWALS).for_each(|_| _ = process.permits.record_renewal());
                (0..2).for_each(|_| store.exchange(process.name, &process.permits, NOW));
            }
            prop_assert_eq!(store.0.values().sum::<u32>(), 0, "a permit leaked");
            let last = &replicas[2];
            prop_assert!((0..max).all(|_| take(&mut store, last.name, &last.permits, max)));
        }
    }
}
