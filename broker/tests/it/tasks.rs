//! Tasks of 2025-11-25, relayed for backends that have them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use testkit::{FakeBackend, Gate, Reply, TestBroker, TestClient};

use crate::{builder, echo, kind, text_of};

const RELATED: &str = "io.modelcontextprotocol/related-task";

type Tasks = Arc<Mutex<HashMap<String, String>>>;

fn task(id: &str, status: &str) -> Value {
    json!({"taskId": id, "status": status, "createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:01Z", "ttl": 60000, "pollInterval": 50})
}

/// A backend whose tool `job` becomes a task `task-N`; `done` opens when it shall finish.
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
            let mut tasks = tasks.lock().unwrap();
            let id = format!("task-{}", tasks.len() + 1);
            tasks.insert(id.clone(), "working".to_owned());
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
    let known = tasks.clone();
    backend.on("tasks/get", move |call| {
        let status = known.lock().unwrap().get(call.params()["taskId"].as_str().unwrap_or("")).cloned();
        async move {
            match status {
                Some(status) => Reply::Result(task(call.params()["taskId"].as_str().unwrap(), &status)),
                None => Reply::error(-32602, "no such task"),
            }
        }
    });
    let known = tasks.clone();
    backend.on("tasks/list", move |_| {
        let all: Vec<Value> = known.lock().unwrap().iter().map(|(id, status)| task(id, status)).collect();
        async move { Reply::Result(json!({"tasks": all})) }
    });
    let known = tasks.clone();
    backend.on("tasks/cancel", move |call| {
        let id = call.params()["taskId"].as_str().unwrap_or("").to_owned();
        known.lock().unwrap().insert(id.clone(), "cancelled".to_owned());
        async move { Reply::Result(task(&id, "cancelled")) }
    });
    let done = done.clone();
    backend.on("tasks/result", move |call| {
        let (tasks, done) = (tasks.clone(), done.clone());
        async move {
            call.open_stream().await;
            done.passed().await;
            let id = call.params()["taskId"].as_str().unwrap().to_owned();
            tasks.lock().unwrap().insert(id.clone(), "completed".to_owned());
            Reply::Result(json!({"content": [{"type": "text", "text": format!("result of {id}")}], "_meta": {RELATED: {"taskId": id}}}))
        }
    });
    backend
}

pub(crate) async fn broker(backend: &FakeBackend) -> (TestBroker, Vec<String>) {
    let broker = builder().auth_required().backend("default", "b", backend.spec()).start().await;
    let keys = vec![broker.admin().create_key("default").await, broker.admin().create_key("default").await];
    (broker, keys)
}

