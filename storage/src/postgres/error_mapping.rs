//! From what PostgreSQL and the way to it report to what an operator can act on. The only place that knows SQLSTATEs
//! (<https://www.postgresql.org/docs/current/errcodes-appendix.html>).

use sqlx::error::ErrorKind;

use crate::StoreError;

/// What may be done about a failed statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryAction {
    /// The connection is gone, and whether the statement was carried out is not known.
    Reconnect,
    /// Another transaction was in the way and this one left no trace: the same again, after a moment.
    Retry,
    /// A statement prepared before the schema changed: the same again, on a new connection.
    Reprepare,
    /// Nothing here.
    None,
}

pub(super) fn remedy(error: &sqlx::Error) -> RetryAction {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::WorkerCrashed => RetryAction::Reconnect,
        sqlx::Error::Database(fault) => match fault.code().as_deref() {
            Some("40001" | "40P01") => RetryAction::Retry,
            Some("0A000") => RetryAction::Reprepare,
            // Ended by an operator, a crash of a neighbour, or a server that starts or stops.
            Some(code) if code.starts_with("57P") || code.starts_with("08") => {
                RetryAction::Reconnect
            }
            _ => RetryAction::None,
        },
        _ => RetryAction::None,
    }
}

/// A server that takes no connection now and may take one soon: it starts, it ends, it has no room, the network hiccups.
pub(super) fn may_connect_soon(error: &sqlx::Error) -> bool {
    let has_no_room =
        error.as_database_error().is_some_and(|fault| fault.code().as_deref() == Some("53300"));
    has_no_room
        || matches!(error, sqlx::Error::Io(_))
        || matches!(error, sqlx::Error::Database(_)) && remedy(error) == RetryAction::Reconnect
}

/// The connection may serve the next statement.
pub(super) fn leaves_connection_usable(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(_) => {
            remedy(error) != RetryAction::Reconnect && remedy(error) != RetryAction::Reprepare
        }
        sqlx::Error::RowNotFound
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::ColumnDecode { .. } => true,
        _ => false,
    }
}

pub(super) fn explain(error: sqlx::Error) -> StoreError {
    match &error {
        sqlx::Error::Database(fault) => {
            let detail = fault.message().to_owned();
            match fault.code().as_deref() {
                Some("53100") => StoreError::Full,
                // Locks and statements that took too long; serialization; no room for a connection; out of memory.
                Some("55P03" | "57014" | "40001" | "40P01" | "53300" | "53200") => {
                    StoreError::Busy { detail }
                }
                // Damaged data or index; a row that breaks what the schema promises.
                Some("XX001" | "XX002") => StoreError::Corrupt { detail },
                Some(code) if is_outage(code) => StoreError::Unavailable { detail },
                // A statement that cannot be carried out keeps nobody from carrying out others.
                _ => StoreError::Refused { detail },
            }
        }
        sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::Decode(_) => StoreError::Corrupt { detail: error.to_string() },
        _ => StoreError::Unavailable { detail: error.to_string() },
    }
}

/// No statement of ours would be carried out: the connection, the server's resources or its system are in trouble, an operator
/// ended it, or it takes no writes.
fn is_outage(code: &str) -> bool {
    ["08", "53", "57P", "58"].iter().any(|class| code.starts_with(class)) || code == "25006"
}

/// Nothing can be asked, whatever the reason: even one like a wrong password.
pub(super) fn explain_connecting(error: sqlx::Error) -> StoreError {
    match explain(error) {
        StoreError::Refused { detail } => StoreError::Unavailable { detail },
        known => known,
    }
}

/// The row is there already.
pub(super) fn is_duplicate(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|fault| fault.kind() == ErrorKind::UniqueViolation)
}

/// The row it belongs to is missing.
pub(super) fn is_orphan(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|fault| fault.kind() == ErrorKind::ForeignKeyViolation)
}
