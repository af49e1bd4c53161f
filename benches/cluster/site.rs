//! Replicas of the broker on one PostgreSQL and one Redis, with a backend, and sessions that are
//! spread over them.

use std::time::{Duration, Instant};

use benches::{Scale, broker_binary};
use serde_json::json;
use testkit::{BackendCall, BrokerBuilder, FakeBackend, Gate, Reply, TestClient, TestCluster};

use crate::counters::{self, Cost, Counters, RestCost};

/// The default of `session.lease`.
const LEASE: &str = "2s";
/// Events of a call of the tool `steps`, the answer not included.
pub(crate) const STEPS: usize = 20;
/// Pause before each of them: events that come together are logged together.
const STEP_AFTER: Duration = Duration::from_millis(5);
/// Time until what is written behind was written: the round of the housekeeping, and a reserve.
const WRITTEN_BEHIND_AFTER: Duration = Duration::from_millis(1_200);
/// Longer than the longest pause between two sweeps of a replica.
const RESTS_FOR: Duration = Duration::from_millis(6_500);
/// Stands for both where figures do not count.
const A_MOMENT: Duration = Duration::from_millis(50);
pub(crate) const RESOURCE: &str = "test://one";
pub(crate) const TOOL: &str = "b__echo";

/// The replicas with everything around them.
pub(crate) struct Site {
    pub(crate) cluster: TestCluster,
    pub(crate) backend: FakeBackend,
    /// The gate at which calls of the tool `wait` stay.
    pub(crate) gate: Gate,
    key: String,
    scale: Scale,
}

impl Site {
    pub(crate) async fn start(replicas: usize, scale: Scale) -> anyhow::Result<Self> {
        let gate = Gate::new();
        let backend = backend(&gate).await;
        let limits = json!({"limits": {
            "connections": 100_000, "connections_per_address": 100_000, "connections_per_second_per_address": 0,
            "requests_per_second": 1_000_000, "burst": 1_000_000, "sessions_per_tenant": 100_000,
            "sessions_per_principal": 100_000, "sign_in_failures_per_minute": 0,
        }});
        let cluster = BrokerBuilder::new(broker_binary()?)
            .config(limits)
            .auth_required()
            .backend("default", "b", backend.spec())
            .cluster(replicas)
            .lease(LEASE)
            .postgres_setting("shared_preload_libraries", "pg_stat_statements")
            .postgres_setting("max_connections", "500")
            // Its rounds are random, and their log is not that of what is measured.
            .postgres_setting("autovacuum", "off")
            .start()
            .await;
        counters::count_statements(&cluster).await;
        let key = cluster.operator().create_key("default").await;
        cluster.ready().await;
        Ok(Self { cluster, backend, gate, key, scale })
    }

    pub(crate) fn replicas(&self) -> usize {
        self.cluster.replicas().len()
    }

    /// Returns a client of a replica, without a session yet. Its answers are not judged: that would
    /// take the processor from the replicas.
    pub(crate) fn client(&self, replica: usize) -> TestClient {
        TestClient::new(self.cluster.replicas()[replica].http_address(), "/mcp").bearer(&self.key)
    }

    /// Returns the client at the replica after the one that its session is on.
    pub(crate) fn elsewhere(&self, number: usize, client: &TestClient) -> TestClient {
        let there = (number + 1) % self.replicas();
        client.to(self.cluster.replicas()[there].http_address())
    }

    /// Opens so many sessions, one after the other, at each replica in turn.
    pub(crate) async fn open(&self, count: usize) -> Vec<TestClient> {
        let mut clients = Vec::with_capacity(count);
        for number in 0..count {
            clients.push(self.client(number % self.replicas()).connected(json!({})).await);
        }
        clients
    }

    /// Waits until what was written behind is written.
    pub(crate) async fn settle(&self) {
        tokio::time::sleep(self.scale.of(WRITTEN_BEHIND_AFTER, A_MOMENT)).await;
    }

    /// Returns what the replicas cost while nothing happens, after each has carried out a call.
    pub(crate) async fn rest(&self) -> anyhow::Result<RestCost> {
        let clients = self.open(self.replicas()).await;
        calls(&clients).await;
        for client in clients {
            client.delete_session().await;
        }
        self.settle().await;
        let (started, before) = (Instant::now(), Counters::read(&self.cluster).await?);
        tokio::time::sleep(self.scale.of(RESTS_FOR, A_MOMENT)).await;
        let after = Counters::read(&self.cluster).await?;
        Ok(RestCost::new(after.since(&before), started.elapsed().as_secs_f64()))
    }

    /// Carries out the work. Returns what it cost, what is written behind included.
    pub(crate) async fn cost<T>(
        &self,
        rest: &RestCost,
        work: impl Future<Output = T>,
    ) -> anyhow::Result<(Cost, T)> {
        let (started, before) = (Instant::now(), Counters::read(&self.cluster).await?);
        let done = work.await;
        self.settle().await;
        let after = Counters::read(&self.cluster).await?;
        Ok((after.since(&before).beyond(rest, started.elapsed().as_secs_f64()), done))
    }
}

pub(crate) async fn one_by_one<F: Future<Output = ()>>(
    clients: &[TestClient],
    mut work: impl FnMut(usize, TestClient) -> F,
) {
    for (number, client) in clients.iter().enumerate() {
        work(number, client.clone()).await;
    }
}

/// Makes a call in each session, one after the other.
pub(crate) async fn calls(clients: &[TestClient]) {
    one_by_one(clients, |_, client| call(client)).await;
}

pub(crate) async fn call(client: TestClient) {
    client.call(TOOL, json!({"text": "a"})).await;
}

/// Returns a backend with sessions of its own, as most servers have them.
async fn backend(gate: &Gate) -> FakeBackend {
    let backend = FakeBackend::start().await;
    backend.sessions();
    backend.list("resources", vec![json!({"uri": RESOURCE, "name": "one"})]);
    backend.tool("echo", |_| async { Reply::text("done") });
    backend.tool("steps", |call: BackendCall| async move {
        for step in 0..STEPS {
            tokio::time::sleep(STEP_AFTER).await;
            call.progress(step as f64, STEPS as f64).await;
        }
        Reply::text("done")
    });
    backend.tool("wait", gate.before(Reply::text("done")));
    backend
}
