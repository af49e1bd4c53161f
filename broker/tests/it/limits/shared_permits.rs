//! Limits of sessions, calls and connections over several replicas: by Redis, after the death of a
//! replica, while Redis is away, and without one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use serde_json::{Value, json};
use testkit::{
    AttemptOutcome, FakeBackend, Gate, Reply, TestClient, TestCluster, eventually,
    eventually_within,
};

use crate::{builder, counts, initialize_body, kind};

/// Longest wait for a session to open or to be refused.
const ANSWER: Duration = Duration::from_secs(10);
/// Time after which the permits of a killed replica are free.
const LEASE: Duration = Duration::from_secs(3);

/// Returns a cluster with the tenants `acme` and `other`, of which `acme` has these limits.
async fn cluster(
    replicas: usize,
    redis: bool,
    backend: &FakeBackend,
    limits: Value,
) -> TestCluster {
    let builder = builder().tenant("acme").tenant("other").backend("acme", "b", backend.spec());
    let builder = builder.cluster(replicas);
    let cluster = if redis { builder.start().await } else { builder.without_redis().start().await };
    cluster.ready().await;
    cluster.operator().put_tenant("acme", json!({"limits": limits})).await;
    for replica in 0..replicas {
        let admin = cluster.admin(replica);
        admin.wait_metric("mcp_rates_replicas", &[], |count| count == replicas as f64).await;
    }
    cluster
}

/// Returns a backend whose tool `wait` answers once the gate is open.
async fn waiting_backend(gate: &Gate) -> FakeBackend {
    FakeBackend::with_tool("wait", gate.before(Reply::text("waited"))).await
}

async fn key_of(cluster: &TestCluster, tenant: &str, principal: &str) -> String {
    let path = format!("/admin/v1/tenants/{tenant}/keys");
    let (status, body) = cluster.operator().post(&path, &json!({"principal": principal})).await;
    assert_eq!(status, 201, "{body}");
    body["key"].as_str().unwrap().to_owned()
}

/// Opens a session at a replica, or returns the kind of its refusal.
async fn open(cluster: &TestCluster, replica: usize, key: &str) -> Result<TestClient, String> {
    let client = cluster.client_of(replica, "/mcp").bearer(key);
    let opened = client.try_connect(json!({}), ANSWER).await;
    opened.map(|()| client).map_err(|refused| refused.kind())
}

/// Succeeds if a replica refuses another session, and ends the session otherwise.
async fn is_full(cluster: &TestCluster, replica: usize, key: &str) -> Result<(), String> {
    match open(cluster, replica, key).await {
        Err(why) if why == "too_many_sessions" => Ok(()),
        Err(why) => Err(why),
        Ok(client) => {
            client.delete_session().await;
            Err("opened".to_owned())
        }
    }
}

/// Opens sessions at all replicas in turns until one refuses at each of them.
async fn open_all(cluster: &TestCluster, key: &str) -> Vec<TestClient> {
    let replicas = cluster.replicas().len();
    let (mut opened, mut refused) = (Vec::new(), 0);
    for replica in (0..replicas).cycle() {
        match open(cluster, replica, key).await {
            Ok(client) => {
                opened.push(client);
                refused = 0;
            }
            Err(why) => {
                assert_eq!(why, "too_many_sessions");
                refused += 1;
            }
        }
        if refused == replicas {
            break;
        }
    }
    opened
}

#[tokio::test]
async fn two_replicas_share_the_session_limits_of_a_tenant_and_a_principal() {
    let backend = FakeBackend::echo().await;
    let limits = json!({"sessions_per_tenant": 5, "sessions_per_principal": 3});
    let cluster = cluster(2, true, &backend, limits).await;
    let (ann, bob) = (key_of(&cluster, "acme", "ann").await, key_of(&cluster, "acme", "bob").await);
    let of_ann = open_all(&cluster, &ann).await;
    assert_eq!(of_ann.len(), 3, "those of a principal");
    let of_bob = open_all(&cluster, &bob).await;
    assert_eq!(of_bob.len(), 2, "those of the tenant");
    let other = key_of(&cluster, "other", "eve").await;
    for replica in 0..2 {
        let client = open(&cluster, replica, &other).await.unwrap();
        client.tool_names().await;
    }
    // A session that ends at one replica frees capacity at the other.
    assert!([200, 202, 204].contains(&of_ann[0].delete_session().await));
    let started = Instant::now();
    let again = eventually("room at the other replica", || open(&cluster, 1, &ann)).await;
    println!("room at the other replica after {:?}", started.elapsed());
    assert_eq!(open(&cluster, 0, &ann).await.err().as_deref(), Some("too_many_sessions"));
    drop((of_bob, again));
}

