//! Subscriptions under faults: cancelled in the middle, on a backend that is replaced, at the
//! session's limit.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use serde_json::json;
use testkit::{FakeBackend, Gate, GateAnswer, Reply, eventually};

use crate::{
    broker_with, builder,
    cluster::{opened_at, served_at},
};

fn with_a_resource(backend: &FakeBackend) {
    backend.list("resources", vec![json!({"uri": "test://one", "name": "one"})]);
}

/// Returns a backend that refuses each subscribe with this code, once the gate is open.
async fn refusing_late(code: i64) -> (FakeBackend, Gate) {
    let gate = Gate::new();
    let backend = FakeBackend::echo().await;
    with_a_resource(&backend);
    let hold = gate.clone();
    backend.on("resources/subscribe", move |_| {
        let hold = hold.clone();
        async move {
            hold.passed().await;
            Reply::Error(json!({"code": code, "message": "no"}))
        }
    });
    (backend, gate)
}

#[tokio::test]
async fn res_04_a_cancelled_subscribe_that_fails_leaves_no_subscription() {
    let (backend, gate) = refusing_late(-32603).await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    for n in 0..5 {
        let _call = client.start_request_with_id(
            json!(1000 + n),
            "resources/subscribe",
            json!({"uri": format!("b+test://{n}")}),
        );
        backend.wait_count("the subscribe", n + 1, |seen| seen.is("resources/subscribe")).await;
        client.notify("notifications/cancelled", json!({"requestId": 1000 + n})).await;
    }
    gate.open();
    eventually("nothing to be left", || async {
        let (_, listed) = broker.admin().get("/admin/v1/subscriptions?tenant=default").await;
        let gauge = broker.admin().metric("mcp_subscriptions", &[]).await;
        if listed.to_string().contains("test://") || gauge != Some(0.0) {
            Err(format!("{listed} {gauge:?}"))
        } else {
            Ok(())
        }
    })
    .await;
}

#[tokio::test]
async fn res_03_subscriptions_move_to_the_backend_that_replaces_theirs() {
    let (one, two) = (FakeBackend::echo().await, FakeBackend::echo().await);
    with_a_resource(&one);
    with_a_resource(&two);
    let broker = broker_with(&one).await;
    let client = broker.connected(json!({})).await;
    client.result("resources/subscribe", json!({"uri": "b+test://one"})).await;
    let mut stream = client.open_get_stream().await;
    broker.admin().put_ready_backend("default", "b", &two.spec()).await;
    two.wait_for("the subscription at the new backend", |seen| seen.is("resources/subscribe"))
        .await;
    // An update may have been missed: the client gets one, in addition to the changed lists.
    let updated = loop {
        let (_, message) = stream.next_message().await.unwrap();
        if message["method"] == "notifications/resources/updated" {
            break message;
        }
    };
    assert_eq!(updated["params"]["uri"], "b+test://one");
    assert_eq!(broker.admin().metric("mcp_subscriptions", &[]).await, Some(1.0));
}

#[tokio::test]
async fn res_03_a_repeated_subscribe_that_fails_keeps_the_subscription() {
    let backend = FakeBackend::echo().await;
    with_a_resource(&backend);
    backend.sessions();
    let is_away = Arc::new(AtomicBool::new(false));
    let gate = is_away.clone();
    backend.gate(move |_, _| {
        let not_found = || GateAnswer { status: 404, headers: Vec::new(), body: json!({}) };
        gate.load(Ordering::Relaxed).then(not_found)
    });
    let broker = builder().backend("default", "b", backend.spec()).start().await;
    let client = broker.connected(json!({})).await;
    let one = json!({"uri": "b+test://one"});
    client.result("resources/subscribe", one.clone()).await;
    is_away.store(true, Ordering::Relaxed);
    eventually("the repeated subscribe to fail", || async {
        // The call finds out that the backend has lost the session.
        client.request("tools/call", json!({"name": "b__echo", "arguments": {}})).await;
        let answer = client.request("resources/subscribe", one.clone()).await;
        if answer["error"].is_object() { Ok(()) } else { Err(answer) }
    })
    .await;
    assert_eq!(broker.admin().metric("mcp_subscriptions", &[]).await, Some(1.0));
    is_away.store(false, Ordering::Relaxed);
    backend.wait_count("the subscription", 2, |seen| seen.is("resources/subscribe")).await;
}

#[tokio::test]
async fn res_03_a_subscription_that_cannot_be_restored_is_tried_again() {
    let backend = FakeBackend::echo().await;
    with_a_resource(&backend);
    backend.sessions();
    let count = AtomicUsize::new(0);
    backend.on("resources/subscribe", move |_| {
        let answer = match count.fetch_add(1, Ordering::Relaxed) {
            1 | 2 => Reply::error(-32603, "still loading"),
            _ => Reply::Result(json!({})),
        };
        async move { answer }
    });
    let broker = builder().backend("default", "b", backend.spec()).start().await;
    let client = broker.connected(json!({})).await;
    let mut stream = client.open_get_stream().await;
    client.result("resources/subscribe", json!({"uri": "b+test://one"})).await;
    backend.forget_sessions();
    client.request("tools/call", json!({"name": "b__echo", "arguments": {}})).await;
    backend.wait_count("the last attempt", 4, |seen| seen.is("resources/subscribe")).await;
    for _missed_and_restored in 0..2 {
        let updated =
            stream.find(|message| message["method"] == "notifications/resources/updated").await;
        assert_eq!(updated["params"]["uri"], "b+test://one");
    }
}

