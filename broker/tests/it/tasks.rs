//! Tasks of 2025-11-25 for backends that have them: the broker watches the backend's own task and
//! fetches its outcome.

use std::{collections::HashMap, sync::Arc, time::Duration};

use aws_lc_rs::digest::{SHA256, digest};
use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::{BackendCall, BrokerBuilder, FakeBackend, Gate, Reply, TestBroker, TestClient};

use crate::{builder, echo, kind, text_of};

const RELATED: &str = "io.modelcontextprotocol/related-task";

type Tasks = Arc<Mutex<HashMap<String, String>>>;

pub(crate) fn task(id: &str, status: &str) -> Value {
    json!({"taskId": id, "status": status, "createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:01Z", "ttl": 60000, "pollInterval": 50})
}

/// Returns the key of a task: one session of a backend does not know the tasks of another.
fn task_key(call: &BackendCall, id: &str) -> String {
    format!("{} {id}", call.session.as_deref().unwrap_or(""))
}

/// Returns a backend whose tool `job` becomes a task `task-N`; `done` opens when it shall finish.
pub(crate) async fn with_tasks(done: &Gate) -> FakeBackend {
    let backend = FakeBackend::start().await;
    backend.capabilities(json!({
        "tools": {"listChanged": true},
        "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}},
    }));
    let tasks = Tasks::default();
    let created = tasks.clone();
    backend.on("tools/call", move |call| {
        let tasks = created.clone();
        async move {
            if call.params().get("task").is_none() {
                return Reply::text("without a task");
            }
            let mut tasks = tasks.lock();
            let id = format!("task-{}", tasks.len() + 1);
            tasks.insert(task_key(&call, &id), "working".to_owned());
            Reply::Result(
                json!({"task": task(&id, "working"), "_meta": {"io.modelcontextprotocol/model-immediate-response": "working on it"}}),
            )
        }
    });
    backend.list(
        "tools",
        vec![
            json!({"name": "job", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "optional"}}),
            json!({"name": "must", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}}),
            json!({"name": "never", "inputSchema": {"type": "object"}}),
        ],
    );
    let (known, finished) = (tasks.clone(), done.clone());
    backend.on("tasks/get", move |call| {
        let (known, finished) = (known.clone(), finished.clone());
        async move {
            let id = call.params()["taskId"].as_str().unwrap_or("").to_owned();
            let finished = tokio::time::timeout(Duration::ZERO, finished.passed()).await.is_ok();
            let mut tasks = known.lock();
            match tasks.get_mut(&task_key(&call, &id)) {
                Some(status) => {
                    if finished && status == "working" {
                        *status = "completed".to_owned();
                    }
                    Reply::Result(task(&id, status))
                }
                None => Reply::error(-32602, "no such task"),
            }
        }
    });
    let known = tasks.clone();
    backend.on("tasks/cancel", move |call| {
        let id = call.params()["taskId"].as_str().unwrap_or("").to_owned();
        known.lock().insert(task_key(&call, &id), "cancelled".to_owned());
        async move { Reply::Result(task(&id, "cancelled")) }
    });
    let done = done.clone();
    backend.on("tasks/result", move |call| {
        let (tasks, done) = (tasks.clone(), done.clone());
        async move {
            done.passed().await;
            let id = call.params()["taskId"].as_str().unwrap().to_owned();
            tasks.lock().insert(task_key(&call, &id), "completed".to_owned());
            Reply::Result(json!({"content": [{"type": "text", "text": format!("result of {id}")}], "_meta": {RELATED: {"taskId": id}}}))
        }
    });
    backend
}

pub(crate) async fn broker(backend: &FakeBackend) -> (TestBroker, Vec<String>) {
    broker_of(builder(), backend).await
}

pub(crate) async fn broker_of(
    builder: BrokerBuilder,
    backend: &FakeBackend,
) -> (TestBroker, Vec<String>) {
    let broker = builder.auth_required().backend("default", "b", backend.spec()).start().await;
    let keys = vec![
        broker.admin().create_key("default").await,
        broker.admin().create_key("default").await,
    ];
    (broker, keys)
}

/// Starts a task and returns the client's id of it.
pub(crate) async fn start(client: &TestClient, tool: &str) -> String {
    let result = client
        .result("tools/call", json!({"name": tool, "arguments": {}, "task": {"ttl": 60000}}))
        .await;
    assert_eq!(result["task"]["status"], "working", "{result}");
    result["task"]["taskId"].as_str().unwrap().to_owned()
}

