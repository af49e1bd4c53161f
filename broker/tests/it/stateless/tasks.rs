//! Tasks for clients without a session (MCP 2026-07-28, extension of tasks), hosted by the broker:
//! calls that take long.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use testkit::{DuplexClient, FakeBackend, Gate, Reply, TestBroker, eventually};

use super::{Modern, listening, meta};
use crate::{builder, configured, configured_alone, kind, text_of};

const EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// Adds the extension of tasks to these capabilities.
pub(crate) fn with_tasks(mut capabilities: Value) -> Value {
    capabilities["extensions"] = json!({EXTENSION: {}});
    capabilities
}

/// Starts a broker whose calls become tasks soon.
pub(super) async fn broker_for(spec: Value) -> TestBroker {
    configured(json!({"tasks": {"promote_after": "150ms"}}), spec).await
}

pub(super) fn client_of(broker: &TestBroker) -> Modern {
    Modern::of(broker, "/mcp").with(with_tasks(json!({"elicitation": {}})))
}

/// Calls a tool that becomes a task; returns its id.
pub(crate) async fn task(client: &Modern, tool: &str, arguments: Value) -> String {
    let created = client.call(tool, arguments).await;
    assert_eq!(created["resultType"], "task", "{created}");
    created["taskId"].as_str().unwrap_or_else(|| panic!("flat: {created}")).to_owned()
}

pub(super) async fn get(client: &Modern, id: &str) -> Value {
    client.result("tasks/get", json!({"taskId": id})).await
}

/// Waits until the task has this status.
pub(crate) async fn wait(client: &Modern, id: &str, status: &str) -> Value {
    eventually(&format!("the task to be {status}"), || async {
        let task = get(client, id).await;
        if task["status"] == status { Ok(task) } else { Err(task) }
    })
    .await
}

/// Returns the inputs it needs, by key.
pub(super) fn needs(task: &Value) -> BTreeMap<String, Value> {
    serde_json::from_value(task["inputRequests"].clone())
        .unwrap_or_else(|_| panic!("it needs something: {task}"))
}

pub(super) async fn update(client: &Modern, id: &str, responses: Value) -> Value {
    let acknowledged =
        client.result("tasks/update", json!({"taskId": id, "inputResponses": responses})).await;
    assert_empty(&acknowledged);
    acknowledged
}

/// Checks N-TASK-04: the result has only its type and the server's name.
fn assert_empty(result: &Value) {
    let members: Vec<&str> = result.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        (members, &result["resultType"]),
        (vec!["_meta", "resultType"], &json!("complete")),
        "{result}"
    );
}

/// Returns a backend with a tool `job` that waits at the gate and then answers like this.
async fn gated(
    done: &Gate,
    reply: impl Fn() -> Reply + Send + Sync + Clone + 'static,
) -> FakeBackend {
    let done = done.clone();
    FakeBackend::with_tool("job", move |_| {
        let (done, reply) = (done.clone(), reply.clone());
        async move {
            done.passed().await;
            reply()
        }
    })
    .await
}

#[tokio::test]
async fn n_task_06_only_the_extension_of_tasks_is_advertised() {
    let backend = FakeBackend::echo().await;
    let broker = broker_for(backend.spec()).await;
    for path in ["/mcp", "/mcp/b"] {
        let found = Modern::of(&broker, path).result("server/discover", json!({})).await;
        assert_eq!(found["capabilities"]["extensions"], json!({EXTENSION: {}}));
        assert!(found["capabilities"].get("tasks").is_none());
    }
    let off = configured(json!({"tasks": {"enabled": false}}), backend.spec()).await;
    let client = client_of(&off);
    assert!(
        client.result("server/discover", json!({})).await["capabilities"]
            .get("extensions")
            .is_none()
    );
    let refused = client.post(json!(1), "tasks/get", json!({"taskId": "x"})).await;
    assert_eq!((refused.status, &refused.json().await["error"]["code"]), (404, &json!(-32601)));
}

