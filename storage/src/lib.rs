//! Records that outlive the process: tenants, API keys, backends, sessions, subscriptions, tasks,
//! grants, approvals, pins, long results, root keys and event streams.
//!
//! The broker holds trait objects ([`DurableStore`], [`EventStore`], [`HotStore`]) and does not
//! depend on the engine behind them. `conformance` defines the behaviours of an engine once. An
//! implementation is valid if it passes them. A write to a [`DurableStore`] that returned `Ok` is
//! on disk. The content of a [`HotStore`] may be lost at any time.

mod approval_store;
mod audit_chain_store;
mod audit_rows;
mod audit_store;
mod config_store;
#[cfg(any(test, feature = "test"))]
pub mod conformance;
mod durable_store;
mod error;
mod event_store;
pub mod fault_point;
mod grant_store;
pub mod hot;
mod migrations;
mod node_store;
mod pin_store;
mod postgres;
mod result_store;
mod seal_rows;
mod seal_store;
mod session_store;
mod sqlite;
mod task_page;
mod task_store;
mod url_login;

pub use approval_store::ApprovalStore;
pub use audit_chain_store::AuditChainStore;
pub use audit_store::AuditStore;
pub use config_store::ConfigStore;
pub use durable_store::DurableStore;
pub use error::StoreError;
pub use event_store::EventStore;
pub use grant_store::GrantStore;
pub use hot::{HotStore, MemoryHotStore, OwnerHint, RedisOptions, RedisStore, Wakeup};
pub use node_store::NodeStore;
pub use pin_store::PinStore;
pub use postgres::{PostgresOptions, PostgresStore, check_postgres_url};
pub use result_store::ResultStore;
pub use seal_store::SealStore;
pub use session_store::SessionStore;
pub use sqlite::{MigrationOutcome, SqliteOptions, SqliteStore};
pub use task_store::TaskStore;
pub use url_login::differ_in_login_only;
