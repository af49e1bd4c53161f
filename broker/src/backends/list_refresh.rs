//! Requests to read the lists of a backend again, and the reads that follow them.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use futures_util::FutureExt;
use tokio::sync::{Notify, watch};

/// One task reads the lists. Any task can request another read, and can wait for it.
#[derive(Debug)]
pub(super) struct ListRefresh {
    requested: Notify,
    /// Number of reads that started.
    started: AtomicU64,
    /// Number of reads that ended, with or without lists.
    ended: watch::Sender<u64>,
}

impl Default for ListRefresh {
    fn default() -> Self {
        Self { requested: Notify::new(), started: AtomicU64::new(0), ended: watch::Sender::new(0) }
    }
}

impl ListRefresh {
    pub(super) fn request(&self) {
        self.requested.notify_one();
    }

    pub(super) async fn requested(&self) {
        self.requested.notified().await;
    }

    /// Takes a request. Returns whether there was one.
    pub(super) fn take_request(&self) -> bool {
        self.requested.notified().now_or_never().is_some()
    }

    pub(super) fn read_started(&self) {
        self.started.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read_ended(&self) {
        self.ended.send_replace(self.started.load(Ordering::Relaxed));
    }

    /// Requests a read, and waits until one that starts after this call has ended.
    pub(super) async fn read_again(&self, within: Duration) {
        let mut ended = self.ended.subscribe();
        let next = self.started.load(Ordering::Relaxed) + 1;
        self.request();
        let read = ended.wait_for(|ended| *ended >= next);
        let _late = tokio::time::timeout(within, read).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_read_that_started_before_the_request_does_not_count() {
        let refresh = Arc::new(ListRefresh::default());
        refresh.read_started();
        let mut waits = Box::pin(refresh.read_again(Duration::from_secs(60)));
        assert!(waits.as_mut().now_or_never().is_none());
        refresh.read_ended();
        assert!(waits.as_mut().now_or_never().is_none(), "it may have read the old lists");
        assert!(refresh.take_request() && !refresh.take_request());
        refresh.read_started();
        assert!(waits.as_mut().now_or_never().is_none());
        refresh.read_ended();
        assert!(waits.now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_for_lists_ends_at_its_deadline() {
        let (refresh, started) = (ListRefresh::default(), tokio::time::Instant::now());
        refresh.read_again(Duration::from_secs(7)).await;
        assert_eq!(started.elapsed(), Duration::from_secs(7));
    }
}
