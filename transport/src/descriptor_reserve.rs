//! Keeps a reserve of file descriptors. Health probes, operators and the stores can use the reserve
//! when client and backend connections have used up the rest.

use std::{fs::File, os::fd::AsRawFd};

use rustix::process::{Resource, getrlimit};

/// Descriptors in the reserve. The reserve is smaller when this exceeds a quarter of the limit.
const RESERVE: u64 = 64;

/// Reason that operators see when a backend connection is refused.
pub(crate) const DESCRIPTORS_EXHAUSTED: &str =
    "no file descriptor is left for clients and backends";

/// Returns the lowest descriptor number in the reserve. Reads the limit each time, because it may
/// change while the process runs.
fn reserve_begins() -> u64 {
    match getrlimit(Resource::Nofile).current {
        Some(limit) => limit - RESERVE.min(limit / 4),
        None => u64::MAX,
    }
}

/// Returns whether this descriptor is in the reserve. The system assigns the lowest free number, so
/// all lower numbers are then in use.
pub fn is_reserved(descriptor: &impl AsRawFd) -> bool {
    u64::try_from(descriptor.as_raw_fd()).is_ok_and(|number| number >= reserve_begins())
}

/// Returns whether a descriptor outside the reserve is free.
pub fn is_available() -> bool {
    // A file opened now gets the number that the next connection would get.
    File::open("/dev/null").is_ok_and(|probe| !is_reserved(&probe))
}
