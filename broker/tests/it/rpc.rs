//! JSON-RPC: ids, kinds of messages, and refusals.

use std::collections::HashSet;

use serde_json::{Value, json};
use testkit::{FakeBackend, Gate, Reply, backend::text, within};

use crate::{broker_with, builder, echo, kind, refused, request, stdio, text_of};

#[tokio::test]
async fn rpc_01_every_message_contains_jsonrpc_2_0() {
    let backend = FakeBackend::with_tool("talk", |call| async move {
        call.progress(1.0, 1.0).await;
        call.request("roots/list", json!({})).await;
        Reply::text("done")
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker
        .client("/mcp")
        .answers(|_, _| Ok(json!({"roots": []})))
        .connected(json!({"roots": {}}))
        .await;
    let mut call = client
        .start_request("tools/call", json!({"name": "b__talk", "_meta": {"progressToken": "x"}}));
    let answer = call.finish().await;
    assert_eq!(call.before.len(), 2);
    for message in call.before.iter().chain([&answer]) {
        assert_eq!(message.value["jsonrpc"], "2.0", "{}", message.text);
    }
    for seen in backend.recorded().iter().filter(|seen| seen.http == "POST") {
        assert_eq!(seen.message["jsonrpc"], "2.0", "{:?}", seen.body);
    }
}

#[tokio::test]
async fn rpc_02_ids_towards_a_backend_are_never_used_twice() {
    let (broker, backend) = echo().await;
    let clients = [broker.connected(json!({})).await, broker.connected(json!({})).await];
    for round in 0..50 {
        let calls: Vec<_> = clients
            .iter()
            .map(|client| {
                client.start_request_with_id(json!(round), "tools/call", json!({"name": "b__echo"}))
            })
            .collect();
        for call in calls {
            call.result().await;
        }
    }
    let mut ids = HashSet::new();
    for seen in backend.recorded_of("tools/call") {
        let id = &seen.message["id"];
        assert!(id.is_u64() || id.is_string(), "{id}");
        // Each link is its own sequence; over HTTP without sessions both clients share one.
        assert!(
            ids.insert((seen.header("mcp-session-id").map(str::to_owned), id.to_string())),
            "{id} was used twice"
        );
    }
    assert_eq!(ids.len(), 100);
}

#[tokio::test]
async fn rpc_03_the_response_carries_the_id_as_it_was_sent() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({})).await;
    for id in [
        "1",
        "\"1\"",
        "\"a b\"",
        "9007199254740991",
        "-5",
        "0",
        "18446744073709551615",
        "\"\"",
        r#""\u0041\/""#,
        "\"é\"",
    ] {
        for (method, params) in [
            ("tools/call", r#"{"name":"b__echo"}"#),
            ("ping", "{}"),
            ("tools/list", "{}"),
            ("none", "{}"),
        ] {
            let body =
                format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
            let answer = client.start_raw(serde_json::from_str(id).unwrap(), body).response().await;
            assert!(
                answer.text.contains(&format!("\"id\":{id}")),
                "{method}: {id} in {}",
                answer.text
            );
        }
    }
}

#[tokio::test]
async fn rpc_04_other_ids_are_refused() {
    let (broker, backend) = echo().await;
    let client = broker.connected(json!({})).await;
    let long = format!("\"{}\"", "x".repeat(5000));
    for id in ["null", "true", "{}", "[1]", "1.5", "1e3", "18446744073709551616", long.as_str()] {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"b__echo"}}}}"#
        );
        let response = client.post(body).await;
        let status = response.status;
        let body = response.json().await;
        assert_eq!((status, body["error"]["code"].as_i64()), (400, Some(-32600)), "{id}: {body}");
        assert!(body.get("id").is_none_or(Value::is_null), "{body}");
    }
    assert_eq!(backend.recorded_of("tools/call").len(), 0);
}

