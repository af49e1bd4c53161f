//! The broker processes that share a database. Each holds one lease, and owns its rows while the
//! lease is valid. The database's clock measures leases.

use std::{fmt, sync::Arc, time::Duration};

use crate::SessionKey;

/// One life of one broker process. A process that lost its lease continues under a new name, so a
/// name is never used again.
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
    /// Address at which other replicas reach the node, or `None` if they cannot.
    pub address: Option<String>,
    /// Set when the node is shutting down and takes no new work.
    pub draining: bool,
    /// Zero once the lease has lapsed.
    pub remaining_lease: Duration,
}

/// Result of a renewal of the lease.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeaseRenewal {
    /// False if the lease lapsed, or if the name is unknown. The node's rows may then have another
    /// owner.
    pub renewed: bool,
    /// Grows with every change of tenants, keys and backends, on any replica.
    pub config_version: i64,
    /// Sessions of this node whose end was requested.
    pub sessions_to_end: Vec<SessionKey>,
}
