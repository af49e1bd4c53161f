//! Sessions by id: how they are found and ended. A session that ends leaves the store before its
//! client gets the answer.

use std::sync::Arc;

use futures_util::future::join_all;
use protocol::{
    error::{ErrorKind, Refusal},
    ids::{BackendId, PrincipalId, SessionId, TenantId},
};
use records::{AdminChange, SessionKey, WriteOp, WriteOutcome};
use rules::{
    client_transport::Transport,
    endpoint::Endpoint,
    endpoint_info::EndpointInfo,
    limits::{END_RETRY_FIRST, END_RETRY_PAUSE_MAX, FIRST_CATALOG_WAIT},
};

use super::{Broker, unknown_backend, unknown_toolset};
use crate::{
    auth::Caller,
    backends::{backend::BackendState, link::Era},
    oauth::TokenSource,
    session_location::no_session,
    sessions::{
        session::{Session, questions},
        tenant::Tenant,
    },
};

impl Broker {
    /// Uses the account that a principal has connected at a backend, and notifies its sessions
    /// here.
    pub fn account_connected(
        &self,
        tenant: &TenantId,
        principal: &PrincipalId,
        backend_id: &BackendId,
    ) {
        let Some(tenant) = self.tenant(tenant) else { return };
        let Some(backend) = tenant.backend(backend_id) else { return };
        if let Some(accounts) = backend.tokens.as_ref().and_then(TokenSource::user) {
            accounts.forget(principal);
        }
        if backend.principal_lists.is_on() {
            backend.principal_lists.expire_of(principal);
            tenant.read_lists_of(&Endpoint::Single(backend_id.clone()), principal);
        } else if backend.placeholder.is_shown() {
            backend.reconnect(); // its lists are unknown so far
        } else {
            backend.refresh();
        }
        for session in tenant.sessions_of(principal) {
            questions::complete_connection(&session, backend_id);
        }
    }

    /// Returns a session of this process. Returns an error if it belongs to another caller or
    /// endpoint, as for a missing session.
    pub fn local_session(
        &self,
        id: &SessionId,
        caller: &Caller,
        endpoint: &Endpoint,
    ) -> Result<Option<Arc<Session>>, Refusal> {
        let here = self.sessions.get(id).map(|session| session.clone());
        here.map_or(Ok(None), |session| self.claim_local(session, caller, endpoint))
    }

    /// Returns a session of this process unless it is leaving. Returns an error if it belongs to
    /// another caller or endpoint, as for a missing session.
    pub fn claim_local(
        &self,
        session: Arc<Session>,
        caller: &Caller,
        endpoint: &Endpoint,
    ) -> Result<Option<Arc<Session>>, Refusal> {
        if session.is_leaving() {
            return Ok(None);
        }
        let is_own = session.caller.tenant == caller.tenant
            && session.caller.principal == caller.principal
            && session.endpoint == *endpoint;
        if !is_own {
            return Err(no_session());
        }
        if session.set_subject(&caller.subject) {
            // After the session knows the key: a later revocation of the key finds the session.
            self.readmit_caller(caller)?;
        }
        Ok(Some(session))
    }

    /// Returns the endpoint's offer, once each backend has had a first attempt to connect.
    pub(super) async fn offer(
        &self,
        tenant: &Arc<Tenant>,
        endpoint: &Endpoint,
        era: Era,
        caller: &Caller,
    ) -> Result<EndpointInfo, Refusal> {
        match endpoint {
            Endpoint::Aggregated | Endpoint::Toolset(_) => {
                let backends = tenant.backends_at(endpoint);
                join_all(
                    backends
                        .iter()
                        .map(|backend| backend.wait_first_attempt_for(era, FIRST_CATALOG_WAIT)),
                )
                .await;
                let of = &caller.principal;
                tenant.wait_for_lists_of(endpoint, of, FIRST_CATALOG_WAIT).await;
                let toolset = match endpoint {
                    Endpoint::Toolset(id) => {
                        let toolsets = tenant.toolsets();
                        Some(toolsets.get(id).cloned().ok_or_else(|| unknown_toolset(id))?)
                    }
                    _ => None,
                };
                let catalog = tenant.visible_catalog(endpoint, caller);
                let description =
                    toolset.as_ref().and_then(|toolset| toolset.description.as_deref());
                let has_tasks = self.shared.task_settings().enabled;
                Ok(EndpointInfo::aggregated(&catalog, description, has_tasks))
            }
            Endpoint::Single(id) => {
                let backend = tenant
                    .backend(id)
                    .filter(|_| tenant.may_use_backend(&caller.subject, id))
                    .ok_or_else(|| unknown_backend(id))?;
                if backend.health.state() == BackendState::Failed {
                    backend.reconnect();
                }
                let within = backend.timeouts().first_attempt();
                backend.wait_first_attempt_for(era, within).await;
                tenant.wait_for_lists_of(endpoint, &caller.principal, within).await;
                let lists = backend.lists_of(&caller.principal);
                let down = || {
                    Refusal::new(
                        ErrorKind::BackendUnavailable,
                        format!("backend {id} cannot be reached"),
                    )
                };
                let lists = lists.ok_or_else(down)?;
                Ok(EndpointInfo::single(&lists, self.shared.task_settings().enabled))
            }
        }
    }

