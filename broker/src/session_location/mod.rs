//! Location of sessions: the replica that has a session. Listeners look it up for every request
//! that names a session.
//!
//! A session on this replica is found in one map. Otherwise the lookup uses the last known owner
//! (in memory, then in the hot store), and then the record. It takes over a session without an
//! owner. Only the record can prove that a session does not exist.
//!
//! Invariant: lookups of missing sessions reach the stores at most at the tenant's rate, and not
//! repeatedly for the same session. A search takes one request from the rates of the principal and
//! the tenant before it reads a store. It returns this request unless the session does not exist.

mod lookup;
mod negative_cache;
mod owner_cache;

use std::sync::Arc;

use protocol::error::{ErrorKind, Refusal};
use rules::limits::{ABSENT_REMEMBERED_FOR, ABSENT_REMEMBERED_MAX, OWNERS_REMEMBERED_MAX};
use transport::{PeerClient, PeerIdentity, PeerIdentityError};

pub(crate) use self::{
    lookup::{ClaimOutcome, ForwardFailure, LookupSources, OwnerLookup, inside},
    negative_cache::{NegativeCache, absence_key},
    owner_cache::OwnerCache,
};

/// Another replica, as requests reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerReplica {
    /// Its name in the record.
    pub node: String,
    /// `host:port` of its internal listener.
    pub address: String,
}

impl PeerReplica {
    /// Returns whether the two can be one process. A process that lost its lease gets another name,
    /// at the same address.
    pub fn may_be(&self, other: &Self) -> bool {
        self.node == other.node || self.address == other.address
    }
}

/// Replica that serves a request.
#[derive(Debug)]
pub enum LookupOutcome<Session = Arc<crate::sessions::session::Session>> {
    Local(Session),
    Remote(PeerReplica),
}

/// Replica that serves a request of another replica.
#[derive(Debug)]
pub enum PeerLookupOutcome<Session = Arc<crate::sessions::session::Session>> {
    Local(Session),
    /// `None`: the requesting replica has to look by itself.
    NotLocal(Option<PeerReplica>),
}

/// State of a replica about the location of sessions on others.
#[derive(Debug)]
pub struct SessionLocator {
    pub identity: PeerIdentity,
    pub peers: PeerClient,
    pub(crate) owners: OwnerCache,
    pub(crate) absent: NegativeCache,
}

impl SessionLocator {
    pub fn new(secret: &[u8; 32]) -> Result<Self, PeerIdentityError> {
        let identity = PeerIdentity::from_secret(secret)?;
        let absent = NegativeCache::new(ABSENT_REMEMBERED_MAX, ABSENT_REMEMBERED_FOR);
        Ok(Self {
            peers: PeerClient::new(&identity),
            identity,
            owners: OwnerCache::new(OWNERS_REMEMBERED_MAX),
            absent,
        })
    }
}

pub fn no_session() -> Refusal {
    Refusal::new(
        ErrorKind::SessionNotFound,
        "no such session: it ended or never existed; send initialize again",
    )
}
