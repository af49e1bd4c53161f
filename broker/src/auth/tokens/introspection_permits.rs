//! Permits for introspections, some of them reserved.
//!
//! Invariant: tokens that were never valid cannot take the reserved permits, however many there
//! are.

use tokio::sync::{Semaphore, SemaphorePermit};

/// Permits of which a part is reserved for tokens that were valid before.
#[derive(Debug)]
pub(super) struct ReservedPermits {
    all: Semaphore,
    /// Permits that new tokens can have at the same time.
    of_new: Semaphore,
}

/// A permit. A new token has one of both kinds.
#[derive(Debug)]
pub(super) struct IntrospectionPermit<'a> {
    _of_new: Option<SemaphorePermit<'a>>,
    _of_all: SemaphorePermit<'a>,
}

impl ReservedPermits {
    pub(super) fn new(count: usize, reserved: usize) -> Self {
        Self { all: Semaphore::new(count), of_new: Semaphore::new(count.saturating_sub(reserved)) }
    }

    /// Waits for a permit. `None`: the broker ends.
    pub(super) async fn acquire(&self, was_valid: bool) -> Option<IntrospectionPermit<'_>> {
        let of_new = match was_valid {
            true => None,
            false => Some(self.of_new.acquire().await.ok()?),
        };
        let of_all = self.all.acquire().await.ok()?;
        Some(IntrospectionPermit { _of_new: of_new, _of_all: of_all })
    }

    /// Returns a permit if there is one now.
    pub(super) fn try_acquire(&self, was_valid: bool) -> Option<IntrospectionPermit<'_>> {
        let of_new = match was_valid {
            true => None,
            false => Some(self.of_new.try_acquire().ok()?),
        };
        let of_all = self.all.try_acquire().ok()?;
        Some(IntrospectionPermit { _of_new: of_new, _of_all: of_all })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn new_tokens_leave_the_reserved_permits() {
        let permits = ReservedPermits::new(3, 1);
        let of_new: Vec<_> = std::iter::from_fn(|| permits.try_acquire(false)).collect();
        assert_eq!(of_new.len(), 2);
        assert!(permits.acquire(false).now_or_never().is_none());
        let known = permits.acquire(true).now_or_never().flatten();
        assert!(known.is_some() && permits.try_acquire(true).is_none());
        drop(of_new);
        assert!(permits.try_acquire(true).is_some(), "known tokens can use all of them");
    }
}
