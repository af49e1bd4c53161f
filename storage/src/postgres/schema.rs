//! The schema's versions. Migrations are the numbered files of `migrations/postgres`, built into the binary; each is applied
//! in a transaction of its own together with the note that it was. Replicas that start at once take turns by an advisory
//! lock, which the server lets go of however the one that holds it ends.

use sqlx::{
    Row, SqlSafeStr,
    migrate::{Migrate, MigrateError, Migration, MigrationType},
    postgres::PgConnection,
};

use super::error_mapping::explain;
use crate::{MigrationOutcome, StoreError, fault_point};

/// Every migration in order, and the places between them at which tests end the process. A released file is never edited:
/// the next change is the next file.
const MIGRATIONS: &[(i64, &str, &str, [&str; 2])] = &[
    (
        1,
        "configuration",
        include_str!("../../../migrations/postgres/0001_configuration.sql"),
        ["migration.1.begun", "migration.1.applied"],
    ),
    (
        2,
        "state",
        include_str!("../../../migrations/postgres/0002_state.sql"),
        ["migration.2.begun", "migration.2.applied"],
    ),
    (
        3,
        "tasks by index",
        include_str!("../../../migrations/postgres/0003_tasks_by_index.sql"),
        ["migration.3.begun", "migration.3.applied"],
    ),
    (
        4,
        "audit",
        include_str!("../../../migrations/postgres/0004_audit.sql"),
        ["migration.4.begun", "migration.4.applied"],
    ),
    (
        5,
        "breakers",
        include_str!("../../../migrations/postgres/0005_breakers.sql"),
        ["migration.5.begun", "migration.5.applied"],
    ),
    (
        6,
        "audit chain",
        include_str!("../../../migrations/postgres/0006_audit_chain.sql"),
        ["migration.6.begun", "migration.6.applied"],
    ),
];

const TABLE: &str = "_sqlx_migrations";

/// The version this build works with.
pub(super) fn known() -> i64 {
    MIGRATIONS.last().map_or(0, |(version, ..)| *version)
}

/// `connection` is one that may wait as long as another replica's migration takes.
pub(super) async fn bring_up_to_date(
    connection: &mut PgConnection,
    migrate: bool,
) -> Result<MigrationOutcome, StoreError> {
    let known = known();
    let at_first = found(connection).await?;
    if at_first > known {
        return Err(StoreError::SchemaNewer { found: at_first, known });
    }
    if at_first < known && !migrate {
        return Err(StoreError::SchemaOlder { found: at_first, known });
    }
    if at_first == known {
        check(connection).await?;
        return Ok(MigrationOutcome { from: known, to: known });
    }
    connection.lock().await.map_err(refusal)?;
    let done = apply_missing(connection).await;
    let unlocked = connection.unlock().await.map_err(refusal);
    let from = done?;
    unlocked?;
    Ok(MigrationOutcome { from, to: known })
}

/// With the lock held. Returns the version it began with, which another replica may have raised meanwhile.
async fn apply_missing(connection: &mut PgConnection) -> Result<i64, StoreError> {
    bring_up_to(connection, known()).await
}

pub(super) async fn bring_up_to(
    connection: &mut PgConnection,
    known: i64,
) -> Result<i64, StoreError> {
    connection.ensure_migrations_table(TABLE).await.map_err(refusal)?;
    let from = found(connection).await?;
    if from > known {
        return Err(StoreError::SchemaNewer { found: from, known });
    }
    check(connection).await?;
    for (version, name, sql, [begun, applied]) in
        MIGRATIONS.iter().filter(|(version, ..)| (from + 1..=known).contains(version))
    {
        fault_point::passed(begun);
        let migration = migration(*version, name, sql);
        connection.apply(TABLE, &migration).await.map_err(|error| refused(error, *version))?;
        fault_point::passed(applied);
    }
    if from < known {
        tracing::info!(from, to = known, "database schema brought up to date");
    }
    Ok(from)
}

/// Compares what was applied with what this build would have.
async fn check(connection: &mut PgConnection) -> Result<(), StoreError> {
    for applied in connection.list_applied_migrations(TABLE).await.map_err(refusal)? {
        let own = MIGRATIONS.iter().find(|(version, ..)| *version == applied.version);
        let same = own.is_some_and(|(version, name, sql, _)| {
            migration(*version, name, sql).checksum == applied.checksum
        });
        if !same {
            return Err(StoreError::Corrupt {
                detail: format!("its migration {} is not the one of this build", applied.version),
            });
        }
    }
    Ok(())
}

fn migration(version: i64, name: &'static str, sql: &'static str) -> Migration {
    Migration::new(version, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
}

/// The newest migration that was applied, whoever applied it.
async fn found(connection: &mut PgConnection) -> Result<i64, StoreError> {
    let table = sqlx::query("SELECT to_regclass('_sqlx_migrations') IS NOT NULL")
        .fetch_one(&mut *connection)
        .await
        .map_err(explain)?;
    if !table.try_get::<bool, _>(0).map_err(explain)? {
        return Ok(0);
    }
    let newest =
        sqlx::query("SELECT coalesce(max(version), 0) FROM _sqlx_migrations WHERE success");
    newest.fetch_one(connection).await.map_err(explain)?.try_get(0).map_err(explain)
}

fn refusal(error: MigrateError) -> StoreError {
    refused(error, 0)
}

fn refused(error: MigrateError, version: i64) -> StoreError {
    match error {
        MigrateError::Execute(error) => explain(error),
        MigrateError::ExecuteMigration(error, _) => {
            let is_of_server =
                super::error_mapping::remedy(&error) != super::error_mapping::RetryAction::None;
            match explain(error) {
                StoreError::Unavailable { detail } | StoreError::Refused { detail }
                    if !is_of_server =>
                {
                    StoreError::Migration { version, detail }
                }
                known => known,
            }
        }
        other => StoreError::Corrupt { detail: other.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_are_numbered_without_gaps() {
        let numbers: Vec<i64> = MIGRATIONS.iter().map(|(version, ..)| *version).collect();
        assert_eq!(numbers, (1..=known()).collect::<Vec<_>>());
    }

    #[test]
    fn every_migration_has_its_places_to_end_at() {
        for (version, _, _, places) in MIGRATIONS {
            assert_eq!(
                *places,
                [format!("migration.{version}.begun"), format!("migration.{version}.applied")]
            );
        }
    }
}
