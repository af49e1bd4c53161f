//! Measures what pins cost when one of a hundred backends shows another list: reading its list with
//! the definitions, comparing its tools with those of the others, and building the catalog again.
//! Five thousand tools in all. Then measures the memory of the broker for each of so many tools.

use std::{
    collections::{BTreeMap, HashSet},
    hint::black_box,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use benches::{Scale, Table, broker_binary, median, shown};
use loadtest::process;
use protocol::ids::{BackendId, TenantId};
use rules::{
    catalog::{BackendLists, Catalog, ListAllowance, ListKind, TaskHost, read_page_pinned},
    pins::{EntryPin, IgnoredMembers, Neighbours, PinBook, PinMode},
};
use serde_json::json;
use testkit::{BrokerBuilder, FakeBackend, TestBroker};

const BACKENDS: usize = 100;
const TOOLS: usize = 50;

type Lists = BTreeMap<BackendId, Arc<BackendLists>>;

fn main() -> ExitCode {
    benches::main("pins", bench)
}

async fn bench(scale: Scale) -> anyhow::Result<()> {
    let mut others = Lists::new();
    for number in 1..BACKENDS {
        let (id, lists) = read(number, &others, true)?;
        others.insert(id, Arc::new(lists));
    }
    let tenant = TenantId::parse("acme")?;
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &[1; 32]);
    let rounds = scale.of(31, 1);
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..rounds {
        for (is_pinned, times) in [false, true].into_iter().zip(&mut times) {
            let started = Instant::now();
            let (id, lists) = read(0, &others, is_pinned)?;
            let mut all = others.clone();
            all.insert(id, Arc::new(lists));
            black_box(Catalog::build(tenant.clone(), key.clone(), all));
            times.push(started.elapsed().as_secs_f64());
        }
    }
    let [without, with] = times.map(median);
    let secs = |time: f64| shown(Duration::from_secs_f64(time));
    let mut table = Table::new(["what", "without pins", "with pins", "ratio"]);
    let ratio = format!("{:.2}", with / without);
    table.row(["a change of one backend".to_owned(), secs(without), secs(with), ratio]);
    table.print("Another list of one of 100 backends with 5,000 tools");
    memory(scale).await
}

/// Measures the memory of a tool: the broker with all tools, less the broker with half of them. The
/// caches of the database are full in both.
async fn memory(scale: Scale) -> anyhow::Result<()> {
    let (backends, tools) = (scale.of(BACKENDS, 2), scale.of(TOOLS, 2));
    let definition = described(0, 0).to_string().len();
    let mut resident = Vec::new();
    for each in [tools / 2, tools] {
        let (broker, _running) = broker_with(backends, each).await?;
        settle(scale).await;
        resident.push(process::usage(broker.pid())?.resident_bytes as f64);
        for client in [broker.client("/mcp"), broker.client("/mcp/backend-0")] {
            let client = client.connected(json!({})).await;
            let seen = client.tool_names().await.len();
            ensure!(seen >= each, "{seen} tools are listed");
        }
        settle(scale).await;
        resident.push(process::usage(broker.pid())?.resident_bytes as f64);
    }
    let each = |index: usize| {
        let tools = (backends * (tools - tools / 2)) as f64;
        format!("{:.1} KiB", (resident[index + 2] - resident[index]) / tools / 1024.0)
    };
    let mut table = Table::new(["when", "resident, each tool", "definition"]);
    for (when, index) in [("no client has listed them", 0), ("clients have listed them all", 1)] {
        table.row([when.to_owned(), each(index), format!("{definition} B")]);
    }
    table.print("Resident memory of the broker for each of 5,000 tools of 100 backends");
    Ok(())
}

/// Waits until the allocator has given back what the last lists took for a moment.
async fn settle(scale: Scale) {
    tokio::time::sleep(scale.of(Duration::from_secs(3), Duration::from_millis(50))).await;
}

/// Returns a broker that pins so many tools of each of so many backends, and the backends.
async fn broker_with(
    backends: usize,
    tools: usize,
) -> anyhow::Result<(TestBroker, Vec<FakeBackend>)> {
    let (mut builder, mut running) = (BrokerBuilder::new(broker_binary()?), Vec::new());
    for number in 0..backends {
        let backend = FakeBackend::start().await;
        backend.list("tools", (0..tools).map(|tool| described(number, tool)).collect());
        builder = builder.backend("default", &format!("backend-{number}"), backend.spec());
        running.push(backend);
    }
    Ok((builder.single_process().start().await, running))
}

/// Reads the list of a backend as the broker does when it changes.
fn read(
    number: usize,
    others: &Lists,
    is_pinned: bool,
) -> anyhow::Result<(BackendId, BackendLists)> {
    let id = BackendId::parse(&format!("backend-{number}"))?;
    let tools: Vec<serde_json::Value> = (0..TOOLS).map(|tool| described(number, tool)).collect();
    let list = json!({"tools": tools}).to_string();
    let ignored = IgnoredMembers::default();
    let pinned = is_pinned.then_some(&ignored);
    let host = TaskHost::Broker;
    let mut page =
        read_page_pinned(ListKind::Tools, &id, host, list.as_bytes(), pinned, ListAllowance::WHOLE)
            .map_err(anyhow::Error::msg)?;
    if is_pinned {
        let mut neighbours = Neighbours::default();
        for (other, lists) in others {
            for tool in &lists.tools {
                neighbours.add(other.as_str(), &tool.key, &tool.exposed_key);
            }
        }
        let own: HashSet<&str> = page.entries.iter().map(|tool| tool.key.as_str()).collect();
        for definition in &mut page.definitions {
            definition.compare(&neighbours, &own);
        }
    }
    let mut lists = BackendLists {
        tools: page.entries,
        ..BackendLists::declaring(br#"{"tools":{}}"#).context("capabilities")?
    };
    if is_pinned {
        lists.mark_held(&PinBook::default(), PinMode::Observe, EntryPin::default());
    }
    Ok((id, lists))
}

/// Returns a tool of about a kilobyte.
fn described(backend: usize, tool: usize) -> serde_json::Value {
    let text = "Reads the rows of a table that a filter selects, and returns them in pages. ";
    let property = |number: usize| {
        (format!("argument_{number}"), json!({"type": "string", "description": text}))
    };
    let properties: serde_json::Map<_, _> = (0..6).map(property).collect();
    json!({
        "name": format!("read_rows_{backend}_{tool}"),
        "description": text.repeat(3),
        "inputSchema": {"type": "object", "properties": properties},
        "annotations": {"readOnlyHint": true},
    })
}
