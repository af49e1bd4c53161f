//! Adaptive concurrency limit of a backend, by its latency. The limit grows by one while the
//! backend answers as fast as ever. It shrinks when the backend slows down or fails (additive
//! increase, multiplicative decrease). Every answer updates it if it is enabled.
//!
//! Each kind of call, such as a tool, has its own best latency: a fast tool does not make a slow one
//! count as overloaded. A round counts each answer by its share of what is still good for its kind,
//! up to a bound. Otherwise the few slow calls of one caller would outweigh the calls of all others.
//!
//! Invariant: the limit stays between the minimum and the configured maximum.

use std::time::Duration;

use crate::{
    limits::concurrency::{
        CONCURRENCY_BACKS_OFF_TO, CONCURRENCY_KIND_IDLE, CONCURRENCY_KINDS_MAX, CONCURRENCY_MIN,
        CONCURRENCY_ROUND, CONCURRENCY_SAMPLE_ANSWERS, CONCURRENCY_SHARE_MAX, CONCURRENCY_SLACK,
        CONCURRENCY_TOLERANCE,
    },
    maps::FastMap,
};

/// The kind of all calls whose kinds have no place.
const OTHERS: u64 = 0;

/// The adaptive limit of one backend.
#[derive(Debug)]
pub struct AdaptiveLimit {
    limit: f64,
    max: usize,
    latencies: FastMap<u64, KindLatency>,
    round: SampleWindow,
}

/// Latency of one kind of calls, in seconds.
#[derive(Debug)]
struct KindLatency {
    /// Best mean latency of a sample. It rises slowly until a sample is faster.
    best: f64,
    /// Answers since the limit was last computed.
    round: LatencySum,
    /// Seconds of these answers, without the part of each one above its bound.
    bounded_seconds: f64,
    /// Answers since the last sample was full.
    sample: LatencySum,
    /// Time of the last answer.
    last_at: Duration,
}

#[derive(Debug, Default)]
struct LatencySum {
    answers: u32,
    seconds: f64,
}

/// What happened since the limit was last computed.
#[derive(Debug, Default)]
struct SampleWindow {
    since: Duration,
    answers: u32,
    failures: u32,
    in_flight_max: usize,
}

/// An answer of the backend.
#[derive(Debug, Clone, Copy)]
pub struct AnswerLatency {
    /// The kind of the call: equal for calls that take about the same time.
    pub kind: u64,
    pub took: Duration,
}

impl AdaptiveLimit {
    /// Creates a limit at the configured maximum, so that a healthy backend is not slowed down at
    /// its start.
    pub fn new(max: usize) -> Self {
        let (latencies, round) = (FastMap::default(), SampleWindow::default());
        Self { limit: max as f64, max, latencies, round }
    }

    pub fn limit(&self) -> usize {
        (self.limit as usize).clamp(CONCURRENCY_MIN.min(self.max), self.max)
    }

    /// Takes the outcome of a call. `None`: it failed. Returns a changed limit at the end of a
    /// round.
    pub fn observe(
        &mut self,
        now: Duration,
        answer: Option<AnswerLatency>,
        in_flight: usize,
    ) -> Option<usize> {
        let round = &mut self.round;
        if round.answers + round.failures == 0 {
            round.since = now;
        }
        round.in_flight_max = round.in_flight_max.max(in_flight);
        match answer {
            None => round.failures += 1,
            Some(AnswerLatency { kind, took }) => {
                round.answers += 1;
                let has_place = self.latencies.len() < CONCURRENCY_KINDS_MAX
                    || self.latencies.contains_key(&kind);
                let kind = if has_place { kind } else { OTHERS };
                let latency = self.latencies.entry(kind).or_default();
                latency.add(took.as_secs_f64());
                latency.last_at = now;
            }
        }
        if now.saturating_sub(self.round.since) < CONCURRENCY_ROUND {
            return None;
        }
        let before = self.limit();
        let round = std::mem::take(&mut self.round);
        self.judge(&round);
        self.drop_idle_kinds(now);
        let after = self.limit();
        (after != before).then_some(after)
    }

