//! PostgreSQL fails over to a standby, or accepts no writes for a while: the rows that are kept and
//! lost. The broker continues at the same address. Tests are named after their faults.

use std::time::Instant;

use serde_json::json;
use testkit::{AttemptOutcome, Direction, FaultProxy, Ledger, TestCluster, eventually};

use crate::{
    cluster::{TAKEN_OVER_WITHIN, on, opened_at, over, result_of, served_at, task, two},
    cluster_outages::{
        NORMAL_WITHIN, nothing_is_lost_under_load, plain_call, refused_task, task_soon,
    },
    text_of,
};

/// Starts two replicas that reach PostgreSQL at an address that a standby can take over.
async fn movable() -> (TestCluster, Ledger, String) {
    let ledger = Ledger::start().await;
    let cluster = on(&ledger).cluster(2).behind_proxies().start().await;
    let key = cluster.operator().create_key("default").await;
    (cluster, ledger, key)
}

#[tokio::test]
async fn f_37_a_failover_to_a_synchronous_standby_loses_no_acknowledged_task() {
    let (mut cluster, ledger, key) = movable().await;
    let standby = cluster.postgres().standby(cluster.postgres().address()).await;
    cluster.postgres().commit_with_standby().await;
    nothing_is_lost_under_load(&mut cluster, &ledger, &key, async |cluster, _| {
        cluster.fail_over_to(standby).await
    })
    .await;
}

#[tokio::test]
async fn f_37_a_failover_to_an_async_standby_loses_only_unshipped_writes() {
    let (mut cluster, ledger, key) = movable().await;
    let feed = FaultProxy::start(cluster.postgres().address()).await;
    let standby = cluster.postgres().standby(feed.address()).await;
    let client = opened_at(&cluster, 0, &key).await;
    let shipped = task(&client, "write", json!({"key": "shipped"})).await;
    assert_eq!(over(&client, &shipped).await, "completed");
    standby.has_all_of(cluster.postgres()).await;
    // The lag: the standby gets no more writes, and commits do not wait for it.
    feed.hole(Direction::Downstream, true);
    let late = opened_at(&cluster, 1, &key).await;
    let unshipped = task(&client, "write", json!({"key": "unshipped"})).await;
    assert_eq!(over(&client, &unshipped).await, "completed", "acknowledged by who is about to die");
    cluster.fail_over_to(standby).await;
    let back = Instant::now();
    let after = task_soon(&client, "after").await;
    assert_eq!(text_of(&result_of(&client, &after).await), ledger.results("after")[0]);
    assert!(back.elapsed() < NORMAL_WITHIN, "{:?}", back.elapsed());
    served_at(&cluster, 1, &client).await;
    for replica in 0..2 {
        let reader = cluster.at(replica, &client);
        assert_eq!(over(&reader, &shipped).await, "completed");
        assert_eq!(text_of(&result_of(&reader, &shipped).await), ledger.results("shipped")[0]);
        let gone =
            reader.attempt("tasks/get", json!({"taskId": unshipped}), TAKEN_OVER_WITHIN).await;
        assert_eq!(gone.kind(), "task_not_found", "documented: {gone:?}");
    }
    assert_eq!(
        ["shipped", "unshipped", "after"].map(|key| ledger.count(key)),
        [1, 1, 1],
        "nothing is done again"
    );
    // The database no longer has this session. It works as long as its owner runs, or is gone; it
    // never causes an internal error.
    let answer = late.attempt("ping", json!({}), TAKEN_OVER_WITHIN).await;
    assert!(matches!(answer.kind().as_str(), "result" | "session_not_found"), "{answer:?}");
    // The second replica detects by itself that the database is back.
    let new = cluster.client_of(1, "/mcp").bearer(&key);
    eventually("new sessions there", || async {
        new.try_connect(json!({}), TAKEN_OVER_WITHIN).await
    })
    .await;
}

#[tokio::test]
async fn f_38_a_read_only_primary_refuses_only_durable_requests() {
    let (cluster, ledger, key) = two().await;
    let client = opened_at(&cluster, 0, &key).await;
    let read_only = async |on: &str| {
        cluster.sql(&format!("ALTER SYSTEM SET default_transaction_read_only = {on}")).await;
        cluster.sql("SELECT pg_reload_conf()").await;
    };
    read_only("on").await;
    eventually("the setting to be felt", || async {
        match client
            .attempt(
                "tools/call",
                crate::cluster::as_task("write", json!({"key": "early"})),
                TAKEN_OVER_WITHIN,
            )
            .await
        {
            AttemptOutcome::Result(_) => Err(()),
            _ => Ok(()),
        }
    })
    .await;
    for number in 0..5 {
        refused_task(&client, "refused").await;
        plain_call(&client, &ledger, &format!("here {number}")).await;
        plain_call(&cluster.at(1, &client), &ledger, &format!("there {number}")).await;
    }
    read_only("off").await;
    // After a switch-over an operator ends all connections to the old primary (57P01).
    cluster.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'mcp-broker'").await;
    let back = Instant::now();
    let after = task_soon(&client, "after").await;
    assert_eq!(text_of(&result_of(&client, &after).await), ledger.results("after")[0]);
    served_at(&cluster, 1, &client).await;
    assert!(back.elapsed() < NORMAL_WITHIN, "{:?}", back.elapsed());
    assert_eq!(ledger.count("refused"), 0);
}
