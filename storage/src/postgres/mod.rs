//! The shared store: one PostgreSQL database (12 or newer) for any number of brokers.
//!
//! Every question is one statement (what takes several is a function of the schema), so it costs one round trip and is its own
//! transaction. Whatever the server or the way to it does, a call ends
//! within [`ANSWER_WITHIN`], or [`SETTLED_WITHIN`] for writes. With `synchronous_commit = on` a write that returned is on
//! disk.

mod audit;
mod audit_chain;
mod columns;
mod config;
mod error_mapping;
mod events;
mod nodes;
mod pool;
mod rows;
mod schema;
mod sessions;
mod tasks;
#[cfg(test)]
mod tests;
mod tls_verification;
mod write;

use std::{fmt, str::FromStr, sync::atomic::AtomicU64, time::Duration};

use parking_lot::Mutex;
use sqlx::{
    ConnectOptions, Connection,
    postgres::{PgArguments, PgConnectOptions, PgRow, Postgres},
    query::Query,
};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use self::{
    error_mapping::{RetryAction, explain, remedy},
    pool::Pool,
};
use crate::{MigrationOutcome, StoreError};

/// Connections of one broker for what it asks.
const CONNECTIONS_MAX: u32 = 11;
/// And for what it stores, which must not wait behind that: as many as write at the same time.
const WRITE_CONNECTIONS: u32 = 4;
/// And for its lease, which must not wait behind the rest, nor have its statements prepared anew.
const LEASE_CONNECTIONS: u32 = 1;
/// How long a call waits for its answer, connecting included.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How long a write may take, finding out about a lost commit included.
const SETTLED_WITHIN: Duration = Duration::from_millis(2_700);
/// How often a statement that was in another's way, or lost its connection, is tried.
const TRIES_MAX: u32 = 4;
/// At most so long before it is tried again.
const RETRY_AFTER_MS_MAX: u64 = 40;
/// How long a start waits for another replica's migration, and for each statement of its own.
const MIGRATES_WITHIN: Duration = Duration::from_secs(10 * 60);
const _: () = assert!(ANSWER_WITHIN.as_millis() < SETTLED_WITHIN.as_millis()); // else a lost commit could never be settled

/// Settings of each connection. The server gives up on a statement before, or when, its caller does; on a commit (which may wait
/// for a disk or a standby) it never does.
const SETTINGS: [(&str, &str); 7] = [
    ("synchronous_commit", "on"),
    ("statement_timeout", "2000"),
    ("lock_timeout", "1500"),
    ("idle_in_transaction_session_timeout", "5000"),
    ("default_transaction_isolation", "read committed"),
    ("client_min_messages", "warning"),
    // The server's end of what TCP offers; ours is the time limit of each call.
    ("tcp_keepalives_idle", "30"),
];

/// For writes the server gives up well before, as long as it is not committing yet: then it is certain that nothing was done.
const WRITE_SETTINGS: [(&str, &str); 2] = [("statement_timeout", "1700"), ("lock_timeout", "1200")];

/// Where the database is and whether to bring it up to date.
#[derive(Clone)]
pub struct PostgresOptions {
    /// `postgres://user:password@host:port/database?sslmode=verify-full`.
    pub url: String,
    /// Apply missing migrations; otherwise an old schema is refused.
    pub migrate: bool,
    /// How long opening waits for the server.
    pub connect_timeout: Duration,
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL holds the password.
        out.debug_struct("PostgresOptions")
            .field("migrate", &self.migrate)
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}

/// [`DurableStore`](crate::DurableStore) and [`EventStore`](crate::EventStore) on PostgreSQL.
#[derive(Debug)]
pub struct PostgresStore {
    pool: Pool,
    write_pool: Pool,
    lease_pool: Pool,
    migrated: MigrationOutcome,
    unreadable: AtomicU64,
    unanswered: Mutex<InDoubtCalls>,
    /// One at a time: a call that is still under way is not one without an answer.
    claiming: tokio::sync::Mutex<()>,
}

