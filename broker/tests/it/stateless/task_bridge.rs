//! Tasks for clients without a session over backends that have tasks of their own, in both eras.
//! Also the state of a task after its process is killed.

use std::path::Path;

use serde_json::{Value, json};
use testkit::{FakeBackend, Gate, Reply, StatelessBackend, TestBroker, eventually};

use super::{
    Modern, listening, meta,
    tasks::{broker_for, client_of, get, needs, task, update, wait, with_tasks},
};
use crate::{
    builder,
    cluster::two,
    configured,
    stateless_backends::tasks::{done, needs_a_name, state, with_task},
    tasks::{task_digest, with_tasks as legacy_with_tasks},
    text_of,
};

#[tokio::test]
async fn n_task_01_br_06_a_backend_task_gets_an_id_of_the_broker() {
    for backend in [StatelessBackend::http().await, StatelessBackend::pipe().await] {
        let task_state = with_task(&backend, state("working", json!({})));
        let broker = builder().backend("default", "b", backend.spec()).start().await;
        let client = client_of(&broker);
        let id = task(&client, "b__job", json!({})).await; // at once, whatever the threshold
        assert_ne!(id, "t-1", "the backend's id is nobody else's");
        assert_eq!(get(&client, &id).await["status"], "working");
        *task_state.lock() = done("ready", true);
        let completed = wait(&client, &id, "completed").await;
        assert_eq!(
            (text_of(&completed["result"]), completed["result"]["isError"].as_bool()),
            ("ready", Some(true)),
            "N-TASK-03"
        );
        assert!(
            backend.recorded_of("notifications/cancelled").is_empty()
                && backend.recorded_of("tasks/cancel").is_empty()
        );
        // For a client that does not support tasks the broker waits for the end.
        assert_eq!(text_of(&Modern::of(&broker, "/mcp").call("b__job", json!({})).await), "ready");
    }
}

#[tokio::test]
async fn br_06_a_call_of_a_batch_follows_the_task_of_its_backend() {
    let backend = StatelessBackend::http().await;
    with_task(&backend, done("ready", false));
    let broker = configured(json!({"limits": {"batch_calls": 5}}), backend.spec()).await;
    let client = client_of(&broker);
    let calls = json!({"calls": [{"tool": "b__job", "arguments": {}}]});
    let result = client.call("execute_batch", calls).await;
    let ended = &result["structuredContent"]["results"][0];
    assert_eq!(text_of(&ended["result"]), "ready", "{result}");
}

#[tokio::test]
async fn n_task_05_br_06_inputs_of_a_backend_task_are_requested_by_the_broker() {
    let backend = StatelessBackend::http().await;
    with_task(&backend, needs_a_name());
    let broker = broker_for(backend.spec()).await;
    let client = client_of(&broker);
    let id = task(&client, "b__job", json!({})).await;
    let needed = needs(&wait(&client, &id, "input_required").await);
    let key = needed.keys().next().unwrap();
    assert_eq!((needed.len(), key == "who"), (1, false), "a key of the broker's own");
    update(&client, &id, json!({key: {"action": "accept", "content": {"name": "Ann"}}})).await;
    assert_eq!(text_of(&wait(&client, &id, "completed").await["result"]), "Ann");
    assert_eq!(backend.recorded_of("tasks/update").len(), 1);
}

#[tokio::test]
async fn n_task_04_br_06_a_cancel_reaches_the_backend_task_and_errors_return() {
    let backend = StatelessBackend::http().await;
    let task_state = with_task(&backend, state("working", json!({})));
    let broker = broker_for(backend.spec()).await;
    let client = client_of(&broker);
    let id = task(&client, "b__job", json!({})).await;
    client.result("tasks/cancel", json!({"taskId": id})).await;
    let cancelled = backend.wait_for("the cancellation", |seen| seen.is("tasks/cancel")).await;
    assert_eq!(cancelled.message["params"]["taskId"], "t-1");
    wait(&client, &id, "cancelled").await;
    *task_state.lock() = state("failed", json!({"error": {"code": -32000, "message": "it broke"}}));
    let id = task(&client, "b__job", json!({})).await;
    assert_eq!(
        wait(&client, &id, "failed").await["error"],
        json!({"code": -32000, "message": "it broke"})
    );
}

