//! Rates that are local to this process: connections and failed sign-ins of an address, fetches of
//! keys, log lines of one kind.
//!
//! `governor` decides (GCRA). This module gives it the caller's time and a bounded table, and
//! counts suppressed events. The request budget that replicas share is in [`gcra`](super::gcra).
//!
//! Invariants:
//!
//! - Nothing here reads a clock.
//! - A table never exceeds its limit of keys.
//! - The table drops a key only if a new one would have the same state.

use std::{cell::Cell, collections::HashMap, hash::Hash, num::NonZeroU32, time::Duration};

use governor::{
    Quota, RateLimiter,
    clock::Clock,
    middleware::NoOpMiddleware,
    nanos::Nanos,
    state::{StateStore, direct::NotKeyed},
};

/// Interval at which a full table is searched for idle keys.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Returns the quota of one event in each period.
pub fn one_per(period: Duration) -> Quota {
    Quota::with_period(period).expect("a period is longer than nothing")
}

/// Returns the quota of `rate` events per second, with a burst. `None`: zero per second means no
/// limit.
pub fn per_second(rate: u32, burst: u32) -> Option<Quota> {
    let burst = NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN);
    NonZeroU32::new(rate).map(|rate| Quota::per_second(rate).allow_burst(burst))
}

/// Returns the quota of `rate` events per minute, all of which may come at once. At least one
/// passes.
pub fn per_minute(rate: u32) -> Quota {
    Quota::per_minute(NonZeroU32::new(rate).unwrap_or(NonZeroU32::MIN))
}

/// The answer to an event above the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateExceeded {
    /// Events above the rate since the last one that passed, this one included.
    pub suppressed: u64,
    /// Time until the next one passes.
    pub retry_after: Duration,
}

/// The rate of one kind of event.
#[derive(Debug)]
pub struct LocalRateLimiter {
    quota: Quota,
    state: RateState,
}

impl LocalRateLimiter {
    /// Creates a limiter with a full quota.
    pub fn new(quota: Quota) -> Self {
        Self { quota, state: RateState::default() }
    }

    /// Counts an event. Returns the number of events that were suppressed since the last one that
    /// passed. `now` must always count from the same origin.
    pub fn check(&mut self, now: Duration) -> Result<u64, RateExceeded> {
        self.state.check(self.quota, now)
    }

    /// Returns whether the next event passes.
    pub fn is_free(&self, now: Duration) -> bool {
        self.state.clone().check(self.quota, now).is_ok()
    }

    /// Returns the number of events that were suppressed since the last one that passed.
    pub fn suppressed(&self) -> u64 {
        self.state.suppressed
    }
}

/// The rates of many kinds of events, each with the same quota. Keys without capacity share one
/// rate.
#[derive(Debug)]
pub struct KeyedRateLimiter<K> {
    quota: Quota,
    states: HashMap<K, RateState>,
    keys_max: usize,
    others: RateState,
    swept_at: Option<Duration>,
}

impl<K: Eq + Hash + Clone> KeyedRateLimiter<K> {
    /// Creates an empty table.
    pub fn new(quota: Quota, keys_max: usize) -> Self {
        Self {
            quota,
            states: HashMap::new(),
            keys_max,
            others: RateState::default(),
            swept_at: None,
        }
    }

    /// Counts an event of `key`. Returns the number of its events that were suppressed since the
    /// last one that passed.
    pub fn check(&mut self, key: &K, now: Duration) -> Result<u64, RateExceeded> {
        let has_capacity = self.has_capacity(key, now);
        let state = match self.states.get_mut(key) {
            Some(state) => state,
            None if has_capacity => self.states.entry(key.clone()).or_default(),
            None => &mut self.others,
        };
        state.check(self.quota, now)
    }

    /// Returns the answer to the next event of `key` without counting it.
    pub fn peek(&self, key: &K, now: Duration) -> Result<(), RateExceeded> {
        self.states.get(key).map_or(Ok(()), |state| state.clone().check(self.quota, now).map(drop))
    }

    /// Returns whether `key` has a rate of its own, or gets one. A full table drops idle keys
    /// first.
    fn has_capacity(&mut self, key: &K, now: Duration) -> bool {
        if self.states.len() < self.keys_max || self.states.contains_key(key) {
            return true;
        }
        if self.swept_at.is_none_or(|at| now.saturating_sub(at) >= SWEEP_INTERVAL) {
            self.swept_at = Some(now);
            self.forget_idle(now);
        }
        self.states.len() < self.keys_max
    }

    /// Drops the keys whose quota is full again.
    pub fn forget_idle(&mut self, now: Duration) {
        self.states.retain(|_, state| !state.is_idle(now));
    }