#[tokio::test]
async fn rpc_05_an_invalid_answer_of_a_backend_becomes_one_clear_error() {
    let backend = FakeBackend::start().await;
    for (name, answer) in [
        ("both", r#"{"jsonrpc":"2.0","id":ID,"result":{},"error":{"code":1,"message":"m"}}"#),
        ("list-result", r#"{"jsonrpc":"2.0","id":ID,"result":[1]}"#),
        ("text-error", r#"{"jsonrpc":"2.0","id":ID,"error":"secret inner text"}"#),
        ("no-code", r#"{"jsonrpc":"2.0","id":ID,"error":{"message":"secret inner text"}}"#),
        ("not-json", r#"<html>secret inner text</html>"#),
        ("half", r#"{"jsonrpc":"2.0","id":ID,"result":{"content":["#),
        ("version", r#"{"jsonrpc":"1.0","id":ID,"result":{}}"#),
    ] {
        backend.tool(name, move |call| async move {
            Reply::Message(answer.replace("ID", &call.id().to_string()))
        });
    }
    backend.tool("fine", |_| async { Reply::text("fine") });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    for name in ["both", "list-result", "text-error", "no-code", "not-json", "half", "version"] {
        let message = client.request("tools/call", json!({"name": format!("b__{name}")})).await;
        assert_eq!(kind(&message["error"]), "backend_protocol_error", "{name}: {message}");
        assert!(!message.to_string().contains("secret inner text"), "{name}: {message}");
        assert_eq!(text_of(&client.call("b__fine", json!({})).await), "fine", "after {name}");
    }
}

#[tokio::test]
async fn rpc_05_a_null_beside_the_result_or_error_of_a_backend_is_left_out() {
    let backend = FakeBackend::start().await;
    for (name, answer) in [
        ("result", r#"{"jsonrpc":"2.0","id":ID,"result":{"content":[]},"error":null}"#),
        ("error", r#"{"jsonrpc":"2.0","result":null,"id":ID,"error":{"code":7,"message":"own"}}"#),
    ] {
        backend.tool(name, move |call| async move {
            Reply::Message(answer.replace("ID", &call.id().to_string()))
        });
    }
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let result = client.request("tools/call", json!({"name": "b__result"})).await;
    assert_eq!((&result["result"], result.get("error")), (&json!({"content": []}), None));
    let error = client.request("tools/call", json!({"name": "b__error"})).await;
    assert_eq!((&error["error"]["code"], error.get("result")), (&json!(7), None));
}

#[tokio::test]
async fn rpc_06_notifications_are_never_answered() {
    let (broker, backend) = echo().await;
    let client = broker.connected(json!({})).await;
    for body in [
        r#"{"jsonrpc":"2.0","method":"notifications/nobody-knows"}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":null}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{}}"#,
        r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"b__echo"}}"#,
        r#"{"jsonrpc":"2.0","method":"tools/list"}"#,
    ] {
        let response = client.post(body).await;
        let status = response.status;
        let answer = response.text().await;
        assert!([202, 400].contains(&status), "{body}: {status}");
        if status == 202 {
            assert_eq!(answer, "", "{body}");
        }
        assert!(!answer.contains("\"result\""), "{body}: {answer}");
    }
    client.result("ping", json!({})).await;
    assert_eq!(
        backend.recorded_of("tools/call").len(),
        0,
        "tools/call as a notification is not carried out"
    );
}

#[tokio::test]
async fn rpc_07_malformed_messages_get_their_precise_code() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({})).await;
    for (body, codes) in [
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping""#, &[-32700][..]),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping",}"#, &[-32700]),
        ("\u{feff}{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}", &[-32700]),
        ("\0", &[-32700]),
        (r#"{"jsonrpc":"2.0","id":1}"#, &[-32600]),
        (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, &[-32600]),
        (r#"{"jsonrpc":"2.0","id":1,"method":null}"#, &[-32600]),
        (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, &[-32600]),
        (r#"{"jsonrpc":2.0,"id":1,"method":"ping"}"#, &[-32600]),
        (r#"{"id":1,"method":"ping"}"#, &[-32600]),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}"#, &[-32600, -32602]),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":"x"}"#, &[-32600, -32602]),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}"#, &[-32600]),
        (r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":"x"}}"#, &[-32600]),
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#, &[-32600]),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping","m\u0065thod":"tools/list"}"#, &[-32600]),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","name":"b"}}"#,
            &[-32600, -32602],
        ),
        (r#"{"jsonrpc":"2.0","id":1,"method":"\ud800"}"#, &[-32600, -32700]),
    ] {
        let (status, error) = refused(client.post(body).await).await;
        assert_eq!(status, 400, "{body:?}: {error}");
        assert!(codes.contains(&error["code"].as_i64().unwrap()), "{body:?}: {error}");
    }
    let (status, error) = refused(client.post(request(1, &"m".repeat(300), json!({}))).await).await;
    assert_eq!((status, error["code"].as_i64()), (400, Some(-32600)), "a method of 300 bytes");
    client.result("ping", json!({})).await;
}

#[tokio::test]
async fn rpc_09_an_unknown_method_is_32601() {
    let (broker, backend) = echo().await;
    let client = broker.connected(json!({})).await;
    for method in [
        "foo/bar",
        "",
        "tools/Call",
        "initialized",
        "sampling/createMessage",
        "elicitation/create",
        "roots/list",
    ] {
        let response = client.post(request(4, method, json!({}))).await;
        assert_eq!(response.status, 200, "{method}");
        let body = response.json().await;
        assert_eq!(body["error"]["code"], -32601, "{method}: {body}");
        assert_eq!(body["id"], 4);
    }
    assert_eq!(backend.count(|seen| seen.is("foo/bar")), 0);
}

/// Returns a backend whose tool `wait` answers once the gate is open.
async fn waiting_backend() -> (FakeBackend, Gate) {
    let gate = Gate::new();
    let backend = FakeBackend::with_tool("wait", gate.before(Reply::text("first")));
    (backend.await, gate)
}

#[tokio::test]
async fn rpc_10_an_id_in_flight_is_refused_and_the_first_call_is_not_affected() {
    let (backend, gate) = waiting_backend().await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let first = client.start_request_with_id(json!(7), "tools/call", json!({"name": "b__wait"}));
    backend.wait_for("the first call", |seen| seen.calls("wait")).await;
    for method in ["tools/call", "ping"] {
        let (_, error) =
            refused(client.post(request(7, method, json!({"name": "b__wait"}))).await).await;
        assert_eq!(error["code"], -32600, "{method}");
    }
    // A string with the same digits is another id.
    assert_eq!(
        client.start_request_with_id(json!("7"), "ping", json!({})).result().await,
        json!({})
    );
    gate.open();
    assert_eq!(text_of(&first.result().await), "first");
    assert_eq!(backend.recorded_of("tools/call").len(), 1);
    client.start_request_with_id(json!(7), "ping", json!({})).result().await;
}

#[tokio::test]
async fn rpc_10_an_id_is_the_same_in_every_spelling() {
    let (backend, gate) = waiting_backend().await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let first =
        client.start_request_with_id(json!("a/b"), "tools/call", json!({"name": "b__wait"}));
    backend.wait_for("the first call", |seen| seen.calls("wait")).await;
    let escaped = r#"{"jsonrpc":"2.0","id":"\u0061\/b","method":"ping"}"#;
    let (_, error) = refused(client.post(escaped).await).await;
    assert_eq!(error["code"], -32600);
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"\u0061\/b"}}"#;
    client.post(cancel).await;
    backend.wait_for("the cancellation", |seen| seen.is("notifications/cancelled")).await;
    drop(first);
    gate.open();
}

#[tokio::test]
async fn rpc_12_stray_answers_of_a_backend_are_dropped_and_counted() {
    let backend = FakeBackend::with_tool("stray", |call| async move {
        for id in [json!(123_456_789), json!("x"), json!(-1)] {
            call.send(json!({"jsonrpc": "2.0", "id": id, "result": text("stray")})).await;
        }
        // Without the zero it would count: some servers return a number as a string.
        let spelled = format!("0{}", call.id());
        call.send(json!({"jsonrpc": "2.0", "id": spelled, "result": text("other spelling")})).await;
        Reply::text("mine")
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let unknown = [("reason", "unknown_id")];
    let before = broker.admin().metric("mcp_dropped_answers_total", &unknown).await.unwrap_or(0.0);
    let mut call = client.start_call("b__stray", json!({}));
    assert_eq!(text_of(&call.finish().await.value["result"]), "mine");
    assert!(call.before.is_empty(), "{:?}", call.before);
    broker
        .admin()
        .wait_metric("mcp_dropped_answers_total", &unknown, |value| value >= before + 4.0)
        .await;
}

#[tokio::test]
async fn rpc_12_only_the_first_of_two_answers_is_used() {
    let gate = Gate::new();
    let second = gate.clone();
    let backend = FakeBackend::with_tool("twice", move |call| {
        let second = second.clone();
        async move {
            let answer = call.result_message(text("first"));
            call.send(answer).await;
            second.open();
            Reply::text("second")
        }
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    assert_eq!(text_of(&client.call("b__twice", json!({})).await), "first");
    within("the second answer", gate.passed()).await;
    assert_eq!(text_of(&client.call("b__twice", json!({})).await), "first");
}

#[tokio::test]
async fn rpc_12_a_second_answer_is_dropped_as_late_and_not_as_unknown() {
    let broker = builder().single_process().backend("default", "b", stdio().spec()).start().await;
    let client = broker.connected(json!({})).await;
    assert_eq!(text_of(&client.call("b__twice", json!({})).await), "first");
    broker
        .admin()
        .wait_metric("mcp_dropped_answers_total", &[("reason", "late")], |count| count == 1.0)
        .await;
    let unknown = [("reason", "unknown_id")];
    assert_eq!(broker.admin().metric("mcp_dropped_answers_total", &unknown).await, Some(0.0));
}

#[tokio::test]
async fn an_unexpected_answer_of_a_client_is_ignored() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({"roots": {}})).await;
    for body in [
        r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":"x","result":{}}"#,
        r#"{"jsonrpc":"2.0","id":5,"error":{"code":1,"message":"m"}}"#,
        r#"{"jsonrpc":"2.0","error":{"code":1,"message":"m"}}"#,
    ] {
        let response = client.post(body).await;
        assert!([202, 400].contains(&response.status), "{body}: {}", response.status);
    }
    assert_eq!(client.tool_names().await, ["b__echo"]);
}
