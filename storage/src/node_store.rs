//! What a store does for the broker processes that share it.

use std::time::Duration;

use async_trait::async_trait;
use protocol::ids::TaskId;
use records::{LeaseRenewal, NodeName, NodeRecord, SessionKey};

use crate::StoreError;

/// Leases, and the takeover of rows from a lapsed node.
#[async_trait]
pub trait NodeStore: Send + Sync {
    /// Adds a node with a lease of this length.
    async fn join(
        &self,
        node: &NodeName,
        address: Option<&str>,
        lease: Duration,
    ) -> Result<(), StoreError>;

    /// Extends the lease, if it has not lapsed.
    async fn renew_lease(
        &self,
        node: &NodeName,
        lease: Duration,
        draining: bool,
    ) -> Result<LeaseRenewal, StoreError>;

    /// Removes the node. Any node may claim its remaining rows.
    async fn leave(&self, node: &NodeName) -> Result<(), StoreError>;

    /// Returns the nodes whose lease has not lapsed, by name.
    async fn live_nodes(&self) -> Result<Vec<NodeRecord>, StoreError>;

    /// Moves those of these sessions that still belong to `from` to `to`, under new epochs. A node
    /// calls it when its lease has lapsed and it continues under a new name.
    ///
    /// Returns all of them that `to` then owns, with their epochs. So a repeated call also returns
    /// the sessions that an earlier call moved, if the answer to that call was lost.
    async fn reclaim_sessions(
        &self,
        from: &NodeName,
        to: &NodeName,
        keys: &[SessionKey],
    ) -> Result<Vec<(SessionKey, i64)>, StoreError>;

    /// Does the same as [`NodeStore::reclaim_sessions`] for all unfinished tasks.
    async fn reclaim_tasks(
        &self,
        from: &NodeName,
        to: &NodeName,
    ) -> Result<Vec<(TaskId, i64)>, StoreError>;
}
