//! The embedded store: one SQLite file in WAL mode, used by one broker at a time.
//!
//! Two connections write, in turns, and a few read. Data that must not be lost is written with
//! `synchronous = FULL`, so it is on disk when a write returns. Event streams and leases go through
//! the other connection, with `synchronous = NORMAL`. They survive the death of the process, but a
//! loss of power may destroy their newest part. A lock on `<file>.lock` guards the file until the
//! store is closed or dropped. The operating system releases the lock when the process ends.
//!
//! A statement that must not read a whole table names its index (`INDEXED BY`). If either changes,
//! every test that runs the statement fails. The process's wall clock measures leases and times. No
//! call takes longer than [`DEADLINE`], except for opening and for the commits of claims of tasks and
//! of changes by operators.

mod approvals;
mod audit;
mod audit_chain;
mod config;
mod error_mapping;
mod events;
mod grants;
mod nodes;
mod pins;
mod process_lock;
mod restored;
mod results;
mod rows;
mod schema;
mod seals;
mod session_writes;
mod sessions;
mod task_writes;
mod tasks;
#[cfg(test)]
mod tests;
mod write;

use std::{
    fs::{DirBuilder, OpenOptions},
    future::Future,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    str::FromStr,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use sqlx::{
    Sqlite, Transaction,
    query::Query,
    sqlite::{
        SqliteArguments, SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool,
        SqlitePoolOptions, SqliteSynchronous,
    },
};
use tokio::sync::{Mutex, MutexGuard};

pub use self::schema::MigrationOutcome;
use self::{error_mapping::map_error, process_lock::ProcessLock};
use crate::{StoreError, fault_point};

/// Connections for reads, in addition to those for writes.
const READERS_MAX: u32 = 3;
/// Time limit of a call. A call over the limit fails, but its write may still take effect.
const DEADLINE: Duration = Duration::from_secs(2);
/// Size to which the WAL shrinks after it had to grow.
const WAL_BYTES_KEPT: &str = "67108864";
/// Time that a call waits for a free connection.
const ACQUIRE_TIMEOUT: Duration = DEADLINE;
/// Time that a statement waits for another process that holds the file, such as a backup.
const BUSY_TIMEOUT: Duration = Duration::from_millis(1_500);
const _: () = assert!(BUSY_TIMEOUT.as_millis() < DEADLINE.as_millis()); // else nobody would learn what it waited for

/// Path of the database, and the setting for migrations.
#[derive(Debug, Clone)]
pub struct SqliteOptions {
    /// Created with its folders when absent, if migrations may be applied.
    pub path: PathBuf,
    /// True to apply missing migrations. Otherwise an old schema is refused.
    pub migrate: bool,
}

/// [`ConfigStore`](crate::ConfigStore), [`DurableStore`](crate::DurableStore) and [`EventStore`](crate::EventStore) on SQLite.
#[derive(Debug)]
pub struct SqliteStore {
    writer: SqlitePool,
    /// Connection for writes that may lag behind the disk.
    log: SqlitePool,
    readers: SqlitePool,
    /// Lock for the turn to write. It is fair, unlike SQLite's own waiting.
    turn: Mutex<()>,
    unreadable: AtomicU64,
    migrated: MigrationOutcome,
    lock: parking_lot::Mutex<Option<ProcessLock>>,
}

impl SqliteStore {
    pub async fn open(options: &SqliteOptions) -> Result<Self, StoreError> {
        if !options.migrate && !options.path.exists() {
            return Err(StoreError::SchemaOlder { found: 0, known: schema::latest_version() });
        }
        create_private(&options.path)?;
        // The lock comes before any access to the database, because a second broker must not even
        // read it.
        let lock = ProcessLock::acquire(&options.path)?;
        let base = SqliteConnectOptions::new()
            .filename(&options.path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .pragma("journal_size_limit", WAL_BYTES_KEPT)
            .busy_timeout(BUSY_TIMEOUT)
            .foreign_keys(true);
        let writer = file_pool(1).connect_with(base.clone()).await.map_err(map_error)?;
        check_intact(&writer).await?;
        let migrated = schema::apply_migrations(&writer, options.migrate).await?;
        nodes::void_leases(&writer).await?;
        let log =
            file_pool(1).connect_lazy_with(base.clone().synchronous(SqliteSynchronous::Normal));
        let readers =
            file_pool(READERS_MAX).connect_lazy_with(base.read_only(true).create_if_missing(false));
        Ok(Self {
            writer,
            log,
            readers,
            turn: Mutex::default(),
            unreadable: AtomicU64::new(0),
            migrated,
            lock: Some(lock).into(),
        })
    }

    /// Opens a store that ends with the process: for tests, and for a broker without persistence.
    pub async fn in_memory() -> Result<Self, StoreError> {
        let options = SqliteConnectOptions::from_str("sqlite::memory:")
            .map_err(map_error)?
            .foreign_keys(true);
        // The database exists in this one connection, so it is never replaced.
        let writer = pool(1)
            .min_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_with(options)
            .await
            .map_err(map_error)?;
        let migrated = schema::apply_migrations(&writer, true).await?;
        let (log, readers) = (writer.clone(), writer.clone());
        Ok(Self {
            writer,
            log,
            readers,
            turn: Mutex::default(),
            unreadable: AtomicU64::new(0),
            migrated,
            lock: None.into(),
        })
    }

    /// Returns the schema versions before and after opening.
    pub fn migration(&self) -> MigrationOutcome {
        self.migrated
    }

    /// Begins a transaction that is on disk when it is committed.
    async fn begin(&self) -> Result<WriteTransaction<'_>, StoreError> {
        self.begin_on(&self.writer).await
    }

    /// Begins a transaction that may lag behind the disk.
    async fn begin_log(&self) -> Result<WriteTransaction<'_>, StoreError> {
        self.begin_on(&self.log).await
    }

    async fn begin_on(&self, pool: &SqlitePool) -> Result<WriteTransaction<'_>, StoreError> {
        let turn = self.turn.lock().await;
        let transaction = pool.begin_with("BEGIN IMMEDIATE").await.map_err(map_error)?;
        Ok(WriteTransaction { transaction, _turn: turn })
    }

    /// Executes one statement in a transaction of its own; returns the number of rows that it
    /// changed. `statement` is called when the transaction has begun, so a time in it is that moment.
    async fn write_one<'q>(
        &self,
        what: &'static str,
        statement: impl FnOnce() -> Query<'q, Sqlite, SqliteArguments> + Send,
    ) -> Result<u64, StoreError> {
        with_deadline(what, async {
            let mut writing = self.begin().await?;
            let done = statement().execute(writing.connection()).await.map_err(map_error)?;
            writing.commit().await?;
            Ok(done.rows_affected())
        })
        .await
    }

    fn count_unreadable(&self) {
        self.unreadable.fetch_add(1, Ordering::Relaxed);
    }
}

