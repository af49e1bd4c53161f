//! Clock of one session: its beginning, and the times of its last events.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Times of one session. `now_ms` is the uptime of the process, in milliseconds.
#[derive(Debug)]
pub(super) struct SessionClock {
    pub(super) created_at: jiff::Timestamp,
    touched_ms: AtomicU64,
    /// Last time at which [`Session::idle_for`] found a request in flight or a connected stream.
    ///
    /// [`Session::idle_for`]: super::Session::idle_for
    busy_ms: AtomicU64,
    /// The last stored time of a message from the client.
    seen_stored_ms: AtomicU64,
}

impl SessionClock {
    pub(super) fn new(created_at: jiff::Timestamp, now_ms: u64) -> Self {
        Self {
            created_at,
            touched_ms: AtomicU64::new(now_ms),
            busy_ms: AtomicU64::new(now_ms),
            seen_stored_ms: AtomicU64::new(now_ms),
        }
    }

    /// Notes a message from the client.
    pub(super) fn touch(&self, now_ms: u64) {
        self.touched_ms.store(now_ms, Ordering::Relaxed);
    }

    pub(super) fn record_busy(&self, now_ms: u64) {
        self.busy_ms.store(now_ms, Ordering::Relaxed);
    }

    pub(super) fn record_stored(&self, now_ms: u64) {
        self.seen_stored_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Returns the time since the last message from the client.
    pub(super) fn since_touched(&self, now_ms: u64) -> Duration {
        Duration::from_millis(now_ms.saturating_sub(self.touched_ms.load(Ordering::Relaxed)))
    }

    pub(super) fn since_busy(&self, now_ms: u64) -> Duration {
        Duration::from_millis(now_ms.saturating_sub(self.busy_ms.load(Ordering::Relaxed)))
    }

    pub(super) fn seen_stored_ms(&self) -> u64 {
        self.seen_stored_ms.load(Ordering::Relaxed)
    }
}
