//! The database of record: PostgreSQL for several replicas, SQLite for one. A write that returned
//! is on disk.

use async_trait::async_trait;
use records::{RestoreSummary, WriteOp, WriteOutcome};

use crate::{
    ApprovalStore, AuditStore, ConfigStore, GrantStore, NodeStore, PinStore, ResultStore,
    SealStore, SessionStore, StoreError, TaskStore,
};

/// All subjects of the database, and the writes that change several of them at once. The store
/// skips a row that it cannot read, counts it, and logs its key, so that it can still serve the
/// other rows.
#[async_trait]
pub trait DurableStore:
    ConfigStore
    + AuditStore
    + NodeStore
    + SessionStore
    + TaskStore
    + GrantStore
    + ApprovalStore
    + PinStore
    + ResultStore
    + SealStore
{
    /// Returns `sqlite` or `postgres`, which is a metric label.
    fn engine(&self) -> &'static str;

    /// Returns true if one process has the store to itself. Then no other nodes exist, and one
    /// writer.
    fn is_exclusive(&self) -> bool;

    /// Returns the number of unreadable rows that were skipped since the store was opened. For a
    /// metric.
    fn unreadable_rows(&self) -> u64 {
        0
    }

    /// Carries out a batch in one transaction. When this returns, all of it is on disk, or none of
    /// it. The outcomes are in the order of the writes.
    async fn write(&self, batch: &[WriteOp]) -> Result<Vec<WriteOutcome>, StoreError>;

    /// Ends what must not continue in a database that was restored from an older copy:
    ///
    /// - Sessions are deleted.
    /// - Approvals that permit a call, or wait for a decision, expire. Windows close.
    /// - The call of an unfinished task counts as sent. The epoch of the task exceeds those of owners
    ///   after the copy, so no number of a question is used twice. It also exceeds them if the same
    ///   copy is restored several times, because it is at least the time in seconds.
    ///
    /// The caller ensures that no node has a lease. After an error, a repeated call ends the rest. A
    /// repeated call counts the unfinished tasks again.
    async fn end_restored_state(&self) -> Result<RestoreSummary, StoreError>;
}
