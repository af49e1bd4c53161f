//! Rates over several replicas: by Redis, while it is away, and without one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use testkit::{FakeBackend, TestClient, TestCluster, eventually};

use super::assert_rate_limited;
use crate::{builder, request};

/// Returns a cluster whose tenant `default` has this rate, and a client of each replica.
async fn cluster(
    replicas: usize,
    redis: bool,
    rate: (u32, u32),
) -> (TestCluster, FakeBackend, Vec<TestClient>) {
    let backend = FakeBackend::echo().await;
    let builder = builder().config(saturable()).backend("default", "b", backend.spec());
    let builder = builder.cluster(replicas);
    let cluster = if redis { builder.start().await } else { builder.without_redis().start().await };
    cluster.ready().await;
    let mut clients = Vec::new();
    for replica in 0..replicas {
        clients.push(cluster.client_of(replica, "/mcp").connected(json!({})).await);
    }
    let limits = json!({"limits": {"requests_per_second": rate.0, "burst": rate.1}});
    cluster.operator().put_tenant("default", limits).await;
    (cluster, backend, clients)
}

/// Returns the configuration for [`saturated`], whose requests have a connection each.
pub(crate) fn saturable() -> Value {
    json!({"limits": {"connections_per_second_per_address": 0}})
}

/// Sends to each replica as fast as it answers, from several clients. Returns how many requests
/// were accepted, how many were sent, and the time.
pub(crate) async fn saturated(clients: &[TestClient], time: Duration) -> (usize, usize, Duration) {
    let stop = Arc::new(AtomicBool::new(false));
    let mut workers = Vec::new();
    let started = Instant::now();
    for client in clients.iter().flat_map(|client| [client.clone(), client.clone()]) {
        let stop = stop.clone();
        workers.push(tokio::spawn(async move {
            let (mut served, mut asked) = (0, 0);
            while !stop.load(Ordering::Relaxed) {
                asked += 1;
                let response =
                    client.post(request(client.take_id(), "tools/list", json!({}))).await;
                match response.status {
                    200 => served += 1,
                    status => {
                        assert_eq!(status, 429);
                        assert_rate_limited(&response.json().await["error"], "tenant");
                    }
                }
            }
            (served, asked)
        }));
    }
    tokio::time::sleep(time).await;
    stop.store(true, Ordering::Relaxed);
    let mut all = (0, 0);
    for worker in workers {
        let (served, asked) = worker.await.unwrap();
        all = (all.0 + served, all.1 + asked);
    }
    (all.0, all.1, started.elapsed())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_26_three_replicas_admit_the_rate_of_one() {
    const RATE: u32 = 30;
    let (cluster, _backend, clients) = cluster(3, true, (RATE, RATE / 2)).await;
    for replica in 0..3 {
        cluster
            .admin(replica)
            .wait_metric("mcp_rates_replicas", &[], |replicas| replicas == 3.0)
            .await;
        assert_eq!(cluster.admin(replica).metric("mcp_rates_shared", &[]).await, Some(1.0));
    }
    let (served, asked, took) = saturated(&clients, Duration::from_secs(10)).await;
    let exact = f64::from(RATE / 2) + f64::from(RATE) * took.as_secs_f64();
    let error = (served as f64 - exact) / exact;
    println!(
        "three replicas: {served} of {asked} let through in {took:?}, exact {exact:.0}, error {:.2} %",
        error * 100.0
    );
    assert!(asked as f64 > exact * 1.2, "they were not saturated: {asked} asked");
    assert!(error.abs() <= 0.02, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r11_during_a_redis_outage_each_replica_admits_its_share() {
    const RATE: u32 = 40;
    let (cluster, _backend, clients) = cluster(2, true, (RATE, 10)).await;
    saturated(&clients, Duration::from_secs(1)).await;
    cluster.redis().kill().await;
    eventually("the loss to be noticed", || async {
        saturated(&clients, Duration::from_millis(100)).await;
        let mut left = Vec::new();
        for replica in 0..2 {
            left.push(cluster.admin(replica).metric("mcp_rates_shared", &[]).await.unwrap());
        }
        if left == [0.0, 0.0] { Ok(()) } else { Err(left) }
    })
    .await;
    let (served, asked, took) = saturated(&clients[..1], Duration::from_secs(4)).await;
    let part = f64::from(RATE / 2) * took.as_secs_f64();
    // On a machine that is busy with other work they may not have sent all of it.
    assert!(asked as f64 > part * 0.5, "only {asked} were asked for");
    assert!(
        (served as f64) > part.min(asked as f64) * 0.8 && (served as f64) < part * 1.1 + 6.0,
        "{served} instead of {part}"
    );
    let not_shared = "Redis is unavailable: rates and the limits of sessions, calls and connections do not apply across replicas";
    cluster.replicas()[0].wait_for_log(not_shared).await;
    assert_eq!(cluster.replicas()[0].log().matches(not_shared).count(), 1);
    cluster.redis().start_again().await;
    eventually("rates to be shared again", || async {
        saturated(&clients, Duration::from_millis(100)).await;
        let shared = cluster.admin(0).metric("mcp_rates_shared", &[]).await.unwrap();
        if shared == 1.0 { Ok(()) } else { Err(shared) }
    })
    .await;
    cluster.replicas()[0].wait_for_log("rates and the limits of sessions, calls and connections apply across all replicas again").await;
    let (served, asked, took) = saturated(&clients[..1], Duration::from_secs(4)).await;
    let whole = f64::from(RATE) * took.as_secs_f64();
    assert!(asked as f64 > whole * 0.5, "only {asked} were asked for");
    assert!(
        (served as f64) > whole.min(asked as f64) * 0.8 && (served as f64) < whole * 1.1 + 12.0,
        "{served} instead of {whole}"
    );
}

#[tokio::test]
async fn without_redis_the_share_of_a_replica_follows_from_the_leases() {
    let (cluster, _backend, clients) = cluster(2, false, (1, 40)).await;
    assert_eq!(cluster.admin(0).metric("mcp_rates_shared", &[]).await, Some(0.0));
    cluster.admin(0).wait_metric("mcp_rates_replicas", &[], |replicas| replicas == 2.0).await;
    let (mut served, started) = (0, Instant::now());
    while clients[0].post(request(clients[0].take_id(), "tools/list", json!({}))).await.status
        == 200
    {
        served += 1;
    }
    assert!((19..=21 + started.elapsed().as_secs()).contains(&served), "{served}");
}
