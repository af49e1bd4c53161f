//! Circuit breakers of several replicas: the verdict of one makes the others probe, and no more.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use testkit::{
    FakeBackend, Gate, GateAnswer, RecordedRequest, Reply, TestClient, TestCluster, eventually,
    eventually_within,
};

use crate::builder;

/// Longest time from a verdict of one replica to its effect on another.
const VERDICT_MAX: Duration = Duration::from_secs(1);
/// Time for which a replica shows the verdict of another one.
const VERDICT_KEPT: Duration = Duration::from_secs(10);

/// A backend that can be switched off, and whose tool `sick` always fails.
struct Patient {
    backend: FakeBackend,
    dead: Arc<AtomicBool>,
}

impl Patient {
    async fn new() -> Self {
        let dead = Arc::new(AtomicBool::new(false));
        let backend = FakeBackend::echo().await;
        backend.tool("sick", |_| async { Reply::status(502) });
        let is_dead = dead.clone();
        backend.gate(move |_, _| {
            let unavailable = || GateAnswer { status: 502, headers: Vec::new(), body: Value::Null };
            is_dead.load(Ordering::Relaxed).then(unavailable)
        });
        Self { backend, dead }
    }

    fn set_dead(&self, dead: bool) {
        self.dead.store(dead, Ordering::Relaxed);
    }

    /// Returns how many calls reached it.
    fn calls(&self) -> usize {
        self.backend.count(|seen| seen.is("tools/call"))
    }
}

async fn cluster(patient: &Patient, replicas: usize) -> (TestCluster, Vec<TestClient>) {
    let builder = builder().backend("default", "b", patient.backend.spec());
    let cluster = builder.cluster(replicas).start().await;
    cluster.ready().await;
    let mut clients = Vec::new();
    for replica in 0..replicas {
        let client = cluster.client_of(replica, "/mcp").connected(json!({})).await;
        client.call("b__echo", json!({})).await;
        clients.push(client);
    }
    (cluster, clients)
}

async fn breaker(cluster: &TestCluster, replica: usize) -> Value {
    cluster.admin(replica).backend("default", "b").await["breaker"].clone()
}

/// Calls a tool of the backend until the breaker of this replica refuses.
async fn until_open(client: &TestClient, tool: &str) {
    eventually("the breaker to refuse a call", || async {
        let answer = client.request("tools/call", json!({"name": tool})).await;
        if answer["error"]["data"]["breaker"].is_string() { Ok(()) } else { Err(answer) }
    })
    .await;
}

async fn verdicts(cluster: &TestCluster, replica: usize, effect: &str) -> f64 {
    let admin = cluster.admin(replica);
    admin.metric("mcp_breaker_verdicts_total", &[("effect", effect)]).await.unwrap_or(0.0)
}

#[tokio::test]
async fn a_backend_found_dead_by_one_replica_gets_only_probes_of_the_others() {
    let patient = Patient::new().await;
    let (cluster, clients) = cluster(&patient, 3).await;
    patient.set_dead(true);
    let before = patient.calls();
    until_open(&clients[0], "b__echo").await;
    let first = patient.calls() - before;
    let opened = Instant::now();
    for replica in 1..3 {
        eventually("the other replicas to open", || async {
            let found = breaker(&cluster, replica).await;
            if found["state"] == "closed" { Err(found) } else { Ok(()) }
        })
        .await;
    }
    println!("the other replicas knew after {:?}", opened.elapsed());
    assert!(opened.elapsed() < VERDICT_MAX, "{:?}", opened.elapsed());
    for (replica, client) in clients.iter().enumerate().skip(1) {
        let found = breaker(&cluster, replica).await;
        assert_eq!(found["reason"], "other_replica", "{found}");
        assert!(found["verdict"]["replica"].as_str().unwrap().starts_with("r1"), "{found}");
        assert_eq!(verdicts(&cluster, replica, "confirmed").await, 1.0);
        for _ in 0..20 {
            let error = client.error("tools/call", json!({"name": "b__echo"})).await;
            assert_eq!(error["data"]["breaker"], "other_replica", "{error}");
        }
    }
    let all = patient.calls() - before;
    println!(
        "calls that reached the dead backend: {first} of the first replica, {all} of all three"
    );
    assert_eq!(all, first, "the others sent probes only");
    // A probe that succeeds at one replica makes the others probe at once.
    patient.set_dead(false);
    for (replica, client) in clients.iter().enumerate() {
        eventually("a call to succeed again", || async {
            let answer = client.request("tools/call", json!({"name": "b__echo"})).await;
            if answer.get("result").is_some() { Ok(()) } else { Err(answer) }
        })
        .await;
        assert_eq!(breaker(&cluster, replica).await["state"], "closed");
    }
}

