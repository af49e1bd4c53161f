//! Batches of calls by `execute_batch`: each call passes what a call of its own passes, and has its own
//! end in the result.

use serde_json::{Value, json};
use testkit::{
    DuplexClient, FakeBackend, Reply, TestBroker, TestClient, backend::tool, eventually,
};
use tokio::sync::Barrier;

use crate::{builder, configured, kind, stateless::Modern};

/// A backend with tools that answer, fail, wait for ever, meet each other, or ask the client.
async fn backend() -> FakeBackend {
    let backend = FakeBackend::start().await;
    backend.tool("say", |call| async move { Reply::text(&call.arguments()["text"].to_string()) });
    backend.tool("fail", |_| async move {
        Reply::Result(json!({"content": [{"type": "text", "text": "no"}], "isError": true}))
    });
    backend.tool("hang", |call| async move {
        call.client_disconnected().await;
        Reply::text("late")
    });
    let barrier = std::sync::Arc::new(Barrier::new(3));
    backend.tool("meet", move |_| {
        let barrier = barrier.clone();
        async move {
            barrier.wait().await;
            Reply::text("met")
        }
    });
    backend.tool("ask", |call| async move {
        let form = json!({"message": "who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}});
        let answer = call.request("elicitation/create", form).await;
        Reply::text(answer["result"]["content"]["name"].as_str().unwrap_or("no name"))
    });
    backend.list("tools", ["say", "fail", "hang", "meet", "ask"].map(tool).into());
    backend
}

async fn started(backend: &FakeBackend, more: Value) -> TestBroker {
    let mut config = json!({"limits": {"batch_calls": 5}});
    for (section, members) in more.as_object().unwrap() {
        for (key, value) in members.as_object().unwrap() {
            config[section][key] = value.clone();
        }
    }
    configured(config, backend.spec()).await
}

fn call_of(tool: &str, text: &str) -> Value {
    json!({"tool": tool, "arguments": {"text": text}})
}

/// Returns what became of each call: the status, and the text or the kind of the error.
fn ends(result: &Value) -> Vec<String> {
    let results = result["structuredContent"]["results"].as_array();
    let results = results.unwrap_or_else(|| panic!("the result of a batch: {result}"));
    let end = |one: &Value| {
        let text = one["result"]["content"][0]["text"].as_str();
        let text = text.or(one["error"]["data"]["kind"].as_str()).unwrap_or_default();
        format!("{} {text}", one["status"].as_str().unwrap()).trim_end().to_owned()
    };
    results.iter().map(end).collect()
}

enum Client {
    Http(TestClient),
    Duplex(DuplexClient),
    Stateless(Modern),
}

impl Client {
    async fn answer(&self, method: &str, params: Value) -> Value {
        match self {
            Self::Http(client) => client.request(method, params).await,
            Self::Duplex(client) => client.request(method, params).await,
            Self::Stateless(client) => client.answer(method, params).await,
        }
    }

    async fn batch(&self, arguments: Value) -> Value {
        self.answer("tools/call", json!({"name": "execute_batch", "arguments": arguments})).await
    }

    async fn tools(&self) -> Vec<String> {
        let listed = self.answer("tools/list", json!({})).await;
        let tools = listed["result"]["tools"].as_array().cloned().unwrap_or_default();
        tools.iter().filter_map(|tool| Some(tool["name"].as_str()?.to_owned())).collect()
    }
}

async fn clients(broker: &TestBroker, end: &str) -> [Client; 3] {
    let path = format!("/mcp{end}");
    let wire = broker.duplex().websocket(broker.http_address(), &format!("/ws{end}"), &[]).await;
    [
        Client::Http(broker.client(&path).connected(json!({})).await),
        Client::Stateless(Modern::of(broker, &path)),
        Client::Duplex(wire.unwrap().0.connected(json!({})).await),
    ]
}

#[tokio::test]
async fn without_the_setting_the_tool_does_not_exist() {
    let backend = backend().await;
    let broker = builder().backend("default", "b", backend.spec()).start().await;
    for client in clients(&broker, "").await {
        assert_eq!(client.tools().await.len(), 5);
        let refused = client.batch(json!({"calls": [{"tool": "b__say"}]})).await;
        assert_eq!(kind(&refused["error"]), "tool_not_found");
    }
}

#[tokio::test]
async fn calls_run_in_order_and_stop_at_the_first_failure_at_every_endpoint() {
    let backend = backend().await;
    let broker = started(&backend, json!({})).await;
    let set = json!({"published": true, "include": {"tools": ["b/*"]}, "names": "unique"});
    let path = "/admin/v1/tenants/default/toolsets/set";
    assert_eq!(broker.admin().put(path, &set).await.0, 201);
    for (end, prefix) in [("", "b__"), ("/b", ""), ("/t/set", "")] {
        for client in clients(&broker, end).await {
            assert!(client.tools().await.contains(&"execute_batch".to_owned()), "{end}");
            let named = |name: &str| format!("{prefix}{name}");
            let calls = json!([
                call_of(&named("say"), "one"),
                call_of(&named("fail"), "x"),
                call_of(&named("say"), "two")
            ]);
            let before = backend.recorded_of("tools/call").len();
            let answer = client.batch(json!({"calls": calls})).await;
            let result = &answer["result"];
            assert_eq!(ends(result), ["ok \"one\"", "tool_error no", "not_run"], "{end} {answer}");
            assert_eq!(result["isError"], true);
            assert_eq!(backend.recorded_of("tools/call").len(), before + 2);
            let answer = client.batch(json!({"calls": calls, "stop_on_error": false})).await;
            let result = &answer["result"];
            assert_eq!(ends(result), ["ok \"one\"", "tool_error no", "ok \"two\""], "{answer}");
            assert_eq!(result.get("isError"), None);
            let mixed = json!({"calls": [{"tool": "nothing"}, call_of(&named("say"), "one")], "stop_on_error": false});
            let answer = client.batch(mixed).await;
            let statuses = ends(&answer["result"]);
            // The endpoint of a backend leaves names to the backend.
            let unknown = if end == "/b" { "ok null" } else { "error tool_not_found" };
            assert_eq!(statuses[0], unknown, "{end} {answer}");
            assert_eq!(statuses[1], "ok \"one\"");
        }
    }
}

#[tokio::test]
async fn a_nested_batch_and_an_unreadable_batch_start_no_call() {
    let backend = backend().await;
    let broker = started(&backend, json!({})).await;
    for client in clients(&broker, "").await {
        let one = call_of("b__say", "one");
        let inner = json!({"tool": "execute_batch", "arguments": {"calls": [one]}});
        for calls in [
            json!([one, inner]),
            json!([]),
            json!([one, {"tool": "b__say", "args": {}}]),
            json!([one, one, one, one, one, one]),
        ] {
            let refused = client.batch(json!({"calls": calls})).await;
            assert_eq!(kind(&refused["error"]), "invalid_params", "{refused}");
        }
    }
    assert_eq!(backend.recorded_of("tools/call").len(), 0);
}

#[tokio::test]
async fn parallel_calls_are_in_flight_together_and_answered_in_their_order() {
    let backend = backend().await;
    let broker = started(&backend, json!({})).await;
    for client in clients(&broker, "").await {
        let calls = json!([
            call_of("b__say", "first"), {"tool": "b__meet"}, {"tool": "b__meet"}, {"tool": "b__meet"}
        ]);
        // The three meet only if all of them are at the backend.
        let answer = client.batch(json!({"calls": calls, "parallel": true})).await;
        assert_eq!(ends(&answer["result"]), ["ok \"first\"", "ok met", "ok met", "ok met"]);
    }
}

#[tokio::test]
async fn the_policy_the_rates_and_the_audit_log_apply_to_each_call() {
    let backend = backend().await;
    let more = json!({
        "limits": {"requests_per_second_per_tool": 1, "burst_per_tool": 2},
        "audit": {"calls": "metadata"}
    });
    let broker = started(&backend, more).await;
    let admin = broker.admin();
    let policy = json!({"default": "allow", "rules": [{"id": "r", "effect": "deny", "objects": {"tools": ["b/fail"]}}]});
    assert_eq!(admin.put("/admin/v1/tenants/default/policy", &policy).await.0, 201);
    let client = Client::Http(broker.client("/mcp").connected(json!({})).await);
    let mut calls: Vec<Value> = (0..4).map(|_| call_of("b__say", "x")).collect();
    calls.push(call_of("b__fail", "x"));
    let answer = client.batch(json!({"calls": calls, "stop_on_error": false})).await;
    let statuses = ends(&answer["result"]);
    assert_eq!(statuses.last().unwrap(), "error tool_not_found", "{answer}");
    assert!(statuses[..2].iter().all(|end| end == "ok \"x\""), "{statuses:?}");
    assert_eq!(statuses[3], "error rate_limited", "{answer}");
    assert_eq!(backend.count(|seen| seen.calls("fail")), 0);
    eventually("the records", || async {
        let (_, page) = admin.get("/admin/v1/audit?kind=call").await;
        let records = page["records"].as_array().cloned().unwrap_or_default();
        let count = |target: &str| {
            let calls = records.iter().filter(|one| one["action"] == "tools/call");
            calls.filter(|one| one["target"] == target).count()
        };
        match (count("execute_batch"), count("b__say"), count("b__fail")) {
            (1, 4, 1) => Ok(()),
            _ => Err(page),
        }
    })
    .await;
}

#[tokio::test]
async fn each_call_has_its_own_deadline() {
    let backend = backend().await;
    let broker = started(&backend, json!({"timeouts": {"call": "300ms"}})).await;
    for client in clients(&broker, "").await {
        let calls = json!([call_of("b__hang", "x"), call_of("b__say", "one")]);
        let answer = client.batch(json!({"calls": calls, "stop_on_error": false})).await;
        assert_eq!(ends(&answer["result"]), ["error timeout", "ok \"one\""], "{answer}");
    }
    backend.wait_for("the cancellation", |seen| seen.is("notifications/cancelled")).await;
}

#[tokio::test]
async fn a_cancelled_batch_cancels_its_calls_and_starts_no_other() {
    let backend = backend().await;
    let broker = started(&backend, json!({})).await;
    let client = broker.client("/mcp").connected(json!({})).await;
    let calls = json!([call_of("b__hang", "x"), call_of("b__say", "never")]);
    let hanging = client.start_call("execute_batch", json!({"calls": calls}));
    backend.wait_for("the call", |seen| seen.calls("hang")).await;
    client.notify("notifications/cancelled", json!({"requestId": hanging.id})).await;
    backend.wait_for("the cancellation", |seen| seen.is("notifications/cancelled")).await;
    // The session has no request in flight any more, so a batch with the same calls is admitted.
    let answer = Client::Http(client).batch(json!({"calls": [call_of("b__say", "next")]})).await;
    assert_eq!(ends(&answer["result"]), ["ok \"next\""]);
    broker.admin().wait_metric("mcp_requests_pending", &[], |pending| pending == 0.0).await;
    let calls_seen: Vec<Value> = backend
        .recorded_of("tools/call")
        .iter()
        .map(|seen| seen.message["params"]["arguments"]["text"].clone())
        .collect();
    assert_eq!(calls_seen, ["x", "next"]);
}

#[tokio::test]
async fn a_client_that_hangs_up_on_a_stateless_batch_cancels_its_calls() {
    let backend = backend().await;
    let broker = started(&backend, json!({})).await;
    let client = Modern::of(&broker, "/mcp");
    let calls = json!([call_of("b__hang", "x"), call_of("b__say", "never")]);
    let params = json!({"name": "execute_batch", "arguments": {"calls": calls}});
    tokio::select! {
        answer = client.answer("tools/call", params) => panic!("it waits: {answer}"),
        _ = backend.wait_for("the call", |seen| seen.calls("hang")) => {}
    }
    backend.wait_for("the cancellation", |seen| seen.is("notifications/cancelled")).await;
    assert_eq!(backend.count(|seen| seen.calls("say")), 0);
}

#[tokio::test]
async fn a_question_of_a_call_reaches_the_client_in_both_eras() {
    let backend = backend().await;
    let broker = started(&backend, json!({})).await;
    let calls = json!([call_of("b__say", "one"), call_of("b__ask", "x")]);
    let arguments = json!({"calls": calls});
    let accepted = json!({"action": "accept", "content": {"name": "Ann"}});
    let answers = {
        let accepted = accepted.clone();
        move |_: &str, _: &Value| Ok(accepted.clone())
    };
    let capabilities = json!({"elicitation": {"form": {}}});
    let client = Modern::of(&broker, "/mcp").with(capabilities.clone());
    let asked = client.call("execute_batch", arguments.clone()).await;
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let (key, _) = asked["inputRequests"].as_object().unwrap().iter().next().unwrap();
    let responses = json!({key: accepted});
    let state = &asked["requestState"];
    let answer = client.retry("execute_batch", arguments.clone(), state, responses).await;
    assert_eq!(ends(&answer["result"]), ["ok \"one\"", "ok Ann"], "{answer}");
    let client = broker.client("/mcp").answers(answers).connected(capabilities).await;
    let answer = Client::Http(client).batch(arguments).await;
    assert_eq!(ends(&answer["result"]), ["ok \"one\"", "ok Ann"], "{answer}");
    assert_eq!(backend.count(|seen| seen.calls("say")), 2, "nothing is called again");
}

#[tokio::test]
async fn a_call_of_a_batch_waits_for_its_approval() {
    let backend = backend().await;
    let broker = started(&backend, json!({})).await;
    let admin = broker.admin();
    let policy = json!({"default": "allow", "rules": [{"id": "r", "effect": "approve", "objects": {"tools": ["b/say"]}}]});
    assert_eq!(admin.put("/admin/v1/tenants/default/policy", &policy).await.0, 201);
    let client = broker.client("/mcp").connected(json!({})).await;
    let call = client.start_call("execute_batch", json!({"calls": [call_of("b__say", "one")]}));
    let id = eventually("the approval", || async {
        let (_, answer) = admin.get("/admin/v1/tenants/default/approvals").await;
        answer["approvals"][0]["id"].as_str().map(str::to_owned).ok_or(answer)
    })
    .await;
    assert_eq!(backend.count(|seen| seen.calls("say")), 0);
    let path = format!("/admin/v1/tenants/default/approvals/{id}");
    assert_eq!(admin.post(&path, &json!({"decision": "approve"})).await.0, 200);
    assert_eq!(ends(&call.result().await), ["ok \"one\""]);
}
