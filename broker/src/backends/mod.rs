//! Backends and the links to them: what a request passes on its way to a backend, and what a backend sends on its own.
//!
//! Knows no session: who asks and who listens is behind traits.

pub mod asker;
pub mod backend;
pub mod backend_admission;
pub mod catalog_refresh;
pub mod children;
pub mod inbound;
pub mod link;
pub mod policy;
pub mod prober;
pub mod schema_cache;
pub mod subscriptions;
pub mod validation_pool;