    /// Returns the number of keys in the table.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Returns whether the table is empty.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }
}

/// The state of one rate.
#[derive(Debug, Clone, Default)]
struct RateState {
    /// The theoretical arrival time (GCRA) of the next event. `None` before the first event.
    next_at: Cell<Option<Nanos>>,
    suppressed: u64,
}

impl RateState {
    fn check(&mut self, quota: Quota, now: Duration) -> Result<u64, RateExceeded> {
        // A limiter counts from the time of its creation. This one counts from the origin of the
        // caller's clock.
        let limiter = RateLimiter::<_, _, _, NoOpMiddleware<Duration>>::new(
            quota,
            &*self,
            CallersTime::default(),
        );
        limiter.clock().0.set(now);
        match limiter.check() {
            Ok(()) => Ok(std::mem::take(&mut self.suppressed)),
            Err(until) => {
                let retry_after = until.wait_time_from(now);
                self.suppressed += 1;
                Err(RateExceeded { suppressed: self.suppressed, retry_after })
            }
        }
    }

    fn is_idle(&self, now: Duration) -> bool {
        self.next_at.get().is_none_or(|next_at| Duration::from(next_at) <= now)
    }
}

impl StateStore for &RateState {
    type Key = NotKeyed;

    fn measure_and_replace<T, F, E>(&self, _key: &NotKeyed, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let (decided, next_at) = decide(self.next_at.get())?;
        self.next_at.set(Some(next_at));
        Ok(decided)
    }
}

/// A clock that returns the caller's time.
#[derive(Debug, Default)]
struct CallersTime(Cell<Duration>);

impl Clock for CallersTime {
    type Instant = Duration;

    fn now(&self) -> Duration {
        self.0.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(10);

    fn after(ms: u64) -> Duration {
        START + Duration::from_millis(ms)
    }

    fn passed_at_once(rate: &mut LocalRateLimiter, now: Duration) -> usize {
        (0..1_000).take_while(|_| rate.check(now).is_ok()).count()
    }

    #[test]
    fn a_burst_passes_then_the_rate_applies_without_saving_beyond_the_burst() {
        let mut rate = LocalRateLimiter::new(per_second(10, 3).unwrap());
        assert_eq!(passed_at_once(&mut rate, START), 3);
        assert_eq!(
            rate.check(START),
            Err(RateExceeded { suppressed: 2, retry_after: Duration::from_millis(100) })
        );
        assert!(!rate.is_free(after(99)) && rate.is_free(after(100)));
        assert_eq!(rate.check(after(100)), Ok(2));
        assert_eq!(rate.check(after(100)).unwrap_err().suppressed, 1, "each is counted once");
        assert_eq!(passed_at_once(&mut rate, after(3_600_000)), 3);
        let mut minute = LocalRateLimiter::new(per_minute(60));
        assert_eq!(
            (passed_at_once(&mut minute, START), passed_at_once(&mut minute, after(2_000))),
            (60, 2)
        );
        assert!(
            per_second(0, 5).is_none()
                && per_second(5, 0).is_some_and(|quota| quota.burst_size().get() == 1)
        );
    }

    #[test]
    fn one_per_period_counts_from_the_event_that_passed() {
        let mut rate = LocalRateLimiter::new(one_per(Duration::from_secs(60)));
        assert_eq!(rate.check(START), Ok(0));
        assert_eq!(
            rate.check(after(20_000)),
            Err(RateExceeded { suppressed: 1, retry_after: Duration::from_secs(40) })
        );
        assert_eq!(
            (rate.suppressed(), rate.check(after(60_000)), rate.is_free(after(119_999))),
            (1, Ok(1), false)
        );
    }

    #[test]
    fn a_26_client_chosen_keys_use_bounded_memory_and_limited_ones_are_kept() {
        let mut rates = KeyedRateLimiter::new(per_second(1, 2).unwrap(), 10);
        let mut passes = |key: u32, ms| rates.check(&key, after(ms)).is_ok();
        assert!((0..10).all(|key| passes(key, 0) && passes(key, 0) && !passes(key, 0)));
        assert!(
            (10..100_000).filter(|key| passes(*key, 500)).count() == 2,
            "all further keys share one rate"
        );
        assert!(passes(3, 1_000) && !passes(3, 1_000), "it was not forgotten");
        assert_eq!(rates.len(), 10);
        assert!(
            rates.check(&20, after(2_500)).is_ok() && rates.check(&20, after(2_500)).is_ok(),
            "idle keys make room"
        );
        assert_eq!(rates.len(), 2, "but not the one that waits");
        rates.forget_idle(after(60_000));
        assert!(rates.is_empty());
    }
}
