//! One client's conversation: what was agreed, what is in flight, the streams back to it.
//!
//! A session is a value behind one short lock, not a task: whoever has something for the client pushes it into one of the
//! session's streams and goes on. Nothing waits while the lock is held. It outlives its process: what its client was
//! promised is stored before it is acknowledged (`persisted_state`), and whoever owns it next goes on from there (`adoption`).

mod adoption;
mod link_client;
mod links;
mod list_changes;
pub(in crate::sessions) mod local_requests;
mod observation;
mod open_call;
mod outbox;
mod persisted_state;
mod questions;
pub mod record;
mod requests;
mod resumption;
mod streams;
mod subscriptions;
mod teardown;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use protocol::{
    capabilities::{ClientCapabilities, ServerCapabilities},
    downlevel::Translator,
    error::{ErrorKind, Refusal},
    ids::{BackendId, RequestId, SessionId},
    method::Method,
    phase::SessionPhase,
    version::Version,
};

pub use self::{
    adoption::ClaimedSession, local_requests::Reply, open_call::OpenCall,
    resumption::ResumedStream, teardown::ReleaseOutcome,
};
pub(in crate::sessions) use self::{
    local_requests::{CancelScope, RequestContext},
    requests::{InFlight, without_own_meta},
};
use self::{
    persisted_state::{DirtyFlags, PersistedState},
    questions::Question,
    streams::SessionStreams,
    teardown::QuiesceState,
};
use super::{shared::Shared, tenant::Tenant};
use crate::{
    auth::Caller,
    backends::link::{BackendSession, Link, connection::Connection},
    config::MessageWire,
    limits::SESSION_ID_BYTES,
    maps::FastMap,
    persistence::{NodeName, SessionKey},
    rules::{
        catalog::ListDigests, client_transport::Transport, endpoint::Endpoint, log_level::LogLevel,
        routing::ResourceTarget,
    },
    views::SessionView,
};

/// What the handshake settled.
#[derive(Debug)]
pub struct Agreement {
    pub version: Version,
    pub client: ClientCapabilities,
    pub client_name: String,
    pub client_version: String,
    pub advertised: ServerCapabilities,
}

/// Who opens a session, and where.
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
    /// Under which it is stored.
    pub key: SessionKey,
    /// Names the session in logs and in the admin API; the id itself is its client's secret.
    pub digest: String,
    pub tenant: Arc<Tenant>,
    pub caller: Caller,
    pub endpoint: Endpoint,
    pub transport: Transport,
    pub version: Version,
    pub client: ClientCapabilities,
    pub client_name: String,
    pub client_version: String,
    pub advertised: ServerCapabilities,
    pub shared: Arc<Shared>,
    /// Somebody was told its id. Otherwise it serves requests that stand alone: nothing of it is stored, and nobody comes
    /// back for what no request waits for.
    pub has_client: bool,
    /// Those whose requests it serves take a task for an answer to a call (MCP 2026-07-28, TaskManager).
    pub accepts_tasks: bool,
    created_at: jiff::Timestamp,
    touched_ms: AtomicU64,
    /// Answers on their way into their streams.
    answers_in_delivery: AtomicUsize,
    /// Under which its row is ours.
    epoch: AtomicI64,
    /// It is another's, or about to be, or over: nothing new begins here.
    leaving: AtomicBool,
    /// A call of it was given up that its backend may be at.
    has_abandoned_call: AtomicBool,
    /// Held while what is stored is made and written, so that an older state never overwrites a newer one.
    persisted: tokio::sync::Mutex<PersistedState>,
    /// When its client was last heard of, as stored.
    seen_stored_ms: AtomicU64,
    state: Mutex<SessionState>,
}

#[derive(Debug)]
struct SessionState {
    phase: SessionPhase,
    in_flight: FastMap<RequestId, InFlight>,
    streams: SessionStreams,
    links: FastMap<BackendId, Arc<Link>>,
    questions: HashMap<u64, Question>,
    next_question: u64,
    /// By the URI the client uses.
    subscriptions: HashMap<String, ResourceTarget>,
    log_level: Option<LogLevel>,
    /// Ids of URL elicitations this client was asked to perform.
    elicited: HashSet<String>,
    /// TaskManager this client works on for a backend, with the connection that asked.
    client_tasks: HashMap<String, Weak<Connection>>,
    /// Lists that changed before the client was ready to hear it.
    held_changes: HashSet<Method>,
    /// The name this process had when the row became ours.
    owner: NodeName,
    /// Sessions at HTTP backends: what a new owner goes on with.
    backend_sessions: HashMap<BackendId, BackendSession>,
    /// The lists as the client was last told of them.
    announced_lists: ListDigests,
    /// The session was just adopted: its lists are compared once the backends had their chance, and not before.
    lists_unchecked: bool,
    /// What is not stored yet.
    dirty: DirtyFlags,
    /// The event log did not have what told the lists: it is asked again from then on.
    lists_retry_at: Option<Instant>,
    /// It left, but did not end: its client finds it elsewhere.
    moved: bool,
    /// What keeps it here when it is to be given away.
    quiesce: QuiesceState,
}

