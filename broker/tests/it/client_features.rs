//! Requests of backends to clients: sampling, elicitation, roots. The broker sends one only to the
//! client whose call caused it, and only if that client declared the capability.

use serde_json::{Value, json};
use testkit::{FakeBackend, Gate, RecordedRequest, Reply, TestBroker, TestClient, within};

use crate::{broker_with, builder, kind, text_of};

/// Returns a backend whose tool `ask` sends `arguments.method` with `arguments.params` and returns
/// the whole answer.
async fn asking_backend() -> FakeBackend {
    FakeBackend::with_tool("ask", |call| async move {
        let method = call.arguments()["method"].as_str().unwrap().to_owned();
        let answer = call.request(&method, call.arguments()["params"].clone()).await;
        Reply::text(&answer.to_string())
    })
    .await
}

async fn backend_with_questions() -> (TestBroker, FakeBackend) {
    let backend = asking_backend().await;
    (broker_with(&backend).await, backend)
}

async fn request(client: &TestClient, method: &str, params: Value) -> Value {
    let result = client.call("b__ask", json!({"method": method, "params": params})).await;
    serde_json::from_str(text_of(&result)).unwrap()
}

fn form() -> Value {
    json!({"message": "who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}})
}

fn url() -> Value {
    json!({"mode": "url", "message": "go", "url": "https://example.com/x", "elicitationId": "e1"})
}

fn sampling(extra: Value) -> Value {
    let mut params = json!({"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 5});
    params.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    params
}

/// Returns a valid answer to a request of this method, with members of the test's own.
fn answer_to(method: &str, extra: Value) -> Value {
    let mut answer = match method {
        "sampling/createMessage" => {
            json!({"role": "assistant", "content": {"type": "text", "text": "ho"}, "model": "m"})
        }
        "elicitation/create" => json!({"action": "decline"}),
        "roots/list" => json!({"roots": []}),
        other => panic!("no answer to {other}"),
    };
    answer.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    answer
}

#[tokio::test]
async fn cli_01_cli_07_only_declared_capabilities_and_modes_are_requested() {
    let (broker, _backend) = backend_with_questions().await;
    let tools = json!({"tools": [{"name": "t", "inputSchema": {"type": "object"}}]});
    for (capabilities, method, params, refusal) in [
        (json!({}), "sampling/createMessage", sampling(json!({})), Some(-32601)),
        (json!({}), "elicitation/create", form(), Some(-32601)),
        (json!({}), "roots/list", json!({}), Some(-32601)),
        (json!({"roots": {}}), "sampling/createMessage", sampling(json!({})), Some(-32601)),
        (json!({"sampling": {}}), "sampling/createMessage", sampling(tools.clone()), Some(-32602)),
        (json!({"sampling": {"tools": {}}}), "sampling/createMessage", sampling(tools), None),
        (json!({"sampling": {}}), "sampling/createMessage", sampling(json!({})), None),
        (json!({"elicitation": {}}), "elicitation/create", url(), Some(-32602)),
        (json!({"elicitation": {"form": {}}}), "elicitation/create", url(), Some(-32602)),
        (json!({"elicitation": {"url": {}}}), "elicitation/create", form(), Some(-32602)),
        (json!({"elicitation": {}}), "elicitation/create", form(), None),
        (json!({"elicitation": {"url": {}}}), "elicitation/create", url(), None),
        (json!({"roots": {"listChanged": true}}), "roots/list", json!({}), None),
    ] {
        let answers = |method: &str, _: &Value| Ok(answer_to(method, json!({"answered": true})));
        let client = broker.client("/mcp").answers(answers).connected(capabilities.clone()).await;
        let answer = request(&client, method, params.clone()).await;
        match refusal {
            Some(code) => assert_eq!(
                answer["error"]["code"], code,
                "{capabilities} {method} {params}: {answer}"
            ),
            None => assert_eq!(
                answer["result"]["answered"], true,
                "{capabilities} {method} {params}: {answer}"
            ),
        }
    }
}

#[tokio::test]
async fn cli_02_a_backend_gets_the_capabilities_of_the_client() {
    let backend = FakeBackend::echo().await;
    backend.sessions();
    let broker = broker_with(&backend).await;
    for capabilities in [
        json!({"sampling": {"tools": {}, "context": {}}, "elicitation": {"form": {}, "url": {}}, "roots": {"listChanged": true}}),
        json!({"elicitation": {}}),
        json!({"experimental": {"com.example/x": {"y": 1}}, "roots": {}}),
    ] {
        let client = broker.connected(capabilities.clone()).await;
        client.call("b__echo", json!({})).await;
        let received =
            backend.recorded_of("initialize").pop().unwrap().message["params"]["capabilities"]
                .clone();
        for member in ["sampling", "elicitation", "roots", "experimental"] {
            assert_eq!(received.get(member), capabilities.get(member), "{member} in {received}");
        }
    }
}

#[tokio::test]
async fn cli_03_a_question_is_sent_to_the_caller_on_the_stream_of_its_call() {
    let (broker, _backend) = backend_with_questions().await;
    let clients = ["ann", "bob"].map(|name| {
        broker.client("/mcp").answers(move |_, params| {
            assert_eq!(params["message"], name, "the question of this client");
            Ok(json!({"action": "accept", "content": {"name": name}}))
        })
    });
    let mut gets = Vec::new();
    for client in &clients {
        client.initialize("2025-11-25", json!({"elicitation": {}})).await;
        gets.push(client.open_get_stream().await);
    }
    for _ in 0..10 {
        let calls = [0, 1].map(|who| {
            let name = ["ann", "bob"][who];
            let params =
                json!({"message": name, "requestedSchema": {"type": "object", "properties": {}}});
            clients[who]
                .start_call("b__ask", json!({"method": "elicitation/create", "params": params}))
        });
        for (name, mut call) in ["ann", "bob"].into_iter().zip(calls) {
            let answer = call.finish().await;
            let received: Value = serde_json::from_str(text_of(&answer.value["result"])).unwrap();
            assert_eq!(received["result"]["content"]["name"], name);
            assert_eq!(call.before.len(), 1, "the question came on this call's stream");
        }
    }
    for (client, mut get) in clients.iter().zip(gets) {
        client.delete_session().await;
        while let Some(event) = get.next().await {
            assert!(event.message().is_none(), "{event:?}");
        }
    }
}

#[tokio::test]
async fn cli_03_ids_of_questions_and_answers_are_mapped_both_ways() {
    let gate = Gate::new();
    let wait = gate.clone();
    let backend = FakeBackend::with_tool("two", move |call| {
        let wait = wait.clone();
        async move {
            let (_, first) = call.start_question("roots/list", json!({"n": 1})).await;
            let (_, second) = call.start_question("roots/list", json!({"n": 2})).await;
            wait.open();
            let (first, second) =
                (within("first", first).await.unwrap(), within("second", second).await.unwrap());
            Reply::text(&json!([first["result"]["echo"], second["result"]["echo"]]).to_string())
        }
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({"roots": {}})).await;
    let mut call = client.start_call("b__two", json!({}));
    let questions = [call.next().await.unwrap(), call.next().await.unwrap()];
    within("both questions", gate.passed()).await;
    assert_ne!(questions[0].value["id"], questions[1].value["id"]);
    // The answers come in the other order, with other ids than the backend's own.
    for question in questions.iter().rev() {
        client
            .respond(
                question.value["id"].clone(),
                answer_to("roots/list", json!({"echo": question.value["params"]["n"]})),
            )
            .await;
    }
    assert_eq!(text_of(&call.finish().await.value["result"]), "[1,2]");
}

#[tokio::test]
async fn cli_04_another_session_cannot_answer_a_question() {
    let (broker, _backend) = backend_with_questions().await;
    let victim = broker.connected(json!({"roots": {}})).await;
    let thief = broker.connected(json!({"roots": {}})).await;
    let mut call = victim.start_call("b__ask", json!({"method": "roots/list", "params": {}}));
    let question = call.next().await.unwrap();
    let forged = json!({"jsonrpc": "2.0", "id": question.value["id"], "result": {"roots": [{"uri": "file:///forged"}]}});
    let status = thief.post(forged.to_string()).await.status;
    assert!([202, 400].contains(&status), "{status}");
    victim.respond(question.value["id"].clone(), json!({"roots": []})).await;
    let answer = call.finish().await;
    assert!(!answer.text.contains("forged") && answer.text.contains("roots"), "{}", answer.text);
}

#[tokio::test]
async fn cli_05_elicitation_complete_is_sent_only_to_the_client_of_the_request() {
    let backend = FakeBackend::with_tool("url", |call| async move {
        call.request("elicitation/create", url()).await;
        call.notify("notifications/elicitation/complete", json!({"elicitationId": "unknown"}))
            .await;
        call.notify("notifications/elicitation/complete", json!({"elicitationId": "e1"})).await;
        Reply::text("done")
    })
    .await;
    let broker = broker_with(&backend).await;
    let accept = |_: &str, _: &Value| Ok(json!({"action": "accept"}));
    let client =
        broker.client("/mcp").answers(accept).connected(json!({"elicitation": {"url": {}}})).await;
    let other =
        broker.client("/mcp").answers(accept).connected(json!({"elicitation": {"url": {}}})).await;
    let mut get = other.open_get_stream().await;
    let mut call = client.start_call("b__url", json!({}));
    call.finish().await;
    let complete: Vec<_> = call
        .before
        .iter()
        .filter(|message| message.method() == Some("notifications/elicitation/complete"))
        .collect();
    assert_eq!(complete.len(), 1, "{:?}", call.before);
    let asked =
        call.before.iter().find(|message| message.method() == Some("elicitation/create")).unwrap();
    assert_eq!(
        complete[0].value["params"]["elicitationId"],
        asked.value["params"]["elicitationId"]
    );
    other.delete_session().await;
    while let Some(event) = get.next().await {
        assert!(event.message().is_none(), "{event:?}");
    }
}

#[tokio::test]
async fn cli_06_url_elicitation_required_passes_with_its_data() {
    let data = json!({"elicitations": [{"mode": "url", "message": "go", "url": "https://example.com/?a=%20&b", "elicitationId": "e9"}], "x": 1.50});
    let given = data.clone();
    let backend = FakeBackend::with_tool("need", move |_| {
        let given = given.clone();
        async move { Reply::Error(json!({"code": -32042, "message": "This request requires more information.", "data": given})) }
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({"elicitation": {"url": {}}})).await;
    let error = client.error("tools/call", json!({"name": "b__need"})).await;
    assert_eq!((error["code"].as_i64(), &error["data"]), (Some(-32042), &data));
}

#[tokio::test]
async fn cli_08_a_clients_errors_and_results_pass_unchanged() {
    let (broker, _backend) = backend_with_questions().await;
    let error = json!({"code": -1, "message": "User rejected sampling request", "data": {"why": [1, null]}});
    let given = error.clone();
    let client = broker
        .client("/mcp")
        .answers(move |_, _| Err(given.clone()))
        .connected(json!({"sampling": {}}))
        .await;
    let answer = request(&client, "sampling/createMessage", sampling(json!({}))).await;
    assert_eq!(answer["error"], error);
    for action in ["accept", "decline", "cancel"] {
        let client = broker
            .client("/mcp")
            .answers(move |_, _| Ok(json!({"action": action, "_meta": {"k": 1.0}})))
            .connected(json!({"elicitation": {}}))
            .await;
        assert_eq!(
            request(&client, "elicitation/create", form()).await["result"],
            json!({"action": action, "_meta": {"k": 1.0}})
        );
    }
}

#[tokio::test]
async fn cli_08_questions_reach_the_client_unchanged() {
    let (broker, _backend) = backend_with_questions().await;
    let client = broker
        .client("/mcp")
        .answers(|method, params| Ok(answer_to(method, json!({"got": params}))))
        .connected(json!({"sampling": {"context": {}, "tools": {}}}))
        .await;
    let params = sampling(json!({
        "includeContext": "thisServer", "temperature": 0.10, "metadata": {"x": null}, "_meta": {"com.example/a": 1},
        "tools": [], "toolChoice": {"mode": "auto"}, "unknown": {"deep": [true]},
    }));
    assert_eq!(
        request(&client, "sampling/createMessage", params.clone()).await["result"]["got"],
        params
    );
}

#[tokio::test]
async fn cli_09_roots_list_changed_reaches_the_sessions_backends() {
    let (broker, backend) = backend_with_questions().await;
    let client = broker
        .client("/mcp")
        .answers(|_, _| Ok(json!({"roots": []})))
        .connected(json!({"roots": {"listChanged": true}}))
        .await;
    request(&client, "roots/list", json!({})).await;
    client.notify("notifications/roots/list_changed", json!({})).await;
    backend.wait_for("the change", |seen| seen.is("notifications/roots/list_changed")).await;
    let without = broker.connected(json!({"roots": {}})).await;
    without.notify("notifications/roots/list_changed", json!({})).await;
    without.result("ping", json!({})).await;
    assert_eq!(
        backend.recorded_of("notifications/roots/list_changed").len(),
        1,
        "not from a client that did not declare it"
    );
}

#[tokio::test]
async fn rpc_06_a_malformed_answer_ends_its_question_and_answers_no_request() {
    let broker = builder().config(json!({"listen": {"tcp": "127.0.0.1:0"}}));
    let backend = asking_backend().await;
    let broker = broker.backend("default", "b", backend.spec()).start().await;
    let client = broker.duplex().tcp(broker.tcp_address()).await;
    let client = client.connected(json!({"roots": {}})).await;
    for (malformed, reason) in [
        (json!({"result": []}), "`result` must be an object"),
        (json!({"error": 5}), "`error` must be an object"),
        (json!({"result": {}, "error": {"code": 1, "message": ""}}), "only one of"),
    ] {
        let call = client.start_call("b__ask", json!({"method": "roots/list", "params": {}})).await;
        let is_question = |message: &Value| message["method"] == "roots/list";
        let question = client.wait_for_message("the question", is_question).await;
        let mut answer = json!({"jsonrpc": "2.0", "id": question["id"]});
        answer.as_object_mut().unwrap().extend(malformed.as_object().unwrap().clone());
        client.send(answer.to_string()).await;
        let is_refusal = |message: &Value| message["error"]["message"].is_string();
        let refusal = client.wait_for_message("the refusal", is_refusal).await;
        assert!(refusal["error"]["message"].as_str().unwrap().contains(reason), "{refusal}");
        assert!(refusal["id"].is_null(), "it would answer a request of the client: {refusal}");
        let result = call.result().await;
        let seen: Value = serde_json::from_str(text_of(&result)).unwrap();
        assert!(seen["error"]["message"].as_str().unwrap().contains(reason), "{seen}");
    }
}

#[tokio::test]
async fn rpc_06_a_request_of_a_backend_with_an_unreadable_id_gets_an_error_without_id() {
    let backend = FakeBackend::with_tool("ask", |call| async move {
        let long = "a".repeat(5_000);
        for id in ["1.5", "18446744073709551616", "null", "{}", &format!("\"{long}\"")] {
            let request = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"roots/list"}}"#);
            call.raw(&format!("data: {request}\n\n")).await;
        }
        Reply::text("done")
    })
    .await;
    backend.content_is_invalid_on_purpose("its requests have ids that the schema excludes");
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({"roots": {}})).await;
    assert_eq!(text_of(&client.call("b__ask", json!({})).await), "done");
    let is_refusal = |seen: &RecordedRequest| {
        seen.message["error"]["code"] == -32600 && seen.message.get("id").is_none()
    };
    backend.wait_count("an error for each request", 5, is_refusal).await;
}

#[tokio::test]
async fn cli_10_when_the_session_ends_the_open_question_is_answered_with_an_error() {
    let (answered, received) =
        (Gate::new(), std::sync::Arc::new(parking_lot::Mutex::new(Value::Null)));
    let shared = (answered.clone(), received.clone());
    let backend = FakeBackend::with_tool("ask", move |call| {
        let (answered, received) = shared.clone();
        async move {
            let answer = call.request("roots/list", json!({})).await;
            *received.lock() = answer;
            answered.open();
            Reply::text("done")
        }
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({"roots": {}})).await;
    let mut call = client.start_call("b__ask", json!({}));
    call.next().await.expect("the question");
    client.delete_session().await;
    within("the backend to be answered", answered.passed()).await;
    assert!(received.lock()["error"]["code"].is_i64(), "{received:?}");
}

#[tokio::test]
async fn cli_10_a_dropped_stream_keeps_the_question_until_it_is_resumed() {
    let (broker, _backend) = backend_with_questions().await;
    let client = broker.connected(json!({"roots": {}})).await;
    let mut call = client.start_request_with_id(
        json!(1),
        "tools/call",
        json!({"name": "b__ask", "arguments": {"method": "roots/list", "params": {}}}),
    );
    let priming = call.first_event_id().await;
    call.next().await.expect("the question");
    drop(call);
    let mut resumed = client.resume(&priming).await;
    let question = resumed.find(|message| message["method"] == "roots/list").await;
    client.respond(question["id"].clone(), json!({"roots": []})).await;
    let answer = resumed.find(|message| message.get("result").is_some()).await;
    assert!(text_of(&answer["result"]).contains("roots"));
}

#[tokio::test]
async fn a_question_outside_of_any_call_is_sent_to_the_session_of_the_link() {
    let backend = FakeBackend::echo().await;
    backend.sessions();
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({"roots": {}})).await;
    client.call("b__echo", json!({})).await;
    let own = backend
        .wait_for("the call", |seen| seen.calls("echo"))
        .await
        .header("mcp-session-id")
        .unwrap()
        .to_owned();
    let mut get = client.open_get_stream().await;
    backend
        .wait_for("the session's stream", |seen| {
            seen.http == "GET" && seen.header("mcp-session-id") == Some(&own)
        })
        .await;
    testkit::eventually("the stream of that session", || async {
        let sent = backend
            .push_to(&own, json!({"jsonrpc": "2.0", "id": "q", "method": "roots/list"}))
            .await;
        if sent > 0 { Ok(()) } else { Err(sent) }
    })
    .await;
    let question = get.find(|message| message["method"] == "roots/list").await;
    client.respond(question["id"].clone(), json!({"roots": [{"uri": "file:///x"}]})).await;
    let answer = backend
        .wait_for("the answer", |seen| seen.message["id"] == "q" && seen.method().is_none())
        .await;
    assert_eq!(answer.message["result"], json!({"roots": [{"uri": "file:///x"}]}));
}

#[tokio::test]
async fn a_question_on_a_shared_link_that_names_no_call_is_refused() {
    let backend = FakeBackend::echo().await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({"roots": {}})).await;
    client.call("b__echo", json!({})).await;
    backend.wait_get_streams(1).await;
    // Without a backend session only the link's own capabilities identify the owner of this stream.
    backend.push(json!({"jsonrpc": "2.0", "id": "s1", "method": "sampling/createMessage", "params": sampling(json!({}))})).await;
    let answer = backend
        .wait_for("the answer", |seen| seen.message["id"] == "s1" && seen.method().is_none())
        .await;
    assert!(answer.message["error"]["code"].is_i64(), "{}", answer.message);
    let error = client.error("tools/call", json!({"name": "none"})).await;
    assert_eq!(kind(&error), "tool_not_found");
}

#[tokio::test]
async fn prog_01_progress_of_a_client_is_sent_with_the_token_of_the_backend() {
    let backend = FakeBackend::with_tool("ask", |call| async move {
        let params =
            json!({"_meta": {"progressToken": "backend-token"}, "messages": [], "maxTokens": 1});
        let answer = call.request("sampling/createMessage", params).await;
        Reply::text(&answer["result"].to_string())
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({"sampling": {}})).await;
    let mut call = client.start_call("b__ask", json!({}));
    let question = call.next().await.unwrap().value;
    let token = question["params"]["_meta"]["progressToken"].clone();
    client
        .notify(
            "notifications/progress",
            json!({"progressToken": token, "progress": 0.5, "message": "thinking"}),
        )
        .await;
    let seen = backend.wait_for("the progress", |seen| seen.is("notifications/progress")).await;
    assert_eq!(
        seen.message["params"],
        json!({"progressToken": "backend-token", "progress": 0.5, "message": "thinking"})
    );
    client.respond(question["id"].clone(), answer_to("sampling/createMessage", json!({}))).await;
    call.finish().await;
}

#[tokio::test]
async fn task_17_tasks_a_client_keeps_for_a_backend_are_relayed() {
    let backend = FakeBackend::with_tool("ask", |call| async move {
        let created =
            call.request("sampling/createMessage", sampling(json!({"task": {"ttl": 1000}}))).await;
        let id = created["result"]["task"]["taskId"].clone();
        let got = call.request("tasks/get", json!({"taskId": id})).await;
        let result = call.request("tasks/result", json!({"taskId": id})).await;
        let cancelled = call.request("tasks/cancel", json!({"taskId": id})).await;
        Reply::text(
            &json!([
                got["result"]["status"],
                result["result"]["model"],
                cancelled["error"]["code"]
            ])
            .to_string(),
        )
    })
    .await;
    let broker = broker_with(&backend).await;
    let task = json!({"taskId": "client-task", "status": "working", "createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z", "ttl": 1000});
    let capabilities = json!({"sampling": {}, "tasks": {"cancel": {}, "requests": {"sampling": {"createMessage": {}}}}});
    let client = broker
        .client("/mcp")
        .answers(move |method, params| match method {
            "sampling/createMessage" => Ok(json!({"task": task})),
            "tasks/get" if params["taskId"] == "client-task" => Ok(task.clone()),
            "tasks/result" if params["taskId"] == "client-task" => {
                Ok(answer_to("sampling/createMessage", json!({})))
            }
            "tasks/cancel" => Err(json!({"code": -32602, "message": "it is over"})),
            other => panic!("{other} {params}"),
        })
        .connected(capabilities)
        .await;
    assert_eq!(text_of(&client.call("b__ask", json!({})).await), r#"["working","m",-32602]"#);
    let without = broker
        .client("/mcp")
        .answers(|method, _| Ok(answer_to(method, json!({}))))
        .connected(json!({"sampling": {}}))
        .await;
    let received = without.call("b__ask", json!({})).await;
    assert!(
        text_of(&received).contains("null"),
        "a client without tasks is not asked about one: {received}"
    );
}
