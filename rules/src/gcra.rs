//! A budget of requests: a rate per second with a burst, in one atomic cell without a lock (GCRA).
//!
//! `governor` computes the rates of one process ([`local_rate_limit`](super::local_rate_limit)),
//! but not this one, which replicas share. This one can return a request that was counted
//! elsewhere. The hot store gets the used amount and sets the remaining one. The rate is divided
//! among replicas, whose number changes. A limiter of `governor` only supports taking, with a fixed
//! quota.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Requests per second, and the burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    pub per_second: u32,
    pub burst: u32,
}

impl Rate {
    /// Returns the rate. `None`: zero per second means no limit.
    pub fn new(per_second: u32, burst: u32) -> Option<Self> {
        (per_second > 0).then_some(Self { per_second, burst: burst.max(1) })
    }

    /// Returns the interval for one replica. All replicas together get at most the rate, except for
    /// a burst that cannot be divided.
    fn interval_ns(self, replicas: u32) -> u64 {
        1_000_000_000 * u64::from(replicas.max(1)) / u64::from(self.per_second)
    }

    fn tolerance_ns(self, replicas: u32) -> u64 {
        self.interval_ns(replicas) * u64::from((self.burst / replicas.max(1)).max(1) - 1)
    }
}

/// The *theoretical arrival time* of the next request, in nanoseconds since the clock's origin.
#[derive(Debug, Default)]
pub struct GcraLimiter {
    next_at_ns: AtomicU64,
}

impl GcraLimiter {
    /// Takes one request from this replica's share, or returns the wait. `now` must always count
    /// from the same origin.
    pub fn try_acquire(&self, rate: Rate, replicas: u32, now: Duration) -> Result<(), Duration> {
        let (interval, tolerance, now_ns) =
            (rate.interval_ns(replicas), rate.tolerance_ns(replicas), nanoseconds(now));
        let mut next_at = self.next_at_ns.load(Ordering::Relaxed);
        // A value further ahead comes from an earlier, slower rate, which does not apply any more.
        let most = now_ns + tolerance + interval;
        loop {
            let start = next_at.clamp(now_ns, most);
            let (refused, next) =
                if start - now_ns > tolerance { (true, start) } else { (false, start + interval) };
            if refused && next == next_at {
                return Err(Duration::from_nanos(start - now_ns - tolerance));
            }
            match self.next_at_ns.compare_exchange_weak(
                next_at,
                next,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) if !refused => return Ok(()),
                Ok(_) => next_at = next,
                Err(current) => next_at = current,
            }
        }
    }

    /// Returns one request to the budget, because it was counted elsewhere.
    pub fn refund(&self, rate: Rate, replicas: u32) {
        // The value may fall below now without effect, because `take` starts at now.
        let back = |next_at: u64| Some(next_at.saturating_sub(rate.interval_ns(replicas)));
        let _always_some = self.next_at_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, back);
    }

    /// Sets the number of requests that can be taken at once, up to the burst.
    pub fn set_remaining(&self, rate: Rate, replicas: u32, now: Duration, remaining: u32) {
        let burst = (rate.burst / replicas.max(1)).max(1);
        let taken = u64::from(burst - remaining.min(burst));
        self.next_at_ns
            .store(nanoseconds(now) + rate.interval_ns(replicas) * taken, Ordering::Relaxed);
    }

    /// Returns the number of used requests that the rate has not restored yet.
    pub fn consumed(&self, rate: Rate, replicas: u32, now: Duration) -> u32 {
        let ahead = self.next_at_ns.load(Ordering::Relaxed).saturating_sub(nanoseconds(now));
        u32::try_from(ahead.div_ceil(rate.interval_ns(replicas))).unwrap_or(u32::MAX)
    }

    /// Returns whether the budget is full, like a new one.
    pub fn is_full(&self, now: Duration) -> bool {
        self.next_at_ns.load(Ordering::Relaxed) <= nanoseconds(now)
    }
}

/// Returns the time in nanoseconds, or the largest number that there is.
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(1);

    fn rate(per_second: u32, burst: u32) -> Rate {
        Rate::new(per_second, burst).unwrap()
    }

    fn taken_at_once(budget: &GcraLimiter, rate: Rate, replicas: u32, now: Duration) -> usize {
        (0..1_000).take_while(|_| budget.try_acquire(rate, replicas, now).is_ok()).count()
    }

    #[test]
    fn a_burst_passes_then_the_rate_holds() {
        let (budget, rate) = (GcraLimiter::default(), rate(10, 3));
        assert_eq!(taken_at_once(&budget, rate, 1, START), 3);
        assert_eq!(budget.try_acquire(rate, 1, START), Err(Duration::from_millis(100)));
        budget.try_acquire(rate, 1, START + Duration::from_millis(100)).unwrap();
        assert!(budget.try_acquire(rate, 1, START + Duration::from_millis(100)).is_err());
    }

    #[test]
    fn nothing_is_saved_up_beyond_the_burst() {
        assert_eq!(
            taken_at_once(&GcraLimiter::default(), rate(10, 2), 1, Duration::from_secs(3600)),
            2
        );
    }

    #[test]
    fn refunded_requests_can_be_taken_again_up_to_the_burst() {
        let (budget, rate) = (GcraLimiter::default(), rate(10, 3));
        (0..10).for_each(|_| budget.refund(rate, 1));
        assert_eq!(taken_at_once(&budget, rate, 1, START), 3);
        budget.refund(rate, 1);
        assert_eq!(taken_at_once(&budget, rate, 1, START), 1);
    }

    #[test]
    fn zero_means_no_limit() {
        assert!(Rate::new(0, 5).is_none());
    }

    #[test]
    fn a_raised_rate_applies_at_once() {
        let budget = GcraLimiter::default();
        assert_eq!(taken_at_once(&budget, rate(1, 100), 1, START), 100);
        assert_eq!(budget.try_acquire(rate(100, 10), 1, START), Err(Duration::from_millis(10)));
        assert_eq!(taken_at_once(&budget, rate(100, 10), 1, START + Duration::from_millis(50)), 5);
    }

    #[test]
    fn each_replica_has_a_share_of_the_rate() {
        let (budget, rate) = (GcraLimiter::default(), rate(30, 9));
        assert_eq!(taken_at_once(&budget, rate, 3, START), 3);
        assert_eq!(
            budget.try_acquire(rate, 3, START),
            Err(Duration::from_millis(100)),
            "ten a second are left of thirty"
        );
        assert_eq!(
            taken_at_once(&GcraLimiter::default(), Rate { burst: 1, ..rate }, 3, START),
            1,
            "never none at all"
        );
    }

    #[test]
    fn the_remaining_budget_can_be_set_and_read() {
        let (budget, rate) = (GcraLimiter::default(), rate(10, 9));
        assert!(budget.is_full(START) && budget.consumed(rate, 1, START) == 0);
        for remaining in [0, 4, 9, 100] {
            budget.set_remaining(rate, 1, START, remaining);
            assert_eq!(budget.consumed(rate, 1, START), 9 - remaining.min(9));
            assert_eq!(taken_at_once(&budget, rate, 1, START), remaining.min(9) as usize);
        }
        assert!(!budget.is_full(START) && budget.is_full(START + Duration::from_secs(1)));
    }
}