#[tokio::test]
async fn br_06_n_task_01_a_tool_that_requires_a_task_starts_as_a_task() {
    let done = Gate::new();
    let backend = legacy_with_tasks(&done).await;
    let broker = builder().backend("default", "b", backend.spec()).start().await;
    broker.admin().wait_backend_state("default", "b", "ready").await;
    let client = client_of(&broker);
    let id = task(&client, "b__must", json!({})).await;
    let call = backend.wait_for("the call", |seen| seen.calls("must")).await;
    assert!(call.message["params"]["task"]["ttl"].is_u64(), "it is augmented: {}", call.message);
    done.open();
    let completed = wait(&client, &id, "completed").await;
    assert_eq!(text_of(&completed["result"]), "result of task-1");
    let related = &completed["result"]["_meta"]["io.modelcontextprotocol/related-task"];
    assert!(related.is_null(), "the id is said once: {completed}");
    for path in ["/mcp", "/mcp/b"] {
        let name = if path == "/mcp" { "b__must" } else { "must" };
        let error = Modern::of(&broker, path)
            .error("tools/call", json!({"name": name, "arguments": {}}))
            .await;
        let required = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
        assert_eq!(
            (&error["code"], &error["data"]["requiredCapabilities"]),
            (&json!(-32021), &required)
        );
    }
    // A tool that may run as a task is called plainly, and so is one that may not.
    for tool in ["b__job", "b__never"] {
        assert_eq!(text_of(&client.call(tool, json!({})).await), "without a task");
    }
}

#[tokio::test]
async fn br_06_a_found_tool_that_requires_a_task_starts_as_a_task() {
    let done = Gate::new();
    let backend = legacy_with_tasks(&done).await;
    let broker = builder().backend("default", "b", backend.spec()).start().await;
    broker.admin().wait_backend_state("default", "b", "ready").await;
    let set = json!({"published": true, "search": true, "include": {"tools": ["b/*"]}});
    assert_eq!(broker.admin().put("/admin/v1/tenants/default/toolsets/set", &set).await.0, 201);
    let client = Modern::of(&broker, "/mcp/t/set").with(with_tasks(json!({})));
    let (caller, must) = ("call_tool_destructive", json!({"name": "b__must"}));
    let id = task(&client, caller, must.clone()).await;
    backend.wait_for("the call", |seen| seen.calls("must")).await;
    done.open();
    let completed = wait(&client, &id, "completed").await;
    assert_eq!(text_of(&completed["result"]), "result of task-1");
    let asked = json!({"name": caller, "arguments": must});
    let error = Modern::of(&broker, "/mcp/t/set").error("tools/call", asked).await;
    assert_eq!(error["code"], -32021, "the extension is required: {error}");
    // A tool that may not run as a task is called plainly, also with a key.
    let mut keyed = meta(client.capabilities.clone());
    keyed["dev.mcp-broker/idempotency-key"] = json!("one");
    let never = json!({"name": caller, "arguments": {"name": "b__never"}, "_meta": keyed});
    assert_eq!(text_of(&client.result("tools/call", never).await), "without a task");
}

#[tokio::test]
async fn br_06_a_task_is_the_same_from_a_session_and_without_one() {
    let done = Gate::new();
    let failed =
        Reply::Result(json!({"content": [{"type": "text", "text": "no"}], "isError": true}));
    let backend = FakeBackend::with_tool("job", done.before(failed)).await;
    let broker = builder().auth_required().backend("default", "b", backend.spec()).start().await;
    let key = broker.admin().create_key("default").await;
    let session = broker.client("/mcp").bearer(&key).connected(json!({})).await;
    let id = crate::tasks::start(&session, "b__job").await;
    let client = client_of(&broker).bearer(&key);
    assert_eq!(get(&client, &id).await["status"], "working");
    let waiting = session.start_request("tasks/result", json!({"taskId": id}));
    done.open();
    assert_eq!(waiting.result().await["isError"], true);
    // BR-04: an error of the tool has failed the one and completed the other.
    assert_eq!(session.result("tasks/get", json!({"taskId": id})).await["status"], "failed");
    let completed = get(&client, &id).await;
    assert_eq!(
        (completed["status"].as_str(), completed["result"]["isError"].as_bool()),
        (Some("completed"), Some(true))
    );
}

