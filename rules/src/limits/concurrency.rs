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
/// Largest latency with which one answer counts, as a multiple of the largest good one. A backend
/// then counts as slow only if slow answers are a considerable part of all answers.
pub const CONCURRENCY_SHARE_MAX: f64 = 4.0;
/// Factor by which the concurrency limit of a slow backend shrinks.
pub const CONCURRENCY_BACKS_OFF_TO: f64 = 0.8;
/// Kinds of calls, such as tools, of one backend whose best latencies are known. Further kinds share
/// one.
pub const CONCURRENCY_KINDS_MAX: usize = 256;
/// Time without an answer after which a kind gives its place to another one.
pub const CONCURRENCY_KIND_IDLE: Duration = Duration::from_secs(10 * 60);
/// Answers whose mean latency can be a new best latency. The mean of fewer may be low by chance.
pub const CONCURRENCY_SAMPLE_ANSWERS: u32 = 8;
