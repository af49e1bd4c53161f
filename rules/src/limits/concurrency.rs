//! Limits of the adaptive concurrency of a backend.

use std::time::Duration;

/// Smallest adaptive concurrency limit of a backend.
pub const CONCURRENCY_MIN: usize = 2;
/// Interval at which the adaptive concurrency limit is recomputed.
pub const CONCURRENCY_ROUND: Duration = Duration::from_millis(250);
/// Multiple of its best latency above which a backend counts as slow,
pub const CONCURRENCY_TOLERANCE: f64 = 2.0;
/// plus this much.
pub const CONCURRENCY_SLACK: Duration = Duration::from_millis(5);
/// Factor by which the concurrency limit of a slow backend shrinks.
pub const CONCURRENCY_BACKS_OFF_TO: f64 = 0.8;
/// Kinds of calls, such as tools, of one backend whose best latencies are known. Further kinds share
/// one.
pub const CONCURRENCY_KINDS_MAX: usize = 256;
/// Answers whose mean latency can be a new best latency. The mean of fewer may be low by chance.
pub const CONCURRENCY_SAMPLE_ANSWERS: u32 = 8;
