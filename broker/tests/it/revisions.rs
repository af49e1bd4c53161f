//! Every pair of revisions, one of the client and one of the backend, through every feature of a
//! session. The broker's messages are judged by the schema of the receiver's revision (V-04). The
//! tests only cause these messages.

use serde_json::{Value, json};
use testkit::{BackendCall, FakeBackend, Reply, TestBroker, TestClient, eventually};

use crate::{builder, stdio, text_of};

const REVISIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

fn answer(method: &str) -> Value {
    match method {
        "sampling/createMessage" => {
            json!({"role": "assistant", "content": {"type": "text", "text": "ho"}, "model": "m"})
        }
        "elicitation/create" => json!({"action": "accept", "content": {"name": "ann"}}),
        "roots/list" => json!({"roots": [{"uri": "file:///r", "name": "r"}]}),
        _ => json!({}),
    }
}

/// Sends every message a backend may send on one call's stream, whether or not the client in front
/// knows it.
async fn speak(call: BackendCall) -> Reply {
    call.progress(1.0, 3.0).await;
    call.notify(
        "notifications/progress",
        json!({"progressToken": call.progress_token(), "progress": 2, "message": "m"}),
    )
    .await;
    call.notify(
        "notifications/message",
        json!({"level": "error", "logger": "l", "data": {"x": [null]}}),
    )
    .await;
    call.notify("notifications/resources/updated", json!({"uri": "test://one", "title": "one"}))
        .await;
    for change in ["tools", "resources", "prompts"] {
        call.notify(&format!("notifications/{change}/list_changed"), json!({})).await;
    }
    let mut received = Vec::new();
    let text = json!({"role": "user", "content": {"type": "text", "text": "hi"}});
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    for (method, params) in [
        ("ping", json!({})),
        ("roots/list", json!({"_meta": {"com.example/k": 1}})),
        ("sampling/createMessage", json!({"messages": [text], "maxTokens": 5})),
        (
            "sampling/createMessage",
            json!({"messages": [text], "maxTokens": 5, "task": {"ttl": 1000}}),
        ),
        ("elicitation/create", json!({"message": "m", "requestedSchema": schema})),
        (
            "elicitation/create",
            json!({"mode": "url", "message": "m", "url": "https://example.com/", "elicitationId": "e"}),
        ),
    ] {
        received.push(call.request(method, params).await.get("result").is_some());
    }
    Reply::text(&json!(received).to_string())
}

async fn backend(revision: &str) -> FakeBackend {
    let backend = FakeBackend::with_tool("all", speak).await;
    backend.sessions().version(revision);
    backend.tool("fails", |_| async { Reply::Result(json!({"content": [], "isError": true})) });
    backend.tool("error", |_| async { Reply::error(-32050, "no") });
    backend.tool("hang", |call| async move {
        call.client_disconnected().await;
        Reply::Hang
    });
    backend.list(
        "resources",
        vec![json!({"uri": "test://one", "name": "one", "title": "One", "size": 1})],
    );
    backend.list("resourceTemplates", vec![json!({"uriTemplate": "test://{x}", "name": "t"})]);
    backend.list(
        "prompts",
        vec![json!({"name": "p", "arguments": [{"name": "a", "required": true}]})],
    );
    backend.on("completion/complete", |_| async {
        Reply::Result(json!({"completion": {"values": ["v"], "total": 2, "hasMore": true}}))
    });
    backend
}

async fn client(broker: &TestBroker, revision: &str) -> TestClient {
    let client = broker.client("/mcp").answers(|method, _| Ok(answer(method)));
    let capabilities = json!({
        "roots": {"listChanged": true}, "sampling": {}, "elicitation": {"form": {}, "url": {}},
        "tasks": {"requests": {"sampling": {"createMessage": {}}}},
    });
    let result = client.initialize(revision, capabilities).await;
    assert_eq!(result["protocolVersion"], revision);
    client
}

