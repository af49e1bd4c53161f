//! One client's session: its agreement, its requests in flight, its streams.
//!
//! A session is a value behind one short lock, not a task. Senders push messages into its streams
//! and return. No code waits while it holds the lock. A session outlives its process: each promise
//! to the client is stored before it is acknowledged (`persisted_state`), and the next owner
//! continues from there (`adoption`).
//!
//! The data behind the lock is composed of parts in `state`. A [`Session`] counts its requests,
//! delivers messages, opens links and ends. Other work has a file for each subject, whose functions
//! and roles take the session: [`questions`], [`notifications`], [`subscriptions`], [`outbox`],
//! [`SessionPersister`], [`StreamResumption`] and [`SessionRelease`].

mod access;
mod adoption;
mod clock;
mod delivery;
pub mod expiry;
mod kind;
mod link_client;
mod links;
pub mod list_changes;
pub(in crate::sessions) mod local_requests;
pub mod notifications;
pub(in crate::sessions) mod observation;
mod open_call;
pub mod outbox;
mod persisted_state;
pub mod questions;
pub mod record;
pub(in crate::sessions) mod release;
mod requests;
mod resumption;
mod state;
pub mod subscriptions;
mod teardown;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use protocol::{
    capabilities::{ClientCapabilities, ServerCapabilities},
    downlevel::Translator,
    error::Refusal,
    ids::{BackendId, KeyId, RequestId, SessionId},
    phase::SessionPhase,
    version::Version,
};

pub use self::{
    adoption::ClaimedSession,
    kind::{SessionKind, TaskAcceptance},
    local_requests::Reply,
    open_call::OpenCall,
    persisted_state::SessionPersister,
    release::{ReleaseMode, ReleaseOutcome, SessionRelease},
    requests::count_refused,
    resumption::{ResumedStream, StreamResumption},
    state::session_moved,
};
pub(in crate::sessions) use self::{
    local_requests::{CancelScope, RequestContext},
    state::InFlight,
};
use config::MessageWire;
use records::SessionKey;
use rules::{
    access::Subject,
    catalog::{BackendLists, Catalog, ListDigests, QuestionKinds},
    client_transport::Transport,
    endpoint::Endpoint,
    limits::SESSION_ID_BYTES,
    log_level::LogLevel,
};

use self::{
    clock::SessionClock,
    persisted_state::PersistedState,
    state::{FIRST_EPOCH, SessionState, SessionStreams},
};
use super::{shared::Shared, tenant::Tenant, tenant_access::TenantCatalog};
use crate::{auth::Caller, views::SessionView};

/// The result of the handshake.
#[derive(Debug)]
pub struct Agreement {
    pub version: Version,
    pub client: ClientCapabilities,
    pub client_name: String,
    pub client_version: String,
    pub advertised: ServerCapabilities,
}

/// Identity of a session: its tenant, caller, endpoint and transport.
#[derive(Debug)]
pub struct SessionParams {
    pub tenant: Arc<Tenant>,
    pub caller: Caller,
    pub endpoint: Endpoint,
    pub transport: Transport,
}

#[derive(Debug)]
pub struct Session {
    pub id: SessionId,
    /// The key of the session's row.
    pub key: SessionKey,
    /// Name of the session in logs and in the admin API. The id itself is the client's secret.
    pub digest: String,
    pub tenant: Arc<Tenant>,
    pub caller: Caller,
    /// Attributes of the caller, by the credential of the latest request.
    subject: ArcSwap<Subject>,
    pub endpoint: Endpoint,
    pub transport: Transport,
    pub agreement: Agreement,
    pub shared: Arc<Shared>,
    pub kind: SessionKind,
    clock: SessionClock,
    /// Number of answers that are being written to their streams.
    answers_in_delivery: AtomicUsize,
    /// The epoch under which this process owns the row.
    epoch: AtomicI64,
    /// Set when the session has left, is leaving, or is over. It accepts nothing new then.
    leaving: AtomicBool,
    /// Set when the broker gave up a call that the backend may still execute.
    has_abandoned_call: AtomicBool,
    /// Questions that the client can answer, as far as its lists depend on them. Those of stateless
    /// clients do not (MCP 2026-07-28, Tools).
    pub question_kinds: QuestionKinds,
    /// Set once a link of the session had own lists.
    has_own_lists: AtomicBool,
    /// Locked while the broker builds and writes the stored state. An older state therefore never
    /// overwrites a newer one.
    persisted: tokio::sync::Mutex<PersistedState>,
    state: Mutex<SessionState>,
}