/// Starts a broker on this database. `point`: the point at which it is killed.
async fn broker_on(folder: &Path, point: Option<&str>, spec: Value) -> TestBroker {
    let url = format!("sqlite:{}", folder.join("broker.db").display());
    let config = json!({"storage": {"url": url}, "tasks": {"promote_after": "150ms"}});
    let mut builder = builder().single_process().config(config).backend("default", "b", spec);
    if let Some(point) = point {
        builder = builder.env("MCP_BROKER_FAULT", point);
    }
    builder.start().await
}

#[tokio::test]
async fn n_task_02_r1_a_task_outlives_a_kill_and_its_call_is_not_sent_again() {
    let folder = tempfile::tempdir().unwrap();
    let backend = FakeBackend::with_tool("job", |_| async { Reply::Hang }).await;
    let mut broker = broker_on(folder.path(), None, backend.spec()).await;
    let id = task(&client_of(&broker), "b__job", json!({})).await;
    broker.kill().await;
    let broker = broker_on(folder.path(), None, backend.spec()).await;
    // The outcome of the call is unknown.
    let failed = wait(&client_of(&broker), &id, "failed").await;
    assert_eq!(failed["error"]["data"]["kind"], "outcome_unknown", "{failed}");
    assert_eq!(backend.count(|seen| seen.calls("job")), 1);
}

#[tokio::test]
async fn r1_a_call_whose_stored_task_was_not_announced_is_not_sent_again() {
    let folder = tempfile::tempdir().unwrap();
    let backend = FakeBackend::with_tool("job", |_| async { Reply::Hang }).await;
    let mut broker = broker_on(folder.path(), Some("task.promoted"), backend.spec()).await;
    let client = client_of(&broker);
    let call = tokio::spawn(async move {
        client.post(json!(1), "tools/call", json!({"name": "b__job"})).await.status
    });
    assert!(!broker.wait_for_exit().await.success());
    call.abort();
    let broker = broker_on(folder.path(), None, backend.spec()).await;
    eventually("the task to be over", || async {
        let (_, shown) = broker.admin().get("/admin/v1/tasks?tenant=default").await;
        let all = testkit::admin::items(&shown, "tasks");
        if all.len() == 1 && all[0]["status"] == "failed" { Ok(()) } else { Err(shown) }
    })
    .await;
    assert_eq!(
        backend.count(|seen| seen.calls("job")),
        1,
        "at most once, though its record says that nothing was sent yet"
    );
}

#[tokio::test]
async fn n_task_02_r1_a_backend_task_is_watched_again_by_the_next_process() {
    let folder = tempfile::tempdir().unwrap();
    let backend = StatelessBackend::http().await;
    let task_state = with_task(&backend, state("working", json!({})));
    let mut broker = broker_on(folder.path(), None, backend.spec()).await;
    let id = task(&client_of(&broker), "b__job", json!({})).await;
    backend.wait_for("a question about the task", |seen| seen.is("tasks/get")).await;
    broker.kill().await;
    *task_state.lock() = done("ready", false);
    let broker = broker_on(folder.path(), None, backend.spec()).await;
    assert_eq!(text_of(&wait(&client_of(&broker), &id, "completed").await["result"]), "ready");
    assert_eq!(backend.recorded_of("tools/call").len(), 1);
}