#[tokio::test]
async fn n_task_01_n_task_02_br_06_a_long_call_becomes_a_task_with_the_same_outcome() {
    let done = Gate::new();
    let backend = gated(&done, || {
        let content = r#"{"content":[{"type":"text","text":"x", "annotations" : {"priority":1.0}},{"type":"resource_link","uri":"file:///a","name":"a"}],"structuredContent":{"n":1.50}}"#;
        Reply::ResultText(content.to_owned())
    })
    .await;
    let broker = broker_for(backend.spec()).await;
    let client = client_of(&broker);
    // The parameter of earlier revisions has no meaning (N-TASK-06).
    let created = client
        .result("tools/call", json!({"name": "b__job", "arguments": {"y": 2}, "task": {"ttl": 1}}))
        .await;
    let id = created["taskId"].as_str().unwrap().to_owned();
    assert_eq!(
        (created["resultType"].as_str(), created["status"].as_str()),
        (Some("task"), Some("working")),
        "{created}"
    );
    assert_eq!(
        (created["ttlMs"].as_u64(), created["pollIntervalMs"].as_u64()),
        (Some(3_600_000), Some(1_000))
    );
    assert!(created["createdAt"].is_string() && created["lastUpdatedAt"].is_string());
    for absent in ["task", "ttl", "pollInterval", "result", "requestState"] {
        assert!(created.get(absent).is_none(), "{absent} in {created}");
    }
    assert!(id.len() >= 32, "N-TASK-09: unguessable");
    let seen = backend.recorded_of("tools/call");
    assert_eq!((seen.len(), &seen[0].message["params"]["arguments"]), (1, &json!({"y": 2})));
    assert!(seen[0].message["params"].get("task").is_none());
    let working = get(&client, &id).await;
    assert_eq!(
        (working["resultType"].as_str(), working["status"].as_str()),
        (Some("complete"), Some("working"))
    );
    done.open();
    let completed = wait(&client, &id, "completed").await;
    let mut plain = client.call("b__job", json!({})).await;
    plain.as_object_mut().unwrap().remove("_meta");
    assert_eq!(
        (&completed["result"], &completed["result"]["content"][1]["uri"]),
        (&plain, &json!("b+file:///a"))
    );
    assert!(completed.get("error").is_none());
    assert_eq!(backend.recorded_of("tools/call").len(), 2, "sent once for each call");
    // A call that does not take long is answered.
    assert_eq!(plain["resultType"], "complete");
}

#[tokio::test]
async fn n_task_01_a_client_without_the_extension_waits_for_its_call() {
    let done = Gate::new();
    let backend = gated(&done, || Reply::text("done")).await;
    let broker = broker_for(backend.spec()).await;
    let (declaring, other) = (client_of(&broker), Modern::of(&broker, "/mcp"));
    let waiting = tokio::spawn(async move { other.call("b__job", json!({})).await });
    backend.wait_for("the call", |seen| seen.calls("job")).await;
    let id = task(&declaring, "b__job", json!({})).await; // longer than it takes to become one
    done.open();
    assert_eq!(text_of(&waiting.await.unwrap()), "done");
    wait(&declaring, &id, "completed").await;
    let off = builder().config(json!({"tasks": {"promote": false, "promote_after": "100ms"}}));
    let off = off.backend("default", "b", backend.spec()).start().await;
    assert_eq!(client_of(&off).call("b__job", json!({})).await["resultType"], "complete");
}

