//! That a call is to end before its answer is there: said by anybody, heard by whoever carries the call out.

use std::{
    future::poll_fn,
    sync::atomic::{AtomicBool, Ordering},
    task::Poll,
};

use futures_util::task::AtomicWaker;

/// One waits for it, and each call has one: a token for many would keep a list of who waits, behind a lock.
#[derive(Debug, Default)]
pub(super) struct Interrupt {
    is_cancelled: AtomicBool,
    is_expired: AtomicBool,
    waker: AtomicWaker,
}

/// Why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InterruptReason {
    /// Nobody wants the answer any more.
    Cancelled,
    /// Its time is up.
    Expired,
}

impl Interrupt {
    pub(super) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
    }

    pub(super) fn expire(&self) {
        self.is_expired.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(super) fn is_expired(&self) -> bool {
        self.is_expired.load(Ordering::Acquire)
    }

    /// Resolves once it is said. For one at a time.
    pub(super) async fn interrupted(&self) -> InterruptReason {
        poll_fn(|context| {
            self.waker.register(context.waker());
            // Behind that, so that nothing is said in between.
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
    async fn it_is_heard_whether_it_is_said_before_or_after() {
        let cut_short = Arc::<Interrupt>::default();
        let hearing = tokio::spawn({
            let cut_short = cut_short.clone();
            async move { cut_short.interrupted().await }
        });
        tokio::task::yield_now().await;
        cut_short.expire();
        assert_eq!(hearing.await.unwrap(), InterruptReason::Expired);
        assert!(!cut_short.is_cancelled());
        cut_short.cancel();
        assert_eq!(
            cut_short.interrupted().await,
            InterruptReason::Cancelled,
            "who wants no answer is told of no timeout"
        );
    }
}
