//! Several replicas whose PostgreSQL is stopped, frozen, slow, or unreachable for one of them. Some
//! requests continue and others are refused in time, and nothing acknowledged is lost. Tests are
//! named after their faults and promises.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use serde_json::json;
use testkit::{
    AttemptOutcome, Direction, Ledger, TestClient, TestCluster, eventually,
    history::OUTCOME_UNKNOWN,
};

use crate::{
    builder,
    cluster::{TAKEN_OVER_WITHIN, as_task, on, opened_at, over, result_of, served_at, task, two},
    kind, text_of,
};

/// Longest time until a write is refused while the database refuses connections: the promise, and
/// some capacity for a busy machine.
const REFUSED_WITHIN: Duration = Duration::from_millis(1_500);
/// Longest time of the first refusal while the database does not answer at all.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(4);
/// Longest time after the database's return until everything works as before.
pub(crate) const NORMAL_WITHIN: Duration = Duration::from_secs(5);
/// Longest time after the database's loss until a replica reports that it is not ready.
const UNREADY_WITHIN: Duration = Duration::from_secs(5);
const ROUND_TRIP: Duration = Duration::from_millis(200);

/// Makes a call that needs no store; returns its time.
pub(crate) async fn plain_call(client: &TestClient, ledger: &Ledger, key: &str) -> Duration {
    let started = Instant::now();
    assert_eq!(
        text_of(&client.call("b__write", json!({"key": key})).await),
        ledger.results(key)[0]
    );
    started.elapsed()
}

/// Checks that a task is refused because it cannot be stored; returns the time of the refusal.
pub(crate) async fn refused_task(client: &TestClient, key: &str) -> Duration {
    let started = Instant::now();
    let refused = client.error("tools/call", as_task("write", json!({"key": key}))).await;
    assert_eq!(
        (kind(&refused), &refused["data"]["retryable"]),
        ("store_unavailable", &json!(true))
    );
    started.elapsed()
}

/// Returns a task that is made as soon as the store accepts one.
pub(crate) async fn task_soon(client: &TestClient, key: &str) -> String {
    eventually("new tasks to be taken", || async {
        match client
            .attempt("tools/call", as_task("write", json!({"key": key})), TAKEN_OVER_WITHIN)
            .await
        {
            AttemptOutcome::Result(created) => {
                Ok(created["task"]["taskId"].as_str().unwrap().to_owned())
            }
            other => Err(other),
        }
    })
    .await
}

