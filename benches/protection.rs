//! Measures the effect of load on other tenants: goodput, refusals, shares, a loud neighbour,
//! costly arguments, a hung backend. Each is compared with the same run without the load.

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use benches::{Samples, Scale, Table, broker_binary, digits, shown};
use bytes::Bytes;
use serde_json::{Value, json};
use testkit::{AdminClient, BrokerBuilder, FakeBackend, Reply, TestBroker, TestClient};
use tokio::{sync::Semaphore, task::JoinSet};

fn main() -> ExitCode {
    benches::main("protection", bench)
}

async fn bench(scale: Scale) -> anyhow::Result<()> {
    past_saturation(scale).await?;
    shares(scale).await?;
    neighbour(scale).await?;
    hostile_arguments(scale).await?;
    hung_backend(scale).await
}

fn builder() -> anyhow::Result<BrokerBuilder> {
    Ok(replicated()?.single_process())
}

/// Clients of a bench share an address, and may try a new key before a replica has read it.
fn replicated() -> anyhow::Result<BrokerBuilder> {
    Ok(BrokerBuilder::new(broker_binary()?)
        .config(json!({"limits": {"connections_per_second_per_address": 0, "sign_in_failures_per_minute": 0}})))
}

/// Starts a backend with a tool that takes this long, for so many calls at a time.
async fn limited(at_once: usize, takes: Duration) -> FakeBackend {
    let permits = Arc::new(Semaphore::new(at_once));
    FakeBackend::with_tool("t", move |_| {
        let permits = permits.clone();
        async move {
            let _permit = permits.acquire().await;
            tokio::time::sleep(takes).await;
            Reply::text("done")
        }
    })
    .await
}

/// Counts of outcomes, and the times of calls and refusals.
#[derive(Debug, Default)]
struct Tally {
    good: usize,
    late: usize,
    taken: Samples,
    refused: Samples,
}

async fn one(client: &TestClient, tally: &mut Tally) {
    let asked = Instant::now();
    let answer = client.request("tools/call", json!({"name": "b__t"})).await;
    match answer.get("error") {
        None => {
            tally.good += 1;
            tally.taken.add(asked.elapsed());
        }
        Some(error) if error["data"]["kind"] == "overloaded" => tally.refused.add(asked.elapsed()),
        Some(_) => tally.late += 1,
    }
}

async fn past_saturation(scale: Scale) -> anyhow::Result<()> {
    const AT_ONCE: usize = 8;
    let backend = limited(AT_ONCE, Duration::from_millis(20)).await;
    let mut spec = backend.spec();
    spec["limits"] = json!({"calls_in_flight": AT_ONCE, "calls_queued": 1_000});
    spec["timeouts"] = json!({"call": "1s"});
    let broker = builder()?.backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    let time = scale.of(Duration::from_secs(10), Duration::from_millis(500));

    let (started, mut workers) = (Instant::now(), JoinSet::new());
    for _ in 0..2 * AT_ONCE {
        let client = client.clone();
        workers.spawn(async move {
            let mut tally = Tally::default();
            while started.elapsed() < time {
                one(&client, &mut tally).await;
            }
            tally
        });
    }
    let peak = sum(workers).await;
    let peak_rate = peak.good as f64 / started.elapsed().as_secs_f64();

    let (started, mut calls) = (Instant::now(), JoinSet::new());
    let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / (3.0 * peak_rate)));
    while started.elapsed() < time {
        ticks.tick().await;
        let client = client.clone();
        calls.spawn(async move {
            let mut tally = Tally::default();
            one(&client, &mut tally).await;
            tally
        });
    }
    let (offered, over) = (calls.len() as f64 / started.elapsed().as_secs_f64(), sum(calls).await);
    let rate = over.good as f64 / started.elapsed().as_secs_f64();
    let mut table = Table::new([
        "",
        "offered",
        "goodput",
        "of the peak",
        "p99 of what was answered",
        "refused",
        "refusals, median",
        "p99",
        "late",
    ]);
    let row = |name: &str, offered: f64, rate: f64, tally: &Tally| {
        let share = format!("{:.0} %", 100.0 * rate / peak_rate);
        let refused = tally.refused.len().to_string();
        let times = [tally.taken.p99(), tally.refused.median(), tally.refused.p99()].map(shown);
        let [taken, median, p99] = times;
        [
            name.to_owned(),
            digits(offered),
            digits(rate),
            share,
            taken,
            refused,
            median,
            p99,
            tally.late.to_string(),
        ]
    };
    table.row(row("at the peak", peak_rate, peak_rate, &peak));
    table.row(row("three times that", offered, rate, &over));
    table.print("Past saturation (promised: 90 % of the peak)");
    refusals(&broker, &client, scale).await;
    Ok(())
}

