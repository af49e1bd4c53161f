//! A backend's circuit breaker: calls to a backend that fails again and again are refused at once, until a probe finds it
//! well. Asked by every call, told by every answer, probed by the actor that owns the catalog's link.
//!
//! Invariants: whether a call may go is one load of one atomic; a closed breaker opens by failures alone, an open one
//! closes by a successful probe or an operator alone; of several threads that see it fail one opens it.

use std::{
    sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

/// Parts the window is counted in: it slides by one of them.
const SLOTS: usize = 10;
/// Whoever comes while a probe is under way is told to come back after this.
const PROBE_TAKES: Duration = Duration::from_millis(100);

/// When it opens, and how it finds out that all is well again.
#[derive(Debug, Clone, PartialEq)]
pub struct BreakerSettings {
    pub enabled: bool,
    /// Failures in a row.
    pub failures: u32,
    /// Share of failures in the window, where there are `requests` of any outcome.
    pub error_ratio: f64,
    pub requests: u32,
    pub window: Duration,
    /// Wait for the first probe, at most.
    pub probe_after: Duration,
    /// Longest wait between two probes.
    pub probe_max: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CircuitState {
    Closed,
    /// A probe is under way.
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

/// Why it is not closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenReason {
    /// Too many failures in a row.
    Failures,
    /// Too many of the latest calls failed.
    Ratio,
    /// An operator wants it so.
    Operator,
}

impl OpenReason {
    pub fn name(self) -> &'static str {
        match self {
            Self::Failures => "failures_in_a_row",
            Self::Ratio => "error_ratio",
            Self::Operator => "operator",
        }
    }
}

/// A call may not go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CircuitOpen {
    pub reason: OpenReason,
    /// Until the next probe. None where an operator holds it open.
    pub retry_after: Option<Duration>,
}

#[derive(Debug)]
pub struct Breaker {
    settings: BreakerSettings,
    /// State, whether an operator holds it, and the time of the next probe. Zero is closed.
    word: AtomicU64,
    /// Failures in a row.
    streak: AtomicU32,
    /// Answers of the window.
    slots: [AtomicU64; SLOTS],
    /// Openings and failed probes, one after the other.
    attempts: AtomicU32,
    closed_at_ms: AtomicU64,
    /// When the backend last answered.
    last_success_ms: AtomicU64,
    reason: AtomicU8,
}

const CLOSED: u64 = 0;
const HALF_OPEN: u64 = 1;
const OPEN: u64 = 2;
const HELD: u64 = 4;
const STATE_BITS: u64 = 3;
const TIME_SHIFT: u32 = 3;

/// One part of the window, packed: which one, answers, failures.
#[derive(Clone, Copy)]
struct WindowSlot {
    turn: u64,
    answers: u64,
    failures: u64,
}

const SLOT_COUNT_MAX: u64 = (1 << 20) - 1;

impl WindowSlot {
    fn unpack(word: u64) -> Self {
        Self {
            turn: word >> 40,
            answers: (word >> 20) & SLOT_COUNT_MAX,
            failures: word & SLOT_COUNT_MAX,
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
            word: AtomicU64::new(CLOSED),
            streak: AtomicU32::new(0),
            slots: Default::default(),
            attempts: AtomicU32::new(0),
            closed_at_ms: AtomicU64::new(0),
            last_success_ms: AtomicU64::new(0),
            reason: AtomicU8::new(0),
        }
    }

    /// May a call go? `now` counts from the same origin at every question.
    pub fn admits(&self, now: impl FnOnce() -> Duration) -> Result<(), CircuitOpen> {
        match self.word.load(Ordering::Relaxed) {
            CLOSED => Ok(()),
            word => Err(self.rest(word, now())),
        }
    }

    fn rest(&self, word: u64, now: Duration) -> CircuitOpen {
        if word & HELD != 0 {
            return CircuitOpen { reason: OpenReason::Operator, retry_after: None };
        }
        let reason = if self.reason.load(Ordering::Relaxed) == 0 {
            OpenReason::Failures
        } else {
            OpenReason::Ratio
        };
        let left = Duration::from_millis(word >> TIME_SHIFT).saturating_sub(now);
        CircuitOpen { reason, retry_after: Some(left.max(PROBE_TAKES)) }
    }

    pub fn state(&self) -> CircuitState {
        match self.word.load(Ordering::Relaxed) & STATE_BITS {
            CLOSED => CircuitState::Closed,
            HALF_OPEN => CircuitState::HalfOpen,
            _ => CircuitState::Open,
        }
    }

    /// Why it is not closed, and how long until it is probed.
    pub fn resting(&self, now: Duration) -> Option<CircuitOpen> {
        self.admits(|| now).err()
    }

