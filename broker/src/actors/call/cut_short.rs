//! That a call is to end before its answer is there: said by anybody, heard by whoever carries the call out.

use std::{
    future::poll_fn,
    sync::atomic::{AtomicBool, Ordering},
    task::Poll,
};

use futures_util::task::AtomicWaker;

/// One waits for it, and each call has one: a token for many would keep a list of who waits, behind a lock.
#[derive(Debug, Default)]
pub(super) struct CutShort {
    is_cancelled: AtomicBool,
    is_late: AtomicBool,
    hearer: AtomicWaker,
}

/// Why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// Nobody wants the answer any more.
    Cancelled,
    /// Its time is up.
    Late,
}

impl CutShort {
    pub(super) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Release);
        self.hearer.wake();
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
    }

    pub(super) fn be_late(&self) {
        self.is_late.store(true, Ordering::Release);
        self.hearer.wake();
    }

    pub(super) fn is_late(&self) -> bool {
        self.is_late.load(Ordering::Acquire)
    }

    /// Resolves once it is said. For one at a time.
    pub(super) async fn heard(&self) -> Cut {
        poll_fn(|context| {
            self.hearer.register(context.waker());
            // Behind that, so that nothing is said in between.
            match (self.is_cancelled(), self.is_late()) {
                (true, _) => Poll::Ready(Cut::Cancelled),
                (false, true) => Poll::Ready(Cut::Late),
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
        let cut_short = Arc::<CutShort>::default();
        let hearing = tokio::spawn({
            let cut_short = cut_short.clone();
            async move { cut_short.heard().await }
        });
        tokio::task::yield_now().await;
        cut_short.be_late();
        assert_eq!(hearing.await.unwrap(), Cut::Late);
        assert!(!cut_short.is_cancelled());
        cut_short.cancel();
        assert_eq!(cut_short.heard().await, Cut::Cancelled, "who wants no answer is told of no timeout");
    }
}
