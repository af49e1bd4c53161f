//! Causes that end a connection to a backend, causes that do not, and the repair afterwards.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use testkit::{FakeBackend, Gate, RecordedRequest, Reply};

use crate::{alone_with, broker_with, echo, kind, text_of};

fn is_resumption(seen: &RecordedRequest) -> bool {
    seen.http == "GET" && seen.header("last-event-id").is_some()
}

#[tokio::test]
async fn b_http_04_the_catalog_recovers_from_a_lost_session_without_a_get_stream() {
    let backend = FakeBackend::echo().await;
    backend.sessions().no_get_stream();
    let broker = broker_with(&backend).await;
    broker.admin().wait_backend_state("default", "b", "ready").await;
    let handshakes = backend.recorded_of("initialize").len();
    backend.forget_sessions();
    broker.admin().post("/admin/v1/tenants/default/backends/b/probe", &json!({})).await;
    backend.wait_count("another handshake", handshakes + 1, |seen| seen.is("initialize")).await;
    broker.admin().wait_backend_state("default", "b", "ready").await;
}

#[tokio::test]
async fn b_http_04_every_call_refused_for_a_lost_session_is_repeated() {
    let backend = FakeBackend::echo().await;
    backend.sessions();
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    client.call("b__echo", json!({"n": 0})).await;
    backend.forget_sessions();
    let calls: Vec<_> = (1..=20).map(|n| client.start_call("b__echo", json!({"n": n}))).collect();
    for (index, call) in calls.into_iter().enumerate() {
        assert_eq!(text_of(&call.result().await), format!(r#"{{"n":{}}}"#, index + 1));
    }
}

#[tokio::test]
async fn calls_of_a_silent_backend_end_when_it_is_removed() {
    let backend = FakeBackend::with_tool("silent", |_| async { Reply::Hang }).await;
    let broker = broker_with(&backend).await;
    let call = broker.connected(json!({})).await.start_call("b__silent", json!({}));
    backend.wait_for("the call", |seen| seen.calls("silent")).await;
    broker.admin().delete("/admin/v1/tenants/default/backends/b").await;
    assert_eq!(kind(&call.response().await.value["error"]), "outcome_unknown");
}

#[tokio::test]
async fn a_get_stream_that_cannot_be_resumed_is_reopened_and_ends_no_call() {
    let gate = Gate::new();
    let wait = gate.clone();
    let backend = FakeBackend::with_tool("slow", move |call| {
        let wait = wait.clone();
        async move {
            call.open_stream().await;
            wait.passed().await;
            Reply::text("done")
        }
    })
    .await;
    backend.sessions().no_resumption();
    // One stream is of the catalog, which each process reads for itself. The other is the client's.
    let broker = alone_with(&backend).await;
    let call = broker.connected(json!({})).await.start_call("b__slow", json!({}));
    backend.wait_for("the call", |seen| seen.calls("slow")).await;
    backend.wait_get_streams(2).await;
    let message = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}});
    backend.push_raw(&format!("id: 7\nretry: 100\ndata: {message}\n\n")).await;
    backend.end_get_streams().await;
    backend.wait_count("requests to resume both streams", 2, is_resumption).await;
    backend.wait_get_streams(2).await;
    gate.open();
    assert_eq!(text_of(&call.result().await), "done");
    assert_eq!(backend.count(is_resumption), 2, "the event id was given up");
}

#[tokio::test]
async fn lists_are_fetched_again_once_the_get_stream_is_open_again() {
    let (_broker, backend) = echo().await;
    backend.wait_get_streams(1).await;
    let fetched = backend.recorded_of("tools/list").len();
    backend.end_get_streams().await;
    backend.wait_count("lists again", fetched + 1, |seen| seen.is("tools/list")).await;
    let seen = backend.recorded();
    let last = |wanted: fn(&RecordedRequest) -> bool| seen.iter().rposition(wanted).unwrap();
    assert!(
        last(|seen| seen.is("tools/list")) > last(|seen| seen.http == "GET"),
        "what changed before the stream was open is seen"
    );
}

#[tokio::test]
async fn a_log_level_that_the_backend_refused_is_sent_again() {
    let backend = FakeBackend::echo().await;
    backend.capabilities(json!({"tools": {}, "logging": {}}));
    let failed_once = AtomicBool::new(false);
    backend.on("logging/setLevel", move |_| {
        let first = !failed_once.swap(true, Ordering::Relaxed);
        async move { if first { Reply::status(500) } else { Reply::Result(json!({})) } }
    });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    for sent in [1, 2, 2] {
        client.result("logging/setLevel", json!({"level": "debug"})).await;
        assert_eq!(backend.recorded_of("logging/setLevel").len(), sent);
    }
}

#[tokio::test]
async fn an_unreadable_answer_on_a_stream_fails_its_call_at_once() {
    let backend = FakeBackend::with_tool("broken", |call| async move {
        call.raw(&format!(
            "data: {{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":{{\"text\":\"\\ud800\"}}}}\n\n",
            call.id()
        ))
        .await;
        Reply::Hang
    })
    .await;
    let broker = broker_with(&backend).await;
    let error =
        broker.connected(json!({})).await.error("tools/call", json!({"name": "b__broken"})).await;
    assert_eq!(kind(&error), "backend_protocol_error");
}