/// Uses every request once.
async fn use_every_request(client: &TestClient) {
    for (method, member) in [
        ("tools/list", "tools"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
        ("prompts/list", "prompts"),
    ] {
        assert!(!client.list_all(method, member).await.is_empty(), "{method}");
    }
    let uri = json!({"uri": "b+test://one"});
    for (method, params) in [
        ("ping", json!({})),
        ("logging/setLevel", json!({"level": "debug"})),
        ("resources/subscribe", uri.clone()),
        ("resources/read", uri.clone()),
        ("prompts/get", json!({"name": "b__p", "arguments": {"a": "x"}})),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "b__p"}, "argument": {"name": "a", "value": "x"}}),
        ),
        ("tools/call", json!({"name": "b__fails"})),
        ("resources/unsubscribe", uri),
    ] {
        client.result(method, params).await;
    }
    for (method, params) in [
        ("tools/call", json!({"name": "b__error"})),
        ("tools/call", json!({"name": "none"})),
        ("tools/call", json!({"name": 1})),
        ("resources/read", json!({"uri": "none"})),
        ("tasks/get", json!({"taskId": "none"})),
        ("none/such", json!({})),
    ] {
        client.error(method, params).await;
    }
}

#[tokio::test]
async fn v_04_every_pair_of_revisions_follows_the_schemas() {
    for of_backend in REVISIONS {
        let backend = backend(of_backend).await;
        let broker = builder().backend("default", "b", backend.spec()).start().await;
        for of_client in REVISIONS {
            let client = client(&broker, of_client).await;
            let mut get = client.open_get_stream().await;
            use_every_request(&client).await;
            let mut call = client.start_request(
                "tools/call",
                json!({"name": "b__all", "_meta": {"progressToken": "t"}}),
            );
            let received = call.finish().await;
            let received: Vec<bool> =
                serde_json::from_str(text_of(&received.value["result"])).unwrap();
            assert_eq!(
                received[..3],
                [true; 3],
                "{of_client} in front of {of_backend}: ping, roots and sampling are in every revision"
            );
            let (both, newest) = (of_client.min(of_backend), "2025-11-25");
            assert_eq!(
                (received[4], received[5]),
                (both >= "2025-06-18", both >= newest),
                "{of_client} in front of {of_backend}: {received:?}"
            );
            let hanging =
                client.start_request_with_id(json!("h"), "tools/call", json!({"name": "b__hang"}));
            let calls = backend.count(|seen| seen.calls("hang"));
            backend.wait_count("the call", calls.max(1), |seen| seen.calls("hang")).await;
            client
                .notify("notifications/cancelled", json!({"requestId": "h", "reason": "enough"}))
                .await;
            client.notify("notifications/roots/list_changed", json!({})).await;
            drop(hanging);
            client.delete_session().await;
            // Unasked messages are judged when they are read.
            while get.next().await.is_some() {}
        }
    }
}

#[tokio::test]
async fn v_04_messages_to_a_child_of_each_revision_follow_its_schema() {
    for of_backend in REVISIONS {
        let broker =
            builder().backend("default", "b", stdio().version(of_backend).spec()).start().await;
        for of_client in REVISIONS {
            let client = client(&broker, of_client).await;
            client.result("logging/setLevel", json!({"level": "debug"})).await;
            client.result("resources/subscribe", json!({"uri": "b+test://one"})).await;
            for tool in ["echo", "progress", "sample", "roots", "log", "touch", "stray"] {
                let params = json!({"name": format!("b__{tool}"), "arguments": {"prompt": "p", "message": "m"}, "_meta": {"progressToken": 1}});
                client.result("tools/call", params).await;
            }
            client.start_request_with_id(json!("h"), "tools/call", json!({"name": "b__hang"}));
            client.notify("notifications/cancelled", json!({"requestId": "h"})).await;
            client.notify("notifications/roots/list_changed", json!({})).await;
            client.delete_session().await;
        }
        let recorded = || {
            broker
                .traffic()
                .into_iter()
                .map(|note| std::fs::read_to_string(note).unwrap())
                .collect::<String>()
        };
        eventually("the children's notes", || async {
            let recorded = recorded();
            if recorded.contains("< ") && recorded.contains("notifications/roots/list_changed") {
                Ok(())
            } else {
                Err(recorded)
            }
        })
        .await;
    }
}

#[tokio::test]
#[should_panic(expected = "1 messages of the broker are not as MCP says")]
async fn v_04_an_invalid_message_to_a_child_fails_the_test() {
    let broker = builder().start().await;
    std::fs::write(
        broker.folder().join("traffic/child"),
        "< {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n",
    )
    .unwrap();
}