/// A transaction that may write. Dropping it rolls it back.
struct WriteTransaction<'a> {
    transaction: Transaction<'static, Sqlite>,
    _turn: MutexGuard<'a, ()>,
}

impl WriteTransaction<'_> {
    fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.transaction
    }

    async fn commit(self) -> Result<(), StoreError> {
        self.transaction.commit().await.map_err(map_error)
    }

    /// Commits a change of the configuration.
    async fn commit_change(self) -> Result<(), StoreError> {
        self.commit().await.map_err(|error| match error {
            // SQLite itself reported that the commit had no effect.
            StoreError::Busy { .. } | StoreError::Full => error,
            error => StoreError::OutcomeUnknown(Box::new(error)),
        })
    }

    /// Commits a transaction in which sessions or tasks get another owner.
    async fn commit_claim(self) -> Result<(), StoreError> {
        fault_point::hit("claim.executed");
        self.commit().await?;
        fault_point::hit("claim.committed");
        Ok(())
    }
}

/// Limits a call to the [`DEADLINE`]. `what` describes the call in the error.
async fn with_deadline<T>(
    what: &'static str,
    call: impl Future<Output = Result<T, StoreError>> + Send,
) -> Result<T, StoreError> {
    let late = |_| {
        Err(StoreError::Busy { detail: format!("{what} took longer than {}s", DEADLINE.as_secs()) })
    };
    tokio::time::timeout(DEADLINE, call).await.unwrap_or_else(late)
}

/// Returns the microseconds since 1970, the clock of all times and leases.
fn now_us() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros)
}

/// Converts to microseconds, up to the maximum of a column.
fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

fn pool(connections_max: u32) -> SqlitePoolOptions {
    SqlitePoolOptions::new().max_connections(connections_max).acquire_timeout(ACQUIRE_TIMEOUT)
}

/// Returns the options of a pool on a file.
fn file_pool(connections_max: u32) -> SqlitePoolOptions {
    use sqlx::Connection as _;

    // SQLite rolls back by itself if the disk is full or fails. sqlx does not notice, and would keep
    // the connection in a transaction for ever. A later transaction of a reader would not end: all
    // its reads would see an old state, and the WAL could not shrink.
    pool(connections_max).before_acquire(|connection, _| {
        let is_usable = !connection.is_in_transaction();
        Box::pin(async move { Ok(is_usable) })
    })
}

/// Creates the file so that only the broker's user can access it, because it contains key hashes
/// and sealed credentials. SQLite gives its side files the mode of the main file.
fn create_private(path: &Path) -> Result<(), StoreError> {
    let unavailable = |what: &str, error: std::io::Error| StoreError::Unavailable {
        detail: format!("{what}: {error}"),
    };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| unavailable(&format!("folder {}", folder.display()), error))?;
    }
    let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
    opened.map(drop).map_err(|error| unavailable(&path.display().to_string(), error))
}

async fn check_intact(writer: &SqlitePool) -> Result<(), StoreError> {
    let verdict: String =
        sqlx::query_scalar("PRAGMA quick_check(1)").fetch_one(writer).await.map_err(map_error)?;
    if verdict == "ok" { Ok(()) } else { Err(StoreError::Corrupt { detail: verdict }) }
}
