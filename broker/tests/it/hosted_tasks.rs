//! Tasks of 2025-11-25 for backends that do not support them: the broker is the host.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use testkit::{FakeBackend, Gate, Reply, TestBroker, TestClient};

use crate::{
    broker_with, builder, configured, echo, kind, stdio,
    tasks::{start, wait_status},
    text_of,
};

const RELATED: &str = "io.modelcontextprotocol/related-task";

/// Returns a backend with a tool `job` that waits at the gate.
async fn waiting(done: &Gate) -> FakeBackend {
    FakeBackend::with_tool("job", done.before(Reply::text("done"))).await
}

fn job(extra: Value) -> Value {
    let mut params = json!({"name": "b__job", "arguments": {}, "task": {"ttl": 60000}});
    params.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    params
}

async fn with_keys(backend: &FakeBackend) -> (TestBroker, TestClient, TestClient) {
    let broker = builder().auth_required().backend("default", "b", backend.spec()).start().await;
    let one = broker
        .client("/mcp")
        .bearer(&broker.admin().create_key("default").await)
        .connected(json!({}))
        .await;
    let other = broker
        .client("/mcp")
        .bearer(&broker.admin().create_key("default").await)
        .connected(json!({}))
        .await;
    (broker, one, other)
}

#[tokio::test]
async fn task_02_every_tool_of_a_backend_without_tasks_may_run_as_one() {
    let (broker, _backend) = echo().await;
    for path in ["/mcp", "/mcp/b"] {
        let client = broker.client(path).connected(json!({})).await;
        let tools = client.list_all("tools/list", "tools").await;
        assert_eq!(tools[0]["execution"], json!({"taskSupport": "optional"}), "{tools:?}");
    }
}

#[tokio::test]
async fn task_04_task_07_a_plain_tool_runs_as_a_task_and_gives_the_same_result() {
    let done = Gate::new();
    let backend = FakeBackend::start().await;
    let content = r#"{"content":[{"type":"text","text":"x", "annotations" : {"priority":1.0}},{"type":"resource_link","uri":"file:///a","name":"a"}],"structuredContent":{"n":1.50}}"#;
    backend.tool("job", done.before(Reply::ResultText(content.to_owned())));
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let made = client.result("tools/call", job(json!({"arguments": {"y": 2}}))).await;
    let id = made["task"]["taskId"].as_str().unwrap().to_owned();
    let seen = backend.wait_for("the call", |seen| seen.calls("job")).await;
    assert_eq!(
        seen.message["params"],
        json!({"name": "job", "arguments": {"y": 2}}),
        "nothing of a task reaches it"
    );
    assert_eq!(client.result("tasks/get", json!({"taskId": id})).await["status"], "working");
    let waiting = client.start_request("tasks/result", json!({"taskId": id}));
    done.open();
    let mut result = waiting.result().await;
    assert_eq!(
        result["_meta"].as_object_mut().unwrap().remove(RELATED),
        Some(json!({"taskId": id}))
    );
    result.as_object_mut().unwrap().remove("_meta");
    assert_eq!(result, client.call("b__job", json!({})).await, "as a plain call");
    assert_eq!(result["content"][1]["uri"], "b+file:///a");
    let task = client.result("tasks/get", json!({"taskId": id})).await;
    assert_eq!(
        (task["status"].as_str(), task["ttl"].as_u64()),
        (Some("completed"), Some(60000)),
        "{task}"
    );
    assert!(task["createdAt"].as_str() <= task["lastUpdatedAt"].as_str());
}

#[tokio::test]
async fn a_child_process_runs_tasks_too() {
    let broker = builder().backend("default", "b", stdio().spec()).start().await;
    let client = broker.connected(json!({})).await;
    let tools = client.list_all("tools/list", "tools").await;
    let name = tools.iter().find(|tool| tool["name"].as_str().unwrap().ends_with("echo")).unwrap()
        ["name"]
        .clone();
    let made =
        client.result("tools/call", json!({"name": name, "arguments": {"x": 1}, "task": {}})).await;
    let id = made["task"]["taskId"].as_str().unwrap();
    let result = client.result("tasks/result", json!({"taskId": id})).await;
    assert!(text_of(&result).contains("\"x\""), "{result}");
}