#[tokio::test]
async fn n_task_03_a_tool_error_completes_a_task_and_a_protocol_error_fails_it() {
    let done = Gate::new();
    let backend = gated(&done, || {
        Reply::Result(json!({"content": [{"type": "text", "text": "no"}], "isError": true}))
    })
    .await;
    let broken = json!({"code": -32050, "message": "it broke", "data": {"why": 1}});
    backend.tool("broken", done.before(Reply::Error(broken)));
    let broker = broker_for(backend.spec()).await;
    let client = client_of(&broker);
    let (sad, broken) =
        (task(&client, "b__job", json!({})).await, task(&client, "b__broken", json!({})).await);
    done.open();
    let completed = wait(&client, &sad, "completed").await;
    assert_eq!(
        (completed["result"]["isError"].as_bool(), text_of(&completed["result"])),
        (Some(true), "no")
    );
    let failed = wait(&client, &broken, "failed").await;
    // Codes from -32020 on have a meaning for every client of this revision: a backend's own
    // meaning is not passed on.
    assert_eq!(
        (&failed["error"]["message"], &failed["error"]["data"]),
        (&json!("it broke"), &json!({"why": 1})),
        "{failed}"
    );
    assert!(
        failed["error"]["code"].is_i64()
            && failed.get("result").is_none()
            && failed["statusMessage"].is_string()
    );
}

#[tokio::test]
async fn n_task_04_a_cancelled_task_stays_cancelled_and_its_backend_is_notified() {
    let backend = FakeBackend::with_tool("job", |_| async { Reply::Hang }).await;
    let broker = broker_for(backend.spec()).await;
    let client = client_of(&broker);
    let id = task(&client, "b__job", json!({})).await;
    for _ in 0..2 {
        assert_empty(&client.result("tasks/cancel", json!({"taskId": id})).await);
        let cancelled = wait(&client, &id, "cancelled").await;
        assert!(
            cancelled.get("result").is_none() && cancelled.get("error").is_none(),
            "{cancelled}"
        );
    }
    backend.wait_for("the cancellation", |seen| seen.is("notifications/cancelled")).await;
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let error = client.error(method, json!({"taskId": "nobody's", "inputResponses": {}})).await;
        assert_eq!((&error["code"], kind(&error)), (&json!(-32602), "task_not_found"), "{method}");
    }
    assert_eq!(
        client.error("tasks/update", json!({"taskId": id})).await["code"],
        -32602,
        "without answers"
    );
}

#[tokio::test]
async fn n_task_04_n_err_03_task_methods_require_the_extension() {
    let backend = FakeBackend::echo().await;
    let broker = broker_for(backend.spec()).await;
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let refused = Modern::of(&broker, "/mcp")
            .post(json!(1), method, json!({"taskId": "x", "inputResponses": {}}))
            .await;
        assert_eq!(refused.status, 400);
        let error = refused.json().await["error"].clone();
        assert_eq!(
            (&error["code"], &error["data"]["requiredCapabilities"]),
            (&json!(-32021), &json!({"extensions": {EXTENSION: {}}}))
        );
    }
    for method in ["tasks/list", "tasks/result"] {
        let refused = client_of(&broker).post(json!(1), method, json!({"taskId": "x"})).await;
        assert_eq!((refused.status, &refused.json().await["error"]["code"]), (404, &json!(-32601)));
    }
}

#[tokio::test]
async fn n_task_07_the_name_in_the_header_is_the_tasks_id() {
    let backend = FakeBackend::with_tool("job", |_| async { Reply::Hang }).await;
    let broker = broker_for(backend.spec()).await;
    let client = client_of(&broker);
    let id = task(&client, "b__job", json!({})).await;
    let params = json!({"taskId": id, "inputResponses": {}, "_meta": meta(with_tasks(json!({})))});
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        for name in [None, Some("another")] {
            let mut headers = client.headers(method, &params);
            headers.retain(|(header, _)| header != "mcp-name");
            headers.extend(name.map(|name| ("mcp-name".to_owned(), name.to_owned())));
            let body =
                json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
            let refused = client.send(&headers, body).await;
            assert_eq!(
                (refused.status, &refused.json().await["error"]["code"]),
                (400, &json!(-32020)),
                "{method} {name:?}"
            );
        }
    }
    assert_eq!(get(&client, &id).await["status"], "working", "nothing of it was done");
}

const FORM: &str = r#"{"mode":"form","message":"who?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}"#;

