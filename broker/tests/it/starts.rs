//! The database at a start: spoilt rows, the schema of a newer build, a great many rows, a lock. Tests
//! are named after their faults and promises.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{FakeBackend, PostgresServer, TestClient, eventually};

use crate::{
    builder,
    cluster::{TAKEN_OVER_WITHIN, on, opened_at, over, result_of, served_at, status, task, two},
    text_of,
};

/// Part of every spoilt value that belongs to a user; it may not appear in any output.
const CANARY: &str = "canary-in-a-row";

/// The promise is two seconds; a debug build on a busy machine takes longer.
const STARTS_WITHIN: Duration = Duration::from_secs(6);
const TASKS: usize = 20_000;
const SESSIONS: usize = 2_000;

async fn ping_kind(client: &TestClient) -> String {
    client.attempt("ping", json!({}), TAKEN_OVER_WITHIN).await.kind()
}

#[tokio::test]
async fn f_10_damaged_rows_are_skipped_and_all_others_are_served() {
    let (ledger, spoilt) = (testkit::Ledger::start().await, FakeBackend::echo().await);
    let others = on(&ledger).backend("default", "spoilt", spoilt.spec()).tenant("other");
    let mut cluster = others.cluster(1).start().await;
    let key = cluster.operator().create_key("default").await;
    let (good, bad) = (opened_at(&cluster, 0, &key).await, opened_at(&cluster, 0, &key).await);
    let (kept, lost) = (
        task(&good, "write", json!({"key": "kept"})).await,
        task(&good, "write", json!({"key": "lost"})).await,
    );
    for id in [&kept, &lost] {
        assert_eq!(over(&good, id).await, "completed");
    }
    cluster.kill(0).await;
    let newest = "(SELECT key FROM sessions ORDER BY created_at_us DESC LIMIT 1)";
    for poison in [
        format!("UPDATE tenants SET settings = '{{\"{CANARY}' WHERE tenant = 'other'"),
        format!("UPDATE backends SET settings = '{CANARY}' WHERE backend = 'spoilt'"),
        format!(
            "UPDATE sessions SET agreement = '{CANARY}', state = '{CANARY}', links = '{CANARY}' WHERE key = {newest}"
        ),
        format!("UPDATE tasks SET status = 'lost' WHERE task = '{lost}'"),
    ] {
        cluster.sql(&poison).await;
    }
    // Two starts: the rows that were set aside are still there, and do no more harm the second
    // time.
    for _ in 0..2 {
        cluster.restart(0).await;
        served_at(&cluster, 0, &good).await;
        let good = cluster.at(0, &good);
        cluster.admin(0).wait_backend_state("default", "b", "ready").await;
        assert_eq!(text_of(&result_of(&good, &kept).await), ledger.results("kept")[0]);
        assert_eq!(
            good.attempt("tasks/get", json!({"taskId": lost}), TAKEN_OVER_WITHIN).await.kind(),
            "task_not_found"
        );
        assert_eq!(
            over(&good, &task(&good, "write", json!({"key": "new"})).await).await,
            "completed"
        );
        assert!(opened_at(&cluster, 0, &key).await.session().is_some());
        assert_ne!(
            ping_kind(&cluster.at(0, &bad)).await,
            "result",
            "what it agreed on is not known any more"
        );
        cluster.admin(0).wait_metric("mcp_rows_unreadable_total", &[], |count| count >= 3.0).await;
        for spoilt in ["backend default/spoilt", "tenant other"] {
            cluster.replicas()[0].wait_for_log(spoilt).await;
        }
        let log = cluster.replicas()[0].log();
        assert!(!log.contains(CANARY), "{log}");
        cluster.kill(0).await;
    }
    // An operator repairs it.
    cluster.restart(0).await;
    cluster.operator().put_ready_backend("default", "spoilt", &spoilt.spec()).await;
}