/// Starts a task and gives the client's id of it.
pub(crate) async fn start(client: &TestClient, tool: &str) -> String {
    let result = client.result("tools/call", json!({"name": tool, "arguments": {}, "task": {"ttl": 60000}})).await;
    assert_eq!(result["task"]["status"], "working", "{result}");
    result["task"]["taskId"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn task_01_tasks_are_advertised_only_where_a_backend_has_them() {
    let (plain, _backend) = echo().await;
    let without = plain.client("/mcp").initialize("2025-11-25", json!({})).await;
    assert!(without["capabilities"].get("tasks").is_none(), "{without}");
    let backend = with_tasks(&Gate::new()).await;
    let (broker, keys) = broker(&backend).await;
    let with = broker.client("/mcp").bearer(&keys[0]).initialize("2025-11-25", json!({})).await;
    assert_eq!(with["capabilities"]["tasks"]["requests"]["tools"]["call"], json!({}), "{with}");
    let old = broker.client("/mcp").bearer(&keys[0]).initialize("2025-06-18", json!({})).await;
    assert!(old["capabilities"].get("tasks").is_none(), "{old}");
}

#[tokio::test]
async fn task_04_task_05_a_created_task_has_our_own_unguessable_id() {
    let backend = with_tasks(&Gate::new()).await;
    let (broker, keys) = broker(&backend).await;
    let client = broker.client("/mcp").bearer(&keys[0]).connected(json!({})).await;
    let result = client.result("tools/call", json!({"name": "b__job", "arguments": {"x": 1}, "task": {"ttl": 5000}})).await;
    let mut expected = task("", "working");
    let id = result["task"]["taskId"].as_str().unwrap();
    expected["taskId"] = json!(id);
    assert_eq!(result["task"], expected, "everything but the id is the backend's");
    assert_eq!(result["_meta"]["io.modelcontextprotocol/model-immediate-response"], "working on it");
    assert!(id.len() >= 20 && !id.contains("task-1"), "{id}");
    let seen = backend.wait_for("the call", |seen| seen.calls("job")).await;
    assert_eq!(seen.message["params"]["task"], json!({"ttl": 5000}));
    assert_ne!(start(&client, "b__job").await, id);
}

#[tokio::test]
async fn task_07_task_08_get_and_result_are_mapped_both_ways() {
    let done = Gate::new();
    let backend = with_tasks(&done).await;
    let (broker, keys) = broker(&backend).await;
    let client = broker.client("/mcp").bearer(&keys[0]).connected(json!({})).await;
    let id = start(&client, "b__job").await;
    let got = client.result("tasks/get", json!({"taskId": id})).await;
    assert_eq!((got["taskId"].as_str(), got["status"].as_str()), (Some(id.as_str()), Some("working")));
    assert_eq!(backend.seen_of("tasks/get").pop().unwrap().message["params"]["taskId"], "task-1");
    let waiting = client.begin("tasks/result", json!({"taskId": id}));
    backend.wait_for("tasks/result", |seen| seen.is("tasks/result") && seen.message["params"]["taskId"] == "task-1").await;
    assert_eq!(client.result("tasks/get", json!({"taskId": id})).await["status"], "working", "a waiting result blocks nobody");
    done.open();
    let result = waiting.result().await;
    assert_eq!(text_of(&result), "result of task-1");
    assert_eq!(result["_meta"][RELATED]["taskId"], id.as_str());
    assert_eq!(client.result("tasks/get", json!({"taskId": id})).await["status"], "completed");
}

#[tokio::test]
async fn task_09_cancel_reaches_the_backends_task() {
    let backend = with_tasks(&Gate::new()).await;
    let (broker, keys) = broker(&backend).await;
    let client = broker.client("/mcp").bearer(&keys[0]).connected(json!({})).await;
    let id = start(&client, "b__job").await;
    let cancelled = client.result("tasks/cancel", json!({"taskId": id})).await;
    assert_eq!((cancelled["taskId"].as_str(), cancelled["status"].as_str()), (Some(id.as_str()), Some("cancelled")));
    assert_eq!(backend.seen_of("tasks/cancel").pop().unwrap().message["params"]["taskId"], "task-1");
    assert_eq!(backend.seen_of("notifications/cancelled").len(), 0);
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
            assert_eq!((error["code"].as_i64(), kind(&error)), (Some(-32602), "task_not_found"), "{method} {foreign}");
        }
        assert_eq!(other.error(method, json!({})).await["code"], -32602);
    }
    let mut listed: Vec<_> =
        owner.list_all("tasks/list", "tasks").await.iter().map(|task| task["taskId"].as_str().unwrap().to_owned()).collect();
    listed.sort();
    let mut expected = vec![id.clone(), second];
    expected.sort();
    assert_eq!(listed, expected);
    assert_eq!(other.list_all("tasks/list", "tasks").await.len(), 0);
    let again = broker.client("/mcp").bearer(&keys[0]).connected(json!({})).await;
    assert_eq!(again.result("tasks/get", json!({"taskId": id})).await["status"], "working", "another session of the owner may ask");
    let (status, shown) = broker.admin().get("/admin/v1/tasks?tenant=default").await;
    assert_eq!(status, 200);
    assert_eq!(testkit::admin::items(&shown, "tasks").len(), 2, "{shown}");
}

