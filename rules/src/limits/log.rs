//! Limits of log filters that operators set while the broker runs.

use std::time::Duration;

/// Text of a log filter that an operator sets.
pub const LOG_FILTER_BYTES_MAX: usize = 1_024;
/// Shortest time for which an operator sets a log filter.
pub const LOG_FILTER_TIME_MIN: Duration = Duration::from_secs(1);
/// Time for which an operator sets a log filter without stating one.
pub const LOG_FILTER_TIME_DEFAULT: Duration = Duration::from_secs(10 * 60);
/// Longest time for which an operator sets a log filter.
pub const LOG_FILTER_TIME_MAX: Duration = Duration::from_secs(24 * 3_600);

const _: () = assert!(LOG_FILTER_TIME_MIN.as_secs() < LOG_FILTER_TIME_DEFAULT.as_secs());
const _: () = assert!(LOG_FILTER_TIME_DEFAULT.as_secs() < LOG_FILTER_TIME_MAX.as_secs());
