//! Features of every wire, in front and behind. Each function is one feature, for a client with a
//! session of the aggregated endpoint, whose backend `b` is the scripted one.

use futures_util::future::join_all;
use serde_json::{Value, json};
use testkit::{DuplexClient, duplex::DuplexCall, eventually};

use super::{answering, everything, with_stdio, with_tcp};
use crate::text_of;

/// Tests tools with progress and log messages.
pub(super) async fn progress_and_logging(client: &DuplexClient) {
    let names: Vec<Value> = client.result("tools/list", json!({})).await["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["name"].clone())
        .collect();
    assert!(names.contains(&json!("b__progress")), "{names:?}");
    client.result("logging/setLevel", json!({"level": "debug"})).await;
    let call = client
        .start_request(
            "tools/call",
            json!({"name": "b__progress", "arguments": {}, "_meta": {"progressToken": "mine"}}),
        )
        .await;
    for step in 1..=3 {
        let progress = client.notification("notifications/progress").await;
        assert_eq!(
            (&progress["params"]["progressToken"], progress["params"]["progress"].as_f64()),
            (&json!("mine"), Some(f64::from(step)))
        );
    }
    assert_eq!(text_of(&call.result().await), "done");
    client.call("b__log", json!({"level": "warning", "data": {"x": 1}})).await;
    let logged = client.notification("notifications/message").await;
    assert_eq!(
        (&logged["params"]["level"], &logged["params"]["data"]),
        (&json!("warning"), &json!({"x": 1}))
    );
}

pub(super) async fn questions(client: &DuplexClient) {
    let answer: Value =
        serde_json::from_str(text_of(&client.call("b__sample", json!({"prompt": "hi"})).await))
            .unwrap();
    assert_eq!(answer["result"]["content"]["text"], "re: hi");
    let answer: Value =
        serde_json::from_str(text_of(&client.call("b__elicit", json!({"message": "who?"})).await))
            .unwrap();
    assert_eq!(answer["result"]["content"]["name"], "who?");
    let answer: Value =
        serde_json::from_str(text_of(&client.call("b__roots", json!({})).await)).unwrap();
    assert_eq!(answer["result"]["roots"][0]["uri"], "file:///here");
}

pub(super) async fn resources(client: &DuplexClient) {
    let read = client.result("resources/read", json!({"uri": "b+test://one"})).await;
    assert_eq!(read["contents"][0]["text"], "one");
    client.result("resources/subscribe", json!({"uri": "b+test://one"})).await;
    client.call("b__touch", json!({})).await;
    assert_eq!(
        client.notification("notifications/resources/updated").await["params"]["uri"],
        "b+test://one"
    );
    client.result("resources/unsubscribe", json!({"uri": "b+test://one"})).await;
}

/// Tests that a cancelled request gets no answer, and its id is free again.
pub(super) async fn cancellation(client: &DuplexClient) {
    let mut hanging = client.start_call("b__hang", json!({})).await;
    client.result("ping", json!({})).await;
    client
        .notify("notifications/cancelled", json!({"requestId": hanging.id, "reason": "no more"}))
        .await;
    client.call("b__echo", json!({})).await;
    assert!(!hanging.is_answered());
}

pub(super) async fn large_messages(client: &DuplexClient) {
    let text = "x".repeat(1 << 20);
    let result = client.call("b__echo", json!({"text": text})).await;
    let echoed: Value = serde_json::from_str(text_of(&result)).unwrap();
    assert_eq!(echoed["text"].as_str().map(str::len), Some(1 << 20));
}

pub(super) async fn many_calls(client: &DuplexClient) {
    let calls: Vec<DuplexCall> =
        join_all((0..100).map(|n| client.start_call("b__echo", json!({"n": n})))).await;
    for (n, result) in join_all(calls.into_iter().map(DuplexCall::result)).await.iter().enumerate()
    {
        assert_eq!(text_of(result), format!("{{\"n\":{n}}}"));
    }
}

pub(super) async fn every_one(client: &DuplexClient) {
    progress_and_logging(client).await;
    questions(client).await;
    resources(client).await;
    cancellation(client).await;
    large_messages(client).await;
    many_calls(client).await;
}

#[tokio::test]
async fn every_feature_works_over_tcp_with_a_child_process() {
    let broker = with_stdio().await;
    let client =
        answering(broker.duplex()).tcp(broker.tcp_address()).await.connected(everything()).await;
    every_one(&client).await;
    let sessions = broker.admin().sessions("default").await;
    assert_eq!((sessions.len(), &sessions[0]["transport"]), (1, &json!("tcp")), "{sessions:?}");
    drop(client);
    eventually("the session to end with its connection", || async {
        let sessions = broker.admin().sessions("default").await;
        if sessions.is_empty() { Ok(()) } else { Err(sessions) }
    })
    .await;
}

#[tokio::test]
async fn every_feature_works_over_tcp_with_a_tcp_backend() {
    let (broker, _backend) = with_tcp().await;
    let client =
        answering(broker.duplex()).tcp(broker.tcp_address()).await.connected(everything()).await;
    every_one(&client).await;
}
