//! That nobody wants a call's answer any more: said by anybody, heard by whoever carries the call out.

use std::{
    future::poll_fn,
    sync::atomic::{AtomicBool, Ordering},
    task::Poll,
};

use futures_util::task::AtomicWaker;

/// One waits for it, and each call has one: a token for many would keep a list of who waits, behind a lock.
#[derive(Debug, Default)]
pub(super) struct GivenUp {
    is_said: AtomicBool,
    hearer: AtomicWaker,
}

impl GivenUp {
    pub(super) fn say(&self) {
        self.is_said.store(true, Ordering::Release);
        self.hearer.wake();
    }

    pub(super) fn is_said(&self) -> bool {
        self.is_said.load(Ordering::Acquire)
    }

    /// Resolves once it is said. For one at a time.
    pub(super) async fn heard(&self) {
        poll_fn(|context| {
            self.hearer.register(context.waker());
            // Behind that, so that nothing is said in between.
            if self.is_said() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn it_is_heard_whether_it_is_said_before_or_after() {
        let given_up = Arc::<GivenUp>::default();
        assert!(!given_up.is_said());
        let hearing = tokio::spawn({
            let given_up = given_up.clone();
            async move { given_up.heard().await }
        });
        tokio::task::yield_now().await;
        given_up.say();
        hearing.await.unwrap();
        given_up.heard().await;
        assert!(given_up.is_said());
    }
}
