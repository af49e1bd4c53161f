//! Checks whether a connection to PostgreSQL verifies the server. Called once, when the store is
//! opened.

use std::net::IpAddr;

use sqlx::postgres::{PgConnectOptions, PgSslMode};

/// Returns the mode of a connection that leaves this machine and does not verify the server.
/// Returns `None` if no warning is due.
pub(super) fn unverified(options: &PgConnectOptions) -> Option<&'static str> {
    let mode = match options.get_ssl_mode() {
        PgSslMode::VerifyFull | PgSslMode::VerifyCa => return None,
        PgSslMode::Disable => "disable",
        PgSslMode::Allow => "allow",
        PgSslMode::Prefer => "prefer",
        PgSslMode::Require => "require",
    };
    let stays_here = options.get_socket().is_some() || is_loopback(options.get_host());
    (!stays_here).then_some(mode)
}

/// Logs a warning that names the setting to change.
pub(super) fn warn_if_unverified(options: &PgConnectOptions) {
    if let Some(sslmode) = unverified(options) {
        tracing::warn!(
            sslmode,
            "the broker does not verify the PostgreSQL server: add sslmode=verify-full to storage.url, and sslrootcert=FILE where a private authority signed its certificate"
        );
    }
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let address = host.parse::<IpAddr>().map(|address| address.to_canonical().is_loopback());
    host.starts_with('/') || host.eq_ignore_ascii_case("localhost") || address.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s16_only_unverified_connections_to_other_hosts_are_reported() {
        let mode = |url: &str| unverified(&url.parse().unwrap());
        for url in [
            "postgres://u:p@localhost/d",
            "postgres://u:p@127.0.0.1:5433/d?sslmode=disable",
            "postgres://u:p@[::1]/d",
            "postgres:///d?host=/run/postgresql",
            "postgres://u:p@db.example/d?sslmode=verify-full",
            "postgres://u:p@db.example/d?sslmode=verify-ca&sslrootcert=/ca.crt",
        ] {
            assert_eq!(mode(url), None, "{url}");
        }
        for (url, expected) in [
            ("postgres://u:p@db.example/d", "prefer"),
            ("postgres://u:p@10.0.0.1/d?sslmode=require", "require"),
            ("postgres://u:p@localhost.example/d?sslmode=disable", "disable"),
            ("postgres://u:p@[2001:db8::1]/d?sslmode=allow", "allow"),
        ] {
            assert_eq!(mode(url), Some(expected), "{url}");
        }
    }
}
