//! Circuit breaker of a backend. It refuses calls to a backend that keeps failing, until a probe
//! succeeds. Every call checks it, every answer updates it, and `backends::prober` probes it.
//!
//! Invariants:
//!
//! - The check of a call loads one atomic.
//! - A closed breaker opens only by failures, an operator, or the verdict of another replica after
//!   a failed probe. An open one closes only by a successful probe or an operator.
//! - If several threads report failures, one of them opens it.

use std::{
    sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

/// Slots of the window, which slides by one slot.
const SLOTS: usize = 10;
/// `retryAfterMs` for a call during a probe.
const PROBE_TAKES: Duration = Duration::from_millis(100);

/// Conditions for opening and probing.
#[derive(Debug, Clone, PartialEq)]
pub struct BreakerSettings {
    pub enabled: bool,
    /// Consecutive failures that open the breaker.
    pub failures: u32,
    /// Ratio of failures in the window that opens the breaker, if the window has at least
    /// `requests` outcomes.
    pub error_ratio: f64,
    pub requests: u32,
    pub window: Duration,
    /// Longest wait for the first probe.
    pub probe_after: Duration,
    /// Longest wait between two probes.
    pub probe_max: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CircuitState {
    Closed,
    /// A probe is in progress.
    HalfOpen,
    Open,
}

impl CircuitState {
    pub const ALL: [Self; 3] = [Self::Closed, Self::HalfOpen, Self::Open];

    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half_open",
            Self::Open => "open",
        }
    }
}

/// Reason for which the breaker is not closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenReason {
    /// Too many consecutive failures.
    Failures,
    /// Too many of the latest calls failed.
    Ratio,
    /// An operator opened it.
    Operator,
    /// Another replica found that the backend fails, and a probe of this replica failed too.
    Verdict,
}

impl OpenReason {
    pub fn name(self) -> &'static str {
        match self {
            Self::Failures => "failures_in_a_row",
            Self::Ratio => "error_ratio",
            Self::Operator => "operator",
            Self::Verdict => "other_replica",
        }
    }
}

/// The refusal of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CircuitOpen {
    pub reason: OpenReason,
    /// Time until the next probe. `None` if an operator holds the breaker open.
    pub retry_after: Option<Duration>,
}

#[derive(Debug)]
pub struct Breaker {
    settings: BreakerSettings,
    /// State, operator hold, and time of the next probe. Zero means closed.
    packed_state: AtomicU64,
    /// Consecutive failures.
    streak: AtomicU32,
    /// Outcomes in the window, by slot.
    slots: [AtomicU64; SLOTS],
    /// Consecutive openings and failed probes.
    attempts: AtomicU32,
    closed_at_ms: AtomicU64,
    /// Time of the last answer of the backend.
    last_success_ms: AtomicU64,
    reason: AtomicU8,
}

const CLOSED: u64 = 0;
const HALF_OPEN: u64 = 1;
const OPEN: u64 = 2;
const HELD: u64 = 4;
const STATE_BITS: u64 = 3;
/// Stored reasons other than consecutive failures.
const RATIO: u8 = 1;
const VERDICT: u8 = 2;
const TIME_SHIFT: u32 = 3;

/// One slot of the window, unpacked: its turn, answers and failures.
#[derive(Clone, Copy)]
struct WindowSlot {
    turn: u64,
    answers: u64,
    failures: u64,
}

const SLOT_COUNT_MAX: u64 = (1 << 20) - 1;

impl WindowSlot {
    fn unpack(packed: u64) -> Self {
        Self {
            turn: packed >> 40,
            answers: (packed >> 20) & SLOT_COUNT_MAX,
            failures: packed & SLOT_COUNT_MAX,
        }
    }

    fn pack(self) -> u64 {
        (self.turn << 40)
            | (self.answers.min(SLOT_COUNT_MAX) << 20)
            | self.failures.min(SLOT_COUNT_MAX)
    }
}

impl Breaker {
    pub fn new(settings: BreakerSettings) -> Self {
        Self {
            settings,
            packed_state: AtomicU64::new(CLOSED),
            streak: AtomicU32::new(0),
            slots: Default::default(),
            attempts: AtomicU32::new(0),
            closed_at_ms: AtomicU64::new(0),
            last_success_ms: AtomicU64::new(0),
            reason: AtomicU8::new(0),
        }
    }

