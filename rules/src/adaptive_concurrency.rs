//! Adaptive concurrency limit of a backend, by its latency. The limit grows by one while the
//! backend answers as fast as ever. It shrinks when the backend slows down or fails (additive
//! increase, multiplicative decrease). Every answer updates it if it is enabled.
//!
//! Invariant: the limit stays between the minimum and the configured maximum.

use std::time::Duration;

use crate::limits::{
    CONCURRENCY_BACKS_OFF_TO, CONCURRENCY_MIN, CONCURRENCY_ROUND, CONCURRENCY_SLACK,
    CONCURRENCY_TOLERANCE,
};

/// The adaptive limit of one backend.
#[derive(Debug)]
pub struct AdaptiveLimit {
    limit: f64,
    max: usize,
    /// Best mean latency of a round, in seconds. It rises slowly until a round is faster.
    best: f64,
    round: SampleWindow,
}

/// Samples since the limit was last computed.
#[derive(Debug, Default)]
struct SampleWindow {
    since: Duration,
    answers: u32,
    seconds: f64,
    failures: u32,
    in_flight_max: usize,
}

impl AdaptiveLimit {
    /// Creates a limit at the configured maximum, so that a healthy backend is not slowed down at
    /// its start.
    pub fn new(max: usize) -> Self {
        Self { limit: max as f64, max, best: f64::INFINITY, round: SampleWindow::default() }
    }

    pub fn limit(&self) -> usize {
        (self.limit as usize).clamp(CONCURRENCY_MIN.min(self.max), self.max)
    }

    /// Takes the outcome of a call. Returns a changed limit at the end of a round.
    pub fn observe(
        &mut self,
        now: Duration,
        took: Duration,
        failed: bool,
        in_flight: usize,
    ) -> Option<usize> {
        let round = &mut self.round;
        if round.answers + round.failures == 0 {
            round.since = now;
        }
        round.in_flight_max = round.in_flight_max.max(in_flight);
        if failed {
            round.failures += 1;
        } else {
            round.answers += 1;
            round.seconds += took.as_secs_f64();
        }
        if now.saturating_sub(round.since) < CONCURRENCY_ROUND {
            return None;
        }
        let before = self.limit();
        let round = std::mem::take(&mut self.round);
        self.judge(&round);
        let after = self.limit();
        (after != before).then_some(after)
    }

    fn judge(&mut self, round: &SampleWindow) {
        let mean = round.seconds / f64::from(round.answers.max(1));
        if round.answers > 0 {
            // An old best latency may not be reachable any more, so it rises by an eighth per
            // minute.
            self.best = (self.best * 1.0005).min(mean);
        }
        let slow = round.answers > 0
            && mean > self.best * CONCURRENCY_TOLERANCE + CONCURRENCY_SLACK.as_secs_f64();
        let failing = round.failures * 2 > round.answers;
        if slow || failing {
            // From the calls in flight: a limit far above them would come down too late.
            let from = self.limit.min(round.in_flight_max.max(1) as f64);
            self.limit = (from * CONCURRENCY_BACKS_OFF_TO).max(CONCURRENCY_MIN as f64);
        } else if round.in_flight_max + 1 >= self.limit() {
            self.limit = (self.limit + 1.0).min(self.max as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
                adaptive.observe(now, took, false, in_flight);
            }
            now += CONCURRENCY_ROUND;
            adaptive.observe(now, took, false, in_flight);
        }
        now
    }

    #[test]
    fn the_adaptive_limit_approaches_the_capacity_of_the_backend() {
        let mut adaptive = AdaptiveLimit::new(1_000);
        // The first calls are few and show the latency without load.
        adaptive.observe(Duration::ZERO, Duration::from_millis(10), false, 1);
        adaptive.observe(CONCURRENCY_ROUND, Duration::from_millis(10), false, 1);
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
            adaptive.observe(now, Duration::ZERO, true, adaptive.limit());
            now += CONCURRENCY_ROUND;
            adaptive.observe(now, Duration::ZERO, true, adaptive.limit());
        }
        assert_eq!(adaptive.limit(), CONCURRENCY_MIN);
    }

    #[test]
    fn a_limit_that_is_not_reached_does_not_grow() {
        let mut adaptive = AdaptiveLimit::new(100);
        adaptive.limit = 10.0;
        for round in 0..50 {
            adaptive.observe(CONCURRENCY_ROUND * round, Duration::from_millis(5), false, 3);
        }
        assert_eq!(adaptive.limit(), 10);
    }

    proptest! {
        #[test]
        fn the_adaptive_limit_stays_within_its_bounds(
            max in 1_usize..500,
            seen in prop::collection::vec((0_u64..2_000, 0_u64..5_000, any::<bool>(), 0_usize..1_000), 1..200)
        ) {
            let mut adaptive = AdaptiveLimit::new(max);
            let mut now = Duration::ZERO;
            for (later, took, failed, in_flight) in seen {
                now += Duration::from_millis(later);
                adaptive.observe(now, Duration::from_millis(took), failed, in_flight);
                prop_assert!(adaptive.limit() >= CONCURRENCY_MIN.min(max) && adaptive.limit() <= max);
            }
        }
    }
}
