//! Limits of the operators' console and of the routes that it uses.

use std::time::Duration;

/// Life of a login of the console.
pub const CONSOLE_LOGIN_LIFE: Duration = Duration::from_secs(8 * 3_600);
/// The cookie of a login. Browsers keep no longer one.
pub const CONSOLE_COOKIE_BYTES_MAX: usize = 3_800;
/// Recent refusals and errors that a replica remembers.
pub const ACTIVITY_ENTRIES_MAX: usize = 1_000;
/// Text of an entry of the activity: a target, or the name of a rule.
pub const ACTIVITY_TEXT_CHARS_MAX: usize = 256;
/// Backends in trouble that the overview names.
pub const OVERVIEW_TROUBLED_MAX: usize = 20;
/// The subject that an operator names for a trial, encoded.
pub const TRIAL_SUBJECT_BYTES_MAX: usize = 8 * 1024;
/// Shortest key of a page of the console.
pub const PAGE_KEY_BYTES_MIN: usize = 32;
