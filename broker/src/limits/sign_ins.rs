//! Limits of what is kept and told of failed sign-ins.

use std::time::Duration;

/// Addresses whose failed sign-ins are counted, and series of failures that are told; further ones share one.
pub const SIGN_IN_ADDRESSES_MAX: usize = 1_000;
/// Failed sign-ins of an address are counted, and told together, by this time.
pub const SIGN_IN_WINDOW: Duration = Duration::from_secs(60);
/// Interval of looking for such times that are over.
pub const SIGN_IN_CLOSE_INTERVAL: Duration = Duration::from_secs(5);
/// Lines of the log about failed sign-ins in that time; how many were left out is told by the next.
pub const SIGN_IN_LOG_LINES_MAX: u64 = 60;

const _: () = assert!(SIGN_IN_CLOSE_INTERVAL.as_secs() < SIGN_IN_WINDOW.as_secs()); // what is over makes room in time
