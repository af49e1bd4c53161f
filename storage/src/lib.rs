//! Records that outlive the process: tenants, API keys, backends, sessions, subscriptions, tasks and event streams.
//!
//! The broker holds trait objects ([`DurableStore`], [`EventStore`], [`HotStore`]) and never learns which engine is behind
//! them. What an engine must do is written once, as the behaviours of `conformance`; an implementation is what passes them.
//! A write to a [`DurableStore`] that returned `Ok` is on disk; what is in a [`HotStore`] may be lost at any time.

mod admin_change;
mod audit;
mod audit_chain;
mod audit_rows;
mod config_store;
#[cfg(any(test, feature = "test"))]
pub mod conformance;
mod durable_store;
mod error;
mod event;
pub mod fault_point;
pub mod hot;
mod node;
mod postgres;
mod records;
mod session;
mod sqlite;
mod task;
mod write;

pub use admin_change::AdminChange;
pub use audit::{
    AUDIT_ID_BYTES, AuditFilter, AuditKind, AuditRecord, AuditStore, StoredAuditRecord,
};
pub use audit_chain::{
    AUDIT_GENESIS, AUDIT_HASH_BYTES, AuditChain, AuditChainPage, AuditChainStore, AuditCheckpoint,
    AuditRetentionTerms, AuditTruncation, ChainedAuditRecord, UnchainedAudit,
};
pub use config_store::ConfigStore;
pub use durable_store::DurableStore;
pub use error::StoreError;
pub use event::{EventStore, LogEntry, LoggedEvent, StoredStream, StreamRecord};
pub use hot::{HotStore, MemoryHotStore, OwnerHint, RedisOptions, RedisStore, Wakeup};
pub use node::{LeaseRenewal, NodeName, NodeRecord, NodeStore};
pub use postgres::{PostgresOptions, PostgresStore};
pub use records::{BackendRecord, HASH_BYTES, KeyRecord, TenantRecord};
pub use session::{
    SESSION_KEY_BYTES, SessionClaimOutcome, SessionIdentity, SessionKey, SessionRecord,
    SessionStore, StoredSession, SubscriptionCount, SubscriptionRecord,
};
pub use sqlite::{MigrationOutcome, SqliteOptions, SqliteStore};
pub use task::{
    FullTask, InputCounts, StoredTask, StoredTaskSnapshot, TaskAudience, TaskInput, TaskLimit,
    TaskLimits, TaskListPosition, TaskRecord, TaskStatus, TaskStep, TaskStore, TaskTransition,
};
pub use write::{RowKey, WriteOp, WriteOutcome};