#[tokio::test]
async fn three_replicas_admit_as_many_calls_in_flight_as_one() {
    const MAX: usize = 5;
    let gate = Gate::new();
    let backend = waiting_backend(&gate).await;
    let limits = json!({"calls_in_flight_per_tenant": MAX});
    let cluster = cluster(3, true, &backend, limits).await;
    let key = key_of(&cluster, "acme", "ann").await;
    let mut clients = Vec::new();
    for replica in 0..3 {
        clients.push(open(&cluster, replica, &key).await.unwrap());
    }
    let calls: Vec<_> = (0..4 * MAX)
        .map(|number| {
            let call = clients[number % 3].start_call("b__wait", json!({}));
            tokio::spawn(call.attempt(Duration::from_secs(60)))
        })
        .collect();
    backend.wait_count("calls at the backend", MAX, |seen| seen.calls("wait")).await;
    let refused = cluster_sum(&cluster, "calls_in_flight_per_tenant", 3 * MAX).await;
    assert_eq!(refused, 3 * MAX);
    // Another tenant is not affected.
    let other = open(&cluster, 0, &key_of(&cluster, "other", "eve").await).await.unwrap();
    other.tool_names().await;
    gate.open();
    let outcomes = join_all(calls).await;
    let kinds: Vec<String> = outcomes.into_iter().map(|outcome| outcome.unwrap().kind()).collect();
    assert_eq!(kinds.iter().filter(|kind| *kind == "result").count(), MAX, "{kinds:?}");
    assert_eq!(kinds.iter().filter(|kind| *kind == "too_many_calls").count(), 3 * MAX);
    assert_eq!(backend.count(|seen| seen.calls("wait")), MAX);
    // Their permits come back to any replica.
    eventually("all permits at one replica", || async {
        let calls = (0..MAX)
            .map(|_| clients[2].start_call("b__wait", json!({})).attempt(Duration::from_secs(60)));
        let kinds: Vec<_> = join_all(calls).await.iter().map(AttemptOutcome::kind).collect();
        if kinds.iter().all(|kind| kind == "result") { Ok(()) } else { Err(kinds) }
    })
    .await;
}

/// Waits until the replicas together have refused this many for the reason. Returns how many.
async fn cluster_sum(cluster: &TestCluster, scope: &str, count: usize) -> usize {
    eventually("the refusals", || async {
        let mut sum = 0.0;
        for replica in 0..cluster.replicas().len() {
            let admin = cluster.admin(replica);
            sum += admin.metric("mcp_rate_limited_total", &[("scope", scope)]).await.unwrap_or(0.0);
        }
        if sum >= count as f64 { Ok(sum as usize) } else { Err(sum) }
    })
    .await
}