#[tokio::test]
async fn task_07_task_18_errors_and_failed_tools_fail_the_task() {
    let backend = FakeBackend::start().await;
    backend.tool("job", |_| async {
        Reply::Error(json!({"code": -32050, "message": "it broke", "data": {"why": 1}}))
    });
    backend.tool("sad", |_| async {
        Reply::Result(json!({"content": [{"type": "text", "text": "no"}], "isError": true}))
    });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let id = start(&client, "b__job").await;
    let error = client.error("tasks/result", json!({"taskId": id})).await;
    assert_eq!(error, json!({"code": -32050, "message": "it broke", "data": {"why": 1}}));
    assert_eq!(client.result("tasks/get", json!({"taskId": id})).await["status"], "failed");
    let id = start(&client, "b__sad").await;
    let result = client.result("tasks/result", json!({"taskId": id})).await;
    assert_eq!((result["isError"].as_bool(), text_of(&result)), (Some(true), "no"));
    assert_eq!(client.result("tasks/get", json!({"taskId": id})).await["status"], "failed");
}

#[tokio::test]
async fn task_12_a_ttl_is_checked_and_the_actual_ttl_is_returned() {
    let (broker, backend) = echo().await;
    let client = broker.connected(json!({})).await;
    for bad in [json!({"ttl": -1}), json!({"ttl": "1"}), json!({"ttl": null}), json!(7)] {
        let error = client.error("tools/call", json!({"name": "b__echo", "task": bad})).await;
        assert_eq!(
            (error["code"].as_i64(), kind(&error)),
            (Some(-32602), "invalid_params"),
            "{bad}"
        );
    }
    let made = client.result("tools/call", json!({"name": "b__echo", "task": {}})).await;
    assert_eq!(made["task"]["ttl"], 3_600_000, "the usual one");
    let made = client.result("tools/call", json!({"name": "b__echo", "task": {"ttl": 1e15}})).await;
    assert!(made["task"]["ttl"].as_u64().unwrap() < 1_000_000_000_000, "not for ever: {made}");
    assert_eq!(
        backend.count(|seen| seen.calls("echo") && seen.message["params"].get("task").is_some()),
        0
    );
}

#[tokio::test]
async fn task_09_a_cancelled_task_stays_cancelled_and_its_backend_is_notified() {
    let done = Gate::new();
    let backend = waiting(&done).await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let id = start(&client, "b__job").await;
    let call = backend.wait_for("the call", |seen| seen.calls("job")).await;
    let waiting = client.start_request("tasks/result", json!({"taskId": id}));
    let cancelled = client.result("tasks/cancel", json!({"taskId": id})).await;
    assert_eq!(cancelled["status"], "cancelled");
    let received =
        backend.wait_for("the cancellation", |seen| seen.is("notifications/cancelled")).await;
    assert_eq!(received.message["params"]["requestId"], call.message["id"]);
    done.open();
    assert_eq!(
        waiting.error().await["data"]["status"],
        "cancelled",
        "the waiting client learns it"
    );
    assert_eq!(client.result("tasks/get", json!({"taskId": id})).await["status"], "cancelled");
    let error = client.error("tasks/cancel", json!({"taskId": id})).await;
    assert_eq!(error["code"], -32602);
}

#[tokio::test]
async fn task_09_either_a_cancellation_or_an_answer_wins_permanently() {
    let backend = FakeBackend::with_tool("job", |_| async { Reply::text("done") }).await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    for _ in 0..10 {
        let id = start(&client, "b__job").await;
        let answer = client.request("tasks/cancel", json!({"taskId": id})).await;
        let status = client.result("tasks/get", json!({"taskId": id})).await["status"].clone();
        match answer.get("result") {
            Some(task) => assert_eq!(
                (task["status"].as_str(), status.as_str()),
                (Some("cancelled"), Some("cancelled"))
            ),
            None => assert_eq!(
                (answer["error"]["code"].as_i64(), status.as_str()),
                (Some(-32602), Some("completed"))
            ),
        }
        let outcome = client.request("tasks/result", json!({"taskId": id})).await;
        assert_eq!(outcome.get("result").is_some(), status == "completed", "{outcome}");
    }
}

