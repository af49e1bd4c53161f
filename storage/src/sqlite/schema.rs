//! The schema's versions. Migrations are the numbered files of `migrations/sqlite`, built into the
//! binary. All missing ones run in one transaction, which also records them. So an interrupted
//! start leaves the schema as it was.

use sqlx::{
    Connection, Row,
    migrate::{Migrate, MigrateError},
    sqlite::{SqliteConnection, SqlitePool},
};

use super::error_mapping::map_error;
use crate::{
    StoreError, fault_point,
    migrations::{TABLE, check_applied, migration},
};

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
    (
        16,
        "sessions by creation",
        include_str!("../../../migrations/sqlite/0016_sessions_by_creation.sql"),
    ),
    (17, "secrets by end", include_str!("../../../migrations/sqlite/0017_secrets_by_end.sql")),
    (
        18,
        "registrations of backends",
        include_str!("../../../migrations/sqlite/0018_registrations_of_backends.sql"),
    ),
    (19, "inputs by bytes", include_str!("../../../migrations/sqlite/0019_inputs_by_bytes.sql")),
    (
        20,
        "tenants begin with nothing",
        include_str!("../../../migrations/sqlite/0020_tenants_begin_with_nothing.sql"),
    ),
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
    let mut connection = writer.acquire().await.map_err(map_error)?;
    let (found, known) = (found(&mut connection).await?, latest_version());
    if found == 0 && has_tables(&mut connection).await? {
        return Err(StoreError::Corrupt { detail: "it has tables of another program".to_owned() });
    }
    if found > known {
        return Err(StoreError::SchemaNewer { found, known });
    }
    if found < known && !migrate {
        return Err(StoreError::SchemaOlder { found, known });
    }
    migrate_to(&mut connection, MIGRATIONS).await?;
    if found < known {
        tracing::info!(from = found, to = known, "database schema brought up to date");
    }
    Ok(MigrationOutcome { from: found, to: known })
}

/// Applies those of these migrations that are missing, all or none. First compares the applied
/// ones with those of this build.
async fn migrate_to(
    connection: &mut SqliteConnection,
    migrations: &[(i64, &'static str, &'static str)],
) -> Result<(), StoreError> {
    connection.ensure_migrations_table(TABLE).await.map_err(refusal)?;
    check(connection, migrations).await?;
    let found = found(connection).await?;
    let mut missing = migrations.iter().filter(|(version, ..)| *version > found).peekable();
    if missing.peek().is_none() {
        return Ok(());
    }
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await.map_err(map_error)?;
    for (version, name, sql) in missing {
        fault_point::hit("migration.begun");
        let migration = migration(*version, name, sql);
        transaction.apply(TABLE, &migration).await.map_err(refusal)?;
        fault_point::hit("migration.applied");
        tracing::debug!(version, "migration applied");
    }
    transaction.commit().await.map_err(map_error)
}

/// Compares the applied migrations with these.
async fn check(
    connection: &mut SqliteConnection,
    migrations: &[(i64, &'static str, &'static str)],
) -> Result<(), StoreError> {
    let incomplete = connection.dirty_version(TABLE).await.map_err(refusal)?;
    let applied = connection.list_applied_migrations(TABLE).await.map_err(refusal)?;
    check_applied(&applied, incomplete, |wanted| {
        let (version, name, sql) = migrations.iter().find(|(version, ..)| *version == wanted)?;
        Some(migration(*version, name, sql))
    })
}

/// Returns the version of the newest applied migration, by any build.
async fn found(connection: &mut SqliteConnection) -> Result<i64, StoreError> {
    let table = sqlx::query(
        "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = '_sqlx_migrations'",
    );
    if table.fetch_optional(&mut *connection).await.map_err(map_error)?.is_none() {
        return Ok(0);
    }
    let row = sqlx::query("SELECT coalesce(max(version), 0) FROM _sqlx_migrations")
        .fetch_one(connection)
        .await
        .map_err(map_error)?;
    row.try_get(0).map_err(map_error)
}

/// Returns whether the database has tables, other than those of SQLite and of the migrations.
async fn has_tables(connection: &mut SqliteConnection) -> Result<bool, StoreError> {
    let tables = sqlx::query(
        "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name <> '_sqlx_migrations' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' LIMIT 1",
    );
    let found = tables.fetch_optional(connection).await.map_err(map_error)?;
    Ok(found.is_some())
}

fn refusal(error: MigrateError) -> StoreError {
    match error {
        MigrateError::Execute(error) => map_error(error),
        MigrateError::ExecuteMigration(error, version) => match map_error(error) {
            StoreError::Unavailable { detail } => StoreError::Migration { version, detail },
            known => known,
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
    migrate_to(&mut pool.acquire().await.unwrap(), &MIGRATIONS[..count]).await.unwrap();
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
    async fn a_failed_migration_is_rolled_back_and_a_repaired_one_is_applied() {
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        let broken = [
            MIGRATIONS[0],
            (2, "broken", "CREATE TABLE extra (a); INSERT INTO nowhere VALUES (1);"),
        ];
        let error = migrate_to(&mut connection, &broken).await.unwrap_err();
        assert!(matches!(error, StoreError::Migration { version: 2, .. }), "{error}");
        assert_eq!(found(&mut connection).await.unwrap(), 0, "none is applied");
        let mended = [MIGRATIONS[0], (2, "mended", "CREATE TABLE extra (a);")];
        migrate_to(&mut connection, &mended).await.unwrap();
        assert_eq!(found(&mut connection).await.unwrap(), 2);
    }

    #[tokio::test]
    async fn an_absent_or_incomplete_migration_is_noticed() {
        for damage in [
            "DELETE FROM _sqlx_migrations WHERE version = 7",
            "UPDATE _sqlx_migrations SET success = FALSE WHERE version = 7",
        ] {
            let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
            migrate_to(&mut connection, MIGRATIONS).await.unwrap();
            sqlx::query(damage).execute(&mut connection).await.unwrap();
            let error = migrate_to(&mut connection, MIGRATIONS).await.unwrap_err();
            let StoreError::Corrupt { detail } = &error else { panic!("{damage}: {error}") };
            assert_eq!(detail, "its migration 7 is absent or incomplete", "{damage}");
        }
    }

    #[test]
    fn migrations_are_numbered_without_gaps() {
        let numbers: Vec<i64> = MIGRATIONS.iter().map(|(version, ..)| *version).collect();
        assert_eq!(numbers, (1..=latest_version()).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn opening_a_store_returns_the_migration_outcome() {
        let store = SqliteStore::in_memory().await.unwrap();
        assert_eq!(store.migration(), MigrationOutcome { from: 0, to: latest_version() });
    }
}
