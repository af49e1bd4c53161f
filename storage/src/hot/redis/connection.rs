//! The way to Redis, and the record of its outages: errors are counted, and each outage is logged
//! once.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redis::{Client, RedisError, Value};

use super::{
    address::RedisAddress,
    sentinel::Sentinels,
    server::{Opener, RedisConnectionError, Request, Server},
};

/// Errors with shorter pauses than this count as one outage, which is logged once.
const OUTAGE_OVER_AFTER: Duration = Duration::from_secs(10);

pub(super) struct RedisConnection {
    server: Server,
    errors: AtomicU64,
    outage: Mutex<Option<Outage>>,
    /// Set when `outage` has a value.
    in_outage: AtomicBool,
}

struct Outage {
    begun: Instant,
    last: Instant,
}

impl RedisConnection {
    pub(super) fn new(address: RedisAddress) -> Result<Self, RedisError> {
        let opener = match address {
            RedisAddress::Plain(info) => Opener::Client(Client::open(info)?),
            RedisAddress::Sentinel(address) => Opener::Sentinels(Sentinels::new(address)?),
        };
        Ok(Self {
            server: Server::new(opener),
            errors: AtomicU64::new(0),
            outage: Mutex::new(None),
            in_outage: AtomicBool::new(false),
        })
    }

    /// Sends a request and waits for its answer.
    pub(super) async fn execute(
        &self,
        request: Request<'_>,
    ) -> Result<Value, RedisConnectionError> {
        use RedisConnectionError::{BackingOff, Closed, Redis, TimedOut, Unreachable};
        let answer = self.server.execute(&request).await;
        match &answer {
            Ok(_) => self.record_success(),
            Err(error @ (TimedOut | Unreachable(_) | Redis(_))) => self.record_errors(1, error),
            Err(Closed | BackingOff) => {}
        }
        answer
    }

    /// Returns how to connect to the server that sends messages.
    pub(super) async fn client_for_messages(&self) -> Result<Client, RedisError> {
        match self.server.opener() {
            Opener::Client(client) => Ok(client.clone()),
            Opener::Sentinels(sentinels) => Ok(sentinels.open().await?.0),
        }
    }

    /// Returns whether another server than that of this client is the master, as far as a sentinel
    /// knows. Commands then go to the master.
    pub(super) async fn has_moved_from(&self, client: &Client) -> bool {
        let Opener::Sentinels(sentinels) = self.server.opener() else { return false };
        let has_moved = sentinels.name_another_than(client).await;
        if has_moved {
            self.server.leave();
        }
        has_moved
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
                *outage = Some(Outage { begun: now, last: now });
                drop(outage);
                self.in_outage.store(true, Ordering::Relaxed);
                tracing::warn!(%why, "something is wrong with Redis; hints and wake-ups may be lost, replicas find changes by looking");
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
            tracing::info!(lasted = ?over.last.duration_since(over.begun), "Redis works again without errors");
            *outage = None;
            self.in_outage.store(false, Ordering::Relaxed);
        }
    }

    pub(super) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    pub(super) fn close(&self) {
        self.server.close();
    }
}