#[tokio::test]
async fn a_replica_that_reaches_the_backend_ignores_the_verdict_of_another() {
    let patient = Patient::new().await;
    let (cluster, clients) = cluster(&patient, 2).await;
    let stop = Arc::new(AtomicBool::new(false));
    let (healthy, stopped) = (clients[1].clone(), stop.clone());
    let served = tokio::spawn(async move {
        let mut served = 0;
        while !stopped.load(Ordering::Relaxed) {
            let answer = healthy.request("tools/call", json!({"name": "b__echo"})).await;
            assert!(answer.get("result").is_some(), "after {served}: {answer}");
            served += 1;
        }
        served
    });
    until_open(&clients[0], "b__sick").await;
    eventually("the verdict to be refuted", || async {
        let refuted = verdicts(&cluster, 1, "refuted").await;
        if refuted >= 1.0 { Ok(()) } else { Err(refuted) }
    })
    .await;
    let found = breaker(&cluster, 1).await;
    assert_eq!(found["state"], "closed", "{found}");
    assert!(found["verdict"]["replica"].as_str().unwrap().starts_with("r1"), "{found}");
    assert_eq!(verdicts(&cluster, 1, "confirmed").await, 0.0);
    stop.store(true, Ordering::Relaxed);
    println!("calls served meanwhile: {}", served.await.unwrap());
    // The limit of calls is the usual one again.
    let max = cluster.admin(1).backend("default", "b").await["calls_max"].clone();
    assert!(max.as_u64().unwrap() > 1, "{max}");
    eventually("the other one to have probed", || async {
        let found = breaker(&cluster, 0).await;
        if found["state"] == "closed" { Ok(()) } else { Err(found) }
    })
    .await;
}

#[tokio::test]
async fn until_its_own_ping_is_answered_a_replica_sends_one_call_at_a_time() {
    const CALLS: usize = 10;
    let patient = Patient::new().await;
    let (ping, work) = (Gate::new(), Gate::new());
    patient.backend.tool("work", work.before(Reply::text("worked")));
    patient.backend.on("ping", ping.before(Reply::Result(json!({}))));
    let (cluster, clients) = cluster(&patient, 2).await;
    until_open(&clients[0], "b__sick").await;
    let verdict = eventually("the verdict to arrive", || async {
        let found = breaker(&cluster, 1).await;
        if found["verdict"].is_object() { Ok(found) } else { Err(found) }
    });
    assert_eq!(verdict.await["state"], "closed", "a verdict alone opens no breaker");
    let calls = (0..CALLS).map(|_| clients[1].start_call("b__work", json!({})));
    let calls: Vec<_> =
        calls.map(|call| tokio::spawn(call.attempt(Duration::from_secs(60)))).collect();
    let waiting = (CALLS - 1) as f64;
    let queue = [("queue", "backend_calls")];
    cluster.admin(1).wait_metric("mcp_queue_depth", &queue, |depth| depth == waiting).await;
    let at_work = |seen: &RecordedRequest| seen.calls("work");
    patient.backend.wait_count("the first call", 1, at_work).await;
    assert_eq!(patient.backend.count(at_work), 1);
    ping.open();
    patient.backend.wait_count("all calls at once", CALLS, at_work).await;
    let refuted = [("effect", "refuted")];
    let admin = cluster.admin(1);
    admin.wait_metric("mcp_breaker_verdicts_total", &refuted, |count| count >= 1.0).await;
    work.open();
    for call in calls {
        assert_eq!(call.await.unwrap().kind(), "result");
    }
    assert_eq!(breaker(&cluster, 1).await["state"], "closed");
}

#[tokio::test]
async fn the_verdict_of_a_dead_replica_is_dropped_and_opens_no_breaker() {
    let patient = Patient::new().await;
    let (mut cluster, clients) = cluster(&patient, 2).await;
    until_open(&clients[0], "b__sick").await;
    eventually("the verdict to arrive", || async {
        let found = breaker(&cluster, 1).await;
        if found["verdict"].is_object() { Ok(()) } else { Err(found) }
    })
    .await;
    cluster.kill(0).await;
    clients[1].call("b__echo", json!({})).await;
    eventually_within(VERDICT_KEPT * 2, "the verdict to be forgotten", || async {
        let found = breaker(&cluster, 1).await;
        if found.get("verdict").is_none() { Ok(()) } else { Err(found) }
    })
    .await;
    assert_eq!(breaker(&cluster, 1).await["state"], "closed");
}

#[tokio::test]
async fn a_breaker_held_open_by_an_operator_ignores_verdicts_of_replicas() {
    let patient = Patient::new().await;
    let (cluster, clients) = cluster(&patient, 2).await;
    let path = "/admin/v1/tenants/default/backends/b/breaker";
    let (status, body) = cluster.operator().post(path, &json!({"state": "open"})).await;
    assert_eq!(status, 200, "{body}");
    for (replica, client) in clients.iter().enumerate() {
        until_open(client, "b__echo").await;
        let found = breaker(&cluster, replica).await;
        assert_eq!((&found["state"], &found["reason"]), (&json!("open"), &json!("operator")));
        for effect in ["confirmed", "refuted"] {
            assert_eq!(verdicts(&cluster, replica, effect).await, 0.0, "{effect}");
        }
    }
}
