//! Decisions, pure: time is an argument, nothing awaits, nothing reads a socket or a store.
//!
//! The rest of the broker asks here what a message means and what has to happen; [`crate::sessions`] and [`crate::backends`] make it happen.

pub mod adaptive_concurrency;
pub mod arguments;
pub mod audit_retention;
pub mod breaker;
pub mod catalog;
pub mod client_network;
pub mod completion;
pub mod cursor;
pub mod deadlines;
pub mod endpoint;
pub mod endpoint_info;
pub mod event_log;
pub mod exposed_names;
pub mod exposure;
pub mod fair_queue;
pub mod gcra;
pub mod link_sharing;
pub mod local_rate_limit;
pub mod log_level;
pub mod retries;
pub mod routing;
pub mod shared_rate_limit;
pub mod sign_in_failures;
pub mod stateless;
pub mod stateless_tasks;
pub mod tasks;
