//! The owner of a task, and its reported state, under difficult conditions:
//!
//! - commits in doubt
//! - clocks that differ
//! - replicas that are not alike
//! - a store that refuses a value

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use serde_json::json;
use testkit::{
    AttemptOutcome, FakeBackend, Ledger, PostgresServer, Reply, TestBroker, TestClient, eventually,
};

use crate::{
    builder,
    cluster::{
        TAKEN_OVER_WITHIN, as_task, on, opened_at, over, result_of, served_at, status, task, two,
    },
    kind, text_of,
};

const HOUR_US: u64 = 3_600_000_000;

#[tokio::test]
async fn a_run_adopts_a_new_epoch_and_stops_if_another_node_owns_its_task() {
    let (cluster, ledger, key) = two().await;
    let client = opened_at(&cluster, 0, &key).await;
    let kept = task(&client, "write", json!({"key": "kept", "hang": true})).await;
    let lost = task(&client, "write", json!({"key": "lost", "hang": true})).await;
    ledger.wait_for("kept").await;
    ledger.wait_for("lost").await;
    cluster
        .sql(&format!(
            "INSERT INTO nodes (node, lease_until_us) VALUES ('stranger', now_us() + {HOUR_US})"
        ))
        .await;
    cluster.sql(&format!("UPDATE tasks SET epoch = epoch + 1 WHERE task = '{kept}'")).await;
    cluster
        .sql(&format!(
            "UPDATE tasks SET epoch = epoch + 1, owner = 'stranger' WHERE task = '{lost}'"
        ))
        .await;
    ledger.release();
    assert_eq!(over(&client, &kept).await, "completed");
    assert_eq!(text_of(&result_of(&client, &kept).await), ledger.results("kept")[0]);
    cluster.operator().wait_metric("mcp_fenced_writes_total", &[], |fenced| fenced >= 2.0).await;
    assert_eq!(status(&client, &lost).await, "working", "its end is another's to tell");
    assert_eq!(cluster.sql("SELECT string_agg(epoch::text, ',') FROM tasks").await, "2,2");
    assert_eq!((ledger.count("kept"), ledger.count("lost")), (1, 1));
}

/// Trigger that makes each session that makes a task wait until there is a row in `gate`.
const GATE: &str = "CREATE TABLE gate (is_open BOOLEAN);
    CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        WHILE NOT EXISTS (SELECT 1 FROM gate) LOOP PERFORM pg_sleep(0.01); END LOOP;
        RETURN NULL;
    END $$;
    CREATE TRIGGER waits AFTER INSERT ON tasks FOR EACH ROW EXECUTE FUNCTION waits()";

#[tokio::test]
async fn f_34_a_task_with_an_unknown_commit_is_reported_so_and_not_revoked() {
    let ledger = Ledger::start().await;
    let cluster = on(&ledger).cluster(1).behind_proxies().start().await;
    let key = cluster.operator().create_key("default").await;
    let client = opened_at(&cluster, 0, &key).await;
    cluster.sql(GATE).await;
    let mut call = as_task("write", json!({"key": "doubtful"}));
    call["_meta"] = json!({"dev.mcp-broker/idempotency-key": "one"});
    let creating = client.start_request("tools/call", call.clone());
    let writing = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    eventually("the task to be made", || async {
        if cluster.sql(writing).await == "0" { Err(()) } else { Ok(()) }
    })
    .await;
    cluster.proxy(0).refuse().await;
    cluster.proxy(0).reset();
    // Before the server gives up: it continues with the statement it was sent.
    cluster.sql("INSERT INTO gate VALUES (TRUE)").await;
    let refused = creating.error().await;
    assert_eq!(
        (kind(&refused), &refused["data"]["retryable"]),
        ("outcome_unknown", &json!(false)),
        "{refused}"
    );
    eventually("the task", || async {
        if cluster.sql("SELECT count(*) FROM tasks").await == "1" { Ok(()) } else { Err(()) }
    })
    .await;
    cluster.proxy(0).accept_again().await;
    let found = eventually("the task to be found by its key", || async {
        match client.attempt("tools/call", call.clone(), TAKEN_OVER_WITHIN).await {
            AttemptOutcome::Result(known) => {
                Ok(known["task"]["taskId"].as_str().unwrap().to_owned())
            }
            other => Err(other),
        }
    })
    .await;
    assert_eq!(over(&client, &found).await, "completed", "a client that was forwarded keeps it");
    assert_eq!(text_of(&result_of(&client, &found).await), ledger.results("doubtful")[0]);
    assert_eq!(
        (ledger.count("doubtful"), client.list_all("tasks/list", "tasks").await.len()),
        (1, 1)
    );
}

