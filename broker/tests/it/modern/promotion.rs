//! Calls that become tasks at a bad moment: while the process ends, and while the database is away.

use std::path::Path;

use serde_json::{Value, json};
use testkit::{FakeBackend, Gate, Reply, TestBroker, eventually};

use super::{
    Modern,
    tasks::{client_of, wait, with_tasks},
};
use crate::{builder, text_of};

/// A backend with a tool `job` that waits at the gate.
async fn gated(done: &Gate) -> FakeBackend {
    let done = done.clone();
    FakeBackend::with_tool("job", move |_| {
        let done = done.clone();
        async move {
            done.passed().await;
            Reply::text("done")
        }
    })
    .await
}

async fn broker_on(folder: &Path, after: &str, spec: Value) -> TestBroker {
    let url = format!("sqlite:{}", folder.join("broker.db").display());
    let config = json!({"storage": {"url": url}, "tasks": {"promote_after": after}});
    builder().alone().config(config).backend("default", "b", spec).start().await
}

#[tokio::test]
async fn n_task_01_f_04_a_call_that_becomes_a_task_during_a_drain_is_finished_and_kept() {
    let (folder, done) = (tempfile::tempdir().unwrap(), Gate::new());
    let backend = gated(&done).await;
    let mut broker = broker_on(folder.path(), "1s", backend.spec()).await;
    let client = client_of(&broker);
    let call = tokio::spawn(async move { client.result("tools/call", json!({"name": "b__job"})).await });
    backend.wait_for("the call", |seen| seen.calls("job")).await;
    broker.ask_to_end();
    let created = call.await.unwrap();
    assert_eq!((&created["resultType"], &created["status"]), (&json!("task"), &json!("working")), "{created}");
    let id = created["taskId"].as_str().unwrap();
    done.open();
    assert_eq!(broker.exited().await.code(), Some(0));
    let broker = broker_on(folder.path(), "1s", backend.spec()).await;
    assert_eq!(text_of(&wait(&client_of(&broker), id, "completed").await["result"]), "done");
    assert_eq!(backend.count(|seen| seen.calls("job")), 1);
}

#[tokio::test]
async fn n_task_01_r12_a_call_whose_task_can_not_be_stored_goes_on_as_it_was() {
    let done = Gate::new();
    let backend = gated(&done).await;
    let config = json!({"tasks": {"promote_after": "150ms"}});
    let cluster = builder().config(config).backend("default", "b", backend.spec()).cluster(1).behind_proxies().start().await;
    let (replica, admin) = (&cluster.replicas()[0], cluster.operator());
    let client = Modern::at(replica.http_address(), "/mcp", with_tasks(json!({})));
    // What is offered is known before.
    assert!(client.result("server/discover", json!({})).await["capabilities"]["extensions"].is_object());
    let calling = client.clone();
    let call = tokio::spawn(async move { calling.result("tools/call", json!({"name": "b__job"})).await });
    cluster.cut_from_postgres(0);
    backend.wait_for("the call", |seen| seen.calls("job")).await;
    eventually("the attempt to be given up", || async {
        let refused = admin.metric("mcp_task_promotions_total", &[("outcome", "refused")]).await;
        if refused.unwrap_or_default() > 0.0 { Ok(()) } else { Err(refused) }
    })
    .await;
    done.open();
    let answer = call.await.unwrap();
    assert_eq!((text_of(&answer), &answer["resultType"]), ("done", &json!("complete")), "the answer of the call itself");
    cluster.join_to_postgres(0);
    eventually("no task to be left that nobody was told of", || async {
        let running = cluster.sql("SELECT count(*) FROM tasks WHERE status NOT IN ('completed', 'failed', 'cancelled')").await;
        if running == "0" { Ok(()) } else { Err(running) }
    })
    .await;
    assert_eq!(backend.count(|seen| seen.calls("job")), 1);
}
