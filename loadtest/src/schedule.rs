//! Start times of the calls of an open loop. The rate over time has phases, and the schedule gives
//! each call its time.
//!
//! The schedule is fixed before the load begins and does not depend on the answers. So a slow
//! server's delay becomes visible: calls that should have begun meanwhile are late, and their
//! lateness counts.

use std::time::Duration;

/// A phase in which the rate changes evenly from one value to another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Phase {
    pub time: Duration,
    /// Calls per second at the start and at the end of the phase.
    pub from: f64,
    pub to: f64,
}

impl Phase {
    fn calls(&self) -> f64 {
        (self.from + self.to) / 2.0 * self.time.as_secs_f64()
    }

    /// Returns the time in this phase at which this many calls are due: the area under the rate
    /// reaches `calls`.
    fn reaches(&self, calls: f64) -> f64 {
        let slope = (self.to - self.from) / self.time.as_secs_f64();
        // The root of slope/2 t² + from t = calls, in the form without a division by the slope.
        let root = (self.from * self.from + 2.0 * slope * calls).max(0.0).sqrt();
        2.0 * calls / (self.from + root).max(f64::MIN_POSITIVE)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Schedule(Vec<Phase>);

impl Schedule {
    pub fn new(phases: Vec<Phase>) -> Self {
        Self(phases)
    }

    pub fn time(&self) -> Duration {
        self.0.iter().map(|phase| phase.time).sum()
    }

    /// Returns the number of calls.
    pub fn calls(&self) -> u64 {
        self.0.iter().map(Phase::calls).sum::<f64>() as u64
    }

    /// Returns the start time of the call with this number (from 0), or `None` after the last one.
    pub fn start_of(&self, number: u64) -> Option<Duration> {
        let (mut before, mut started) = (0.0, Duration::ZERO);
        let number = number as f64;
        for phase in &self.0 {
            let calls = phase.calls();
            if number < before + calls {
                return Some(started + Duration::from_secs_f64(phase.reaches(number - before)));
            }
            before += calls;
            started += phase.time;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(seconds: u64, from: f64, to: f64) -> Phase {
        Phase { time: Duration::from_secs(seconds), from, to }
    }

    #[test]
    fn a_steady_rate_has_equal_intervals() {
        let schedule = Schedule::new(vec![phase(2, 100.0, 100.0)]);
        assert_eq!(schedule.calls(), 200);
        let starts: Vec<u128> =
            (0..3).map(|number| schedule.start_of(number).unwrap().as_millis()).collect();
        assert_eq!(starts, [0, 10, 20]);
        assert_eq!(schedule.start_of(200), None);
    }

    #[test]
    fn a_ramp_starts_slowly_and_ends_fast() {
        let schedule = Schedule::new(vec![phase(10, 0.0, 100.0)]);
        assert_eq!(schedule.calls(), 500);
        let half = schedule.start_of(250).unwrap().as_secs_f64();
        assert!(
            (half - 10.0 / 2.0_f64.sqrt()).abs() < 0.01,
            "half of the calls are due after {half} s"
        );
        let mut last = Duration::ZERO;
        for number in 0..500 {
            let start = schedule.start_of(number).unwrap();
            assert!(start >= last && start <= schedule.time(), "call {number} at {start:?}");
            last = start;
        }
    }

    #[test]
    fn phases_follow_each_other() {
        let schedule =
            Schedule::new(vec![phase(1, 10.0, 10.0), phase(1, 0.0, 0.0), phase(1, 20.0, 0.0)]);
        assert_eq!((schedule.calls(), schedule.time()), (20, Duration::from_secs(3)));
        assert!(schedule.start_of(9).unwrap() < Duration::from_secs(1));
        assert!(
            schedule.start_of(10).unwrap() >= Duration::from_secs(2),
            "nothing begins while the rate is nothing"
        );
    }
}