/// Waits until the task has this status.
pub(crate) async fn wait_status(client: &TestClient, id: &str, wanted: &str) -> Value {
    let look = || async {
        let task = client.result("tasks/get", json!({"taskId": id})).await;
        if task["status"] == wanted { Ok(task) } else { Err(task) }
    };
    testkit::eventually(&format!("the task to be {wanted}"), look).await
}

#[tokio::test]
async fn task_01_tasks_are_advertised_where_there_are_tools() {
    let (plain, _backend) = echo().await;
    let hosted = plain.client("/mcp").initialize("2025-11-25", json!({})).await;
    let whole = json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}});
    assert_eq!(hosted["capabilities"]["tasks"], whole, "{hosted}");
    let single = plain.client("/mcp/b").initialize("2025-11-25", json!({})).await;
    assert_eq!(single["capabilities"]["tasks"], whole, "{single}");
    let backend = with_tasks(&Gate::new()).await;
    let (broker, keys) = broker(&backend).await;
    let with = broker.client("/mcp").bearer(&keys[0]).initialize("2025-11-25", json!({})).await;
    assert_eq!(with["capabilities"]["tasks"], whole, "{with}");
    let old = broker.client("/mcp").bearer(&keys[0]).initialize("2025-06-18", json!({})).await;
    assert!(old["capabilities"].get("tasks").is_none(), "{old}");
}

#[tokio::test]
async fn task_04_task_05_a_created_task_has_an_unguessable_id_of_the_broker() {
    let backend = with_tasks(&Gate::new()).await;
    let (broker, keys) = broker(&backend).await;
    let client = broker.client("/mcp").bearer(&keys[0]).connected(json!({})).await;
    let result = client
        .result(
            "tools/call",
            json!({"name": "b__job", "arguments": {"x": 1}, "task": {"ttl": 5000}}),
        )
        .await;
    let id = result["task"]["taskId"].as_str().unwrap();
    assert_eq!(
        (result["task"]["status"].as_str(), result["task"]["ttl"].as_u64()),
        (Some("working"), Some(5000)),
        "{result}"
    );
    assert_eq!(result["_meta"][RELATED]["taskId"], id);
    assert!(id.len() >= 24 && !id.contains("task-1"), "{id}");
    let seen = backend.wait_for("the call", |seen| seen.calls("job")).await;
    let ttl = seen.message["params"]["task"]["ttl"].as_u64().unwrap();
    assert!(ttl <= 5000 && ttl > 1000, "what is left of it: {ttl}");
    assert_ne!(start(&client, "b__job").await, id);
}

#[tokio::test]
async fn b_task_02_a_backend_task_is_polled_at_its_interval_until_its_result() {
    let done = Gate::new();
    let backend = with_tasks(&done).await;
    let (broker, keys) = broker(&backend).await;
    let client = broker.client("/mcp").bearer(&keys[0]).connected(json!({})).await;
    let id = start(&client, "b__job").await;
    let got = client.result("tasks/get", json!({"taskId": id})).await;
    assert_eq!(
        (got["taskId"].as_str(), got["status"].as_str()),
        (Some(id.as_str()), Some("working"))
    );
    let waiting = client.start_request("tasks/result", json!({"taskId": id}));
    backend
        .wait_count("tasks/get", 3, |seen| {
            seen.is("tasks/get") && seen.message["params"]["taskId"] == "task-1"
        })
        .await;
    assert_eq!(backend.recorded_of("tasks/result").len(), 0, "it is not over");
    assert_eq!(
        client.result("tasks/get", json!({"taskId": id})).await["status"],
        "working",
        "a waiting result blocks no other request"
    );
    done.open();
    let result = waiting.result().await;
    assert_eq!(text_of(&result), "result of task-1");
    assert_eq!(result["_meta"][RELATED]["taskId"], id.as_str());
    assert_eq!(client.result("tasks/get", json!({"taskId": id})).await["status"], "completed");
    assert_eq!(
        text_of(&client.result("tasks/result", json!({"taskId": id})).await),
        "result of task-1",
        "as often as it is asked for"
    );
    assert_eq!(backend.recorded_of("tasks/result").len(), 1);
}