    /// Failures in a row so far.
    pub fn streak(&self) -> u32 {
        self.streak.load(Ordering::Relaxed)
    }

    /// When the backend last answered.
    pub fn last_success(&self) -> Duration {
        Duration::from_millis(self.last_success_ms.load(Ordering::Relaxed))
    }

    /// Whether it may open by itself.
    pub fn is_enabled(&self) -> bool {
        self.settings.enabled
    }

    /// The backend answered, whatever it said.
    pub fn succeeded(&self, now: Duration) {
        self.last_success_ms.store(ms(now), Ordering::Relaxed);
        if self.streak.load(Ordering::Relaxed) != 0 {
            self.streak.store(0, Ordering::Relaxed);
        }
        if self.settings.enabled {
            self.count(now, 0);
        }
    }

    /// The backend gave a call that began at `began` no answer, or none that is MCP. `chance` is from 0 to 1. True: that opened
    /// the breaker.
    pub fn failed(&self, now: Duration, began: Duration, chance: f64) -> bool {
        let began = ms(began);
        // Of a call from before a probe found the backend well nothing is learnt.
        if !self.settings.enabled || began < self.closed_at_ms.load(Ordering::Relaxed) {
            return false;
        }
        self.count(now, 1);
        // Calls that were slow together are no row of failures where others were answered meanwhile.
        let in_a_row = u32::from(began >= self.last_success_ms.load(Ordering::Relaxed));
        let streak = self.streak.fetch_add(in_a_row, Ordering::Relaxed).saturating_add(in_a_row);
        if self.word.load(Ordering::Relaxed) != CLOSED {
            return false; // of a call that began before
        }
        let reason = match () {
            () if streak >= self.settings.failures => OpenReason::Failures,
            () if self.ratio_is_reached(now) => OpenReason::Ratio,
            () => return false,
        };
        let closed_for =
            now.saturating_sub(Duration::from_millis(self.closed_at_ms.load(Ordering::Relaxed)));
        if closed_for >= self.settings.window {
            self.attempts.store(0, Ordering::Relaxed);
        }
        let wait = self.next_wait(chance);
        let opened = self
            .word
            .compare_exchange(CLOSED, open_until(now + wait), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if opened {
            self.reason.store(u8::from(reason == OpenReason::Ratio), Ordering::Relaxed);
            self.attempts.fetch_add(1, Ordering::Relaxed);
        }
        opened
    }

    /// Doubles with every attempt up to the longest; jittered downwards, so that the first comes in time.
    fn next_wait(&self, chance: f64) -> Duration {
        let doublings = self.attempts.load(Ordering::Relaxed).min(16);
        let ceiling = self
            .settings
            .probe_after
            .saturating_mul(1 << doublings)
            .min(self.settings.probe_max.max(self.settings.probe_after));
        ceiling.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0)
    }

    /// When the next probe is due. None: there is nothing to probe.
    pub fn probe_at(&self) -> Option<Duration> {
        let word = self.word.load(Ordering::Relaxed);
        (word & STATE_BITS == OPEN && word & HELD == 0)
            .then(|| Duration::from_millis(word >> TIME_SHIFT))
    }