#[tokio::test]
async fn task_08_status_notifications_carry_our_id() {
    let backend = with_tasks(&Gate::new()).await;
    let (broker, keys) = broker(&backend).await;
    let client = broker.client("/mcp").bearer(&keys[0]).connected(json!({})).await;
    let mut stream = client.open_get_stream().await;
    let id = start(&client, "b__job").await;
    backend.wait_get_streams(2).await;
    backend.notify("notifications/tasks/status", task("task-99", "completed")).await;
    backend.notify("notifications/tasks/status", task("task-1", "input_required")).await;
    let (_, message) = stream.next_message().await.unwrap();
    assert_eq!(message["method"], "notifications/tasks/status");
    assert_eq!((message["params"]["taskId"].as_str(), message["params"]["status"].as_str()), (Some(id.as_str()), Some("input_required")));
}

#[tokio::test]
async fn task_13_a_question_of_a_task_reaches_the_client_on_the_result_stream() {
    let backend = with_tasks(&Gate::new()).await;
    backend.on("tasks/result", |call| async move {
        let id = call.params()["taskId"].clone();
        let params = json!({"message": "?", "requestedSchema": {"type": "object", "properties": {}}, "_meta": {RELATED: {"taskId": id}}});
        let answer = call.ask("elicitation/create", params).await;
        Reply::Result(json!({"content": [{"type": "text", "text": answer["result"]["action"]}], "_meta": {RELATED: {"taskId": id}}}))
    });
    let (broker, keys) = broker(&backend).await;
    let client =
        broker.client("/mcp").bearer(&keys[0]).answers(|_, _| Ok(json!({"action": "decline"}))).connected(json!({"elicitation": {}})).await;
    let id = start(&client, "b__job").await;
    let mut call = client.begin("tasks/result", json!({"taskId": id}));
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
    backend.on("tasks/result", |_| async { Reply::Error(json!({"code": -32050, "message": "it broke", "data": {"why": 1}})) });
    let (broker, keys) = broker(&backend).await;
    let client = broker.client("/mcp").bearer(&keys[0]).connected(json!({})).await;
    let id = start(&client, "b__job").await;
    let error = client.error("tasks/result", json!({"taskId": id})).await;
    assert_eq!((error["code"].as_i64(), error["data"]["why"].as_i64()), (Some(-32050), Some(1)));
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
    assert_eq!(backend.seen_of("tools/call").len(), 0);
    start(&client, "b__must").await;
    assert_eq!(text_of(&client.call("b__job", json!({})).await), "without a task");
}

#[tokio::test]
async fn task_03_where_no_backend_has_tasks_the_member_is_ignored() {
    let (broker, backend) = echo().await;
    let client = broker.connected(json!({})).await;
    let result = client.result("tools/call", json!({"name": "b__echo", "arguments": {"x": 1}, "task": {"ttl": 1}})).await;
    assert_eq!(text_of(&result), r#"{"x":1}"#);
    let seen = backend.wait_for("the call", |seen| seen.calls("echo")).await;
    assert!(seen.message["params"].get("task").is_none(), "a backend without tasks is not asked for one: {}", seen.message);
}

#[tokio::test]
async fn task_14_the_progress_token_stays_good_while_the_task_runs() {
    let done = Gate::new();
    let backend = with_tasks(&done).await;
    let (broker, keys) = broker(&backend).await;
    let client = broker.client("/mcp").bearer(&keys[0]).connected(json!({})).await;
    let mut stream = client.open_get_stream().await;
    let result = client.result("tools/call", json!({"name": "b__job", "task": {}, "_meta": {"progressToken": "mine"}})).await;
    assert_eq!(result["task"]["status"], "working");
    let token = backend.wait_for("the call", |seen| seen.calls("job")).await.message["params"]["_meta"]["progressToken"].clone();
    backend.wait_get_streams(2).await;
    let params = json!({"progressToken": token, "progress": 1, "_meta": {RELATED: {"taskId": "task-1"}}});
    backend.notify("notifications/progress", params).await;
    let (_, message) = stream.next_message().await.unwrap();
    assert_eq!((message["method"].as_str(), message["params"]["progressToken"].as_str()), (Some("notifications/progress"), Some("mine")));
    assert_eq!(message["params"]["_meta"][RELATED]["taskId"], result["task"]["taskId"]);
}
