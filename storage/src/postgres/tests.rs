//! The conformance suites over PostgreSQL, and what is particular to a server that may go away.

use std::time::Duration;

use testkit::PostgresServer;

use super::*;
use crate::{ConfigStore, DurableStore};

/// A store on a server of its own, which goes with the test.
async fn on_server() -> (PostgresServer, PostgresStore) {
    let server = PostgresServer::fast().await;
    let store = open(&server).await;
    (server, store)
}

async fn open(server: &PostgresServer) -> PostgresStore {
    PostgresStore::open(&options(server)).await.expect("the server runs")
}

fn options(server: &PostgresServer) -> PostgresOptions {
    PostgresOptions { url: server.url(), migrate: true, connect_timeout: Duration::from_secs(5) }
}

crate::store_conformance!(configuration, super::super::on_server().await);
crate::durable_conformance!(durable, super::super::on_server().await);
crate::event_conformance!(events, super::super::on_server().await);

#[tokio::test]
async fn streams_end_with_their_session() {
    let (_server, store) = on_server().await;
    crate::conformance::events::streams_end_with_their_session(&store).await.expect("the store answers");
}
