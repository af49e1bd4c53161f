//! The cost of each operation. If nothing else is said, they come one at a time, so that no two
//! share a statement.

use std::{collections::BTreeMap, time::Duration};

use benches::Scale;
use futures_util::future::join_all;
use serde_json::{Value, json};
use testkit::TestClient;

use crate::{
    counters::{Cost, Counters, RestCost},
    site::{RESOURCE, STEPS, Site, TOOL, call, calls, one_by_one},
};

/// Keys that are stored before one is created under measurement.
const KEYS_STORED: usize = 200;
/// Calls of each client when all make calls at once.
const CALLS_IN_A_ROW: usize = 10;
/// Pause between two changes, so that no replica reads both at once.
const CHANGES_APART: Duration = Duration::from_millis(600);

/// The costs with one number of replicas, by operation.
pub(crate) struct Costs {
    pub(crate) replicas: usize,
    /// All replicas together, in a second.
    pub(crate) rest: Cost,
    pub(crate) operations: Vec<(&'static str, Cost)>,
    pub(crate) connections: Connections,
}

/// Connections and descriptors after all operations.
pub(crate) struct Connections {
    pub(crate) postgres: f64,
    pub(crate) redis: f64,
    /// Descriptors of one replica, the most that any has.
    pub(crate) descriptors: usize,
}

pub(crate) async fn measure(replicas: usize, scale: Scale) -> anyhow::Result<Costs> {
    let count = scale.of(48, 4);
    let site = Site::start(replicas, scale).await?;
    let rest = site.rest().await?;
    let mut operations = Vec::new();
    let mut record =
        |name, cost: Cost, count: usize| operations.push((name, cost.each(count as f64)));

    let (cost, clients) = site.cost(&rest, site.open(count)).await?;
    record("session opened", cost, count);
    record("first call of a session", site.cost(&rest, calls(&clients)).await?.0, count);
    record("further call", site.cost(&rest, calls(&clients)).await?.0, count);
    let at_once = join_all(clients.iter().map(|client| async move {
        for _ in 0..CALLS_IN_A_ROW {
            call(client.clone()).await;
        }
    }));
    let cost = site.cost(&rest, at_once).await?.0;
    record("call of many at once", cost, count * CALLS_IN_A_ROW);
    if replicas > 1 {
        let elsewhere =
            || one_by_one(&clients, |number, client| call(site.elsewhere(number, &client)));
        record("first call at another replica", site.cost(&rest, elsewhere()).await?.0, count);
        record("further call at another replica", site.cost(&rest, elsewhere()).await?.0, count);
    }
    let tasks = one_by_one(&clients, |_, client| task(client));
    record("task, to its collected result", site.cost(&rest, tasks).await?.0, count);
    let calls = one_by_one(&clients, |_, client| async move {
        streamed(client).await;
    });
    record("event of a call's stream", site.cost(&rest, calls).await?.0, count * (STEPS + 1));
    streams(&site, &rest, &clients, &mut record).await?;
    let ends = one_by_one(&clients, |_, client| async move {
        assert!((200..300).contains(&client.delete_session().await), "the session ends");
    });
    record("session closed", site.cost(&rest, ends).await?.0, count);
    let (changes, stored) = scale.of((5, KEYS_STORED), (1, 5));
    record("API key created", key_created(&site, &rest, changes, stored).await?, changes);

    let connections = connections(&site).await?;
    Ok(Costs { replicas, rest: rest.second, operations, connections })
}

pub(crate) async fn task(client: TestClient) {
    let params = json!({"name": TOOL, "arguments": {"text": "a"}, "task": {"ttl": 600_000}});
    let created = client.result("tools/call", params).await;
    client.result("tasks/result", json!({"taskId": created["task"]["taskId"]})).await;
}

/// Makes a call whose progress comes as events that the client could have again.
/// Returns the number of events.
pub(crate) async fn streamed(client: TestClient) -> usize {
    let params = json!({"name": "b__steps", "arguments": {}, "_meta": {"progressToken": 1}});
    let mut call = client.start_request("tools/call", params);
    let answer = call.finish().await.value;
    assert!(answer.get("result").is_some(), "{answer}");
    assert_eq!(call.before.len(), STEPS, "the progress of the call");
    STEPS + 1
}

/// Opens a stream for each client, subscribes, sends an update to all, and undoes both.
async fn streams(
    site: &Site,
    rest: &RestCost,
    clients: &[TestClient],
    record: &mut impl FnMut(&'static str, Cost, usize),
) -> anyhow::Result<()> {
    let count = clients.len();
    let (cost, mut readers) = site
        .cost(rest, async {
            let mut readers = Vec::new();
            for client in clients {
                readers.push(client.open_get_stream().await);
            }
            readers
        })
        .await?;
    record("event stream opened", cost, count);
    let about = json!({"uri": format!("b+{RESOURCE}")});
    let request = |method: &'static str| {
        one_by_one(clients, move |_, client| {
            let about = json!({"uri": format!("b+{RESOURCE}")});
            async move {
                client.result(method, about).await;
            }
        })
    };
    record("subscription", site.cost(rest, request("resources/subscribe")).await?.0, count);
    let (cost, ()) = site
        .cost(rest, async {
            site.backend.notify("notifications/resources/updated", json!({"uri": RESOURCE})).await;
            let wanted = |message: &Value| {
                message["method"] == "notifications/resources/updated"
                    && message["params"]["uri"] == about["uri"]
            };
            join_all(readers.iter_mut().map(|reader| reader.find(wanted))).await;
        })
        .await?;
    record("update to one subscriber", cost, count);
    record("subscription ended", site.cost(rest, request("resources/unsubscribe")).await?.0, count);
    Ok(())
}

/// Creates keys while many are stored. Returns the cost of all of them.
async fn key_created(
    site: &Site,
    rest: &RestCost,
    changes: usize,
    stored: usize,
) -> anyhow::Result<Cost> {
    // An operator of one replica, who does not wait for the others.
    let admin = site.cluster.admin(0);
    for _ in 0..stored.div_ceil(8) {
        join_all((0..8.min(stored)).map(|_| admin.create_key("default"))).await;
    }
    site.settle().await;
    let created = async {
        for _ in 0..changes {
            admin.create_key("default").await;
            tokio::time::sleep(CHANGES_APART).await;
        }
    };
    Ok(site.cost(rest, created).await?.0)
}

pub(crate) async fn connections(site: &Site) -> anyhow::Result<Connections> {
    const COUNT: &str =
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mcp-broker'";
    let postgres = site.cluster.postgres();
    let open = postgres.sql(&postgres.url(), COUNT).await.parse()?;
    let descriptors = |pid| std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    Ok(Connections {
        postgres: open,
        redis: Counters::read(&site.cluster).await?.redis_clients,
        descriptors: site
            .cluster
            .replicas()
            .iter()
            .map(|replica| descriptors(replica.pid()))
            .max()
            .unwrap_or_default(),
    })
}

/// Opens sessions by so many clients at a time. Returns the statements for each session.
pub(crate) async fn batches(
    at_once: &[usize],
    count: usize,
    scale: Scale,
) -> anyhow::Result<BTreeMap<usize, Cost>> {
    let site = Site::start(1, scale).await?;
    let rest = site.rest().await?;
    let mut costs = BTreeMap::new();
    for clients in at_once {
        let opened = async {
            for _ in 0..count / clients {
                let one = || async { site.client(0).connected(json!({})).await };
                join_all((0..*clients).map(|_| one())).await;
            }
        };
        let (cost, ()) = site.cost(&rest, opened).await?;
        costs.insert(*clients, cost.each((count / clients * clients) as f64));
    }
    Ok(costs)
}
