//! Load on replicas that are killed meanwhile, and a verdict by [`crate::history`]. Tests run it
//! with small counts and the `chaos` binary with large ones.
//!
//! Every choice (which replica is killed and when, the work of each client) comes from the seed,
//! which the verdict names. A failed run can be repeated with it. Times are the machine's own, so a
//! replay is the same plan and not the same microsecond.

mod faults;
mod load;
mod points;
mod rolling;
mod seed;

use std::{
    fmt,
    path::PathBuf,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    backend::FakeBackend,
    broker::BrokerBuilder,
    client::TestClient,
    cluster::{Store, TestCluster},
    history::{History, InjectedFault, Report},
    ledger::Ledger,
};

pub use points::{KillPointPlan, kill_at_points};
pub use rolling::{RollingPlan, rolling_restart};

use load::Load;
use seed::Seed;

/// Time after a fault in which its traces may show: a lease, a recovery, and a busy machine.
const SLACK: Duration = Duration::from_secs(4);
const LEASE: &str = "1s";

/// Faults, load and store of one run.
#[derive(Debug, Clone)]
pub struct ChaosPlan {
    pub binary: PathBuf,
    pub seed: u64,
    pub store: Store,
    pub replicas: usize,
    /// Tasks to be acknowledged, spread evenly over the duration.
    pub tasks: usize,
    /// Plain calls during the run.
    pub calls: usize,
    /// Plain calls that stream numbered progress for a while.
    pub streams: usize,
    /// Plain calls whose backend asks their client.
    pub questions: usize,
    /// Calls of clients of 2026-07-28. Some become tasks, and the backend asks some of the clients.
    pub stateless: usize,
    /// Subscriptions of sessions. Each must bring an update after the run.
    pub subscriptions: usize,
    pub sessions: usize,
    pub duration: Duration,
    /// Interval at which one replica is killed, and started again.
    pub kill_every: Option<Duration>,
    pub restart_postgres: bool,
    pub restart_redis: bool,
    pub flush_redis: bool,
    /// Set to stop one replica for several leases and continue it.
    pub freeze: bool,
}

impl ChaosPlan {
    /// Creates a plan without faults.
    pub fn new(binary: impl Into<PathBuf>, seed: u64) -> Self {
        Self {
            binary: binary.into(),
            seed,
            store: Store::Postgres,
            replicas: 3,
            tasks: 60,
            calls: 30,
            streams: 6,
            questions: 6,
            stateless: 20,
            subscriptions: 6,
            sessions: 12,
            duration: Duration::from_secs(6),
            kill_every: None,
            restart_postgres: false,
            restart_redis: false,
            flush_redis: false,
            freeze: false,
        }
    }
}

/// Result of a run.
#[derive(Debug, Clone)]
pub struct ChaosVerdict {
    pub what: &'static str,
    pub seed: u64,
    /// The faults, in words.
    pub how: String,
    pub took: Duration,
    pub report: Report,
}

impl ChaosVerdict {
    pub fn is_passed(&self) -> bool {
        self.report.violations.is_empty()
    }

    /// Prints the verdict, and panics unless every promise was kept.
    #[track_caller]
    pub fn assert_passed(&self) {
        assert!(self.is_passed(), "{self}");
        println!("{self}");
    }
}

impl fmt::Display for ChaosVerdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.is_passed() { "KEPT" } else { "BROKEN" };
        let took = self.took.as_secs_f64();
        write!(
            out,
            "{verdict} {} seed={} in {took:.0} s; {}; {}",
            self.what, self.seed, self.how, self.report
        )
    }
}

/// Returns a broker with limits large enough for the plans, and the ledger as its backend `b`.
/// Clients need a key.
fn builder(binary: &PathBuf, ledger: &Ledger) -> BrokerBuilder {
    BrokerBuilder::new(binary).auth_required().backend("default", "b", ledger.spec()).config(json!({
        "limits": {"sessions_per_principal": 100_000, "sessions_per_tenant": 100_000, "connections_per_address": 10_000},
        "tasks": {"running_per_tenant": 100_000, "stored_per_tenant": 1_000_000, "poll_interval": "100ms", "promote_after": "500ms"},
        "shutdown": {"grace": "20s"},
    }))
}

/// Runs the plan and checks the observations of its clients.
pub async fn run(plan: ChaosPlan) -> ChaosVerdict {
    let began = Instant::now();
    let ledger = Ledger::start().await;
    let mut cluster = builder(&plan.binary, &ledger)
        .cluster(plan.replicas)
        .store(plan.store)
        .lease(LEASE)
        .start()
        .await;
    let history = History::default();
    let mut seed = Seed::new(plan.seed);
    let key = cluster.operator().create_key("default").await;
    let client = client_of(&cluster, &key);
    let load = Load::open(&client, plan.sessions, &history).await;
    let work = load.spread(&plan, &mut seed);
    faults::execute(&mut cluster, &plan, &mut seed, &history).await;
    load::finish(work, &history).await;
    cluster.ready().await;
    load::read_all(&client, &history, &history.acknowledged()).await;
    load.sessions_live().await;
    load.subscriptions_live(ledger.backend()).await;
    let report = history.check(&ledger.effects(), SLACK);
    ChaosVerdict {
        what: "chaos",
        seed: plan.seed,
        how: description(&plan, &history),
        took: began.elapsed(),
        report,
    }
}

fn client_of(cluster: &TestCluster, key: &str) -> TestClient {
    cluster.client("/mcp").bearer(key)
}

/// Puts the load of the plan on replicas that the caller runs, and reads every task to its end.
/// `faults` ends when all replicas serve again. `client` has an address and credentials, and
/// `backend` is the ledger's.
pub async fn put_load(
    client: &TestClient,
    backend: &FakeBackend,
    plan: &ChaosPlan,
    history: &History,
    faults: impl Future<Output = ()>,
) {
    let load = Load::open(client, plan.sessions, history).await;
    let work = load.spread(plan, &mut Seed::new(plan.seed));
    faults.await;
    load::finish(work, history).await;
    load::read_all(client, history, &history.acknowledged()).await;
    load.sessions_live().await;
    load.subscriptions_live(backend).await;
}

fn description(plan: &ChaosPlan, history: &History) -> String {
    let times = |fault: InjectedFault| history.faults(fault);
    format!(
        "{:?}, {} replicas, {} kills, {} freezes, PostgreSQL away {} times, Redis away {} and flushed {} times",
        plan.store,
        plan.replicas,
        times(InjectedFault::Kill),
        times(InjectedFault::Freeze),
        times(InjectedFault::PostgresAway),
        times(InjectedFault::RedisAway),
        times(InjectedFault::RedisFlushed)
    )
}

/// Returns the text of a tool's result.
fn text_of(result: &Value) -> String {
    result["content"][0]["text"].as_str().map_or_else(|| result.to_string(), str::to_owned)
}
