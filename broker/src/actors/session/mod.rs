//! One client's conversation: what was agreed, what is in flight, the streams back to it.
//!
//! A session is a value behind one short lock, not a task: whoever has something for the client pushes it into one of the
//! session's streams and goes on. Nothing waits while the lock is held.

pub(in crate::actors) mod local;
mod questions;
mod requests;
mod streams;
mod subscribing;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use protocol::{
    capabilities::{ClientCapabilities, ServerCapabilities},
    error::{ErrorKind, Refusal},
    handshake,
    ids::{BackendId, RequestId, SessionId},
    method::Method,
    phase::SessionPhase,
    version::Version,
};

use self::{questions::Question, requests::InFlight, streams::Streams};
use super::{
    backend::Deadlines,
    link::{Link, connection::Connection},
    shared::Shared,
    stream::EventStream,
    sync,
    tenant::Tenant,
};
use crate::{
    auth::Caller,
    durable::SessionKey,
    limits::SESSION_ID_BYTES,
    rules::{
        catalog::{Endpoint, ListKind},
        event_log::EventKind,
        log_level::LogLevel,
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
pub struct Seat {
    pub tenant: Arc<Tenant>,
    pub caller: Caller,
    pub endpoint: Endpoint,
    pub transport: &'static str,
}

#[derive(Debug)]
pub struct Session {
    pub id: SessionId,
    /// Names it in the stores.
    pub key: SessionKey,
    /// Names the session in logs and in the admin API; the id itself is its client's secret.
    pub digest: String,
    pub tenant: Arc<Tenant>,
    pub caller: Caller,
    pub endpoint: Endpoint,
    pub transport: &'static str,
    pub version: Version,
    pub client: ClientCapabilities,
    pub client_name: String,
    pub client_version: String,
    pub advertised: ServerCapabilities,
    pub shared: Arc<Shared>,
    created_at: jiff::Timestamp,
    touched_ms: AtomicU64,
    /// Answers on their way into their streams.
    settling: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    phase: SessionPhase,
    in_flight: HashMap<RequestId, InFlight>,
    streams: Streams,
    links: HashMap<BackendId, Arc<Link>>,
    questions: HashMap<u64, Question>,
    next_question: u64,
    /// By the URI the client uses.
    subscriptions: HashMap<String, ResourceTarget>,
    log_level: Option<LogLevel>,
    /// Ids of URL elicitations this client was asked to perform.
    elicited: HashSet<String>,
    /// Tasks this client works on for a backend, with the connection that asked.
    client_tasks: HashMap<String, Weak<Connection>>,
    /// Lists that changed before the client was ready to hear it.
    held_changes: HashSet<Method>,
}

impl Session {
    /// A new session with an id of its own.
    pub fn open(seat: Seat, agreement: Agreement, shared: Arc<Shared>) -> Arc<Self> {
        let id = SessionId::new(URL_SAFE_NO_PAD.encode(rand::random::<[u8; SESSION_ID_BYTES]>()));
        let state = State {
            phase: SessionPhase::AwaitingInitialized,
            in_flight: HashMap::new(),
            streams: Streams::new(shared.stream_limits()),
            links: HashMap::new(),
            questions: HashMap::new(),
            next_question: 1,
            subscriptions: HashMap::new(),
            log_level: None,
            elicited: HashSet::new(),
            client_tasks: HashMap::new(),
            held_changes: HashSet::new(),
        };
        shared.metrics.phase(SessionPhase::Opening.name(), SessionPhase::AwaitingInitialized.name());
        shared.metrics.sessions(seat.transport, "open", 1);
        let key = key_of(&id);
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
            settling: AtomicUsize::new(0),
            shared,
            created_at: jiff::Timestamp::now(),
            state: Mutex::new(state),
        });
        session.shared.tasks.note_session(&session);
        session
    }

    /// Whether this can be an id that [`Session::open`] made, here or on another replica.
    pub fn may_be_id(id: &SessionId) -> bool {
        let id = id.as_str().as_bytes();
        id.len() == SESSION_ID_BYTES.div_ceil(3) * 4 && id.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
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
        Duration::from_millis(self.shared.uptime_ms().saturating_sub(self.touched_ms.load(Ordering::Relaxed)))
    }

    pub fn log_level(&self) -> Option<LogLevel> {
        self.lock().log_level
    }

    pub fn timeouts_for(&self, backend: &BackendId) -> Deadlines {
        let common = &self.shared.config.timeouts;
        self.tenant.backend(backend).map(|backend| backend.timeouts()).unwrap_or(Deadlines {
            call: common.call,
            control: common.control,
            initialize: common.initialize,
        })
    }

    /// The link to a backend: the one used before, or the one it shall use.
    pub fn link_to(self: &Arc<Self>, backend: &BackendId) -> Result<Arc<Link>, Refusal> {
        let gone = || Refusal::new(ErrorKind::BackendUnavailable, format!("backend {backend} is not registered any more"));
        let mut state = self.lock();
        if let Some(link) = state.links.get(backend).filter(|link| !link.is_closed()) {
            return Ok(link.clone());
        }
        if state.phase == SessionPhase::Closed {
            return Err(session_over());
        }
        let link = self.tenant.backend(backend).and_then(|backend| backend.link_for(self)).ok_or_else(gone)?;
        link.attach(self);
        if let Some(level) = state.log_level {
            link.note_level(level);
        }
        state.links.insert(backend.clone(), link.clone());
        Ok(link)
    }

    /// The merged lists changed: tells the client, once per kind, what it was promised to be told.
    pub fn lists_changed(&self, kinds: &[ListKind]) {
        let methods: HashSet<Method> = kinds.iter().filter_map(|kind| self.change_notification(*kind)).collect();
        let ready = {
            let mut state = self.lock();
            let ready = state.phase == SessionPhase::Ready;
            if !ready {
                state.held_changes.extend(&methods);
            }
            ready
        };
        if ready {
            methods.into_iter().for_each(|method| self.deliver(EventKind::Message, handshake::notification(method, None)));
        }
    }

    fn change_notification(&self, kind: ListKind) -> Option<Method> {
        let (promised, method) = match kind {
            ListKind::Tools => (self.advertised.tools_list_changed, Method::ToolsListChanged),
            ListKind::Prompts => (self.advertised.prompts_list_changed, Method::PromptsListChanged),
            ListKind::Resources | ListKind::ResourceTemplates => (self.advertised.resources_list_changed, Method::ResourcesListChanged),
        };
        promised.then_some(method)
    }

    /// An error response of the broker's own, counted and with an id that is in the log.
    pub fn refusal_frame(&self, refusal: &Refusal, id: Option<&RequestId>) -> Bytes {
        let request_id = self.shared.note_refusal(refusal, Some(&self.digest), Some(self.tenant.id.as_str()));
        refusal.to_response(id, &request_id)
    }

    /// Ends the session if nothing was heard of its client for this long. A request that comes at the same moment finds
    /// the session over, or keeps it.
    pub fn end_if_idle(self: &Arc<Self>, limit: Duration) -> bool {
        if self.idle_for() <= limit {
            return false;
        }
        let mut state = self.lock();
        if state.phase == SessionPhase::Closed || !state.in_flight.is_empty() || self.since_touched() <= limit {
            return false;
        }
        let ending = self.take_apart(&mut state);
        drop(state);
        self.finish("idle", ending);
        true
    }

    /// Ends the session: its calls are cancelled, its questions answered for it, its streams closed, its links given back.
    pub fn end(self: &Arc<Self>, why: &str) {
        let mut state = self.lock();
        if state.phase == SessionPhase::Closed {
            return;
        }
        let ending = self.take_apart(&mut state);
        drop(state);
        self.finish(why, ending);
    }

    fn take_apart(&self, state: &mut State) -> Remains {
        self.shared.metrics.phase(state.phase.name(), SessionPhase::Closed.name());
        state.phase = SessionPhase::Closed;
        self.shared.metrics.subscriptions(-i64::try_from(state.subscriptions.len()).unwrap_or(0));
        state.subscriptions.clear();
        Remains {
            in_flight: state.in_flight.values().cloned().collect(),
            questions: state.questions.drain().map(|(_, question)| question).collect(),
            links: state.links.drain().map(|(_, link)| link).collect(),
            streams: state.streams.take_all(),
        }
    }

    fn finish(self: &Arc<Self>, why: &str, remains: Remains) {
        tracing::info!(session = %self.digest, tenant = %self.tenant.id, why, "session ended");
        remains.questions.iter().for_each(|question| question.refuse("the client is gone"));
        remains.in_flight.iter().for_each(|request| request.cancel(None));
        remains.streams.iter().for_each(|stream| stream.close());
        remains.links.iter().for_each(|link| link.detach(self));
        self.tenant.close_session(self);
        self.shared.tasks.forget_session(self);
        self.shared.metrics.sessions(self.transport, "open", -1);
    }

    /// What passes with time: unanswered questions, streams kept for resumption.
    pub fn tick(self: &Arc<Self>, now: Instant) {
        let expired = {
            let mut state = self.lock();
            state.streams.expire(now, self.shared.config.events.retain);
            let limit = self.shared.config.timeouts.client_request;
            let due: Vec<u64> = state.questions.iter().filter(|(_, q)| q.age(now) > limit).map(|(id, _)| *id).collect();
            due
        };
        expired.into_iter().for_each(|question| self.question_expired(question));
    }

    /// Requests whose answers are not in their streams yet.
    pub fn calls_in_flight(&self) -> usize {
        self.lock().in_flight.len() + self.settling.load(Ordering::Relaxed)
    }

    pub fn view(&self) -> SessionView {
        let state = self.lock();
        let idle = self.since_touched().as_secs();
        SessionView {
            id: self.digest.clone(),
            tenant: self.tenant.id.to_string(),
            principal: self.caller.principal.to_string(),
            transport: self.transport.to_owned(),
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

    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }
}

/// What an ended session leaves to be cleaned up.
struct Remains {
    in_flight: Vec<InFlight>,
    questions: Vec<Question>,
    links: Vec<Arc<Link>>,
    streams: Vec<Arc<EventStream>>,
}

/// Names a session where its id must not be known.
pub fn key_of(id: &SessionId) -> SessionKey {
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, id.as_str().as_bytes());
    SessionKey::from_slice(hash.as_ref()).expect("SHA-256 has as many bytes as a key")
}

fn session_over() -> Refusal {
    Refusal::new(ErrorKind::SessionNotFound, "the session is over")
}