    /// Returns an error if a call must not be sent. `now` must always count from the same origin.
    pub fn admits(&self, now: impl FnOnce() -> Duration) -> Result<(), CircuitOpen> {
        match self.packed_state.load(Ordering::Relaxed) {
            CLOSED => Ok(()),
            packed => Err(self.rejection(packed, now())),
        }
    }

    fn rejection(&self, packed: u64, now: Duration) -> CircuitOpen {
        if packed & HELD != 0 {
            return CircuitOpen { reason: OpenReason::Operator, retry_after: None };
        }
        let reason = match self.reason.load(Ordering::Relaxed) {
            RATIO => OpenReason::Ratio,
            VERDICT => OpenReason::Verdict,
            _ => OpenReason::Failures,
        };
        let remaining = Duration::from_millis(packed >> TIME_SHIFT).saturating_sub(now);
        CircuitOpen { reason, retry_after: Some(remaining.max(PROBE_TAKES)) }
    }

    pub fn state(&self) -> CircuitState {
        match self.packed_state.load(Ordering::Relaxed) & STATE_BITS {
            CLOSED => CircuitState::Closed,
            HALF_OPEN => CircuitState::HalfOpen,
            _ => CircuitState::Open,
        }
    }

    /// Returns the reason for which it is not closed, and the time until the next probe.
    pub fn open_details(&self, now: Duration) -> Option<CircuitOpen> {
        self.admits(|| now).err()
    }

    /// Returns the number of consecutive failures.
    pub fn consecutive_failures(&self) -> u32 {
        self.streak.load(Ordering::Relaxed)
    }

    /// Returns the time of the backend's last answer.
    pub fn last_success(&self) -> Duration {
        Duration::from_millis(self.last_success_ms.load(Ordering::Relaxed))
    }

    /// Returns whether failures can open it.
    pub fn is_enabled(&self) -> bool {
        self.settings.enabled
    }

    /// Counts an answer of the backend, whatever it contains.
    pub fn record_success(&self, now: Duration) {
        self.last_success_ms.store(ms(now), Ordering::Relaxed);
        if self.streak.load(Ordering::Relaxed) != 0 {
            self.streak.store(0, Ordering::Relaxed);
        }
        if self.settings.enabled {
            self.count(now, 0);
        }
    }

    /// Counts a call that began at `began` without an answer, or with one that is not MCP. `chance`
    /// is from 0 to 1. Returns true if that opened the breaker.
    pub fn record_failure(&self, now: Duration, began: Duration, chance: f64) -> bool {
        let began = ms(began);
        // A call from before a successful probe shows nothing about the backend now.
        if !self.settings.enabled || began < self.closed_at_ms.load(Ordering::Relaxed) {
            return false;
        }
        self.count(now, 1);
        // Slow calls that fail together do not count as consecutive if other calls got answers
        // meanwhile.
        let in_a_row = u32::from(began >= self.last_success_ms.load(Ordering::Relaxed));
        let streak = self.streak.fetch_add(in_a_row, Ordering::Relaxed).saturating_add(in_a_row);
        if self.packed_state.load(Ordering::Acquire) != CLOSED {
            return false; // of a call that began before
        }
        // A probe may have succeeded since the check above. It stored its time before it closed the
        // breaker.
        if began < self.closed_at_ms.load(Ordering::Relaxed) {
            let without = |streak: u32| Some(streak.saturating_sub(in_a_row));
            let _ = self.streak.fetch_update(Ordering::Relaxed, Ordering::Relaxed, without);
            return false;
        }
        let reason = match () {
            () if streak >= self.settings.failures => OpenReason::Failures,
            () if self.ratio_is_reached(now) => OpenReason::Ratio,
            () => return false,
        };
        self.open(now, u8::from(reason == OpenReason::Ratio), chance)
    }

    /// Opens a closed breaker because of another replica's verdict that a failed probe confirmed.
    /// Returns true if that opened it.
    pub fn open_by_verdict(&self, now: Duration, chance: f64) -> bool {
        self.settings.enabled && self.open(now, VERDICT, chance)
    }

