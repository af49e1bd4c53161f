//! The early ping of a backend. A request that could not be sent shows that the backend may be gone.
//! The broker then pings it before the interval between two pings is over.

use tokio::sync::Notify;

use super::link::failure::Failure;

/// Requests for an early ping of one backend. Several requests before a ping cause one ping.
#[derive(Debug, Default)]
pub(super) struct EarlyPing {
    wanted: Notify,
}

impl EarlyPing {
    /// Requests a ping if this failure shows that the backend may be gone. While the backend counts
    /// as unreachable (`is_ready` is false), the broker tries to reach it anyway.
    pub(super) fn record_failure(&self, failure: &Failure, is_ready: bool) {
        if is_ready && matches!(failure, Failure::NotSent(_)) {
            self.wanted.notify_one();
        }
    }

    /// Waits until a ping is requested.
    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }
}
