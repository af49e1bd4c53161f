//! Records that outlive the process: tenants, API keys and backends.
//!
//! The broker holds an [`Arc<dyn ConfigStore>`](ConfigStore) and never learns which engine is behind it. What an engine
//! must do is written once, as the behaviours of `conformance`; an implementation is what passes them.
//! A write that returned `Ok` is on disk.

#[cfg(any(test, feature = "test"))]
pub mod conformance;
mod error;
mod records;
mod sqlite;
mod store;

pub use error::StoreError;
pub use records::{BackendRecord, HASH_BYTES, KeyRecord, TenantRecord};
pub use sqlite::{Migrated, SqliteOptions, SqliteStore};
pub use store::ConfigStore;
