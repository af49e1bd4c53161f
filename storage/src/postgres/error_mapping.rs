//! Maps errors of PostgreSQL and of the network to errors that an operator can act on. Only this
//! file uses SQLSTATEs (<https://www.postgresql.org/docs/current/errcodes-appendix.html>).

use sqlx::error::ErrorKind;

use crate::StoreError;

/// Possible reaction to a failed statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryAction {
    /// The connection is lost, and the outcome of the statement is unknown.
    Reconnect,
    /// A conflict with another transaction. The statement had no effect, so it can be repeated
    /// after a pause.
    Retry,
    /// The statement was prepared before the schema changed. It can be repeated on a new
    /// connection.
    Reprepare,
    /// No reaction helps.
    None,
}

pub(super) fn retry_action(error: &sqlx::Error) -> RetryAction {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::WorkerCrashed => RetryAction::Reconnect,
        sqlx::Error::Database(fault) => match fault.code().as_deref() {
            Some("40001" | "40P01") => RetryAction::Retry,
            Some("0A000") => RetryAction::Reprepare,
            // The connection was ended by an operator, the crash of another server process, a time
            // limit of the server, or a server that starts or stops.
            Some(code) if ends_connection(code) => RetryAction::Reconnect,
            _ => RetryAction::None,
        },
        _ => RetryAction::None,
    }
}

fn ends_connection(code: &str) -> bool {
    // `idle_in_transaction_session_timeout` and `transaction_timeout`.
    code.starts_with("57P") || code.starts_with("08") || ["25P03", "25P04"].contains(&code)
}

/// Returns true if the server refuses connections now and may accept them soon. It starts or stops,
/// it is full, or the network fails for a moment.
pub(super) fn may_connect_soon(error: &sqlx::Error) -> bool {
    let is_full =
        error.as_database_error().is_some_and(|fault| fault.code().as_deref() == Some("53300"));
    is_full
        || matches!(error, sqlx::Error::Io(_))
        || matches!(error, sqlx::Error::Database(_))
            && retry_action(error) == RetryAction::Reconnect
}

/// Returns true if a pooler refused the settings of a connection.
pub(super) fn refuses_settings(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|fault| {
        fault.code().is_some_and(|code| is_refusal_of_settings(&code, fault.message()))
    })
}

/// PgBouncer names the parameter. Amazon RDS Proxy supports no command-line options, which contain
/// the settings.
fn is_refusal_of_settings(code: &str, message: &str) -> bool {
    let known = [("08P01", "startup parameter"), ("0A000", "command-line options")];
    known.iter().any(|(known, part)| *known == code && message.contains(part))
}

/// Returns true if the server refuses the user or the password.
pub(super) fn is_login_refused(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|fault| fault.code());
    matches!(code.as_deref(), Some("28P01" | "28000"))
}

/// SQLSTATE of a write at a server that accepts none.
const READ_ONLY: &str = "25006";

/// Returns true if the server accepts no writes, such as the old primary after a failover. The name
/// in the URL may lead to another server by now.
pub(super) fn is_read_only(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|fault| fault.code().as_deref() == Some(READ_ONLY))
}

/// Returns whether the connection may serve the next statement.
pub(super) fn keeps_connection_usable(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(_) => {
            !is_read_only(error)
                && retry_action(error) != RetryAction::Reconnect
                && retry_action(error) != RetryAction::Reprepare
        }
        sqlx::Error::RowNotFound
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::ColumnDecode { .. } => true,
        _ => false,
    }
}

pub(super) fn map_error(error: sqlx::Error) -> StoreError {
    match &error {
        sqlx::Error::Database(fault) => {
            let detail = fault.message().to_owned();
            match fault.code().as_deref() {
                Some(OUTDATED) => StoreError::Outdated,
                Some("53100") => StoreError::Full,
                // Timeouts of locks, statements and transactions, serialization failures, no free
                // connection, out of memory.
                Some(
                    "55P03" | "57014" | "25P03" | "25P04" | "40001" | "40P01" | "53300" | "53200",
                ) => StoreError::Busy { detail },
                // Damaged data, or a damaged index.
                Some("XX001" | "XX002") => StoreError::Corrupt { detail },
                Some(code) if is_outage(code) => StoreError::Unavailable { detail },
                // A statement that fails alone does not stop other statements.
                _ => StoreError::Refused { detail },
            }
        }
        sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::Decode(_) => StoreError::Corrupt { detail: error.to_string() },
        _ => StoreError::Unavailable { detail: error.to_string() },
    }
}

