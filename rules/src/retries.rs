//! Retries of failed calls: only if a repetition is safe, a few times, and from a budget. So a
//! backend in trouble does not get more load. Only the function that sends calls uses it.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::limits::{RETRIES_MAX, RETRIES_SAVED_MAX, RETRY_PAUSE_FIRST, RETRY_PAUSE_MAX};

/// The outcome of a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The backend did not process the call.
    NotProcessed,
    /// The backend may have processed the call.
    MaybeProcessed,
    /// The backend gave an answer, or the time is over.
    Final,
}

/// Returns whether the call may be sent again. `harmless`: a second execution has no further
/// effect.
pub fn may_retry(attempt: AttemptOutcome, harmless: bool, retries: u32) -> bool {
    let fits = match attempt {
        AttemptOutcome::NotProcessed => true,
        AttemptOutcome::MaybeProcessed => harmless,
        AttemptOutcome::Final => false,
    };
    fits && retries < RETRIES_MAX
}

/// Returns the wait before this retry, between zero and the ceiling (full jitter). `chance` is from
/// 0 to 1.
pub fn backoff(retries: u32, chance: f64) -> Duration {
    let ceiling = RETRY_PAUSE_FIRST.saturating_mul(1 << retries.min(10)).min(RETRY_PAUSE_MAX);
    ceiling.mul_f64(chance.clamp(0.0, 1.0))
}

/// The retries of one backend. Each call adds a part of a retry, and each retry takes one.
#[derive(Debug)]
pub struct RetryBudget {
    /// Saved retries, in thousandths.
    saved: AtomicU64,
    share: u64,
}

const ONE: u64 = 1_000;

impl RetryBudget {
    /// Creates a budget with one retry. `share` is the number of retries that each call adds.
    pub fn new(share: f64) -> Self {
        Self { saved: AtomicU64::new(ONE), share: (share.clamp(0.0, 1.0) * ONE as f64) as u64 }
    }

    /// Adds the share of one call.
    pub fn deposit(&self) {
        let full = RETRIES_SAVED_MAX * ONE;
        if self.share > 0 && self.saved.load(Ordering::Relaxed) < full {
            let _ = self.saved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |saved| {
                Some((saved + self.share).min(full))
            });
        }
    }

    /// Takes one retry. Returns false if the budget has none.
    pub fn withdraw(&self) -> bool {
        self.share > 0
            && self
                .saved
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |saved| saved.checked_sub(ONE))
                .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f_31_only_harmless_or_unprocessed_calls_are_retried() {
        for harmless in [false, true] {
            assert!(may_retry(AttemptOutcome::NotProcessed, harmless, 0));
            assert_eq!(may_retry(AttemptOutcome::MaybeProcessed, harmless, 0), harmless);
            assert!(!may_retry(AttemptOutcome::Final, harmless, 0));
            assert!(!may_retry(AttemptOutcome::NotProcessed, harmless, RETRIES_MAX));
        }
    }

    #[test]
    fn a_tenth_of_the_calls_is_retried_at_most() {
        let budget = RetryBudget::new(0.1);
        let retried = (0..1_000).filter(|_| {
            budget.deposit();
            budget.withdraw()
        });
        assert!((100..=101).contains(&retried.count()), "and one that was there from the start");
    }

    #[test]
    fn the_saved_retry_budget_is_bounded() {
        let budget = RetryBudget::new(0.1);
        (0..100_000).for_each(|_| budget.deposit());
        assert_eq!((0..1_000).filter(|_| budget.withdraw()).count() as u64, RETRIES_SAVED_MAX);
        assert!(!RetryBudget::new(0.0).withdraw(), "nothing is nothing");
    }

    #[test]
    fn the_retry_pause_is_jittered_up_to_a_doubling_maximum() {
        assert_eq!(backoff(0, 0.0), Duration::ZERO);
        assert_eq!(backoff(0, 1.0), RETRY_PAUSE_FIRST);
        assert_eq!(backoff(1, 0.5), RETRY_PAUSE_FIRST);
        assert_eq!(backoff(99, 1.0), RETRY_PAUSE_MAX);
    }
}
