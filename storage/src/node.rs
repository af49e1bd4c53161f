//! The broker processes that share a database, as it knows them: each holds one lease, and what it owns is its own for as
//! long as the lease runs. Leases are measured by the database's clock.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use protocol::ids::TaskId;

use crate::{SessionKey, StoreError};

/// One life of one broker process. A process that lost its lease goes on under a new name, so a name never comes back.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeName(Arc<str>);

impl NodeName {
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// A process that holds, or held, a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRecord {
    pub node: NodeName,
    /// Where other replicas reach it; `None`: nowhere.
    pub address: Option<String>,
    /// It is going away and takes nothing new.
    pub draining: bool,
    /// Zero once the lease has lapsed.
    pub lease_left: Duration,
}

/// What a renewal of the lease says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeaseRenewal {
    /// False: the lease lapsed, or the name is unknown. What it owned may have another owner by now.
    pub held: bool,
    /// Grows with every change of tenants, keys and backends, on whichever replica.
    pub config_version: i64,
    /// Sessions of this node that somebody asked to end.
    pub ended: Vec<SessionKey>,
}

/// Leases, and what a node takes over when a lease has lapsed.
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

    /// Removes the node. Any node may claim what it still owns.
    async fn leave(&self, node: &NodeName) -> Result<(), StoreError>;

    /// Returns the nodes whose lease has not lapsed, by name.
    async fn live_nodes(&self) -> Result<Vec<NodeRecord>, StoreError>;

    /// Moves those of these sessions that still belong to `from` to `to`, under new epochs. A node calls it when its lease has
    /// lapsed and it goes by a new name. Returns all of them that `to` owns then, with their epochs. So a repeated call
    /// returns what an earlier one moved, if the answer to that one was lost.
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
