//! The conformance suites over PostgreSQL, and tests of a server that may go away.

mod claims;
mod commits;
mod expiry;
mod logins;
mod migrations;
mod outages;
mod pooler;
mod rows;
mod tls;

use std::time::Duration;

use protocol::ids::{BackendId, PrincipalId, TaskId, TenantId};
use records::{
    AdminChange, AuditKind, AuditRecord, NodeName, SessionIdentity, SessionKey, SessionRecord,
    TaskLimits, TaskRecord, TaskStatus, TenantRecord, WriteOp,
};
use testkit::{FaultProxy, PostgresServer};

use super::{PostgresOptions, PostgresStore, rows::get};
use crate::{ConfigStore, DurableStore, SessionStore, StoreError};

/// Longest time of any call, in every fault.
const AT_MOST: Duration = Duration::from_secs(3);
/// Time after the server's return within which calls succeed again.
const RECOVERS_WITHIN: Duration = Duration::from_secs(1);

/// Returns a store on its own server, which ends with the test.
async fn on_server() -> (PostgresServer, PostgresStore) {
    let server = PostgresServer::fast().await;
    let store = open(&server).await;
    (server, store)
}

/// Returns a store on its own server, behind a proxy that can fail.
async fn behind_proxy() -> (PostgresServer, FaultProxy, PostgresStore) {
    let server = PostgresServer::fast().await;
    let proxy = FaultProxy::start(([127, 0, 0, 1], server.port()).into()).await;
    let through = PostgresOptions { url: behind(&proxy, &server.url()), ..options(&server) };
    let store = PostgresStore::open(&through).await.expect("the server runs");
    (server, proxy, store)
}

async fn open(server: &PostgresServer) -> PostgresStore {
    PostgresStore::open(&options(server)).await.expect("the server runs")
}

fn options(server: &PostgresServer) -> PostgresOptions {
    PostgresOptions {
        url: server.url(),
        url_file: None,
        migrate: true,
        connect_timeout: Duration::from_secs(5),
    }
}

/// Returns an empty store on a server that has other databases. Its tables are copied, because
/// creating them takes longer.
async fn fresh(server: &PostgresServer) -> PostgresStore {
    let url = migrated_database(server).await;
    PostgresStore::open(&PostgresOptions { url, ..options(server) }).await.expect("the server runs")
}

/// Returns the URL of a new database with empty tables.
async fn migrated_database(server: &PostgresServer) -> String {
    let migrate = async |url| {
        let store = PostgresStore::open(&PostgresOptions { url, ..options(server) }).await;
        store.expect("the server runs").close().await;
    };
    server.copied_database(migrate).await
}

crate::store_conformance!(configuration, on testkit::PostgresServer::fast().await => super::fresh);
crate::durable_conformance!(durable, on testkit::PostgresServer::fast().await => super::fresh);
crate::event_conformance!(events, on testkit::PostgresServer::fast().await => super::fresh);

#[tokio::test]
async fn streams_end_with_their_session() {
    let (_server, store) = on_server().await;
    crate::conformance::events::streams_end_with_their_session(&store)
        .await
        .expect("the store answers");
}

#[tokio::test]
async fn records_survive_a_restart_and_a_crash() {
    let mut server = PostgresServer::start().await;
    let store = open(&server).await;
    crate::conformance::fill(&store).await.unwrap();
    store.write(&[open_session(1)]).await.unwrap();
    let before = (
        store.tenants().await.unwrap(),
        store.keys().await.unwrap(),
        store.backends().await.unwrap(),
    );
    assert!(!before.0.is_empty() && !before.1.is_empty() && !before.2.is_empty());
    store.close().await;
    server.kill().await;
    server.start_again().await;
    let store = open(&server).await;
    assert_eq!(store.migration().from, store.migration().to, "nothing left to migrate");
    assert_eq!(
        before,
        (
            store.tenants().await.unwrap(),
            store.keys().await.unwrap(),
            store.backends().await.unwrap()
        )
    );
    assert_eq!(store.list_sessions(None, None, 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn settings_reach_the_disk_before_a_write_returns() {
    let (_server, store) = on_server().await;
    let rows = store.rows(|_| sqlx::query("SELECT current_setting('synchronous_commit') || ' ' || current_setting('lock_timeout') || ' ' || current_setting('transaction_isolation') AS all"));
    assert_eq!(get::<String>(&rows.await.unwrap()[0], "all").unwrap(), "on 1500ms read committed");
}

/// Returns the URL of the same database through the proxy.
fn behind(proxy: &FaultProxy, url: &str) -> String {
    let (_, database) = url.rsplit_once('/').unwrap();
    format!("postgres://postgres@{}/{database}", proxy.address())
}

fn key(number: u8) -> SessionKey {
    SessionKey::new([number; records::SESSION_KEY_BYTES])
}

fn identity() -> SessionIdentity {
    SessionIdentity {
        tenant: TenantId::parse("acme").unwrap(),
        principal: PrincipalId::new("ada"),
        endpoint: None,
    }
}

fn open_session(number: u8) -> WriteOp {
    let record = SessionRecord {
        key: key(number),
        identity: identity(),
        api_key: None,
        transport: "streamable_http".into(),
        version: "2025-11-25".into(),
        agreement: vec![1],
        state: vec![2],
        links: vec![3],
    };
    WriteOp::OpenSession { record: Box::new(record), owner: NodeName::new("a") }
}

fn update(number: u8) -> WriteOp {
    WriteOp::UpdateSession {
        key: key(number),
        epoch: 1,
        idle: Duration::ZERO,
        state: Some(vec![4]),
        links: None,
    }
}

fn create(number: u8) -> WriteOp {
    let record = TaskRecord {
        task: TaskId::new(format!("t{number}")),
        tenant: TenantId::parse("acme").unwrap(),
        principal: PrincipalId::new("ada"),
        session: key(1),
        private: false,
        backend: BackendId::parse("one").unwrap(),
        request: b"call".to_vec(),
        details: b"".to_vec(),
        idempotency: Some(vec![number]),
        ttl: None,
    };
    let limits = TaskLimits { running: 1_000, stored: 1_000, bytes: 1 << 40 };
    WriteOp::CreateTask { record: Box::new(record), owner: NodeName::new("a"), limits }
}

fn end(number: u8) -> WriteOp {
    end_as(number, Some(1), TaskStatus::Completed)
}

fn end_as(number: u8, epoch: Option<i64>, status: TaskStatus) -> WriteOp {
    WriteOp::EndTask {
        task: TaskId::new(format!("t{number}")),
        epoch,
        status,
        message: None,
        outcome: Some(b"how it ended".to_vec()),
    }
}

#[tokio::test]
async fn a_change_that_cannot_be_recorded_is_not_made() {
    let (_server, store) = on_server().await;
    // PostgreSQL refuses a text with a NUL.
    let record = AuditRecord {
        id: [1; 16],
        at_us: 1,
        kind: AuditKind::Admin,
        tenant: Some("a\0b".into()),
        body: "{}".into(),
    };
    let acme = TenantRecord {
        tenant: TenantId::parse("acme").unwrap(),
        settings: "{}".into(),
        created_at_us: 1,
        updated_at_us: 1,
    };
    store.apply(AdminChange::PutTenant(&acme), Some(&record)).await.unwrap_err();
    assert_eq!(store.tenants().await.unwrap(), []);
}
