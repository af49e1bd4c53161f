//! The judge finds the faults it exists for.

use serde_json::{Value, json};
use testkit::{
    FakeBackend, Judge, JudgeGuard, TestClient,
    judge::{JudgedExchange, Recipient, Revision},
};

/// Returns the faults in the broker's message, after a peer's message.
fn faults(revision: Revision, toward: Recipient, asked: &Value, message: &Value) -> Vec<String> {
    let judge = Judge::default();
    judge.record_peer_message(None, asked.to_string().as_bytes());
    let mut hearing = JudgedExchange::new(&judge, toward);
    hearing.named = Some(revision);
    hearing.check_broker_message(message.to_string().as_bytes());
    judge.faults()
}

fn request(method: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": method})
}

fn result(result: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "result": result})
}

fn error(id: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": 1, "message": "m"}})
}

#[test]
fn results_are_judged_by_the_method_of_their_request() {
    for revision in Revision::ALL {
        for (method, right, wrong) in [
            ("ping", json!({}), json!(1)),
            ("tools/list", json!({"tools": []}), json!({"tools": [{"name": "t"}]})),
            (
                "tools/call",
                json!({"content": [{"type": "text", "text": "t"}]}),
                json!({"content": [{"type": "text"}]}),
            ),
            (
                "resources/read",
                json!({"contents": [{"uri": "x:y", "text": ""}]}),
                json!({"contents": [{"uri": "x:y"}]}),
            ),
            (
                "completion/complete",
                json!({"completion": {"values": []}}),
                json!({"completion": {}}),
            ),
            ("logging/setLevel", json!({}), json!([])),
        ] {
            let judged =
                |message| faults(revision, Recipient::Client, &request(method), &result(message));
            assert_eq!(judged(right), [""; 0], "{revision:?} {method}");
            assert_eq!(judged(wrong.clone()).len(), 1, "{revision:?} {method} {wrong}");
        }
    }
}

#[test]
fn a_result_may_belong_to_any_request_with_its_id() {
    let question = result(
        json!({"resultType": "input_required", "requestState": "s", "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "n", "version": "1"}}}),
    );
    let of_two_clients = |methods: [&str; 2]| {
        let batch = Value::from(methods.map(request).to_vec());
        faults(Revision::V2026_07_28, Recipient::Client, &batch, &question)
    };
    assert_eq!(of_two_clients(["tools/list", "tools/call"]), [""; 0]);
    assert_eq!(of_two_clients(["tools/call", "tools/list"]), [""; 0]);
    assert_eq!(of_two_clients(["tools/list", "prompts/list"]).len(), 1);
}

#[test]
fn a_method_is_valid_only_in_its_revisions() {
    let params = json!({"message": "m", "requestedSchema": {"type": "object", "properties": {}}});
    let ask = json!({"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": params});
    for revision in Revision::ALL {
        let found = faults(revision, Recipient::Client, &json!({}), &ask);
        assert_eq!(found.is_empty(), revision >= Revision::V2025_06_18, "{revision:?}: {found:?}");
    }
    assert_eq!(
        faults(Revision::LATEST, Recipient::Backend, &json!({}), &ask).len(),
        1,
        "not in this direction"
    );
    let vendor = json!({"jsonrpc": "2.0", "method": "com.example/hello", "params": {"x": 1}});
    assert_eq!(
        faults(Revision::LATEST, Recipient::Client, &json!({}), &vendor),
        [""; 0],
        "vendors have their own"
    );
    let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1}});
    assert_eq!(
        faults(Revision::LATEST, Recipient::Client, &json!({}), &progress).len(),
        1,
        "progress is required"
    );
}