#[tokio::test]
async fn a_call_with_an_idempotency_key_starts_as_a_task_and_is_found_again() {
    let done = Gate::new();
    let backend = FakeBackend::with_tool("job", done.before(Reply::text("done"))).await;
    let broker = builder().backend("default", "b", backend.spec()).start().await;
    let nobody = client_of(&broker);
    let client = nobody.bearer(&broker.admin().create_key("default").await);
    let mut asked = super::meta(with_tasks(json!({})));
    asked["dev.mcp-broker/idempotency-key"] = json!("once");
    let call = |arguments: Value| json!({"name": "b__job", "arguments": arguments, "_meta": asked});
    let first = client.result("tools/call", call(json!({"n": 1}))).await;
    let again = client.result("tools/call", call(json!({"n": 1}))).await;
    assert_eq!((first["resultType"].as_str(), &first["taskId"]), (Some("task"), &again["taskId"]));
    assert_eq!(
        client.error("tools/call", call(json!({"n": 2}))).await["code"],
        -32602,
        "a key is for one call"
    );
    done.open();
    wait(&client, first["taskId"].as_str().unwrap(), "completed").await;
    let seen = backend.recorded_of("tools/call");
    assert!(
        seen.len() == 1
            && seen[0].message["params"]["_meta"].get("dev.mcp-broker/idempotency-key").is_none()
    );
    // Callers without a key are indistinguishable: a task of one is not shown to another that
    // guesses its idempotency key.
    let one = nobody.result("tools/call", call(json!({"n": 1}))).await;
    let other = nobody.result("tools/call", call(json!({"n": 1}))).await;
    assert!(
        one["taskId"].is_string()
            && one["taskId"] != other["taskId"]
            && one["taskId"] != first["taskId"],
        "{one} {other}"
    );
}

#[tokio::test]
async fn n_task_08_changes_of_tasks_are_sent_to_subscribers() {
    let backend = StatelessBackend::http().await;
    let task_state = with_task(&backend, needs_a_name());
    let broker = broker_for(backend.spec()).await;
    let client = client_of(&broker);
    let id = task(&client, "b__job", json!({})).await;
    let filter = json!({"taskIds": [id, "unknown"]});
    let refused = Modern::of(&broker, "/mcp")
        .error("subscriptions/listen", json!({"notifications": filter}))
        .await;
    assert_eq!(refused["code"], -32021, "{refused}");
    let mut stream = listening::listen(&client, json!("s"), filter).await;
    let acknowledged = listening::next(&mut stream).await;
    assert_eq!(
        acknowledged["params"]["notifications"],
        json!({"taskIds": [id]}),
        "what is not there is not heard of"
    );
    let asked = listening::next(&mut stream).await;
    assert_eq!(
        (asked["method"].as_str(), &asked["params"]["taskId"]),
        (Some("notifications/tasks"), &json!(id))
    );
    assert_eq!(asked["params"]["_meta"][listening::ID], "s");
    let key = needs(&asked["params"]).into_keys().next().unwrap();
    update(&client, &id, json!({key: {"action": "accept", "content": {"name": "Ann"}}})).await;
    let completed = loop {
        let next = listening::next(&mut stream).await;
        if next["params"]["status"] == "completed" {
            break next;
        }
        assert_eq!(next["params"]["status"], "working", "{next}");
    };
    let mut got = get(&client, &id).await;
    for member in ["_meta", "resultType"] {
        got.as_object_mut().unwrap().remove(member);
    }
    let mut shown = completed["params"].clone();
    shown.as_object_mut().unwrap().remove("_meta");
    assert_eq!(shown, got, "as it is shown to who asks");
    // A late subscriber gets the task's final status.
    drop(task_state);
    let mut late = listening::listen(&client, json!(2), json!({"taskIds": [id]})).await;
    listening::next(&mut late).await;
    assert_eq!(listening::next(&mut late).await["params"]["status"], "completed");
}