impl Session {
    /// Opens a session of one client.
    pub fn open(params: SessionParams, agreement: Agreement, shared: Arc<Shared>) -> Arc<Self> {
        let kinds = QuestionKinds::of(&agreement.client);
        let announced = params.tenant.visible_catalog(&params.endpoint, &params.caller);
        let announced = announced.offered_to(kinds).digests(&params.endpoint);
        let kind = SessionKind::Client;
        Self::build(SessionParts::with_new_id(params, agreement, kind, announced), shared)
    }

    /// Opens a pooled session for stateless requests. It is ready at once, and is never stored.
    pub fn pooled(
        params: SessionParams,
        agreement: Agreement,
        acceptance: TaskAcceptance,
        shared: Arc<Shared>,
    ) -> Arc<Self> {
        let announced = params.tenant.visible_catalog(&params.endpoint, &params.caller);
        let announced = announced.digests(&params.endpoint);
        let kind = SessionKind::Pooled(acceptance);
        Self::build(SessionParts::with_new_id(params, agreement, kind, announced), shared)
    }

    fn build(parts: SessionParts, shared: Arc<Shared>) -> Arc<Self> {
        let SessionParts { id, epoch, created_at, params, agreement, state, kind } = parts;
        if kind.has_client() {
            shared.metrics.phase(SessionPhase::Opening.name(), state.phase.name());
            shared.metrics.sessions(params.transport, "open", 1);
            params.tenant.counts.sessions(1);
        }
        let key = record::session_key(&id);
        let session = Arc::new(Self {
            digest: key.digest(),
            key,
            id,
            tenant: params.tenant,
            subject: ArcSwap::new(params.caller.subject.clone()),
            caller: params.caller,
            endpoint: params.endpoint,
            transport: params.transport,
            question_kinds: if kind.has_client() {
                QuestionKinds::of(&agreement.client)
            } else {
                QuestionKinds::ALL
            },
            agreement,
            clock: SessionClock::new(created_at, shared.uptime_ms()),
            answers_in_delivery: AtomicUsize::new(0),
            epoch: AtomicI64::new(epoch),
            leaving: AtomicBool::new(false),
            has_abandoned_call: AtomicBool::new(false),
            has_own_lists: AtomicBool::new(false),
            persisted: tokio::sync::Mutex::new(PersistedState {
                announced_lists: state.lists.announced(),
            }),
            shared,
            kind,
            state: Mutex::new(state),
        });
        session.shared.registry.add(&session);
        session
    }

    /// Returns whether [`Session::open`] could have made this id, here or on another replica.
    pub fn is_valid_id(id: &SessionId) -> bool {
        let id = id.as_str().as_bytes();
        id.len() == SESSION_ID_BYTES.div_ceil(3) * 4
            && id.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    }

    /// Returns the attributes of the caller, by the credential of the latest request.
    pub fn subject(&self) -> Arc<Subject> {
        self.subject.load_full()
    }