#[tokio::test]
async fn the_permits_of_a_killed_replica_are_free_after_three_seconds() {
    let backend = FakeBackend::echo().await;
    let limits = json!({"sessions_per_tenant": 4, "connections_per_tenant": 2});
    let mut cluster = cluster(2, true, &backend, limits).await;
    let key = key_of(&cluster, "acme", "ann").await;
    let mut there = Vec::new();
    for _ in 0..3 {
        there.push(open(&cluster, 0, &key).await.unwrap());
    }
    let streams = [there[0].open_get_stream().await, there[1].open_get_stream().await];
    let here = open(&cluster, 1, &key).await.unwrap();
    assert_eq!(open(&cluster, 1, &key).await.err().as_deref(), Some("too_many_sessions"));
    assert_eq!(here.get_stream_raw(None).await.status, 429);
    cluster.kill(0).await;
    let started = Instant::now();
    assert_eq!(
        open(&cluster, 1, &key).await.err().as_deref(),
        Some("too_many_sessions"),
        "its lease has not ended"
    );
    let mut opened = Vec::new();
    for _ in 0..3 {
        let room = "the permits of the dead replica";
        opened.push(eventually_within(LEASE * 2, room, || open(&cluster, 1, &key)).await);
    }
    println!("the permits of a killed replica were free after {:?}", started.elapsed());
    assert!(started.elapsed() < LEASE + Duration::from_secs(2), "{:?}", started.elapsed());
    let stream = eventually("its connections too", || async {
        let answer = here.get_stream_raw(None).await;
        if answer.status == 200 { Ok(answer) } else { Err(answer.status) }
    })
    .await;
    assert_eq!(open(&cluster, 1, &key).await.err().as_deref(), Some("too_many_sessions"));
    // A session that was admitted there is taken over beyond the limit.
    cluster.at(1, &there[2]).tool_names().await;
    assert_eq!(open(&cluster, 1, &key).await.err().as_deref(), Some("too_many_sessions"));
    drop((streams, stream));
}

#[tokio::test]
async fn the_connection_limit_of_a_tenant_applies_over_two_replicas() {
    let backend = FakeBackend::echo().await;
    let cluster = cluster(2, true, &backend, json!({"connections_per_tenant": 3})).await;
    let key = key_of(&cluster, "acme", "ann").await;
    let [one, two] =
        [open(&cluster, 0, &key).await.unwrap(), open(&cluster, 1, &key).await.unwrap()];
    let further = open(&cluster, 1, &key).await.unwrap();
    let stream = one.open_get_stream().await;
    let _second = two.open_get_stream().await;
    let _third = further.open_get_stream().await;
    for client in [open(&cluster, 0, &key).await.unwrap(), open(&cluster, 1, &key).await.unwrap()] {
        assert_eq!(client.get_stream_raw(None).await.status, 429);
    }
    drop(stream);
    let last = open(&cluster, 1, &key).await.unwrap();
    eventually("room at the other replica", || async {
        let answer = last.get_stream_raw(None).await;
        if answer.status == 200 { Ok(()) } else { Err(answer.status) }
    })
    .await;
}

/// Waits until both replicas say whether limits hold over all of them.
async fn wait_shared(cluster: &TestCluster, shared: bool) {
    for replica in 0..cluster.replicas().len() {
        let admin = cluster.admin(replica);
        admin.wait_metric("mcp_rates_shared", &[], |value| value == f64::from(shared)).await;
    }
}

#[tokio::test]
async fn r11_during_a_redis_outage_each_replica_admits_its_share_and_recovers() {
    let backend = FakeBackend::echo().await;
    let cluster = cluster(2, true, &backend, json!({"sessions_per_tenant": 4})).await;
    let key = key_of(&cluster, "acme", "ann").await;
    let first = open(&cluster, 0, &key).await.unwrap();
    cluster.redis().kill().await;
    wait_shared(&cluster, false).await;
    let not_shared = "Redis is unavailable: rates and the limits of sessions, calls and connections do not apply across replicas";
    for replica in cluster.replicas() {
        replica.wait_for_log(not_shared).await;
        assert_eq!(replica.log().matches(not_shared).count(), 1);
    }
    let opened = open_all(&cluster, &key).await;
    assert_eq!(opened.len(), 3, "two at each replica, with the first");
    open(&cluster, 0, &key_of(&cluster, "other", "eve").await).await.unwrap();
    cluster.redis().start_again().await;
    wait_shared(&cluster, true).await;
    cluster.replicas()[1].wait_for_log("rates and the limits of sessions, calls and connections apply across all replicas again").await;
    for replica in 0..2 {
        eventually("what is open to be known again", || is_full(&cluster, replica, &key)).await;
    }
    assert!([200, 202, 204].contains(&first.delete_session().await));
    eventually("a permit that moves to the other replica", || open(&cluster, 1, &key)).await;
}

/// Longest time from a change of an operator to its effect on every replica.
const IN_FORCE: Duration = Duration::from_secs(5);

