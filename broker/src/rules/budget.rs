//! A tenant's budget of requests: so many per second, with a burst. One atomic cell, no lock (GCRA).

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Holds the *theoretical arrival time* of the next request, in nanoseconds since the budget was made.
#[derive(Debug)]
pub struct Budget {
    next_at_ns: AtomicU64,
    interval_ns: u64,
    tolerance_ns: u64,
}

impl Budget {
    /// `None` when there is no limit.
    pub fn new(requests_per_second: u32, burst: u32) -> Option<Self> {
        if requests_per_second == 0 {
            return None;
        }
        let interval_ns = 1_000_000_000 / u64::from(requests_per_second);
        Some(Self { next_at_ns: AtomicU64::new(0), interval_ns, tolerance_ns: interval_ns * u64::from(burst.max(1) - 1) })
    }

    /// Takes one request's worth, or says how long to wait. `now` counts from the same origin at every call.
    pub fn take(&self, now: Duration) -> Result<(), Duration> {
        let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let mut next_at = self.next_at_ns.load(Ordering::Relaxed);
        loop {
            let start = next_at.max(now_ns);
            if start - now_ns > self.tolerance_ns {
                return Err(Duration::from_nanos(start - now_ns - self.tolerance_ns));
            }
            match self.next_at_ns.compare_exchange_weak(next_at, start + self.interval_ns, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(current) => next_at = current,
            }
        }
    }

    /// Gives back what one request took: it was counted elsewhere.
    pub fn give_back(&self) {
        // Less than nothing taken is nothing taken, as `take` never begins before now.
        let back = |next_at: u64| Some(next_at.saturating_sub(self.interval_ns));
        let _always_some = self.next_at_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, back);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_then_the_rate_holds() {
        let budget = Budget::new(10, 3).unwrap();
        let start = Duration::from_secs(1);
        for _ in 0..3 {
            budget.take(start).unwrap();
        }
        assert_eq!(budget.take(start), Err(Duration::from_millis(100)));
        budget.take(start + Duration::from_millis(100)).unwrap();
        assert!(budget.take(start + Duration::from_millis(100)).is_err());
    }

    #[test]
    fn nothing_is_saved_up_beyond_the_burst() {
        let budget = Budget::new(10, 2).unwrap();
        let later = Duration::from_secs(3600);
        assert_eq!((0..100).filter(|_| budget.take(later).is_ok()).count(), 2);
    }

    #[test]
    fn what_is_given_back_can_be_taken_again_and_no_more() {
        let budget = Budget::new(10, 3).unwrap();
        let start = Duration::from_secs(1);
        (0..10).for_each(|_| budget.give_back());
        for _ in 0..3 {
            budget.take(start).unwrap();
        }
        assert!(budget.take(start).is_err());
        budget.give_back();
        assert_eq!((budget.take(start).is_ok(), budget.take(start).is_ok()), (true, false));
    }

    #[test]
    fn zero_means_no_limit() {
        assert!(Budget::new(0, 5).is_none());
    }
}
