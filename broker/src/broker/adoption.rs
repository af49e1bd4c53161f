//! Adoption of sessions that are in the store but not here. A session without a live owner is
//! adopted. A session of another owner is left to it.
//!
//! Each session has one attempt at a time, and other requests wait for it. An attempt that took the
//! row runs to its end, even if its request is dropped.

#[cfg(test)]
mod tests;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use protocol::{
    error::{ErrorKind, Refusal},
    ids::SessionId,
};
use records::{
    NodeName, NodeRecord, SessionClaimOutcome, SessionIdentity, SessionKey, SessionRecord,
    SubscriptionRecord, WriteOp,
};
use rules::{
    endpoint::Endpoint,
    limits::{END_RETRY_FIRST, END_RETRY_MAX},
};
use storage::fault_point;

use super::Broker;
use crate::{
    auth::Caller,
    sessions::{
        session::{
            ClaimedSession, Session, SessionParams, add_key, list_changes, questions, record,
        },
        tenant::Tenant,
    },
};

/// Location of a session that was not found here.
#[derive(Debug)]
pub enum AdoptionOutcome {
    /// The session is here from now on.
    Local(Arc<Session>),
    /// A process with a running lease owns the session.
    Remote(NodeRecord),
    /// The record does not have it: it ended, never existed, or belongs to another caller.
    Absent,
    /// This process cannot serve it, whatever the record holds.
    Unusable,
}

/// A row that this process owns.
struct ClaimedRow {
    record: SessionRecord,
    epoch: i64,
    created_at_us: i64,
    subscriptions: Vec<SubscriptionRecord>,
}

impl ClaimedRow {
    fn into_session(self, stored: record::PersistedSession, owner: NodeName) -> ClaimedSession {
        ClaimedSession {
            stored,
            epoch: self.epoch,
            created_at: jiff::Timestamp::from_microsecond(self.created_at_us)
                .unwrap_or_else(|_| jiff::Timestamp::now()),
            subscriptions: self.subscriptions,
            owner,
        }
    }
}

/// Result of the attempt to own a row.
enum ClaimResult {
    Claimed(ClaimedRow),
    /// A process with a running lease owns the row.
    OwnedElsewhere(NodeRecord),
    NotFound,
}

impl Broker {
    /// Looks for a session that is not here, and adopts it if it has no live owner.
    pub async fn adopt(
        self: &Arc<Self>,
        id: &SessionId,
        caller: &Caller,
        endpoint: &Endpoint,
    ) -> Result<AdoptionOutcome, Refusal> {
        if !Session::is_valid_id(id) {
            return Ok(AdoptionOutcome::Unusable);
        }
        let (broker, id, caller, endpoint) =
            (self.clone(), id.clone(), caller.clone(), endpoint.clone());
        // The adoption runs in a task of its own. A client that gives up must not leave an owned
        // row without a session.
        let adopting =
            self.shared.running.spawn(async move { broker.adopt_once(id, caller, endpoint).await });
        adopting.await.unwrap_or_else(|_| {
            Err(Refusal::new(ErrorKind::Internal, "the broker could not take over the session"))
        })
    }

    /// Waits while a session is being adopted. Each of its requests may need a backend that is only
    /// just being reached, not only the request that caused the adoption.
    pub async fn wait_until_adopted(&self, session: &Session) {
        if session.has_unchecked_lists() {
            let lock = self.adoption_locks.lock(&session.key);
            let _over = lock.lock().await;
        }
    }

