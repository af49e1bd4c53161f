//! Replicas whose wall clocks are wrong. Leases and times to live use the database's clock, so
//! nothing ends early or late.

use std::time::{Duration, Instant};

use serde_json::json;
use testkit::{FakeClock, Ledger, TestClient, TestCluster, eventually};

use crate::{
    cluster::{on, opened_at, over, result_of, task},
    text_of,
};

/// Longer than a lease of the clusters here, and than the interval of a sweep.
const WATCHED: Duration = Duration::from_secs(4);

/// Interval of the requests meanwhile.
const ROUND: Duration = Duration::from_millis(50);

/// Starts two replicas, of which the second has this clock. The clock is right while they start:
/// libfaketime would add its offset to the monotonic clock of a program that reads that first.
async fn two_with(clock: &FakeClock) -> (TestCluster, Ledger, String) {
    let ledger = Ledger::start().await;
    let env = clock.env();
    let cluster = env
        .iter()
        .fold(on(&ledger).cluster(2), |cluster, (name, value)| cluster.env_of(1, name, value))
        .start()
        .await;
    let key = cluster.operator().create_key("default").await;
    (cluster, ledger, key)
}

/// Sets the clock of the second replica, and waits until the replica shows the new time.
pub(crate) async fn set(cluster: &TestCluster, clock: &FakeClock, offset: &str) {
    clock.set(offset);
    eventually("the replica to see its clock", || async {
        let (right, wrong) = (second(cluster, 0).await, second(cluster, 1).await);
        if right.abs_diff(wrong) > 3 { Ok(()) } else { Err((right, wrong)) }
    })
    .await;
}

/// Returns the seconds in the answer's `Date`: `Sun, 22 Nov 2026 05:07:23 GMT`.
async fn second(cluster: &TestCluster, replica: usize) -> u32 {
    let answer = cluster.admin(replica).send("GET", "/healthz", None).await;
    let date = answer.header("date").expect("answers have a date").to_owned();
    let number = |at: std::ops::Range<usize>| date[at].parse::<u32>().unwrap();
    (number(17..19) * 60 + number(20..22)) * 60 + number(23..25)
}

/// Checks for longer than a lease that both replicas serve the sessions of either, and owners stay
/// the same.
async fn nothing_moves(cluster: &TestCluster, clients: &[TestClient]) {
    let started = Instant::now();
    let mut rounds = tokio::time::interval(ROUND);
    while started.elapsed() < WATCHED {
        rounds.tick().await;
        for client in clients {
            for replica in 0..2 {
                cluster.at(replica, client).result("ping", json!({})).await;
            }
        }
    }
    assert_eq!(
        cluster.sql("SELECT max(epoch), count(*) FROM sessions").await,
        format!("1|{}", clients.len())
    );
    for replica in 0..2 {
        let lost = cluster
            .admin(replica)
            .metric("mcp_node_lease_renewals_total", &[("outcome", "lost")])
            .await;
        assert_eq!(lost.unwrap_or_default(), 0.0, "leases are by the database's clock");
    }
}

#[tokio::test]
async fn f_28_replicas_with_clocks_five_minutes_apart_keep_their_sessions() {
    let clock = FakeClock::set_to("+0");
    let (cluster, ledger, key) = two_with(&clock).await;
    set(&cluster, &clock, "+5m").await;
    let clients = [opened_at(&cluster, 0, &key).await, opened_at(&cluster, 1, &key).await];
    nothing_moves(&cluster, &clients).await;
    for (number, client) in clients.iter().enumerate() {
        let id = task(client, "write", json!({"key": format!("k{number}")})).await;
        for replica in 0..2 {
            let reader = cluster.at(replica, &clients[1 - number]);
            assert_eq!(over(&reader, &id).await, "completed");
            assert_eq!(
                text_of(&result_of(&reader, &id).await),
                ledger.results(&format!("k{number}"))[0]
            );
        }
        assert_eq!(ledger.count(&format!("k{number}")), 1);
    }
}

#[tokio::test]
async fn f_27_a_clock_that_jumps_ends_no_session_and_no_lease() {
    let clock = FakeClock::set_to("+0");
    let (cluster, _ledger, key) = two_with(&clock).await;
    let mut clients = vec![opened_at(&cluster, 0, &key).await, opened_at(&cluster, 1, &key).await];
    for jump in ["+1h", "-1h", "1970-01-02 00:00:00", "+10y", "+0"] {
        clock.set(jump);
        nothing_moves(&cluster, &clients).await;
        clients.push(opened_at(&cluster, 1, &key).await);
    }
}

/// Makes a task with this time to live.
async fn task_for(client: &TestClient, key: &str, ttl: Duration) -> String {
    let arguments = json!({"key": key, "hang": true});
    let params = json!({"name": "b__write", "arguments": arguments, "task": {"ttl": ttl.as_millis() as u64}});
    client.result("tools/call", params).await["task"]["taskId"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn f_27_a_wrong_clock_does_not_change_the_expiry_of_tasks() {
    for offset in ["+1h", "-1h"] {
        let clock = FakeClock::set_to("+0");
        let (cluster, ledger, key) = two_with(&clock).await;
        set(&cluster, &clock, offset).await;
        let client = opened_at(&cluster, 1, &key).await;
        let long = task_for(&client, "long", Duration::from_secs(600)).await;
        let short = task_for(&client, "short", Duration::from_secs(3)).await;
        let made = Instant::now();
        testkit::eventually_within(
            Duration::from_secs(30),
            "the short task to be gone",
            || async {
                match client.request("tasks/get", json!({"taskId": short})).await {
                    answer if answer["error"]["data"]["kind"] == "task_not_found" => Ok(()),
                    answer => Err(answer),
                }
            },
        )
        .await;
        assert!(
            made.elapsed() > Duration::from_secs(2),
            "{offset}: it had three seconds, and not {:?}",
            made.elapsed()
        );
        let view = client.result("tasks/get", json!({"taskId": long})).await;
        assert_eq!(view["status"], "working", "{offset}: {view}");
        ledger.release();
        assert_eq!(over(&cluster.at(0, &client), &long).await, "completed", "{offset}");
        assert_eq!((ledger.count("long"), ledger.count("short")), (1, 1), "{offset}");
    }
}
