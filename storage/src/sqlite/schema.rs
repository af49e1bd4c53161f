//! The schema's versions. Migrations are the numbered files of `migrations/sqlite`, built into the binary; each is applied in
//! a transaction of its own together with the note that it was, so an interrupted start goes on where it stopped.

use sqlx::{
    Row, SqlSafeStr,
    migrate::{MigrateError, Migration, MigrationType, Migrator},
    sqlite::SqlitePool,
};

use super::error_mapping::explain;
use crate::{StoreError, fault_point};

/// Every migration in order. A released file is never edited: the next change is the next file.
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
];

/// Schema versions before and after opening; equal when there was nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MigrationOutcome {
    /// 0: the database was empty.
    pub from: i64,
    pub to: i64,
}

/// The version this build works with.
pub(super) fn known() -> i64 {
    MIGRATIONS.last().map_or(0, |(version, ..)| *version)
}

pub(super) async fn bring_up_to_date(
    writer: &SqlitePool,
    migrate: bool,
) -> Result<MigrationOutcome, StoreError> {
    let (found, known) = (found(writer).await?, known());
    if found > known {
        return Err(StoreError::SchemaNewer { found, known });
    }
    if found < known && !migrate {
        return Err(StoreError::SchemaOlder { found, known });
    }
    for (count, (version, ..)) in
        (1..).zip(MIGRATIONS).filter(|(_, (version, ..))| *version > found)
    {
        fault_point::passed("migration.begun");
        migrator(&MIGRATIONS[..count]).run(writer).await.map_err(refusal)?;
        fault_point::passed("migration.applied");
        tracing::debug!(version, "migration applied");
    }
    // Also with nothing to apply: it compares what was applied with what this build would have.
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

/// The newest migration that was applied, whoever applied it.
async fn found(writer: &SqlitePool) -> Result<i64, StoreError> {
    let table = sqlx::query(
        "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = '_sqlx_migrations'",
    );
    if table.fetch_optional(writer).await.map_err(explain)?.is_none() {
        return Ok(0);
    }
    let row = sqlx::query("SELECT coalesce(max(version), 0) FROM _sqlx_migrations")
        .fetch_one(writer)
        .await
        .map_err(explain)?;
    row.try_get(0).map_err(explain)
}

fn refusal(error: MigrateError) -> StoreError {
    match error {
        MigrateError::Execute(error) => explain(error),
        MigrateError::ExecuteMigration(error, version) => match explain(error) {
            StoreError::Unavailable { detail } => StoreError::Migration { version, detail },
            known => known,
        },
        MigrateError::VersionMismatch(version) => StoreError::Corrupt {
            detail: format!("its migration {version} is not the one of this build"),
        },
        other => StoreError::Corrupt { detail: other.to_string() },
    }
}

/// A database as the build that knew `version` left it, with one tenant where it had tenants.
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
        assert_eq!(numbers, (1..=known()).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn opening_tells_what_it_did() {
        let store = SqliteStore::in_memory().await.unwrap();
        assert_eq!(store.migrated(), MigrationOutcome { from: 0, to: known() });
    }
}