#[tokio::test]
async fn an_open_subscription_reports_no_task_of_a_tool_that_is_denied_meanwhile() {
    let gates = [Gate::new(), Gate::new()];
    let backend = FakeBackend::start().await;
    for (name, gate) in ["denied", "allowed"].into_iter().zip(&gates) {
        backend.tool(name, gate.before(Reply::text("done")));
    }
    let broker = broker_for(backend.spec()).await;
    let client = client_of(&broker);
    let denied = task(&client, "b__denied", json!({})).await;
    let allowed = task(&client, "b__allowed", json!({})).await;
    let filter = json!({"taskIds": [denied, allowed]});
    let mut stream = listening::listen(&client, json!("s"), filter).await;
    let acknowledged = listening::next(&mut stream).await.to_string();
    assert!(acknowledged.contains(&denied) && acknowledged.contains(&allowed), "{acknowledged}");
    let rule = json!({"id": "d", "effect": "deny", "objects": {"tools": ["b/denied"]}});
    let admin = broker.admin();
    let policy = "/admin/v1/tenants/default/policy";
    assert_eq!(admin.put(policy, &json!({"rules": [rule]})).await.0, 201);
    gates[0].open();
    eventually("the end of the denied task", || async {
        let (_, ended) = admin.get("/admin/v1/tasks?status=completed").await;
        if ended.to_string().contains(&task_digest(&denied)) { Ok(()) } else { Err(ended) }
    })
    .await;
    gates[1].open();
    let reported = listening::next(&mut stream).await;
    assert_eq!(reported["params"]["taskId"], json!(allowed), "{reported}");
}

#[tokio::test]
async fn n_task_02_any_replica_reports_a_task_and_accepts_its_inputs() {
    let (cluster, ledger, key) = two().await;
    let at = |replica: usize| {
        let capabilities = with_tasks(json!({"elicitation": {}}));
        Modern::at(cluster.replicas()[replica].http_address(), "/mcp", capabilities).bearer(&key)
    };
    let mut asked = super::meta(with_tasks(json!({"elicitation": {}})));
    asked["dev.mcp-broker/idempotency-key"] = json!("k");
    let created = at(0)
        .result("tools/call", json!({"name": "b__ask", "arguments": {"key": "k"}, "_meta": asked}))
        .await;
    let id = created["taskId"].as_str().unwrap();
    let mut stream = listening::listen(&at(1), json!(1), json!({"taskIds": [id]})).await;
    let needed = needs(&wait(&at(1), id, "input_required").await);
    let answers: serde_json::Map<String, Value> = needed
        .into_keys()
        .map(|key| (key, json!({"action": "accept", "content": {"word": "yes"}})))
        .collect();
    update(&at(1), id, Value::Object(answers)).await;
    let completed = wait(&at(1), id, "completed").await;
    assert!(text_of(&completed["result"]).ends_with("told \"yes\""), "{completed}");
    assert_eq!(ledger.results("k").len(), 1);
    while listening::next(&mut stream).await["params"]["status"] != "completed" {}
    let first = at(0);
    let cancelled = first.result(
        "tools/call",
        json!({"name": "b__ask", "arguments": {"key": "c"}, "_meta": {
            "io.modelcontextprotocol/protocolVersion": super::VERSION,
            "io.modelcontextprotocol/clientCapabilities": with_tasks(json!({"elicitation": {}})),
            "dev.mcp-broker/idempotency-key": "c",
        }}),
    );
    let id = cancelled.await["taskId"].as_str().unwrap().to_owned();
    at(1).result("tasks/cancel", json!({"taskId": id})).await;
    wait(&at(0), &id, "cancelled").await;
}

#[tokio::test]
async fn br_04_the_outcome_of_a_backend_task_has_the_form_of_its_client() {
    let backend = StatelessBackend::http().await;
    let result = json!({"resultType": "complete", "content": [], "structuredContent": [1, 2]});
    with_task(&backend, state("completed", json!({"result": result})));
    let broker = builder().auth_required().backend("default", "b", backend.spec()).start().await;
    let key = broker.admin().create_key("default").await;
    let client = client_of(&broker).bearer(&key);
    let id = task(&client, "b__job", json!({})).await;
    let completed = wait(&client, &id, "completed").await;
    assert_eq!(completed["result"]["structuredContent"], json!([1, 2]), "{completed}");
    let without_tasks = Modern::of(&broker, "/mcp").bearer(&key);
    let answer = without_tasks.call("b__job", json!({})).await;
    assert_eq!(answer["structuredContent"], json!([1, 2]), "{answer}");
    let session = broker.client("/mcp").bearer(&key).connected(json!({})).await;
    for result in [
        session.call("b__job", json!({})).await,
        session.result("tasks/result", json!({"taskId": id})).await,
    ] {
        assert_eq!((text_of(&result), result.get("structuredContent")), ("[1,2]", None));
    }
}
