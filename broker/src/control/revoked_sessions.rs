//! The end of stored sessions whose key or principal was revoked. The owner of a session ends it when
//! it learns of the revocation ([`crate::broker::Broker::end_sessions_of_key`]). A parked session has
//! no owner, so the replica that revokes ends it in the store.

use std::sync::Arc;

use protocol::ids::TenantId;
use records::{AdminChange, StoredSession};
use rules::limits::ADMIN_PAGE_ROWS;
use storage::Wakeup;

use super::{Control, ControlError};

impl Control {
    /// Returns whether no request can continue a stored session.
    pub(super) fn is_revoked(&self, stored: &StoredSession) -> bool {
        let key = stored.record.api_key.as_ref();
        key.is_some_and(|key| !self.keyring.contains(key)) || self.is_of_revoked_principal(stored)
    }

    pub(super) fn is_of_revoked_principal(&self, stored: &StoredSession) -> bool {
        let identity = &stored.record.identity;
        let revocations = self.keyring.revocations();
        revocations.ends_session_of(&identity.tenant, &identity.principal, stored.created_at_us)
    }

    /// Ends the stored sessions of a tenant that are meant, after the answer to the operator: there
    /// may be many. What a fault leaves in the store cannot be continued, and expires.
    pub(super) fn end_stored_sessions(
        self: &Arc<Self>,
        tenant: TenantId,
        is_meant: impl Fn(&Self, &StoredSession) -> bool + Send + Sync + 'static,
    ) {
        let control = Arc::clone(self);
        self.broker.shared.running.spawn(async move {
            if let Err(error) = control.end_meant_sessions(&tenant, is_meant).await {
                tracing::warn!(%tenant, %error, "the broker could not end all stored sessions of a revoked key or principal: they end when they expire");
            }
        });
    }

    async fn end_meant_sessions(
        &self,
        tenant: &TenantId,
        is_meant: impl Fn(&Self, &StoredSession) -> bool,
    ) -> Result<(), ControlError> {
        let (own, mut after) = (self.persistence().node(), None);
        while !self.broker.draining() {
            let page = self
                .query_store(
                    "list_sessions",
                    self.store().list_sessions(Some(tenant), after.as_ref(), ADMIN_PAGE_ROWS),
                )
                .await?;
            let Some(last) = page.last() else { break };
            after = Some(last.position());
            // Those of this replica have ended already.
            let is_own = |stored: &StoredSession| {
                stored.owner.as_ref().is_some_and(|owner| owner.node == own)
            };
            for stored in page.iter().filter(|stored| !is_own(stored) && is_meant(self, stored)) {
                let key = stored.record.key;
                let end = AdminChange::EndSession(&key);
                self.query_store("request_session_end", self.store().apply(end, None)).await?;
                self.persistence().hot.publish(Wakeup::SessionEnd(key));
                tracing::info!(
                    session = key.digest(),
                    "a stored session of a revoked key or principal ended"
                );
            }
        }
        Ok(())
    }
}