impl Session {
    /// A new session with an id of its own.
    pub fn open(seat: SessionParams, agreement: Agreement, shared: Arc<Shared>) -> Arc<Self> {
        let id = SessionId::new(URL_SAFE_NO_PAD.encode(rand::random::<[u8; SESSION_ID_BYTES]>()));
        let told = seat.tenant.catalog().digests(&seat.endpoint);
        let state = SessionState::new(
            &shared,
            &record::session_key(&id),
            FIRST_EPOCH,
            SessionPhase::AwaitingInitialized,
            told,
        );
        Self::build(
            id,
            FIRST_EPOCH,
            jiff::Timestamp::now(),
            (seat, agreement),
            state,
            (shared, SessionKind::Client),
        )
    }

    /// A session that no client knows of, for requests that stand alone. It is ready at once, and is never stored.
    pub fn pooled(
        seat: SessionParams,
        agreement: Agreement,
        becomes_tasks: bool,
        shared: Arc<Shared>,
    ) -> Arc<Self> {
        let id = SessionId::new(URL_SAFE_NO_PAD.encode(rand::random::<[u8; SESSION_ID_BYTES]>()));
        let told = seat.tenant.catalog().digests(&seat.endpoint);
        let mut state = SessionState::new(
            &shared,
            &record::session_key(&id),
            FIRST_EPOCH,
            SessionPhase::Ready,
            told,
        );
        state.streams.disable_log();
        Self::build(
            id,
            FIRST_EPOCH,
            jiff::Timestamp::now(),
            (seat, agreement),
            state,
            (shared, SessionKind::Pooled { becomes_tasks }),
        )
    }

    fn build(
        id: SessionId,
        epoch: i64,
        created_at: jiff::Timestamp,
        (seat, agreement): (SessionParams, Agreement),
        state: SessionState,
        (shared, used): (Arc<Shared>, SessionKind),
    ) -> Arc<Self> {
        let kept = matches!(used, SessionKind::Client);
        if kept {
            shared.metrics.phase(SessionPhase::Opening.name(), state.phase.name());
            shared.metrics.sessions(seat.transport, "open", 1);
        }
        let key = record::session_key(&id);
        let session = Arc::new(Self {
            digest: key.digest(),
            key,
            id,
            tenant: seat.tenant,
            caller: seat.caller,
            endpoint: seat.endpoint,
            transport: seat.transport,
            version: agreement.version,
            client: agreement.client,
            client_name: agreement.client_name,
            client_version: agreement.client_version,
            advertised: agreement.advertised,
            touched_ms: AtomicU64::new(shared.uptime_ms()),
            answers_in_delivery: AtomicUsize::new(0),
            epoch: AtomicI64::new(epoch),
            leaving: AtomicBool::new(false),
            has_abandoned_call: AtomicBool::new(false),
            persisted: tokio::sync::Mutex::new(PersistedState {
                announced_lists: state.announced_lists,
            }),
            seen_stored_ms: AtomicU64::new(shared.uptime_ms()),
            shared,
            has_client: kept,
            accepts_tasks: matches!(used, SessionKind::Pooled { becomes_tasks: true }),
            created_at,
            state: Mutex::new(state),
        });
        session.shared.registry.add(&session);
        session
    }

    /// Whether this can be an id that [`Session::open`] made, here or on another replica.
    pub fn is_valid_id(id: &SessionId) -> bool {
        let id = id.as_str().as_bytes();
        id.len() == SESSION_ID_BYTES.div_ceil(3) * 4
            && id.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    }

    /// Under which its row is ours.
    pub fn epoch(&self) -> i64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Nothing new begins here: the session is over, another's, or about to be.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// A call was given up that its backend may be at, and may still ask something for.
    pub fn note_abandoned_call(&self) {
        self.has_abandoned_call.store(true, Ordering::Release);
    }

    pub fn has_abandoned_call(&self) -> bool {
        self.has_abandoned_call.load(Ordering::Acquire)
    }

    /// It is another's, or anybody's: what its client has to say is for whoever has it next.
    pub fn has_moved(&self) -> bool {
        self.lock().moved
    }

    /// The client was heard of.
    pub fn touch(&self) {
        self.touched_ms.store(self.shared.uptime_ms(), Ordering::Relaxed);
    }

    /// Nothing was heard of the client, and nothing is in flight or open, for this long.
    pub fn idle_for(&self) -> Duration {
        let state = self.lock();
        if !state.in_flight.is_empty() || state.streams.any_connected() {
            return Duration::ZERO;
        }
        drop(state);
        self.since_touched()
    }

    fn since_touched(&self) -> Duration {
        Duration::from_millis(
            self.shared.uptime_ms().saturating_sub(self.touched_ms.load(Ordering::Relaxed)),
        )
    }

