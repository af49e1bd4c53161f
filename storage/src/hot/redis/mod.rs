//! Redis as the hot store and as the log of event streams. Redis may be flushed, evicted, frozen or
//! killed at any time. Hints and wakeups are then lost and counted, and the log reports lost
//! events.
//!
//! Supports Redis 6.2 or newer: one server, the master that Redis Sentinel names, or Redis Cluster.
//! All three have the same keys. The keys of one request have one hash tag, except for those of a
//! batch of events, which is divided by tags for a cluster.

mod address;
mod budgets;
mod cluster;
mod codec;
mod connection;
mod events;
mod permits;
mod pubsub;
mod sentinel;
mod server;
mod slots;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use records::SessionKey;
use redis::{Cmd, Script, Value};
use tokio::{
    sync::{broadcast, watch},
    task::AbortHandle,
    time::timeout,
};

use self::{
    address::{FORMS, InvalidAddress},
    codec::{Codec, NODE_BYTES},
    connection::RedisConnection,
    events::{LoggedStreams, Scripts},
    pubsub::{Outbox, Subscriber},
    server::{CONNECT_MAX, Request},
};
use super::{
    BudgetGrant, BudgetRequest, HotStore, OwnerHint, PermitsAnswer, PermitsLifetime,
    PermitsRequest, WAKEUPS_BUFFERED_MAX, Wakeup,
};
use crate::StoreError;

/// Time limit for publishing the last wakeups at the close.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// Address and secrets of Redis.
#[derive(Clone)]
pub struct RedisOptions {
    /// `redis://`, `redis+unix://`, `redis+sentinel://` or `redis+cluster://`. With TLS `rediss`
    /// instead of `redis`. May contain passwords.
    pub url: String,
    /// File that holds the URL. After a refused login, connections use the login that it has by
    /// then.
    pub url_file: Option<PathBuf>,
    /// Secret of one installation, which its replicas share. The store ignores values that were
    /// written with another key.
    pub key: [u8; 32],
    /// Time that events and stream records stay after their last change.
    pub event_retention: Duration,
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("RedisOptions")
            .field("event_retention", &self.event_retention)
            .finish_non_exhaustive()
    }
}

/// [`HotStore`] and [`EventStore`](crate::EventStore) of several replicas.
pub struct RedisStore {
    link: Arc<RedisConnection>,
    codec: Arc<Codec>,
    retention: Duration,
    scripts: Scripts,
    budgets: Script,
    permits: Script,
    logged: Mutex<LoggedStreams>,
    wakeups: broadcast::Sender<Wakeup>,
    outbox: Outbox,
    connected: Arc<AtomicBool>,
    closed: AtomicBool,
    tasks: [AbortHandle; 2],
}

impl RedisStore {
    /// Waits a moment for Redis, and continues without it. The store keeps trying to connect while
    /// it exists. Fails only for a URL that cannot be parsed.
    pub async fn open(options: &RedisOptions) -> Result<Self, StoreError> {
        let link = RedisConnection::new(options.url.clone(), options.url_file.clone());
        let link = Arc::new(link.map_err(refused_url)?);
        let codec = Arc::new(Codec::new(&options.key, rand::random::<[u8; NODE_BYTES]>()));
        let (wakeups, _) = broadcast::channel(WAKEUPS_BUFFERED_MAX);
        let connected = Arc::new(AtomicBool::new(false));
        let (tried, mut first_try) = watch::channel(false);
        let hearer = Subscriber {
            link: link.clone(),
            codec: codec.clone(),
            wakeups: wakeups.clone(),
            connected: connected.clone(),
            tried,
        };
        let (outbox, publisher) = pubsub::publisher(link.clone());
        let tasks =
            [tokio::spawn(hearer.run()).abort_handle(), tokio::spawn(publisher).abort_handle()];
        let hot = Self {
            link,
            codec,
            retention: options.event_retention,
            scripts: Scripts::new(),
            budgets: budgets::script(),
            permits: permits::script(),
            logged: Mutex::new(events::no_logged_streams()),
            wakeups,
            outbox,
            connected,
            closed: AtomicBool::new(false),
            tasks,
        };
        let _ = timeout(CONNECT_MAX, first_try.wait_for(|tried| *tried)).await;
        Ok(hot)
    }

    /// Returns the number of refused, unanswered and lost operations, and of foreign values under
    /// the broker's keys.
    pub fn errors(&self) -> u64 {
        self.link.errors()
    }
}

fn refused_url(why: InvalidAddress) -> StoreError {
    let detail = format!("the address of Redis cannot be understood: {why}; expected {FORMS}");
    StoreError::Unavailable { detail }
}

#[async_trait]
impl HotStore for RedisStore {
    fn engine(&self) -> &'static str {
        "redis"
    }

    async fn owner_hint(&self, session: &SessionKey) -> Option<OwnerHint> {
        let key = codec::owner_key(session);
        let mut get = Cmd::new();
        get.arg("GET").arg(&key);
        let answer = self.link.execute(Some(&key), Request::Command(&get)).await.ok()?;
        let Value::BulkString(value) = answer else { return None };
        let owner = self.codec.read_owner(session, &value);
        if owner.is_none() {
            self.link.record_errors(1, &"a hint in Redis is not from this broker");
        }
        owner
    }

    async fn put_owner_hint(&self, session: &SessionKey, owner: &OwnerHint, ttl: Duration) {
        if ttl.is_zero() {
            return self.remove_owner_hint(session).await;
        }
        let key = codec::owner_key(session);
        let mut set = Cmd::new();
        set.arg("SET").arg(&key).arg(self.codec.owner(session, owner));
        set.arg("PX").arg(milliseconds(ttl));
        let _ = self.link.execute(Some(&key), Request::Command(&set)).await;
    }

    async fn remove_owner_hint(&self, session: &SessionKey) {
        let key = codec::owner_key(session);
        let mut delete = Cmd::new();
        delete.arg("DEL").arg(&key);
        let _ = self.link.execute(Some(&key), Request::Command(&delete)).await;
    }

    fn publish(&self, wake: Wakeup) {
        if self.closed.load(Ordering::Relaxed) || wake.is_too_long() {
            return;
        }
        let message = self.codec.wake(&wake);
        let _ = self.wakeups.send(wake); // without a subscriber nothing is sent
        if !self.outbox.push(message) {
            self.link.record_errors(1, &"too many notifications wait to be published");
        }
    }

    fn subscribe(&self) -> broadcast::Receiver<Wakeup> {
        self.wakeups.subscribe()
    }

    async fn take_from_budgets(&self, requests: &[BudgetRequest]) -> Option<Vec<BudgetGrant>> {
        budgets::take(self, requests).await
    }

    async fn settle_permits(
        &self,
        lifetime: PermitsLifetime,
        requests: &[PermitsRequest],
    ) -> Option<PermitsAnswer> {
        permits::settle(self, lifetime, requests).await
    }

    fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let _ = timeout(CLOSE_MAX, self.outbox.flush()).await;
        self.end_tasks();
        self.link.close();
    }
}

impl RedisStore {
    fn end_tasks(&self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.connected.store(false, Ordering::Relaxed);
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.end_tasks();
    }
}

/// Converts to at least one millisecond, because Redis refuses an expiry of zero.
fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).clamp(1, u64::from(u32::MAX) * 1_000)
}
