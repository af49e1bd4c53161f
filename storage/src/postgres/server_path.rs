//! The way of statements to the server: direct, or through a pooler of transactions such as
//! PgBouncer with `pool_mode = transaction`.
//!
//! Such a pooler gives each transaction any of its connections to the server. Settings and prepared
//! statements of a connection then belong to no client. The store therefore carries out each
//! statement in a transaction that begins with these settings, and prepares it without a name.
//! A statement costs four round trips instead of one.

use sqlx::{
    ConnectOptions as _, Executor as _, Row as _,
    postgres::{PgConnectOptions, PgConnection},
    raw_sql,
};

use super::error_mapping;

/// Settings that only a direct connection can have. A pooler has its own.
const DIRECT_ONLY: &str = "tcp_keepalives_idle";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerPath {
    Direct,
    TransactionPooler,
}

impl ServerPath {
    /// Connects, and finds out how statements reach the server. A connection whose settings are
    /// refused or have no effect goes through a pooler.
    pub(super) async fn detect(
        options: &PgConnectOptions,
        settings: &[(&'static str, &str)],
    ) -> Result<(PgConnection, Self), sqlx::Error> {
        match Self::Direct.options(options, settings).connect().await {
            Ok(mut connection) => {
                let is_direct = has_settings(&mut connection, settings).await?;
                let path = if is_direct { Self::Direct } else { Self::TransactionPooler };
                Ok((connection, path))
            }
            Err(error) if error_mapping::refuses_settings(&error) => {
                let path = Self::TransactionPooler;
                Ok((path.options(options, settings).connect().await?, path))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns options for connections with these settings, or for connections whose transactions
    /// set them.
    pub(super) fn options(
        self,
        base: &PgConnectOptions,
        settings: &[(&'static str, &str)],
    ) -> PgConnectOptions {
        match self {
            Self::Direct => base.clone().options(settings.iter().copied()),
            // PgBouncer refuses start-up parameters that it does not track.
            Self::TransactionPooler => base.clone().extra_float_digits(None),
        }
    }

    /// Returns the statements that begin a transaction with these settings. `None`: the connection
    /// has the settings, and each statement is its own transaction.
    pub(super) fn begin(self, settings: &[(&'static str, &str)]) -> Option<String> {
        (self == Self::TransactionPooler)
            .then(|| format!("BEGIN ISOLATION LEVEL READ COMMITTED{}", set_local(settings)))
    }
}

/// Returns statements that give the current transaction these settings.
pub(super) fn set_local(settings: &[(&'static str, &str)]) -> String {
    let of_transaction = settings.iter().filter(|(name, _)| *name != DIRECT_ONLY);
    of_transaction.map(|(name, value)| format!("; SET LOCAL {name} = '{value}'")).collect()
}

/// Returns whether the connection has the time limits that it was made with.
async fn has_settings(
    connection: &mut PgConnection,
    settings: &[(&'static str, &str)],
) -> Result<bool, sqlx::Error> {
    // The simple protocol prepares nothing, so a pooler answers it too.
    let query = "SELECT setting FROM pg_settings WHERE name = 'lock_timeout'";
    let row = connection.fetch_one(raw_sql(query)).await?;
    let found: String = row.try_get(0)?;
    Ok(settings.iter().any(|(name, value)| *name == "lock_timeout" && **value == *found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_begins_with_the_settings_of_its_statement() {
        let settings = [("lock_timeout", "1500"), ("tcp_keepalives_idle", "30")];
        assert_eq!(ServerPath::Direct.begin(&settings), None);
        assert_eq!(
            ServerPath::TransactionPooler.begin(&settings).unwrap(),
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '1500'"
        );
    }
}
