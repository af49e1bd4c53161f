//! A link: access to one backend for the clients that may share it. It outlives its connections.
//!
//! [`Link::connection`] opens a connection if there is none. Only one opens at a time, with a
//! capped, jittered back-off after failures. The link keeps the log level and the subscriptions,
//! and restores them on a new connection. A link of a session from another process resumes the
//! session at its backend, if the backend still has it.
//!
//! The wires and the requests over them need the link. It reaches them through [`LinkDriver`] alone.

mod attachments;
pub mod backend_session;
mod backoff;
pub mod connection;
mod connection_guard;
mod driver;
pub mod era;
pub mod failure;
mod http;
mod log_level;
mod malformed_answer;
pub mod pending;
mod pipe;
mod queue;
mod quic;
pub mod request;
pub(crate) mod request_streams;
mod stateless;
mod stdio;
mod stream_request;
mod task_cancellation;
mod tcp;
pub mod tls_clients;
mod users;
mod websocket;
pub mod wire;

use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use config::spec::TransportSpec;
use futures_util::future::BoxFuture;
use parking_lot::{Mutex, MutexGuard};
use protocol::{
    capabilities::ClientCapabilities,
    error::{ErrorKind, Refusal},
    ids::PrincipalId,
};
use rules::{
    catalog::ListKind,
    limits::{BACKOFF_MAX, ERA_RETRIES_MAX, STABLE_AFTER},
    link_sharing::LinkScope,
    log_level::LogLevel,
};
use tokio_util::sync::CancellationToken;

pub use self::{
    attachments::LinkHold,
    backend_session::BackendSession,
    era::{Era, EraCache, EraSupport},
    tls_clients::TlsClients,
    users::LinkUser,
};
use self::{
    backoff::Backoff, connection::Connection, connection_guard::ConnectionGuard, failure::Failure,
    users::LinkUsers,
};
use super::{
    backend::Backend, link_client::LinkClient, link_lists::LinkLists, requester::Requester,
    subscriptions::Subscriptions,
};

/// Does what a link needs requests for. The wires and the requests over them are above the link.
trait LinkDriver: fmt::Debug + Send + Sync {
    /// Opens a connection over the wire of the backend.
    fn open<'a>(&self, link: &'a Arc<Link>) -> BoxFuture<'a, Result<Arc<Connection>, Failure>>;

    /// Restores the state of a lost connection: the log level, then the subscriptions. Subscribers
    /// get a notification, because updates may have been missed.
    fn restore<'a>(
        &self,
        link: &'a Arc<Link>,
        connection: &'a Arc<Connection>,
    ) -> BoxFuture<'a, ()>;

    /// Reads lists in the background that the backend announced as changed.
    fn read_lists(&self, link: &Arc<Link>, kinds: &[ListKind]);

    /// Asks the backend for its era. `None`: it did not answer.
    fn probed_era<'a>(
        &self,
        link: &'a Arc<Link>,
        connection: &'a Arc<Connection>,
    ) -> BoxFuture<'a, Option<Era>>;
}

#[derive(Debug)]
pub struct Link {
    driver: &'static dyn LinkDriver,
    pub backend: Arc<Backend>,
    pub scope: LinkScope,
    /// Capabilities that the broker declares to the backend.
    pub declared: ClientCapabilities,
    /// The principal of its users, if it has only one.
    pub(super) principal: Option<PrincipalId>,
    /// The era of its clients.
    client_era: Era,
    pub subscriptions: Subscriptions,
    /// The lists that the backend shows to this link alone.
    pub lists: LinkLists,
    current: ArcSwapOption<Connection>,
    /// The turn to open a connection.
    opening: Arc<tokio::sync::Mutex<()>>,
    backoff: Mutex<Backoff>,
    users: Mutex<LinkUsers>,
    /// The log level that the current connection has got. The lock is held while a level is sent, so
    /// that no level overtakes another.
    level_sent: tokio::sync::Mutex<Option<LogLevel>>,
    /// The session that the first connection resumes.
    resumption: Mutex<Option<Resumption>>,
    /// Set when the client's session was handed off, so that the session at the backend is kept.
    handed_off: AtomicBool,
    /// Set when the backend forgot the session of a young connection. The first time needs no pause.
    was_forgotten: AtomicBool,
    /// Cancelled when the link is closed permanently.
    closed: CancellationToken,
}

