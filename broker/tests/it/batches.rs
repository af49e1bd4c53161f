//! JSON-RPC batches: only 2025-03-26 has them (MCP 2025-03-26, Basic; removed in 2025-06-18).

use std::time::Duration;

use serde_json::{Value, json};
use testkit::{FakeBackend, Gate, Reply, TestClient, backend::text};

use crate::{broker_with, configured, echo, refused, text_of};

/// Returns every response message of an answer to a batch, whichever form it has.
async fn responses(client: &TestClient, batch: Value) -> Vec<Value> {
    let response =
        client.post(batch.to_string()).await.expect_status(200, "a batch with requests").await;
    let mut messages = Vec::new();
    let mut add = |value: Value| match value {
        Value::Array(many) => messages.extend(many),
        one => messages.push(one),
    };
    if response.is_event_stream() {
        for event in response.events().rest().await {
            event.message().into_iter().for_each(&mut add);
        }
    } else {
        add(response.json().await);
    }
    messages.retain(|message| message.get("method").is_none());
    messages.sort_by_key(|message| message["id"].to_string());
    messages
}

#[tokio::test]
async fn rpc_08_a_batch_is_refused_in_every_other_version() {
    let (broker, backend) = echo().await;
    let batch =
        json!([{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "b__echo"}}]);
    for version in ["2025-11-25", "2025-06-18"] {
        let client = broker.client("/mcp");
        client.initialize(version, json!({})).await;
        let (status, error) = refused(client.post(batch.to_string()).await).await;
        assert_eq!((status, error["code"].as_i64()), (400, Some(-32600)), "{version}");
    }
    assert_eq!(backend.recorded_of("tools/call").len(), 0);
}

#[tokio::test]
async fn v_01_each_request_of_a_batch_is_answered() {
    let backend = FakeBackend::with_tool("say", |call| async move {
        call.progress(1.0, 1.0).await;
        Reply::text(&call.arguments()["n"].to_string())
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.client("/mcp");
    client.initialize("2025-03-26", json!({})).await;
    let call = |id: u64| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "b__say", "arguments": {"n": id}, "_meta": {"progressToken": id}}});
    let batch = json!([
        call(1),
        {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"},
        call(2),
        {"jsonrpc": "2.0", "id": 3, "method": "ping"},
        {"jsonrpc": "2.0", "id": 4, "method": "none"},
        {"jsonrpc": "2.0", "id": 5},
    ]);
    let answers = responses(&client, batch).await;
    let of = |id: u64| {
        answers
            .iter()
            .find(|message| message["id"] == id)
            .unwrap_or_else(|| panic!("an answer to {id}: {answers:?}"))
    };
    assert_eq!((text_of(&of(1)["result"]), text_of(&of(2)["result"])), ("1", "2"));
    assert_eq!(of(3)["result"], json!({}));
    assert_eq!(of(4)["error"]["code"], -32601);
    assert_eq!(of(5)["error"]["code"], -32600);
    assert_eq!(answers.len(), 5);
    for seen in backend.recorded() {
        assert!(!seen.message.is_array(), "a backend never gets a batch");
    }
}

#[tokio::test]
async fn v_01_a_silent_batch_gets_a_stream_with_keep_alives_that_can_be_resumed() {
    let done = Gate::new();
    let backend = FakeBackend::with_tool("job", done.before(Reply::text("late"))).await;
    let config = json!({"events": {"keepalive": "50ms"}});
    let broker = configured(config, backend.spec()).await;
    let client = broker.client("/mcp");
    client.initialize("2025-03-26", json!({})).await;
    let batch = json!([
        {"jsonrpc": "2.0", "id": 1, "method": "ping"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "b__job", "arguments": {}}},
    ]);
    let response =
        client.post(batch.to_string()).await.expect_status(200, "a batch with requests").await;
    assert!(response.is_event_stream(), "no answer is complete within the keep-alive");
    let mut stream = response.events();
    let (position, first) = stream.next_message().await.unwrap();
    assert_eq!((&first["id"], &first["result"]), (&json!(1), &json!({})));
    for _ in 0..50 {
        if stream.comments() > 0 {
            break;
        }
        let event = stream.next_event(Duration::from_millis(100)).await;
        assert_eq!(event, Err(()), "a silent stream has no events");
    }
    assert!(stream.comments() > 0, "a silent stream is kept alive");
    drop(stream);
    let mut resumed = client.resume(position.as_deref().unwrap()).await;
    done.open();
    let late = resumed.find(|message| message["id"] == 2).await;
    assert_eq!(text_of(&late["result"]), "late");
}