fn named(name: &str) -> Value {
    json!({"action": "accept", "content": {"name": name}})
}

/// Returns a backend whose tool `ask` waits at the gate, needs two names at once, and then a third.
async fn backend_with_questions(may: &Gate) -> FakeBackend {
    let may = may.clone();
    FakeBackend::with_tool("ask", move |call| {
        let may = may.clone();
        async move {
            may.passed().await;
            let form: Value = serde_json::from_str(FORM).unwrap();
            let one = call.start_question("elicitation/create", form.clone()).await.1;
            let other = call.start_question("elicitation/create", form.clone()).await.1;
            let (one, other) = (one.await.unwrap(), other.await.unwrap());
            let third = call.request("elicitation/create", form).await;
            let names = [one, other, third].map(|answer| {
                answer["result"]["content"]["name"].as_str().unwrap_or("-").to_owned()
            });
            Reply::text(&names.join(" "))
        }
    })
    .await
}

#[tokio::test]
async fn n_task_05_br_06_inputs_of_a_task_are_requested_once_and_answered_singly() {
    let may = Gate::new();
    let backend = backend_with_questions(&may).await;
    let broker = broker_for(backend.spec()).await;
    let client = client_of(&broker);
    let id = task(&client, "b__ask", json!({})).await;
    may.open();
    let both = eventually("both questions", || async {
        let task = get(&client, &id).await;
        if task["inputRequests"].as_object().is_some_and(|all| all.len() == 2) {
            Ok(task)
        } else {
            Err(task)
        }
    })
    .await;
    assert_eq!(both["status"], "input_required");
    let asked = needs(&both);
    let keys: Vec<&String> = asked.keys().collect();
    assert_eq!(
        asked[keys[0]],
        json!({"method": "elicitation/create", "params": serde_json::from_str::<Value>(FORM).unwrap()})
    );
    update(&client, &id, json!({keys[0]: named("Ann"), "unknown": {"x": 1}})).await;
    let rest = get(&client, &id).await;
    assert_eq!(
        (rest["status"].as_str(), needs(&rest).keys().collect::<Vec<_>>()),
        (Some("input_required"), vec![keys[1]])
    );
    let wrong = client
        .error(
            "tasks/update",
            json!({"taskId": id, "inputResponses": {keys[1]: {"action": "maybe"}}}),
        )
        .await;
    assert_eq!(wrong["code"], -32602, "what is no answer can be sent again");
    // The first answer counts.
    update(&client, &id, json!({keys[0]: named("Eve"), keys[1]: named("Bob")})).await;
    let third = eventually("the third question", || async {
        let task = get(&client, &id).await;
        if task["status"] == "input_required" && !needs(&task).contains_key(keys[1]) {
            Ok(task)
        } else {
            Err(task)
        }
    })
    .await;
    let key = needs(&third).into_keys().next().unwrap();
    assert!(!keys.contains(&&key), "a key is never used again");
    update(&client, &id, json!({key: {"action": "decline"}})).await;
    let completed = wait(&client, &id, "completed").await;
    assert_eq!(text_of(&completed["result"]), "Ann Bob -");
}

/// The question stays open, so the client can send a shorter answer.
#[tokio::test]
async fn n_task_05_an_answer_beyond_the_bytes_of_its_tenant_is_refused() {
    let may = Gate::new();
    let backend = backend_with_questions(&may).await;
    let tasks =
        json!({"promote_after": "150ms", "bytes_per_tenant": "1MiB", "result_bytes": "64KiB"});
    let broker = builder().config(json!({"tasks": tasks}));
    let broker = broker.backend("default", "b", backend.spec()).start().await;
    let client = client_of(&broker);
    let id = task(&client, "b__ask", json!({})).await;
    may.open();
    let asked = needs(&wait(&client, &id, "input_required").await);
    let key = asked.keys().next().unwrap();
    let responses = json!({key: named(&"x".repeat(1_100_000))});
    let refused =
        client.error("tasks/update", json!({"taskId": id, "inputResponses": responses})).await;
    assert_eq!(kind(&refused), "task_limit", "{refused}");
    assert!(needs(&get(&client, &id).await).contains_key(key));
    update(&client, &id, json!({key: named("Ann")})).await;
    assert!(get(&client, &id).await["inputRequests"].get(key).is_none());
}

