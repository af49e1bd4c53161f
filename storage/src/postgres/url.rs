//! The URL of a PostgreSQL database, checked before anything connects.

use std::str::FromStr;

use protocol::form::form_decoded;
use sqlx::postgres::PgConnectOptions;

/// Parameters of a URL that the driver reads. It ignores all others, and a misspelt `sslmode` would
/// leave the server unverified.
const PARAMETERS: [&str; 17] = [
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
];

const SSL_MODES: [&str; 6] = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"];

/// Checks a `postgres:` URL. The error says what is wrong, and contains no value of the URL, because
/// the URL holds a password.
pub fn check_postgres_url(url: &str) -> Result<(), String> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    for (name, value) in
        query.split('&').filter_map(|pair| pair.split_once('=').or(Some((pair, ""))))
    {
        if matches!(name, "sslmode" | "ssl-mode") && !SSL_MODES.contains(&value) {
            return Err(format!("has an unknown {name}, known are {}", SSL_MODES.join(", ")));
        }
        let is_known = name.is_empty()
            || name == "options"
            || name.starts_with("options[")
            || PARAMETERS.contains(&name);
        if !is_known {
            return Err(format!(
                "has the unknown parameter {}, known are {}",
                name.escape_debug(),
                PARAMETERS.join(", ")
            ));
        }
        // The driver decodes less strictly, so it could read another value than the broker.
        if form_decoded(name).is_none() || form_decoded(value).is_none() {
            return Err(format!(
                "has a value of {} that is not form-encoded, allowed are UTF-8 and %XX for a byte",
                name.escape_debug()
            ));
        }
    }
    PgConnectOptions::from_str(url).map(drop).map_err(|_| {
        "is not a postgres: URL (postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full)"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_of_the_driver_is_accepted() {
        for url in [
            "postgres://b@127.0.0.1:5432/x",
            "postgresql://b:p%40ss@[::1]/x?",
            "postgres://b@db/x?sslmode=verify-full&sslrootcert=/ca.crt&application_name=broker",
            "postgres://b@db/x?options=-c%20a%3Db&options[statement_timeout]=5",
            "postgres:///x?host=/run/postgresql&port=5433",
        ] {
            check_postgres_url(url).unwrap_or_else(|fault| panic!("{url}: {fault}"));
        }
        for mode in SSL_MODES {
            check_postgres_url(&format!("postgres://b@db/x?sslmode={mode}")).unwrap();
        }
    }

    #[test]
    fn a_fault_names_its_part_and_no_value() {
        for (url, expected) in [
            ("postgres://b:hunter2@db/x?sslmode=verify_all", "has an unknown sslmode"),
            ("postgres://b:hunter2@db/x?ssl-mode=", "has an unknown ssl-mode"),
            ("postgres://b:hunter2@db/x?sslmod=hunter2", "has the unknown parameter sslmod,"),
            ("postgres://b:hunter2@db/x?sslkey=hunter2%.key", "has a value of sslkey that is not"),
            ("postgres://b:hunter2@db/x?user=hunter2%FF", "has a value of user that is not"),
            ("postgres://b:hunter2@db:port/x", "is not a postgres: URL"),
            ("postgres://b:hunter2@db/x?port=hunter2", "is not a postgres: URL"),
            ("postgres://b:hunter2@db/x?hostaddr=hunter2", "is not a postgres: URL"),
        ] {
            let fault = check_postgres_url(url).unwrap_err();
            assert!(fault.starts_with(expected), "{url}: {fault}");
            assert!(!fault.contains("hunter2") && !fault.contains("verify_all"), "{fault}");
        }
    }
}