/// Calls that gave something away and whose answers were lost: asked again, the store tells once more.
#[derive(Debug, Default)]
struct InDoubtCalls {
    /// Names of calls of `claim_tasks`, and until when they are remembered.
    claims: Vec<(i64, Instant)>,
    /// Until then a batch may be one that was sent before.
    writes_until: Option<Instant>,
}

/// Names of claims are forgotten after so long. A commit that takes longer leaves tasks that are found by who compares what
/// it owns with what it does.
const CLAIMS_REMEMBERED_FOR: Duration = Duration::from_secs(60);

impl InDoubtCalls {
    /// A call of this name begins. Returns those that were not answered.
    fn note_claim(&mut self, token: i64) -> Vec<i64> {
        let now = Instant::now();
        self.claims.retain(|(_, until)| now < *until);
        let others = self.claims.iter().map(|(token, _)| *token).collect();
        self.claims.push((token, now + CLAIMS_REMEMBERED_FOR));
        others
    }
}

impl PostgresStore {
    /// Connects, and brings the schema up to date if allowed.
    pub async fn open(options: &PostgresOptions) -> Result<Self, StoreError> {
        // The parser's own words may repeat parts of the URL, and so the password.
        let unusable = |_| StoreError::Unavailable {
            detail: "storage.url is not a PostgreSQL URL this build understands".into(),
        };
        let base = PgConnectOptions::from_str(&options.url).map_err(unusable)?;
        let base = base.application_name("mcp-broker").disable_statement_logging(); // errors are logged where they are handled
        tls_verification::warn_if_unverified(&base);
        let migrated = Self::bring_up_to_date(&base, options).await?;
        let base = base.options(SETTINGS);
        Ok(Self {
            pool: Pool::new(base.clone(), CONNECTIONS_MAX),
            write_pool: Pool::new(base.clone().options(WRITE_SETTINGS), WRITE_CONNECTIONS),
            lease_pool: Pool::new(base, LEASE_CONNECTIONS),
            migrated,
            unreadable: AtomicU64::new(0),
            unanswered: Mutex::default(),
            claiming: tokio::sync::Mutex::default(),
        })
    }

    async fn bring_up_to_date(
        base: &PgConnectOptions,
        options: &PostgresOptions,
    ) -> Result<MigrationOutcome, StoreError> {
        let patient = MIGRATES_WITHIN.as_millis().to_string();
        let patient =
            base.clone().options([("statement_timeout", &patient), ("lock_timeout", &patient)]);
        let give_up_at = Instant::now() + options.connect_timeout;
        let mut last = StoreError::Unavailable {
            detail: format!("no answer within {:?}", options.connect_timeout),
        };
        let mut connection = loop {
            match timeout_at(give_up_at, patient.connect()).await {
                Ok(Ok(connection)) => break connection,
                Ok(Err(error))
                    if error_mapping::may_connect_soon(&error) && Instant::now() < give_up_at =>
                {
                    last = error_mapping::explain_connecting(error)
                }
                Ok(Err(error)) => return Err(error_mapping::explain_connecting(error)),
                Err(_) => return Err(last),
            }
            sleep(moment()).await;
        };
        let migrated = schema::bring_up_to_date(&mut connection, options.migrate).await?;
        let _gone_either_way = timeout(ANSWER_WITHIN, connection.close()).await;
        Ok(migrated)
    }

    /// What opening did to the schema.
    pub fn migrated(&self) -> MigrationOutcome {
        self.migrated
    }