    /// For whom its answers are written.
    pub fn client_dialect(&self) -> Translator {
        Translator { version: self.version, strict: self.shared.config.compat.strict }
    }

    pub fn log_level(&self) -> Option<LogLevel> {
        self.lock().log_level
    }

    /// An error response of the broker's own, counted and with an id that is in the log.
    pub fn refusal_frame(&self, refusal: &Refusal, id: Option<&RequestId>) -> Bytes {
        let request_id =
            self.shared.note_refusal(refusal, Some(&self.digest), Some(self.tenant.id.as_str()));
        refusal.to_response(id, &request_id)
    }

    /// What passes with time: unanswered questions, streams kept for resumption.
    pub fn tick(self: &Arc<Self>, now: Instant) {
        let expired = {
            let mut state = self.lock();
            state.streams.expire(now, self.shared.config.events.retain);
            let limit = self.shared.config.timeouts.client_request;
            let due: Vec<u64> = state
                .questions
                .iter()
                .filter(|(_, q)| q.age(now) > limit)
                .map(|(id, _)| *id)
                .collect();
            due
        };
        expired.into_iter().for_each(|question| self.expire_question(question));
    }

    /// Requests whose answers are not in their streams yet.
    pub fn has_in_flight(&self, id: &RequestId) -> bool {
        self.lock().in_flight.contains_key(id)
    }

    /// How large a message of its client may be.
    pub fn message_bytes(&self) -> usize {
        self.tenant.message_bytes(MessageWire::of_client(self.transport))
    }

    pub fn calls_in_flight(&self) -> usize {
        self.lock().in_flight.len() + self.answers_in_delivery.load(Ordering::Relaxed)
    }

    pub fn view(&self) -> SessionView {
        let state = self.lock();
        let idle = self.since_touched().as_secs();
        SessionView {
            id: self.digest.clone(),
            tenant: self.tenant.id.to_string(),
            principal: self.caller.principal.to_string(),
            transport: self.transport.name().to_owned(),
            endpoint: match &self.endpoint {
                Endpoint::Aggregated => "aggregated".to_owned(),
                Endpoint::Single(backend) => backend.to_string(),
            },
            protocol_version: self.version.as_str().to_owned(),
            client_name: self.client_name.clone(),
            client_version: self.client_version.clone(),
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
            created_at: self.created_at.to_string(),
            node: Some(self.shared.durable.node().to_string()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock()
    }
}

impl SessionState {
    fn new(
        shared: &Shared,
        key: &SessionKey,
        epoch: i64,
        phase: SessionPhase,
        told: ListDigests,
    ) -> Self {
        let log = shared.durable.event_log.clone().map(|log| (log, *key));
        Self {
            phase,
            in_flight: FastMap::default(),
            streams: SessionStreams::new(shared.stream_limits(), epoch, log)
                .with_unread_budget(&shared.unread_budget),
            links: FastMap::default(),
            questions: HashMap::new(),
            next_question: first_question(epoch),
            subscriptions: HashMap::new(),
            log_level: None,
            elicited: HashSet::new(),
            client_tasks: HashMap::new(),
            held_changes: HashSet::new(),
            owner: shared.durable.node(),
            backend_sessions: HashMap::new(),
            announced_lists: told,
            lists_unchecked: false,
            dirty: DirtyFlags::default(),
            lists_retry_at: None,
            moved: false,
            quiesce: QuiesceState::default(),
        }
    }

    /// Refuses requests to a session that left, or is about to.
    fn check_accepting(&self) -> Result<(), Refusal> {
        if self.quiesce.is_quiescing { Err(session_moved()) } else { self.check_present() }
    }

    /// Refuses what would begin something in a session that left.
    fn check_present(&self) -> Result<(), Refusal> {
        match self.phase {
            _ if self.moved => Err(session_moved()),
            SessionPhase::Closing | SessionPhase::Closed => Err(session_ended()),
            _ => Ok(()),
        }
    }
}

/// What a session is for.
enum SessionKind {
    /// One client, which knows it.
    Client,
    /// Requests that stand alone.
    Pooled { becomes_tasks: bool },
}

/// The epoch of a session that had no owner before.
const FIRST_EPOCH: i64 = 1;

/// Where an owner begins to number what must not repeat within a session.
fn number_base(epoch: i64) -> u64 {
    u64::try_from(epoch - FIRST_EPOCH).unwrap_or_default() << 32
}

/// JSON-RPC ids are not used again within a session (MCP 2025-11-25, Requests), whoever owned it before.
fn first_question(epoch: i64) -> u64 {
    number_base(epoch) + 1
}

/// The same holds for the session at a backend.
fn first_wire_id(epoch: i64) -> u64 {
    number_base(epoch) + 1
}

fn session_ended() -> Refusal {
    Refusal::new(ErrorKind::SessionNotFound, "the session is over")
}

/// Whose requests are led to the next owner, if there is time.
pub fn session_moved() -> Refusal {
    Refusal::new(ErrorKind::SessionElsewhere, "the session is moving to another process, try again")
}
