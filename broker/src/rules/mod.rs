//! Decisions, pure: time is an argument, nothing awaits, nothing reads a socket or a store.
//!
//! The rest of the broker asks here what a message means and what has to happen; [`crate::actors`] makes it happen.

pub mod arguments;
pub mod budget;
pub mod catalog;
pub mod completion;
pub mod cursor;
pub mod event_log;
pub mod exposure;
pub mod log_level;
pub mod names;
pub mod offer;
pub mod routing;
pub mod sharing;
pub mod tasks;