    fn open(&self, now: Duration, reason: u8, chance: f64) -> bool {
        let closed_at = Duration::from_millis(self.closed_at_ms.load(Ordering::Relaxed));
        let is_closed = self.packed_state.load(Ordering::Relaxed) == CLOSED;
        if is_closed && now.saturating_sub(closed_at) >= self.settings.window {
            self.attempts.store(0, Ordering::Relaxed);
        }
        let wait = self.next_wait(chance);
        let opened = self
            .packed_state
            .compare_exchange(CLOSED, open_until(now + wait), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if opened {
            self.reason.store(reason, Ordering::Relaxed);
            self.attempts.fetch_add(1, Ordering::Relaxed);
        }
        opened
    }

    /// Returns the wait for the next probe. It doubles with each attempt up to the maximum. Jitter
    /// only shortens it, so that the first probe is in time.
    fn next_wait(&self, chance: f64) -> Duration {
        let doublings = self.attempts.load(Ordering::Relaxed).min(16);
        let ceiling = self
            .settings
            .probe_after
            .saturating_mul(1 << doublings)
            .min(self.settings.probe_max.max(self.settings.probe_after));
        ceiling.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0)
    }

    /// Returns the time of the next probe. `None`: no probe is due.
    pub fn probe_at(&self) -> Option<Duration> {
        let packed = self.packed_state.load(Ordering::Relaxed);
        (packed & STATE_BITS == OPEN && packed & HELD == 0)
            .then(|| Duration::from_millis(packed >> TIME_SHIFT))
    }

