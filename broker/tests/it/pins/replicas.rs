//! Pins over crashes and replicas: what was seen and decided outlives a process, and is the same on
//! every replica.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use serde_json::{Value, json};
use testkit::{BrokerBuilder, FakeBackend, GateAnswer, PostgresServer, Reply};

use super::{
    PINS, approve, backend_of_each_kind, described, item, pin, pinned, refused_call, show_tools,
    wait_held, wait_state,
};
use crate::builder;

#[tokio::test]
async fn decisions_apply_on_every_replica() {
    let backend = backend_of_each_kind().await;
    let spec = pinned(&backend, json!("hold_changed"));
    let cluster = builder().backend("default", "b", spec).cluster(2).start().await;
    let clients = [
        cluster.client_of(0, "/mcp").connected(json!({})).await,
        cluster.client_of(1, "/mcp").connected(json!({})).await,
    ];
    for client in &clients {
        client.wait_tools(&["b__read", "b__write"]).await;
    }
    backend.wait_get_streams(2).await;
    show_tools(&backend, vec![described("read", "Two."), described("write", "Writes.")]).await;
    for client in &clients {
        wait_held(client, "b__read").await;
        client.wait_tools(&["b__write"]).await;
    }
    let admin = cluster.admin(0);
    let changed = wait_state(&admin, "tool", "read", "changed").await;
    assert_eq!(pin(&cluster.admin(1), "tool", "read").await.as_ref(), Some(&changed));
    let (status, answer) = approve(&admin, json!({"items": [item(&changed)]})).await;
    assert_eq!(status, 200, "{answer}");
    for client in &clients {
        client.wait_tools(&["b__read", "b__write"]).await;
    }
    let body = json!({"items": [{"kind": "tool", "name": "write"}]});
    let (status, answer) = cluster.admin(1).post(&format!("{PINS}/block"), &body).await;
    assert_eq!(status, 200, "{answer}");
    for client in &clients {
        wait_held(client, "b__write").await;
        client.wait_tools(&["b__read"]).await;
    }
}

/// A database that a test opens again and again: a file, or a PostgreSQL.
enum Database {
    Sqlite(tempfile::TempDir),
    /// The server lives as long as the test.
    Postgres {
        _server: PostgresServer,
        url: String,
    },
}

impl Database {
    async fn each() -> [Self; 2] {
        let server = PostgresServer::fast().await;
        let url = server.database().await;
        [Self::Sqlite(tempfile::tempdir().unwrap()), Self::Postgres { _server: server, url }]
    }

    fn builder(&self) -> BrokerBuilder {
        let url = match self {
            Self::Sqlite(folder) => format!("sqlite:{}", folder.path().join("broker.db").display()),
            Self::Postgres { url, .. } => url.clone(),
        };
        let node = json!({"secret": "0123456789abcdef"});
        builder().single_process().config(json!({"storage": {"url": url}, "node": node}))
    }
}

/// A backend whose first answers a test can hold back.
struct Held {
    backend: FakeBackend,
    is_shut: Arc<AtomicBool>,
}

impl Held {
    async fn start(tools: Vec<Value>) -> Self {
        let (backend, is_shut) = (FakeBackend::start().await, Arc::new(AtomicBool::new(false)));
        let shut = is_shut.clone();
        backend.gate(move |_, _| {
            let away = GateAnswer { status: 503, headers: Vec::new(), body: Value::Null };
            shut.load(Ordering::SeqCst).then_some(away)
        });
        backend.list("tools", tools);
        Self { backend, is_shut }
    }

    fn shut(&self, is_shut: bool) {
        self.is_shut.store(is_shut, Ordering::SeqCst);
        self.backend.cut_connections();
    }
}

const PROBE: &str = "/admin/v1/tenants/default/backends/b/probe";

/// Starts a broker that kills itself at a point, once it reads the lists of the backend.
async fn kill_at(database: &Database, point: &str, held: &Held) {
    held.shut(true);
    let mut broker = database.builder().env("MCP_BROKER_FAULT", point).start().await;
    held.shut(false);
    let _answer = broker.admin().try_send("POST", PROBE, Some(&json!({}))).await;
    assert!(!broker.wait_for_exit().await.success(), "{point}");
}

/// The process dies between what it saw and what it stored. The next one must not take a changed
/// definition for the first one.
#[tokio::test]
async fn a_changed_definition_is_not_trusted_after_a_crash_at_any_step() {
    for database in Database::each().await {
        for point in ["pins.sighted", "pins.begun", "pins.committed"] {
            let held = Held::start(vec![described("read", "Reads.")]).await;
            let mut first = database.builder().start().await;
            let spec = pinned(&held.backend, json!("hold_all"));
            first.admin().put_ready_backend("default", "b", &spec).await;
            let read = wait_state(&first.admin(), "tool", "read", "pending").await;
            assert_eq!(approve(&first.admin(), json!({"items": [item(&read)]})).await.0, 200);
            first.connected(json!({})).await.wait_tools(&["b__read"]).await;
            first.terminate().await;
            let changed = vec![described("read", "Reads secrets."), described("new", "")];
            held.backend.list("tools", changed);
            kill_at(&database, point, &held).await;
            let mut next = database.builder().start().await;
            let changed = wait_state(&next.admin(), "tool", "read", "changed").await;
            assert_eq!(changed["held"], true, "{point}");
            wait_state(&next.admin(), "tool", "new", "pending").await;
            let client = next.connected(json!({})).await;
            assert_eq!(client.tool_names().await, Vec::<String>::new(), "{point}");
            assert_eq!(refused_call(&client, "b__read").await, "tool_held", "{point}");
            // What was approved is trusted again as soon as it is back.
            show_tools(&held.backend, vec![described("read", "Reads.")]).await;
            client.wait_tools(&["b__read"]).await;
            next.admin().delete("/admin/v1/tenants/default/backends/b").await;
            next.terminate().await;
        }
    }
}

#[tokio::test]
async fn the_first_definition_stays_pinned_after_a_restart() {
    for database in Database::each().await {
        let backend = FakeBackend::start().await;
        backend.list("tools", vec![described("read", "Reads.")]);
        let spec = pinned(&backend, json!("hold_changed"));
        let mut first = database.builder().start().await;
        first.admin().put_ready_backend("default", "b", &spec).await;
        wait_state(&first.admin(), "tool", "read", "pending").await;
        first.terminate().await;
        backend.list("tools", vec![described("read", "Reads secrets.")]);
        let broker = database.builder().start().await;
        let client = broker.connected(json!({})).await;
        wait_held(&client, "b__read").await;
        assert_eq!(client.tool_names().await, Vec::<String>::new());
    }
}

/// A session outlives the process. The next one does not know yet whether the backend changed, so
/// it calls nothing of it.
#[tokio::test]
async fn a_backend_whose_definitions_are_unknown_gets_no_call() {
    let backend = FakeBackend::echo().await;
    let spec = pinned(&backend, json!("hold_changed"));
    let mut broker = builder().single_process().backend("default", "b", spec).start().await;
    let client = broker.client("/mcp/b").connected(json!({})).await;
    client.call("echo", json!({})).await;
    backend.on("tools/list", |_| async { Reply::Hang });
    broker.kill().await;
    broker.restart().await;
    let client = client.to(broker.http_address());
    assert_eq!(refused_call(&client, "echo").await, "backend_unavailable");
    assert_eq!(backend.recorded_of("tools/call").len(), 1);
}
