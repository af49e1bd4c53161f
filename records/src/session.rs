//! Client sessions as rows. Fields that only the broker understands (agreement, state, links) are
//! opaque here.

use std::fmt;

use protocol::ids::{BackendId, EndpointName, KeyId, PrincipalId, TenantId};

use crate::NodeRecord;

/// Length of a [`SessionKey`].
pub const SESSION_KEY_BYTES: usize = 32;

/// SHA-256 of a session's id. The id is its client's secret and is not stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey([u8; SESSION_KEY_BYTES]);

impl SessionKey {
    pub const fn new(hash: [u8; SESSION_KEY_BYTES]) -> Self {
        Self(hash)
    }

    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    pub fn as_bytes(&self) -> &[u8; SESSION_KEY_BYTES] {
        &self.0
    }

    /// Returns the first eight bytes in hexadecimal. Logs and operators use them as the name of the
    /// session.
    pub fn digest(&self) -> String {
        self.0[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "SessionKey({})", self.digest())
    }
}

/// A session, without its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRecord {
    pub key: SessionKey,
    pub identity: SessionIdentity,
    /// The API key that opened the session.
    pub api_key: Option<KeyId>,
    pub transport: String,
    /// Protocol revision.
    pub version: String,
    /// Result of the handshake. Never changes.
    pub agreement: Vec<u8>,
    /// State that changes during the session.
    pub state: Vec<u8>,
    /// The sessions it has at its backends, sealed.
    pub links: Vec<u8>,
}

/// Identity and endpoint that opened a session. A request that differs in any field does not find
/// the session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SessionIdentity {
    pub tenant: TenantId,
    pub principal: PrincipalId,
    /// `None` is the aggregated endpoint.
    pub endpoint: Option<EndpointName>,
}

/// A session as operators see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSession {
    pub record: SessionRecord,
    /// Owner of the session, even if its lease has lapsed.
    pub owner: Option<NodeRecord>,
    pub epoch: i64,
    pub created_at_us: i64,
    pub seen_at_us: i64,
    pub subscriptions: u64,
}

impl StoredSession {
    /// Returns the position of the session in lists.
    pub fn position(&self) -> SessionListPosition {
        SessionListPosition { created_at_us: self.created_at_us, key: self.record.key }
    }
}

/// A position in a list of sessions, which are ordered by creation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionListPosition {
    pub created_at_us: i64,
    pub key: SessionKey,
}

/// A resource to which a session's client subscribes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionRecord {
    /// URI as the client names it.
    pub exposed_uri: String,
    pub backend: BackendId,
    /// URI as the backend names it.
    pub uri: String,
}

/// Number of sessions of a tenant that subscribe to a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionCount {
    pub tenant: TenantId,
    pub backend: BackendId,
    pub uri: String,
    pub sessions: u64,
}

/// The outcome of an attempt to own a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionClaimOutcome {
    /// The session belongs to the caller from now on, under this epoch.
    Acquired {
        record: SessionRecord,
        epoch: i64,
        created_at_us: i64,
        subscriptions: Vec<SubscriptionRecord>,
    },
    /// The lease of the session's owner is valid.
    OwnedElsewhere(NodeRecord),
    /// No session exists for this identity.
    NotFound,
}
