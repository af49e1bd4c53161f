//! Messages that cannot be translated between the eras are refused, or left out, at once: never a
//! wait, never a silent loss.

use serde_json::{Value, json};
use testkit::{BackendCall, DuplexClient, FakeBackend, Reply};

use super::{Modern, inputs::backend_with_questions, meta};
use crate::{broker_with, builder, configured_alone, text_of};

fn everything() -> Value {
    json!({"sampling": {}, "roots": {}, "elicitation": {"form": {}, "url": {}}})
}

fn form() -> Value {
    json!({"mode": "form", "message": "who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}})
}

fn sample() -> Value {
    json!({"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 5})
}

/// Sends each kind of request to the client; returns the code of an error, or the action.
async fn request_all_kinds(call: &BackendCall) -> Value {
    let mut answers = Vec::new();
    for (method, params) in [
        ("roots/list", json!({})),
        ("sampling/createMessage", sample()),
        ("elicitation/create", form()),
    ] {
        let answer = call.request(method, params).await;
        answers.push(if answer.get("error").is_some() {
            answer["error"]["code"].clone()
        } else {
            answer["result"].clone()
        });
    }
    json!(answers)
}

/// Returns the answers to requests that no client of 2026-07-28 can get. An elicitation has an
/// answer for that, the others an error.
fn refused() -> Value {
    json!([-32601, -32601, {"action": "cancel"}])
}

#[tokio::test]
async fn br_07_questions_without_an_open_request_are_refused() {
    let backend = backend_with_questions().await;
    backend.sessions();
    let broker = broker_with(&backend).await;
    let client = Modern::of(&broker, "/mcp/b").with(everything());
    client.call("ask", json!({"asks": []})).await;
    let call = backend.recorded_of("tools/call").pop().unwrap();
    let session = call.header("mcp-session-id").unwrap();
    let mut answers = Vec::new();
    for (method, params) in [
        ("roots/list", json!({})),
        ("sampling/createMessage", sample()),
        ("elicitation/create", form()),
    ] {
        let id = format!("free {method}");
        let question = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        // Its stream may be opened after its first request.
        while backend.push_to(session, question.clone()).await == 0 {
            tokio::task::yield_now().await;
        }
        let is_answer = |seen: &testkit::RecordedRequest| {
            seen.message["id"] == id.as_str() && seen.message.get("method").is_none()
        };
        let answer = backend.wait_for("an answer", is_answer).await.message;
        answers.push(if answer.get("error").is_some() {
            answer["error"]["code"].clone()
        } else {
            answer["result"].clone()
        });
    }
    assert_eq!(json!(answers), refused());
}

#[tokio::test]
async fn br_07_questions_during_lists_completions_and_subscriptions_are_refused() {
    let backend = FakeBackend::start().await;
    backend.list("resources", vec![json!({"uri": "test://r", "name": "r"})]);
    backend.list("prompts", vec![json!({"name": "p"})]);
    let (sender, mut receiver) = tokio::sync::mpsc::channel(8);
    let recorded = sender.clone();
    backend.on("tools/list", move |call| {
        let sender = recorded.clone();
        async move {
            let _gone = sender.send(("a list", request_all_kinds(&call).await)).await;
            Reply::Result(json!({"tools": []}))
        }
    });
    let recorded = sender.clone();
    backend.on("resources/subscribe", move |call| {
        let sender = recorded.clone();
        async move {
            let _gone = sender.send(("a subscription", request_all_kinds(&call).await)).await;
            Reply::Result(json!({}))
        }
    });
    backend.on("completion/complete", move |call| {
        let sender = sender.clone();
        async move {
            let _gone = sender.send(("a completion", request_all_kinds(&call).await)).await;
            Reply::Result(json!({"completion": {"values": ["v"]}}))
        }
    });
    let broker = builder().single_process().backend("default", "b", backend.spec()).start().await;
    let client = Modern::of(&broker, "/mcp/b").with(everything());
    // The link that reads the lists has no client, and answers so: no roots.
    assert_eq!(client.result("tools/list", json!({})).await["tools"], json!([]));
    assert_eq!(
        receiver.recv().await,
        Some(("a list", json!([{"roots": []}, -32601, {"action": "cancel"}])))
    );
    let completed =
        json!({"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": ""}});
    assert_eq!(
        client.result("completion/complete", completed).await["completion"]["values"],
        json!(["v"])
    );
    assert_eq!(receiver.recv().await, Some(("a completion", refused())));
    let listening = client
        .post(
            json!("l"),
            "subscriptions/listen",
            json!({"notifications": {"resourceSubscriptions": ["test://r"]}}),
        )
        .await;
    let acknowledged = listening.events().next_message().await.unwrap().1;
    assert_eq!(
        acknowledged["params"]["notifications"],
        json!({"resourceSubscriptions": ["test://r"]})
    );
    let (what, answers) = receiver.recv().await.unwrap();
    // A listening request declares no capability that a backend could use.
    assert_eq!(
        (what, &answers[0], &answers[1]),
        ("a subscription", &json!(-32601), &json!(-32601)),
        "{answers}"
    );
}

#[tokio::test]
async fn br_07_notifications_of_no_request_are_dropped_and_counted() {
    let backend = FakeBackend::echo().await;
    backend.sessions();
    let broker = configured_alone(json!({"listen": {"tcp": "127.0.0.1:0"}}), backend.spec()).await;
    let client = DuplexClient::builder().tcp(broker.tcp_address()).await;
    let own = json!({"_meta": meta(json!({"roots": {}})), "name": "b__echo", "arguments": {}});
    client.request("tools/call", own.clone()).await;
    let opened = backend.recorded_of("initialize").pop().unwrap();
    assert_eq!(
        opened.message["params"]["capabilities"]["roots"],
        json!({}),
        "nobody is told of roots that change"
    );
    // The client's notification about them is not passed on either.
    client.notify("notifications/roots/list_changed", json!({})).await;
    let session = backend
        .recorded_of("tools/call")
        .pop()
        .unwrap()
        .header("mcp-session-id")
        .unwrap()
        .to_owned();
    let notification = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "alert", "data": "to whom?"}});
    while backend.push_to(&session, notification.clone()).await == 0 {
        tokio::task::yield_now().await;
    }
    broker
        .admin()
        .wait_metric("mcp_dropped_notifications_total", &[("kind", "unattributed")], |dropped| {
            dropped >= 1.0
        })
        .await;
    client.request("tools/call", own).await;
    assert!(
        client.unread_messages().is_empty()
            && backend.recorded_of("notifications/roots/list_changed").is_empty()
    );
}

#[tokio::test]
async fn br_07_a_backend_cannot_create_a_task_at_the_client() {
    let backend = FakeBackend::with_tool("ask", |call| async move {
        let mut params = form();
        params["task"] = json!({"ttl": 1000});
        let plain = call.request("elicitation/create", params).await["result"].clone();
        let about =
            call.request("tasks/get", json!({"taskId": "t"})).await["error"]["code"].clone();
        Reply::text(&json!([plain, about]).to_string())
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = Modern::of(&broker, "/mcp/b").with(everything());
    let required = client.call("ask", json!({})).await;
    let (key, request) = super::inputs::only(&required);
    assert_eq!(request["params"].get("task"), None, "it is asked plainly: {request}");
    let answer = json!({key: {"action": "decline"}});
    let answers = client.retry("ask", json!({}), &required["requestState"], answer).await;
    assert_eq!(text_of(&answers["result"]), json!([{"action": "decline"}, -32601]).to_string());
}
