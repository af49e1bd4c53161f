//! The database that is the record of everything: PostgreSQL for several replicas, SQLite for one. A write that returned is
//! on disk, whatever happens next.

use async_trait::async_trait;

use crate::{
    AuditStore, ConfigStore, NodeStore, SessionStore, StoreError, TaskStore, WriteOp, WriteOutcome,
};

/// All subjects of the database, and the writes that change several of them at once. A row that cannot be read is left out of
/// what is returned, is counted, and is named in the log by its key: it must not keep the others from being served.
#[async_trait]
pub trait DurableStore: ConfigStore + AuditStore + NodeStore + SessionStore + TaskStore {
    /// `sqlite` or `postgres`: a metric's label.
    fn engine(&self) -> &'static str;

    /// One process has it to itself: there are no other nodes, and one writer.
    fn is_exclusive(&self) -> bool;

    /// How many rows were left out because they could not be read, since the store was opened: a metric.
    fn unreadable_rows(&self) -> u64 {
        0
    }

    /// Carries out a batch in one transaction: all of it is on disk when this returns, or none of it. The outcomes are in
    /// the order of the writes.
    async fn write(&self, batch: &[WriteOp]) -> Result<Vec<WriteOutcome>, StoreError>;
}
