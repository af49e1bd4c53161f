//! Reads rows into the types of the broker. The store counts and logs a row that it cannot read,
//! and skips it, so that it can still serve the other rows.

use std::sync::atomic::Ordering;

use protocol::ids::{BackendId, EndpointName, TaskId, TenantId};
use records::SessionKey;
use sqlx::{
    Decode, Row, Type,
    postgres::{PgRow, Postgres},
};

use super::{PostgresStore, error_mapping::map_error};
use crate::{StoreError, audit_rows::Column};

pub(super) fn get<'r, T: Decode<'r, Postgres> + Type<Postgres>>(
    row: &'r PgRow,
    column: &str,
) -> Result<T, StoreError> {
    row.try_get(column).map_err(map_error)
}

impl<T> Column<T> for PgRow
where
    T: for<'r> Decode<'r, Postgres> + Type<Postgres>,
{
    fn column(&self, name: &str) -> Result<T, StoreError> {
        self.try_get(name).map_err(map_error)
    }
}

pub(super) fn tenant(row: &PgRow) -> Result<TenantId, StoreError> {
    let name: &str = get(row, "tenant")?;
    TenantId::parse(name).map_err(|_| StoreError::Corrupt {
        detail: format!("a tenant has the invalid name {name:?}"),
    })
}

pub(super) fn backend(name: &str) -> Result<BackendId, StoreError> {
    BackendId::parse(name).map_err(|_| StoreError::Corrupt {
        detail: format!("a backend has the invalid name {name:?}"),
    })
}

pub(super) fn endpoint(name: &str) -> Result<EndpointName, StoreError> {
    EndpointName::parse(name).map_err(|_| StoreError::Corrupt {
        detail: format!("an endpoint has the invalid name {name:?}"),
    })
}

pub(super) fn session_key(row: &PgRow) -> Result<SessionKey, StoreError> {
    SessionKey::from_slice(row.try_get("key").map_err(map_error)?).ok_or_else(|| {
        StoreError::Corrupt { detail: "a session's key is not 32 bytes long".into() }
    })
}

pub(super) fn task_id(row: &PgRow) -> Result<TaskId, StoreError> {
    Ok(TaskId::new(get::<&str>(row, "task")?))
}

pub(super) fn task_name(row: &PgRow) -> String {
    format!("task {}", row.try_get::<&str, _>("task").unwrap_or("without an id"))
}

/// Returns whether an id of a client may be one of a row. PostgreSQL keeps no text with NUL, and
/// refuses it as a parameter.
pub(super) fn may_exist(id: &str) -> bool {
    !id.contains('\0')
}

/// Reads a text that may contain NUL and is therefore stored as bytes.
pub(super) fn text(bytes: Vec<u8>) -> Result<String, StoreError> {
    String::from_utf8(bytes)
        .map_err(|_| StoreError::Corrupt { detail: "a text is not UTF-8".into() })
}

/// Reads a count, which is never negative.
pub(super) fn count(row: &PgRow, column: &str) -> Result<u64, StoreError> {
    Ok(u64::try_from(get::<i64>(row, column)?).unwrap_or(0))
}

impl PostgresStore {
    /// Returns the readable rows. `name` names a row for the log.
    pub(super) fn readable<T>(
        &self,
        rows: &[PgRow],
        read: impl Fn(&PgRow) -> Result<T, StoreError>,
        name: impl Fn(&PgRow) -> String,
    ) -> Vec<T> {
        rows.iter().filter_map(|row| self.report(read(row), || name(row))).collect()
    }

    pub(super) fn report<T>(
        &self,
        read: Result<T, StoreError>,
        name: impl FnOnce() -> String,
    ) -> Option<T> {
        read.inspect_err(|error| {
            self.unreadable.fetch_add(1, Ordering::Relaxed);
            tracing::error!(row = name(), %error, "a row of the database cannot be read and is left out");
        })
        .ok()
    }
}
