//! A long run of mixed load on every wire, which must leave nothing behind. The `soak` binary runs
//! it for an hour, and a test for seconds.
//!
//! Clients open sessions, use them, and end them in good order or not, over and over again. Every
//! answer is checked ([`visits`]). Meanwhile the run samples what the replicas and their stores
//! hold ([`gauges`]). After the warm-up every measure must stay flat ([`trend`]), and after the load
//! no session, request, subscription or task may be left.

mod gauges;
mod peer;
mod plot;
mod slow_reader;
mod trend;
mod visits;

use std::{
    collections::BTreeMap,
    fmt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use self::visits::{Load, Site};
pub use self::{
    gauges::{Measure, Sample},
    trend::{Series, Trend, Unit},
};
use crate::{
    Authority, BrokerBuilder, FakeBackend, Reply, TestCluster, backend::tool, cluster::Store,
    programs::executable_by_all,
};

/// Long enough for a busy machine: no replica may lose its sessions here.
const LEASE: &str = "10s";
/// Longest time until nothing of the load is left.
const EMPTY_WITHIN: Duration = Duration::from_secs(180);
/// Tables that are empty once the load is over.
const EMPTY_AFTERWARDS: [&str; 4] = ["sessions", "subscriptions", "tasks", "task_inputs"];

/// Settings of a run.
#[derive(Debug, Clone)]
pub struct SoakPlan {
    pub binary: PathBuf,
    pub time: Duration,
    /// Time before the measured time.
    pub warm_up: Duration,
    /// Operations a second, of all clients together.
    pub rate: f64,
    /// Clients of each wire at a time.
    pub clients: usize,
    pub sample_every: Duration,
    /// Time after which an abandoned session, a task or an event is gone.
    pub forgotten_after: &'static str,
}

impl SoakPlan {
    /// Creates a plan of an hour.
    pub fn new(binary: impl Into<PathBuf>) -> Self {
        Self {
            binary: binary.into(),
            time: Duration::from_secs(3_600),
            warm_up: Duration::from_secs(600),
            rate: 20.0,
            clients: 3,
            sample_every: Duration::from_secs(10),
            forgotten_after: "30s",
        }
    }
}

/// Result of a run.
#[derive(Debug)]
pub struct SoakVerdict {
    pub took: Duration,
    /// Operations that were answered as they should, by wire.
    pub answered: BTreeMap<&'static str, u64>,
    /// Sessions opened, or visits of stateless clients.
    pub visits: u64,
    /// Answers that were wrong or missing.
    pub wrong: Vec<String>,
    pub series: BTreeMap<Measure, Series>,
    warm_up: Duration,
}

impl SoakVerdict {
    /// Returns the measures with a trend, in the order of their names.
    fn trends(&self) -> impl Iterator<Item = (&Series, Trend)> {
        let warm_up = self.warm_up.as_secs_f64();
        self.series.values().filter_map(move |series| Some((series, series.trend(warm_up)?)))
    }

    /// Returns whether every answer was right and every measure flat.
    pub fn is_passed(&self) -> bool {
        self.wrong.is_empty() && self.trends().all(|(_, trend)| trend.is_flat())
    }

    /// Draws the measures over time.
    pub fn svg(&self) -> String {
        plot::draw(&self.series, self.warm_up.as_secs_f64())
    }
}

impl fmt::Display for SoakVerdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "| measure | level | growth | allowed | |\n|---|---|---|---|---|")?;
        for (Series { name, unit, .. }, trend) in self.trends() {
            let [level, growth, allowed] =
                [trend.level, trend.growth, trend.allowed].map(|value| unit.show(value));
            let verdict = if trend.is_flat() { "flat" } else { "GROWS" };
            writeln!(out, "| {name} | {level} | {growth} | {allowed} | {verdict} |")?;
        }
        let answers: u64 = self.answered.values().sum();
        writeln!(
            out,
            "{answers} operations answered in {} visits and {:.0} s: {:?}",
            self.visits,
            self.took.as_secs_f64(),
            self.answered
        )?;
        self.wrong.iter().try_for_each(|wrong| writeln!(out, "WRONG {wrong}"))?;
        write!(out, "{}", if self.is_passed() { "KEPT" } else { "BROKEN" })
    }
}