#[tokio::test]
async fn task_09_cancel_reaches_the_backends_task() {
    let backend = with_tasks(&Gate::new()).await;
    let (broker, keys) = broker(&backend).await;
    let client = broker.client("/mcp").bearer(&keys[0]).connected(json!({})).await;
    let id = start(&client, "b__job").await;
    backend.wait_for("the call", |seen| seen.calls("job")).await;
    let cancelled = client.result("tasks/cancel", json!({"taskId": id})).await;
    assert_eq!(
        (cancelled["taskId"].as_str(), cancelled["status"].as_str()),
        (Some(id.as_str()), Some("cancelled"))
    );
    let cancellation = backend.wait_for("the cancellation", |seen| seen.is("tasks/cancel")).await;
    assert_eq!(cancellation.message["params"]["taskId"], "task-1");
    assert_eq!(backend.recorded_of("notifications/cancelled").len(), 0);
    assert_eq!(
        client.error("tasks/cancel", json!({"taskId": id})).await["code"],
        -32602,
        "it is over"
    );
    let error = client.error("tasks/result", json!({"taskId": id})).await;
    assert_eq!(error["data"]["status"], "cancelled", "{error}");
}

#[tokio::test]
async fn task_10_task_11_tasks_belong_to_their_principal() {
    let done = Gate::new();
    let backend = with_tasks(&done).await;
    let (broker, keys) = broker(&backend).await;
    let owner = broker.client("/mcp").bearer(&keys[0]).connected(json!({})).await;
    let other = broker.client("/mcp").bearer(&keys[1]).connected(json!({})).await;
    let id = start(&owner, "b__job").await;
    let second = start(&owner, "b__job").await;
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        for foreign in [id.as_str(), "absent", "task-1", ""] {
            let error = other.error(method, json!({"taskId": foreign})).await;
            assert_eq!(
                (error["code"].as_i64(), kind(&error)),
                (Some(-32602), "task_not_found"),
                "{method} {foreign}"
            );
        }
        assert_eq!(other.error(method, json!({})).await["code"], -32602);
    }
    let mut listed: Vec<_> = owner
        .list_all("tasks/list", "tasks")
        .await
        .iter()
        .map(|task| task["taskId"].as_str().unwrap().to_owned())
        .collect();
    listed.sort();
    let mut expected = vec![id.clone(), second];
    expected.sort();
    assert_eq!(listed, expected, "complete");
    assert_eq!(other.list_all("tasks/list", "tasks").await.len(), 0);
    let again = broker.client("/mcp").bearer(&keys[0]).connected(json!({})).await;
    assert_eq!(
        again.result("tasks/get", json!({"taskId": id})).await["status"],
        "working",
        "another session of the owner may ask"
    );
    let (status, shown) = broker.admin().get("/admin/v1/tasks?tenant=default").await;
    assert_eq!(status, 200);
    assert_eq!(testkit::admin::items(&shown, "tasks").len(), 2, "{shown}");
    assert!(!shown.to_string().contains(&id), "the id alone lets some callers see a task: {shown}");
    for name in [task_digest(&id), id.clone()] {
        let (status, one) = broker.admin().get(&format!("/admin/v1/tasks/{name}")).await;
        assert_eq!((status, &one["id"]), (200, &json!(task_digest(&id))), "{one}");
    }
    let cancel = format!("/admin/v1/tasks/{}/cancel", task_digest(&id));
    assert_eq!(broker.admin().post(&cancel, &json!({})).await.0, 200);
    wait_status(&again, &id, "cancelled").await;
}

