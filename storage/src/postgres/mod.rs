//! The shared store: one PostgreSQL database (12 or newer) for any number of brokers.
//!
//! Every call is one statement, so it costs one round trip and is its own transaction. Through a
//! pooler the store begins and commits that transaction itself ([`server_path`]). Work that takes
//! several statements is a function of the schema. Every call ends within [`ANSWER_WITHIN`],
//! or [`SETTLED_WITHIN`] for writes, even if the server or the network hangs. With
//! `synchronous_commit = on` a write that returned is on disk.

mod approvals;
mod audit;
mod audit_chain;
mod columns;
mod config;
mod config_statements;
mod error_mapping;
mod events;
mod grants;
mod nodes;
mod pins;
mod pool;
mod restored;
mod results;
mod rows;
mod schema;
mod seals;
mod server_login;
mod server_path;
mod sessions;
mod tasks;
mod tenant_removal;
#[cfg(test)]
mod tests;
mod tls_verification;
mod url;
mod write;

use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use parking_lot::Mutex;
use sqlx::{
    Connection,
    postgres::{PgArguments, PgConnectOptions, PgConnection, PgRow, Postgres},
    query::Query,
};
use tokio::time::{Instant, sleep, timeout, timeout_at};

pub use self::url::check_postgres_url;
use self::{
    error_mapping::{RetryAction, map_error, retry_action},
    pool::{Pool, PooledConnection},
    server_login::ServerLogin,
    server_path::ServerPath,
};
use crate::{MigrationOutcome, StoreError};

/// Connections of one broker for reads and other calls.
const CONNECTIONS_MAX: u32 = 11;
/// Connections for writes, which must not wait for other calls. This is also the number of
/// concurrent writes.
const WRITE_CONNECTIONS: u32 = 4;
/// Connection for the lease. Renewals must not wait for other calls, and their statements stay
/// prepared on it.
const LEASE_CONNECTIONS: u32 = 1;
/// Time limit for the answer to a call, connecting included.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Time limit of a write, including the check of a commit whose answer was lost.
const SETTLED_WITHIN: Duration = Duration::from_millis(2_700);
/// Attempts at a statement after conflicts or lost connections.
const TRIES_MAX: u32 = 4;
/// Longest pause before another attempt, in milliseconds.
const RETRY_AFTER_MS_MAX: u64 = 40;
const _: () = assert!(ANSWER_WITHIN.as_millis() < SETTLED_WITHIN.as_millis()); // else a lost commit could never be settled

/// Settings of each connection. The server ends a statement before its caller gives up, or at the
/// same time. It never gives up on a commit, which may wait for a disk or a standby.
const SETTINGS: [(&str, &str); 7] = [
    ("synchronous_commit", "on"),
    ("statement_timeout", "2000"),
    ("lock_timeout", "1500"),
    ("idle_in_transaction_session_timeout", "5000"),
    ("default_transaction_isolation", "read committed"),
    ("client_min_messages", "warning"),
    // Keep-alive at the server's end. The time limit of each call serves this end.
    ("tcp_keepalives_idle", "30"),
];

/// For writes the server gives up well before the caller, unless it is committing. The caller then
/// knows that the write had no effect.
const WRITE_SETTINGS: [(&str, &str); 2] = [("statement_timeout", "1700"), ("lock_timeout", "1200")];

/// For migrations: a start waits ten minutes for another replica's migration, and as long for each
/// statement of its own.
const MIGRATION_SETTINGS: [(&str, &str); 2] =
    [("statement_timeout", "600000"), ("lock_timeout", "600000")];
/// For the tables that a migration changes. Statements of running replicas wait behind a migration
/// that waits for such a lock, so it gives up before their `lock_timeout`. It waits longer than the
/// server's `deadlock_timeout` (1 s), after which the server cancels an autovacuum in its way.
const TABLE_LOCK_TIMEOUT: (&str, &str) = ("lock_timeout", "1100");
/// Pause before another attempt at a migration, in which replicas use the tables.
const MIGRATION_PAUSE: Duration = Duration::from_secs(2);
/// Time after which a migration that gets no lock is not attempted again.
const MIGRATION_ATTEMPTS_MAX: Duration = Duration::from_secs(600);

