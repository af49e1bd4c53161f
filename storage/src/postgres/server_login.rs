//! How to log in to the server. Passwords change while the broker runs, and tokens in place of
//! passwords expire within minutes. Each new connection therefore uses the login that the file with
//! the URL has by then, or the password file of PostgreSQL. Open connections stay.
//!
//! The file may change before the server does. If the server refuses the changed login, new
//! connections use the last login that it accepted.
//!
//! Invariant: only the login changes. A file with another server or database has no effect before
//! the next start.

use std::{path::PathBuf, str::FromStr as _, sync::Arc};

use parking_lot::Mutex;
use sqlx::{ConnectOptions as _, postgres::PgConnectOptions};

use super::{PostgresOptions, url::check_postgres_url};
use crate::{StoreError, url_login};

pub(super) struct ServerLogin {
    /// `None`: no file holds the URL.
    file: Option<PathBuf>,
    in_force: Mutex<DatabaseLogin>,
    /// The last login that the server accepted.
    accepted: Mutex<Option<DatabaseLogin>>,
}

/// A login as the file had it at one time.
#[derive(Clone)]
pub(super) struct DatabaseLogin {
    url: String,
    pub(super) options: PgConnectOptions,
}

impl ServerLogin {
    pub(super) fn new(options: &PostgresOptions) -> Result<Arc<Self>, StoreError> {
        // The parser's error may quote parts of the URL, and so the password.
        let parsed = parsed(&options.url).ok_or_else(|| StoreError::Unavailable {
            detail: "storage.url is not a PostgreSQL URL this build understands".into(),
        })?;
        let in_force = DatabaseLogin { url: options.url.clone(), options: parsed };
        Ok(Arc::new(Self {
            file: options.url_file.clone(),
            in_force: Mutex::new(in_force),
            accepted: Mutex::default(),
        }))
    }

    /// Returns how to connect now.
    pub(super) async fn options(self: &Arc<Self>) -> PgConnectOptions {
        self.current().await.options
    }

    /// Returns the login of the file, or the last one that it had.
    pub(super) async fn current(self: &Arc<Self>) -> DatabaseLogin {
        if self.may_change() {
            let login = Arc::clone(self);
            // The files may be slow. After a panic the known login stays.
            let _read = tokio::task::spawn_blocking(move || login.read_again()).await;
        }
        self.in_force.lock().clone()
    }

    pub(super) fn record_accepted(&self, login: DatabaseLogin) {
        *self.accepted.lock() = Some(login);
    }

    /// Returns the last login that the server accepted, if it may differ from a refused one. A
    /// password file may have another password for the same URL by now.
    pub(super) fn accepted_before(&self, refused: &DatabaseLogin) -> Option<DatabaseLogin> {
        let accepted = self.accepted.lock().clone();
        accepted.filter(|accepted| accepted.url != refused.url || !has_password(&refused.url))
    }

    fn may_change(&self) -> bool {
        self.file.is_some() || !has_password(&self.in_force.lock().url)
    }

    /// Reads the login again. The last one stays if the file has none for this database.
    fn read_again(&self) {
        let known = self.in_force.lock().url.clone();
        let changed = self.file.as_deref().and_then(|file| url_login::changed_url(file, &known));
        let url = match changed.filter(|url| check_postgres_url(url).is_ok()) {
            Some(url) => {
                tracing::info!("new connections to PostgreSQL use the changed login");
                url
            }
            None => known,
        };
        // The driver reads the password file.
        if let Some(options) = parsed(&url) {
            *self.in_force.lock() = DatabaseLogin { url, options };
        }
    }
}

fn parsed(url: &str) -> Option<PgConnectOptions> {
    let options = PgConnectOptions::from_str(url).ok()?;
    // Errors are logged where they are handled.
    Some(options.application_name("mcp-broker").disable_statement_logging())
}

fn has_password(url: &str) -> bool {
    let (_, login, rest) = url_login::parts(url);
    let query = rest.split_once('?').map_or("", |(_, query)| query);
    login.contains(':') || query.split('&').any(|pair| pair.starts_with("password="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_a_password_reads_the_password_file() {
        for (url, expected) in [
            ("postgres://ada:one@db/x", true),
            ("postgres://ada@db/x?password=one", true),
            ("postgres://ada@db:5432/x?application_name=a:b", false),
            ("postgres:///x?host=/run/postgresql", false),
        ] {
            assert_eq!(has_password(url), expected, "{url}");
        }
    }

    #[test]
    fn the_accepted_login_is_tried_again_only_if_it_may_differ() {
        let login =
            |url: &str| DatabaseLogin { url: url.to_owned(), options: parsed(url).unwrap() };
        let options = PostgresOptions {
            url: "postgres://ada:old@db/x".to_owned(),
            url_file: None,
            migrate: false,
            connect_timeout: std::time::Duration::ZERO,
        };
        let logins = ServerLogin::new(&options).unwrap();
        assert!(logins.accepted_before(&login("postgres://ada:new@db/x")).is_none());
        logins.record_accepted(login(&options.url));
        let earlier = logins.accepted_before(&login("postgres://ada:new@db/x")).unwrap();
        assert_eq!(earlier.url, options.url);
        assert!(logins.accepted_before(&login(&options.url)).is_none(), "it was just refused");
        logins.record_accepted(login("postgres://ada@db/x"));
        let same = logins.accepted_before(&login("postgres://ada@db/x"));
        assert!(same.is_some(), "its password file may have changed");
    }

    #[tokio::test]
    async fn a_file_changes_the_user_but_not_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("url");
        let options = PostgresOptions {
            url: "postgres://first:1@db/x".to_owned(),
            url_file: Some(file.clone()),
            migrate: false,
            connect_timeout: std::time::Duration::ZERO,
        };
        let login = ServerLogin::new(&options).unwrap();
        for (text, user) in [
            (None, "first"),
            (Some("postgres://second:2@db/x\n"), "second"),
            (Some("postgres://third:3@other/x"), "second"),
            (Some("postgres://third:3@d"), "second"),
            (Some("postgres://third:3@db/x"), "third"),
        ] {
            if let Some(text) = text {
                std::fs::write(&file, text).unwrap();
            }
            let options = login.options().await;
            assert_eq!((options.get_username(), options.get_host()), (user, "db"), "{text:?}");
        }
    }
}
