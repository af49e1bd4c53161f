//! Calls that become tasks at a bad moment: while the process ends, without capacity for a task,
//! and while the database is away.

use std::{path::Path, time::Duration};

use serde_json::{Value, json};
use testkit::{
    Direction, FakeBackend, FaultProxy, Gate, Reply, TestBroker, TestCluster, eventually,
    eventually_within,
};

use super::{
    Modern, meta,
    tasks::{client_of, task, wait, with_tasks},
};
use crate::{builder, configured_alone, kind, text_of};

/// Longer than the broker looks for a commit whose answer was lost.
const LONG: Duration = Duration::from_secs(60);

/// Returns a backend with a tool `job` that waits at the gate.
async fn gated(done: &Gate) -> FakeBackend {
    FakeBackend::with_tool("job", done.before(Reply::text("done"))).await
}

async fn broker_on(folder: &Path, after: &str, spec: Value) -> TestBroker {
    let url = format!("sqlite:{}", folder.join("broker.db").display());
    let config = json!({"storage": {"url": url}, "tasks": {"promote_after": after}});
    configured_alone(config, spec).await
}

/// The backend is reached for the first time while the call waits.
#[tokio::test]
async fn a_call_that_waited_for_its_backend_becomes_a_task() {
    let done = Gate::new();
    let backend = gated(&done).await;
    let proxy = FaultProxy::start(backend.address()).await;
    proxy.hold(Direction::Upstream, true);
    let spec =
        json!({"transport": {"type": "http", "url": format!("http://{}/mcp", proxy.address())}});
    let broker = builder().config(json!({"tasks": {"promote_after": "150ms"}})).start().await;
    broker.admin().put("/admin/v1/tenants/default/backends/b?wait=false", &spec).await;
    let client = client_of(&broker);
    let call = client.result("tools/call", json!({"name": "b__job"}));
    let reach = async {
        let admin = broker.admin();
        admin.wait_metric("mcp_requests_pending", &[], |pending| pending == 1.0).await;
        proxy.heal();
    };
    let (answer, ()) = tokio::join!(call, reach);
    assert_eq!(answer["resultType"], "task", "{answer}");
    done.open();
    let id = answer["taskId"].as_str().unwrap();
    assert_eq!(text_of(&wait(&client, id, "completed").await["result"]), "done");
}

/// Starts a replica whose calls become tasks soon, with its database behind a proxy. The client
/// knows the tools.
async fn promoting(backend: &FakeBackend) -> (TestCluster, Modern) {
    let config = json!({"tasks": {"promote_after": "150ms"}});
    let cluster = builder()
        .config(config)
        .backend("default", "b", backend.spec())
        .cluster(1)
        .behind_proxies()
        .start()
        .await;
    let client = Modern::at(cluster.replicas()[0].http_address(), "/mcp", with_tasks(json!({})));
    assert!(
        client.result("server/discover", json!({})).await["capabilities"]["extensions"].is_object()
    );
    (cluster, client)
}

#[tokio::test]
async fn n_task_01_f_04_a_call_that_becomes_a_task_during_a_drain_is_finished_and_kept() {
    let (folder, done) = (tempfile::tempdir().unwrap(), Gate::new());
    let backend = gated(&done).await;
    let mut broker = broker_on(folder.path(), "1s", backend.spec()).await;
    let client = client_of(&broker);
    let call =
        tokio::spawn(async move { client.result("tools/call", json!({"name": "b__job"})).await });
    backend.wait_for("the call", |seen| seen.calls("job")).await;
    broker.request_shutdown();
    let created = call.await.unwrap();
    assert_eq!(
        (&created["resultType"], &created["status"]),
        (&json!("task"), &json!("working")),
        "{created}"
    );
    let id = created["taskId"].as_str().unwrap();
    done.open();
    assert_eq!(broker.wait_for_exit().await.code(), Some(0));
    let broker = broker_on(folder.path(), "1s", backend.spec()).await;
    assert_eq!(text_of(&wait(&client_of(&broker), id, "completed").await["result"]), "done");
    assert_eq!(backend.count(|seen| seen.calls("job")), 1);
}

#[tokio::test]
async fn n_task_01_r12_a_call_whose_task_cannot_be_stored_stays_a_call() {
    let done = Gate::new();
    let backend = gated(&done).await;
    let (cluster, client) = promoting(&backend).await;
    let admin = cluster.operator();
    let calling = client.clone();
    let call =
        tokio::spawn(async move { calling.result("tools/call", json!({"name": "b__job"})).await });
    cluster.cut_from_postgres(0);
    backend.wait_for("the call", |seen| seen.calls("job")).await;
    eventually("the attempt to be given up", || async {
        let refused = admin.metric("mcp_task_promotions_total", &[("outcome", "refused")]).await;
        if refused.unwrap_or_default() > 0.0 { Ok(()) } else { Err(refused) }
    })
    .await;
    done.open();
    let answer = call.await.unwrap();
    assert_eq!(
        (text_of(&answer), &answer["resultType"]),
        ("done", &json!("complete")),
        "the answer of the call itself"
    );
    cluster.reconnect_to_postgres(0);
    eventually("no unannounced task to be left", || async {
        let running = cluster.sql("SELECT count(*) FROM tasks WHERE status NOT IN ('completed', 'failed', 'cancelled')").await;
        if running == "0" { Ok(()) } else { Err(running) }
    })
    .await;
    assert_eq!(backend.count(|seen| seen.calls("job")), 1);
}

