//! A link: one way to one backend for those who may share it. It outlives its connections.
//!
//! [`Link::connection`] opens one when there is none (one opening at a time, with a capped, jittered back-off after
//! failures). What has to hold on every connection (log level, subscriptions) is kept here and put back on a new one. A link
//! of a session that another process began goes on with the session it has at its backend, if that still knows it.

mod backoff;
pub mod connection;
pub mod era;
mod failure;
mod handshake_guard;
mod http;
mod malformed_answer;
pub mod pending;
mod pipe;
mod queue;
mod quic;
pub(crate) mod request_streams;
mod stateless;
mod stdio;
mod tcp;
mod tls_clients;
mod websocket;
mod wire;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use protocol::{
    capabilities::ClientCapabilities,
    envelope::Kind,
    error::{ErrorKind, Refusal},
    method::Method,
    version::Version,
};

use tokio_util::sync::CancellationToken;

use self::{
    backoff::Backoff,
    connection::{Connection, Failure},
};
pub use self::{
    era::{Era, EraCache, EraSupport},
    tls_clients::TlsClients,
};
use super::{backend::Backend, subscriptions::Subscriptions};
use crate::{
    config::spec::TransportSpec,
    limits::BACKOFF_MAX,
    metrics::Side,
    rules::{link_sharing::LinkScope, log_level::LogLevel},
    sessions::{
        session::{Session, record::BackendSession},
        tasks::run::TaskRun,
    },
    sync,
};

#[derive(Debug)]
pub struct Link {
    pub backend: Arc<Backend>,
    pub scope: LinkScope,
    /// What the broker tells the backend its client can do.
    pub declared: ClientCapabilities,
    /// The era its clients live in.
    client_era: Era,
    pub subscriptions: Subscriptions,
    current: ArcSwapOption<Connection>,
    opening: tokio::sync::Mutex<Backoff>,
    users: Mutex<LinkUsers>,
    /// What the first connection goes on with.
    resumption: Mutex<Option<Resumption>>,
    /// Its client's session goes on elsewhere: the backend is told no goodbye.
    handed_off: AtomicBool,
    /// Closed for good.
    closed: CancellationToken,
}

/// A session at the backend that an earlier owner of the client's session began.
#[derive(Debug)]
struct Resumption {
    session: BackendSession,
    first_wire_id: u64,
}

#[derive(Debug)]
struct LinkUsers {
    sessions: Vec<Weak<Session>>,
    /// Tasks that run over the link; they may outlive the session that made them.
    runs: Vec<Weak<TaskRun>>,
    /// The log level the backend is to have.
    level: Option<LogLevel>,
    /// The log level the connection there is has taken.
    level_sent: Option<LogLevel>,
    /// Nobody has used the link since.
    idle_since: Option<Instant>,
}

impl Link {
    pub fn new(
        backend: Arc<Backend>,
        scope: LinkScope,
        declared: ClientCapabilities,
        wants: Era,
    ) -> Arc<Self> {
        let users = LinkUsers {
            sessions: Vec::new(),
            runs: Vec::new(),
            level: None,
            level_sent: None,
            idle_since: None,
        };
        Arc::new(Self {
            backend,
            scope,
            declared,
            client_era: wants,
            subscriptions: Subscriptions::default(),
            current: ArcSwapOption::empty(),
            opening: tokio::sync::Mutex::default(),
            users: Mutex::new(users),
            resumption: Mutex::default(),
            handed_off: AtomicBool::new(false),
            closed: CancellationToken::new(),
        })
    }

    /// Whether this is the link the catalog is fetched over. No session uses it.
    pub fn is_catalog(&self) -> bool {
        self.scope == LinkScope::Catalog
    }

    /// The era its clients live in; of the catalog's, which serves all, that of 2026-07-28 until there are others.
    pub(super) fn client_era(&self) -> Era {
        let nobody_yet = self.is_catalog() && !self.backend.era.sessions_wanted();
        if nobody_yet { Era::Stateless } else { self.client_era }
    }

    /// The open connection, or a new one.
    pub async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>, Refusal> {
        if let Some(connection) = self.live() {
            return Ok(connection);
        }
        // Opened by a task of its own: a caller that gives up must not leave half a handshake behind.
        let link = self.clone();
        let opening = self.backend.shared.running.spawn(async move { link.open_once().await });
        opening.await.unwrap_or_else(|_| {
            Err(Refusal::new(ErrorKind::Internal, "the opening of the link failed"))
        })
    }