#[tokio::test]
async fn task_05_a_repeated_request_finds_its_task() {
    let (broker, backend) = echo().await;
    let key = |key: &str| json!({"name": "b__echo", "arguments": {"x": key}, "task": {}, "_meta": {"dev.mcp-broker/idempotency-key": "k"}});
    let client = broker.connected(json!({})).await;
    let first = client.result("tools/call", key("same")).await;
    let again = client.result("tools/call", key("same")).await;
    assert_eq!(first["task"]["taskId"], again["task"]["taskId"]);
    let error = client.error("tools/call", key("another call")).await;
    assert_eq!(kind(&error), "invalid_params");
    let stranger = broker.connected(json!({})).await;
    let theirs = stranger.result("tools/call", key("same")).await;
    assert_ne!(
        first["task"]["taskId"], theirs["task"]["taskId"],
        "callers without a key of their own share none"
    );
    // The client sends the same bytes under the same id, because it did not see the answer.
    let body = || {
        json!({"jsonrpc": "2.0", "id": "once", "method": "tools/call", "params": {"name": "b__echo", "task": {}}}).to_string()
    };
    let one = client.start_raw(json!("once"), body()).result().await;
    let two = client.start_raw(json!("once"), body()).result().await;
    assert_eq!(one["task"]["taskId"], two["task"]["taskId"]);
    let other = client.result("tools/call", json!({"name": "b__echo", "task": {}})).await;
    assert_ne!(one["task"]["taskId"], other["task"]["taskId"]);
    for task in [&first, &theirs, &one, &other] {
        let of = if std::ptr::eq(task, &theirs) { &stranger } else { &client };
        wait_status(of, task["task"]["taskId"].as_str().unwrap(), "completed").await;
    }
    assert_eq!(backend.count(|seen| seen.calls("echo")), 4, "each task one call");
    let seen = backend.wait_for("a call", |seen| seen.calls("echo")).await;
    assert_eq!(
        seen.message["params"]
            .get("_meta")
            .and_then(|meta| meta.get("dev.mcp-broker/idempotency-key")),
        None
    );
}

#[tokio::test]
async fn task_11_callers_without_a_key_see_their_own_sessions_tasks_only() {
    let done = Gate::new();
    let backend = waiting(&done).await;
    let broker = broker_with(&backend).await;
    let (one, other) = (broker.connected(json!({})).await, broker.connected(json!({})).await);
    let id = start(&one, "b__job").await;
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        let error = other.error(method, json!({"taskId": id})).await;
        assert_eq!(
            (error["code"].as_i64(), kind(&error)),
            (Some(-32602), "task_not_found"),
            "{method}"
        );
    }
    assert_eq!(other.list_all("tasks/list", "tasks").await.len(), 0);
    assert_eq!(one.list_all("tasks/list", "tasks").await.len(), 1);
    done.open();
}

