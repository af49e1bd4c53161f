//! Client sessions as rows. What the broker alone understands (agreement, state, links) is opaque here.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use protocol::ids::{BackendId, KeyId, PrincipalId, TenantId};

use crate::{NodeName, NodeRecord, StoreError};

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

    /// The first eight bytes in hexadecimal: how logs and operators name the session.
    pub fn digest(&self) -> String {
        self.0[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "SessionKey({})", self.digest())
    }
}

/// A session, without who owns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRecord {
    pub key: SessionKey,
    pub seat: SessionIdentity,
    /// The API key it was opened with.
    pub api_key: Option<KeyId>,
    pub transport: String,
    /// Protocol revision.
    pub version: String,
    /// What the handshake settled. Never changes.
    pub agreement: Vec<u8>,
    /// What changes during the session.
    pub state: Vec<u8>,
    /// The sessions it has at its backends, sealed.
    pub links: Vec<u8>,
}

/// Who opened a session, and where. A request that differs in any of it does not find the session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SessionIdentity {
    pub tenant: TenantId,
    pub principal: PrincipalId,
    /// `None`: the aggregated endpoint.
    pub endpoint: Option<BackendId>,
}

/// A session as operators see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSession {
    pub record: SessionRecord,
    /// Who owns it, lapsed leases included.
    pub owner: Option<NodeRecord>,
    pub epoch: i64,
    pub created_at_us: i64,
    pub seen_at_us: i64,
    pub subscriptions: u64,
}

/// A resource a session's client listens to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionRecord {
    /// As the client names it.
    pub exposed_uri: String,
    pub backend: BackendId,
    /// As the backend names it.
    pub uri: String,
}

/// How many sessions of a tenant listen to a resource.
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
    /// It is ours from now on, under this epoch.
    Acquired {
        record: SessionRecord,
        epoch: i64,
        created_at_us: i64,
        subscriptions: Vec<SubscriptionRecord>,
    },
    /// Its owner's lease runs.
    OwnedElsewhere(NodeRecord),
    /// There is none for this seat.
    NotFound,
}

/// Claims and lists sessions. Their owners change them by [`DurableStore::write`](crate::DurableStore::write).
#[async_trait]
pub trait SessionStore: Send + Sync {
    /// Makes `node` the owner of a session of this identity. The session must not be asked to end, its client must have been
    /// heard from within `idle`, and no other node with a lease may own it. A claim counts as hearing from the client.
    async fn claim_session(
        &self,
        key: &SessionKey,
        seat: &SessionIdentity,
        node: &NodeName,
        idle: Duration,
    ) -> Result<SessionClaimOutcome, StoreError>;

    /// Returns a page of sessions in the order of their creation. `after` is the last key of the page before. After a key that is
    /// gone by now, the page is empty.
    async fn list_sessions(
        &self,
        tenant: Option<&TenantId>,
        after: Option<&SessionKey>,
        limit: u32,
    ) -> Result<Vec<StoredSession>, StoreError>;

    /// Returns the sessions whose [`SessionKey::digest`] this is. There is one at most, unless two digests collide.
    async fn sessions_by_digest(&self, digest: &str) -> Result<Vec<StoredSession>, StoreError>;

    /// Removes up to `limit` sessions without an owner whose clients were not heard from for `idle`, or that were asked to end.
    async fn sweep_sessions(
        &self,
        idle: Duration,
        limit: u32,
    ) -> Result<Vec<SessionKey>, StoreError>;

    /// Counts the sessions that subscribe to a resource, by tenant, backend and URI.
    async fn subscription_counts(
        &self,
        tenant: Option<&TenantId>,
    ) -> Result<Vec<SubscriptionCount>, StoreError>;
}