    /// Notes the attributes of the latest credential. If the caller may use other objects now, its
    /// client gets notifications about the lists. Returns whether the credential is a key that has
    /// not continued the session before.
    pub fn set_subject(&self, subject: &Arc<Subject>) -> bool {
        let known = self.subject.load();
        // Requests with one credential share the value, so the attributes are rarely compared.
        if Arc::ptr_eq(&known, subject) || **known == **subject {
            return false;
        }
        drop(known);
        let has_new_key = subject.key.as_ref().is_some_and(|key| add_key(self, key));
        let before = self.subject.swap(subject.clone());
        let catalog = self.catalog();
        let kinds = self.question_kinds;
        let [before, now] =
            [&before, subject].map(|subject| catalog.visible(subject).offered_to(kinds));
        let lists = now.changed_lists(&before, &self.endpoint);
        if !lists.is_empty() {
            self.on_lists_changed(&lists);
        }
        has_new_key
    }

    /// Returns the catalog of the endpoint with the lists that backends show to this session alone,
    /// and the policy that restricts it, as one snapshot.
    pub fn catalog(&self) -> Arc<TenantCatalog> {
        tenant_catalog(self).at(&self.endpoint)
    }

    /// Returns the catalog that the caller sees.
    pub fn visible_catalog(&self) -> Arc<Catalog> {
        self.catalog().visible(&self.subject.load())
    }

    /// Returns the epoch under which this process owns the row.
    pub fn epoch(&self) -> i64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Returns whether the session has left, is leaving, or is over. It accepts nothing new then.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Notes that a call was given up. Its backend may still work on it and send a request.
    pub fn record_abandoned_call(&self) {
        self.has_abandoned_call.store(true, Ordering::Release);
    }

    pub fn has_abandoned_call(&self) -> bool {
        self.has_abandoned_call.load(Ordering::Acquire)
    }

    /// Returns whether the session has left this process without ending. Messages of its client are
    /// for its next owner.
    pub fn has_moved(&self) -> bool {
        self.lock().ownership.moved
    }

    /// Notes a message from the client.
    pub fn touch(&self) {
        self.clock.touch(self.shared.uptime_ms());
    }

    /// Returns for how long the client has sent nothing, and has had neither a request in flight nor
    /// a connected stream. Housekeeping asks once a second, and thereby notes the end of the last
    /// request and stream.
    pub fn idle_for(&self) -> Duration {
        let state = self.lock();
        let is_busy = !state.in_flight.is_empty() || state.streams.any_connected();
        drop(state);
        let now = self.shared.uptime_ms();
        if is_busy {
            self.clock.record_busy(now);
        }
        self.clock.since_touched(now).min(self.clock.since_busy(now))
    }

    /// Returns the translator for the client's revision.
    pub fn client_dialect(&self) -> Translator {
        Translator { version: self.agreement.version, strict: self.shared.config.compat.strict }
    }

    pub fn log_level(&self) -> Option<LogLevel> {
        self.lock().log_level
    }

    /// Returns an error response of the broker. It is counted, and its id is in the log.
    pub fn refusal_frame(&self, refusal: &Refusal, id: Option<&RequestId>) -> Bytes {
        let request_id =
            self.shared.record_refusal(refusal, Some(&self.digest), Some(self.tenant.id.as_str()));
        refusal.to_response(id, &request_id)
    }

    /// Returns whether a request with this id is in flight.
    pub fn has_in_flight(&self, id: &RequestId) -> bool {
        self.lock().in_flight.contains_key(id)
    }

    /// Returns the size limit of a message of the client.
    pub fn message_bytes(&self) -> usize {
        self.tenant.message_bytes(MessageWire::of_client(self.transport))
    }

    pub fn calls_in_flight(&self) -> usize {
        self.lock().in_flight.len() + self.answers_in_delivery.load(Ordering::Relaxed)
    }