#[tokio::test]
async fn task_11_a_long_task_list_is_returned_completely_in_pages() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({})).await;
    let mut made = Vec::new();
    for _ in 0..105 {
        made.push(start(&client, "b__echo").await);
    }
    let first = client.result("tasks/list", json!({})).await;
    assert_eq!(first["tasks"].as_array().unwrap().len(), 100);
    assert!(first["nextCursor"].is_string());
    let listed: Vec<_> = client
        .list_all("tasks/list", "tasks")
        .await
        .iter()
        .map(|task| task["taskId"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(listed, made, "in the order they were made");
    let error = client.error("tasks/list", json!({"cursor": "made up"})).await;
    assert_eq!(error["code"], -32602);
}

#[tokio::test]
async fn r_2_another_session_of_the_principal_gets_the_result_of_a_task() {
    let done = Gate::new();
    let backend = waiting(&done).await;
    backend.sessions();
    let (broker, client, stranger) = with_keys(&backend).await;
    let key = client
        .usual_headers()
        .into_iter()
        .find(|(name, _)| name.eq_ignore_ascii_case("authorization"))
        .unwrap()
        .1;
    let id = start(&client, "b__job").await;
    backend.wait_for("the call", |seen| seen.calls("job")).await;
    assert_eq!(client.delete_session().await, 204);
    let again =
        broker.client("/mcp").bearer(key.trim_start_matches("Bearer ")).connected(json!({})).await;
    assert_eq!(
        again.result("tasks/get", json!({"taskId": id})).await["status"],
        "working",
        "it goes on without the session"
    );
    assert_eq!(kind(&stranger.error("tasks/get", json!({"taskId": id})).await), "task_not_found");
    let waiting = again.start_request("tasks/result", json!({"taskId": id}));
    done.open();
    assert_eq!(text_of(&waiting.result().await), "done");
    assert_eq!(backend.count(|seen| seen.calls("job")), 1);
}

#[tokio::test]
async fn task_13_a_question_of_a_plain_tool_is_sent_on_the_result_stream() {
    let backend = FakeBackend::with_tool("job", |call| async move {
        let elicit = json!({"message": "?", "requestedSchema": {"type": "object", "properties": {}}});
        let first = call.request("elicitation/create", elicit).await;
        let sample = json!({"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 5});
        let second = call.request("sampling/createMessage", sample).await;
        Reply::text(&format!("{} {}", first["result"]["action"].as_str().unwrap(), second["result"]["model"].as_str().unwrap()))
    })
    .await;
    let broker = broker_with(&backend).await;
    let answers = |method: &str, _: &Value| {
        Ok(match method {
            "elicitation/create" => json!({"action": "accept", "content": {}}),
            _ => {
                json!({"role": "assistant", "content": {"type": "text", "text": "ho"}, "model": "m"})
            }
        })
    };
    let client = broker
        .client("/mcp")
        .answers(answers)
        .connected(json!({"elicitation": {}, "sampling": {}}))
        .await;
    let mut stream = client.open_get_stream().await;
    let id = start(&client, "b__job").await;
    wait_status(&client, &id, "input_required").await;
    let mut call = client.start_request("tasks/result", json!({"taskId": id}));
    assert_eq!(text_of(&call.finish().await.value["result"]), "accept m");
    let methods: Vec<_> = call
        .before
        .iter()
        .map(|question| question.value["method"].as_str().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(
        methods.iter().filter(|method| *method != "notifications/tasks/status").collect::<Vec<_>>(),
        ["elicitation/create", "sampling/createMessage"]
    );
    for question in call.before.iter().filter(|message| message.value.get("id").is_some()) {
        assert_eq!(
            question.value["params"]["_meta"][RELATED]["taskId"],
            id.as_str(),
            "{:?}",
            question.value
        );
    }
    let mut received = Vec::new();
    while received.last().map(String::as_str) != Some("completed") {
        let (_, message) = stream.next_message().await.unwrap();
        assert_eq!(message["params"]["taskId"], id.as_str(), "{message}");
        received.push(message["params"]["status"].as_str().unwrap().to_owned());
    }
    assert_eq!(received[0], "input_required", "{received:?}");
    assert!(received.windows(2).all(|pair| pair[0] != pair[1]), "{received:?}");
}

/// The client's answer gives the bytes of its question back.
#[tokio::test]
async fn task_15_open_questions_count_as_bytes_of_their_tenant() {
    let (ask_more, refused) = (Gate::new(), Gate::new());
    let backend = FakeBackend::start().await;
    let gates = (ask_more.clone(), refused.clone());
    backend.tool("job", move |call| {
        let (ask_more, refused) = gates.clone();
        async move {
            let large = || {
                let schema = json!({"type": "object", "properties": {}});
                json!({"message": "?".repeat(700_000), "requestedSchema": schema})
            };
            let (_, first) = call.start_question("elicitation/create", large()).await;
            ask_more.passed().await;
            let second = call.request("elicitation/create", large()).await;
            refused.open();
            let first = first.await.unwrap();
            let third = call.request("elicitation/create", large()).await;
            Reply::text(&format!(
                "{} {} {}",
                first["result"]["action"],
                second["error"]["data"]["kind"],
                third["result"]["action"]
            ))
        }
    });
    let config = json!({"tasks": {"bytes_per_tenant": "1MiB", "result_bytes": "64KiB"}});
    let broker = configured(config, backend.spec()).await;
    let client = broker
        .client("/mcp")
        .answers(|_, _| Ok(json!({"action": "accept", "content": {}})))
        .connected(json!({"elicitation": {}}))
        .await;
    let id = start(&client, "b__job").await;
    wait_status(&client, &id, "input_required").await;
    let error = client
        .error(
            "tools/call",
            json!({"name": "b__job", "task": {}, "arguments": {"x": "x".repeat(400_000)}}),
        )
        .await;
    assert_eq!(kind(&error), "task_limit", "a call counts with the open question: {error}");
    ask_more.open();
    refused.passed().await;
    let result = client.result("tasks/result", json!({"taskId": id})).await;
    assert_eq!(text_of(&result), r#""accept" "task_limit" "accept""#);
}

/// A response of the client gets no answer, so the backend gets the error.
#[tokio::test]
async fn task_15_an_answer_beyond_the_bytes_of_its_tenant_becomes_an_error() {
    let backend = FakeBackend::with_tool("job", |call| async move {
        let schema = json!({"type": "object", "properties": {}});
        let question = json!({"message": "?", "requestedSchema": schema});
        let answer = call.request("elicitation/create", question).await;
        Reply::text(&answer["error"]["data"]["kind"].to_string())
    })
    .await;
    let config = json!({"tasks": {"bytes_per_tenant": "1MiB", "result_bytes": "64KiB"}});
    let broker = configured(config, backend.spec()).await;
    let client = broker
        .client("/mcp")
        .answers(|_, _| Ok(json!({"action": "accept", "content": {"x": "x".repeat(1_100_000)}})))
        .connected(json!({"elicitation": {}}))
        .await;
    let id = start(&client, "b__job").await;
    let result = client.result("tasks/result", json!({"taskId": id})).await;
    assert_eq!(text_of(&result), r#""task_limit""#);
}

#[tokio::test]
async fn task_13_another_session_of_the_principal_may_answer() {
    let backend = FakeBackend::with_tool("job", |call| async move {
        let answer = call
            .request(
                "elicitation/create",
                json!({"message": "?", "requestedSchema": {"type": "object", "properties": {}}}),
            )
            .await;
        Reply::text(answer["result"]["action"].as_str().unwrap_or("nothing"))
    })
    .await;
    let broker = builder().auth_required().backend("default", "b", backend.spec()).start().await;
    let key = broker.admin().create_key("default").await;
    let maker = broker.client("/mcp").bearer(&key).connected(json!({"elicitation": {}})).await;
    let id = start(&maker, "b__job").await;
    wait_status(&maker, &id, "input_required").await;
    let mute = broker.client("/mcp").bearer(&key).connected(json!({})).await;
    let not_asked = mute.start_request("tasks/result", json!({"taskId": id}));
    let other = broker
        .client("/mcp")
        .bearer(&key)
        .answers(|_, _| Ok(json!({"action": "decline"})))
        .connected(json!({"elicitation": {}}))
        .await;
    assert_eq!(text_of(&other.result("tasks/result", json!({"taskId": id})).await), "decline");
    assert_eq!(
        text_of(&not_asked.result().await),
        "decline",
        "a client that cannot answer waits for one that can"
    );
}

#[tokio::test]
async fn task_13_a_question_moves_to_another_waiting_request_of_its_session() {
    let backend = FakeBackend::with_tool("job", |call| async move {
        let form = json!({"message": "?", "requestedSchema": {"type": "object", "properties": {}}});
        let answer = call.request("elicitation/create", form).await;
        Reply::text(answer["result"]["action"].as_str().unwrap_or("nothing"))
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.client("/mcp").connected(json!({"elicitation": {}})).await;
    let id = start(&client, "b__job").await;
    wait_status(&client, &id, "input_required").await;
    let task = json!({"taskId": id});
    let mut first = client.start_request_with_id(json!(901), "tasks/result", task.clone());
    asked(&mut first).await;
    let mut second = client.start_request_with_id(json!(902), "tasks/result", task);
    second.first_event_id().await;
    client.notify("notifications/cancelled", json!({"requestId": 901})).await;
    let question = asked(&mut second).await;
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}});
    client.post(answer.to_string()).await;
    assert_eq!(text_of(&second.result().await), "decline");
}

/// Returns the question that a waiting request gets.
async fn asked(waiting: &mut testkit::Call) -> Value {
    loop {
        let message = waiting.next().await.expect("the request waits").value;
        if message["method"] == "elicitation/create" {
            return message;
        }
    }
}

#[tokio::test]
async fn task_13_a_client_without_the_capability_gets_no_question() {
    let backend = FakeBackend::with_tool("job", |call| async move {
        let answer = call
            .request(
                "elicitation/create",
                json!({"message": "?", "requestedSchema": {"type": "object", "properties": {}}}),
            )
            .await;
        Reply::text(&answer["error"]["code"].to_string())
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let id = start(&client, "b__job").await;
    let code = text_of(&client.result("tasks/result", json!({"taskId": id})).await).to_owned();
    assert!(code.starts_with("-32"), "{code}");
}

#[tokio::test]
async fn task_14_progress_is_sent_with_the_clients_token_until_the_end() {
    let done = Gate::new();
    let gate = done.clone();
    let backend = FakeBackend::with_tool("job", move |call| {
        let gate = gate.clone();
        async move {
            let token = call.progress_token().clone();
            let mut progress = 1;
            // The backend repeats it: no other event shows when the client has begun to wait.
            loop {
                call.notify(
                    "notifications/progress",
                    json!({"progressToken": token, "progress": progress}),
                )
                .await;
                progress += 1;
                if tokio::time::timeout(Duration::from_millis(20), gate.passed()).await.is_ok() {
                    break;
                }
            }
            Reply::text("done")
        }
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let mut stream = client.open_get_stream().await;
    let made = client.result("tools/call", job(json!({"_meta": {"progressToken": "mine"}}))).await;
    let id = made["task"]["taskId"].as_str().unwrap().to_owned();
    let (_, message) = stream.next_message().await.unwrap();
    assert_eq!(
        (message["method"].as_str(), message["params"]["progressToken"].as_str()),
        (Some("notifications/progress"), Some("mine"))
    );
    assert_eq!(message["params"]["_meta"][RELATED]["taskId"], id.as_str(), "{message}");
    let mut call = client.start_request("tasks/result", json!({"taskId": id}));
    // The stream on which the client waits is preferred once it waits there.
    let there = call.next().await.unwrap();
    assert_eq!(
        (there.method(), there.value["params"]["progressToken"].as_str()),
        (Some("notifications/progress"), Some("mine"))
    );
    done.open();
    assert_eq!(text_of(&call.finish().await.value["result"]), "done");
}

#[tokio::test]
async fn an_unavailable_backend_fails_the_task_after_the_call_timeout() {
    let (backend, calls) = (FakeBackend::echo().await, Arc::new(AtomicUsize::new(0)));
    let spec = backend.spec();
    // Longer than the longest back-off, so that there is an attempt after the return.
    let timeouts = json!({"timeouts": {"call": "5s"}});
    let broker = configured(timeouts, spec).await;
    let client = broker.connected(json!({})).await;
    let address = backend.die().await;
    let id = start(&client, "b__echo").await;
    assert_eq!(
        client.result("tasks/get", json!({"taskId": id})).await["status"],
        "working",
        "it waits"
    );
    let error = client.error("tasks/result", json!({"taskId": id})).await;
    assert_eq!(
        (kind(&error), error["data"]["retryable"].as_bool()),
        ("backend_unavailable", Some(true)),
        "{error}"
    );
    // A backend that comes back in time is used.
    let id = start(&client, "b__echo").await;
    let backend = FakeBackend::on_listener(tokio::net::TcpListener::bind(address).await.unwrap());
    let counted = calls.clone();
    backend.tool("echo", move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Reply::text("back") }
    });
    assert_eq!(text_of(&client.result("tasks/result", json!({"taskId": id})).await), "back");
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

/// Returns a backend whose first answer is lost on the way.
async fn forgetful(annotations: Value) -> FakeBackend {
    let backend = FakeBackend::start().await;
    let calls = AtomicUsize::new(0);
    backend.tool("job", move |_| {
        let first = calls.fetch_add(1, Ordering::Relaxed) == 0;
        async move { if first { Reply::Cut } else { Reply::text("second") } }
    });
    backend.list(
        "tools",
        vec![json!({"name": "job", "inputSchema": {"type": "object"}, "annotations": annotations})],
    );
    backend
}

#[tokio::test]
async fn f_31_a_lost_answer_is_unknown_unless_the_tool_is_declared_harmless() {
    let backend = forgetful(json!({"readOnlyHint": false})).await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let id = start(&client, "b__job").await;
    let error = client.error("tasks/result", json!({"taskId": id})).await;
    assert_eq!(
        (kind(&error), error["data"]["retryable"].as_bool()),
        ("outcome_unknown", Some(false)),
        "{error}"
    );
    assert_eq!(backend.count(|seen| seen.calls("job")), 1, "never twice");
    for harmless in [json!({"readOnlyHint": true}), json!({"idempotentHint": true})] {
        let backend = forgetful(harmless).await;
        let broker = broker_with(&backend).await;
        let client = broker.connected(json!({})).await;
        let id = start(&client, "b__job").await;
        assert_eq!(text_of(&client.result("tasks/result", json!({"taskId": id})).await), "second");
    }
}

#[tokio::test]
async fn a_task_may_run_longer_than_a_plain_call() {
    let done = Gate::new();
    let backend = waiting(&done).await;
    let broker = configured(json!({"timeouts": {"call": "1s"}}), backend.spec()).await;
    let client = broker.connected(json!({})).await;
    let id = start(&client, "b__job").await;
    assert_eq!(
        kind(&client.error("tools/call", json!({"name": "b__job"})).await),
        "timeout",
        "which takes a second"
    );
    assert_eq!(client.result("tasks/get", json!({"taskId": id})).await["status"], "working");
    done.open();
    assert_eq!(text_of(&client.result("tasks/result", json!({"taskId": id})).await), "done");
}