/// Returns true if the server would refuse every statement. The connection, the server's resources
/// or its system failed, an operator ended it, or it accepts no writes.
fn is_outage(code: &str) -> bool {
    ["08", "53", "57P", "58"].iter().any(|class| code.starts_with(class)) || code == READ_ONLY
}

/// Maps the error of a connect. Without a connection, every reason means that the database is
/// unavailable, even a wrong password.
pub(super) fn map_connect_error(error: sqlx::Error) -> StoreError {
    match map_error(error) {
        StoreError::Refused { detail } => StoreError::Unavailable { detail },
        known => known,
    }
}

/// SQLSTATE with which `check_change` refuses a change that was checked at an earlier version.
const OUTDATED: &str = "MB001";
/// SQLSTATE with which `check_change` refuses to repeat a change that was made.
const ALREADY_MADE: &str = "MB002";

/// Returns true if an earlier attempt has made the change.
pub(super) fn is_change_made(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|fault| fault.code().as_deref() == Some(ALREADY_MADE))
}

/// Returns true if the row already exists.
pub(super) fn is_duplicate(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|fault| fault.kind() == ErrorKind::UniqueViolation)
}

/// Returns true if the parent row is missing.
pub(super) fn is_orphan(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|fault| fault.kind() == ErrorKind::ForeignKeyViolation)
}

#[cfg(test)]
mod tests {
    use std::{borrow::Cow, error::Error, fmt};

    use sqlx::error::DatabaseError;

    use super::*;

    /// An error of the server with this SQLSTATE.
    #[derive(Debug)]
    struct ServerError(&'static str);

    impl fmt::Display for ServerError {
        fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            out.write_str(self.message())
        }
    }

    impl Error for ServerError {}

    impl DatabaseError for ServerError {
        fn message(&self) -> &str {
            "terminating connection"
        }

        fn code(&self) -> Option<Cow<'_, str>> {
            Some(self.0.into())
        }

        fn as_error(&self) -> &(dyn Error + Send + Sync + 'static) {
            self
        }

        fn as_error_mut(&mut self) -> &mut (dyn Error + Send + Sync + 'static) {
            self
        }

        fn into_error(self: Box<Self>) -> Box<dyn Error + Send + Sync + 'static> {
            self
        }

        fn kind(&self) -> ErrorKind {
            ErrorKind::Other
        }
    }

    #[test]
    fn a_time_limit_of_the_server_ends_the_connection_and_not_the_store() {
        for code in ["25P03", "25P04", "57P05"] {
            let error = || sqlx::Error::Database(Box::new(ServerError(code)));
            assert_eq!(retry_action(&error()), RetryAction::Reconnect, "{code}");
            assert!(!keeps_connection_usable(&error()), "{code}");
            let mapped = map_error(error());
            assert!(!matches!(mapped, StoreError::Refused { .. }), "{code}: {mapped:?}");
        }
        assert!(keeps_connection_usable(&sqlx::Error::Database(Box::new(ServerError("57014")))));
    }

    #[test]
    fn refusals_of_settings_are_told_from_other_errors() {
        for (code, message, expected) in [
            ("08P01", "unsupported startup parameter: options", true),
            ("08P01", "unsupported startup parameter in options: lock_timeout", true),
            (
                "0A000",
                "Feature not supported: RDS Proxy currently doesn\u{2019}t support command-line options.",
                true,
            ),
            ("08P01", "no more connections allowed (max_client_conn)", false),
            ("0A000", "cached plan must not change result type", false),
            ("28P01", "password authentication failed for user \"command-line options\"", false),
        ] {
            assert_eq!(is_refusal_of_settings(code, message), expected, "{message}");
        }
    }
}
