//! Whether a call that failed is sent again: only where that can do no harm, a few times, and out of a budget, so that a
//! backend in trouble does not get more of it. Asked by the one place that sends calls.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::limits::{RETRIES_MAX, RETRIES_SAVED_MAX, RETRY_PAUSE_FIRST, RETRY_PAUSE_MAX};

/// What is known of a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The backend did not look at it.
    NotProcessed,
    /// It may have been carried out.
    MaybeProcessed,
    /// The backend gave an answer of its own, or time is up.
    Final,
}

/// May it be sent again, as far as its meaning goes? `harmless`: doing it twice is doing it once.
pub fn may_repeat(attempt: AttemptOutcome, harmless: bool, retries: u32) -> bool {
    let fits = match attempt {
        AttemptOutcome::NotProcessed => true,
        AttemptOutcome::MaybeProcessed => harmless,
        AttemptOutcome::Final => false,
    };
    fits && retries < RETRIES_MAX
}

/// Wait before the retry with this number, from nothing to the ceiling: full jitter. `chance` is from 0 to 1.
pub fn pause(retries: u32, chance: f64) -> Duration {
    let ceiling = RETRY_PAUSE_FIRST.saturating_mul(1 << retries.min(10)).min(RETRY_PAUSE_MAX);
    ceiling.mul_f64(chance.clamp(0.0, 1.0))
}

/// One backend's retries: each call pays in a share of one, each retry takes one out.
#[derive(Debug)]
pub struct RetryBudget {
    /// In thousandths of a retry.
    saved: AtomicU64,
    share: u64,
}

const ONE: u64 = 1_000;

impl RetryBudget {
    /// `share`: retries per call. One is there from the start.
    pub fn new(share: f64) -> Self {
        Self { saved: AtomicU64::new(ONE), share: (share.clamp(0.0, 1.0) * ONE as f64) as u64 }
    }

    /// A call begins.
    pub fn earn(&self) {
        let full = RETRIES_SAVED_MAX * ONE;
        if self.share > 0 && self.saved.load(Ordering::Relaxed) < full {
            let _ = self.saved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |saved| {
                Some((saved + self.share).min(full))
            });
        }
    }

    /// Takes one retry out, if there is one.
    pub fn spend(&self) -> bool {
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
    fn f_31_only_what_does_no_harm_is_sent_again() {
        for harmless in [false, true] {
            assert!(may_repeat(AttemptOutcome::NotProcessed, harmless, 0));
            assert_eq!(may_repeat(AttemptOutcome::MaybeProcessed, harmless, 0), harmless);
            assert!(!may_repeat(AttemptOutcome::Final, harmless, 0));
            assert!(!may_repeat(AttemptOutcome::NotProcessed, harmless, RETRIES_MAX));
        }
    }

    #[test]
    fn a_tenth_of_the_calls_is_retried_at_most() {
        let budget = RetryBudget::new(0.1);
        let retried = (0..1_000).filter(|_| {
            budget.earn();
            budget.spend()
        });
        assert!((100..=101).contains(&retried.count()), "and one that was there from the start");
    }

    #[test]
    fn what_is_saved_is_bounded() {
        let budget = RetryBudget::new(0.1);
        (0..100_000).for_each(|_| budget.earn());
        assert_eq!((0..1_000).filter(|_| budget.spend()).count() as u64, RETRIES_SAVED_MAX);
        assert!(!RetryBudget::new(0.0).spend(), "nothing is nothing");
    }

    #[test]
    fn the_pause_is_jittered_from_nothing_to_a_ceiling_that_doubles() {
        assert_eq!(pause(0, 0.0), Duration::ZERO);
        assert_eq!(pause(0, 1.0), RETRY_PAUSE_FIRST);
        assert_eq!(pause(1, 0.5), RETRY_PAUSE_FIRST);
        assert_eq!(pause(99, 1.0), RETRY_PAUSE_MAX);
    }
}
