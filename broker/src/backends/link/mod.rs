//! A link: access to one backend for the clients that may share it. It outlives its connections.
//!
//! [`Link::connection`] opens a connection if there is none. Only one opens at a time, with a
//! capped, jittered back-off after failures. The link keeps the log level and the subscriptions,
//! and restores them on a new connection. A link of a session from another process resumes the
//! session at its backend, if the backend still has it.
//!
//! The wires and the requests of a connection are in the layers above, which import this file. A
//! link calls them through the trait [`LinkDriver`] alone.

mod attachments;
pub mod backend_session;
mod backoff;
pub mod connection;
mod connection_guard;
mod driver;
pub mod era;
pub mod failure;
mod followed_tasks;
mod http;
mod log_level;
mod malformed_answer;
mod opening;
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
use rules::{catalog::ListKind, limits::BACKOFF_MAX, link_sharing::LinkScope, log_level::LogLevel};
use tokio_util::sync::CancellationToken;

pub use self::{
    attachments::LinkHold,
    backend_session::BackendSession,
    era::{Era, EraCache, EraSupport},
    followed_tasks::FollowedTasks,
    tls_clients::TlsClients,
    users::LinkUser,
};
use self::{
    backoff::Backoff,
    connection::{Connection, requester::Requester},
    failure::Failure,
    users::LinkUsers,
};
use super::{
    backend::Backend, link_client::LinkClient, link_lists::LinkLists, subscriptions::Subscriptions,
};

/// Connects a link to its backend, and sends the requests of the link itself. The layer of the
/// wires implements it.
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

    /// Asks the backend for its era, over this connection. `None`: it did not answer.
    fn probe_era<'a>(
        &self,
        link: &'a Arc<Link>,
        connection: &'a Arc<Connection>,
    ) -> BoxFuture<'a, Option<Era>>;
}

/// The parts of a link that its users determine.
#[derive(Debug, Clone)]
pub struct LinkParams {
    pub scope: LinkScope,
    /// The principal of its users, if all have the same one.
    pub principal: Option<PrincipalId>,
    /// Capabilities that the broker declares to the backend.
    pub declared: ClientCapabilities,
    /// The era of its clients.
    pub client_era: Era,
}

/// The access of one or more clients to a backend.
#[derive(Debug)]
pub struct Link {
    driver: &'static dyn LinkDriver,
    pub backend: Arc<Backend>,
    pub scope: LinkScope,
    /// Capabilities that the broker declares to the backend.
    pub declared: ClientCapabilities,
    /// The principal of its users, if all have the same one.
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
    /// Tasks of the backend, which outlive their requests.
    pub tasks: FollowedTasks,
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
    fn with_driver(
        driver: &'static dyn LinkDriver,
        backend: Arc<Backend>,
        params: LinkParams,
    ) -> Arc<Self> {
        let LinkParams { scope, principal, declared, client_era } = params;
        Arc::new(Self {
            driver,
            backend,
            scope,
            principal,
            declared,
            client_era,
            subscriptions: Subscriptions::default(),
            lists: LinkLists::default(),
            current: ArcSwapOption::empty(),
            opening: Arc::default(),
            backoff: Mutex::default(),
            users: Mutex::default(),
            tasks: FollowedTasks::default(),
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
        let awaits_sessions = self.has_no_client() && !self.backend.era.sessions_wanted();
        if awaits_sessions { Era::Stateless } else { self.client_era }
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
    async fn probe_era(self: &Arc<Self>, connection: &Arc<Connection>) -> Option<Era> {
        self.driver.probe_era(self, connection).await
    }

    /// Makes the next request open another connection. Requests in flight stay on this one.
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

    /// Waits for this time, or until the link is closed.
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

    /// Returns whether neither a client nor a task uses the link now.
    pub fn is_unused(&self) -> bool {
        self.lock().is_unused()
    }

    /// Returns whether stateless clients use the link. Their requests are unrelated to each other.
    pub fn has_stateless_clients(&self) -> bool {
        self.clients().iter().any(|client| client.client_era() == Era::Stateless)
    }

    fn lock(&self) -> MutexGuard<'_, LinkUsers> {
        self.users.lock()
    }
}
