//! Metrics that follow events, and return to their previous values.

use serde_json::json;
use testkit::{FakeBackend, Gate, Reply, TestBroker, eventually};

use crate::{broker_with, builder, configured, configured_alone, initialize_body, tasks};

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
async fn the_request_for_the_outcome_of_a_task_counts_by_that_outcome() {
    let backend = FakeBackend::with_tool("job", |_| async { Reply::error(-32603, "no") }).await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let task = tasks::start(&client, "b__job").await;
    client.error("tasks/result", json!({"taskId": task})).await;
    let labels = [("method", "tasks/result"), ("outcome", "error")];
    broker.admin().wait_metric("mcp_requests_total", &labels, |count| count == 1.0).await;
}

#[tokio::test]
async fn frames_queued_for_a_slow_backend_are_counted_until_they_are_sent() {
    const CHANGED: &str = "notifications/roots/list_changed";
    let gate = Gate::new();
    let backend = FakeBackend::echo().await;
    backend.on(CHANGED, gate.before(Reply::Http { status: 202, headers: vec![], body: "".into() }));
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
    let broker = configured(json!({"telemetry": {"tenant_labels": true}}), backend.spec()).await;
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

/// Starts a broker with metrics by tenant.
pub(super) async fn with_tenant_labels(backend: &FakeBackend) -> TestBroker {
    configured_alone(json!({"telemetry": {"tenant_labels": true}}), backend.spec()).await
}

#[tokio::test]
async fn tenants_with_backends_of_one_name_have_their_own_series() {
    let gate = Gate::new();
    let backend = FakeBackend::with_tool("wait", gate.before(Reply::text("finished"))).await;
    let broker = with_tenant_labels(&backend).await;
    let admin = broker.admin();
    admin.put_tenant("acme", json!({"limits": {"sessions_per_tenant": 1}})).await;
    admin.put_ready_backend("acme", "b", &backend.spec()).await;
    let key = admin.create_key("acme").await;
    let client = broker.client("/mcp").bearer(&key).connected(json!({})).await;
    let call = client.start_call("b__wait", json!({}));
    backend.wait_for("the call", |seen| seen.calls("wait")).await;
    let shows = async |name: &str, tenant: &str, wanted: f64| {
        admin.wait_metric(name, &[("tenant", tenant)], |value| value == wanted).await;
    };
    shows("mcp_tenant_sessions", "acme", 1.0).await;
    shows("mcp_tenant_calls_in_flight", "acme", 1.0).await;
    gate.open();
    call.result().await;
    shows("mcp_tenant_calls_in_flight", "acme", 0.0).await;
    shows("mcp_tenant_call_seconds_count", "acme", 1.0).await;

    let second = broker.client("/mcp").bearer(&key).post(initialize_body("2025-11-25")).await;
    assert_ne!(second.status, 200);
    let limit = [("tenant", "acme"), ("scope", "sessions_per_tenant")];
    admin.wait_metric("mcp_tenant_rate_limited_total", &limit, |count| count == 1.0).await;
    client.delete_session().await;
    shows("mcp_tenant_sessions", "acme", 0.0).await;

    let path = "/admin/v1/tenants/acme/backends/b/breaker";
    assert!(admin.post(path, &json!({"state": "open"})).await.0 < 300);
    shows("mcp_tenant_breaker_state", "acme", 2.0).await;
    shows("mcp_tenant_breaker_state", "default", 0.0).await;
    let of_backend = [("tenant", "acme"), ("backend", "b")];
    for (name, wanted) in [
        ("mcp_tenant_backend_request_seconds_count", 1.0),
        ("mcp_tenant_backend_failures_total", 0.0),
    ] {
        assert_eq!(admin.metric(name, &of_backend).await, Some(wanted), "{name}");
    }
}

#[tokio::test]
async fn failures_of_a_backend_are_counted_by_tenant() {
    let backend = FakeBackend::with_tool("fail", |_| async {
        Reply::Http { status: 500, headers: vec![], body: "".into() }
    })
    .await;
    let broker = with_tenant_labels(&backend).await;
    let client = broker.connected(json!({})).await;
    client.request("tools/call", json!({"name": "b__fail", "arguments": {}})).await;
    let labels = [("tenant", "default"), ("backend", "b")];
    let admin = broker.admin();
    admin.wait_metric("mcp_tenant_backend_failures_total", &labels, |count| count >= 1.0).await;
}

#[tokio::test]
async fn a_removed_backend_or_tenant_leaves_no_series() {
    let backend = FakeBackend::echo().await;
    let broker = builder().config(json!({"telemetry": {"tenant_labels": true}})).start().await;
    let admin = broker.admin();
    admin.put_tenant("acme", json!({})).await;
    admin.put_ready_backend("acme", "brief", &backend.spec()).await;
    let (status, key) = admin.post("/admin/v1/tenants/acme/keys", &json!({})).await;
    assert_eq!(status, 201, "{key}");
    let client =
        broker.client("/mcp").bearer(key["key"].as_str().unwrap()).connected(json!({})).await;
    client.call("brief__echo", json!({})).await;
    let path = "/admin/v1/tenants/acme/backends/brief";
    for state in ["open", "closed"] {
        let (status, answer) =
            admin.post(&format!("{path}/breaker"), &json!({"state": state})).await;
        assert!(status < 300, "{answer}");
    }
    let of_backend = [("backend", "brief")];
    for name in ["mcp_backend_request_seconds_count", "mcp_breaker_transitions_total"] {
        admin.wait_metric(name, &of_backend, |count| count >= 1.0).await;
    }
    let of_tenant = [("tenant", "acme"), ("outcome", "ok")];
    admin.wait_metric("mcp_tenant_requests_total", &of_tenant, |count| count >= 1.0).await;

    let ended = async |label: &str| {
        eventually(&format!("the end of {label}"), || async {
            let text = admin.metrics().await;
            let left: Vec<_> =
                text.lines().filter(|line| line.contains(label)).map(str::to_owned).collect();
            if left.is_empty() { Ok(()) } else { Err(left) }
        })
        .await;
    };
    assert_eq!(admin.delete(path).await.0, 204);
    ended(r#"backend="brief""#).await;
    assert_eq!(admin.delete("/admin/v1/tenants/acme").await.0, 204);
    ended(r#"tenant="acme""#).await;
}
