//! The pauses between repetitions of an operation that the store did not complete.

use std::time::Duration;

use rules::limits::{STORE_RETRY_FIRST, STORE_RETRY_MAX};

/// The next pause. Each one is twice as long as the one before it, up to [`STORE_RETRY_MAX`].
#[derive(Debug)]
pub struct StoreRetry {
    next: Duration,
}

impl Default for StoreRetry {
    fn default() -> Self {
        Self { next: STORE_RETRY_FIRST }
    }
}

impl StoreRetry {
    pub async fn pause(&mut self) {
        tokio::time::sleep(self.next).await;
        self.next = (self.next * 2).min(STORE_RETRY_MAX);
    }
}
