//! Connection pool of the store. Every statement uses it.
//!
//! It differs from a general pool in four ways:
//! - Only a caller that knows a connection is idle returns it. A connection that is merely dropped,
//!   with an answer still due, is closed. So no answer ever reaches the wrong call.
//! - Returning and taking a connection costs no round trip.
//! - One lost connection makes all idle connections suspect, and so does a server that accepts no
//!   writes. After a restart or a failover, calls do not have to detect each of them one by one.
//! - Through a pooler of transactions, a statement is carried out in a transaction that has its
//!   settings ([`super::server_path`]).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, SqlSafeStr as _,
    postgres::{PgArguments, PgConnection, PgRow, Postgres},
    query::Query,
    raw_sql,
};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, sleep, timeout},
};

use super::{error_mapping, server_login::ServerLogin, server_path::ServerPath};

/// Idle time after which a connection is pinged before its use.
const TRUSTED_FOR: Duration = Duration::from_secs(2);
/// Time limit for the answer to that ping.
const ANSWERS_WITHIN: Duration = Duration::from_millis(700);
/// Time that connects to a refusing server are repeated. A caller that must be refused then gets its
/// error within a second.
const REFUSED_FOR: Duration = Duration::from_millis(600);
const TRY_EVERY: Duration = Duration::from_millis(50);
/// Age at which a connection is replaced, so that old addresses and server memory do not stay for
/// ever. It stays while the server accepts no other one.
const LIFETIME: Duration = Duration::from_secs(30 * 60);
/// Time limit for the connection that replaces an old one.
const REPLACED_WITHIN: Duration = Duration::from_millis(500);
/// Pause after a failed replacement of a connection.
const REPLACED_LATER: Duration = Duration::from_secs(10);
const IDLE_MAX: Duration = Duration::from_secs(5 * 60);
/// Time that the close of the store waits for statements in progress and for the end of each
/// connection.
const CLOSES_WITHIN: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Live {
    connection: PgConnection,
    replace_at: Instant,
    idle_since: Instant,
    /// Value of [`Pool::generation`] when the connection was made.
    generation: u64,
}

pub(super) struct Pool {
    path: ServerPath,
    login: Arc<ServerLogin>,
    settings: Vec<(&'static str, &'static str)>,
    /// Begins the transaction of a statement. `None`: each statement is its own transaction.
    begin: Option<String>,
    connections_max: u32,
    permits: Semaphore,
    /// The last entry was idle for the shortest time.
    idle: Mutex<Vec<Live>>,
    /// Grows with each [`Pool::invalidate_idle`]. Older connections are no longer trusted.
    generation: AtomicU64,
    started: Instant,
    /// Time of the last answer of the server, in milliseconds after `started`.
    answered_at_ms: AtomicU64,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Pool").finish_non_exhaustive() // the login holds the password
    }
}

/// A connection in use.
pub(super) struct PooledConnection<'p> {
    pool: &'p Pool,
    /// Taken out when the connection is returned or lost.
    live: Option<Live>,
    _permit: SemaphorePermit<'p>,
}

impl Pool {
    pub(super) fn new(
        path: ServerPath,
        login: &Arc<ServerLogin>,
        settings: &[(&'static str, &'static str)],
        connections_max: u32,
    ) -> Self {
        Self {
            path,
            login: Arc::clone(login),
            settings: settings.to_vec(),
            begin: path.begin(settings),
            connections_max,
            permits: Semaphore::new(connections_max as usize),
            idle: Mutex::default(),
            generation: AtomicU64::new(0),
            started: Instant::now(),
            answered_at_ms: AtomicU64::new(0),
        }
    }

