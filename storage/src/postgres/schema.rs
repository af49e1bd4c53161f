//! The schema's versions. Migrations are the numbered files of `migrations/postgres`, built into
//! the binary. Each runs in its own transaction, which also records the migration. Replicas that
//! start at once take turns with an advisory lock. The server releases the lock when its holder
//! ends. Through a pooler all missing migrations run in one transaction, which holds the lock.
//!
//! A migration that waits for a table makes the statements of running replicas wait behind it. It
//! therefore gives up soon ([`TABLE_LOCK_TIMEOUT`]), and the caller tries again later.

use sqlx::{
    AssertSqlSafe, Connection, Executor, Row,
    migrate::{Migrate, MigrateError},
    postgres::PgConnection,
    raw_sql,
};

use super::{
    MIGRATION_SETTINGS, TABLE_LOCK_TIMEOUT,
    error_mapping::map_error,
    server_path::{ServerPath, set_local},
};
use crate::{
    MigrationOutcome, StoreError, fault_point,
    migrations::{TABLE, check_applied, migration},
};

/// Every migration in order, and the steps between them at which tests end the process. A released
/// file is never edited: a change is a new file.
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
    (
        7,
        "access",
        include_str!("../../../migrations/postgres/0007_access.sql"),
        ["migration.7.begun", "migration.7.applied"],
    ),
    (
        8,
        "credentials",
        include_str!("../../../migrations/postgres/0008_credentials.sql"),
        ["migration.8.begun", "migration.8.applied"],
    ),
    (
        9,
        "upstream",
        include_str!("../../../migrations/postgres/0009_upstream.sql"),
        ["migration.9.begun", "migration.9.applied"],
    ),
    (
        10,
        "pins",
        include_str!("../../../migrations/postgres/0010_pins.sql"),
        ["migration.10.begun", "migration.10.applied"],
    ),
    (
        11,
        "toolsets",
        include_str!("../../../migrations/postgres/0011_toolsets.sql"),
        ["migration.11.begun", "migration.11.applied"],
    ),
    (
        12,
        "approvals",
        include_str!("../../../migrations/postgres/0012_approvals.sql"),
        ["migration.12.begun", "migration.12.applied"],
    ),
    (
        13,
        "results",
        include_str!("../../../migrations/postgres/0013_results.sql"),
        ["migration.13.begun", "migration.13.applied"],
    ),
    (
        14,
        "root keys",
        include_str!("../../../migrations/postgres/0014_root_keys.sql"),
        ["migration.14.begun", "migration.14.applied"],
    ),
    (
        15,
        "grant errors",
        include_str!("../../../migrations/postgres/0015_grant_errors.sql"),
        ["migration.15.begun", "migration.15.applied"],
    ),
    (
        16,
        "tenant removal",
        include_str!("../../../migrations/postgres/0016_tenant_removal.sql"),
        ["migration.16.begun", "migration.16.applied"],
    ),
    (
        17,
        "secrets by end",
        include_str!("../../../migrations/postgres/0017_secrets_by_end.sql"),
        ["migration.17.begun", "migration.17.applied"],
    ),
    (
        18,
        "takeover",
        include_str!("../../../migrations/postgres/0018_takeover.sql"),
        ["migration.18.begun", "migration.18.applied"],
    ),
    (
        19,
        "tasks by tenant",
        include_str!("../../../migrations/postgres/0019_tasks_by_tenant.sql"),
        ["migration.19.begun", "migration.19.applied"],
    ),
    (
        20,
        "revocations by the server's clock",
        include_str!("../../../migrations/postgres/0020_revocations_by_the_servers_clock.sql"),
        ["migration.20.begun", "migration.20.applied"],
    ),
    (
        21,
        "registrations of backends",
        include_str!("../../../migrations/postgres/0021_registrations_of_backends.sql"),
        ["migration.21.begun", "migration.21.applied"],
    ),
    (
        22,
        "changes of a checked version",
        include_str!("../../../migrations/postgres/0022_changes_of_a_checked_version.sql"),
        ["migration.22.begun", "migration.22.applied"],
    ),
    (
        23,
        "expired tasks by index",
        include_str!("../../../migrations/postgres/0023_expired_tasks_by_index.sql"),
        ["migration.23.begun", "migration.23.applied"],
    ),
    (
        24,
        "versions by statement",
        include_str!("../../../migrations/postgres/0024_versions_by_statement.sql"),
        ["migration.24.begun", "migration.24.applied"],
    ),
    (
        25,
        "results without capacity",
        include_str!("../../../migrations/postgres/0025_results_without_capacity.sql"),
        ["migration.25.begun", "migration.25.applied"],
    ),
    (
        26,
        "inputs by bytes",
        include_str!("../../../migrations/postgres/0026_inputs_by_bytes.sql"),
        ["migration.26.begun", "migration.26.applied"],
    ),
    (
        27,
        "answers by bytes",
        include_str!("../../../migrations/postgres/0027_answers_by_bytes.sql"),
        ["migration.27.begun", "migration.27.applied"],
    ),
    (
        28,
        "versions by the clock",
        include_str!("../../../migrations/postgres/0028_versions_by_the_clock.sql"),
        ["migration.28.begun", "migration.28.applied"],
    ),
    (
        29,
        "audit times by the server's clock",
        include_str!("../../../migrations/postgres/0029_audit_times_by_the_servers_clock.sql"),
        ["migration.29.begun", "migration.29.applied"],
    ),
    (
        30,
        "replica identity of subscriptions",
        include_str!("../../../migrations/postgres/0030_replica_identity_of_subscriptions.sql"),
        ["migration.30.begun", "migration.30.applied"],
    ),
    (
        31,
        "tenants begin with nothing",
        include_str!("../../../migrations/postgres/0031_tenants_begin_with_nothing.sql"),
        ["migration.31.begun", "migration.31.applied"],
    ),
];

