//! What a store of client sessions does.

use std::time::Duration;

use async_trait::async_trait;
use protocol::ids::TenantId;
use records::{
    NodeName, SessionClaimOutcome, SessionIdentity, SessionKey, SessionListPosition, StoredSession,
    SubscriptionCount,
};

use crate::StoreError;

/// Claims and lists sessions. Their owners change them by [`DurableStore::write`](crate::DurableStore::write).
#[async_trait]
pub trait SessionStore: Send + Sync {
    /// Makes `node` the owner of a session of this identity. The claim requires that:
    /// - The end of the session was not requested.
    /// - The client was heard from within `idle`.
    /// - No other node with a lease owns the session.
    ///
    /// A claim counts as hearing from the client.
    async fn claim_session(
        &self,
        key: &SessionKey,
        identity: &SessionIdentity,
        node: &NodeName,
        idle: Duration,
    ) -> Result<SessionClaimOutcome, StoreError>;

    /// Returns a page of sessions, oldest first.
    async fn list_sessions(
        &self,
        tenant: Option<&TenantId>,
        after: Option<&SessionListPosition>,
        limit: u32,
    ) -> Result<Vec<StoredSession>, StoreError>;

    /// Returns the sessions whose [`SessionKey::digest`] this is. There is one at most, unless two digests collide.
    async fn sessions_by_digest(&self, digest: &str) -> Result<Vec<StoredSession>, StoreError>;

    /// Removes up to `limit` sessions without an owner. Their clients were silent for `idle`, or
    /// their end was requested.
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
