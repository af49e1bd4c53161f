//! The way to Redis, and the record of its outages: errors are counted, and each outage is logged
//! once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redis::{Client, RedisError, Value};

use super::{
    address::RedisAddress,
    cluster::Cluster,
    sentinel::Sentinels,
    server::{CALL_MAX, Opener, RedisConnectionError, Request, Server},
};

/// Errors with shorter pauses than this count as one outage, which is logged once.
const OUTAGE_OVER_AFTER: Duration = Duration::from_secs(10);

pub(super) struct RedisConnection {
    servers: Servers,
    errors: AtomicU64,
    outage: Mutex<Option<Outage>>,
    /// Set when `outage` has a value.
    in_outage: AtomicBool,
}

enum Servers {
    One(Server),
    Cluster(Arc<Cluster>),
}

struct Outage {
    started_at: Instant,
    last: Instant,
}

impl RedisConnection {
    pub(super) fn new(address: RedisAddress) -> Result<Self, RedisError> {
        let one = |opener| Servers::One(Server::new(opener));
        let servers = match address {
            RedisAddress::Plain(info) => one(Opener::Client(Client::open(info)?)),
            RedisAddress::Sentinel(address) => one(Opener::Sentinels(Sentinels::new(address)?)),
            RedisAddress::Cluster(address) => Servers::Cluster(Cluster::new(address)),
        };
        Ok(Self {
            servers,
            errors: AtomicU64::new(0),
            outage: Mutex::new(None),
            in_outage: AtomicBool::new(false),
        })
    }

    /// Returns whether a request can have keys of one hash tag only.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.servers, Servers::Cluster(_))
    }

    /// Sends a request and waits for its answer. `key`: one of its keys, if it has any. All its keys
    /// have the same hash tag.
    pub(super) async fn execute(
        &self,
        key: Option<&str>,
        request: Request<'_>,
    ) -> Result<Value, RedisConnectionError> {
        use RedisConnectionError::{BackingOff, Closed, Redis, TimedOut, Unreachable};
        let answer = match &self.servers {
            Servers::One(server) => server.execute(&request, CALL_MAX).await,
            Servers::Cluster(cluster) => cluster.execute(key, &request).await,
        };
        match &answer {
            Ok(_) => self.record_success(),
            Err(error @ (TimedOut | Unreachable(_) | Redis(_))) => self.record_errors(1, error),
            Err(Closed | BackingOff) => {}
        }
        answer
    }

    /// Returns how to connect to a server that sends messages.
    pub(super) async fn client_for_messages(&self) -> Result<Client, RedisError> {
        match &self.servers {
            Servers::One(server) => server.opener().client().await,
            Servers::Cluster(cluster) => cluster.client_for_messages().await,
        }
    }

    /// Returns whether the server of this client no longer is the master or a node of the cluster,
    /// according to a sentinel or another node.
    pub(super) async fn is_replaced(&self, client: &Client) -> bool {
        match &self.servers {
            Servers::One(server) => server.drop_if_replaced(client).await,
            Servers::Cluster(cluster) => cluster.has_lost(client).await,
        }
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
        match &self.servers {
            Servers::One(server) => server.close(),
            Servers::Cluster(cluster) => cluster.close(),
        }
    }
}