#[test]
fn envelopes_are_judged() {
    for wrong in [
        json!({"id": 1, "result": {}}),
        json!({"jsonrpc": "2.0", "id": null, "result": {}}),
        json!({"jsonrpc": "2.0", "id": 1, "result": {}, "error": {"code": 1, "message": "m"}}),
        json!({"jsonrpc": "2.0", "id": 1}),
        json!({"jsonrpc": "2.0", "id": 1.5, "method": "ping"}),
        json!({"jsonrpc": "2.0", "id": 1, "error": {"code": "x", "message": "m"}}),
        json!([]),
        json!([result(json!({}))]),
    ] {
        assert_eq!(
            faults(Revision::LATEST, Recipient::Client, &json!({}), &wrong).len(),
            1,
            "{wrong}"
        );
    }
    assert_eq!(
        faults(Revision::V2025_03_26, Recipient::Client, &json!({}), &json!([result(json!({}))])),
        [""; 0],
        "it has batches"
    );
}

#[test]
fn v_03_an_error_must_contain_the_id_if_it_is_known() {
    let judged = |answers: Option<Value>, message: Value| {
        let judge = Judge::default();
        let mut hearing = JudgedExchange::new(&judge, Recipient::Client);
        hearing.named = Some(Revision::V2025_06_18);
        hearing.answers = answers;
        hearing.check_broker_message(message.to_string().as_bytes());
        judge.faults().len()
    };
    assert_eq!(judged(Some(json!(1)), error(json!(1))), 0);
    assert_eq!(judged(Some(json!(1)), error(Value::Null)), 1);
    assert_eq!(judged(None, error(Value::Null)), 0);
}

#[test]
fn meta_01_an_invented_reserved_key_is_detected() {
    let message = |key: &str| result(json!({"content": [], "_meta": {key: 1}}));
    let judged = |asked: Value, key: &str| {
        faults(Revision::LATEST, Recipient::Client, &asked, &message(key)).len()
    };
    let call = request("tools/call");
    assert_eq!(judged(call.clone(), "io.modelcontextprotocol/invented"), 1);
    assert_eq!(judged(call.clone(), "dev.mcp/invented"), 1);
    assert_eq!(judged(call.clone(), "com.example.mcpish/own"), 0);
    let mut asked = call;
    asked["params"] = json!({"_meta": {"io.modelcontextprotocol/told": 1}});
    assert_eq!(judged(asked, "io.modelcontextprotocol/told"), 0, "a peer's own key is passed on");
}

#[tokio::test]
async fn a_session_and_its_streams_are_judged_by_the_negotiated_revision() {
    let backend = FakeBackend::start().await;
    backend.sessions().version("2025-03-26");
    backend.tool("wrong", |call| async move {
        call.notify("notifications/progress", json!({"progressToken": 1})).await;
        testkit::Reply::Result(json!({}))
    });
    let judge = Judge::default();
    let client =
        TestClient::new(backend.address(), "/mcp").judged_by(&judge).connected(json!({})).await;
    client.call("wrong", json!({})).await;
    let found = judge.faults();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.iter().all(|fault| fault.contains("2025-03-26")), "{found:?}");
    assert!(
        found[0].contains("not a ProgressNotification")
            && found[1].contains("not a CallToolResult"),
        "{found:?}"
    );
    client.content_is_invalid_on_purpose("to see that it is excused");
    client.call("wrong", json!({})).await;
    assert_eq!(judge.faults().len(), 2);
}

#[test]
fn recorded_messages_of_a_stdio_backend_are_judged() {
    let judge = Judge::default();
    judge.replay(
        br#"< {"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"n","version":"1"}}}
> {"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2024-11-05"}}
< {"jsonrpc":"2.0","method":"notifications/initialized"}
> {"jsonrpc":"2.0","id":9,"method":"roots/list"}
< {"jsonrpc":"2.0","id":9,"result":{"roots":1}}
< {"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"t"}}
< {"cut sho"#,
    );
    let found = judge.faults();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[0].contains("not a ListRootsResult")
            && found[1].contains("2024-11-05 has no request tasks/get"),
        "{found:?}"
    );
}

#[test]
#[should_panic(expected = "not as MCP says")]
fn a_verdict_fails_its_test() {
    let verdict = JudgeGuard(Judge::default());
    JudgedExchange::new(&verdict.0, Recipient::Client).check_broker_message(b"{}");
}