    /// Carries out one statement and reads all it returns; it has taken effect then. `query` makes it; it is told whether an
    /// earlier attempt may have been carried out without our learning of it.
    async fn rows<'q>(
        &self,
        query: impl Fn(bool) -> Query<'q, Postgres, PgArguments> + Send + Sync,
    ) -> Result<Vec<PgRow>, StatementError> {
        self.rows_of(&self.pool, query).await
    }

    /// The same over the connection for the lease.
    async fn lease_rows<'q>(
        &self,
        query: impl Fn(bool) -> Query<'q, Postgres, PgArguments> + Send + Sync,
    ) -> Result<Vec<PgRow>, StatementError> {
        self.rows_of(&self.lease_pool, query).await
    }

    async fn rows_of<'q>(
        &self,
        pool: &Pool,
        query: impl Fn(bool) -> Query<'q, Postgres, PgArguments> + Send + Sync,
    ) -> Result<Vec<PgRow>, StatementError> {
        let started = Instant::now();
        match timeout(ANSWER_WITHIN, self.rows_untimed(pool, query)).await {
            Ok(answer) => answer,
            Err(_) => Err(StatementError::TimedOut(self.late(started))),
        }
    }

    async fn rows_untimed<'q>(
        &self,
        pool: &Pool,
        query: impl Fn(bool) -> Query<'q, Postgres, PgArguments> + Send + Sync,
    ) -> Result<Vec<PgRow>, StatementError> {
        let mut again = false;
        let mut tries = 1;
        loop {
            let mut connection = pool.take().await.map_err(StatementError::NotConnected)?;
            let error = match query(again).fetch_all(&mut *connection).await {
                Ok(rows) => {
                    connection.keep();
                    return Ok(rows);
                }
                Err(error) => error,
            };
            connection.keep_after(&error);
            let remedy = remedy(&error);
            if remedy == RetryAction::None || tries == TRIES_MAX {
                return Err(StatementError::Failed(error));
            }
            if remedy == RetryAction::Reconnect {
                self.distrust();
                again = true;
            } else {
                sleep(moment()).await;
            }
            tries += 1;
        }
    }

    /// The reason for a call's being late, which is found out from whether the server talked to anybody meanwhile.
    fn late(&self, started: Instant) -> StoreError {
        if self.pools().iter().any(|pool| pool.heard_since(started)) {
            return StoreError::Busy {
                detail: format!("no answer within {ANSWER_WITHIN:?}, though it answers others"),
            };
        }
        self.distrust();
        StoreError::Unavailable { detail: format!("no answer within {ANSWER_WITHIN:?}") }
    }

    /// A connection was lost, or nothing was heard over any.
    fn distrust(&self) {
        self.pools().iter().for_each(|pool| pool.distrust());
    }

    fn pools(&self) -> [&Pool; 3] {
        [&self.pool, &self.write_pool, &self.lease_pool]
    }

    fn unanswered(&self) -> parking_lot::MutexGuard<'_, InDoubtCalls> {
        self.unanswered.lock()
    }
}

/// Why a statement gave nothing.
#[derive(Debug)]
enum StatementError {
    /// Nothing was asked: the time for finding a connection is over.
    NotConnected(sqlx::Error),
    Failed(sqlx::Error),
    TimedOut(StoreError),
}

impl From<StatementError> for StoreError {
    fn from(error: StatementError) -> Self {
        match error {
            StatementError::NotConnected(sqlx::Error::PoolClosed) => {
                Self::Unavailable { detail: "it was closed, the broker is ending".into() }
            }
            StatementError::NotConnected(error) => error_mapping::explain_connecting(error),
            StatementError::Failed(error) => explain(error),
            StatementError::TimedOut(error) => error,
        }
    }
}

/// A short time of chance length, so that two who were in each other's way are not so again.
fn moment() -> Duration {
    Duration::from_millis(rand::random_range(1..=RETRY_AFTER_MS_MAX))
}

/// For the database, which counts microseconds.
fn micros(duration: Duration) -> i64 {
    // Far beyond any lease, and adding it to the present does not overflow.
    const MOST: i64 = i64::MAX / 4;
    i64::try_from(duration.as_micros()).map_or(MOST, |micros| micros.min(MOST))
}
