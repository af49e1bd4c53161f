//! Maps errors of SQLite to errors that an operator can act on. Only this file uses SQLite's result
//! codes.

use sqlx::error::ErrorKind;

use crate::StoreError;

// Primary result codes, https://sqlite.org/rescode.html
const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const CORRUPT: i32 = 11;
const FULL: i32 = 13;
const NOTADB: i32 = 26;

pub(super) fn map_error(error: sqlx::Error) -> StoreError {
    match &error {
        sqlx::Error::Database(fault) => {
            let detail = fault.message().to_owned();
            // The low byte of an extended code is its primary code.
            match fault.code().and_then(|code| code.parse::<i32>().ok()).map(|code| code & 0xff) {
                Some(BUSY | LOCKED) => StoreError::Busy { detail },
                Some(FULL) => StoreError::Full,
                Some(CORRUPT | NOTADB) => StoreError::Corrupt { detail },
                _ => StoreError::Unavailable { detail },
            }
        }
        sqlx::Error::PoolTimedOut => {
            StoreError::Busy { detail: "no connection became free in time".into() }
        }
        sqlx::Error::PoolClosed => StoreError::Unavailable {
            detail: "the broker closed its connections, because it is shutting down".into(),
        },
        sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::Decode(_) => StoreError::Corrupt { detail: error.to_string() },
        _ => StoreError::Unavailable { detail: error.to_string() },
    }
}

/// Returns true if the row already exists.
pub(super) fn is_duplicate(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|fault| fault.kind() == ErrorKind::UniqueViolation)
}

/// Returns true if the parent row is missing.
pub(super) fn is_orphan(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|fault| fault.kind() == ErrorKind::ForeignKeyViolation)
}