    pub fn view(&self) -> SessionView {
        let state = self.lock();
        let idle = self.clock.since_touched(self.shared.uptime_ms()).as_secs();
        SessionView {
            id: self.digest.clone(),
            tenant: self.tenant.id.to_string(),
            principal: self.caller.principal.to_string(),
            transport: self.transport.name().to_owned(),
            endpoint: match &self.endpoint {
                Endpoint::Aggregated => "aggregated".to_owned(),
                named => named.name().into_owned(),
            },
            protocol_version: self.agreement.version.as_str().to_owned(),
            client_name: self.agreement.client_name.clone(),
            client_version: self.agreement.client_version.clone(),
            state: match state.phase {
                SessionPhase::Ready => "ready",
                SessionPhase::Closing | SessionPhase::Closed => "closing",
                _ => "opening",
            }
            .to_owned(),
            calls_in_flight: Some(state.in_flight.len()),
            streams: Some(state.streams.connected()),
            subscriptions: state.subscriptions.len(),
            idle_seconds: idle,
            created_at: self.clock.created_at.to_string(),
            node: Some(self.shared.persistence.node().to_string()),
        }
    }

    /// Returns the state of a session that begins here, without anything in it.
    fn new_state(
        params: &SessionParams,
        key: &SessionKey,
        epoch: i64,
        phase: SessionPhase,
        announced: ListDigests,
    ) -> SessionState {
        let (tenant, shared) = (&params.tenant, &params.tenant.shared);
        let log = shared.persistence.event_log.as_ref();
        let log = log.map(|log| (log.for_tenant(&tenant.logged_events), *key));
        let streams = SessionStreams::new(shared.stream_limits(), epoch, log)
            .with_unread_budget(&shared.unread_budget, (&params.caller).into())
            .with_retained_budget(&tenant.retained);
        SessionState::new(phase, epoch, shared.persistence.node(), streams, announced)
    }

    fn lock(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock()
    }
}

/// The parts in which new, restored and pooled sessions differ.
struct SessionParts {
    id: SessionId,
    epoch: i64,
    created_at: jiff::Timestamp,
    params: SessionParams,
    agreement: Agreement,
    state: SessionState,
    kind: SessionKind,
}

impl SessionParts {
    fn with_new_id(
        params: SessionParams,
        agreement: Agreement,
        kind: SessionKind,
        announced: ListDigests,
    ) -> Self {
        let id = SessionId::new(URL_SAFE_NO_PAD.encode(rand::random::<[u8; SESSION_ID_BYTES]>()));
        let is_pooled = !kind.has_client();
        let mut state = Session::new_state(
            &params,
            &record::session_key(&id),
            FIRST_EPOCH,
            if is_pooled { SessionPhase::Ready } else { SessionPhase::AwaitingInitialized },
            announced,
        );
        if is_pooled {
            state.streams.disable_log();
        }
        let created_at = jiff::Timestamp::now();
        Self { id, epoch: FIRST_EPOCH, created_at, params, agreement, state, kind }
    }
}

/// Adds a key that continues a session. Returns false if the session knows it.
pub fn add_key(session: &Session, key: &KeyId) -> bool {
    if has_used_key(session, key) {
        return false;
    }
    session.lock().further_keys.push(key.clone());
    true
}

/// Returns whether a key opened or continued a session.
pub fn has_used_key(session: &Session, key: &KeyId) -> bool {
    session.caller.key.as_ref() == Some(key) || session.lock().further_keys.contains(key)
}

/// Returns the catalog of the tenant with the lists that backends show to this session alone.
fn tenant_catalog(session: &Session) -> Arc<TenantCatalog> {
    let shared = session.tenant.catalog().of(&session.caller.principal);
    if !session.has_own_lists.load(Ordering::Acquire) {
        return shared;
    }
    let own = session.lock().links.own_lists();
    shared.with_own_lists(&own)
}

/// Returns the lists that a backend shows to a session. They include the objects that the policy or
/// a toolset hides from the client.
pub(in crate::sessions) fn lists_of(
    session: &Session,
    backend: &BackendId,
) -> Option<Arc<BackendLists>> {
    tenant_catalog(session).full.backends.get(backend).cloned()
}