/// A session at the backend that an earlier owner of the client's session began.
#[derive(Debug, Clone)]
struct Resumption {
    session: BackendSession,
    first_wire_id: u64,
}

impl Link {
    fn driven_by(
        driver: &'static dyn LinkDriver,
        backend: Arc<Backend>,
        scope: LinkScope,
        principal: Option<PrincipalId>,
        declared: ClientCapabilities,
        wants: Era,
    ) -> Arc<Self> {
        Arc::new(Self {
            driver,
            backend,
            scope,
            principal,
            declared,
            client_era: wants,
            subscriptions: Subscriptions::default(),
            lists: LinkLists::default(),
            current: ArcSwapOption::empty(),
            opening: Arc::default(),
            backoff: Mutex::default(),
            users: Mutex::default(),
            level_sent: tokio::sync::Mutex::default(),
            resumption: Mutex::default(),
            handed_off: AtomicBool::new(false),
            was_forgotten: AtomicBool::new(false),
            closed: CancellationToken::new(),
        })
    }

    /// Returns whether the link only reads lists: no session uses it.
    pub fn has_no_client(&self) -> bool {
        matches!(self.scope, LinkScope::Catalog | LinkScope::Probe)
    }

    /// Returns whether this link reads the lists once.
    pub fn is_probe(&self) -> bool {
        self.scope == LinkScope::Probe
    }

    /// Returns the era of its clients. The catalog's link uses 2026-07-28 until the first client
    /// with a session arrives.
    pub(super) fn client_era(&self) -> Era {
        let nobody_yet = self.has_no_client() && !self.backend.era.sessions_wanted();
        if nobody_yet { Era::Stateless } else { self.client_era }
    }

    /// Returns the open connection, or opens one.
    pub async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>, Refusal> {
        if let Some(connection) = self.live() {
            return Ok(connection);
        }
        // A caller that gives up before its turn starts nothing.
        let (link, turn) = (self.clone(), self.opening.clone().lock_owned().await);
        // In a separate task, so that a caller that gives up leaves no incomplete handshake behind.
        let opening = self.backend.context.running.spawn(async move {
            let opened = link.open_once().await;
            drop(turn);
            opened
        });
        opening.await.unwrap_or_else(|_| {
            Err(Refusal::new(
                ErrorKind::Internal,
                "the broker could not open the link to the backend",
            ))
        })
    }

    /// Returns the open connection, if there is one that takes requests.
    pub fn live(&self) -> Option<Arc<Connection>> {
        self.current.load_full().filter(|connection| connection.takes_requests())
    }

    /// Forgets the lists that the last connection showed to this link alone.
    pub fn forget_own_lists(&self) {
        if self.lists.clear() {
            self.announce_own_lists();
        }
    }

    /// Asks the backend for its era, over a connection of this link. `None`: it did not answer.
    async fn probed_era(self: &Arc<Self>, connection: &Arc<Connection>) -> Option<Era> {
        self.driver.probed_era(self, connection).await
    }