async fn unready(cluster: &TestCluster, replica: usize) {
    eventually("the replica to say that it is not ready", || async {
        match cluster.admin(replica).get("/readyz").await {
            (503, _) => Ok(()),
            other => Err(other),
        }
    })
    .await;
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[tokio::test]
async fn r9_without_postgres_calls_continue_and_durable_requests_are_refused() {
    let (mut cluster, ledger, key) = two().await;
    let client = opened_at(&cluster, 0, &key).await;
    let hanging = task(&client, "write", json!({"key": "hanging", "hang": true})).await;
    ledger.wait_for("hanging").await;
    cluster.postgres_mut().stop_fast().await;
    let away = Instant::now();
    let first = refused_task(&client, "refused").await;
    assert!(first < REFUSED_WITHIN, "{first:?}");
    // A replica that never saw the session finds it, too.
    let elsewhere = cluster.at(1, &client);
    // Longer than a lease: a node keeps its sessions as long as no other node can take them.
    let mut calls = 0;
    while away.elapsed() < Duration::from_secs(3) {
        plain_call(&client, &ledger, &format!("here {calls}")).await;
        plain_call(&elsewhere, &ledger, &format!("there {calls}")).await;
        calls += 1;
    }
    let again = refused_task(&client, "refused").await;
    assert!(again < REFUSED_WITHIN, "{again:?}");
    let asked = Instant::now();
    let opening =
        cluster.client_of(1, "/mcp").bearer(&key).try_connect(json!({}), TAKEN_OVER_WITHIN).await;
    assert_eq!(opening.map_err(|refused| refused.kind()), Err("store_unavailable".to_owned()));
    // A replica that cannot look up the session does not report it as missing.
    let unknown = cluster.client_of(1, "/mcp").bearer(&key);
    unknown.set_session(Some(&client.session().unwrap().chars().rev().collect::<String>()));
    assert_eq!(
        unknown.attempt("ping", json!({}), TAKEN_OVER_WITHIN).await.kind(),
        "store_unavailable"
    );
    assert!(asked.elapsed() < 2 * REFUSED_WITHIN, "{:?}", asked.elapsed());
    ledger.release();
    cluster.postgres_mut().start_again().await;
    let back = Instant::now();
    assert_eq!(over(&client, &hanging).await, "completed", "its outcome waited for the database");
    served_at(&cluster, 1, &client).await;
    let after = task_soon(&client, "after").await;
    assert_eq!(text_of(&result_of(&elsewhere, &after).await), ledger.results("after")[0]);
    assert!(back.elapsed() < NORMAL_WITHIN, "{:?}", back.elapsed());
    assert_eq!((ledger.count("refused"), ledger.count("hanging")), (0, 1));
}

#[tokio::test]
async fn f_32_a_postgres_that_never_answers_delays_no_other_request() {
    let (cluster, ledger, key) = two().await;
    let client = opened_at(&cluster, 0, &key).await;
    cluster.postgres().freeze();
    let asked = Instant::now();
    let creating = client.start_request("tools/call", as_task("write", json!({"key": "stuck"})));
    let mut times = Vec::new();
    for number in 0..20 {
        times.push(plain_call(&client, &ledger, &format!("c{number}")).await);
    }
    let refused = creating.error().await;
    assert_eq!(
        (kind(&refused), &refused["data"]["retryable"]),
        ("store_unavailable", &json!(true))
    );
    assert!(asked.elapsed() < GIVEN_UP_WITHIN, "{:?}", asked.elapsed());
    assert!(median(times) < ROUND_TRIP, "no other request waits with it");
    // Once the loss is known, one request at a time probes the store: of several refused ones
    // hardly one waits.
    let asked = Instant::now();
    for _ in 0..10 {
        refused_task(&client, "stuck").await;
    }
    assert!(asked.elapsed() < 2 * GIVEN_UP_WITHIN, "{:?}", asked.elapsed());
    cluster.postgres().thaw();
    let back = Instant::now();
    let after = task_soon(&client, "after").await;
    assert_eq!(text_of(&result_of(&client, &after).await), ledger.results("after")[0]);
    assert!(back.elapsed() < NORMAL_WITHIN, "{:?}", back.elapsed());
    assert_eq!(ledger.count("stuck"), 0, "what was refused is not done later");
}

#[tokio::test]
async fn f_32_a_task_that_cannot_be_stored_leaves_its_permit_to_other_calls() {
    let ledger = Ledger::start().await;
    let mut spec = ledger.spec();
    spec["limits"] = json!({"calls_in_flight": 1});
    let cluster = builder().auth_required().backend("default", "b", spec).cluster(1).start().await;
    let key = cluster.operator().create_key("default").await;
    let client = opened_at(&cluster, 0, &key).await;
    let first = client.start_call("b__write", json!({"key": "first", "hang": true}));
    ledger.wait_for("first").await;
    let late = task(&client, "write", json!({"key": "late"})).await;
    cluster
        .admin(0)
        .wait_backend("default", "b", "the task to wait", |shown| shown["calls_queued"] == 1)
        .await;
    cluster.postgres().freeze();
    ledger.release();
    first.result().await;
    for number in 0..5 {
        plain_call(&client, &ledger, &format!("c{number}")).await;
    }
    assert_eq!(ledger.count("late"), 0, "the store does not have its step");
    cluster.postgres().thaw();
    assert_eq!(over(&client, &late).await, "completed");
    assert_eq!(ledger.count("late"), 1);
}

#[tokio::test]
async fn r12_a_replica_cut_from_postgres_stops_acknowledging_and_is_fenced() {
    let ledger = Ledger::start().await;
    let cluster = on(&ledger).cluster(2).behind_proxies().start().await;
    let key = cluster.operator().create_key("default").await;
    let client = opened_at(&cluster, 0, &key).await;
    let running = task(&client, "write", json!({"key": "running", "hang": true})).await;
    ledger.wait_for("running").await;
    cluster.cut_from_postgres(0);
    let cut = Instant::now();
    // The connection to the store served the task of before a moment ago. If the broker uses it
    // again without a ping, the write is lost on the way, and its outcome is unknown.
    let refused = client.error("tools/call", as_task("write", json!({"key": "refused"}))).await;
    assert!(["store_unavailable", "outcome_unknown"].contains(&kind(&refused)), "{refused}");
    assert!(cut.elapsed() < GIVEN_UP_WITHIN, "{:?}", cut.elapsed());
    unready(&cluster, 0).await;
    assert!(cut.elapsed() < UNREADY_WITHIN, "{:?}", cut.elapsed());
    // The other replica takes over the sessions of the lapsed lease, though their previous owner
    // still answers.
    served_at(&cluster, 1, &client).await;
    let there = cluster.at(1, &client);
    assert_eq!(over(&there, &running).await, "failed");
    assert_eq!(cluster.sql("SELECT epoch FROM sessions").await, "2");
    ledger.release();
    cluster.reconnect_to_postgres(0);
    served_at(&cluster, 0, &client).await;
    assert_eq!(
        over(&cluster.at(0, &client), &running).await,
        "failed",
        "the late answer of the old owner is fenced off"
    );
    assert_eq!((ledger.count("running"), ledger.count("refused")), (1, 0));
    assert_eq!(cluster.sql("SELECT epoch FROM sessions").await, "2", "one owner at a time");
}

#[tokio::test]
async fn r12_a_replica_that_starts_during_an_outage_takes_no_task_of_a_live_replica() {
    let ledger = Ledger::start().await;
    let mut cluster = on(&ledger).cluster(2).lease("3s").behind_proxies().start().await;
    let key = cluster.operator().create_key("default").await;
    let client = opened_at(&cluster, 0, &key).await;
    let waiting = task(&client, "write", json!({"key": "kept", "hang": true})).await;
    ledger.wait_for("kept").await;
    cluster.kill(1).await;
    cluster.cut_from_postgres(0);
    eventually("the leases to lapse", || async {
        let held = "SELECT count(*) FROM nodes WHERE lease_until_us > now_us()";
        if cluster.sql(held).await == "0" { Ok(()) } else { Err(()) }
    })
    .await;
    cluster.restart(1).await;
    // The second replica is ready, and may have looked for tasks.
    cluster.reconnect_to_postgres(0);
    served_at(&cluster, 0, &client).await;
    // The last of these looks comes after the second replica has settled.
    let looks = [("operation", "claim_tasks")];
    cluster.admin(1).wait_metric("mcp_store_seconds_count", &looks, |looks| looks >= 6.0).await;
    ledger.release();
    assert_eq!(over(&client, &waiting).await, "completed");
    assert_eq!(ledger.count("kept"), 1);
}

#[tokio::test]
async fn r10_a_slow_postgres_delays_only_durable_requests() {
    let ledger = Ledger::start().await;
    let cluster = on(&ledger).cluster(2).behind_proxies().start().await;
    let key = cluster.operator().create_key("default").await;
    let client = opened_at(&cluster, 0, &key).await;
    (0..2).for_each(|replica| cluster.proxy(replica).latency(Direction::Downstream, ROUND_TRIP));
    let elsewhere = cluster.at(1, &client);
    let plain = async {
        let mut times = Vec::new();
        for number in 0..40 {
            times.push(plain_call(&client, &ledger, &format!("here {number}")).await);
            times.push(plain_call(&elsewhere, &ledger, &format!("there {number}")).await);
        }
        times
    };
    // Each is several round trips, and takes its turn with the others.
    let keys: Vec<String> = (0..20).map(|number| format!("task {number}")).collect();
    let stored = join_all(keys.iter().map(|key| task(&client, "write", json!({"key": key}))));
    let (times, tasks) = tokio::join!(plain, stored);
    assert!(median(times) < ROUND_TRIP, "a plain call waits for no answer of the database");
    let collected = tasks.iter().zip(&keys).map(async |(task, key)| {
        assert_eq!(over(&elsewhere, task).await, "completed");
        assert_eq!(
            (ledger.count(key), text_of(&result_of(&client, task).await)),
            (1, ledger.results(key)[0].as_str())
        );
    });
    join_all(collected).await;
    assert!(opened_at(&cluster, 1, &key).await.session().is_some(), "new sessions, too");
    (0..2).for_each(|replica| cluster.proxy(replica).heal());
    let healed = Instant::now();
    let after = task(&client, "write", json!({"key": "after"})).await;
    assert_eq!(over(&client, &after).await, "completed");
    assert!(
        healed.elapsed() < Duration::from_secs(2),
        "nothing is left to wait behind: {:?}",
        healed.elapsed()
    );
    let lost =
        cluster.operator().metric("mcp_node_lease_renewals_total", &[("outcome", "lost")]).await;
    assert_eq!(lost.unwrap_or_default(), 0.0, "leases are renewed in time");
    assert_eq!(cluster.sql("SELECT max(epoch) FROM sessions").await, "1");
}

#[tokio::test]
async fn f_31_an_immediate_stop_of_postgres_loses_no_acknowledged_task() {
    let (mut cluster, ledger, key) = two().await;
    nothing_is_lost_under_load(&mut cluster, &ledger, &key, async |cluster, client| {
        cluster.postgres_mut().stop_immediate().await;
        // By then a task has been refused.
        refused_task(client, "refused").await;
        cluster.postgres_mut().start_again().await;
    })
    .await;
}

/// Clients of both replicas request tasks while `field_error` comes and goes. Soon after it
/// everything works as before.
pub(crate) async fn nothing_is_lost_under_load(
    cluster: &mut TestCluster,
    ledger: &Ledger,
    key: &str,
    fault: impl AsyncFnOnce(&mut TestCluster, &TestClient),
) {
    let mut clients = Vec::new();
    for number in 0..4 {
        clients.push(opened_at(cluster, number % 2, key).await);
    }
    let over_now = AtomicBool::new(false);
    let loads = join_all(
        clients.iter().enumerate().map(|(number, client)| load(client, number, &over_now)),
    );
    let fault = async {
        eventually("the load to be felt", || async {
            if ledger.effects().len() > 12 { Ok(()) } else { Err(()) }
        })
        .await;
        fault(cluster, &clients[0]).await;
        let back = Instant::now();
        let after = task_soon(&clients[1], "after").await;
        assert_eq!(over(&clients[1], &after).await, "completed");
        assert!(back.elapsed() < NORMAL_WITHIN, "{:?}", back.elapsed());
        over_now.store(true, Ordering::Relaxed);
    };
    let (loads, ()) = tokio::join!(loads, fault);
    assert!(kept(&clients, loads, ledger).await > 12);
}

/// Checks that each acknowledged task ran once and each refused one never; returns the number of
/// acknowledged ones.
async fn kept(
    clients: &[TestClient],
    loads: Vec<Vec<(String, AttemptOutcome)>>,
    ledger: &Ledger,
) -> usize {
    let mut made = 0;
    for (client, asked) in clients.iter().zip(loads) {
        for (key, created) in asked {
            match created {
                AttemptOutcome::Result(created) => {
                    made += 1;
                    let id = created["task"]["taskId"].as_str().unwrap().to_owned();
                    assert_eq!(over(client, &id).await, "completed", "{key}");
                    assert_eq!(
                        (ledger.count(&key), text_of(&result_of(client, &id).await)),
                        (1, ledger.results(&key)[0].as_str())
                    );
                }
                // The commit was in flight just then: its outcome is unknown.
                other if other.kind() == OUTCOME_UNKNOWN => {
                    assert!(ledger.count(&key) <= 1, "{key}")
                }
                other => assert_eq!(
                    (other.kind().as_str(), ledger.count(&key)),
                    ("store_unavailable", 0),
                    "{key}"
                ),
            }
        }
        ping(client).await;
    }
    made
}

/// Requests tasks one after the other; returns their outcomes.
async fn load(
    client: &TestClient,
    number: usize,
    over: &AtomicBool,
) -> Vec<(String, AttemptOutcome)> {
    let mut asked = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let key = format!("load {number} {}", asked.len());
        let created = client
            .attempt("tools/call", as_task("write", json!({"key": key})), TAKEN_OVER_WITHIN)
            .await;
        let failed = !matches!(created, AttemptOutcome::Result(_));
        asked.push((key, created));
        if failed {
            // Clients do the same after a refusal that permits a retry.
            ping(client).await;
        }
    }
    asked
}

async fn ping(client: &TestClient) {
    assert_eq!(client.attempt("ping", json!({}), TAKEN_OVER_WITHIN).await.kind(), "result");
}
