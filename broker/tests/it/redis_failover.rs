//! Redis with Sentinel and as a cluster: two replicas of the real broker, after the death of a
//! master.

use std::time::Duration;

use serde_json::json;
use testkit::{
    Ledger, TestCluster, eventually,
    servers::{RedisCluster, RedisWithSentinels},
};

use crate::{
    builder,
    limits::replicas::{saturable, saturated},
};

const UPDATED: &str = "notifications/resources/updated";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_follow_a_failover_of_sentinel() {
    let redis = RedisWithSentinels::start().await;
    let fail_over = async || {
        redis.fail_over().await;
    };
    replicas_follow(&redis.url(), fail_over).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_follow_a_failover_of_a_redis_cluster() {
    let redis = RedisCluster::start().await;
    replicas_follow(&redis.url(), async || redis.fail_over().await).await;
}

async fn replicas_follow(url: &str, fail_over: impl AsyncFnOnce()) {
    const RATE: u32 = 40;
    let ledger = Ledger::start().await;
    ledger.backend().list("resources", vec![json!({"uri": "test://one", "name": "one"})]);
    let builder = builder()
        .config(json!({"storage": {"redis_url": url}}))
        .config(saturable())
        .backend("default", "b", ledger.spec())
        .cluster(2);
    let mut cluster = builder.without_redis().start().await;
    cluster.ready().await;
    let client = cluster.client_of(0, "/mcp").connected(json!({})).await;
    let limits = json!({"limits": {"requests_per_second": RATE, "burst": 10}});
    cluster.operator().put_tenant("default", limits).await;
    fail_over().await;
    let one = std::slice::from_ref(&client);
    eventually("rates to be shared", || async {
        saturated(one, Duration::from_millis(100)).await;
        let shared = shared(&cluster).await;
        if shared == [1.0; 4] { Ok(()) } else { Err(shared) }
    })
    .await;
    // One of two replicas lets the whole rate through only if they share it.
    let (served, asked, took) = saturated(one, Duration::from_secs(2)).await;
    let whole = f64::from(RATE) * took.as_secs_f64();
    assert!(asked as f64 > whole, "only {asked} were asked for");
    assert!(
        (served as f64) > whole * 0.8 && (served as f64) < whole * 1.1 + 12.0,
        "{served} instead of {whole}"
    );
    cluster.operator().put_tenant("default", json!({})).await;

    client.result("resources/subscribe", json!({"uri": "b+test://one"})).await;
    let mut general = client.open_get_stream().await;
    let first = general.next().await.unwrap().id.expect("a priming event");
    ledger.backend().wait_get_streams(1).await;
    ledger.backend().notify(UPDATED, json!({"uri": "test://one"})).await;
    let event = general.find(|message| message["method"] == UPDATED).await;
    cluster.terminate(0).await;
    let there = cluster.at(1, &client);
    let mut resumed = eventually("the stream to be resumed", || async {
        let answer = there.get_stream_raw(Some(&first)).await;
        if answer.is_event_stream() { Ok(answer) } else { Err(answer.text().await) }
    })
    .await
    .events();
    assert_eq!(resumed.find(|message| message["method"] == UPDATED).await, event);
    assert_eq!(resumed.gaps(), 0, "the log has the event");
}

/// Returns of both replicas whether wake-ups reach others, and whether rates are shared.
async fn shared(cluster: &TestCluster) -> Vec<f64> {
    let mut all = Vec::new();
    for replica in 0..2 {
        let admin = cluster.admin(replica);
        let connected = admin.metric("mcp_hot_store_connected", &[("store", "redis")]).await;
        all.extend(connected);
        all.extend(admin.metric("mcp_rates_shared", &[]).await);
    }
    all
}