async fn sum(mut parts: JoinSet<Tally>) -> Tally {
    let mut all = Tally::default();
    while let Some(part) = parts.join_next().await {
        let part = part.expect("no part of the load panics");
        all.good += part.good;
        all.late += part.late;
        all.taken.extend(part.taken);
        all.refused.extend(part.refused);
    }
    all
}

/// Makes refused calls one after the other, so that only the refusal and two sockets are measured.
async fn refusals(broker: &TestBroker, client: &TestClient, scale: Scale) {
    broker
        .admin()
        .post("/admin/v1/tenants/default/backends/b/breaker", &json!({"state": "open"}))
        .await;
    let count = scale.of(2_000, 20);
    let open = times(count, || client.request("tools/call", json!({"name": "b__t"}))).await;
    let unknown = times(count, || client.request("tools/call", json!({"name": "b__none"}))).await;
    let ping = times(count, || client.request("ping", json!({}))).await;
    let mut table = Table::new(["request", "median", "p99"]);
    for (name, samples) in [
        ("a ping", ping),
        ("a call of an unknown tool", unknown),
        ("a call refused by a breaker", open),
    ] {
        table.row([name.to_owned(), shown(samples.median()), shown(samples.p99())]);
    }
    table.print("Refusals over HTTP (promised: less than a millisecond)");
}

async fn times<F: Future<Output = Value>>(count: usize, mut ask: impl FnMut() -> F) -> Samples {
    let mut samples = Samples::default();
    for _ in 0..count {
        let asked = Instant::now();
        ask().await;
        samples.add(asked.elapsed());
    }
    samples
}

const CALLS_IN_FLIGHT: usize = 10;

async fn shares(scale: Scale) -> anyhow::Result<()> {
    let backend = FakeBackend::with_tool("t", |_| async {
        tokio::time::sleep(Duration::from_millis(40)).await;
        Reply::text("done")
    })
    .await;
    let limits = json!({"limits": {"calls_in_flight": CALLS_IN_FLIGHT}});
    let count = scale.of(10, 3);
    let broker =
        tenants(count, builder()?.auth_required().config(limits.clone()), &backend).start().await;
    let one =
        served(count, &broker.admin(), |_, key| broker.client("/mcp").bearer(key), 1, scale).await;
    drop(broker);
    let cluster = tenants(count, replicated()?.auth_required().config(limits), &backend)
        .cluster(3)
        .start()
        .await;
    let three = served(
        count,
        &cluster.operator(),
        |number, key| cluster.client_of(number % 3, "/mcp").bearer(key),
        3,
        scale,
    )
    .await;
    let mut table =
        Table::new(["weight", "share, one replica", "off", "share, three replicas", "off"]);
    let fair = |weight: usize| weight as f64 / (count * (count + 1) / 2) as f64;
    let cells = |counts: &[usize], weight: usize| {
        let all: usize = counts.iter().sum();
        let share = counts[weight - 1] as f64 / all.max(1) as f64;
        [
            format!("{:.1} %", 100.0 * share),
            format!("{:+.1} %", 100.0 * (share / fair(weight) - 1.0)),
        ]
    };
    for weight in 1..=count {
        let ([one, one_off], [three, three_off]) = (cells(&one, weight), cells(&three, weight));
        table.row([weight.to_string(), one, one_off, three, three_off]);
    }
    table.print(
        "Shares of ten tenants at saturation (promised: within 5 %, on three replicas within 10 %)",
    );
    Ok(())
}

fn tenants(count: usize, mut building: BrokerBuilder, backend: &FakeBackend) -> BrokerBuilder {
    for weight in 1..=count {
        building = building.tenant(&format!("t{weight}")).backend(
            &format!("t{weight}"),
            "b",
            backend.spec(),
        );
    }
    building
}