/// Returns a backend over HTTP whose tools the visits know.
async fn backend() -> FakeBackend {
    let backend = FakeBackend::start().await;
    backend.sessions();
    backend.list("tools", ["echo", "ask", "sized"].map(tool).to_vec());
    backend.on("tools/call", |call| async move {
        let arguments = call.arguments();
        match call.params()["name"].as_str() {
            Some("echo") => Reply::text(arguments["message"].as_str().unwrap_or_default()),
            Some("sized") => {
                Reply::text(&"x".repeat(arguments["bytes"].as_u64().unwrap_or(0) as usize))
            }
            Some("ask") => {
                let schema = json!({"type": "object", "properties": {"word": {"type": "string"}}});
                let question = json!({"message": arguments["message"], "requestedSchema": schema});
                let answer = call.request("elicitation/create", question).await;
                Reply::text(answer["result"]["content"]["word"].as_str().unwrap_or_default())
            }
            _ => Reply::error(-32602, "no such tool"),
        }
    });
    backend
}

fn config(authority: &Authority, forgotten_after: &str) -> Value {
    let server = authority.server("server");
    json!({
        "listen": {"tcp": "127.0.0.1:0", "quic": "127.0.0.1:0"},
        "tls": {"cert_file": server.cert, "key_file": server.key},
        "limits": {"outbox_bytes": "512KiB"},
        "session": {"idle": forgotten_after, "resume": forgotten_after},
        "tasks": {"ttl": forgotten_after, "ttl_max": forgotten_after, "poll_interval": "100ms"},
        "events": {"retain": forgotten_after},
    })
}

/// Runs the plan. `on_sample` gets each sample with its time.
pub async fn run(plan: SoakPlan, mut on_sample: impl FnMut(Duration, &Sample)) -> SoakVerdict {
    let (authority, backend) = (Arc::new(Authority::new()), backend().await);
    let program = executable_by_all(&plan.binary);
    let demo = json!({"type": "stdio", "command": program, "args": ["demo-backend"]});
    let cluster = BrokerBuilder::new(&plan.binary)
        .auth_required()
        .config(config(&authority, plan.forgotten_after))
        .backend("default", "b", backend.spec())
        .backend("default", "s", json!({"transport": demo, "links": "shared"}))
        .cluster(2)
        .lease(LEASE)
        .store(Store::DurablePostgres)
        .start()
        .await;
    let operator = cluster.operator();
    let keys = [operator.create_key("default").await, operator.create_key("default").await];
    let load = Load::start(Site::new(&cluster, authority, keys), plan.clients, plan.rate);
    let (began, mut series) = (Instant::now(), BTreeMap::new());
    let mut every = tokio::time::interval(plan.sample_every);
    while began.elapsed() < plan.time {
        every.tick().await;
        backend.forget_recorded();
        let (at, sample) = (began.elapsed(), gauges::sample(&cluster).await);
        for (measure, value) in &sample {
            let (name, unit) = (measure.name(), measure.unit());
            let line = series.entry(measure.clone());
            let line = line.or_insert_with(|| Series { name, unit, points: Vec::new() });
            line.points.push((at.as_secs_f64(), *value));
        }
        on_sample(at, &sample);
    }
    let mut outcome = load.finish().await;
    let remaining = wait_until_empty(&cluster).await;
    outcome.wrong.extend(remaining.into_iter().map(|what| format!("left after the load: {what}")));
    outcome.wrong.sort();
    SoakVerdict {
        took: began.elapsed(),
        answered: outcome.answered,
        visits: outcome.visits,
        wrong: outcome.wrong,
        series,
        warm_up: plan.warm_up,
    }
}

/// Waits until nothing of the load is left; returns what is after [`EMPTY_WITHIN`].
async fn wait_until_empty(cluster: &TestCluster) -> Vec<String> {
    let end = Instant::now() + EMPTY_WITHIN;
    let mut every = tokio::time::interval(Duration::from_secs(1));
    loop {
        every.tick().await;
        let remaining = remaining_entries(cluster).await;
        if remaining.is_empty() || Instant::now() > end {
            return remaining;
        }
    }
}

/// Returns everything of clients that is left in replicas and tables.
async fn remaining_entries(cluster: &TestCluster) -> Vec<String> {
    let mut remaining: Vec<String> = gauges::rows(cluster)
        .await
        .into_iter()
        .filter(|(table, count)| EMPTY_AFTERWARDS.contains(&table.as_str()) && *count > 0.0)
        .map(|(table, count)| format!("{count} {table}"))
        .collect();
    for name in ["mcp_sessions", "mcp_subscriptions", "mcp_requests_pending"] {
        let value = cluster.operator().metric(name, &[]).await.unwrap_or(0.0);
        remaining.extend((value > 0.0).then(|| format!("{name} {value}")));
    }
    remaining
}
