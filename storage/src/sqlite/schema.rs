//! The schema's versions. Migrations are the numbered files of `migrations/sqlite`, built into the
//! binary. Each runs in its own transaction, which also records the migration. So an interrupted
//! start continues at the next migration.

use sqlx::{
    Row, SqlSafeStr,
    migrate::{MigrateError, Migration, MigrationType, Migrator},
    sqlite::SqlitePool,
};

use super::error_mapping::map_error;
use crate::{StoreError, fault_point};

/// Every migration in order. A released file is never edited: a change is a new file.
const MIGRATIONS: &[(i64, &str, &str)] = &[
    (1, "configuration", include_str!("../../../migrations/sqlite/0001_configuration.sql")),
    (2, "state", include_str!("../../../migrations/sqlite/0002_state.sql")),
    (3, "audit", include_str!("../../../migrations/sqlite/0003_audit.sql")),
    (4, "breakers", include_str!("../../../migrations/sqlite/0004_breakers.sql")),
    (5, "audit chain", include_str!("../../../migrations/sqlite/0005_audit_chain.sql")),
    (
        6,
        "audit not replaced",
        include_str!("../../../migrations/sqlite/0006_audit_not_replaced.sql"),
    ),
    (7, "access", include_str!("../../../migrations/sqlite/0007_access.sql")),
    (8, "credentials", include_str!("../../../migrations/sqlite/0008_credentials.sql")),
    (9, "upstream", include_str!("../../../migrations/sqlite/0009_upstream.sql")),
    (10, "pins", include_str!("../../../migrations/sqlite/0010_pins.sql")),
    (11, "toolsets", include_str!("../../../migrations/sqlite/0011_toolsets.sql")),
    (12, "approvals", include_str!("../../../migrations/sqlite/0012_approvals.sql")),
    (13, "results", include_str!("../../../migrations/sqlite/0013_results.sql")),
    (14, "root keys", include_str!("../../../migrations/sqlite/0014_root_keys.sql")),
    (15, "grant errors", include_str!("../../../migrations/sqlite/0015_grant_errors.sql")),
];

/// Schema versions before and after opening. They are equal if no migration was missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MigrationOutcome {
    /// 0 if the database was empty.
    pub from: i64,
    pub to: i64,
}

/// Returns the version that this build works with.
pub(super) fn latest_version() -> i64 {
    MIGRATIONS.last().map_or(0, |(version, ..)| *version)
}

pub(super) async fn apply_migrations(
    writer: &SqlitePool,
    migrate: bool,
) -> Result<MigrationOutcome, StoreError> {
    let (found, known) = (found(writer).await?, latest_version());
    if found > known {
        return Err(StoreError::SchemaNewer { found, known });
    }
    if found < known && !migrate {
        return Err(StoreError::SchemaOlder { found, known });
    }
    for (count, (version, ..)) in
        (1..).zip(MIGRATIONS).filter(|(_, (version, ..))| *version > found)
    {
        fault_point::hit("migration.begun");
        migrator(&MIGRATIONS[..count]).run(writer).await.map_err(refusal)?;
        fault_point::hit("migration.applied");
        tracing::debug!(version, "migration applied");
    }
    // This also runs without missing migrations: it compares the applied migrations with those of
    // this build.
    migrator(MIGRATIONS).run(writer).await.map_err(refusal)?;
    if found < known {
        tracing::info!(from = found, to = known, "database schema brought up to date");
    }
    Ok(MigrationOutcome { from: found, to: known })
}

fn migrator(migrations: &[(i64, &'static str, &'static str)]) -> Migrator {
    let migrations = migrations.iter().map(|(version, name, sql)| {
        Migration::new(*version, (*name).into(), MigrationType::Simple, sql.into_sql_str(), false)
    });
    Migrator::with_migrations(migrations.collect())
}

/// Returns the version of the newest applied migration, by any build.
async fn found(writer: &SqlitePool) -> Result<i64, StoreError> {
    let table = sqlx::query(
        "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = '_sqlx_migrations'",
    );
    if table.fetch_optional(writer).await.map_err(map_error)?.is_none() {
        return Ok(0);
    }
    let row = sqlx::query("SELECT coalesce(max(version), 0) FROM _sqlx_migrations")
        .fetch_one(writer)
        .await
        .map_err(map_error)?;
    row.try_get(0).map_err(map_error)
}

fn refusal(error: MigrateError) -> StoreError {
    match error {
        MigrateError::Execute(error) => map_error(error),
        MigrateError::ExecuteMigration(error, version) => match map_error(error) {
            StoreError::Unavailable { detail } => StoreError::Migration { version, detail },
            known => known,
        },
        MigrateError::VersionMismatch(version) => StoreError::Corrupt {
            detail: format!("its migration {version} is not the one of this build"),
        },
        other => StoreError::Corrupt { detail: other.to_string() },
    }
}

/// Makes a database of schema version `version`, with one tenant if that version has tenants.
#[cfg(test)]
pub(super) async fn make_older(path: &std::path::Path, version: i64) {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path).create_if_missing(true);
    let pool = SqlitePool::connect_with(options).await.unwrap();
    let count = MIGRATIONS.iter().filter(|(number, ..)| *number <= version).count();
    migrator(&MIGRATIONS[..count]).run(&pool).await.unwrap();
    if version > 0 {
        sqlx::query("INSERT INTO tenants VALUES ('acme', '{}', 1, 2)")
            .execute(&pool)
            .await
            .unwrap();
    }
    pool.close().await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SqliteStore;

    #[tokio::test]
    async fn a_failing_migration_keeps_nothing_and_the_next_start_goes_on() {
        let pool = sqlx::sqlite::SqlitePoolOptions::new()
            .max_connections(1)
            .connect("sqlite::memory:")
            .await
            .unwrap();
        let broken = [
            MIGRATIONS[0],
            (2, "broken", "CREATE TABLE extra (a); INSERT INTO nowhere VALUES (1);"),
        ];
        let error = refusal(migrator(&broken).run(&pool).await.unwrap_err());
        assert!(matches!(error, StoreError::Migration { version: 2, .. }), "{error}");
        assert_eq!(
            found(&pool).await.unwrap(),
            1,
            "the first one stays applied, the second left no trace"
        );
        let mended = [MIGRATIONS[0], (2, "mended", "CREATE TABLE extra (a);")];
        migrator(&mended).run(&pool).await.unwrap();
        assert_eq!(found(&pool).await.unwrap(), 2);
    }

    #[test]
    fn migrations_are_numbered_without_gaps() {
        let numbers: Vec<i64> = MIGRATIONS.iter().map(|(version, ..)| *version).collect();
        assert_eq!(numbers, (1..=latest_version()).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn opening_tells_what_it_did() {
        let store = SqliteStore::in_memory().await.unwrap();
        assert_eq!(store.migration(), MigrationOutcome { from: 0, to: latest_version() });
    }
}
