//! Child processes of stdio backends.

use std::time::Duration;

/// Interval at which the broker looks for unused child processes.
pub const CHILD_IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// A child process that reads nothing for this long while the broker writes is ended. A server that
/// does one thing at a time reads nothing during a long call.
pub const CHILD_WRITE_STALL_MAX: Duration = Duration::from_secs(300);