/// Begins a call that the backend keeps, as soon as a replica admits it.
async fn kept_call(
    backend: &FakeBackend,
    client: &TestClient,
) -> tokio::task::JoinHandle<AttemptOutcome> {
    eventually_within(IN_FORCE, "a call to be admitted", || async {
        let before = backend.count(|seen| seen.calls("wait"));
        let call = client.start_call("b__wait", json!({}));
        let mut call = tokio::spawn(call.attempt(Duration::from_secs(60)));
        tokio::select! {
            refused = &mut call => Err(refused.unwrap().kind()),
            _ = backend.wait_count("the call", before + 1, |seen| seen.calls("wait")) => Ok(call),
        }
    })
    .await
}

/// Asserts that a replica refuses a call.
async fn assert_refused(client: &TestClient) {
    let call = client.start_call("b__wait", json!({}));
    assert_eq!(call.attempt(ANSWER).await.kind(), "too_many_calls");
}

#[tokio::test]
async fn a_changed_limit_is_in_force_on_all_replicas_within_seconds() {
    let gate = Gate::new();
    let backend = waiting_backend(&gate).await;
    backend.tool("echo", |_| async { Reply::text("back") });
    let limits = json!({"calls_in_flight_per_tenant": 1_000, "sessions_per_tenant": 2});
    let cluster = cluster(2, true, &backend, limits).await;
    let key = key_of(&cluster, "acme", "ann").await;
    let [one, two] =
        [open(&cluster, 0, &key).await.unwrap(), open(&cluster, 1, &key).await.unwrap()];
    // Both replicas reserve permits for further calls.
    one.call("b__echo", json!({})).await;
    two.call("b__echo", json!({})).await;
    let limits = json!({"calls_in_flight_per_tenant": 3, "sessions_per_tenant": 3});
    cluster.admin(0).put_tenant("acme", json!({"limits": limits})).await;
    let third = eventually_within(IN_FORCE, "one more session", || open(&cluster, 1, &key)).await;
    assert_eq!(open(&cluster, 0, &key).await.err().as_deref(), Some("too_many_sessions"));
    let mut kept = Vec::new();
    for _ in 0..3 {
        kept.push(kept_call(&backend, &two).await);
    }
    for client in [&one, &two, &third] {
        assert_refused(client).await;
    }
    let limits = json!({"calls_in_flight_per_tenant": 5, "sessions_per_tenant": 1});
    cluster.admin(1).put_tenant("acme", json!({"limits": limits})).await;
    for _ in 0..2 {
        kept.push(kept_call(&backend, &one).await);
    }
    for client in [&one, &two] {
        assert_refused(client).await;
    }
    assert!([200, 202, 204].contains(&third.delete_session().await));
    for replica in 0..2 {
        let why = open(&cluster, replica, &key).await.err();
        assert_eq!(why.as_deref(), Some("too_many_sessions"));
    }
    gate.open();
    for call in kept {
        assert_eq!(call.await.unwrap().kind(), "result");
    }
}

/// Counts the calls that a backend works on at the same time.
#[derive(Debug, Default)]
struct Concurrency {
    now: AtomicUsize,
    most: AtomicUsize,
    done: AtomicUsize,
}

impl Concurrency {
    /// Works on a call for a moment.
    async fn work(&self) {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(20)).await;
        self.now.fetch_sub(1, Ordering::Relaxed);
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until the backend worked on `wanted` calls at once, and for so many calls after that.
    /// Returns the most calls at once since the beginning.
    async fn most_during(&self, calls: usize, wanted: usize) -> usize {
        self.most.store(0, Ordering::Relaxed);
        eventually("the limit to be used up", || async {
            let most = self.most.load(Ordering::Relaxed);
            if most >= wanted { Ok(()) } else { Err(most) }
        })
        .await;
        let last = self.done.load(Ordering::Relaxed) + calls;
        eventually("further calls", || async {
            let done = self.done.load(Ordering::Relaxed);
            if done >= last { Ok(()) } else { Err((done, last)) }
        })
        .await;
        self.most.load(Ordering::Relaxed)
    }
}