/// Address of the database, and the setting for migrations.
#[derive(Clone)]
pub struct PostgresOptions {
    /// `postgres://user:password@host:port/database?sslmode=verify-full`.
    pub url: String,
    /// File that holds the URL. New connections use the login that it has by then.
    pub url_file: Option<PathBuf>,
    /// True to apply missing migrations. Otherwise an old schema is refused.
    pub migrate: bool,
    /// Time that opening waits for the server.
    pub connect_timeout: Duration,
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL contains the password.
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
    /// Allows one claim at a time, because a claim in progress does not count as unanswered.
    claiming: tokio::sync::Mutex<()>,
}

/// Calls that assigned rows and whose answers were lost. A repeated call gets the rows again.
#[derive(Debug, Default)]
struct InDoubtCalls {
    /// Tokens of `claim_tasks` calls, and the time until which they are kept.
    claims: Vec<(i64, Instant)>,
    /// Time until which a batch may repeat an earlier one.
    writes_until: Option<Instant>,
}

/// Time that tokens of claims are kept. After a slower commit, the owner still finds its tasks when
/// it compares the tasks that it owns with those that it runs.
const CLAIMS_REMEMBERED_FOR: Duration = Duration::from_secs(60);

impl InDoubtCalls {
    /// Registers a call with this token. Returns the tokens of unanswered calls.
    fn record_claim(&mut self, token: i64) -> Vec<i64> {
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
        let login = ServerLogin::new(options)?;
        tls_verification::warn_if_unverified(&login.options().await);
        let (path, migrated) = Self::migrate(&login, options).await?;
        if path == ServerPath::TransactionPooler {
            tracing::info!(
                "the database is behind a pooler: each statement has its own transaction"
            );
        }
        let for_writes = [&SETTINGS[..], &WRITE_SETTINGS].concat();
        Ok(Self {
            pool: Pool::new(path, &login, &SETTINGS, CONNECTIONS_MAX),
            write_pool: Pool::new(path, &login, &for_writes, WRITE_CONNECTIONS),
            lease_pool: Pool::new(path, &login, &SETTINGS, LEASE_CONNECTIONS),
            migrated,
            unreadable: AtomicU64::new(0),
            unanswered: Mutex::default(),
            claiming: tokio::sync::Mutex::default(),
        })
    }

    /// Brings the schema up to date. Each attempt has a connection of its own. Another attempt
    /// follows while other programs, such as `pg_dump`, hold locks of the tables.
    async fn migrate(
        login: &Arc<ServerLogin>,
        options: &PostgresOptions,
    ) -> Result<(ServerPath, MigrationOutcome), StoreError> {
        let started = Instant::now();
        loop {
            let base = login.options().await;
            let (mut connection, path) = Self::connect(&base, options.connect_timeout).await?;
            let migrated = schema::apply_migrations(&mut connection, path, options.migrate).await;
            let _gone_either_way = timeout(ANSWER_WITHIN, connection.close()).await;
            match migrated {
                Err(StoreError::Busy { detail }) if started.elapsed() < MIGRATION_ATTEMPTS_MAX => {
                    tracing::warn!(%detail, "the migration of the schema waits until other programs leave its tables");
                }
                result => return result.map(|outcome| (path, outcome)),
            }
            sleep(MIGRATION_PAUSE).await;
        }
    }

    /// Returns a connection for migrations, and the way of statements to the server.
    async fn connect(
        base: &PgConnectOptions,
        connect_timeout: Duration,
    ) -> Result<(PgConnection, ServerPath), StoreError> {
        let give_up_at = Instant::now() + connect_timeout;
        let mut last =
            StoreError::Unavailable { detail: format!("no answer within {connect_timeout:?}") };
        loop {
            match timeout_at(give_up_at, ServerPath::detect(base, &MIGRATION_SETTINGS)).await {
                Ok(Ok(connected)) => return Ok(connected),
                Ok(Err(error))
                    if error_mapping::may_connect_soon(&error) && Instant::now() < give_up_at =>
                {
                    last = error_mapping::map_connect_error(error)
                }
                Ok(Err(error)) => return Err(error_mapping::map_connect_error(error)),
                Err(_) => return Err(last),
            }
            sleep(retry_jitter()).await;
        }
    }

