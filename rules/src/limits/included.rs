//! Limits of the files of `include.folder`.

/// Files of `include.folder`.
pub const INCLUDED_FILES_MAX: usize = 1000;
