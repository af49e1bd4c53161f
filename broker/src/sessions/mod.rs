//! Sessions with their calls, streams and tasks, and stateless clients. They stand on [`crate::backends`].
//!
//! From bottom to top: streams; sessions; approvals; calls; tasks; stored results; [`submit`], which takes requests; stateless clients.

pub mod access_checks;
mod access_log;
pub mod approval_waits;
pub mod approvals;
pub mod call;
mod catalog_changes;
mod connect_tool;
pub mod deadline_list;
mod kept_results;
pub mod loop_guard;
mod progress;
mod published_catalog;
pub mod registry;
pub mod relayed_streams;
pub mod request_observer;
pub mod session;
pub mod shared;
pub mod stateless;
pub mod stream;
pub mod submit;
pub mod task_host;
mod task_limits;
pub mod tasks;
pub mod tenant;
pub mod tenant_access;
mod tenant_backends;
mod tenant_lists;
mod tenant_sessions;
pub mod unread_answer;