/// Calls without a pause until it is stopped. Errors and lost replicas are part of the load.
fn call_on(client: TestClient, stop: &Arc<AtomicBool>) -> tokio::task::JoinHandle<()> {
    let stop = stop.clone();
    tokio::spawn(async move {
        while !stop.load(Ordering::Relaxed) {
            let outcome = client.attempt("tools/call", json!({"name": "b__work"}), ANSWER).await;
            if matches!(outcome, AttemptOutcome::NoAnswer(_)) {
                return;
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r14_the_calls_of_a_tenant_never_exceed_its_limit_while_replicas_die_under_load() {
    const MAX: usize = 6;
    let (rounds, calls) = (counts::count(1, 10), counts::count(200, 1_000));
    let concurrency = Arc::new(Concurrency::default());
    let working = concurrency.clone();
    let backend = FakeBackend::with_tool("work", move |_| {
        let working = working.clone();
        async move {
            working.work().await;
            Reply::text("worked")
        }
    })
    .await;
    let limits = json!({"calls_in_flight_per_tenant": MAX});
    let mut cluster = cluster(3, true, &backend, limits).await;
    let key = key_of(&cluster, "acme", "ann").await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut load = Vec::new();
    for number in 0..4 * MAX {
        load.push(call_on(open(&cluster, number % 3, &key).await.unwrap(), &stop));
    }
    assert_eq!(concurrency.most_during(calls, MAX).await, MAX);
    for round in 0..rounds {
        let dies = round % 3;
        cluster.kill(dies).await;
        assert_eq!(concurrency.most_during(calls, MAX).await, MAX, "after a kill");
        cluster.restart(dies).await;
        cluster.ready().await;
        for _ in 0..MAX {
            load.push(call_on(open(&cluster, dies, &key).await.unwrap(), &stop));
        }
        assert_eq!(concurrency.most_during(calls, MAX).await, MAX, "after a restart");
    }
    // Without Redis each of three replicas has its part, and what was begun ends.
    cluster.redis().kill().await;
    wait_shared(&cluster, false).await;
    let most = concurrency.most_during(calls, MAX).await;
    assert!((MAX..=2 * MAX - MAX / 3).contains(&most), "{most} while Redis was away");
    cluster.redis().start_again().await;
    wait_shared(&cluster, true).await;
    eventually("the limit to hold again", || async {
        let most = concurrency.most_during(calls / 4, MAX).await;
        if most == MAX { Ok(()) } else { Err(most) }
    })
    .await;
    assert_eq!(concurrency.most_during(calls, MAX).await, MAX, "after the outage");
    stop.store(true, Ordering::Relaxed);
    join_all(load).await;
}

#[tokio::test]
async fn after_a_redis_data_loss_replicas_report_their_used_permits() {
    let backend = FakeBackend::echo().await;
    let cluster = cluster(2, true, &backend, json!({"sessions_per_tenant": 2})).await;
    let key = key_of(&cluster, "acme", "ann").await;
    let _open = [open(&cluster, 0, &key).await.unwrap(), open(&cluster, 0, &key).await.unwrap()];
    cluster.redis().flush_all().await;
    eventually("the permits to be reported again", || is_full(&cluster, 1, &key)).await;
}

#[tokio::test]
async fn without_redis_a_replica_has_its_share_of_a_limit_and_at_least_one() {
    let backend = FakeBackend::echo().await;
    let limits = json!({"sessions_per_tenant": 5, "connections_per_tenant": 1});
    let cluster = cluster(2, false, &backend, limits).await;
    let key = key_of(&cluster, "acme", "ann").await;
    let opened = open_all(&cluster, &key).await;
    assert_eq!(opened.len(), 4, "two at each replica");
    let _streams = [opened[0].open_get_stream().await, opened[1].open_get_stream().await];
    assert_eq!(opened[2].get_stream_raw(None).await.status, 429);
    let client = cluster.client_of(0, "/mcp").bearer(&key);
    let answer = client.post(initialize_body("2025-11-25")).await;
    assert_eq!(kind(&answer.json().await["error"]), "too_many_sessions");
}