#[tokio::test]
async fn n_task_05_inputs_needed_before_a_task_are_requested_in_the_answer() {
    let (may, done) = (Gate::new(), Gate::new());
    may.open();
    let backend = FakeBackend::start().await;
    let gate = done.clone();
    backend.tool("ask", move |call| {
        let done = gate.clone();
        async move {
            let answer =
                call.request("elicitation/create", serde_json::from_str(FORM).unwrap()).await;
            done.passed().await;
            Reply::text(answer["result"]["content"]["name"].as_str().unwrap())
        }
    });
    // Long enough for the first contact with the backend on a busy machine.
    let broker = configured(json!({"tasks": {"promote_after": "5s"}}), backend.spec()).await;
    let client = client_of(&broker);
    let required = client.call("b__ask", json!({})).await;
    assert_eq!(
        (required["resultType"].as_str(), required.get("taskId")),
        (Some("input_required"), None)
    );
    let key = needs(&required).into_keys().next().unwrap();
    let created = client
        .retry("b__ask", json!({}), &required["requestState"], json!({key: named("Ann")}))
        .await["result"]
        .clone();
    assert_eq!(
        (created["resultType"].as_str(), created.get("requestState")),
        (Some("task"), None),
        "{created}"
    );
    done.open();
    let completed = wait(&client, created["taskId"].as_str().unwrap(), "completed").await;
    assert_eq!(text_of(&completed["result"]), "Ann");
    // The next request does not declare the extension, so the call itself is answered.
    let done_again = client.call("b__ask", json!({})).await;
    let key = needs(&done_again).into_keys().next().unwrap();
    let other = client.with(json!({"elicitation": {}}));
    let plain = other
        .retry("b__ask", json!({}), &done_again["requestState"], json!({key: named("Bob")}))
        .await;
    assert_eq!(
        (plain["result"]["resultType"].as_str(), text_of(&plain["result"])),
        (Some("complete"), "Bob")
    );
}

#[tokio::test]
async fn n_task_08_no_progress_and_no_log_of_a_task_is_sent() {
    let is_task = Gate::new();
    let gate = is_task.clone();
    let backend = FakeBackend::with_tool("job", move |call| {
        let is_task = gate.clone();
        async move {
            call.progress(1.0, 3.0).await;
            is_task.passed().await;
            call.progress(2.0, 3.0).await;
            call.notify("notifications/message", json!({"level": "error", "data": "said"})).await;
            Reply::text("done")
        }
    })
    .await;
    let broker = broker_for(backend.spec()).await;
    let client = client_of(&broker);
    let mut asked = meta(with_tasks(json!({})));
    asked["progressToken"] = json!("p");
    let (before, answer) =
        client.exchange("tools/call", json!({"name": "b__job", "_meta": asked})).await;
    // Before there was a task it was a call, whose progress is sent.
    assert!(
        !before.is_empty()
            && before.iter().all(|message| message["method"] == "notifications/progress"),
        "{before:?}"
    );
    let id = answer["result"]["taskId"].as_str().unwrap();
    let mut stream =
        listening::listen(&client, json!("s"), json!({"taskIds": [id], "toolsListChanged": true}))
            .await;
    listening::next(&mut stream).await;
    is_task.open();
    let received = listening::next(&mut stream).await;
    assert_eq!(
        (received["method"].as_str(), received["params"]["status"].as_str()),
        (Some("notifications/tasks"), Some("completed"))
    );
}

