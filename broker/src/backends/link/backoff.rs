//! Back-off of a backend that cannot be reached.

use std::time::{Duration, Instant};

use protocol::{
    error::{ErrorKind, Refusal},
    ids::BackendId,
};
use rules::limits::{BACKOFF_FIRST, BACKOFF_MAX, BACKOFF_WAIT_MAX, STABLE_AFTER};

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Backoff {
    pub(super) failures: u32,
    pub(super) not_before: Option<Instant>,
}

impl Backoff {
    pub(super) fn record_failure(&mut self) {
        self.failures = self.failures.saturating_add(1);
        let ceiling =
            BACKOFF_FIRST.saturating_mul(1 << (self.failures - 1).min(10)).min(BACKOFF_MAX);
        self.not_before = Some(Instant::now() + ceiling.mul_f64(rand::random_range(0.5..1.0)));
    }

    /// Shortens the wait to the first back-off, not to zero. Repeated requests must not make the
    /// backend start again and again.
    pub(super) fn shorten(&mut self) {
        self.not_before = self.not_before.min(Some(Instant::now() + BACKOFF_FIRST));
    }

    /// Clears earlier failures after a long connection. Counts a short one as a failure.
    pub(super) fn record_lifetime(&mut self, lived: Duration) {
        if lived >= STABLE_AFTER {
            *self = Self::default();
        } else {
            self.record_failure();
        }
    }

    /// Returns the time to wait before the next attempt. Refuses a long one.
    pub(super) fn delay(&self, backend: &BackendId) -> Result<Duration, Refusal> {
        let remaining = self
            .not_before
            .map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()));
        if remaining > BACKOFF_WAIT_MAX {
            let text = format!("backend {backend} cannot be reached");
            return Err(Refusal::new(ErrorKind::BackendUnavailable, text).retry_after(remaining));
        }
        Ok(remaining)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortened_backoff_permits_one_early_attempt_and_keeps_its_failures() {
        let mut backoff = Backoff::default();
        backoff.shorten();
        assert_eq!(backoff.not_before, None, "nothing to forgive");
        (0..12).for_each(|_| backoff.record_failure());
        assert!(
            backoff.not_before.unwrap() > Instant::now() + BACKOFF_WAIT_MAX,
            "would be refused"
        );
        backoff.shorten();
        let soon = backoff.not_before.unwrap();
        assert!(soon > Instant::now() && soon <= Instant::now() + BACKOFF_FIRST);
        backoff.record_failure();
        assert!(
            backoff.not_before.unwrap() > Instant::now() + BACKOFF_WAIT_MAX,
            "earlier failures are remembered"
        );
    }
}
