//! Tests through PgBouncer, which gives each transaction any of a few connections to the server.

use std::str::FromStr;

use sqlx::{ConnectOptions as _, Executor as _, postgres::PgConnectOptions};
use testkit::{FaultProxy, PostgresServer, eventually, servers::PgBouncer};

use super::{
    PostgresOptions, PostgresStore,
    commits::cut_anywhere,
    migrations::migrates_beside_a_long_read,
    open_session,
    outages::{nothing_works, warm},
    update,
};
use crate::{
    ConfigStore, DurableStore, MigrationOutcome,
    postgres::{rows::get, schema},
};

/// A server behind a pooler.
struct PooledServer {
    server: PostgresServer,
    pooler: PgBouncer,
}

impl PooledServer {
    async fn start() -> Self {
        Self::start_with("server_idle_timeout = 1\nserver_login_retry = 1").await
    }

    async fn start_with(settings: &str) -> Self {
        let server = PostgresServer::fast().await;
        let pooler = PgBouncer::start(&server, settings).await;
        Self { server, pooler }
    }

    fn options(&self) -> PostgresOptions {
        let url = self.pooler.url(&self.server.url());
        PostgresOptions { url, ..super::options(&self.server) }
    }

    async fn open(&self) -> PostgresStore {
        PostgresStore::open(&self.options()).await.expect("the pooler runs")
    }
}

/// Returns an empty store on a server that has other databases.
async fn fresh(pooled: &PooledServer) -> PostgresStore {
    let url = pooled.pooler.url(&super::migrated_database(&pooled.server).await);
    PostgresStore::open(&PostgresOptions { url, ..pooled.options() })
        .await
        .expect("the pooler runs")
}

crate::store_conformance!(configuration, on super::PooledServer::start().await => super::fresh);
crate::durable_conformance!(durable, on super::PooledServer::start().await => super::fresh);
crate::event_conformance!(events, on super::PooledServer::start().await => super::fresh);

/// Some of the replicas reach the server directly.
#[tokio::test]
async fn replicas_that_start_at_once_take_turns_to_migrate() {
    let pooled = PooledServer::start().await;
    let opened = (0..6).map(|number| {
        let is_direct = number % 2 == 1;
        let options = if is_direct { super::options(&pooled.server) } else { pooled.options() };
        tokio::spawn(async move { PostgresStore::open(&options).await })
    });
    let opened: Vec<_> = opened.collect();
    let mut migrated = 0;
    for store in opened {
        let store = store.await.unwrap().expect("it is up to date, by itself or by another");
        migrated += usize::from(store.migration().from == 0);
    }
    assert_eq!(migrated, 1);
    let known = schema::latest_version();
    let again = pooled.open().await;
    assert_eq!(again.migration(), MigrationOutcome { from: known, to: known });
}

#[tokio::test]
async fn r_8_running_replicas_do_not_wait_behind_a_migration_that_waits() {
    let pooled = PooledServer::start().await;
    migrates_beside_a_long_read(&pooled.server, pooled.options()).await;
}

/// Statements of one connection to the pooler reach the server over different connections, and each
/// has the settings of the store.
async fn settings_hold(pooled: &PooledServer) {
    let store = pooled.open().await;
    let mut seen = std::collections::BTreeSet::new();
    let mut holding = Vec::new();
    for _ in 0..3 {
        let rows = store.lease_rows(|_| {
            sqlx::query("SELECT pg_backend_pid() AS server, current_setting('synchronous_commit') || ' ' || current_setting('lock_timeout') || ' ' || current_setting('transaction_isolation') AS settings")
        });
        let rows = rows.await.unwrap();
        assert_eq!(get::<String>(&rows[0], "settings").unwrap(), "on 1500ms read committed");
        seen.insert(get::<i32>(&rows[0], "server").unwrap());
        // Another client takes the connection to the server that is free.
        let other = PgConnectOptions::from_str(&pooled.options().url).unwrap();
        let mut other = other.extra_float_digits(None).connect().await.unwrap();
        other.execute("BEGIN; SELECT 1").await.unwrap();
        holding.push(other);
    }
    assert!(seen.len() > 1, "the pooler gave each transaction the same connection: {seen:?}");
}

#[tokio::test]
async fn each_transaction_has_the_settings_of_the_store() {
    settings_hold(&PooledServer::start().await).await;
}

#[tokio::test]
async fn a_pooler_that_ignores_settings_is_noticed() {
    let pooled =
        "ignore_startup_parameters = options,extra_float_digits\nserver_reset_query_always = 0";
    settings_hold(&PooledServer::start_with(pooled).await).await;
}

#[tokio::test]
async fn a_batch_interrupted_anywhere_is_executed_once_and_reported_correctly() {
    let pooled = PooledServer::start().await;
    let url = pooled.options().url;
    let address = url.rsplit_once('@').unwrap().1.split_once('/').unwrap().0;
    let proxy = FaultProxy::start(address.parse().unwrap()).await;
    let through = PostgresOptions { url: super::behind(&proxy, &url), ..pooled.options() };
    let store = PostgresStore::open(&through).await.unwrap();
    cut_anywhere(&pooled.server, &proxy, &store).await;
}

/// Waits until statements of every pool succeed.
async fn works_again(store: &PostgresStore) {
    eventually("the store to work again", || async {
        store.write(&[update(1)]).await.map_err(|error| error.to_string())?;
        store.tenants().await.map_err(|error| error.to_string())
    })
    .await;
}

/// The pooler itself still accepts connections, which must not pass for answers of the server.
#[tokio::test]
async fn f_32_a_frozen_server_behind_a_pooler_is_unavailable() {
    let pooled = PooledServer::start().await;
    let store = pooled.open().await;
    warm(&store).await;
    pooled.server.freeze();
    for _ in 0..2 {
        nothing_works(&store).await;
    }
    pooled.server.thaw();
    works_again(&store).await;
}

#[tokio::test]
async fn calls_succeed_after_a_restart_of_the_pooler_or_the_server() {
    let mut pooled = PooledServer::start().await;
    let store = pooled.open().await;
    warm(&store).await;
    pooled.pooler.restart().await;
    works_again(&store).await;
    pooled.server.kill().await;
    let refused = store.write(&[open_session(2)]).await;
    assert!(refused.is_err(), "{refused:?}");
    pooled.server.start_again().await;
    works_again(&store).await;
    let sessions = crate::SessionStore::list_sessions(&store, None, None, 10).await.unwrap();
    assert_eq!(sessions.len(), 1, "nothing of what was refused was done");
}