    fn judge(&mut self, round: &SampleWindow) {
        let answered = self.latencies.values_mut().filter(|latency| latency.round.answers > 0);
        // Above the number of answers, their mean latency is not good any more.
        let shares: f64 = answered.map(KindLatency::end_round).sum();
        let slow = shares > f64::from(round.answers);
        let failing = round.failures * 2 > round.answers;
        if slow || failing {
            // From the calls in flight: a limit far above them would come down too late.
            let from = self.limit.min(round.in_flight_max.max(1) as f64);
            self.limit = (from * CONCURRENCY_BACKS_OFF_TO).max(CONCURRENCY_MIN as f64);
        } else if round.in_flight_max + 1 >= self.limit() {
            self.limit = (self.limit + 1.0).min(self.max as f64);
        }
    }

    /// Frees the places of kinds without recent answers, once no place is free. A backend may rename
    /// its tools for as long as the broker runs.
    fn drop_idle_kinds(&mut self, now: Duration) {
        if self.latencies.len() >= CONCURRENCY_KINDS_MAX {
            let is_recent =
                |latency: &KindLatency| now.saturating_sub(latency.last_at) < CONCURRENCY_KIND_IDLE;
            self.latencies.retain(|_, latency| is_recent(latency));
        }
    }
}

impl Default for KindLatency {
    fn default() -> Self {
        let (round, sample) = (LatencySum::default(), LatencySum::default());
        Self { best: f64::INFINITY, round, bounded_seconds: 0.0, sample, last_at: Duration::ZERO }
    }
}

impl KindLatency {
    /// Returns the largest latency that is still good, in seconds.
    fn good(&self) -> f64 {
        self.best * CONCURRENCY_TOLERANCE + CONCURRENCY_SLACK.as_secs_f64()
    }

    fn add(&mut self, seconds: f64) {
        self.round.add(1, seconds);
        self.bounded_seconds += seconds.min(self.good() * CONCURRENCY_SHARE_MAX);
    }

    /// Returns the latencies of a round with answers, as the sum of their shares of the largest good
    /// latency.
    fn end_round(&mut self) -> f64 {
        let (round, bounded_seconds) =
            (std::mem::take(&mut self.round), std::mem::take(&mut self.bounded_seconds));
        self.sample.add(round.answers, round.seconds);
        // An old best latency may not be reachable any more, so it rises by an eighth per minute at
        // most.
        self.best *= 1.0005;
        if self.best.is_infinite() || self.sample.answers >= CONCURRENCY_SAMPLE_ANSWERS {
            let sample = std::mem::take(&mut self.sample);
            self.best = self.best.min(sample.seconds / f64::from(sample.answers));
        }
        bounded_seconds / self.good()
    }
}