    async fn adopt_once(
        self: Arc<Self>,
        id: SessionId,
        caller: Caller,
        endpoint: Endpoint,
    ) -> Result<AdoptionOutcome, Refusal> {
        let key = record::session_key(&id);
        let lock = self.adoption_locks.lock(&key);
        let _only_one = lock.lock().await;
        match self.local_session(&id, &caller, &endpoint) {
            Ok(Some(session)) => return Ok(AdoptionOutcome::Local(session)), // another request was faster
            Ok(None) => {}
            Err(_) => return Ok(AdoptionOutcome::Unusable),
        }
        if self.ending_sessions.contains_key(&key) {
            return Ok(AdoptionOutcome::Unusable);
        }
        self.check_accepts_adoptions()?;
        let node = self.shared.persistence.node();
        let identity = record::session_scope(&caller.tenant, &caller.principal, &endpoint);
        let row = match self.claim_row(key, &identity, &node).await? {
            ClaimResult::Claimed(row) => row,
            ClaimResult::OwnedElsewhere(owner) => return Ok(AdoptionOutcome::Remote(owner)),
            ClaimResult::NotFound => return Ok(AdoptionOutcome::Absent),
        };
        fault_point::hit("session.claimed");
        let Some((tenant, stored)) = self.usable_record(&caller, &row) else {
            self.release_claim(row).await;
            return Ok(AdoptionOutcome::Unusable);
        };
        let caller = Caller { key: row.record.api_key.clone(), ..caller };
        let claimed = row.into_session(stored, node);
        let Some(session) = self.restore_session(id, tenant, caller, endpoint, claimed).await
        else {
            return Ok(AdoptionOutcome::Unusable);
        };
        self.check_still_owned(&session)?;
        Ok(AdoptionOutcome::Local(session))
    }

    fn check_accepts_adoptions(&self) -> Result<(), Refusal> {
        if !self.draining() {
            return Ok(());
        }
        let text = "the broker is shutting down and accepts no sessions";
        Err(Refusal::new(ErrorKind::Draining, text))
    }

    /// Claims the row of a session for this process, if it has no live owner.
    async fn claim_row(
        self: &Arc<Self>,
        key: SessionKey,
        identity: &SessionIdentity,
        node: &NodeName,
    ) -> Result<ClaimResult, Refusal> {
        let (persistence, idle) = (&self.shared.persistence, self.shared.config.session.idle);
        let claim = persistence
            .timed("claim_session", persistence.store.claim_session(&key, identity, node, idle))
            .await;
        Ok(match claim.inspect_err(|_| self.recheck_later(key, identity))? {
            SessionClaimOutcome::OwnedElsewhere(owner) => ClaimResult::OwnedElsewhere(owner),
            SessionClaimOutcome::NotFound => ClaimResult::NotFound,
            SessionClaimOutcome::Acquired { record, epoch, created_at_us, subscriptions } => {
                ClaimResult::Claimed(ClaimedRow { record, epoch, created_at_us, subscriptions })
            }
        })
    }

    /// Returns the tenant and the contents of a claimed record. `None` if this process has no such
    /// tenant, or cannot read the record.
    fn usable_record(
        &self,
        caller: &Caller,
        row: &ClaimedRow,
    ) -> Option<(Arc<Tenant>, record::PersistedSession)> {
        let stored = record::decode(&row.record, &self.shared.persistence.seal)
            .inspect_err(|error| {
                self.shared.metrics.session_unreadable();
                tracing::warn!(session = row.record.key.digest(), %error, "the broker cannot read a stored session and leaves it unchanged");
            })
            .ok()?;
        Some((self.tenant(&caller.tenant)?, stored))
    }

    /// Refuses a session whose lease this process lost during the takeover, and drops it here.
    fn check_still_owned(&self, session: &Arc<Session>) -> Result<(), Refusal> {
        if session.is_owned_by(&self.shared.persistence.node()) {
            return Ok(());
        }
        self.remove_session(session);
        session.abandon("the replica lost its lease during the takeover");
        let text = "the session is moving to another process, try again";
        Err(Refusal::new(ErrorKind::SessionElsewhere, text))
    }