/// Returns the number of answered calls of each tenant, by weight. The sessions of each are spread
/// evenly over the replicas: a replica shares its capacity among its own clients.
async fn served(
    tenants: usize,
    admin: &AdminClient,
    client: impl Fn(usize, &str) -> TestClient,
    replicas: usize,
    scale: Scale,
) -> Vec<usize> {
    let (over, counted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (mut workers, mut counts) = (JoinSet::new(), Vec::new());
    for weight in 1..=tenants {
        let tenant = format!("t{weight}");
        admin.put_tenant(&tenant, json!({"weight": weight})).await;
        let key = admin.create_key(&tenant).await;
        let count = Arc::new(AtomicUsize::new(0));
        counts.push(count.clone());
        // Each replica has enough clients to be saturated by them alone.
        for number in 0..replicas * 2 {
            let client = client(number, &key).connected(json!({})).await;
            for _ in 0..3 + weight {
                let (client, count, counted, over) =
                    (client.clone(), count.clone(), counted.clone(), over.clone());
                workers.spawn(async move {
                    while !over.load(Ordering::Relaxed) {
                        client.call("b__t", json!({})).await;
                        count.fetch_add(
                            usize::from(counted.load(Ordering::Relaxed)),
                            Ordering::Relaxed,
                        );
                    }
                });
            }
        }
    }
    tokio::time::sleep(scale.of(Duration::from_secs(2), Duration::from_millis(200))).await;
    counted.store(true, Ordering::Relaxed);
    tokio::time::sleep(scale.of(Duration::from_secs(10), Duration::from_millis(500))).await;
    counted.store(false, Ordering::Relaxed);
    let served = counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    over.store(true, Ordering::Relaxed);
    while let Some(ended) = workers.join_next().await {
        ended.expect("no client panics");
    }
    served
}

/// Compares a tenant's calls alone with those next to a tenant at fifty times its rate, at the same
/// backend. With long calls the processors have little to do, and the wait for a turn remains.
async fn neighbour(scale: Scale) -> anyhow::Result<()> {
    let short = beside_a_loud_one(Duration::from_millis(10), scale.of(1_000, 20), scale).await?;
    let long = beside_a_loud_one(Duration::from_millis(100), scale.of(200, 5), scale).await?;
    compared(
        "A tenant's calls, alone and next to one that makes fifty at a time (promised: p99 less than 1.5 times)",
        &[("calls of 10 ms", short.0, short.1), ("calls of 100 ms", long.0, long.1)],
    );
    Ok(())
}

async fn beside_a_loud_one(
    takes: Duration,
    count: usize,
    scale: Scale,
) -> anyhow::Result<(Samples, Samples)> {
    const LOUD: usize = 50;
    let backend = limited(20, takes).await;
    let config = json!({"limits": {"calls_in_flight": 20, "calls_queued": 1_000}});
    let mut building = builder()?.auth_required().config(config);
    for tenant in ["loud", "quiet"] {
        building = building.tenant(tenant).backend(tenant, "b", backend.spec());
    }
    let broker = building.start().await;
    let (loud, quiet) =
        (broker.admin().create_key("loud").await, broker.admin().create_key("quiet").await);
    let quiet = broker.client("/mcp").bearer(&quiet).connected(json!({})).await;
    let alone = times(count, || quiet.request("tools/call", json!({"name": "b__t"}))).await;
    let (over, mut workers) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
    let loud = broker.client("/mcp").bearer(&loud).connected(json!({})).await;
    for _ in 0..LOUD {
        let (client, over) = (loud.clone(), over.clone());
        workers.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                client.request("tools/call", json!({"name": "b__t"})).await;
            }
        });
    }
    tokio::time::sleep(scale.of(Duration::from_secs(1), Duration::from_millis(100))).await;
    let beside = times(count, || quiet.request("tools/call", json!({"name": "b__t"}))).await;
    over.store(true, Ordering::Relaxed);
    while let Some(ended) = workers.join_next().await {
        ended?;
    }
    Ok((alone, beside))
}

fn compared(title: &str, rows: &[(&str, Samples, Samples)]) {
    let mut table =
        Table::new(["", "median before", "median during", "p99 before", "p99 during", "times"]);
    for (name, before, during) in rows {
        let times = during.p99().as_secs_f64() / before.p99().as_secs_f64().max(1e-9);
        let [a, b, c, d] =
            [before.median(), during.median(), before.p99(), during.p99()].map(shown);
        table.row([(*name).to_owned(), a, b, c, d, digits(times)]);
    }
    table.print(title);
}

/// Sends arguments of 1 MiB, as fast as allowed, to tools whose schemas make them costly to check.
async fn hostile_arguments(scale: Scale) -> anyhow::Result<()> {
    let items = |schema: Value| json!({"type": "object", "properties": {"a": {"items": schema}}});
    let listed: Vec<usize> = (0..9_000).collect();
    let repeated = |item: &str| {
        format!("{{\"a\":[{}]}}", vec![item; ((1 << 20) - 64) / (item.len() + 1)].join(","))
    };
    let shapes = [
        ("objects", items(json!({"type": "object", "required": ["x", "y"]})), repeated("{}")),
        ("enum", items(json!({"enum": listed})), repeated("9999")),
        (
            "pattern",
            items(json!({"pattern": "^(a|b|ab)*c{1,900}$"})),
            repeated(&format!("\"{}\"", "ab".repeat(5_000))),
        ),
        (
            "unique",
            json!({"properties": {"a": {"uniqueItems": true}}}),
            repeated("[[],[[]],[[[]]]]"),
        ),
    ];
    let mut table = Table::new([
        "arguments",
        "median before",
        "median during",
        "p99 before",
        "p99 during",
        "p99 moved by",
        "answered a second",
        "memory",
    ]);
    for (name, schema, arguments) in shapes {
        let row = beside_hostile_arguments(schema, &arguments, scale).await?;
        let moved = row.during.p99().saturating_sub(row.before.p99());
        let [a, b, c, d] =
            [row.before.median(), row.during.median(), row.before.p99(), row.during.p99()]
                .map(shown);
        let memory = format!("{:+.1} MiB", row.grown as f64 / (1 << 20) as f64);
        table.row([name.to_owned(), a, b, c, d, shown(moved), digits(row.answered), memory]);
    }
    table.print("A tenant's calls, alone and next to one that sends hostile arguments of 1 MiB (promised: p99 moves by less than 5 ms, memory by less than 64 MiB)");
    Ok(())
}

