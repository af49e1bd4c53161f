//! The part of the metrics that streams move.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Counts what the copied files report.
#[derive(Debug, Default)]
pub struct Metrics {
    pub limits: LimitMetrics,
    cuts: AtomicU64,
}

/// Counts the bytes that wait for clients.
#[derive(Debug, Default)]
pub struct LimitMetrics {
    outbox_bytes: AtomicI64,
}

impl Metrics {
    /// Counts a stream that was cut.
    pub fn rate_limited(&self, _scope: &str) {
        self.cuts.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many streams were cut.
    pub fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Relaxed)
    }
}

impl LimitMetrics {
    /// Replaces a part of the waiting bytes.
    pub fn outbox_bytes(&self, before: usize, now: usize) {
        self.outbox_bytes.fetch_add(now as i64 - before as i64, Ordering::Relaxed);
    }

    /// Returns the waiting bytes.
    pub fn shown_outbox_bytes(&self) -> i64 {
        self.outbox_bytes.load(Ordering::Relaxed)
    }
}
