//! Signal that ends a call before its answer is there. Any part of the broker sets it; the call's
//! future waits for it.

use std::{
    future::poll_fn,
    sync::atomic::{AtomicBool, Ordering},
    task::Poll,
};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

/// The signal of one call, with one waiter. A token shared by many calls would keep a list of
/// waiters behind a lock.
#[derive(Debug, Default)]
pub(super) struct Interrupt {
    is_cancelled: AtomicBool,
    is_expired: AtomicBool,
    /// The client's reason for its cancellation, as sent.
    client_reason: Mutex<Option<Bytes>>,
    waker: AtomicWaker,
}

/// Reason of an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InterruptReason {
    /// The client does not want the answer any more.
    Cancelled,
    /// The call's deadline has passed.
    Expired,
}

impl Interrupt {
    /// Ends the call for its client. `client_reason` is the reason that the client gave.
    pub(super) fn cancel(&self, client_reason: Option<Bytes>) {
        *self.client_reason.lock() = client_reason;
        self.is_cancelled.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
    }

    /// Returns the client's reason for its cancellation, once.
    pub(super) fn take_client_reason(&self) -> Option<Bytes> {
        self.client_reason.lock().take()
    }

    pub(super) fn expire(&self) {
        self.is_expired.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(super) fn is_expired(&self) -> bool {
        self.is_expired.load(Ordering::Acquire)
    }

    /// Resolves once a reason is set. One waiter at a time.
    pub(super) async fn interrupted(&self) -> InterruptReason {
        poll_fn(|context| {
            self.waker.register(context.waker());
            // The check follows the registration, so that no signal in between is missed.
            match (self.is_cancelled(), self.is_expired()) {
                (true, _) => Poll::Ready(InterruptReason::Cancelled),
                (false, true) => Poll::Ready(InterruptReason::Expired),
                (false, false) => Poll::Pending,
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn an_interrupt_is_received_if_set_before_or_after_the_wait() {
        let cut_short = Arc::<Interrupt>::default();
        let hearing = tokio::spawn({
            let cut_short = cut_short.clone();
            async move { cut_short.interrupted().await }
        });
        tokio::task::yield_now().await;
        cut_short.expire();
        assert_eq!(hearing.await.unwrap(), InterruptReason::Expired);
        assert!(!cut_short.is_cancelled());
        cut_short.cancel(None);
        assert_eq!(
            cut_short.interrupted().await,
            InterruptReason::Cancelled,
            "a client that cancelled its request gets no timeout"
        );
    }
}
