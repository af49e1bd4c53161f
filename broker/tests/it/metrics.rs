//! Metrics that follow events, and return to their previous values.

use serde_json::json;
use testkit::{FakeBackend, Gate, Reply};

use crate::{broker_with, builder, tasks};

#[tokio::test]
async fn tasks_are_counted_by_their_status() {
    let done = Gate::new();
    let backend = tasks::with_tasks(&done).await;
    let (broker, keys) = tasks::broker_of(builder().single_process(), &backend).await;
    let admin = broker.admin();
    let client = broker.client("/mcp").bearer(&keys[0]).connected(json!({})).await;
    let (first, _second) =
        (tasks::start(&client, "b__job").await, tasks::start(&client, "b__job").await);
    admin.wait_metric("mcp_tasks", &[("status", "working")], |count| count == 2.0).await;
    client.result("tasks/cancel", json!({"taskId": first})).await;
    admin.wait_metric("mcp_tasks", &[("status", "working")], |count| count == 1.0).await;
    admin.wait_metric("mcp_tasks", &[("status", "cancelled")], |count| count == 1.0).await;
    done.open();
    admin.wait_metric("mcp_tasks", &[("status", "completed")], |count| count == 1.0).await;
    for to in ["cancelled", "completed"] {
        admin.wait_metric("mcp_task_transitions_total", &[("to", to)], |count| count == 1.0).await;
    }
}

#[tokio::test]
async fn frames_queued_for_a_slow_backend_are_counted_until_they_are_sent() {
    const CHANGED: &str = "notifications/roots/list_changed";
    let gate = Gate::new();
    let backend = FakeBackend::echo().await;
    let open = gate.clone();
    backend.on(CHANGED, move |_| {
        let open = open.clone();
        async move {
            open.passed().await;
            Reply::Http { status: 202, headers: vec![], body: "".into() }
        }
    });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({"roots": {"listChanged": true}})).await;
    client.call("b__echo", json!({})).await;
    client.notify(CHANGED, json!({})).await;
    backend.wait_count("the first", 1, |seen| seen.is(CHANGED)).await;
    // The second waits for the first, and the third has the same content as the second.
    client.notify(CHANGED, json!({})).await;
    broker
        .admin()
        .wait_metric("mcp_queue_depth", &[("queue", "http_one_way")], |depth| depth == 1.0)
        .await;
    client.notify(CHANGED, json!({})).await;
    broker
        .admin()
        .wait_metric("mcp_dropped_notifications_total", &[("kind", "repeated")], |count| {
            count == 1.0
        })
        .await;
    gate.open();
    backend.wait_count("both", 2, |seen| seen.is(CHANGED)).await;
    broker.admin().wait_metric("mcp_queue_depth", &[], |depth| depth == 0.0).await;
}

#[tokio::test]
async fn requests_are_counted_by_tenant_where_that_is_configured() {
    let backend = FakeBackend::echo().await;
    let broker = builder()
        .config(json!({"telemetry": {"tenant_labels": true}}))
        .backend("default", "b", backend.spec())
        .start()
        .await;
    let client = broker.connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    client.result("ping", json!({})).await;
    client.error("tools/call", json!({"name": "none"})).await;
    for (outcome, wanted) in [("ok", 2.0), ("refused", 1.0)] {
        let labels = [("tenant", "default"), ("outcome", outcome)];
        broker
            .admin()
            .wait_metric("mcp_tenant_requests_total", &labels, |count| count == wanted)
            .await;
        let all = broker.admin().metric("mcp_requests_total", &[("outcome", outcome)]).await;
        assert_eq!(all, Some(wanted), "both count the same requests");
    }
}