    /// Makes the next probe due now. False: there is nothing to probe, or it is being probed.
    pub fn probe_now(&self, now: Duration) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        self.probe_at().is_some()
            && self
                .word
                .compare_exchange(word, open_until(now), Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// Begins a probe, if one is due. Whoever gets `true` says what came of it.
    pub fn begin_probe(&self, now: Duration) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        let due = self.probe_at().is_some_and(|at| at <= now);
        due && self
            .word
            .compare_exchange(
                word,
                word & !STATE_BITS | HALF_OPEN,
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// What came of a probe. None: an operator has decided meanwhile.
    pub fn probed(&self, well: bool, now: Duration, chance: f64) -> Option<CircuitState> {
        let word = self.word.load(Ordering::Relaxed);
        if word & STATE_BITS != HALF_OPEN {
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
        self.word
            .compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed)
            .ok()
            .map(|_| state)
    }

    /// An operator opens it; it stays so until one closes it. True: it was not open before.
    pub fn hold_open(&self) -> bool {
        self.word.swap(OPEN | HELD, Ordering::AcqRel) & STATE_BITS != OPEN
    }

    /// An operator closes it; from there on it goes by the rules. True: it was not closed before.
    pub fn close(&self, now: Duration) -> bool {
        self.forget(now);
        self.attempts.store(0, Ordering::Relaxed);
        self.word.swap(CLOSED, Ordering::AcqRel) != CLOSED
    }

    /// What led to the opening counts no more. How often it opened does, for a window: a backend that is only well when
    /// probed is left alone for longer and longer.
    fn forget(&self, now: Duration) {
        self.streak.store(0, Ordering::Relaxed);
        self.slots.iter().for_each(|slot| slot.store(0, Ordering::Relaxed));
        self.closed_at_ms.store(ms(now), Ordering::Relaxed);
    }

    fn turn(&self, now: Duration) -> u64 {
        // From one on, so that an empty slot is of no turn; 24 bits of it are kept.
        let part = (ms(self.settings.window) / SLOTS as u64).max(1);
        (ms(now) / part + 1) & ((1 << 24) - 1)
    }

    fn count(&self, now: Duration, failures: u64) {
        let turn = self.turn(now);
        let slot = &self.slots[(turn % SLOTS as u64) as usize];
        let counted = |word: u64| {
            let slot = WindowSlot::unpack(word);
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
    // The bits above are used otherwise; no process lives that long.
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
        assert_eq!((0..5).filter(|_| breaker.failed(at(0), at(0), chance)).count(), 1);
        breaker
    }

    #[test]
    fn calls_that_were_slow_together_are_no_row_where_others_were_answered_meanwhile() {
        let breaker = Breaker::new(settings());
        breaker.succeeded(at(1_000));
        (0..10).for_each(|_| assert!(!breaker.failed(at(2_000), at(500), 0.5)));
        assert_eq!(breaker.streak(), 0);
    }

    #[test]
    fn calls_from_before_a_good_probe_do_not_open_it_again() {
        let breaker = Breaker::new(settings());
        assert_eq!((0..5).filter(|_| breaker.failed(at(0), at(0), 1.0)).count(), 1);
        assert!(breaker.begin_probe(at(5_000)));
        breaker.probed(true, at(5_000), 0.5);
        assert_eq!(breaker.state(), CircuitState::Closed);
        (0..30).for_each(|_| assert!(!breaker.failed(at(6_000), at(4_000), 0.5)));
        assert_eq!(breaker.state(), CircuitState::Closed);
    }

    #[test]
    fn five_failures_in_a_row_open_it_and_an_answer_between_them_does_not() {
        let breaker = Breaker::new(settings());
        for _ in 0..4 {
            (0..4).for_each(|_| assert!(!breaker.failed(at(0), at(0), 0.5)));
            breaker.succeeded(at(0));
            assert_eq!(breaker.streak(), 0);
        }
        assert_eq!(
            breaker.state(),
            CircuitState::Closed,
            "16 of 20 may fail before there are 20, and this is below 5 in a row"
        );
    }

    #[test]
    fn half_of_twenty_within_the_window_open_it() {
        let breaker = Breaker::new(settings());
        for n in 0..19 {
            if n % 2 == 0 {
                assert!(!breaker.failed(at(n * 100), at(n * 100), 0.5))
            } else {
                breaker.succeeded(at(n * 100))
            }
        }
        assert!(breaker.failed(at(2_000), at(2_000), 0.5), "11 of 20");
        assert_eq!(breaker.resting(at(2_000)).unwrap().reason, OpenReason::Ratio);
    }

    #[test]
    fn what_is_older_than_the_window_does_not_count() {
        let breaker = Breaker::new(settings());
        for n in 0..19 {
            if n % 2 == 0 {
                assert!(!breaker.failed(at(n), at(n), 0.5))
            } else {
                breaker.succeeded(at(n))
            }
        }
        assert!(!breaker.failed(at(11_000), at(11_000), 0.5));
        (0..18).for_each(|_| breaker.succeeded(at(11_000)));
        assert!(!breaker.failed(at(11_000), at(11_000), 0.5), "2 of 20");
    }

    #[test]
    fn a_refusal_says_when_the_next_probe_is_and_that_is_within_a_second() {
        for chance in [0.0, 0.5, 1.0] {
            let breaker = opened(chance);
            let after = breaker.resting(at(0)).unwrap().retry_after.unwrap();
            assert!(
                after >= Duration::from_millis(500) && after <= Duration::from_secs(1),
                "{after:?}"
            );
            assert!(!breaker.begin_probe(at(499)));
            assert!(
                breaker.begin_probe(at(1_000)) && !breaker.begin_probe(at(1_000)),
                "one probes"
            );
            assert_eq!(breaker.state(), CircuitState::HalfOpen);
            assert_eq!(
                breaker.resting(at(1_000)).unwrap().retry_after,
                Some(PROBE_TAKES),
                "calls still wait for the probe"
            );
        }
    }

    #[test]
    fn a_probe_decides() {
        let breaker = opened(1.0);
        assert!(breaker.begin_probe(at(1_000)));
        assert_eq!(breaker.probed(false, at(1_000), 1.0), Some(CircuitState::Open));
        assert!(
            !breaker.begin_probe(at(2_999)) && breaker.begin_probe(at(3_000)),
            "it waits twice as long"
        );
        assert_eq!(breaker.probed(true, at(3_000), 1.0), Some(CircuitState::Closed));
        assert_eq!((breaker.admits(|| at(3_000)), breaker.streak()), (Ok(()), 0));
        assert_eq!(breaker.probed(true, at(3_000), 1.0), None, "nothing is being probed");
    }

    #[test]
    fn the_waits_end_at_the_longest_so_that_recovery_is_soon() {
        let breaker = opened(1.0);
        let mut now = at(1_000);
        for _ in 0..40 {
            now = breaker.probe_at().unwrap();
            assert!(breaker.begin_probe(now));
            breaker.probed(false, now, 1.0);
            assert!(breaker.probe_at().unwrap() - now <= Duration::from_secs(3));
        }
        assert!(breaker.begin_probe(now + Duration::from_secs(3)));
    }

    #[test]
    fn one_that_is_well_only_when_probed_is_left_alone_for_longer() {
        let breaker = opened(1.0);
        assert!(breaker.begin_probe(at(1_000)) && breaker.probed(true, at(1_000), 1.0).is_some());
        assert_eq!((0..5).filter(|_| breaker.failed(at(1_100), at(1_100), 1.0)).count(), 1);
        assert_eq!(breaker.probe_at(), Some(at(3_100)));
        assert!(breaker.begin_probe(at(3_100)) && breaker.probed(true, at(3_100), 1.0).is_some());
        let later = at(3_100) + Duration::from_secs(10);
        assert_eq!((0..5).filter(|_| breaker.failed(later, later, 1.0)).count(), 1);
        assert_eq!(
            breaker.probe_at(),
            Some(later + Duration::from_secs(1)),
            "forgiven after a window"
        );
    }

    #[test]
    fn an_operator_holds_it_open_and_closes_it() {
        let breaker = Breaker::new(settings());
        assert!(breaker.hold_open() && !breaker.hold_open());
        assert_eq!(
            breaker.resting(at(0)),
            Some(CircuitOpen { reason: OpenReason::Operator, retry_after: None })
        );
        assert!(breaker.probe_at().is_none() && !breaker.begin_probe(at(999_999)));
        breaker.succeeded(at(0));
        assert_eq!(breaker.state(), CircuitState::Open);
        assert!(breaker.close(at(0)) && !breaker.close(at(0)));
        assert_eq!(breaker.state(), CircuitState::Closed);
        let failing = opened(1.0);
        assert!(failing.begin_probe(at(1_000)) && failing.hold_open());
        assert_eq!(
            (failing.probed(true, at(1_000), 1.0), failing.state()),
            (None, CircuitState::Open),
            "the operator's word holds"
        );
    }

    #[test]
    fn an_operator_need_not_wait_for_the_probe() {
        let breaker = opened(1.0);
        assert!(
            breaker.probe_now(at(10)) && breaker.begin_probe(at(10)) && !breaker.probe_now(at(10))
        );
        assert_eq!(breaker.probed(true, at(20), 1.0), Some(CircuitState::Closed));
        assert!(!breaker.probe_now(at(30)));
    }

    #[test]
    fn switched_off_it_never_opens() {
        let breaker = Breaker::new(BreakerSettings { enabled: false, ..settings() });
        (0..1_000).for_each(|_| assert!(!breaker.failed(at(0), at(0), 0.5)));
        assert_eq!(breaker.state(), CircuitState::Closed);
    }

    #[test]
    fn of_many_threads_one_opens_it() {
        let breaker = Breaker::new(settings());
        let opened: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| (0..1_000).filter(|_| breaker.failed(at(0), at(0), 0.5)).count())
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
        /// Held against a plain list of what happened.
        #[test]
        fn it_opens_when_a_list_of_outcomes_says_so(
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
                        breaker.succeeded(at(now));
                        history.push((now, false));
                        streak = 0;
                    }
                    Event::Failed => {
                        let was = breaker.state();
                        let opened = breaker.failed(at(now), at(now), 0.5);
                        history.push((now, true));
                        streak += 1;
                        // The window slides by a tenth of itself.
                        let turn = |ms: u64| (100_000 + ms) / 1_000;
                        let recent: Vec<_> = history.iter().filter(|(at, _)| turn(now) - turn(*at) < 10).collect();
                        let bad = recent.iter().filter(|(_, failed)| *failed).count();
                        let expected = was == CircuitState::Closed && (streak >= 5 || (recent.len() >= 20 && bad * 2 >= recent.len()));
                        prop_assert_eq!(opened, expected);
                    }
                    Event::Probe(well) => {
                        if breaker.begin_probe(at(now)) {
                            let state = breaker.probed(well, at(now), 0.5);
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
