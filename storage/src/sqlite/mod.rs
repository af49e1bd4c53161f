//! The embedded store: one SQLite file in WAL mode, used by one broker at a time.
//!
//! One connection writes and a few read, so no statement of ours ever waits for another writer. With `synchronous = FULL` a
//! write that returned is on disk. The file is guarded by a lock on `<file>.lock`, held until the store is dropped: the
//! operating system lets go of it however the process ends.

mod fault;
mod lock;
mod schema;
mod temporary;
#[cfg(test)]
mod tests;

use std::{
    fs::{DirBuilder, OpenOptions},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use async_trait::async_trait;
use protocol::ids::{BackendId, KeyId, PrincipalId, TenantId};
use sqlx::{
    Row,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteRow, SqliteSynchronous},
};

pub use self::schema::Migrated;
use self::{fault::explain, lock::ProcessLock};
use crate::{BackendRecord, ConfigStore, KeyRecord, StoreError, TenantRecord};

/// Reading connections beside the one that writes.
const READERS_MAX: u32 = 3;
/// How long a statement waits for another process that holds the file, such as a backup.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a call waits for a free connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);
const _: () = assert!(BUSY_TIMEOUT.as_secs() < ACQUIRE_TIMEOUT.as_secs()); // else a waiting writer would look like a missing one

/// Where the database is and whether to bring it up to date.
#[derive(Debug, Clone)]
pub struct SqliteOptions {
    /// Created with its folders when absent.
    pub path: PathBuf,
    /// Apply missing migrations; otherwise an old schema is refused.
    pub migrate: bool,
}

/// [`ConfigStore`] on SQLite.
#[derive(Debug)]
pub struct SqliteStore {
    writer: SqlitePool,
    readers: SqlitePool,
    migrated: Migrated,
    _lock: Option<ProcessLock>,
}

impl SqliteStore {
    pub async fn open(options: &SqliteOptions) -> Result<Self, StoreError> {
        create_private(&options.path)?;
        // Before anything touches the database: a second broker must not even look at it.
        let lock = ProcessLock::take(&options.path)?;
        let base = SqliteConnectOptions::new()
            .filename(&options.path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY_TIMEOUT)
            .foreign_keys(true);
        let writer = pool(1).connect_with(base.clone()).await.map_err(explain)?;
        check_intact(&writer).await?;
        let migrated = schema::bring_up_to_date(&writer, options.migrate).await?;
        let readers = pool(READERS_MAX).connect_lazy_with(base.read_only(true).create_if_missing(false));
        Ok(Self { writer, readers, migrated, _lock: Some(lock) })
    }

    /// A store that ends with the process: for tests, and for a broker that is to leave no trace.
    pub async fn in_memory() -> Result<Self, StoreError> {
        let options = SqliteConnectOptions::from_str("sqlite::memory:").map_err(explain)?.foreign_keys(true);
        // One connection that is never replaced: the database lives in it.
        let writer = pool(1).min_connections(1).idle_timeout(None).max_lifetime(None).connect_with(options).await.map_err(explain)?;
        let migrated = schema::bring_up_to_date(&writer, true).await?;
        Ok(Self { readers: writer.clone(), writer, migrated, _lock: None })
    }

    /// What opening did to the schema.
    pub fn migrated(&self) -> Migrated {
        self.migrated
    }
}

fn pool(connections_max: u32) -> SqlitePoolOptions {
    SqlitePoolOptions::new().max_connections(connections_max).acquire_timeout(ACQUIRE_TIMEOUT)
}

/// The file holds key hashes and sealed credentials: nobody but the broker's user has business with it. SQLite gives its
/// side files the mode of the main one.
fn create_private(path: &Path) -> Result<(), StoreError> {
    let unavailable = |what: &str, error: std::io::Error| StoreError::Unavailable { detail: format!("{what}: {error}") };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| unavailable(&format!("folder {}", folder.display()), error))?;
    }
    let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
    opened.map(drop).map_err(|error| unavailable(&path.display().to_string(), error))
}

async fn check_intact(writer: &SqlitePool) -> Result<(), StoreError> {
    let verdict: String = sqlx::query_scalar("PRAGMA quick_check(1)").fetch_one(writer).await.map_err(explain)?;
    if verdict == "ok" { Ok(()) } else { Err(StoreError::Corrupt { detail: verdict }) }
}

#[async_trait]
impl ConfigStore for SqliteStore {
    async fn tenants(&self) -> Result<Vec<TenantRecord>, StoreError> {
        let rows = sqlx::query("SELECT tenant, settings, created_at_us, updated_at_us FROM tenants ORDER BY tenant");
        rows.fetch_all(&self.readers).await.map_err(explain)?.iter().map(tenant_record).collect()
    }

