//! Interface to the store of approvals: calls that wait for the decision of a person.
//!
//! The decision itself is an `AdminChange`, so that it and its audit record are one transaction.

use std::time::Duration;

use async_trait::async_trait;
use protocol::ids::{ApprovalId, TenantId};
use records::{
    ApprovalFilter, ApprovalLimits, ApprovalListPosition, ApprovalOpening, ApprovalRecord,
    ApprovalState, StoredApproval,
};

use crate::StoreError;

/// Approvals. They end with their tenant and with their stored backend.
#[async_trait]
pub trait ApprovalStore: Send + Sync {
    /// Opens an approval. An equal call whose approval is pending or approved joins that one. Opens
    /// none while a window is open, or where a limit is reached.
    async fn open_approval(
        &self,
        record: &ApprovalRecord,
        limits: ApprovalLimits,
    ) -> Result<ApprovalOpening, StoreError>;

    async fn approval(&self, id: &ApprovalId) -> Result<Option<StoredApproval>, StoreError>;

    /// Marks an approval as used by a call. Returns false unless it is approved, not expired, and
    /// not used by another call. Only one call gets true; the same call gets it again.
    async fn use_approval(&self, id: &ApprovalId, user: &str) -> Result<bool, StoreError>;

    /// Ends an approval whose tool changed before a call could use it. Keeps the arguments for the
    /// approver. Returns false unless it is approved.
    async fn void_approval(&self, id: &ApprovalId) -> Result<bool, StoreError>;

    /// Returns those of these approvals that are not pending any more.
    async fn settled_approvals(&self, ids: &[ApprovalId]) -> Result<Vec<ApprovalId>, StoreError>;

    /// Returns a page of the approvals of a tenant, newest first.
    async fn approvals_of(
        &self,
        tenant: &TenantId,
        filter: &ApprovalFilter,
        after: Option<&ApprovalListPosition>,
        limit: u32,
    ) -> Result<Vec<StoredApproval>, StoreError>;

    /// Returns the number of calls of each tenant that wait for a decision. Tenants without one
    /// are left out.
    async fn pending_approvals(&self) -> Result<Vec<(TenantId, u64)>, StoreError>;

    /// Returns the number of approvals in each state.
    async fn approval_counts(&self) -> Result<Vec<(ApprovalState, u64)>, StoreError>;

    /// Marks approvals as expired whose time is over, and forgets their arguments. Returns how many
    /// it marked, at most `limit`.
    async fn expire_approvals(&self, limit: u32) -> Result<u64, StoreError>;

    /// Removes approvals in a final state whose last change and window are older than `age`.
    /// Expired ones go after `expired_age`. Returns how many it removed, at most `limit`.
    async fn remove_approvals(
        &self,
        age: Duration,
        expired_age: Duration,
        limit: u32,
    ) -> Result<u64, StoreError>;
}
