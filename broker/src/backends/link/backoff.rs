//! Back-off of a backend that cannot be reached.

use std::time::{Duration, Instant};

use protocol::{
    error::{ErrorKind, Refusal},
    ids::BackendId,
};
use rules::limits::{BACKOFF_FIRST, BACKOFF_MAX, BACKOFF_WAIT_MAX, STABLE_AFTER};

use super::failure::Failure;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Backoff {
    pub(super) failures: u32,
    pub(super) not_before: Option<Instant>,
    /// Set if the last failed attempt or short connection does not show an unhealthy or unreachable
    /// backend.
    pub(super) is_harmless: bool,
}

impl Backoff {
    /// Records an attempt that ended without a connection.
    pub(super) fn record_failed_attempt(&mut self, failure: &Failure) {
        self.is_harmless = !failure.counts_for_breaker();
        // The next call may come right after the user connected an account.
        if !failure.needs_user_action() {
            self.record_failure();
        }
    }

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

    /// Clears earlier failures after a long connection. Counts a short one as a failure, which is not
    /// harmless: the backend let the broker in and then lost the connection.
    pub(super) fn record_lifetime(&mut self, lived: Duration) {
        if lived >= STABLE_AFTER {
            *self = Self::default();
        } else {
            self.is_harmless = false;
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

    #[test]
    fn a_refused_attempt_does_not_show_an_unhealthy_backend() {
        let mut backoff = Backoff::default();
        backoff.record_failed_attempt(&Failure::NotSent("refused connection".to_owned()));
        assert_eq!((backoff.is_harmless, backoff.failures), (false, 1));
        backoff.record_failed_attempt(&Failure::Denied("status 403".to_owned()));
        assert_eq!((backoff.is_harmless, backoff.failures), (true, 2));
        backoff.record_failed_attempt(&Failure::TokenRequired("no caller".to_owned()));
        assert_eq!((backoff.is_harmless, backoff.failures), (true, 2), "the user acts next");
        backoff.record_failed_attempt(&Failure::Protocol("status 500".to_owned()));
        assert_eq!((backoff.is_harmless, backoff.failures), (false, 3));
    }

    #[test]
    fn a_short_connection_after_a_refused_attempt_is_not_harmless() {
        let mut backoff = Backoff::default();
        backoff.record_failed_attempt(&Failure::Denied("status 403".to_owned()));
        backoff.record_lifetime(Duration::ZERO);
        assert_eq!((backoff.is_harmless, backoff.failures), (false, 2));
    }
}