#[tokio::test]
async fn r_8_a_database_of_a_newer_build_is_refused_with_a_message() {
    let server = PostgresServer::fast().await;
    let url = server.database().await;
    let config = json!({"node": {"secret": "0123456789abcdef"}, "storage": {"url": url}});
    drop(builder().config(config.clone()).start().await);
    server.sql(&url, "UPDATE _sqlx_migrations SET version = 999 WHERE version = (SELECT max(version) FROM _sqlx_migrations)").await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.yaml"), config.to_string()).unwrap();
    for command in ["serve", "migrate"] {
        let ended = builder().run(folder.path(), &[command, "--config", "config.yaml"]).await;
        assert_eq!(ended.code, Some(69), "{command}: {ended:?}");
        assert!(ended.stderr.contains("999") && ended.stderr.contains("newer"), "{ended:?}");
    }
}

#[tokio::test]
async fn after_restore_waits_for_the_end_of_each_lease_and_extends_the_audit_log() {
    let server = PostgresServer::fast().await;
    let url = server.database().await;
    let config = json!({"node": {"secret": "0123456789abcdef"}, "storage": {"url": url}});
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.yaml"), config.to_string()).unwrap();
    let command = builder();
    let after_restore =
        || command.run(folder.path(), &["after-restore", "--config", "config.yaml"]);
    let empty = after_restore().await;
    assert_eq!(empty.code, Some(69), "{empty:?}");
    assert!(empty.stderr.contains("restore the copy into it"), "{empty:?}");

    let mut broker = builder().single_process().config(config).start().await;
    let _session = broker.connected(json!({})).await;
    let refused = after_restore().await;
    assert_eq!(refused.code, Some(69), "{refused:?}");
    assert!(refused.stderr.contains("has a lease"), "{refused:?}");
    assert_eq!(server.sql(&url, "SELECT count(*) FROM sessions").await, "1", "nothing has ended");
    assert!(broker.terminate().await.success());

    let ended = after_restore().await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.starts_with("ended sessions: 1,"), "{ended:?}");
    broker.restart().await;
    let listed = broker.cli(&["audit", "export"]).await.stdout;
    let record = listed.lines().find(|line| line.contains("after_restore")).unwrap_or_default();
    let record: Value = serde_json::from_str(record).unwrap_or_default();
    assert_eq!(
        (&record["principal"], &record["target"]),
        (&json!("configuration"), &json!("1 sessions, 0 tasks, 0 approvals")),
        "{listed}"
    );
    let verified = broker.cli(&["audit", "verify"]).await;
    assert_eq!(verified.code, Some(0), "{verified:?}");
}

#[tokio::test]
async fn r_8_replicas_continue_while_a_newer_build_extends_the_schema() {
    let (mut cluster, ledger, key) = two().await;
    let (here, there) = (opened_at(&cluster, 0, &key).await, opened_at(&cluster, 1, &key).await);
    let hanging = task(&here, "put", json!({"key": "hanging", "hang": true})).await;
    ledger.wait_for("hanging").await;
    for table in [
        "tenants",
        "api_keys",
        "backends",
        "nodes",
        "sessions",
        "subscriptions",
        "tasks",
        "task_inputs",
    ] {
        cluster
            .sql(&format!("ALTER TABLE {table} ADD COLUMN later TEXT DEFAULT 'of a newer build'"))
            .await;
    }
    cluster.sql("UPDATE _sqlx_migrations SET version = 999 WHERE version = (SELECT max(version) FROM _sqlx_migrations)").await;
    for (number, client) in [&here, &there].into_iter().enumerate() {
        let plain = client.call("b__write", json!({"key": format!("plain {number}")})).await;
        assert_eq!(text_of(&plain), ledger.results(&format!("plain {number}"))[0]);
        let id = task(client, "write", json!({"key": format!("task {number}")})).await;
        assert_eq!(over(client, &id).await, "completed");
        assert!(opened_at(&cluster, number, &key).await.session().is_some());
    }
    // The other replica's tasks are taken over as always; only a start is refused.
    cluster.kill(0).await;
    served_at(&cluster, 1, &here).await;
    ledger.release();
    assert_eq!(over(&cluster.at(1, &here), &hanging).await, "completed");
    assert_eq!(status(&there, &hanging).await, "completed");
    let refused = cluster.try_restart(0, &[]).await.unwrap_err();
    assert!(refused.contains("999"), "{refused}");
    assert_eq!(
        cluster.sql("SELECT count(*) FROM tasks WHERE later IS NULL").await,
        "0",
        "what it added is left alone"
    );
}