    async fn put_tenant(&self, record: &TenantRecord) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO tenants (tenant, settings, created_at_us, updated_at_us) VALUES (?, ?, ?, ?)
             ON CONFLICT (tenant) DO UPDATE SET settings = excluded.settings, updated_at_us = excluded.updated_at_us",
        )
        .bind(record.tenant.as_str())
        .bind(record.settings.as_str())
        .bind(record.created_at_us)
        .bind(record.updated_at_us)
        .execute(&self.writer)
        .await
        .map_err(explain)?;
        Ok(())
    }

    async fn delete_tenant(&self, tenant: &TenantId) -> Result<bool, StoreError> {
        let delete = sqlx::query("DELETE FROM tenants WHERE tenant = ?").bind(tenant.as_str());
        Ok(delete.execute(&self.writer).await.map_err(explain)?.rows_affected() > 0)
    }

    async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        let rows = sqlx::query("SELECT key_id, tenant, principal, name, hash, created_at_us FROM api_keys ORDER BY key_id");
        rows.fetch_all(&self.readers).await.map_err(explain)?.iter().map(key_record).collect()
    }

    async fn keys_of(&self, tenant: &TenantId) -> Result<Vec<KeyRecord>, StoreError> {
        let rows =
            sqlx::query("SELECT key_id, tenant, principal, name, hash, created_at_us FROM api_keys WHERE tenant = ? ORDER BY key_id")
                .bind(tenant.as_str());
        rows.fetch_all(&self.readers).await.map_err(explain)?.iter().map(key_record).collect()
    }

    async fn put_key(&self, record: &KeyRecord) -> Result<(), StoreError> {
        let insert = sqlx::query("INSERT INTO api_keys (key_id, tenant, principal, name, hash, created_at_us) VALUES (?, ?, ?, ?, ?, ?)")
            .bind(record.key.as_str())
            .bind(record.tenant.as_str())
            .bind(record.principal.as_str())
            .bind(record.name.as_str())
            .bind(record.hash.as_slice())
            .bind(record.created_at_us);
        match insert.execute(&self.writer).await {
            Ok(_) => Ok(()),
            Err(error) if fault::is_duplicate(&error) => Err(StoreError::Exists { what: format!("key {}", record.key) }),
            Err(error) => Err(under_tenant(error, &record.tenant)),
        }
    }

    async fn delete_key(&self, tenant: &TenantId, key: &KeyId) -> Result<bool, StoreError> {
        let delete = sqlx::query("DELETE FROM api_keys WHERE tenant = ? AND key_id = ?").bind(tenant.as_str()).bind(key.as_str());
        Ok(delete.execute(&self.writer).await.map_err(explain)?.rows_affected() > 0)
    }

    async fn backends(&self) -> Result<Vec<BackendRecord>, StoreError> {
        let rows = sqlx::query("SELECT tenant, backend, settings, created_at_us, updated_at_us FROM backends ORDER BY tenant, backend");
        rows.fetch_all(&self.readers).await.map_err(explain)?.iter().map(backend_record).collect()
    }

    async fn put_backend(&self, record: &BackendRecord) -> Result<(), StoreError> {
        let upsert = sqlx::query(
            "INSERT INTO backends (tenant, backend, settings, created_at_us, updated_at_us) VALUES (?, ?, ?, ?, ?)
             ON CONFLICT (tenant, backend) DO UPDATE SET settings = excluded.settings, updated_at_us = excluded.updated_at_us",
        )
        .bind(record.tenant.as_str())
        .bind(record.backend.as_str())
        .bind(record.settings.as_slice())
        .bind(record.created_at_us)
        .bind(record.updated_at_us);
        upsert.execute(&self.writer).await.map(drop).map_err(|error| under_tenant(error, &record.tenant))
    }

    async fn delete_backend(&self, tenant: &TenantId, backend: &BackendId) -> Result<bool, StoreError> {
        let delete = sqlx::query("DELETE FROM backends WHERE tenant = ? AND backend = ?").bind(tenant.as_str()).bind(backend.as_str());
        Ok(delete.execute(&self.writer).await.map_err(explain)?.rows_affected() > 0)
    }

    async fn config_version(&self) -> Result<i64, StoreError> {
        sqlx::query_scalar("SELECT version FROM config_version").fetch_one(&self.readers).await.map_err(explain)
    }

    async fn close(&self) {
        self.readers.close().await;
        // Last: SQLite folds the WAL into the main file when the final connection goes.
        self.writer.close().await;
    }
}

/// A write below a tenant that is not there breaks the foreign key.
fn under_tenant(error: sqlx::Error, tenant: &TenantId) -> StoreError {
    if fault::is_orphan(&error) { StoreError::UnknownTenant { tenant: tenant.clone() } } else { explain(error) }
}

fn tenant_record(row: &SqliteRow) -> Result<TenantRecord, StoreError> {
    Ok(TenantRecord {
        tenant: tenant_id(row)?,
        settings: row.try_get("settings").map_err(explain)?,
        created_at_us: row.try_get("created_at_us").map_err(explain)?,
        updated_at_us: row.try_get("updated_at_us").map_err(explain)?,
    })
}

fn key_record(row: &SqliteRow) -> Result<KeyRecord, StoreError> {
    Ok(KeyRecord {
        key: KeyId::new(text(row, "key_id")?),
        tenant: tenant_id(row)?,
        principal: PrincipalId::new(text(row, "principal")?),
        name: row.try_get("name").map_err(explain)?,
        hash: row.try_get("hash").map_err(explain)?,
        created_at_us: row.try_get("created_at_us").map_err(explain)?,
    })
}

fn backend_record(row: &SqliteRow) -> Result<BackendRecord, StoreError> {
    let backend = text(row, "backend")?;
    let backend = BackendId::parse(&backend).map_err(|_| StoreError::Corrupt { detail: format!("a backend is called {backend:?}") })?;
    Ok(BackendRecord {
        tenant: tenant_id(row)?,
        backend,
        settings: row.try_get("settings").map_err(explain)?,
        created_at_us: row.try_get("created_at_us").map_err(explain)?,
        updated_at_us: row.try_get("updated_at_us").map_err(explain)?,
    })
}

fn tenant_id(row: &SqliteRow) -> Result<TenantId, StoreError> {
    let tenant = text(row, "tenant")?;
    TenantId::parse(&tenant).map_err(|_| StoreError::Corrupt { detail: format!("a tenant is called {tenant:?}") })
}

fn text(row: &SqliteRow, column: &str) -> Result<String, StoreError> {
    row.try_get(column).map_err(explain)
}
