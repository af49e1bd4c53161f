//! Records results during the load: counts and latencies for each window of time and each kind of
//! operation.
//!
//! Many callers write, so each writes to one of a few shards. A reader adds the shards up.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::{Mutex, MutexGuard};

use crate::{histogram::Histogram, operation::CallOutcome};

/// Callers of one shard rarely collide, because a shard is locked for a few hundred nanoseconds.
const SHARDS: usize = 4;
/// Longer loads have longer windows, so the report of a day is as small as one of ten minutes.
const WINDOWS_MAX: u32 = 600;
const WINDOW_MIN: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Default)]
pub struct Window {
    /// Of all calls but the refused ones. A target that refuses much in no time is not fast.
    pub latency: Histogram,
    pub succeeded: u64,
    pub refused: u64,
    pub wrong: u64,
}

impl Window {
    fn add(&mut self, latency: Duration, ended: &CallOutcome) {
        if !matches!(ended, CallOutcome::Refused(_)) {
            self.latency.add(latency);
        }
        match ended {
            CallOutcome::Succeeded => self.succeeded += 1,
            CallOutcome::Refused(_) => self.refused += 1,
            CallOutcome::Wrong => self.wrong += 1,
        }
    }

    pub fn merge(&mut self, other: &Self) {
        if other.latency.count() > 0 {
            self.latency.merge(&other.latency);
        }
        self.succeeded += other.succeeded;
        self.refused += other.refused;
        self.wrong += other.wrong;
    }

    pub fn calls(&self) -> u64 {
        self.succeeded + self.refused + self.wrong
    }
}

#[derive(Debug, Default)]
pub struct Totals {
    /// The windows of the load, and one more for the calls that ended after it.
    pub windows: Vec<Window>,
    /// By the index of the operation in the mix.
    pub operations: Vec<Window>,
    pub refusals: BTreeMap<String, u64>,
}

#[derive(Debug)]
pub struct Recorder {
    window: Duration,
    warm_up: Duration,
    /// Time of the load after the warm-up.
    measured: Duration,
    shards: [Mutex<Totals>; SHARDS],
}

impl Recorder {
    /// Creates a recorder for a load of this length.
    pub fn new(time: Duration, warm_up: Duration) -> Self {
        let window = WINDOW_MIN.max(time / WINDOWS_MAX);
        let measured = time.saturating_sub(warm_up);
        Self { window, warm_up, measured, shards: std::array::from_fn(|_| Mutex::default()) }
    }

    pub fn window(&self) -> Duration {
        self.window
    }

    /// Records that the caller with this number saw an operation end, `at` after the start of the
    /// load. Latencies count in the window of the answer. While a target stalls no window gets
    /// answers, and afterwards the answers are old. All answers after the load are in one window
    /// of their own, even if the last window of the load is shorter than the others.
    pub fn add(
        &self,
        caller: usize,
        index: usize,
        at: Duration,
        latency: Duration,
        ended: &CallOutcome,
    ) {
        let Some(at) = at.checked_sub(self.warm_up) else { return };
        let window = match at < self.measured {
            true => (at.as_nanos() / self.window.as_nanos()) as usize,
            false => self.measured.as_nanos().div_ceil(self.window.as_nanos()) as usize,
        };
        let mut shard = self.shard(caller);
        let shard = &mut *shard;
        for (windows, index) in [(&mut shard.windows, window), (&mut shard.operations, index)] {
            if windows.len() <= index {
                windows.resize_with(index + 1, Window::default);
            }
            windows[index].add(latency, ended);
        }
        if let CallOutcome::Refused(why) = ended {
            *shard.refusals.entry(why.clone()).or_default() += 1;
        }
    }

    /// Adds up all shards.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for shard in 0..SHARDS {
            let shard = self.shard(shard);
            for (all, own) in
                [(&mut totals.windows, &shard.windows), (&mut totals.operations, &shard.operations)]
            {
                if all.len() < own.len() {
                    all.resize_with(own.len(), Window::default);
                }
                all.iter_mut().zip(own).for_each(|(all, own)| all.merge(own));
            }
            for (why, count) in &shard.refusals {
                *totals.refusals.entry(why.clone()).or_default() += count;
            }
        }
        totals
    }

    fn shard(&self, caller: usize) -> MutexGuard<'_, Totals> {
        self.shards[caller % SHARDS].lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_many_callers_are_summed() {
        let record = Recorder::new(Duration::from_secs(10), Duration::from_secs(1));
        let ms = Duration::from_millis;
        record.add(0, 0, ms(500), ms(1), &CallOutcome::Succeeded);
        for caller in 0..8 {
            record.add(
                caller,
                caller % 2,
                ms(1500 + 1000 * (caller as u64 / 4)),
                ms(2),
                &CallOutcome::Succeeded,
            );
        }
        record.add(3, 1, ms(1600), ms(9), &CallOutcome::Refused("code 1".to_owned()));
        let totals = record.totals();
        assert_eq!(
            totals.windows.iter().map(Window::calls).collect::<Vec<_>>(),
            [5, 4],
            "the warm-up is left out"
        );
        assert_eq!(totals.operations.iter().map(Window::calls).collect::<Vec<_>>(), [4, 5]);
        assert_eq!((totals.refusals["code 1"], totals.windows[0].refused), (1, 1));
        assert_eq!(totals.windows[0].latency.max(), ms(2), "a refusal has no latency");
    }

    #[test]
    fn calls_that_end_after_the_load_have_one_window() {
        let record = Recorder::new(Duration::from_millis(2500), Duration::from_secs(1));
        for at in [1000, 2000, 2499, 2500, 2600, 9000] {
            let at = Duration::from_millis(at);
            record.add(0, 0, at, Duration::from_millis(1), &CallOutcome::Succeeded);
        }
        let calls: Vec<u64> = record.totals().windows.iter().map(Window::calls).collect();
        assert_eq!(calls, [1, 2, 3]);
    }

    #[test]
    fn a_day_has_no_more_windows_than_ten_minutes() {
        assert_eq!(
            Recorder::new(Duration::from_secs(86_400), Duration::ZERO).window(),
            Duration::from_secs(144)
        );
        assert_eq!(
            Recorder::new(Duration::from_secs(5), Duration::ZERO).window(),
            Duration::from_secs(1)
        );
    }
}