    /// Waits until the endpoint's lists are those of its backends, for a limited time.
    pub(super) async fn wait_for_lists(
        &self,
        tenant: &Arc<Tenant>,
        endpoint: &Endpoint,
        principal: &PrincipalId,
    ) {
        let backends = tenant.backends_at(endpoint);
        join_all(
            backends
                .iter()
                .map(|backend| backend.wait_first_attempt_for(Era::Sessions, FIRST_CATALOG_WAIT)),
        )
        .await;
        tenant.wait_for_lists_of(endpoint, principal, FIRST_CATALOG_WAIT).await;
    }

    /// Ends a session for its client, which gets the answer after the end is stored.
    pub async fn delete_session(self: &Arc<Self>, session: &Arc<Session>) -> Result<(), Refusal> {
        let (ending, session) = (EndingSession::start(self, session.key), session.clone());
        // The end runs in a task of its own, so that a client that hangs up does not leave a
        // session without its row.
        let deleting = self.shared.running.spawn(async move {
            ending.broker.store_end(&session, EndScope::EveryOwner).await?;
            ending.broker.forget_session(&session, "ended by its client");
            Ok(())
        });
        deleting.await.unwrap_or_else(|_| {
            Err(Refusal::new(ErrorKind::Internal, "the session could not be ended"))
        })
    }

    /// Ends a session at once. The store follows.
    pub fn close_session(self: &Arc<Self>, session: &Arc<Session>, why: &str) {
        if !session.kind.has_client() {
            return session.end(why); // nothing of it is stored
        }
        let ending = EndingSession::start(self, session.key);
        self.forget_session(session, why);
        ending.store_later(session, EndScope::EveryOwner);
    }

    /// Ends a session whose client did not come back to this process.
    pub fn close_abandoned(self: &Arc<Self>, session: &Arc<Session>) {
        if self.is_fenced() {
            return;
        }
        let ending = EndingSession::start(self, session.key);
        self.forget_session(session, "its client did not come back");
        ending.store_later(session, EndScope::ThisOwner);
    }

    /// Ends a session whose client has sent nothing for the configured time.
    pub(super) fn close_if_idle(self: &Arc<Self>, session: &Arc<Session>) {
        let limit = self.shared.config.session.idle;
        if session.idle_for() <= limit || self.is_fenced() {
            return;
        }
        let ending = EndingSession::start(self, session.key);
        if session.end_if_idle(limit) {
            self.remove_session(session);
            ending.store_later(session, EndScope::ThisOwner);
        }
    }

    /// Returns whether other replicas may own the sessions of this process. The return to the
    /// database decides about them.
    fn is_fenced(&self) -> bool {
        let persistence = &self.shared.persistence;
        persistence.is_shared() && !persistence.lease.is_held()
    }

    /// Ends a session in this process.
    pub(super) fn forget_session(&self, session: &Arc<Session>, why: &str) {
        self.remove_session(session);
        session.end(why);
    }

    /// Removes a session from the table, unless its id has been adopted again meanwhile.
    pub(super) fn remove_session(&self, session: &Arc<Session>) {
        self.sessions.remove_if(&session.id, |_, known| Arc::ptr_eq(known, session));
    }