#[tokio::test]
async fn v_01_a_batch_of_notifications_is_202() {
    let (broker, _backend) = echo().await;
    let client = broker.client("/mcp");
    client.initialize("2025-03-26", json!({})).await;
    let batch = json!([{"jsonrpc": "2.0", "method": "notifications/initialized"}, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}}]);
    let response =
        client.post(batch.to_string()).await.expect_status(202, "notifications only").await;
    assert_eq!(response.text().await, "");
}

#[tokio::test]
async fn v_01_a_batch_whose_requests_are_all_cancelled_is_202() {
    let backend = FakeBackend::with_tool("wait", |_| async { std::future::pending().await }).await;
    let broker = broker_with(&backend).await;
    let client = broker.client("/mcp");
    client.initialize("2025-03-26", json!({})).await;
    let batch = json!([
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "b__wait", "arguments": {}}},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
    ]);
    let response =
        client.post(batch.to_string()).await.expect_status(202, "no request is answered").await;
    assert_eq!(response.text().await, "");
}

#[tokio::test]
async fn v_01_a_batch_of_a_backend_is_read_message_by_message() {
    for (in_event, over_lines) in [(true, false), (false, false), (false, true)] {
        let backend = FakeBackend::with_tool("say", move |call| async move {
            let log = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "error", "data": "x"}});
            let batch = json!([log, call.result_message(text("said"))]);
            if !in_event {
                return Reply::Message(batch.to_string());
            }
            call.raw(&format!("data: {batch}

")).await;
            Reply::End
        })
        .await;
        backend.version("2025-03-26");
        let backend = if over_lines { backend.behind_lines().await } else { backend };
        let broker = broker_with(&backend).await;
        let client = broker.connected(json!({})).await;
        let mut call = client.start_call("b__say", json!({}));
        let answer = call.finish().await;
        assert_eq!(text_of(&answer.value["result"]), "said", "{in_event} {over_lines}");
        assert_eq!(call.before.len(), 1, "{in_event} {over_lines}");
    }
}

#[tokio::test]
async fn v_01_a_batch_with_an_error_status_has_the_answer_too() {
    let backend = FakeBackend::with_tool("say", move |call| async move {
        let batch = json!([call.result_message(text("said"))]);
        let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        Reply::Http { status: 500, headers, body: batch.to_string().into() }
    })
    .await;
    backend.version("2025-03-26");
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    assert_eq!(text_of(&client.call("b__say", json!({})).await), "said");
}

#[tokio::test]
async fn v_01_empty_batches_and_initialize_in_a_batch_are_refused() {
    let (broker, _backend) = echo().await;
    let client = broker.client("/mcp");
    client.initialize("2025-03-26", json!({})).await;
    let (status, error) = refused(client.post("[]").await).await;
    assert_eq!((status, error["code"].as_i64()), (400, Some(-32600)));
    let many: Vec<Value> =
        (0..10_000).map(|id| json!({"jsonrpc": "2.0", "id": id, "method": "ping"})).collect();
    let (status, error) = refused(client.post(json!(many).to_string()).await).await;
    assert_eq!((status, error["code"].as_i64()), (400, Some(-32600)));
    let initialize: Value = serde_json::from_str(&crate::initialize_body("2025-03-26")).unwrap();
    for client in [broker.client("/mcp"), client] {
        let response = client.post(json!([initialize]).to_string()).await;
        assert!(response.header("mcp-session-id").is_none());
        let body = response.text().await;
        assert!(body.contains("-32600"), "{body}");
    }
}