struct BesideHostile {
    before: Samples,
    during: Samples,
    /// Hostile calls per second.
    answered: f64,
    /// Bytes by which the peak of the process's memory grew.
    grown: usize,
}

async fn beside_hostile_arguments(
    schema: Value,
    arguments: &str,
    scale: Scale,
) -> anyhow::Result<BesideHostile> {
    const LOUD: usize = 8;
    let backend = FakeBackend::echo().await;
    backend.list("tools", vec![json!({"name": "echo", "inputSchema": schema})]);
    let plain = FakeBackend::echo().await;
    let (mut held, mut quiet) = (backend.spec(), plain.spec());
    (held["tools"], quiet["tools"]) =
        (json!({"validate_arguments": true}), json!({"validate_arguments": true}));
    let building = builder()?.auth_required().tenant("loud").backend("loud", "b", held);
    let broker = building.tenant("quiet").backend("quiet", "b", quiet).start().await;
    let (loud, quiet) =
        (broker.admin().create_key("loud").await, broker.admin().create_key("quiet").await);
    let quiet = broker.client("/mcp").bearer(&quiet).connected(json!({})).await;
    let call = || quiet.request("tools/call", json!({"name": "b__echo", "arguments": {"n": 1}}));
    let count = scale.of(2_000, 20);
    times(count / 10, call).await;
    let before = times(count, call).await;
    // No judge reads these answers: that would cost this process more than it costs the broker.
    let loud = TestClient::new(broker.http_address(), "/mcp").bearer(&loud);
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":"h","method":"tools/call","params":{{"name":"b__echo","arguments":{arguments}}}}}"#
    );
    let body = Bytes::from(body);
    let memory = resident_peak(&broker)?;
    let (over, answered, mut workers) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)), JoinSet::new());
    for _ in 0..LOUD {
        let (client, over, answered, body) =
            (loud.fresh().connected(json!({})).await, over.clone(), answered.clone(), body.clone());
        workers.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let _refused = client.post(body.clone()).await.text().await;
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let started = Instant::now();
    tokio::time::sleep(scale.of(Duration::from_secs(1), Duration::from_millis(100))).await;
    let during = times(count, call).await;
    let answered = answered.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64();
    let grown = resident_peak(&broker)?.saturating_sub(memory);
    over.store(true, Ordering::Relaxed);
    while let Some(ended) = workers.join_next().await {
        ended?;
    }
    Ok(BesideHostile { before, during, answered, grown })
}

/// Returns the peak of the broker's resident memory.
fn resident_peak(broker: &TestBroker) -> anyhow::Result<usize> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", broker.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    Ok(line.trim().trim_end_matches(" kB").parse::<usize>()? * 1024)
}

async fn hung_backend(scale: Scale) -> anyhow::Result<()> {
    let backends = scale.of(50, 5);
    let (hung, good) = (FakeBackend::start().await, FakeBackend::echo().await);
    hung.tool("hang", |_| async { Reply::Hang });
    let mut building = builder()?.backend("default", "b0", hung.spec());
    for number in 1..backends {
        building = building.backend("default", &format!("b{number}"), good.spec());
    }
    let broker = building.start().await;
    let client = broker.connected(json!({})).await;
    let count = scale.of(1_000, 20);
    let measure = async || {
        let lists = times(count, || client.request("tools/list", json!({}))).await;
        let mut at = 0;
        let calls = times(count, || {
            at = at % (backends - 1) + 1;
            client.request("tools/call", json!({"name": format!("b{at}__echo"), "arguments": {}}))
        });
        (lists, calls.await)
    };
    let before = measure().await;
    let callers: Vec<_> =
        (0..20).map(|_| client.start_request("tools/call", json!({"name": "b0__hang"}))).collect();
    hung.wait_count("the calls", callers.len(), |seen| seen.calls("hang")).await;
    let during = measure().await;
    compared(
        "One of fifty backends hangs (promised: p99 within 10 %)",
        &[("lists", before.0, during.0), ("calls of others", before.1, during.1)],
    );
    Ok(())
}