#[tokio::test]
async fn n_task_01_a_call_that_became_a_task_keeps_only_its_backend_permit() {
    let done = Gate::new();
    let (backend, free) = (gated(&done).await, FakeBackend::echo().await);
    backend.tool("other", |_| async { Reply::text("after it") });
    let mut spec = backend.spec();
    spec["limits"] = json!({"calls_in_flight": 1, "calls_queued": 4});
    let config =
        json!({"limits": {"calls_in_flight_per_tenant": 1}, "tasks": {"promote_after": "150ms"}});
    let broker = builder()
        .single_process()
        .config(config)
        .backend("default", "b", spec)
        .backend("default", "c", free.spec())
        .start()
        .await;
    let (client, admin) = (client_of(&broker), broker.admin());
    let id = task(&client, "b__job", json!({})).await;
    assert_eq!(
        admin.metric("mcp_requests_pending", &[]).await,
        Some(0.0),
        "nobody waits for an answer"
    );
    assert_eq!(
        text_of(&client.call("c__echo", json!({})).await),
        "{}",
        "there is room for another call of the tenant"
    );
    // The backend still runs the call: the next call waits, and counts as in flight.
    let plain = Modern::of(&broker, "/mcp");
    let next = tokio::spawn(async move { plain.call("b__other", json!({})).await });
    admin.wait_metric("mcp_queue_depth", &[("queue", "backend_calls")], |depth| depth == 1.0).await;
    let refused = client.error("tools/call", json!({"name": "c__echo", "arguments": {}})).await;
    assert_eq!(kind(&refused), "too_many_calls");
    assert!(backend.recorded_of("tools/call").iter().all(|seen| seen.calls("job")));
    done.open();
    assert_eq!(text_of(&next.await.unwrap()), "after it");
    assert_eq!(text_of(&wait(&client, &id, "completed").await["result"]), "done");
    // The permit was given back once.
    admin.wait_metric("mcp_requests_pending", &[], |pending| pending == 0.0).await;
    assert_eq!(text_of(&client.call("c__echo", json!({})).await), "{}");
}

/// Condition that a write of tasks waits for a lock. Claims of tasks wait for it too.
const WRITE_WAITS: &str = "EXISTS (SELECT 1 FROM pg_locks JOIN pg_stat_activity USING (pid) \
    WHERE relation = 'tasks'::regclass AND NOT granted AND query LIKE '%write_tasks(%')";

/// Returns the loop that ends when a write of tasks waits for a lock. A transaction would read one
/// state of the activity only.
fn until_write_waits() -> String {
    format!(
        "WHILE NOT {WRITE_WAITS} LOOP PERFORM pg_sleep(0.005), pg_stat_clear_snapshot(); END LOOP"
    )
}

/// Returns the statement that ends when a write of tasks waits for a lock.
fn waited_for() -> String {
    format!("DO $$ BEGIN {}; END $$", until_write_waits())
}

/// Returns the statement that locks the tasks until a write of them has waited a little.
fn held() -> String {
    format!(
        "DO $$ BEGIN LOCK TABLE tasks IN SHARE MODE; {}; PERFORM pg_sleep(0.6); END $$",
        until_write_waits()
    )
}

#[tokio::test]
async fn n_task_01_r12_a_stored_task_whose_commit_answer_was_lost_is_revoked() {
    let done = Gate::new();
    let backend = gated(&done).await;
    let (cluster, client) = promoting(&backend).await;
    let admin = cluster.operator();
    let is = |what: &'static str, query: &'static str, wanted: &'static str| {
        let cluster = &cluster;
        eventually_within(LONG, what, move || async move {
            let found = cluster.sql(query).await;
            if found == wanted { Ok(()) } else { Err(found) }
        })
    };
    let calling = client.clone();
    #[expect(clippy::async_yields_async, reason = "the call is waited for once its work is let go")]
    let making = async {
        is("the lock", "SELECT count(*) FROM pg_locks WHERE relation = 'tasks'::regclass AND mode = 'ShareLock' AND granted", "1").await;
        // It may take longer than other tests wait: the broker looks for a commit in doubt.
        let call = tokio::spawn(async move {
            let params = json!({"name": "b__job", "_meta": meta(calling.capabilities.clone())});
            let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
                .to_string();
            calling
                .client
                .try_send("POST", &calling.headers("tools/call", &params), body.into())
                .await
                .unwrap()
                .json()
                .await["result"]
                .take()
        });
        // The database carries out the statement, and its answer is lost.
        cluster.sql(&waited_for()).await;
        cluster.cut_from_postgres(0);
        is("the task to be stored", "SELECT count(*) FROM tasks", "1").await;
        call
    };
    let held = held();
    let (_held, call) = tokio::join!(cluster.sql(&held), making);
    eventually_within(LONG, "the attempt to be given up", || async {
        let refused = admin.metric("mcp_task_promotions_total", &[("outcome", "refused")]).await;
        if refused.unwrap_or_default() > 0.0 { Ok(()) } else { Err(refused) }
    })
    .await;
    done.open();
    let answer = call.await.unwrap();
    assert_eq!(
        (text_of(&answer), &answer["resultType"]),
        ("done", &json!("complete")),
        "the call itself is answered"
    );
    cluster.reconnect_to_postgres(0);
    is(
        "the task nobody was told of to be cancelled",
        "SELECT string_agg(status, ',') FROM tasks",
        "cancelled",
    )
    .await;
    assert_eq!(backend.count(|seen| seen.calls("job")), 1, "it does not run again");
}
