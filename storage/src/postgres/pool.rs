//! Connections to the server, reused. Called by every statement of the store.
//!
//! Three things differ from a pool for everybody. A connection is given back only by who knows that it is idle; one that is
//! merely dropped, with an answer still due, is closed, so no answer ever reaches the wrong question. Giving back and taking
//! cost no round trip. And one lost connection makes all that idle now suspect: after a restart or a fail-over no call has
//! to find out one by one.

use std::{
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use sqlx::{
    ConnectOptions as _, Connection as _,
    postgres::{PgConnectOptions, PgConnection},
};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, sleep, timeout},
};

use super::error_mapping;

/// One that idled for longer is asked first whether it is alive.
const TRUSTED_FOR: Duration = Duration::from_secs(2);
/// How long a living one may take to answer that.
const ANSWERS_WITHIN: Duration = Duration::from_millis(700);
/// How long a server that refuses is tried again. A client that has to be refused hears so within a second.
const REFUSED_FOR: Duration = Duration::from_millis(600);
const TRY_EVERY: Duration = Duration::from_millis(50);
/// Then it is replaced, so that changed addresses and memory of the server's side do not stay for ever.
const LIFETIME_MAX: Duration = Duration::from_secs(30 * 60);
const IDLE_MAX: Duration = Duration::from_secs(5 * 60);
/// How long the end of the store waits for statements under way and for each goodbye.
const CLOSES_WITHIN: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Live {
    connection: PgConnection,
    made_at: Instant,
    idle_since: Instant,
    /// [`Pool::generation`] when it was made.
    generation: u64,
}

pub(super) struct Pool {
    options: PgConnectOptions,
    connections_max: u32,
    permits: Semaphore,
    /// The one that idled the shortest is last.
    idle: Mutex<Vec<Live>>,
    /// Grows when a connection is lost. Connections of before are not trusted any more.
    generation: AtomicU64,
    started: Instant,
    /// When the server last said anything, in milliseconds after `started`.
    heard_at_ms: AtomicU64,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Pool").finish_non_exhaustive() // the options hold the password
    }
}

/// A connection in use.
pub(super) struct PooledConnection<'p> {
    pool: &'p Pool,
    /// Taken out when it is given back.
    live: Option<Live>,
    _permit: SemaphorePermit<'p>,
}

impl Pool {
    pub(super) fn new(options: PgConnectOptions, connections_max: u32) -> Self {
        Self {
            options,
            connections_max,
            permits: Semaphore::new(connections_max as usize),
            idle: Mutex::default(),
            generation: AtomicU64::new(0),
            started: Instant::now(),
            heard_at_ms: AtomicU64::new(0),
        }
    }

    /// An idle connection, or a new one. Waits for either; the caller limits how long.
    pub(super) async fn take(&self) -> Result<PooledConnection<'_>, sqlx::Error> {
        self.take_heard_of(TRUSTED_FOR).await
    }

    /// The same, with a sign of life that is no older.
    pub(super) async fn take_heard_of(
        &self,
        trusted_for: Duration,
    ) -> Result<PooledConnection<'_>, sqlx::Error> {
        let permit = self.permits.acquire().await.map_err(|_| sqlx::Error::PoolClosed)?;
        let give_up_at = Instant::now() + REFUSED_FOR;
        loop {
            if let Some(live) = self.take_idle(trusted_for).await {
                return Ok(PooledConnection { pool: self, live: Some(live), _permit: permit });
            }
            let generation = self.generation.load(Ordering::Acquire);
            match self.options.connect().await {
                Ok(connection) => {
                    self.note_heard();
                    let now = Instant::now();
                    let live = Live { connection, made_at: now, idle_since: now, generation };
                    return Ok(PooledConnection { pool: self, live: Some(live), _permit: permit });
                }
                Err(error)
                    if error_mapping::may_connect_soon(&error) && Instant::now() < give_up_at =>
                {
                    sleep(TRY_EVERY).await
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn take_idle(&self, trusted_for: Duration) -> Option<Live> {
        loop {
            let mut live = self.idle().pop()?;
            if live.generation != self.generation.load(Ordering::Acquire) {
                continue;
            }
            if live.idle_since.elapsed() < trusted_for {
                return Some(live);
            }
            match timeout(ANSWERS_WITHIN, live.connection.ping()).await {
                Ok(Ok(())) => return Some(live),
                Ok(Err(_)) | Err(_) => self.distrust(),
            }
        }
    }

    fn idle(&self) -> parking_lot::MutexGuard<'_, Vec<Live>> {
        self.idle.lock()
    }

    /// A connection was lost: those that idle are closed.
    pub(super) fn distrust(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        let lost = std::mem::take(&mut *self.idle());
        drop(lost);
    }

    pub(super) fn note_heard(&self) {
        self.heard_at_ms.fetch_max(self.millis(Instant::now()), Ordering::AcqRel);
    }

    /// Whether the server said anything after this moment, to whomever: then it is there, if slow.
    pub(super) fn heard_since(&self, moment: Instant) -> bool {
        self.heard_at_ms.load(Ordering::Acquire) > self.millis(moment)
    }

    fn millis(&self, moment: Instant) -> u64 {
        u64::try_from(moment.saturating_duration_since(self.started).as_millis())
            .unwrap_or(u64::MAX)
    }

    fn give_back(&self, mut live: Live) {
        self.note_heard();
        live.idle_since = Instant::now();
        let is_good = live.generation == self.generation.load(Ordering::Acquire)
            && live.made_at.elapsed() < LIFETIME_MAX;
        let mut idle = self.idle();
        if is_good && !self.permits.is_closed() {
            idle.push(live);
        }
        // The first one idled longest. One for each call is enough: there are calls as long as there is a lease.
        if idle.first().is_some_and(|first| first.idle_since.elapsed() > IDLE_MAX) {
            idle.remove(0);
        }
    }

    /// No connection is given out any more; those in use have a moment to finish.
    pub(super) async fn close(&self) {
        let _in_use = timeout(CLOSES_WITHIN, self.permits.acquire_many(self.connections_max)).await;
        self.permits.close();
        let idle = std::mem::take(&mut *self.idle());
        for live in idle {
            let _gone_either_way = timeout(CLOSES_WITHIN, live.connection.close()).await;
        }
    }
}

impl PooledConnection<'_> {
    /// Gives the connection back; nothing is due on it.
    pub(super) fn keep(mut self) {
        if let Some(live) = self.live.take() {
            self.pool.give_back(live);
        }
    }

    /// Gives it back or closes it, as the error says.
    pub(super) fn keep_after(self, error: &sqlx::Error) {
        if error_mapping::leaves_connection_usable(error) {
            self.keep();
        }
    }
}

impl Deref for PooledConnection<'_> {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.live.as_ref().expect("it is taken out only by who consumes this").connection
    }
}

impl DerefMut for PooledConnection<'_> {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.live.as_mut().expect("it is taken out only by who consumes this").connection
    }
}