#[tokio::test]
async fn n_task_09_a_task_is_visible_only_to_its_principal() {
    let backend = FakeBackend::with_tool("job", |_| async { Reply::Hang }).await;
    let config = json!({"tasks": {"promote_after": "150ms"}});
    let broker = builder()
        .config(config)
        .auth_required()
        .tenant("other")
        .backend("default", "b", backend.spec())
        .start()
        .await;
    let (own, other, foreign) = (
        broker.admin().create_key("default").await,
        broker.admin().create_key("default").await,
        broker.admin().create_key("other").await,
    );
    let client = client_of(&broker).bearer(&own);
    let id = task(&client, "b__job", json!({})).await;
    let unknown = client.error("tasks/get", json!({"taskId": "unknown"})).await;
    for stranger in [&other, &foreign] {
        let stranger = client_of(&broker).bearer(stranger);
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let error = stranger.error(method, json!({"taskId": id, "inputResponses": {}})).await;
            assert_eq!(
                (&error["code"], &error["message"], kind(&error)),
                (&unknown["code"], &unknown["message"], kind(&unknown))
            );
        }
    }
    assert_eq!(get(&client, &id).await["status"], "working");
    // A session of the same principal finds the task as well.
    let session = broker.client("/mcp").bearer(&own).connected(json!({})).await;
    assert_eq!(session.result("tasks/get", json!({"taskId": id})).await["status"], "working");
    // Callers without a key are one principal: they need the id, and no list contains it.
    let open = broker_for(backend.spec()).await;
    let id = task(&client_of(&open), "b__job", json!({})).await;
    assert_eq!(
        open.connected(json!({})).await.list_all("tasks/list", "tasks").await,
        Vec::<Value>::new()
    );
    assert_eq!(get(&client_of(&open), &id).await["status"], "working");
}

#[tokio::test]
async fn a_call_that_cannot_become_a_task_stays_a_call() {
    let done = Gate::new();
    let backend = gated(&done, || Reply::text("done")).await;
    let config = json!({"tasks": {"promote_after": "100ms", "running_per_tenant": 1}});
    let broker = configured_alone(config, backend.spec()).await;
    let client = client_of(&broker);
    let id = task(&client, "b__job", json!({})).await;
    let second = client.clone();
    let second = tokio::spawn(async move { second.call("b__job", json!({})).await });
    eventually("the refusal to be counted", || async {
        let metrics = broker.admin().metrics().await;
        let refused = metrics
            .lines()
            .any(|line| line.starts_with("mcp_task_promotions_total{outcome=\"refused\"} 1"));
        if refused { Ok(()) } else { Err("not yet") }
    })
    .await;
    done.open();
    let answer = second.await.unwrap();
    assert_eq!((answer["resultType"].as_str(), text_of(&answer)), (Some("complete"), "done"));
    wait(&client, &id, "completed").await;
}

#[tokio::test]
async fn n_task_02_tasks_work_over_a_connection() {
    let done = Gate::new();
    let backend = gated(&done, || Reply::text("done")).await;
    let config = json!({"tasks": {"promote_after": "100ms"}, "listen": {"tcp": "127.0.0.1:0"}});
    let broker = configured_alone(config, backend.spec()).await;
    let client = DuplexClient::builder().tcp(broker.tcp_address()).await;
    let with = |mut params: Value| {
        params["_meta"] = meta(with_tasks(json!({})));
        params
    };
    let created = client.result("tools/call", with(json!({"name": "b__job"}))).await;
    let id = created["taskId"].as_str().unwrap().to_owned();
    done.open();
    // The task does not end with the connection that made it.
    drop(client);
    let completed = wait(&client_of(&broker), &id, "completed").await;
    assert_eq!(text_of(&completed["result"]), "done");
    let (other, _) =
        DuplexClient::builder().websocket(broker.http_address(), "/ws", &[]).await.unwrap();
    assert_eq!(other.result("tasks/get", with(json!({"taskId": id}))).await["status"], "completed");
    assert_eq!(
        other.result("tasks/cancel", with(json!({"taskId": id}))).await["resultType"],
        "complete"
    );
}
