//! A link: one way to one backend for those who may share it. It outlives its connections.
//!
//! [`Link::connection`] opens one when there is none (one opening at a time, with a capped, jittered back-off after
//! failures). What has to hold on every connection (log level, subscriptions) is kept here and put back on a new one. A link
//! of a session that another process began goes on with the session it has at its backend, if that still knows it.

mod backend_session;
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
mod users;
mod websocket;
mod wire;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use parking_lot::{Mutex, MutexGuard};
use protocol::{
    capabilities::ClientCapabilities,
    envelope::Kind,
    error::{ErrorKind, Refusal},
    method::Method,
    version::Version,
};

use tokio_util::sync::CancellationToken;

pub use self::{
    backend_session::BackendSession,
    era::{Era, EraCache, EraSupport},
    tls_clients::TlsClients,
    users::{LinkHold, LinkUser},
};
use self::{
    backoff::Backoff,
    connection::{Connection, Failure},
    users::LinkUsers,
};
use super::{backend::Backend, subscriptions::Subscriptions};
use crate::{
    config::spec::TransportSpec,
    limits::BACKOFF_MAX,
    metrics::Side,
    rules::{link_sharing::LinkScope, log_level::LogLevel},
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

impl Link {
    pub fn new(
        backend: Arc<Backend>,
        scope: LinkScope,
        declared: ClientCapabilities,
        wants: Era,
    ) -> Arc<Self> {
        Arc::new(Self {
            backend,
            scope,
            declared,
            client_era: wants,
            subscriptions: Subscriptions::default(),
            current: ArcSwapOption::empty(),
            opening: tokio::sync::Mutex::default(),
            users: Mutex::default(),
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
            // No call has begun, whoever says that there is not an answer.
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
        let wanted = self.clients().iter().filter_map(|client| client.log_level()).min();
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

    /// Nobody else can ever use it.
    fn is_personal(&self) -> bool {
        matches!(self.scope, LinkScope::Session(_) | LinkScope::Task(_))
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
            *self.resumption.lock() = Some(Resumption { session, first_wire_id });
        }
    }

    /// What no connection has gone on with.
    pub fn take_resumption(&self) -> Option<BackendSession> {
        self.resumption.lock().take().map(|resumption| resumption.session)
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
            self.clients()
                .iter()
                .for_each(|client| client.note_backend_session(&self.backend.id, noted.clone()));
        }
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
        self.users.lock()
    }
}

/// Why no connection was opened.
enum OpenError {
    /// It is too early for another attempt.
    Waiting(Refusal),
    Failed(Failure),
}