    /// Makes the next request open another connection. Open requests stay on this one.
    fn retire(&self, connection: &Arc<Connection>) {
        let current = self.current.load();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            self.current.compare_and_swap(&current, None);
        }
    }

    /// Shortens the back-off, because the backend may be reachable again.
    pub fn shorten_backoff(&self) {
        self.backoff.lock().shorten();
    }

    /// Clears the back-off for a probe, which has already waited.
    pub fn clear_backoff(&self) {
        self.backoff.lock().not_before = None;
    }

    async fn open_once(self: Arc<Self>) -> Result<Arc<Connection>, Refusal> {
        if let Some(connection) = self.live() {
            return Ok(connection);
        }
        if !self.has_no_client() {
            self.backend.check_breaker()?;
        }
        if let Some(last) = self.current.swap(None) {
            // A backend that forgot its sessions is reachable and reports that at once. One that
            // forgets each new session gets pauses.
            let lived = last.opened.elapsed();
            if !last.is_forgotten()
                || lived < STABLE_AFTER && self.was_forgotten.swap(true, Ordering::Relaxed)
            {
                self.backoff.lock().record_lifetime(lived);
            }
            if lived >= STABLE_AFTER {
                self.was_forgotten.store(false, Ordering::Relaxed);
            }
            // The last connection may have ended abruptly. Its orderly close runs in the
            // background. A connection whose writing failed closes itself, after its last answers.
            if last.is_closed() {
                self.backend.context.running.spawn(async move { last.close().await });
            }
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
            opened = self.open_in_time() => opened,
        };
        match opened {
            Ok(connection) => {
                self.forget_own_lists();
                self.current.store(Some(connection.clone()));
                self.backend.link_opened(&self, &connection);
                self.backend.record_attempts(self.backoff.lock().failures, None);
                self.record_backend_session(&connection);
                if self.is_closed() {
                    // The close of the link came before this connection was stored.
                    self.end_connection(&connection).await;
                    return Err(gone());
                }
                self.driver.restore(&self, &connection).await;
                Ok(connection)
            }
            Err(OpenError::Waiting(refusal)) => Err(refusal),
            Err(OpenError::Failed(failure)) => {
                self.backoff.lock().record_failed_attempt(&failure);
                // The catalog connects again forever, so its failures count for a suspect alone.
                let counts = !self.has_no_client() || self.backend.admission.is_suspected();
                if counts && failure.counts_for_breaker() {
                    self.backend.record_failure(Duration::ZERO);
                }
                let Backoff { failures, not_before, .. } = *self.backoff.lock();
                self.backend.record_attempts(failures, not_before);
                Err(self.backend.report_failure(&failure))
            }
        }
    }

    async fn open_in_time(self: &Arc<Self>) -> Result<Arc<Connection>, OpenError> {
        let delay = self.backoff.lock().delay(&self.backend.id);
        tokio::time::sleep(delay.map_err(OpenError::Waiting)?).await;
        let limit = self.backend.timeouts().initialize;
        match tokio::time::timeout(limit, self.open_in_matching_era()).await {
            // No call has started, so the outcome is not unknown.
            Ok(Err(Failure::Unclear(text))) => Err(OpenError::Failed(Failure::busy(text))),
            Ok(opened) => opened.map_err(OpenError::Failed),
            Err(_) => {
                let text = format!(
                    "no answer to initialize within {}",
                    config::units::format_duration(limit)
                );
                Err(OpenError::Failed(Failure::NotSent(text)))
            }
        }
    }

    /// Opens a connection that closes when it is dropped. A failure of it changes nothing of the
    /// backend.
    pub(super) async fn open_probe(self: &Arc<Self>) -> Result<ConnectionGuard, Failure> {
        let silent = || Failure::NotSent("no answer to initialize".to_owned());
        let limit = self.backend.timeouts().initialize;
        let opened = tokio::time::timeout(limit, self.driver.open(self)).await;
        let connection = opened.map_err(|_| silent())??;
        Ok(ConnectionGuard::new(&connection, &self.backend.context.running))
    }

    async fn open_in_matching_era(self: &Arc<Self>) -> Result<Arc<Connection>, Failure> {
        let mut retries = ERA_RETRIES_MAX;
        loop {
            let useful = self.backend.era.retries_useful();
            match self.driver.open(self).await {
                Err(_) if retries > 0 && self.backend.era.retries_useful() != useful => {
                    retries -= 1;
                }
                opened => return opened,
            }
        }
    }

    /// Opens the link for its subscribers. Retries until it is open (`true`) or without
    /// subscribers.
    pub async fn open_for_listeners(self: &Arc<Self>) -> bool {
        while !self.backend.stop.is_cancelled()
            && !self.is_closed()
            && !self.subscriptions.is_empty()
        {
            match self.connection().await {
                Ok(_) => return true,
                Err(refusal) => {
                    let wait = refusal.retry_after.unwrap_or(BACKOFF_MAX);
                    tokio::time::sleep(wait.min(BACKOFF_MAX)).await
                }
            }
        }
        false
    }

    /// Returns whether only one session or task can use the link.
    fn is_personal(&self) -> bool {
        matches!(self.scope, LinkScope::Session(_) | LinkScope::Task(_))
    }

    /// Keeps the session at the backend when the link closes, because another owner resumes it.
    pub fn keep_backend_session(&self) {
        if self.is_personal() {
            self.handed_off.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether another process can ask for what the backend does for this one.
    pub fn is_resumable_elsewhere(&self) -> bool {
        let backend = &self.backend;
        matches!(backend.spec.transport, TransportSpec::Http { .. }) && !backend.era.uses_http_sse()
    }

    /// Returns the session at the backend, which another process can resume.
    pub fn backend_session(&self, connection: &Connection) -> Option<BackendSession> {
        match &self.backend.spec.transport {
            TransportSpec::Http { url } if self.is_personal() => connection.backend_session(url),
            _ => None,
        }
    }

    /// Makes the first connection resume this session. Only for a link of one session or one task,
    /// which has no other user.
    pub fn resume_with(&self, session: BackendSession, first_wire_id: u64) {
        if self.is_personal() {
            *self.resumption.lock() = Some(Resumption { session, first_wire_id });
        }
    }

    /// Takes the session that no connection has resumed.
    pub fn take_resumption(&self) -> Option<BackendSession> {
        self.resumption.lock().take().map(|resumption| resumption.session)
    }

    /// Reports the session at the backend to the client's session, for its next owner.
    fn record_backend_session(&self, connection: &Connection) {
        if let (LinkScope::Session(_), TransportSpec::Http { url }) =
            (&self.scope, &self.backend.spec.transport)
        {
            let recorded = connection.backend_session(url);
            self.clients().iter().for_each(|client| {
                client.record_backend_session(&self.backend.id, recorded.clone())
            });
        }
    }

    /// Reads lists again that the backend announced as changed on this link.
    pub(super) fn on_lists_changed(self: &Arc<Self>, kinds: &[ListKind]) {
        self.driver.read_lists(self, kinds);
    }

    /// Waits, but not longer than until the link is closed.
    pub(in crate::backends) async fn wait_or_closed(&self, wait: Duration) {
        let _closed = tokio::time::timeout(wait, self.closed.cancelled()).await;
    }

    /// Returns whether the link is closed permanently.
    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Prevents further connections. [`Link::close`] ends the current one.
    pub fn shut(&self) {
        self.closed.cancel();
    }

    /// Closes the link permanently, with the orderly end of its wire.
    pub async fn close(&self) {
        self.shut();
        if let Some(connection) = self.current.swap(None) {
            self.end_connection(&connection).await;
        }
    }

    async fn end_connection(&self, connection: &Connection) {
        if self.handed_off.load(Ordering::Relaxed) {
            connection.close_keeping_session().await;
        } else {
            connection.close().await;
        }
    }

    /// Returns the tasks that run over this link now.
    pub fn task_runs(&self) -> Vec<Arc<dyn Requester>> {
        self.lock().runs.iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns the clients that use the link now.
    pub fn clients(&self) -> Vec<Arc<dyn LinkClient>> {
        self.lock().clients.iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns whether a task of the backend runs, which the broker polls.
    pub fn has_backend_tasks(&self) -> bool {
        let users = self.lock();
        !users.backend_tasks.is_empty() || users.tasks_of_calls > 0
    }

    /// Returns whether neither a client nor a task uses the link now.
    pub fn is_unused(&self) -> bool {
        self.lock().is_unused()
    }

    /// Returns whether unrelated requests may share the link.
    pub fn has_stateless_clients(&self) -> bool {
        self.clients().iter().any(|client| client.client_era() == Era::Stateless)
    }

    /// Returns the run that follows this task of the backend.
    pub fn requester_by_task(&self, backend_task: &str) -> Option<Arc<dyn Requester>> {
        self.lock().backend_tasks.get(backend_task).and_then(Weak::upgrade)
    }

    fn lock(&self) -> MutexGuard<'_, LinkUsers> {
        self.users.lock()
    }
}

/// Reason for which no connection was opened.
enum OpenError {
    /// The back-off does not permit an attempt yet.
    Waiting(Refusal),
    Failed(Failure),
}
