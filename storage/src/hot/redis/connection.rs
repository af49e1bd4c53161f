//! The way to Redis, and the record of its outages: errors are counted, and each outage is logged
//! once. After a refused login, the file with the URL is read again. New connections use a changed
//! login.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};
use redis::{Client, ErrorKind, RedisError, Value};
use tokio::time::timeout;

use super::{
    address::{InvalidAddress, RedisAddress},
    cluster::Cluster,
    sentinel::Sentinels,
    server::{CALL_MAX, Opener, RedisConnectionError, Request, Server},
};
use crate::url_login;

/// Errors with shorter pauses than this count as one outage, which is logged once.
const OUTAGE_OVER_AFTER: Duration = Duration::from_secs(10);

pub(super) struct RedisConnection {
    /// Replaced when the login changes.
    servers: RwLock<Arc<Servers>>,
    /// File that holds the URL.
    file: Option<PathBuf>,
    login: Mutex<Login>,
    errors: AtomicU64,
    outage: Mutex<Option<Outage>>,
    /// Set when `outage` has a value.
    in_outage: AtomicBool,
}

enum Servers {
    One(Server),
    Cluster(Arc<Cluster>),
}

/// The URL in force.
struct Login {
    url: String,
    /// Set when no further connection may be opened.
    closed: bool,
}

struct Outage {
    started_at: Instant,
    last: Instant,
}

impl RedisConnection {
    pub(super) fn new(url: String, file: Option<PathBuf>) -> Result<Self, InvalidAddress> {
        Ok(Self {
            servers: RwLock::new(Arc::new(Servers::of(&url)?)),
            file,
            login: Mutex::new(Login { url, closed: false }),
            errors: AtomicU64::new(0),
            outage: Mutex::new(None),
            in_outage: AtomicBool::new(false),
        })
    }

    /// Returns whether a request can have keys of one hash tag only.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(*self.servers(), Servers::Cluster(_))
    }

    /// Sends a request and waits for its answer. `key`: one of its keys, if it has any. All its keys
    /// have the same hash tag. After a refused login, the request is sent again if the login
    /// changed.
    pub(super) async fn execute(
        &self,
        key: Option<&str>,
        request: Request<'_>,
    ) -> Result<Value, RedisConnectionError> {
        use RedisConnectionError::{BackingOff, Closed, Redis, TimedOut, Unreachable};
        let servers = self.servers();
        let mut answer = servers.execute(key, &request).await;
        if let Err(Unreachable(error) | Redis(error)) = &answer
            && self.has_other_login(error, &servers).await
        {
            answer = self.servers().execute(key, &request).await;
        }
        match &answer {
            Ok(_) => self.record_success(),
            Err(error @ (TimedOut | Unreachable(_) | Redis(_))) => self.record_errors(1, error),
            Err(Closed | BackingOff) => {}
        }
        answer
    }

    /// Returns how to connect to a server that sends messages.
    pub(super) async fn client_for_messages(&self) -> Result<Client, RedisError> {
        match &*self.servers() {
            Servers::One(server) => server.opener().client().await,
            Servers::Cluster(cluster) => cluster.client_for_messages().await,
        }
    }

    /// Returns whether the server of this client no longer is the master or a node of the cluster,
    /// according to a sentinel or another node.
    pub(super) async fn is_replaced(&self, client: &Client) -> bool {
        match &*self.servers() {
            Servers::One(server) => server.drop_if_replaced(client).await,
            Servers::Cluster(cluster) => cluster.has_lost(client).await,
        }
    }

    /// Reads the login again after a server for messages refused it.
    pub(super) async fn record_refusal(&self, error: &RedisError) {
        let _any = self.has_other_login(error, &self.servers()).await;
    }

    /// Returns whether a login was refused, and another one than that of `used` is in force now.
    async fn has_other_login(&self, error: &RedisError, used: &Arc<Servers>) -> bool {
        let Some(file) = self.file.clone().filter(|_| is_refused_login(error)) else {
            return false;
        };
        let known = self.login.lock().url.clone();
        let read = tokio::task::spawn_blocking(move || url_login::changed_url(&file, &known));
        if let Ok(Ok(Some(url))) = timeout(CALL_MAX, read).await {
            self.use_login(url);
        }
        !Arc::ptr_eq(used, &self.servers())
    }

    /// Replaces the connections by those with the login of this URL.
    fn use_login(&self, url: String) {
        let Ok(next) = Servers::of(&url) else { return };
        let mut login = self.login.lock();
        if login.closed || login.url == url {
            return;
        }
        login.url = url;
        let before = std::mem::replace(&mut *self.servers.write(), Arc::new(next));
        before.close();
        tracing::info!("connections to Redis use the changed login");
    }

    fn servers(&self) -> Arc<Servers> {
        Arc::clone(&self.servers.read())
    }

    /// Counts errors, and logs one message for each outage.
    pub(super) fn record_errors(&self, errors: u64, why: &dyn std::fmt::Display) {
        self.errors.fetch_add(errors, Ordering::Relaxed);
        let now = Instant::now();
        let mut outage = self.outage.lock();
        match &mut *outage {
            Some(outage) if now.duration_since(outage.last) <= OUTAGE_OVER_AFTER => {
                outage.last = now
            }
            _ => {
                *outage = Some(Outage { started_at: now, last: now });
                drop(outage);
                self.in_outage.store(true, Ordering::Relaxed);
                tracing::warn!(%why, "Redis requests fail: hints and wake-ups may be lost, and replicas find changes by polling");
            }
        }
    }

    pub(super) fn record_success(&self) {
        if !self.in_outage.load(Ordering::Relaxed) {
            return;
        }
        let mut outage = self.outage.lock();
        if let Some(over) = &*outage
            && over.last.elapsed() > OUTAGE_OVER_AFTER
        {
            tracing::info!(lasted = ?over.last.duration_since(over.started_at), "Redis works again without errors");
            *outage = None;
            self.in_outage.store(false, Ordering::Relaxed);
        }
    }

    pub(super) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    pub(super) fn close(&self) {
        self.login.lock().closed = true;
        self.servers().close();
    }
}

impl Servers {
    fn of(url: &str) -> Result<Self, InvalidAddress> {
        let unusable = |_: RedisError| "the Redis client does not accept it";
        let opener = match RedisAddress::parse(url)? {
            RedisAddress::Plain(info) => Opener::Client(Client::open(info).map_err(unusable)?),
            RedisAddress::Sentinel(address) => {
                Opener::Sentinels(Sentinels::new(address).map_err(unusable)?)
            }
            RedisAddress::Cluster(address) => return Ok(Self::Cluster(Cluster::new(address))),
        };
        Ok(Self::One(Server::new(opener)))
    }

    async fn execute(
        &self,
        key: Option<&str>,
        request: &Request<'_>,
    ) -> Result<Value, RedisConnectionError> {
        match self {
            Self::One(server) => server.execute(request, CALL_MAX).await,
            Self::Cluster(cluster) => cluster.execute(key, request).await,
        }
    }

    fn close(&self) {
        match self {
            Self::One(server) => server.close(),
            Self::Cluster(cluster) => cluster.close(),
        }
    }
}

/// Returns whether a server refused the login, or requires one.
fn is_refused_login(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::AuthenticationFailed)
        || matches!(error.code(), Some("WRONGPASS" | "NOAUTH"))
}
