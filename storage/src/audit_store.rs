//! What a store of the audit log does.

use async_trait::async_trait;
use records::{AuditFilter, AuditRecord, StoredAuditRecord};

use crate::{AuditChainStore, StoreError};

/// An append-only table of hash chains. The database itself refuses changes of a record. It also
/// refuses the removal of a record that the retention did not release.
#[async_trait]
pub trait AuditStore: AuditChainStore {
    /// Adds records. When this returns, all of them are on disk, or none. Skips records that the
    /// log already has. A store that replicas share keeps the time of a record within a day of its
    /// own clock.
    async fn append_audit(&self, records: &[AuditRecord]) -> Result<(), StoreError>;

    /// Returns records after this number, in the order of the filter. The newest first means that
    /// records after a number have smaller numbers.
    async fn audit_records(
        &self,
        filter: &AuditFilter,
        after: Option<i64>,
        limit: u32,
    ) -> Result<Vec<StoredAuditRecord>, StoreError>;

    /// Removes up to `limit` records that are older than this moment and belong to no chain.
    /// Returns their number.
    async fn trim_unchained_audit(&self, before_us: i64, limit: u32) -> Result<u64, StoreError>;
}