/// Trigger that waits at the commit, behind everything for which the server has limits.
const GATE_OF_COMMITS: &str = "CREATE TABLE gate (is_open BOOLEAN);
    CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        WHILE NOT EXISTS (SELECT 1 FROM gate) LOOP PERFORM pg_sleep(0.01); END LOOP;
        RETURN NULL;
    END $$;
    CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON tasks DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION waits()";

#[tokio::test]
async fn f_34_a_task_whose_commit_is_very_slow_is_still_executed() {
    let ledger = Ledger::start().await;
    let cluster = on(&ledger).cluster(1).start().await;
    let key = cluster.operator().create_key("default").await;
    let client = opened_at(&cluster, 0, &key).await;
    cluster.sql(GATE_OF_COMMITS).await;
    let mut call = as_task("write", json!({"key": "late"}));
    call["_meta"] = json!({"dev.mcp-broker/idempotency-key": "one"});
    let refused = client.start_request("tools/call", call.clone()).error().await;
    assert_eq!(kind(&refused), "outcome_unknown", "{refused}");
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND clock_timestamp() - xact_start > '11 seconds'";
    eventually("everybody to have given up", || async {
        if cluster.sql(waits).await == "0" { Err(()) } else { Ok(()) }
    })
    .await;
    cluster.sql("INSERT INTO gate VALUES (TRUE)").await;
    ledger.wait_for("late").await;
    let known = client.result("tools/call", call).await;
    let id = known["task"]["taskId"].as_str().unwrap();
    assert_eq!(over(&client, id).await, "completed");
    assert_eq!((ledger.count("late"), client.list_all("tasks/list", "tasks").await.len()), (1, 1));
}

#[tokio::test]
async fn f_28_a_database_clock_that_is_an_hour_behind_shortens_no_task() {
    let (mut cluster, ledger, key) = two().await;
    cluster
        .sql(&format!(
            "CREATE OR REPLACE FUNCTION now_us() RETURNS BIGINT LANGUAGE sql VOLATILE AS $$
                 SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - {HOUR_US} $$"
        ))
        .await;
    let ahead = "SELECT count(*) FROM nodes WHERE lease_until_us > now_us() + 60000000";
    eventually("leases by that clock", || async {
        if cluster.sql(ahead).await == "0" { Ok(()) } else { Err(()) }
    })
    .await;
    let client = opened_at(&cluster, 0, &key).await;
    let here = task(&client, "write", json!({"key": "here"})).await;
    assert_eq!(over(&client, &here).await, "completed");
    let moved = task(&client, "put", json!({"key": "moved", "hang": true})).await;
    ledger.wait_for("moved").await;
    cluster.kill(0).await;
    served_at(&cluster, 1, &client).await;
    eventually("the harmless call again", || async {
        if ledger.count("moved") == 2 { Ok(()) } else { Err(()) }
    })
    .await;
    ledger.release();
    assert_eq!(over(&cluster.at(1, &client), &moved).await, "completed");
}

#[tokio::test]
async fn a_call_that_the_backend_did_not_process_is_sent_by_the_next_owner() {
    let is_busy = Arc::new(AtomicBool::new(true));
    let busy = is_busy.clone();
    let backend = FakeBackend::with_tool("job", move |_| {
        let busy = busy.load(Ordering::SeqCst);
        async move {
            if busy {
                // The first owner must not begin another attempt before its end.
                let headers = vec![("retry-after".to_owned(), "5".to_owned())];
                Reply::Http { status: 429, headers, body: String::new().into() }
            } else {
                Reply::text("done")
            }
        }
    })
    .await;
    let mut cluster =
        builder().auth_required().backend("default", "b", backend.spec()).cluster(2).start().await;
    let key = cluster.operator().create_key("default").await;
    let client = opened_at(&cluster, 0, &key).await;
    let id = task(&client, "job", json!({})).await;
    backend.wait_for("the call", |seen| seen.calls("job")).await;
    let step = || async {
        if cluster.sql("SELECT step FROM tasks").await == "0" { Ok(()) } else { Err(()) }
    };
    eventually("it to be on record that nothing was done", step).await;
    cluster.kill(0).await;
    is_busy.store(false, Ordering::SeqCst);
    served_at(&cluster, 1, &client).await;
    let there = cluster.at(1, &client);
    assert_eq!(over(&there, &id).await, "completed");
    assert_eq!(text_of(&result_of(&there, &id).await), "done");
}