    async fn store_end(&self, session: &Session, scope: EndScope) -> Result<(), Refusal> {
        let (persistence, key) = (&self.shared.persistence, session.key);
        let end = WriteOp::EndSession { key, epoch: session.epoch() };
        match (persistence.write(end).await?, scope) {
            (WriteOutcome::Done, _) => {}
            (_, EndScope::EveryOwner) => self.end_stored(&key).await?,
            // Another process owns the session, with its log and its hint.
            (_, EndScope::ThisOwner) => {
                persistence.release_log(&key);
                return Ok(());
            }
        }
        persistence.forget_session(&key).await;
        Ok(())
    }

    /// Ends a session in the store if this process does not know its epoch. The row may be gone, or
    /// this process may own it under another epoch. Another owner gets the request to end it.
    async fn end_stored(&self, key: &SessionKey) -> Result<(), Refusal> {
        let persistence = &self.shared.persistence;
        if !persistence
            .timed(
                "request_session_end",
                persistence.store.apply(AdminChange::EndSession(key), None),
            )
            .await?
        {
            return Ok(());
        }
        let rows = persistence
            .timed("find_sessions_by_digest", persistence.store.sessions_by_digest(&key.digest()))
            .await?;
        let Some(row) = rows.into_iter().find(|row| row.record.key == *key) else { return Ok(()) };
        if row.owner.is_some_and(|owner| owner.node == persistence.node()) {
            // If the write is fenced, the new owner got the request to end it.
            persistence.write(WriteOp::EndSession { key: *key, epoch: row.epoch }).await?;
        }
        Ok(())
    }

    /// Ends sessions in the store that this process owns but does not have. An operator asked for
    /// it.
    pub(super) fn end_unknown(self: &Arc<Self>, sessions: Vec<SessionKey>) {
        let broker = self.clone();
        self.shared.running.spawn(async move {
            for key in sessions {
                let ending = EndingSession::start(&broker, key);
                // The next renewal names it again.
                let _later = ending.broker.end_stored(&key).await;
            }
        });
    }

    pub(super) fn end_sessions_of(self: &Arc<Self>, tenant: &Tenant, why: &str) {
        tenant.sessions().iter().for_each(|session| self.close_session(session, why));
    }

    pub(super) fn all_sessions(&self) -> Vec<Arc<Session>> {
        self.sessions.iter().map(|entry| entry.value().clone()).collect()
    }
}

/// Owners of a session at which its end counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndScope {
    /// Its client ended it, or it lost its rights.
    EveryOwner,
    /// Its client is silent here. A later owner may serve it.
    ThisOwner,
}

/// A session that is over, but may still be in the store. It cannot be adopted until the last guard
/// of its key is dropped.
pub(super) struct EndingSession {
    broker: Arc<Broker>,
    key: SessionKey,
}

impl EndingSession {
    pub(super) fn start(broker: &Arc<Broker>, key: SessionKey) -> Self {
        *broker.ending_sessions.entry(key).or_default() += 1;
        Self { broker: broker.clone(), key }
    }

    /// Removes the session from the store, even if it is stored late. Its client must not find it
    /// again.
    fn store_later(self, session: &Arc<Session>, scope: EndScope) {
        let session = session.clone();
        let running = &self.broker.shared.running;
        running.clone().spawn(async move {
            let store = || self.broker.store_end(&session, scope);
            if let Err(refusal) = retry_until(store, || self.broker.draining()).await {
                tracing::warn!(session = %session.digest, %refusal, "the broker could not store the end of a session; the stored session expires after its idle time");
            }
            let shared = &self.broker.shared;
            let (idle, draining) = (shared.config.session.idle, &shared.shutdown.draining);
            shared.persistence.end_if_stored_late(&session.key, idle, draining).await;
        });
    }
}

/// Repeats an operation until it succeeds or `is_over`. While this process lives, no other process
/// removes the row of a session that has ended.
async fn retry_until<O: Future<Output = Result<(), Refusal>>>(
    operation: impl Fn() -> O,
    is_over: impl Fn() -> bool,
) -> Result<(), Refusal> {
    let mut pause = END_RETRY_FIRST;
    loop {
        match operation().await {
            Err(_) if !is_over() => tokio::time::sleep(pause).await,
            outcome => return outcome,
        }
        pause = (pause * 2).min(END_RETRY_PAUSE_MAX);
    }
}

impl Drop for EndingSession {
    fn drop(&mut self) {
        let ending = &self.broker.ending_sessions;
        ending.alter(&self.key, |_, guards| guards - 1);
        ending.remove_if(&self.key, |_, guards| *guards == 0);
    }
}

