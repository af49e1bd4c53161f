//! Pure decisions: time is an argument. Nothing here awaits, or reads a socket or a store.
//!
//! A rule determines what a message means and what has to happen. Its sessions and backends
//! carry the decision out. Limits that are not settings are in [`limits`].

pub mod access;
pub mod adaptive_concurrency;
pub mod approvals;
pub mod arguments;
pub mod audit_retention;
pub mod batch;
pub mod breaker;
pub mod byte_window;
pub mod catalog;
pub mod client_network;
pub mod client_transport;
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
mod glob;
pub mod limits;
pub mod link_sharing;
pub mod local_rate_limit;
pub mod log_level;
pub mod maps;
pub mod operators;
pub mod pins;
pub mod resource_uri;
pub mod result_budget;
pub mod retries;
pub mod routing;
pub mod shared_permits;
pub mod shared_rate_limit;
pub mod sign_in_failures;
pub mod stateless;
pub mod stateless_tasks;
pub mod stored_trace;
pub mod task_polls;
pub mod tasks;
pub mod tool_error;
pub mod toolsets;
pub mod used_window;