    /// Makes the next probe due now. Returns false if no probe is due or one is in progress.
    pub fn probe_now(&self, now: Duration) -> bool {
        let packed = self.packed_state.load(Ordering::Relaxed);
        self.probe_at().is_some()
            && self
                .packed_state
                .compare_exchange(packed, open_until(now), Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// Begins a probe, if one is due. After `true`, the caller must report its outcome to
    /// [`Breaker::finish_probe`].
    pub fn start_probe(&self, now: Duration) -> bool {
        let packed = self.packed_state.load(Ordering::Relaxed);
        let due = self.probe_at().is_some_and(|at| at <= now);
        due && self
            .packed_state
            .compare_exchange(
                packed,
                packed & !STATE_BITS | HALF_OPEN,
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// Reports the outcome of a probe. Returns `None` if an operator has changed the state
    /// meanwhile.
    pub fn finish_probe(&self, well: bool, now: Duration, chance: f64) -> Option<CircuitState> {
        let packed = self.packed_state.load(Ordering::Relaxed);
        if packed & STATE_BITS != HALF_OPEN {
            return None;
        }
        let (next, state) = if well {
            (CLOSED, CircuitState::Closed)
        } else {
            (open_until(now + self.next_wait(chance)), CircuitState::Open)
        };
        if well {
            self.forget(now);
        } else {
            self.attempts.fetch_add(1, Ordering::Relaxed);
        }
        self.packed_state
            .compare_exchange(packed, next, Ordering::AcqRel, Ordering::Relaxed)
            .ok()
            .map(|_| state)
    }

    /// Opens the breaker for an operator, until an operator closes it. Returns true if it was not
    /// open before.
    pub fn hold_open(&self) -> bool {
        self.packed_state.swap(OPEN | HELD, Ordering::AcqRel) & STATE_BITS != OPEN
    }

    /// Closes the breaker for an operator. Its rules apply again. Returns true if it was not closed
    /// before.
    pub fn close(&self, now: Duration) -> bool {
        self.forget(now);
        self.attempts.store(0, Ordering::Relaxed);
        self.packed_state.swap(CLOSED, Ordering::AcqRel) != CLOSED
    }

    /// Clears the failures that opened the breaker. The number of openings stays for a window, so
    /// that the waits for a backend that is well only for probes keep growing.
    fn forget(&self, now: Duration) {
        self.streak.store(0, Ordering::Relaxed);
        self.slots.iter().for_each(|slot| slot.store(0, Ordering::Relaxed));
        self.closed_at_ms.store(ms(now), Ordering::Relaxed);
    }

    fn turn(&self, now: Duration) -> u64 {
        // Starts at one, so that an empty slot matches no turn. The slot keeps 24 bits of it.
        let part = (ms(self.settings.window) / SLOTS as u64).max(1);
        (ms(now) / part + 1) & ((1 << 24) - 1)
    }

    fn count(&self, now: Duration, failures: u64) {
        let turn = self.turn(now);
        let slot = &self.slots[(turn % SLOTS as u64) as usize];
        let counted = |packed: u64| {
            let slot = WindowSlot::unpack(packed);
            let slot =
                if slot.turn == turn { slot } else { WindowSlot { turn, answers: 0, failures: 0 } };
            Some(
                WindowSlot { turn, answers: slot.answers + 1, failures: slot.failures + failures }
                    .pack(),
            )
        };
        let _always_some = slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted);
    }

    fn ratio_is_reached(&self, now: Duration) -> bool {
        let turn = self.turn(now);
        let of_window =
            self.slots.iter().map(|slot| WindowSlot::unpack(slot.load(Ordering::Relaxed)));
        let of_window =
            of_window.filter(|slot| slot.turn <= turn && turn - slot.turn < SLOTS as u64);
        let (answers, failures) = of_window.fold((0, 0), |(answers, failures), slot| {
            (answers + slot.answers, failures + slot.failures)
        });
        answers >= u64::from(self.settings.requests)
            && failures as f64 >= self.settings.error_ratio * answers as f64
    }
}

fn open_until(at: Duration) -> u64 {
    (ms(at) << TIME_SHIFT) | OPEN
}

fn ms(time: Duration) -> u64 {
    // The upper bits have another use. No process runs that long.
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX) & (u64::MAX >> TIME_SHIFT)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn settings() -> BreakerSettings {
        BreakerSettings {
            enabled: true,
            failures: 5,
            error_ratio: 0.5,
            requests: 20,
            window: Duration::from_secs(10),
            probe_after: Duration::from_secs(1),
            probe_max: Duration::from_secs(3),
        }
    }

    fn at(ms: u64) -> Duration {
        Duration::from_millis(100_000 + ms)
    }

    fn opened(chance: f64) -> Breaker {
        let breaker = Breaker::new(settings());
        assert_eq!((0..5).filter(|_| breaker.record_failure(at(0), at(0), chance)).count(), 1);
        breaker
    }

    #[test]
    fn failures_that_began_before_the_last_success_are_not_in_a_row() {
        let breaker = Breaker::new(settings());
        breaker.record_success(at(1_000));
        (0..10).for_each(|_| assert!(!breaker.record_failure(at(2_000), at(500), 0.5)));
        assert_eq!(breaker.consecutive_failures(), 0);
    }

    #[test]
    fn calls_from_before_a_good_probe_do_not_open_the_breaker_again() {
        let breaker = Breaker::new(settings());
        assert_eq!((0..5).filter(|_| breaker.record_failure(at(0), at(0), 1.0)).count(), 1);
        assert!(breaker.start_probe(at(5_000)));
        breaker.finish_probe(true, at(5_000), 0.5);
        assert_eq!(breaker.state(), CircuitState::Closed);
        (0..30).for_each(|_| assert!(!breaker.record_failure(at(6_000), at(4_000), 0.5)));
        assert_eq!(breaker.state(), CircuitState::Closed);
    }

    #[test]
    fn five_failures_in_a_row_open_the_breaker_unless_one_call_succeeds() {
        let breaker = Breaker::new(settings());
        for _ in 0..4 {
            (0..4).for_each(|_| assert!(!breaker.record_failure(at(0), at(0), 0.5)));
            breaker.record_success(at(0));
            assert_eq!(breaker.consecutive_failures(), 0);
        }
        assert_eq!(
            breaker.state(),
            CircuitState::Closed,
            "16 of 20 may fail before there are 20, and this is below 5 in a row"
        );
    }

    #[test]
    fn failures_of_half_of_twenty_calls_open_the_breaker() {
        let breaker = Breaker::new(settings());
        for n in 0..19 {
            if n % 2 == 0 {
                assert!(!breaker.record_failure(at(n * 100), at(n * 100), 0.5))
            } else {
                breaker.record_success(at(n * 100))
            }
        }
        assert!(breaker.record_failure(at(2_000), at(2_000), 0.5), "11 of 20");
        assert_eq!(breaker.open_details(at(2_000)).unwrap().reason, OpenReason::Ratio);
    }

    #[test]
    fn outcomes_older_than_the_window_are_not_counted() {
        let breaker = Breaker::new(settings());
        for n in 0..19 {
            if n % 2 == 0 {
                assert!(!breaker.record_failure(at(n), at(n), 0.5))
            } else {
                breaker.record_success(at(n))
            }
        }
        assert!(!breaker.record_failure(at(11_000), at(11_000), 0.5));
        (0..18).for_each(|_| breaker.record_success(at(11_000)));
        assert!(!breaker.record_failure(at(11_000), at(11_000), 0.5), "2 of 20");
    }

    #[test]
    fn a_refusal_contains_the_time_of_the_next_probe_within_a_second() {
        for chance in [0.0, 0.5, 1.0] {
            let breaker = opened(chance);
            let after = breaker.open_details(at(0)).unwrap().retry_after.unwrap();
            assert!(
                after >= Duration::from_millis(500) && after <= Duration::from_secs(1),
                "{after:?}"
            );
            assert!(!breaker.start_probe(at(499)));
            assert!(
                breaker.start_probe(at(1_000)) && !breaker.start_probe(at(1_000)),
                "one probes"
            );
            assert_eq!(breaker.state(), CircuitState::HalfOpen);
            assert_eq!(
                breaker.open_details(at(1_000)).unwrap().retry_after,
                Some(PROBE_TAKES),
                "calls still wait for the probe"
            );
        }
    }

    #[test]
    fn a_verdict_opens_only_a_closed_breaker_and_a_local_probe_closes_it() {
        let breaker = Breaker::new(settings());
        assert!(breaker.open_by_verdict(at(0), 1.0) && !breaker.open_by_verdict(at(0), 1.0));
        assert_eq!(breaker.open_details(at(0)).unwrap().reason, OpenReason::Verdict);
        assert!(breaker.start_probe(at(1_000)));
        assert_eq!(breaker.finish_probe(true, at(1_000), 1.0), Some(CircuitState::Closed));
        breaker.hold_open();
        assert!(!breaker.open_by_verdict(at(2_000), 1.0));
        assert_eq!(breaker.open_details(at(2_000)).unwrap().reason, OpenReason::Operator);
        let off = Breaker::new(BreakerSettings { enabled: false, ..settings() });
        assert!(!off.open_by_verdict(at(0), 1.0));
    }

    #[test]
    fn a_verdict_long_after_an_outage_waits_for_the_first_probe_only() {
        let breaker = Breaker::new(settings());
        assert!(breaker.open_by_verdict(at(0), 1.0));
        for _ in 0..3 {
            let now = breaker.probe_at().unwrap();
            assert!(breaker.start_probe(now));
            breaker.finish_probe(false, now, 1.0);
        }
        let closed = breaker.probe_at().unwrap();
        assert!(breaker.start_probe(closed));
        breaker.finish_probe(true, closed, 1.0);
        let later = closed + settings().window;
        assert!(breaker.open_by_verdict(later, 1.0));
        assert_eq!(breaker.probe_at(), Some(later + settings().probe_after));
    }

    #[test]
    fn the_result_of_a_probe_closes_or_reopens_the_breaker() {
        let breaker = opened(1.0);
        assert!(breaker.start_probe(at(1_000)));
        assert_eq!(breaker.finish_probe(false, at(1_000), 1.0), Some(CircuitState::Open));
        assert!(
            !breaker.start_probe(at(2_999)) && breaker.start_probe(at(3_000)),
            "it waits twice as long"
        );
        assert_eq!(breaker.finish_probe(true, at(3_000), 1.0), Some(CircuitState::Closed));
        assert_eq!((breaker.admits(|| at(3_000)), breaker.consecutive_failures()), (Ok(()), 0));
        assert_eq!(breaker.finish_probe(true, at(3_000), 1.0), None, "nothing is being probed");
    }

    #[test]
    fn the_wait_between_probes_has_a_maximum() {
        let breaker = opened(1.0);
        let mut now = at(1_000);
        for _ in 0..40 {
            now = breaker.probe_at().unwrap();
            assert!(breaker.start_probe(now));
            breaker.finish_probe(false, now, 1.0);
            assert!(breaker.probe_at().unwrap() - now <= Duration::from_secs(3));
        }
        assert!(breaker.start_probe(now + Duration::from_secs(3)));
    }

    #[test]
    fn a_backend_that_succeeds_only_at_probes_is_probed_less_often() {
        let breaker = opened(1.0);
        assert!(
            breaker.start_probe(at(1_000)) && breaker.finish_probe(true, at(1_000), 1.0).is_some()
        );
        assert_eq!((0..5).filter(|_| breaker.record_failure(at(1_100), at(1_100), 1.0)).count(), 1);
        assert_eq!(breaker.probe_at(), Some(at(3_100)));
        assert!(
            breaker.start_probe(at(3_100)) && breaker.finish_probe(true, at(3_100), 1.0).is_some()
        );
        let later = at(3_100) + Duration::from_secs(10);
        assert_eq!((0..5).filter(|_| breaker.record_failure(later, later, 1.0)).count(), 1);
        assert_eq!(
            breaker.probe_at(),
            Some(later + Duration::from_secs(1)),
            "forgiven after a window"
        );
    }

    #[test]
    fn an_operator_holds_the_breaker_open_and_closes_it() {
        let breaker = Breaker::new(settings());
        assert!(breaker.hold_open() && !breaker.hold_open());
        assert_eq!(
            breaker.open_details(at(0)),
            Some(CircuitOpen { reason: OpenReason::Operator, retry_after: None })
        );
        assert!(breaker.probe_at().is_none() && !breaker.start_probe(at(999_999)));
        breaker.record_success(at(0));
        assert_eq!(breaker.state(), CircuitState::Open);
        assert!(breaker.close(at(0)) && !breaker.close(at(0)));
        assert_eq!(breaker.state(), CircuitState::Closed);
        let failing = opened(1.0);
        assert!(failing.start_probe(at(1_000)) && failing.hold_open());
        assert_eq!(
            (failing.finish_probe(true, at(1_000), 1.0), failing.state()),
            (None, CircuitState::Open),
            "the operator's word holds"
        );
    }

    #[test]
    fn an_operator_can_start_a_probe_at_once() {
        let breaker = opened(1.0);
        assert!(
            breaker.probe_now(at(10)) && breaker.start_probe(at(10)) && !breaker.probe_now(at(10))
        );
        assert_eq!(breaker.finish_probe(true, at(20), 1.0), Some(CircuitState::Closed));
        assert!(!breaker.probe_now(at(30)));
    }

    #[test]
    fn a_disabled_breaker_never_opens() {
        let breaker = Breaker::new(BreakerSettings { enabled: false, ..settings() });
        (0..1_000).for_each(|_| assert!(!breaker.record_failure(at(0), at(0), 0.5)));
        assert_eq!(breaker.state(), CircuitState::Closed);
    }

    #[test]
    fn only_one_of_many_threads_opens_the_breaker() {
        let breaker = Breaker::new(settings());
        let opened: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        (0..1_000).filter(|_| breaker.record_failure(at(0), at(0), 0.5)).count()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(opened, 1);
    }

    #[derive(Debug, Clone)]
    enum Event {
        Succeeded,
        Failed,
        Probe(bool),
    }

    proptest! {
        /// Compared with a plain list of outcomes.
        #[test]
        fn the_breaker_equals_a_model_over_a_list_of_outcomes(
            events in prop::collection::vec((prop_oneof![
                3 => Just(Event::Succeeded), 3 => Just(Event::Failed), 1 => any::<bool>().prop_map(Event::Probe)
            ], 0_u64..400), 1..300)
        ) {
            let breaker = Breaker::new(settings());
            let mut history: Vec<(u64, bool)> = Vec::new();
            let (mut now, mut streak) = (0, 0);
            for (event, later) in events {
                now += later;
                match event {
                    Event::Succeeded => {
                        breaker.record_success(at(now));
                        history.push((now, false));
                        streak = 0;
                    }
                    Event::Failed => {
                        let was = breaker.state();
                        let opened = breaker.record_failure(at(now), at(now), 0.5);
                        history.push((now, true));
                        streak += 1;
                        // The window slides by a tenth of its length.
                        let turn = |ms: u64| (100_000 + ms) / 1_000;
                        let recent: Vec<_> = history.iter().filter(|(at, _)| turn(now) - turn(*at) < 10).collect();
                        let bad = recent.iter().filter(|(_, failed)| *failed).count();
                        let expected = was == CircuitState::Closed && (streak >= 5 || (recent.len() >= 20 && bad * 2 >= recent.len()));
                        prop_assert_eq!(opened, expected);
                    }
                    Event::Probe(well) => {
                        if breaker.start_probe(at(now)) {
                            let state = breaker.finish_probe(well, at(now), 0.5);
                            prop_assert_eq!(state, Some(if well { CircuitState::Closed } else { CircuitState::Open }));
                            if well {
                                history.clear();
                                streak = 0;
                            }
                        }
                    }
                }
                prop_assert_eq!(breaker.admits(|| at(now)).is_ok(), breaker.state() == CircuitState::Closed);
            }
        }
    }
}