    /// The open connection, if there is one.
    pub fn live(&self) -> Option<Arc<Connection>> {
        self.current.load_full().filter(|connection| !connection.is_closed())
    }

    /// The next request opens another connection; those that wait on this one go on.
    fn retire(&self, connection: &Arc<Connection>) {
        let current = self.current.load();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            self.current.compare_and_swap(&current, None);
        }
    }

    /// Somebody has a reason to believe that the backend can be reached: the next attempt does not wait its turn.
    pub async fn shorten_backoff(&self) {
        self.opening.lock().await.shorten();
    }

    /// The same for a probe, which has waited elsewhere: the next attempt is now.
    pub fn clear_backoff(&self) {
        if let Ok(mut backoff) = self.opening.try_lock() {
            backoff.not_before = None;
        }
    }

    async fn open_once(self: Arc<Self>) -> Result<Arc<Connection>, Refusal> {
        let mut backoff = self.opening.lock().await;
        if let Some(connection) = self.live() {
            return Ok(connection);
        }
        if !self.is_catalog() {
            self.backend.check_breaker()?;
        }
        if let Some(last) = self.current.swap(None) {
            // A backend that forgot its sessions is there and well: it says so at once.
            if !last.is_forgotten() {
                backoff.note_lifetime(last.opened.elapsed());
            }
            // It may have ended without a goodbye, which nobody shall wait for.
            self.backend.shared.running.spawn(async move { last.close().await });
        }
        let gone = || {
            Refusal::new(
                ErrorKind::BackendUnavailable,
                format!("the link to backend {} is closed", self.backend.id),
            )
        };
        let opened = tokio::select! {
            biased;
            () = self.closed.cancelled() => return Err(gone()),
            opened = self.open_in_time(&backoff) => opened,
        };
        match opened {
            Ok(connection) => {
                self.current.store(Some(connection.clone()));
                self.backend.link_opened(&connection);
                self.backend.note_attempts(backoff.failures, None);
                self.note_backend_session(&connection);
                if self.is_closed() {
                    // Whoever closed the link did not see this connection yet.
                    self.say_goodbye(&connection).await;
                    return Err(gone());
                }
                self.restore(&connection).await;
                Ok(connection)
            }
            Err(OpenError::Waiting(refusal)) => Err(refusal),
            Err(OpenError::Failed(failure)) => {
                backoff.note_failure();
                if !self.is_catalog() && failure.is_the_backends() {
                    self.backend.record_failure(Duration::ZERO);
                }
                self.backend.note_attempts(backoff.failures, backoff.not_before);
                Err(self.backend.refusal(&failure))
            }
        }
    }

    async fn open_in_time(
        self: &Arc<Self>,
        backoff: &Backoff,
    ) -> Result<Arc<Connection>, OpenError> {
        backoff.wait(&self.backend.id).await.map_err(OpenError::Waiting)?;
        let limit = self.backend.timeouts().initialize;
        match tokio::time::timeout(limit, self.open_in_matching_era()).await {
            // No call has begun, whoever says that there is no answer.
            Ok(Err(Failure::Unclear(text))) => Err(OpenError::Failed(Failure::Busy(text))),
            Ok(opened) => opened.map_err(OpenError::Failed),
            Err(_) => {
                let text = format!(
                    "no answer to initialize within {}",
                    crate::config::units::format_duration(limit)
                );
                Err(OpenError::Failed(Failure::NotSent(text)))
            }
        }
    }

    async fn open_in_matching_era(self: &Arc<Self>) -> Result<Arc<Connection>, Failure> {
        match self.open().await {
            Err(_) if self.backend.era.take_second_chance() => self.open().await,
            opened => opened,
        }
    }

    async fn open(self: &Arc<Self>) -> Result<Arc<Connection>, Failure> {
        match &self.backend.spec.transport {
            TransportSpec::Http { url } => http::open(self, url).await,
            TransportSpec::Stdio { .. } => stdio::open(self).await,
            TransportSpec::Tcp { address, tls } => tcp::open(self, address, tls.as_ref()).await,
            TransportSpec::Quic { address, server_name, streams } => {
                quic::open(self, address, server_name.as_ref(), *streams).await
            }
            TransportSpec::Websocket { url } => websocket::open(self, url).await,
        }
    }

    /// Puts back what a lost connection had: the log level, then the subscriptions. Whoever listens is told that something
    /// may have changed meanwhile.
    async fn restore(self: &Arc<Self>, connection: &Arc<Connection>) {
        self.backend.shared.metrics.version_negotiated(
            connection.negotiated().map_or(Version::LATEST_WITH_SESSIONS, |n| n.version),
            Side::Backend,
        );
        if self.is_catalog() {
            connection.watch_lists(self);
        }
        let level = {
            let mut users = self.lock();
            users.level_sent = None;
            users.level
        };
        if let Some(level) = level {
            self.send_level(connection, level).await;
        }
        self.subscriptions.restore(self, connection).await;
    }

    /// A session that wants this log level begins to use the link.
    pub fn raise_level(self: &Arc<Self>, level: LogLevel) {
        let wanted = {
            let mut users = self.lock();
            let wanted = users.level.map_or(level, |known| known.min(level));
            users.level = Some(wanted);
            (users.level_sent != Some(wanted)).then_some(wanted)
        };
        if let (Some(level), Some(connection)) = (wanted, self.live()) {
            let link = self.clone();
            self.backend
                .shared
                .running
                .spawn(async move { link.send_level(&connection, level).await });
        }
    }

    /// Makes the backend send this session's log messages from its level on. A shared link gets the most verbose level of
    /// its sessions; the broker filters for the others.
    pub async fn set_level(self: &Arc<Self>) {
        let wanted = self.sessions().iter().filter_map(|session| session.log_level()).min();
        let Some(level) = wanted else { return };
        let taken = {
            let mut users = self.lock();
            users.level = wanted;
            users.level_sent == wanted
        };
        if let Some(connection) = self.live().filter(|_| !taken) {
            self.send_level(&connection, level).await;
        }
    }

    async fn send_level(self: &Arc<Self>, connection: &Arc<Connection>, level: LogLevel) {
        // Each request of 2026-07-28 says itself what its client wants to hear.
        if connection.modern().is_some() || connection.permits(Method::LoggingSetLevel).is_err() {
            return;
        }
        let params = format!("{{\"level\":\"{}\"}}", level.name());
        match connection.ask(self, Method::LoggingSetLevel, Some(params.as_bytes())).await {
            Ok(answer) if answer.kind == Kind::Error => {
                tracing::info!(backend = %self.backend.id, "the backend refused the log level")
            }
            Ok(_) if self.live().is_some_and(|live| Arc::ptr_eq(&live, connection)) => {
                self.lock().level_sent = Some(level)
            }
            Ok(_) => {}
            Err(failure) => {
                let told = self.backend.redactor.redacted(&failure);
                tracing::info!(backend = %self.backend.id, failure = told, "the backend did not take the log level");
            }
        }
    }

    /// Opens the link because sessions listen through it: tries until it is open (`true`), or nobody listens any more.
    pub async fn open_for_listeners(self: &Arc<Self>) -> bool {
        while !self.backend.stop.is_cancelled()
            && !self.is_closed()
            && !self.subscriptions.is_empty()
        {
            match self.connection().await {
                Ok(_) => return true,
                Err(refusal) => {
                    tokio::time::sleep(refusal.retry_after.unwrap_or(BACKOFF_MAX)).await
                }
            }
        }
        false
    }

    /// A session uses this link from now on.
    pub fn attach(&self, session: &Arc<Session>) {
        let mut users = self.lock();
        users.sessions.retain(|other| other.strong_count() > 0);
        users.sessions.push(Arc::downgrade(session));
        users.idle_since = None;
    }

    /// A session is over. Its own link goes with it, unless a task of it still runs there; a shared one loses its
    /// subscriptions.
    pub fn detach(self: &Arc<Self>, session: &Arc<Session>) {
        let mut users = self.lock();
        users
            .sessions
            .retain(|other| other.upgrade().is_some_and(|other| !Arc::ptr_eq(&other, session)));
        let unused = users.note_if_unused();
        drop(users);
        if unused && self.is_personal() {
            self.backend.close_link(self);
        } else {
            self.subscriptions.drop_session(self, session);
        }
    }

    /// Nobody else can ever use it.
    fn is_personal(&self) -> bool {
        matches!(self.scope, LinkScope::Session(_) | LinkScope::Task(_))
    }

    /// A task runs over this link, which stays for as long as the returned value does.
    pub fn hold(self: &Arc<Self>, run: &Arc<TaskRun>) -> LinkHold {
        let mut users = self.lock();
        users.runs.push(Arc::downgrade(run));
        users.idle_since = None;
        drop(users);
        LinkHold { link: self.clone(), run: Arc::downgrade(run) }
    }

    /// Tasks that run over this link now.
    pub fn runs(&self) -> Vec<Arc<TaskRun>> {
        self.lock().runs.iter().filter_map(Weak::upgrade).collect()
    }

    /// The session goes on elsewhere: as [`Link::detach`], but the session at the backend is left as it is.
    pub fn hand_off(self: &Arc<Self>, session: &Arc<Session>) {
        if matches!(self.scope, LinkScope::Session(_)) {
            self.handed_off.store(true, Ordering::Relaxed);
        }
        self.detach(session);
    }

    /// The session at the backend is left as it is when the link closes: somebody else goes on with it.
    pub fn keep_backend_session(&self) {
        if self.is_personal() {
            self.handed_off.store(true, Ordering::Relaxed);
        }
    }

    /// What another process could go on with.
    pub fn backend_session(&self, connection: &Connection) -> Option<BackendSession> {
        match &self.backend.spec.transport {
            TransportSpec::Http { url } if self.is_personal() => connection.backend_session(url),
            _ => None,
        }
    }

    /// The first connection goes on with this session instead of beginning one. Only for a link of one session, or one task:
    /// nobody else can be using it then.
    pub fn resume_with(&self, session: BackendSession, first_wire_id: u64) {
        if self.is_personal() {
            *sync::lock(&self.resumption) = Some(Resumption { session, first_wire_id });
        }
    }

    /// What no connection has gone on with.
    pub fn take_resumption(&self) -> Option<BackendSession> {
        sync::lock(&self.resumption).take().map(|resumption| resumption.session)
    }

    /// Ends a session at a backend that no link has used.
    pub async fn end_unused(backend: Arc<Backend>, session: BackendSession) {
        http::end_unused(&backend, &session).await;
    }

    /// Tells the session this link belongs to what it has at the backend now, for its next owner.
    fn note_backend_session(&self, connection: &Connection) {
        if let (LinkScope::Session(_), TransportSpec::Http { url }) =
            (&self.scope, &self.backend.spec.transport)
        {
            let noted = connection.backend_session(url);
            self.sessions()
                .iter()
                .for_each(|session| session.note_backend_session(&self.backend.id, noted.clone()));
        }
    }

    /// Sessions that use the link now.
    pub fn sessions(&self) -> Vec<Arc<Session>> {
        self.lock().sessions.iter().filter_map(Weak::upgrade).collect()
    }

    /// Nobody has used the link for this long.
    pub fn idle_for(&self, now: Instant) -> Duration {
        self.lock().idle_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Closed for good.
    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// No connection is opened from now on; [`Link::close`] says goodbye on the one there is.
    pub fn shut(&self) {
        self.closed.cancel();
    }

    /// Ends the link for good, with the goodbye its wire knows.
    pub async fn close(&self) {
        self.shut();
        if let Some(connection) = self.current.swap(None) {
            self.say_goodbye(&connection).await;
        }
    }

    async fn say_goodbye(&self, connection: &Connection) {
        if self.handed_off.load(Ordering::Relaxed) {
            connection.close_keeping_session().await;
        } else {
            connection.close().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, LinkUsers> {
        sync::lock(&self.users)
    }
}

impl LinkUsers {
    fn note_if_unused(&mut self) -> bool {
        let unused = self.sessions.is_empty() && self.runs.is_empty();
        if unused {
            self.idle_since = Some(Instant::now());
        }
        unused
    }
}

/// A task's use of a link.
#[derive(Debug)]
pub struct LinkHold {
    pub link: Arc<Link>,
    run: Weak<TaskRun>,
}

impl Drop for LinkHold {
    fn drop(&mut self) {
        let mut users = self.link.lock();
        if let Some(at) = users.runs.iter().position(|run| run.ptr_eq(&self.run)) {
            users.runs.remove(at);
        }
        users.sessions.retain(|session| session.strong_count() > 0);
        let unused = users.note_if_unused();
        drop(users);
        if unused && self.link.is_personal() {
            self.link.backend.close_link(&self.link);
        }
    }
}

/// Why no connection was opened.
enum OpenError {
    /// It is too early for another attempt.
    Waiting(Refusal),
    Failed(Failure),
}