/// Refuses a session that began on another transport, as a missing session.
pub fn check_transport(session: &Session, transport: Transport) -> Result<(), Refusal> {
    if session.transport == transport { Ok(()) } else { Err(no_session()) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use parking_lot::Mutex;
    use protocol::{envelope::Message, handshake, ids::RequestId, json, method::Method};
    use storage::{DurableStore as _, SessionStore as _, hot::MemoryHotStore};
    use tokio::time::Instant;

    use super::*;
    use crate::persistence::{
        StoreError, Stores,
        tests::{Meddled, Verdict},
    };

    #[tokio::test(start_paused = true)]
    async fn an_end_is_stored_after_a_long_outage_unless_the_process_ends() {
        let (started, outage) = (Instant::now(), Duration::from_secs(600));
        let store = || async {
            match started.elapsed() < outage {
                true => Err(Refusal::new(ErrorKind::StoreUnavailable, "an outage")),
                false => Ok(()),
            }
        };
        assert!(retry_until(store, || started.elapsed() > Duration::from_secs(100)).await.is_err());
        retry_until(store, || false).await.unwrap();
        assert!(started.elapsed() < outage + 2 * END_RETRY_PAUSE_MAX);
    }

    /// Lets each session be refused with an unknown outcome, and returns the writes that open them.
    fn refuse_sessions(store: &Meddled) -> Arc<Mutex<Vec<WriteOp>>> {
        let refused: Arc<Mutex<Vec<WriteOp>>> = Arc::default();
        let opened = refused.clone();
        store.on_write(move |batch| {
            let opens = batch.iter().find(|write| matches!(write, WriteOp::OpenSession { .. }));
            let Some(open) = opens else { return Verdict::Pass };
            opened.lock().push(open.clone());
            let cause = StoreError::Busy { detail: "a test".into() };
            Verdict::Fail(StoreError::OutcomeUnknown(Box::new(cause)))
        });
        refused
    }

    fn broker_over(store: &Arc<Meddled>) -> Arc<Broker> {
        let hot = Arc::new(MemoryHotStore::new());
        Broker::over(Stores { durable: store.clone(), events: None, hot })
    }

    async fn initialize(broker: &Arc<Broker>) -> Result<(), Refusal> {
        let params = br#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}"#;
        let frame = handshake::request(&RequestId::from_u64(1), Method::Initialize, Some(params));
        let message = Message::decode(frame, &json::Limits::default()).unwrap();
        let (caller, endpoint) = (Caller::anonymous(), Endpoint::Aggregated);
        broker.open_session(caller, endpoint, Transport::Http, &message).await.map(drop)
    }

    #[tokio::test]
    async fn a_session_that_was_certainly_not_stored_leaves_nothing_to_end() {
        let store = Meddled::start("sqlite").await;
        let broker = broker_over(&store);
        store.on_write(|_| Verdict::Fail(StoreError::Unavailable { detail: "a test".into() }));
        for _ in 0..3 {
            let refused = initialize(&broker).await.unwrap_err();
            assert_eq!(refused.kind, ErrorKind::StoreUnavailable);
            assert!(broker.ending_sessions.is_empty() && broker.all_sessions().is_empty());
        }
        refuse_sessions(&store);
        testkit::eventually("a write with an unknown outcome", async || {
            let refused = initialize(&broker).await.unwrap_err();
            if broker.ending_sessions.is_empty() { Err(refused) } else { Ok(()) }
        })
        .await;
    }

    #[tokio::test]
    async fn a_refused_session_that_is_committed_after_its_end_is_removed() {
        let store = Meddled::start("sqlite").await;
        let broker = broker_over(&store);
        let refused = refuse_sessions(&store);
        assert!(initialize(&broker).await.is_err());
        testkit::eventually("the end, which finds no row", async || {
            match store.count("ask_session_end") {
                0 => Err(()),
                _ => Ok(()),
            }
        })
        .await;
        let late = refused.lock().clone();
        store.inner.write(&late).await.unwrap();
        testkit::eventually("the row to be removed", async || {
            let rows = store.list_sessions(None, None, 10).await.unwrap();
            if rows.is_empty() { Ok(()) } else { Err(rows) }
        })
        .await;
    }
}
