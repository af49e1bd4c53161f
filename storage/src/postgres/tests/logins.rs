//! Tests of logins that change while the store is open.

use testkit::PostgresServer;

use super::{PostgresOptions, PostgresStore, get, on_server, open_session, options, update};
use crate::{ConfigStore, DurableStore, StoreError};

/// Ends the connections of a role, which can then not log in again.
async fn revoke(server: &PostgresServer, role: &str) {
    let login = format!("ALTER ROLE {role} NOLOGIN");
    server.sql(&server.url(), &login).await;
    end_connections(server, role).await;
}

async fn end_connections(server: &PostgresServer, role: &str) {
    let end = format!(
        "SELECT count(pg_terminate_backend(pid)) > 0 FROM pg_stat_activity WHERE usename = '{role}'"
    );
    assert_eq!(server.sql(&server.url(), &end).await, "t");
}

async fn user(store: &PostgresStore) -> Result<String, StoreError> {
    let rows = store.rows(|_| sqlx::query("SELECT current_user::text AS name")).await?;
    get(&rows[0], "name")
}

/// Returns a server with an empty store, on which this role may log in.
async fn server_with(role: &str) -> PostgresServer {
    let (server, store) = on_server().await;
    store.close().await;
    server.sql(&server.url(), &format!("CREATE ROLE {role} LOGIN SUPERUSER")).await;
    server
}

fn url_of(server: &PostgresServer, role: &str) -> String {
    server.url().replace("//postgres@", &format!("//{role}@"))
}

#[tokio::test]
async fn an_old_connection_is_replaced_only_if_the_server_accepts_another_one() {
    let server = server_with("first").await;
    let through = PostgresOptions { url: url_of(&server, "first"), ..options(&server) };
    let store = PostgresStore::open(&through).await.expect("the server runs");
    let process = async || {
        let rows = store.rows(|_| sqlx::query("SELECT pg_backend_pid() AS process")).await;
        get::<i32>(&rows.unwrap()[0], "process").unwrap()
    };
    let first = process().await;
    server.sql(&server.url(), "ALTER ROLE first NOLOGIN").await;
    store.pool.make_old();
    assert_eq!(process().await, first, "the old one still works");
    server.sql(&server.url(), "ALTER ROLE first LOGIN").await;
    // A slow machine may need longer for a connection than a call waits.
    testkit::eventually("another connection", async || {
        store.pool.make_old();
        let now = process().await;
        if now == first { Err(now) } else { Ok(()) }
    })
    .await;
}

#[tokio::test]
async fn new_connections_use_the_login_that_the_file_has_by_then() {
    let server = server_with("first").await;
    server.sql(&server.url(), "CREATE ROLE second LOGIN SUPERUSER").await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("database-url");
    std::fs::write(&file, url_of(&server, "first")).unwrap();
    let (url, url_file) = (url_of(&server, "first"), Some(file.clone()));
    let from_file = PostgresOptions { url, url_file, ..options(&server) };
    let store = PostgresStore::open(&from_file).await.expect("the server runs");
    store.write(&[open_session(1)]).await.unwrap();
    assert_eq!(user(&store).await.unwrap(), "first");

    std::fs::write(&file, format!("{}\n", url_of(&server, "second"))).unwrap();
    revoke(&server, "first").await;
    testkit::eventually("the other login", async || {
        store.write(&[update(1)]).await.unwrap();
        let name = user(&store).await;
        if name.as_deref() == Ok("second") { Ok(()) } else { Err(name) }
    })
    .await;

    // The file may change before the server.
    std::fs::write(&file, url_of(&server, "later")).unwrap();
    end_connections(&server, "second").await;
    testkit::eventually("the login that the server still accepts", async || {
        let name = user(&store).await;
        if name.as_deref() == Ok("second") { Ok(()) } else { Err(name) }
    })
    .await;
    server.sql(&server.url(), "CREATE ROLE later LOGIN SUPERUSER").await;
    end_connections(&server, "second").await;
    testkit::eventually("the login of the file", async || {
        let name = user(&store).await;
        if name.as_deref() == Ok("later") { Ok(()) } else { Err(name) }
    })
    .await;

    // Another database needs a restart.
    std::fs::write(&file, format!("{}_", server.url())).unwrap();
    revoke(&server, "later").await;
    testkit::eventually("the refusal of the last login", async || match user(&store).await {
        Err(StoreError::Unavailable { .. }) => Ok(()),
        other => Err(other),
    })
    .await;
}
