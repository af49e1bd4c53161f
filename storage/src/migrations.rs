//! What the databases share about migrations. sqlx records the applied ones in a table.

use sqlx::{
    SqlSafeStr,
    migrate::{AppliedMigration, Migration, MigrationType},
};

use crate::StoreError;

/// Table of the applied migrations.
pub(crate) const TABLE: &str = "_sqlx_migrations";

pub(crate) fn migration(version: i64, name: &'static str, sql: &'static str) -> Migration {
    Migration::new(version, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
}

/// Compares the applied migrations with those of this build, which `own` returns. All up to the
/// newest are applied, complete and unchanged.
pub(crate) fn check_applied(
    applied: &[AppliedMigration],
    incomplete: Option<i64>,
    own: impl Fn(i64) -> Option<Migration>,
) -> Result<(), StoreError> {
    let absent = (1..)
        .zip(applied)
        .find_map(|(version, applied)| (applied.version != version).then_some(version));
    if let Some(version) = incomplete.or(absent) {
        return Err(StoreError::Corrupt {
            detail: format!("its migration {version} is absent or incomplete"),
        });
    }
    let is_changed = |applied: &&AppliedMigration| {
        own(applied.version).is_none_or(|own| own.checksum != applied.checksum)
    };
    match applied.iter().find(is_changed) {
        Some(changed) => Err(StoreError::Corrupt {
            detail: format!("its migration {} differs from that of this build", changed.version),
        }),
        None => Ok(()),
    }
}