#[tokio::test]
async fn r_5_a_start_does_not_wait_for_stored_data() {
    let (mut cluster, ledger, key) = two().await;
    let client = opened_at(&cluster, 0, &key).await;
    cluster.kill(1).await;
    let running = task(&client, "put", json!({"key": "running", "hang": true})).await;
    ledger.wait_for("running").await;
    for copies in [
        format!(
            "INSERT INTO sessions (key, tenant, principal, endpoint, api_key, transport, version, agreement, state, links, owner, epoch,
                                   created_at_us, seen_at_us)
             SELECT sha256(n::text::bytea), tenant, principal, endpoint, api_key, transport, version, agreement, state, links, owner, 1,
                    created_at_us + n, seen_at_us FROM sessions, generate_series(1, {SESSIONS}) AS n"
        ),
        format!(
            "INSERT INTO tasks (task, tenant, principal, session, private, backend, request, details, ttl_us, expires_at_us, status,
                                bytes, step, epoch, revision, created_at_us, updated_at_us)
             SELECT 'copy-' || n, tenant, principal, session, private, backend, request, details, ttl_us, expires_at_us, 'completed',
                    bytes, 1, 1, 2, created_at_us + n, updated_at_us FROM tasks, generate_series(1, {TASKS}) AS n"
        ),
    ] {
        cluster.sql(&copies).await;
    }
    cluster.kill(0).await;
    let killed = Instant::now();
    cluster.restart(0).await;
    served_at(&cluster, 0, &client).await;
    assert!(killed.elapsed() < STARTS_WITHIN, "{:?}", killed.elapsed());
    ledger.release();
    let client = cluster.at(0, &client);
    eventually("the task of before to be carried out again", || async {
        if over(&client, &running).await == "completed" { Ok(()) } else { Err(()) }
    })
    .await;
}

#[tokio::test]
async fn r_5_a_start_waits_for_a_database_that_does_not_answer() {
    let server = PostgresServer::fast().await;
    let url = server.database().await;
    let config = json!({"node": {"secret": "0123456789abcdef"}, "storage": {"url": url}});
    drop(builder().config(config.clone()).start().await);
    server.sql(&url, "CREATE TABLE gate (is_open BOOLEAN)").await;
    let lock = "DO $$ BEGIN
        LOCK TABLE tenants IN ACCESS EXCLUSIVE MODE;
        WHILE NOT EXISTS (SELECT 1 FROM gate) LOOP PERFORM pg_sleep(0.01); END LOOP;
    END $$";
    let start = async {
        let locks = "SELECT count(*) FROM pg_locks WHERE relation = 'tenants'::regclass AND mode = 'AccessExclusiveLock' AND granted";
        eventually("the lock of the table", || async {
            if server.sql(&url, locks).await == "1" { Ok(()) } else { Err(()) }
        })
        .await;
        builder().config(config.clone()).start().await
    };
    let open = async {
        eventually("a read of the start is cancelled", || async {
            let log = server.log_tail();
            if log.contains("canceling statement due to lock timeout") { Ok(()) } else { Err(log) }
        })
        .await;
        server.sql(&url, "INSERT INTO gate VALUES (TRUE)").await;
    };
    let (broker, _, ()) = tokio::join!(start, server.sql(&url, lock), open);
    assert!(broker.log().contains("the start waits for the database"), "{}", broker.log());
    let client = broker.connected(json!({})).await;
    assert_eq!(ping_kind(&client).await, "result");
}