    /// Settles later whether this process owns a row after a failed claim. No other process could
    /// take such a row, and the sweeper would not remove it.
    fn recheck_later(self: &Arc<Self>, key: SessionKey, identity: &SessionIdentity) {
        if !self.adoption_locks.doubts(key) {
            return; // looked after already, or there are too many
        }
        let (broker, identity) = (self.clone(), identity.clone());
        self.shared.running.spawn(async move {
            let (started_at, mut pause) = (Instant::now(), END_RETRY_FIRST);
            while started_at.elapsed() < END_RETRY_MAX && !broker.draining() {
                tokio::time::sleep(pause).await;
                pause *= 2;
                if broker.release_row(key, &identity).await.is_ok() {
                    break;
                }
            }
            broker.adoption_locks.no_doubt(&key);
        });
    }

    /// Releases a row that this process owns without a session.
    async fn release_row(
        &self,
        key: SessionKey,
        identity: &SessionIdentity,
    ) -> Result<(), Refusal> {
        let lock = self.adoption_locks.lock(&key);
        let _only_one = lock.lock().await;
        if self.all_sessions().iter().any(|session| session.key == key) {
            return Ok(()); // its client came again
        }
        let (persistence, idle) = (&self.shared.persistence, self.shared.config.session.idle);
        let claim = persistence
            .timed(
                "claim_session",
                persistence.store.claim_session(&key, identity, &persistence.node(), idle),
            )
            .await?;
        if let SessionClaimOutcome::Acquired { record, epoch, created_at_us, subscriptions } = claim
        {
            self.release_claim(ClaimedRow { record, epoch, created_at_us, subscriptions }).await;
        }
        Ok(())
    }

    /// Releases a row that this process cannot use. Another process that can read it and has its
    /// tenant may take it.
    async fn release_claim(&self, taken: ClaimedRow) {
        let SessionRecord { key, state, links, .. } = taken.record;
        let release =
            WriteOp::ReleaseSession { key, epoch: taken.epoch, idle: Duration::ZERO, state, links };
        let _kept_until_the_process_ends = self.shared.persistence.write(release).await;
    }

    /// Starts an adopted session. `None` if its key or tenant is gone; the session is then ended.
    async fn restore_session(
        self: &Arc<Self>,
        id: SessionId,
        tenant: Arc<Tenant>,
        caller: Caller,
        endpoint: Endpoint,
        claimed: ClaimedSession,
    ) -> Option<Arc<Session>> {
        let revoked = caller.key.as_ref().is_some_and(|key| !self.keyring.contains(key))
            || self.keyring.revocations().ends_session_of(
                &caller.tenant,
                &caller.principal,
                claimed.created_at.as_microsecond(),
            );
        let transport = claimed.transport();
        let params = SessionParams { tenant: tenant.clone(), caller, endpoint, transport };
        let session = Session::restore(id, params, claimed, self.shared.clone());
        if revoked || !tenant.enabled() || !tenant.adopt_session(&session) {
            self.close_session(
                &session,
                "its credential was revoked, or its tenant was disabled or removed",
            );
            return None;
        }
        // The key that continues the session may be another one than the key that opened it.
        let shown = session.subject().key.clone();
        if let Some(key) = &shown {
            add_key(&session, key);
        }
        self.sessions.insert(session.id.clone(), session.clone());
        // From now on, a revocation of the key finds the session.
        if shown.is_some_and(|key| !self.keyring.contains(&key)) {
            self.close_session(&session, "its credential was revoked");
            return None;
        }
        self.shared.metrics.session_adopted();
        tracing::info!(session = %session.digest, tenant = %tenant.id, epoch = session.epoch(), "session adopted");
        session.activate();
        // [`Broker::wait_until_adopted`] waits for this.
        let principal = &session.caller.principal;
        self.wait_for_lists(&tenant, &session.endpoint, principal).await;
        list_changes::restore_own_lists(&session).await;
        list_changes::compare_lists(&session);
        questions::complete_connections(&session).await;
        Some(session)
    }
}