    /// Returns the schema versions before and after opening.
    pub fn migration(&self) -> MigrationOutcome {
        self.migrated
    }

    /// Carries out one statement and returns all its rows. The statement has then taken effect.
    /// `query` creates the statement. Its argument is true if an earlier attempt may have taken
    /// effect unnoticed.
    async fn rows<'q>(
        &self,
        query: impl Fn(bool) -> Query<'q, Postgres, PgArguments> + Send + Sync,
    ) -> Result<Vec<PgRow>, StatementError> {
        self.rows_of(&self.pool, query).await
    }

    /// Works as `rows` over the connection for the lease.
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
            Err(_) => Err(StatementError::TimedOut(self.timeout_error(started))),
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
            let mut connection = pool.acquire().await.map_err(StatementError::NotConnected)?;
            let attempt = async {
                connection.begin().await?;
                connection.execute(query(again)).await
            };
            let error = match attempt.await {
                Ok(rows) => {
                    connection.release();
                    return Ok(rows);
                }
                Err(error) => error,
            };
            self.release_after(connection, &error);
            let remedy = retry_action(&error);
            if remedy == RetryAction::None || tries == TRIES_MAX {
                return Err(StatementError::Failed(error));
            }
            if remedy == RetryAction::Reconnect {
                self.invalidate_idle();
                again = true;
            } else {
                sleep(retry_jitter()).await;
            }
            tries += 1;
        }
    }

    /// Returns the error of a late call. The reason depends on whether the server answered any
    /// other call meanwhile.
    fn timeout_error(&self, started: Instant) -> StoreError {
        if self.pools().iter().any(|pool| pool.active_since(started)) {
            return StoreError::Busy {
                detail: format!(
                    "no answer within {ANSWER_WITHIN:?}, although the database answers other requests"
                ),
            };
        }
        self.invalidate_idle();
        StoreError::Unavailable { detail: format!("no answer within {ANSWER_WITHIN:?}") }
    }

    /// Returns a connection to its pool after a failed statement, or closes it. After a failover
    /// the idle connections of every pool are closed too, because they are to the old primary. After
    /// a change of the schema they are closed too, because they have the same old statement.
    fn release_after(&self, connection: PooledConnection<'_>, error: &sqlx::Error) {
        if error_mapping::is_read_only(error) || retry_action(error) == RetryAction::Reprepare {
            self.invalidate_idle();
        }
        connection.release_after(error);
    }

    /// Closes all idle connections, after one was lost, all were silent, or a write was refused.
    fn invalidate_idle(&self) {
        self.pools().iter().for_each(|pool| pool.invalidate_idle());
    }

    fn pools(&self) -> [&Pool; 3] {
        [&self.pool, &self.write_pool, &self.lease_pool]
    }

    fn in_doubt(&self) -> parking_lot::MutexGuard<'_, InDoubtCalls> {
        self.unanswered.lock()
    }
}

/// Reason for the failure of a statement.
#[derive(Debug)]
enum StatementError {
    /// No statement was sent, because no connection was available in time.
    NotConnected(sqlx::Error),
    Failed(sqlx::Error),
    TimedOut(StoreError),
}

impl From<StatementError> for StoreError {
    fn from(error: StatementError) -> Self {
        match error {
            StatementError::NotConnected(sqlx::Error::PoolClosed) => Self::Unavailable {
                detail: "the broker closed its connections, because it is shutting down".into(),
            },
            StatementError::NotConnected(error) => error_mapping::map_connect_error(error),
            StatementError::Failed(error) => map_error(error),
            StatementError::TimedOut(error) => error,
        }
    }
}

/// Returns a short random pause, so that two transactions in conflict do not collide again.
fn retry_jitter() -> Duration {
    Duration::from_millis(rand::random_range(1..=RETRY_AFTER_MS_MAX))
}

/// Converts a duration for the database, which counts microseconds.
fn micros(duration: Duration) -> i64 {
    // This exceeds any lease, and adding it to the current time does not overflow.
    const MOST: i64 = i64::MAX / 4;
    i64::try_from(duration.as_micros()).map_or(MOST, |micros| micros.min(MOST))
}
