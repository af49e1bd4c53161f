//! What a store does for the chains of the audit log.

use async_trait::async_trait;
use records::{
    AuditChain, AuditChainPage, AuditCheckpoint, AuditRetentionTerms, AuditTruncation,
    UnchainedAudit,
};

use crate::StoreError;

/// The chains of an [`AuditStore`](crate::AuditStore), for checkpoints, retention and verification.
#[async_trait]
pub trait AuditChainStore: Send + Sync {
    /// Returns chains after this name, in the order of their names. A name that only records
    /// contain counts as a chain, too.
    async fn audit_chains(
        &self,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<AuditChain>, StoreError>;

    /// Returns records of a chain after this position, in their order.
    async fn audit_chain_page(
        &self,
        name: &str,
        after: i64,
        limit: u32,
    ) -> Result<AuditChainPage, StoreError>;

    async fn unchained_audit(&self) -> Result<UnchainedAudit, StoreError>;

    /// Returns chains after this name, in the order of their names, that have at least `by` records
    /// without a checkpoint.
    async fn audit_chains_to_checkpoint(
        &self,
        by: i64,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<AuditChain>, StoreError>;

    /// Stores those checkpoints that are newer than the stored ones. Returns the names of their
    /// chains.
    async fn put_audit_checkpoints(
        &self,
        checkpoints: &[(String, AuditCheckpoint)],
    ) -> Result<Vec<String>, StoreError>;

    /// Returns names of chains after this name, in their order, whose oldest record is from before
    /// this moment.
    async fn audit_chains_to_truncate(
        &self,
        before_us: i64,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, StoreError>;

    /// Removes the records up to a position. Removes nothing if the record there has another hash
    /// or is already gone.
    async fn truncate_audit_chain(
        &self,
        name: &str,
        cut: &AuditTruncation,
    ) -> Result<u64, StoreError>;

    async fn audit_terms(&self) -> Result<Option<AuditRetentionTerms>, StoreError>;
}