/// Servers with an older Rust SDK so refuse a session that they do not know.
#[tokio::test]
async fn res_03_a_subscription_outlives_a_session_that_is_refused_with_401() {
    let backend = FakeBackend::echo().await;
    with_a_resource(&backend);
    backend.sessions();
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    client.result("resources/subscribe", json!({"uri": "b+test://one"})).await;
    let subscribed =
        backend.wait_for("the subscription", |seen| seen.is("resources/subscribe")).await;
    let lost = subscribed.header("mcp-session-id").unwrap().to_owned();
    backend.wait_get_stream_of(&lost).await;
    backend.gate(move |_, headers| {
        let is_lost = headers.get("mcp-session-id").is_some_and(|id| id == lost.as_str());
        is_lost.then(|| GateAnswer {
            status: 401,
            headers: Vec::new(),
            body: json!("Unauthorized: Session not found"),
        })
    });
    backend.end_get_streams().await;
    backend.wait_count("the subscription again", 2, |seen| seen.is("resources/subscribe")).await;
}

#[tokio::test]
async fn res_03_a_subscription_that_fails_at_a_takeover_is_tried_again() {
    let backend = FakeBackend::echo().await;
    with_a_resource(&backend);
    let count = AtomicUsize::new(0);
    backend.on("resources/subscribe", move |_| {
        let answer = match count.fetch_add(1, Ordering::Relaxed) {
            1 => Reply::error(-32603, "still loading"),
            _ => Reply::Result(json!({})),
        };
        async move { answer }
    });
    let replicas = builder().auth_required().backend("default", "b", backend.spec()).cluster(2);
    let mut cluster = replicas.start().await;
    let key = cluster.operator().create_key("default").await;
    let (moved, other) = (opened_at(&cluster, 0, &key).await, opened_at(&cluster, 1, &key).await);
    moved.result("resources/subscribe", json!({"uri": "b+test://one"})).await;
    // Both sessions share a link at the second replica, and its connection opens before the takeover.
    other.call("b__echo", json!({"message": "m"})).await;
    cluster.kill(0).await;
    served_at(&cluster, 1, &moved).await;
    backend.wait_count("another attempt", 3, |seen| seen.is("resources/subscribe")).await;
}

#[tokio::test]
async fn res_03_a_gap_in_the_get_stream_of_a_backend_is_reported_to_subscribers() {
    let backend = FakeBackend::echo().await;
    with_a_resource(&backend);
    backend.sessions();
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let mut stream = client.open_get_stream().await;
    client.result("resources/subscribe", json!({"uri": "b+test://one"})).await;
    let subscription =
        backend.wait_for("the subscription", |seen| seen.is("resources/subscribe")).await;
    backend.wait_get_stream_of(subscription.header("mcp-session-id").unwrap()).await;
    // The stream had no event id, so the backend cannot repeat what it sends before the next one.
    backend.end_get_streams().await;
    let updated =
        stream.find(|message| message["method"] == "notifications/resources/updated").await;
    assert_eq!(updated["params"]["uri"], "b+test://one");
}

#[tokio::test]
async fn the_subscriptions_of_a_removed_backend_are_removed() {
    let backend = FakeBackend::echo().await;
    with_a_resource(&backend);
    let broker = builder().backend("default", "b", backend.spec()).start().await;
    let client = broker.connected(json!({})).await;
    client.result("resources/subscribe", json!({"uri": "b+test://one"})).await;
    broker.admin().delete("/admin/v1/tenants/default/backends/b").await;
    eventually("the gauge to return to zero", || async {
        let gauge = broker.admin().metric("mcp_subscriptions", &[]).await;
        if gauge == Some(0.0) { Ok(()) } else { Err(gauge) }
    })
    .await;
}

#[tokio::test]
async fn res_03_concurrent_subscribes_of_one_uri_all_get_the_refusal() {
    let (backend, gate) = refusing_late(-32002).await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let calls: Vec<_> = (0..3)
        .map(|_| client.start_request("resources/subscribe", json!({"uri": "b+test://one"})))
        .collect();
    backend.wait_for("the first of them", |seen| seen.is("resources/subscribe")).await;
    gate.open();
    for call in calls {
        let answer = call.response().await.value;
        assert_eq!(answer["error"]["data"]["kind"], "resource_not_found", "{answer}");
    }
    assert_eq!(broker.admin().metric("mcp_subscriptions", &[]).await, Some(0.0));
}
