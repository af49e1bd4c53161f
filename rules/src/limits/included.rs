//! Limits of the files of `include.folder`.

/// Files of `include.folder`.
pub const INCLUDED_FILES_MAX: usize = 1000;

/// Number of readings of the folder after which the broker tries unchanged files with faults again.
pub const INCLUDED_RETRY_READINGS: u32 = 10;