#[tokio::test]
async fn an_outcome_that_cannot_be_stored_fails_only_its_own_task() {
    let backend =
        FakeBackend::with_tool("large", |_| async { Reply::text(&"x".repeat(2 << 20)) }).await;
    backend.tool("small", |_| async { Reply::text("small") });
    let cluster =
        builder().auth_required().backend("default", "b", backend.spec()).cluster(1).start().await;
    let key = cluster.operator().create_key("default").await;
    let client = opened_at(&cluster, 0, &key).await;
    let refusing = "CREATE FUNCTION refuses() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            RAISE EXCEPTION 'canceling statement due to statement timeout' USING ERRCODE = '57014';
        END $$;
        CREATE TRIGGER refuses BEFORE UPDATE ON tasks FOR EACH ROW WHEN (length(NEW.outcome) > 1000000) EXECUTE FUNCTION refuses()";
    cluster.sql(refusing).await;
    let large = task(&client, "large", json!({})).await;
    for _ in 0..5 {
        let small = task(&client, "small", json!({})).await;
        assert_eq!(text_of(&result_of(&client, &small).await), "small");
    }
    assert_eq!(over(&client, &large).await, "failed");
    let error = client.error("tasks/result", json!({"taskId": large})).await;
    assert_eq!(
        (kind(&error), &error["data"]["retryable"]),
        ("result_too_large", &json!(false)),
        "{error}"
    );
}

#[tokio::test]
async fn all_waits_for_tasks_share_one_database_query() {
    let (cluster, ledger, key) = two().await;
    let client = opened_at(&cluster, 0, &key).await;
    let id = task(&client, "write", json!({"key": "awaited", "hang": true})).await;
    ledger.wait_for("awaited").await;
    let (waiter, admin) = (opened_at(&cluster, 1, &key).await, cluster.admin(1));
    let waiting: Vec<_> =
        (0..20).map(|_| waiter.start_request("tasks/result", json!({"taskId": id}))).collect();
    let asked = async |operation| {
        admin.metric("mcp_store_seconds_count", &[("operation", operation)]).await.unwrap_or(0.0)
    };
    admin
        .wait_metric("mcp_store_seconds_count", &[("operation", "get_task")], |asked| asked >= 40.0)
        .await;
    let looks = asked("get_task_snapshots").await;
    admin
        .wait_metric("mcp_store_seconds_count", &[("operation", "get_task_snapshots")], |now| {
            now >= looks + 2.0
        })
        .await;
    let before = (asked("get_task").await, asked("get_task_snapshots").await);
    admin
        .wait_metric("mcp_store_seconds_count", &[("operation", "get_task_snapshots")], |now| {
            now >= before.1 + 3.0
        })
        .await;
    assert!(asked("get_task").await <= before.0 + 2.0, "no replica looks for itself");
    // The task ends without a notification.
    cluster.sql("UPDATE tasks SET status = 'cancelled', revision = revision + 1").await;
    for call in waiting {
        assert_eq!(call.error().await["data"]["status"], "cancelled");
    }
    ledger
        .backend()
        .wait_for("the call to be given up", |seen| seen.is("notifications/cancelled"))
        .await;
}

/// Starts one of several replicas on this database, with a backend of its own or without.
async fn replica(url: &str, name: &str, declared: Option<&Ledger>) -> TestBroker {
    let backends = declared.map_or_else(|| json!({}), |ledger| json!({"b": ledger.spec()}));
    let config = json!({
        "listen": {"internal": "127.0.0.1:0"},
        "node": {"id": name, "secret": "one-secret-for-all-of-them-that-is-long"},
        "storage": {"url": url},
        "session": {"lease": "1s"},
        "backends": backends,
    });
    builder().auth_required().config(config).start().await
}

async fn connected(broker: &TestBroker, key: &str) -> TestClient {
    broker.client("/mcp").bearer(key).connected(json!({})).await
}

#[tokio::test]
async fn a_task_of_an_unknown_backend_waits_for_a_node_with_the_backend() {
    let (server, ledger) = (PostgresServer::fast().await, Ledger::start().await);
    let url = server.database().await;
    let mut knows = replica(&url, "knows", Some(&ledger)).await;
    let other = replica(&url, "other", None).await;
    knows.admin().wait_backend_state("default", "b", "ready").await;
    let key = knows.admin().create_key("default").await;
    let id =
        task(&connected(&knows, &key).await, "put", json!({"key": "kept", "hang": true})).await;
    ledger.wait_for("kept").await;
    knows.kill().await;
    eventually("the other to have given it back", || async {
        match server.sql(&url, "SELECT epoch, owner IS NULL FROM tasks").await {
            row if row == "3|t" => Ok(()),
            row => Err(row),
        }
    })
    .await;
    let there = connected(&other, &key).await;
    assert_eq!(status(&there, &id).await, "working", "it is not ended by who does not know it");
    let again = replica(&url, "again", Some(&ledger)).await;
    again.admin().wait_backend_state("default", "b", "ready").await;
    eventually("the call again", || async {
        if ledger.count("kept") == 2 { Ok(()) } else { Err(()) }
    })
    .await;
    ledger.release();
    assert_eq!(over(&there, &id).await, "completed");
}
