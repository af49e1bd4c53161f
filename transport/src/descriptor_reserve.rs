//! Whether the process may use another file descriptor for clients and backends. Some are kept in reserve, so that health
//! probes, operators and the stores are served when strangers have used up the rest.

use std::{fs::File, os::fd::AsRawFd};

use rustix::process::{Resource, getrlimit};

/// Kept free, unless the limit is so low that a quarter of it is less.
const RESERVE: u64 = 64;

/// Why a backend is not connected to, for operators.
pub(crate) const NONE_LEFT: &str = "no file descriptor is left for clients and backends";

/// The first number that is of the reserve. Read anew each time: the limit may be moved while the process runs.
fn reserve_begins() -> u64 {
    match getrlimit(Resource::Nofile).current {
        Some(limit) => limit - RESERVE.min(limit / 4),
        None => u64::MAX,
    }
}

/// Whether this descriptor is of the reserve. Numbers are given lowest first, so all others are in use then.
pub fn is_of_reserve(descriptor: &impl AsRawFd) -> bool {
    u64::try_from(descriptor.as_raw_fd()).is_ok_and(|number| number >= reserve_begins())
}

/// Whether there is one left outside the reserve.
pub fn is_left() -> bool {
    // Whatever is opened gets the number the next connection would get.
    File::open("/dev/null").is_ok_and(|probe| !is_of_reserve(&probe))
}