/// Returns the version that this build works with.
pub(super) fn latest_version() -> i64 {
    MIGRATIONS.last().map_or(0, |(version, ..)| *version)
}

/// Key of the advisory lock that a migration holds: for its connection, or for its transaction
/// through a pooler.
const MIGRATION_LOCK: i64 = 0x6d63_7062_0000_0001;
/// Other clients of a pooler get this connection to the server later, with the statements that it
/// prepared under a name.
const FORGET_STATEMENTS: &str = "DEALLOCATE ALL";

/// Brings the schema up to date. `connection` must allow waits as long as another replica's
/// migration.
pub(super) async fn apply_migrations(
    connection: &mut PgConnection,
    path: ServerPath,
    migrate: bool,
) -> Result<MigrationOutcome, StoreError> {
    match path {
        ServerPath::Direct => {
            let known = latest_version();
            if is_current(connection, migrate).await? {
                return Ok(MigrationOutcome { from: known, to: known });
            }
            run_with_lock(connection, "SELECT pg_advisory_lock($1)").await?;
            let (name, value) = TABLE_LOCK_TIMEOUT;
            run(connection, format!("SET {name} = '{value}'")).await?;
            let done = apply_missing(connection).await;
            let unlocked = run_with_lock(connection, "SELECT pg_advisory_unlock($1)").await;
            let from = done?;
            unlocked?;
            Ok(MigrationOutcome { from, to: known })
        }
        ServerPath::TransactionPooler => apply_in_transaction(connection, migrate).await,
    }
}

/// Brings the schema up to date in one transaction. All its statements reach the server over the
/// same connection.
async fn apply_in_transaction(
    connection: &mut PgConnection,
    migrate: bool,
) -> Result<MigrationOutcome, StoreError> {
    let known = latest_version();
    let mut transaction = connection.begin().await.map_err(map_error)?;
    let begin = format!("{FORGET_STATEMENTS}{}", set_local(&MIGRATION_SETTINGS));
    run(&mut transaction, begin).await?;
    let mut from = known;
    if !is_current(&mut transaction, migrate).await? {
        run_with_lock(&mut transaction, "SELECT pg_advisory_xact_lock($1)").await?;
        run(&mut transaction, set_local(&[TABLE_LOCK_TIMEOUT])).await?;
        from = apply_missing(&mut transaction).await?;
    }
    run(&mut transaction, FORGET_STATEMENTS.to_owned()).await?;
    transaction.commit().await.map_err(map_error)?;
    Ok(MigrationOutcome { from, to: known })
}

