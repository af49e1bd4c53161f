//! Limits of the records and reports of failed sign-ins.

use std::time::Duration;

/// Addresses and kinds of failed sign-ins that the broker counts apart.
pub const SIGN_IN_ADDRESSES_MAX: usize = 1_000;
/// Window in which the broker counts the failed sign-ins of an address and reports them
/// together.
pub const SIGN_IN_WINDOW: Duration = Duration::from_secs(60);
/// Interval at which the broker looks for windows that have ended.
pub const SIGN_IN_CLOSE_INTERVAL: Duration = Duration::from_secs(5);
/// Log lines about failed sign-ins in one window; the next line has the number of omitted ones.
pub const SIGN_IN_LOG_LINES_MAX: u64 = 60;

const _: () = assert!(SIGN_IN_CLOSE_INTERVAL.as_secs() < SIGN_IN_WINDOW.as_secs()); // what is over frees capacity in time
