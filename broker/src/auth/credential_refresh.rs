//! Reads of the store for credentials that this process does not know.
//!
//! Another replica may have stored a new key or an operator's token a moment ago. A sign-in with an
//! unknown one therefore waits for the next read of the store. All sign-ins that wait at the same
//! time share one read.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering},
};

use rules::limits::{CREDENTIAL_READ_WAIT_MAX, CREDENTIAL_READ_WAITERS_MAX};
use tokio::{
    sync::{Notify, Semaphore, watch},
    time::timeout,
};

/// Connects sign-ins that wait with the task that reads the store.
#[derive(Debug)]
pub struct CredentialRefresh {
    /// Requests a read. Unset while no other replica writes to the store.
    requested: OnceLock<Arc<Notify>>,
    /// Number of reads that have begun.
    started: AtomicU64,
    /// Number of the newest read that has ended.
    ended: watch::Sender<u64>,
    waiters: Semaphore,
}

/// Number of one read of the store.
#[derive(Debug, Clone, Copy)]
pub struct CredentialRead(u64);

impl Default for CredentialRefresh {
    fn default() -> Self {
        Self {
            requested: OnceLock::new(),
            started: AtomicU64::new(0),
            ended: watch::Sender::new(0),
            waiters: Semaphore::new(CREDENTIAL_READ_WAITERS_MAX),
        }
    }
}

impl CredentialRefresh {
    /// Lets sign-ins wait from now on. `requested` wakes the task that reads the store.
    pub fn enable(&self, requested: Arc<Notify>) {
        let _enabled_before = self.requested.set(requested);
    }

    /// Notes that a read begins.
    pub fn start(&self) -> CredentialRead {
        CredentialRead(self.started.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// Notes that a read has ended and is applied.
    pub fn end(&self, read: CredentialRead) {
        self.ended.send_replace(read.0);
    }

    /// Waits a limited time for a read that begins after this call. Returns whether such a read
    /// has ended. Does not wait if no other replica writes to the store, or if too many wait.
    pub async fn wait(&self) -> bool {
        let Some(requested) = self.requested.get() else { return false };
        let Ok(_permit) = self.waiters.try_acquire() else { return false };
        let next = self.started.load(Ordering::Acquire) + 1;
        let mut ended = self.ended.subscribe();
        requested.notify_one();
        let read = timeout(CREDENTIAL_READ_WAIT_MAX, ended.wait_for(|read| *read >= next));
        read.await.is_ok_and(|read| read.is_ok())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn enabled() -> (CredentialRefresh, Arc<Notify>) {
        let (refresh, requested) = (CredentialRefresh::default(), Arc::new(Notify::new()));
        refresh.enable(requested.clone());
        (refresh, requested)
    }

    #[tokio::test]
    async fn a_single_process_never_waits() {
        assert!(!CredentialRefresh::default().wait().await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_began_before_the_wait_does_not_end_it() {
        let (refresh, requested) = enabled();
        let earlier = refresh.start();
        let mut waiting = Box::pin(refresh.wait());
        assert!(waiting.as_mut().now_or_never().is_none());
        requested.notified().await;
        refresh.end(earlier);
        assert!(waiting.as_mut().now_or_never().is_none(), "it may have read before the change");
        let next = refresh.start();
        refresh.end(next);
        assert!(waiting.await);
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_is_limited_in_time_and_in_number() {
        let (refresh, _requested) = enabled();
        let started = tokio::time::Instant::now();
        let mut all: Vec<_> =
            (0..CREDENTIAL_READ_WAITERS_MAX).map(|_| Box::pin(refresh.wait())).collect();
        assert!(all.iter_mut().all(|one| one.as_mut().now_or_never().is_none()));
        assert_eq!(refresh.wait().now_or_never(), Some(false), "one too many");
        assert!(!all.remove(0).await);
        assert_eq!(started.elapsed(), CREDENTIAL_READ_WAIT_MAX);
        assert!(refresh.wait().now_or_never().is_none(), "a permit is free again");
    }
}