/// Runs statements without parameters, which are not prepared.
async fn run(connection: &mut PgConnection, statements: String) -> Result<(), StoreError> {
    connection.execute(raw_sql(AssertSqlSafe(statements))).await.map(drop).map_err(map_error)
}

/// Runs a statement about the lock of migrations.
async fn run_with_lock(
    connection: &mut PgConnection,
    statement: &'static str,
) -> Result<(), StoreError> {
    let about_lock = sqlx::query(statement).bind(MIGRATION_LOCK);
    about_lock.execute(connection).await.map(drop).map_err(map_error)
}

/// Returns whether the schema is that of this build. Fails for a newer one, and for an older one
/// unless it may be migrated.
async fn is_current(connection: &mut PgConnection, migrate: bool) -> Result<bool, StoreError> {
    let (known, found) = (latest_version(), found(connection).await?);
    if found > known {
        return Err(StoreError::SchemaNewer { found, known });
    }
    if found < known && !migrate {
        return Err(StoreError::SchemaOlder { found, known });
    }
    if found == known {
        check(connection).await?;
    }
    Ok(found == known)
}

/// Applies missing migrations. The caller holds the lock. Returns the version before, which another
/// replica may have raised meanwhile.
async fn apply_missing(connection: &mut PgConnection) -> Result<i64, StoreError> {
    migrate_to(connection, latest_version()).await
}

pub(super) async fn migrate_to(
    connection: &mut PgConnection,
    known: i64,
) -> Result<i64, StoreError> {
    connection.ensure_migrations_table(TABLE).await.map_err(refusal)?;
    let from = found(connection).await?;
    if from > known {
        return Err(StoreError::SchemaNewer { found: from, known });
    }
    check(connection).await?;
    for (version, name, sql, [started, applied]) in
        MIGRATIONS.iter().filter(|(version, ..)| (from + 1..=known).contains(version))
    {
        fault_point::hit(started);
        let migration = migration(*version, name, sql);
        connection.apply(TABLE, &migration).await.map_err(|error| refused(error, *version))?;
        fault_point::hit(applied);
    }
    if from < known {
        tracing::info!(from, to = known, "database schema brought up to date");
    }
    Ok(from)
}

/// Compares the applied migrations with those of this build.
async fn check(connection: &mut PgConnection) -> Result<(), StoreError> {
    let incomplete = connection.dirty_version(TABLE).await.map_err(refusal)?;
    let applied = connection.list_applied_migrations(TABLE).await.map_err(refusal)?;
    check_applied(&applied, incomplete, |wanted| {
        let (version, name, sql, _) = MIGRATIONS.iter().find(|(version, ..)| *version == wanted)?;
        Some(migration(*version, name, sql))
    })
}

/// Returns the version of the newest applied migration, by any replica.
async fn found(connection: &mut PgConnection) -> Result<i64, StoreError> {
    let table = sqlx::query("SELECT to_regclass('_sqlx_migrations') IS NOT NULL")
        .fetch_one(&mut *connection)
        .await
        .map_err(map_error)?;
    if !table.try_get::<bool, _>(0).map_err(map_error)? {
        return Ok(0);
    }
    let newest =
        sqlx::query("SELECT coalesce(max(version), 0) FROM _sqlx_migrations WHERE success");
    newest.fetch_one(connection).await.map_err(map_error)?.try_get(0).map_err(map_error)
}

fn refusal(error: MigrateError) -> StoreError {
    refused(error, 0)
}

fn refused(error: MigrateError, version: i64) -> StoreError {
    match error {
        MigrateError::Execute(error) => map_error(error),
        MigrateError::ExecuteMigration(error, _) => {
            let is_of_server = super::error_mapping::retry_action(&error)
                != super::error_mapping::RetryAction::None;
            match map_error(error) {
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
        assert_eq!(numbers, (1..=latest_version()).collect::<Vec<_>>());
    }

    #[test]
    fn every_migration_has_its_kill_points() {
        for (version, _, _, kill_points) in MIGRATIONS {
            assert_eq!(
                *kill_points,
                [format!("migration.{version}.begun"), format!("migration.{version}.applied")]
            );
        }
    }
}