impl LatencySum {
    fn add(&mut self, answers: u32, seconds: f64) {
        self.answers += answers;
        self.seconds += seconds;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn answer(kind: u64, took: Duration) -> Option<AnswerLatency> {
        Some(AnswerLatency { kind, took })
    }

    /// Runs rounds of a backend whose latency grows with more than `capacity` calls in flight.
    fn run(
        adaptive: &mut AdaptiveLimit,
        rounds: usize,
        capacity: usize,
        start: Duration,
    ) -> Duration {
        let mut now = start;
        for _ in 0..rounds {
            let in_flight = adaptive.limit();
            let took =
                Duration::from_millis(10).mul_f64((in_flight as f64 / capacity as f64).max(1.0));
            for _ in 0..20 {
                adaptive.observe(now, answer(1, took), in_flight);
            }
            now += CONCURRENCY_ROUND;
            adaptive.observe(now, answer(1, took), in_flight);
        }
        now
    }

    #[test]
    fn the_adaptive_limit_approaches_the_capacity_of_the_backend() {
        let mut adaptive = AdaptiveLimit::new(1_000);
        // The first calls are few and show the latency without load.
        adaptive.observe(Duration::ZERO, answer(1, Duration::from_millis(10)), 1);
        adaptive.observe(CONCURRENCY_ROUND, answer(1, Duration::from_millis(10)), 1);
        let now = run(&mut adaptive, 60, 20, CONCURRENCY_ROUND);
        assert!((15..=60).contains(&adaptive.limit()), "{}", adaptive.limit());
        run(&mut adaptive, 100, 200, now);
        assert!(adaptive.limit() > 100, "it grows again: {}", adaptive.limit());
    }

    #[test]
    fn failures_lower_the_adaptive_limit_to_its_minimum() {
        let mut adaptive = AdaptiveLimit::new(100);
        let mut now = Duration::ZERO;
        for _ in 0..200 {
            now += CONCURRENCY_ROUND;
            adaptive.observe(now, None, adaptive.limit());
            now += CONCURRENCY_ROUND;
            adaptive.observe(now, None, adaptive.limit());
        }
        assert_eq!(adaptive.limit(), CONCURRENCY_MIN);
    }

    #[test]
    fn a_limit_that_is_not_reached_does_not_grow() {
        let mut adaptive = AdaptiveLimit::new(100);
        adaptive.limit = 10.0;
        for round in 0..50 {
            adaptive.observe(CONCURRENCY_ROUND * round, answer(1, Duration::from_millis(5)), 3);
        }
        assert_eq!(adaptive.limit(), 10);
    }

    #[test]
    fn a_mix_of_a_fast_and_a_slow_tool_lowers_the_limit_only_when_one_slows_down() {
        let (fast, slow) = (Duration::from_millis(10), Duration::from_secs(1));
        let mut adaptive = AdaptiveLimit::new(64);
        let mut now = Duration::ZERO;
        // Every second round is fast alone, so its mean latency is a hundredth of the slow tool's.
        let mut run = |adaptive: &mut AdaptiveLimit, rounds: u32, fast: Duration| {
            for round in 0..rounds {
                for _ in 0..9 {
                    adaptive.observe(now, answer(1, fast), 20);
                }
                if round % 2 == 1 {
                    adaptive.observe(now, answer(2, slow), 20);
                }
                now += CONCURRENCY_ROUND;
            }
        };
        run(&mut adaptive, 400, fast);
        assert_eq!(adaptive.limit(), 64);
        run(&mut adaptive, 20, fast * 10);
        assert!(adaptive.limit() < 20, "{}", adaptive.limit());
    }

    #[test]
    fn two_fast_answers_do_not_make_the_others_slow() {
        let mut adaptive = AdaptiveLimit::new(64);
        for round in 0..100 {
            let took = Duration::from_millis(if [10, 11].contains(&round) { 1 } else { 100 });
            adaptive.observe(CONCURRENCY_ROUND * round, answer(1, took), 20);
        }
        assert_eq!(adaptive.limit(), 64);
    }

    /// One caller may choose arguments with which a tool takes long.
    #[test]
    fn few_slow_answers_do_not_outweigh_the_others() {
        let mut adaptive = AdaptiveLimit::new(64);
        for round in 0..100 {
            for _ in 0..9 {
                adaptive.observe(
                    CONCURRENCY_ROUND * round,
                    answer(1, Duration::from_millis(10)),
                    20,
                );
            }
            let took = if round == 0 { Duration::from_millis(10) } else { Duration::from_secs(10) };
            adaptive.observe(CONCURRENCY_ROUND * round, answer(2, took), 20);
        }
        assert_eq!(adaptive.limit(), 64);
    }

    #[test]
    fn the_number_of_known_kinds_is_bounded() {
        let mut adaptive = AdaptiveLimit::new(64);
        for kind in 1..10_000 {
            adaptive.observe(Duration::ZERO, answer(kind, Duration::from_millis(1)), 1);
        }
        assert_eq!(adaptive.latencies.len(), CONCURRENCY_KINDS_MAX + 1);
    }

    #[test]
    fn kinds_without_answers_give_their_places_to_others() {
        let mut adaptive = AdaptiveLimit::new(64);
        let took = Duration::from_millis(1);
        for kind in (1..).take(CONCURRENCY_KINDS_MAX) {
            adaptive.observe(Duration::ZERO, answer(kind, took), 1);
        }
        let later = CONCURRENCY_KIND_IDLE;
        adaptive.observe(later, answer(1, took), 1);
        adaptive.observe(later, answer(10_000, took), 1);
        let mut known: Vec<u64> = adaptive.latencies.keys().copied().collect();
        known.sort_unstable();
        assert_eq!(known, [1, 10_000]);
    }

    proptest! {
        #[test]
        fn the_adaptive_limit_stays_within_its_bounds(
            max in 1_usize..500,
            seen in prop::collection::vec(
                (0_u64..2_000, prop::option::of((0_u64..3, 0_u64..5_000)), 0_usize..1_000),
                1..200,
            )
        ) {
            let mut adaptive = AdaptiveLimit::new(max);
            let mut now = Duration::ZERO;
            for (later, answered, in_flight) in seen {
                now += Duration::from_millis(later);
                let answered =
                    answered.map(|(kind, took)| AnswerLatency { kind, took: Duration::from_millis(took) });
                adaptive.observe(now, answered, in_flight);
                prop_assert!(adaptive.limit() >= CONCURRENCY_MIN.min(max) && adaptive.limit() <= max);
            }
        }
    }
}