/// Returns the name of a task for operators.
pub(crate) fn task_digest(id: &str) -> String {
    let hash = digest(&SHA256, id.as_bytes());
    hash.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn task_08_a_status_notification_of_the_backend_ends_the_polling_wait() {
    let done = Gate::new();
    let backend = with_tasks(&done).await;
    // The broker may poll it once a minute; without its notification the test would time out.
    backend.on("tools/call", |_| async {
        let mut slow = task("task-1", "working");
        slow["pollInterval"] = json!(60_000);
        Reply::Result(json!({"task": slow}))
    });
    backend.on("tasks/get", |_| async { Reply::Result(task("task-1", "completed")) });
    done.open();
    let (broker, keys) = broker(&backend).await;
    let client = broker.client("/mcp").bearer(&keys[0]).connected(json!({})).await;
    let mut stream = client.open_get_stream().await;
    let id = start(&client, "b__job").await;
    backend.wait_for("the call", |seen| seen.calls("job")).await;
    backend.wait_get_streams(2).await;
    backend.notify("notifications/tasks/status", task("task-99", "completed")).await;
    let status_of = || async {
        // The backend's answer to the call may still be on its way. Its notification is then about
        // an unknown task.
        backend.notify("notifications/tasks/status", task("task-1", "completed")).await;
        if backend.recorded_of("tasks/get").is_empty() { Err("not asked") } else { Ok(()) }
    };
    testkit::eventually("the backend to be asked", status_of).await;
    let (_, message) = stream.next_message().await.unwrap();
    assert_eq!(message["method"], "notifications/tasks/status");
    assert_eq!(
        (message["params"]["taskId"].as_str(), message["params"]["status"].as_str()),
        (Some(id.as_str()), Some("completed"))
    );
}

#[tokio::test]
async fn task_13_a_question_of_a_task_reaches_the_client_on_the_result_stream() {
    let backend = with_tasks(&Gate::new()).await;
    backend.on("tasks/get", |call| async move {
        Reply::Result(task(call.params()["taskId"].as_str().unwrap(), "input_required"))
    });
    backend.on("tasks/result", |call| async move {
        let id = call.params()["taskId"].clone();
        let params = json!({"message": "?", "requestedSchema": {"type": "object", "properties": {}}, "_meta": {RELATED: {"taskId": id}}});
        let answer = call.request("elicitation/create", params).await;
        Reply::Result(json!({"content": [{"type": "text", "text": answer["result"]["action"]}], "_meta": {RELATED: {"taskId": id}}}))
    });
    let (broker, keys) = broker(&backend).await;
    let client = broker
        .client("/mcp")
        .bearer(&keys[0])
        .answers(|_, _| Ok(json!({"action": "decline"})))
        .connected(json!({"elicitation": {}}))
        .await;
    let id = start(&client, "b__job").await;
    let mut call = client.start_request("tasks/result", json!({"taskId": id}));
    assert_eq!(text_of(&call.finish().await.value["result"]), "decline");
    let question = &call.before[0].value;
    assert_eq!(
        (question["method"].as_str(), question["params"]["_meta"][RELATED]["taskId"].as_str()),
        (Some("elicitation/create"), Some(id.as_str()))
    );
}

#[tokio::test]
async fn task_07_a_task_that_ended_in_an_error_gives_that_error() {
    let backend = with_tasks(&Gate::new()).await;
    backend.on("tasks/get", |call| async move {
        Reply::Result(task(call.params()["taskId"].as_str().unwrap(), "failed"))
    });
    backend.on("tasks/result", |_| async {
        Reply::Error(json!({"code": -32050, "message": "it broke", "data": {"why": 1}}))
    });
    let (broker, keys) = broker(&backend).await;
    let client = broker.client("/mcp").bearer(&keys[0]).connected(json!({})).await;
    let id = start(&client, "b__job").await;
    let error = client.error("tasks/result", json!({"taskId": id})).await;
    assert_eq!((error["code"].as_i64(), error["data"]["why"].as_i64()), (Some(-32050), Some(1)));
    assert_eq!(wait_status(&client, &id, "failed").await["statusMessage"], "it broke");
}

#[tokio::test]
async fn task_02_task_support_of_a_tool_is_enforced() {
    let backend = with_tasks(&Gate::new()).await;
    let (broker, keys) = broker(&backend).await;
    let client = broker.client("/mcp").bearer(&keys[0]).connected(json!({})).await;
    let error = client.error("tools/call", json!({"name": "b__never", "task": {}})).await;
    assert_eq!(error["code"], -32601, "{error}");
    let error = client.error("tools/call", json!({"name": "b__must"})).await;
    assert_eq!(error["code"], -32601, "{error}");
    assert_eq!(backend.recorded_of("tools/call").len(), 0);
    start(&client, "b__must").await;
    assert_eq!(text_of(&client.call("b__job", json!({})).await), "without a task");
}

#[tokio::test]
async fn task_03_the_member_is_ignored_for_clients_that_were_not_offered_tasks() {
    let (broker, backend) = echo().await;
    let client = broker.client("/mcp");
    client.initialize("2025-06-18", json!({})).await;
    let result = client
        .result("tools/call", json!({"name": "b__echo", "arguments": {"x": 1}, "task": {"ttl": 1}}))
        .await;
    assert_eq!(text_of(&result), r#"{"x":1}"#);
    let seen = backend.wait_for("the call", |seen| seen.calls("echo")).await;
    assert!(
        seen.message["params"].get("task").is_none(),
        "a backend without tasks is not asked for one: {}",
        seen.message
    );
}

#[tokio::test]
async fn task_16_a_task_lost_by_its_backend_has_an_unknown_outcome() {
    let backend = with_tasks(&Gate::new()).await;
    backend.on("tasks/get", |_| async { Reply::error(-32602, "no such task") });
    let (broker, keys) = broker(&backend).await;
    let client = broker.client("/mcp").bearer(&keys[0]).connected(json!({})).await;
    let id = start(&client, "b__job").await;
    let error = client.error("tasks/result", json!({"taskId": id})).await;
    assert_eq!(
        (kind(&error), error["data"]["retryable"].as_bool()),
        ("outcome_unknown", Some(false)),
        "{error}"
    );
    wait_status(&client, &id, "failed").await;
}

#[tokio::test]
async fn task_16_a_task_that_the_backend_describes_wrongly_fails_at_once() {
    let backend = with_tasks(&Gate::new()).await;
    backend.content_is_invalid_on_purpose("its tasks are not those of MCP");
    let (broker, keys) = broker(&backend).await;
    let client = broker.client("/mcp").bearer(&keys[0]).connected(json!({})).await;
    let working = || task("task-1", "working");
    let with = |member: &str, value: Value| {
        let mut changed = working();
        changed[member] = value;
        changed
    };
    for (created, known) in [
        (with("status", json!("bogus")), working()),
        (with("status", Value::Null), working()),
        (with("taskId", json!(5)), working()),
        (working(), with("status", json!("bogus"))),
        (working(), with("status", json!(5))),
        (working(), json!({})),
        (working(), task("task-2", "completed")),
    ] {
        let case = format!("{created} {known}");
        backend.on("tools/call", move |_| {
            let created = created.clone();
            async move { Reply::Result(json!({"task": created})) }
        });
        backend.on("tasks/get", move |_| {
            let known = known.clone();
            async move { Reply::Result(known) }
        });
        let id = start(&client, "b__job").await;
        let error = client.error("tasks/result", json!({"taskId": id})).await;
        assert_eq!(kind(&error), "backend_protocol_error", "{case}: {error}");
        wait_status(&client, &id, "failed").await;
    }
    assert_eq!(backend.recorded_of("tasks/result").len(), 0);
    // The backend need not work on the four tasks whose id is known.
    let cancelled = backend.recorded_of("tasks/cancel");
    assert!(cancelled.len() >= 4, "{cancelled:?}");
    assert!(cancelled.iter().all(|seen| seen.message["params"]["taskId"] == "task-1"));
}

#[tokio::test]
async fn task_14_the_progress_token_stays_valid_while_the_task_runs() {
    let done = Gate::new();
    let backend = with_tasks(&done).await;
    let (broker, keys) = broker(&backend).await;
    let client = broker.client("/mcp").bearer(&keys[0]).connected(json!({})).await;
    let mut stream = client.open_get_stream().await;
    let result = client
        .result(
            "tools/call",
            json!({"name": "b__job", "task": {}, "_meta": {"progressToken": "mine"}}),
        )
        .await;
    assert_eq!(result["task"]["status"], "working");
    let token = backend.wait_for("the call", |seen| seen.calls("job")).await.message["params"]["_meta"]["progressToken"].clone();
    backend.wait_get_streams(2).await;
    let params =
        json!({"progressToken": token, "progress": 1, "_meta": {RELATED: {"taskId": "task-1"}}});
    backend.notify("notifications/progress", params).await;
    let (_, message) = stream.next_message().await.unwrap();
    assert_eq!(
        (message["method"].as_str(), message["params"]["progressToken"].as_str()),
        (Some("notifications/progress"), Some("mine"))
    );
    assert_eq!(message["params"]["_meta"][RELATED]["taskId"], result["task"]["taskId"]);
}
