//! Which replica a session is on. Asked by listeners for every request that names a session.
//!
//! A session here is found by one look into a map. Otherwise: what was last known (in memory, then in the hot store), and
//! then the record, where a session without an owner is taken over. Only the record can say that there is not a session.
//!
//! Invariant: nobody asks the stores for sessions that are not there at a rate above its tenant's, nor for the same one again
//! and again: a search takes of the tenant's budget before it goes to them, and gives it back when it finds something.

mod lookup;
mod negative_cache;
mod owner_cache;

use std::sync::Arc;

use protocol::error::{ErrorKind, Refusal};
use transport::{PeerClient, PeerIdentity, PeerIdentityError};

pub(crate) use self::{
    lookup::{ClaimOutcome, ForwardFailure, LookupSources, OwnerLookup, inside},
    negative_cache::{NegativeCache, trace},
    owner_cache::OwnerCache,
};
use crate::limits::{ABSENT_REMEMBERED_FOR, ABSENT_REMEMBERED_MAX, OWNERS_REMEMBERED_MAX};

/// A replica that can be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionOwner {
    /// Its name in the record.
    pub node: String,
    /// `host:port` of its internal listener.
    pub address: String,
}

impl SessionOwner {
    /// Whether the two can be one process: one that lost its lease goes on under another name, at the same address.
    pub fn may_be(&self, other: &Self) -> bool {
        self.node == other.node || self.address == other.address
    }
}

/// Where to serve a request.
#[derive(Debug)]
pub enum LookupOutcome<Session = Arc<crate::sessions::session::Session>> {
    Local(Session),
    Remote(SessionOwner),
}

/// Where to serve a request that another replica sent.
#[derive(Debug)]
pub enum PeerLookupOutcome<Session = Arc<crate::sessions::session::Session>> {
    Here(Session),
    /// `None`: whoever asks has to look by itself.
    NotLocal(Option<SessionOwner>),
}

/// What a replica knows of the others.
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
        "no such session: it ended or never was; initialize anew",
    )
}
