//! Tests of servers that prove their identity, or fail to.

use testkit::{Authority, PostgresServer, authority::CertificateFiles};

use super::{PostgresStore, StoreError, options};
use crate::{ConfigStore, postgres::PostgresOptions};

/// Opens the store with these URL parameters.
async fn open(server: &PostgresServer, parameters: &str) -> Result<PostgresStore, StoreError> {
    let url = server.url();
    let url = format!("{url}{}{parameters}", if url.contains('?') { '&' } else { '?' });
    PostgresStore::open(&PostgresOptions { url, ..options(server) }).await
}

async fn assert_refused(server: &PostgresServer, parameters: &str) {
    match open(server, parameters).await {
        Err(StoreError::Unavailable { detail }) => {
            assert!(!detail.contains("postgres://"), "{detail}")
        }
        other => panic!("{parameters}: {other:?}"),
    }
}

/// Returns the URL parameters of a mode with this authority.
fn verified(mode: &str, authority: &Authority) -> String {
    format!("sslmode={mode}&sslrootcert={}", authority.ca().display())
}

#[tokio::test]
async fn s16_verify_full_refuses_another_authority_and_another_name() {
    let (authority, other) = (Authority::new(), Authority::new());
    let right: CertificateFiles = authority.server("right");
    let server = PostgresServer::with_tls(&right).await;
    let store =
        open(&server, &verified("verify-full", &authority)).await.expect("it is who it says");
    store.tenants().await.expect("statements go over it");
    assert_refused(&server, &verified("verify-full", &other)).await;
    assert_refused(&server, &verified("verify-ca", &other)).await;
    assert_refused(&server, "sslmode=verify-full").await;

    let server =
        PostgresServer::with_tls(&authority.server_called("wrong", "elsewhere.example")).await;
    assert_refused(&server, &verified("verify-full", &authority)).await;
    open(&server, &verified("verify-ca", &authority)).await.expect("verify-ca asks for no name");
}

#[tokio::test]
async fn s16_verify_full_refuses_a_server_without_tls_and_the_default_does_not() {
    let (server, authority) = (PostgresServer::fast().await, Authority::new());
    assert_refused(&server, &verified("verify-full", &authority)).await;
    open(&server, "application_name=x").await.expect("without a word no mode is asked for");
}
