//! What lives and waits: sessions, calls, links to backends, event streams. They own state and carry out what
//! [`crate::rules`] decides.

pub mod asker;
pub mod backend;
pub mod backend_admission;
pub mod call;
pub mod catalog_refresh;
pub mod children;
pub mod concurrency_limit;
pub mod inbound;
pub mod link;
pub mod policy;
pub mod prober;
pub mod request_observer;
pub mod schema_cache;
pub mod session;
pub mod shared;
pub mod stateless;
pub mod stream;
pub mod subscriptions;
mod sync;
pub mod tasks;
pub mod tenant;
pub mod validation_pool;