    /// Returns an idle connection or a new one. Waits for either. The caller limits the time.
    pub(super) async fn acquire(&self) -> Result<PooledConnection<'_>, sqlx::Error> {
        self.acquire_verified(TRUSTED_FOR).await
    }

    /// Works as [`Pool::acquire`], with another limit for the idle time without a ping.
    pub(super) async fn acquire_verified(
        &self,
        trusted_for: Duration,
    ) -> Result<PooledConnection<'_>, sqlx::Error> {
        let permit = self.permits.acquire().await.map_err(|_| sqlx::Error::PoolClosed)?;
        let give_up_at = Instant::now() + REFUSED_FOR;
        loop {
            if let Some(live) = self.acquire_idle(trusted_for).await {
                let live = self.replaced_if_old(live).await;
                return Ok(PooledConnection { pool: self, live: Some(live), _permit: permit });
            }
            match self.connect().await {
                Ok(live) => {
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

    async fn connect(&self) -> Result<Live, sqlx::Error> {
        let generation = self.generation.load(Ordering::Acquire);
        let connection = self.log_in().await?;
        // A pooler accepts connections also while the server is silent.
        if self.begin.is_none() {
            self.record_activity();
        }
        let now = Instant::now();
        Ok(Live { connection, replace_at: now + LIFETIME, idle_since: now, generation })
    }

    /// Connects with the present login, or with the last accepted one if the server refuses it.
    async fn log_in(&self) -> Result<PgConnection, sqlx::Error> {
        let login = self.login.current().await;
        let refusal = match self.path.options(&login.options, &self.settings).connect().await {
            Ok(connection) => {
                self.login.record_accepted(login);
                return Ok(connection);
            }
            Err(error) if error_mapping::is_login_refused(&error) => error,
            Err(error) => return Err(error),
        };
        let Some(accepted) = self.login.accepted_before(&login) else { return Err(refusal) };
        let connection = self.path.options(&accepted.options, &self.settings).connect().await?;
        tracing::warn!(error = %refusal, "PostgreSQL refuses the changed login: a new connection uses the earlier one");
        Ok(connection)
    }

    /// Returns a new connection in place of an old one. A full server, or one that refuses the
    /// login, must not cost the connections that work.
    async fn replaced_if_old(&self, mut old: Live) -> Live {
        if Instant::now() < old.replace_at {
            return old;
        }
        match timeout(REPLACED_WITHIN, self.connect()).await {
            Ok(Ok(new)) => new,
            Ok(Err(_)) | Err(_) => {
                old.replace_at = Instant::now() + REPLACED_LATER;
                old
            }
        }
    }

    /// Makes all idle connections due for their replacement.
    #[cfg(test)]
    pub(super) fn make_old(&self) {
        self.idle().iter_mut().for_each(|live| live.replace_at = Instant::now());
    }

    async fn acquire_idle(&self, trusted_for: Duration) -> Option<Live> {
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
                Ok(Err(_)) | Err(_) => self.invalidate_idle(),
            }
        }
    }

    fn idle(&self) -> parking_lot::MutexGuard<'_, Vec<Live>> {
        self.idle.lock()
    }

    /// Closes all idle connections after one was lost, or was to a server that accepts no writes.
    pub(super) fn invalidate_idle(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        let lost = std::mem::take(&mut *self.idle());
        drop(lost);
    }

    pub(super) fn record_activity(&self) {
        self.answered_at_ms.fetch_max(self.millis(Instant::now()), Ordering::AcqRel);
    }

    /// Returns whether the server answered any call after this moment. It is then reachable, if
    /// slow.
    pub(super) fn active_since(&self, moment: Instant) -> bool {
        self.answered_at_ms.load(Ordering::Acquire) > self.millis(moment)
    }

    fn millis(&self, moment: Instant) -> u64 {
        u64::try_from(moment.saturating_duration_since(self.started).as_millis())
            .unwrap_or(u64::MAX)
    }

    fn return_to_pool(&self, mut live: Live) {
        self.record_activity();
        live.idle_since = Instant::now();
        let is_good = live.generation == self.generation.load(Ordering::Acquire);
        let mut idle = self.idle();
        if is_good && !self.permits.is_closed() {
            idle.push(live);
        }
        // The first entry was idle for the longest time. One removal for each call is enough,
        // because calls continue as long as the lease.
        if idle.first().is_some_and(|first| first.idle_since.elapsed() > IDLE_MAX) {
            idle.remove(0);
        }
    }

    /// Stops giving out connections. Those in use have a moment to finish.
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
    /// Prepares a statement. A failure has no effect, and [`Self::execute`] then takes the fewest
    /// round trips.
    pub(super) async fn prepare(&mut self, statement: &'static str) -> Result<(), sqlx::Error> {
        match &self.pool.begin {
            None => self.connection().prepare(statement.into_sql_str()).await.map(drop),
            Some(_) => self.begin().await,
        }
    }

    /// Begins the transaction of a statement, if it needs one.
    pub(super) async fn begin(&mut self) -> Result<(), sqlx::Error> {
        let pool = self.pool;
        let Some(begin) = &pool.begin else { return Ok(()) };
        let result = self.connection().execute(raw_sql(AssertSqlSafe(begin.as_str()))).await;
        if result.is_err() {
            self.live = None;
        }
        result.map(drop)
    }

    /// Carries out a statement, after [`Self::begin`] or [`Self::prepare`]. Returns all its rows.
    /// The statement has then taken effect.
    pub(super) async fn execute(
        &mut self,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        if self.pool.begin.is_none() {
            return query.fetch_all(self.connection()).await;
        }
        let rows = query.persistent(false).fetch_all(self.connection()).await;
        let end = if rows.is_ok() { "COMMIT" } else { "ROLLBACK" };
        match (rows, self.connection().execute(end).await) {
            (Ok(rows), Ok(_)) => Ok(rows),
            (Ok(_), Err(error)) => Err(error),
            (Err(error), ended) => {
                if ended.is_err() {
                    self.live = None;
                }
                Err(error)
            }
        }
    }

    fn connection(&mut self) -> &mut PgConnection {
        &mut self.live.as_mut().expect("a statement follows no failed one").connection
    }

    /// Returns the connection to the pool. No answer may be due on it.
    pub(super) fn release(mut self) {
        if let Some(live) = self.live.take() {
            self.pool.return_to_pool(live);
        }
    }

    /// Returns the connection or closes it, depending on the error.
    pub(super) fn release_after(self, error: &sqlx::Error) {
        if error_mapping::keeps_connection_usable(error) {
            self.release();
        }
    }
}
