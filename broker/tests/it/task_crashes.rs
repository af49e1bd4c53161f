//! The broker is killed at each step of a task. The next one reports the true outcome, and no call
//! is carried out twice that may not be.

use std::path::Path;

use serde_json::{Value, json};
use testkit::{FakeBackend, Gate, Reply, TestBroker, TestClient};

use crate::{
    builder, configured,
    tasks::{start, wait_status, with_tasks},
    text_of,
};

/// Starts a broker on this database. `point`: the point at which it is killed.
async fn broker_on(
    folder: &Path,
    point: Option<&str>,
    backend: Option<&FakeBackend>,
) -> TestBroker {
    let url = format!("sqlite:{}", folder.join("broker.db").display());
    let mut builder = builder()
        .auth_required()
        .config(json!({"storage": {"url": url}, "timeouts": {"client_request": "5s"}}));
    if let Some(point) = point {
        builder = builder.env("MCP_BROKER_FAULT", point);
    }
    if let Some(backend) = backend {
        builder = builder.backend("default", "b", backend.spec());
    }
    builder.start().await
}

/// State of one task after a process that was killed at `point`.
struct Left {
    _broker: TestBroker,
    _folder: tempfile::TempDir,
    client: TestClient,
    id: String,
}

/// Makes a task of the tool `job`, is killed at `point`, and starts again.
async fn killed_at(point: &str, backend: &FakeBackend, answers: bool) -> Left {
    let folder = tempfile::tempdir().unwrap();
    let mut first = broker_on(folder.path(), Some(point), Some(backend)).await;
    let key = first.admin().create_key("default").await;
    let client = first
        .client("/mcp")
        .bearer(&key)
        .answers(|_, _| Ok(json!({"action": "accept", "content": {}})));
    let client = client.connected(json!({"elicitation": {}})).await;
    // The answer may come before the end or not; the task is in the list in both cases.
    let _made = client.start_request(
        "tools/call",
        json!({"name": "b__job", "task": {"ttl": 60000}, "arguments": {}}),
    );
    let waiting = async {
        if answers {
            let id = waits_for_input(&client).await;
            let _unanswered = client.start_request("tasks/result", json!({"taskId": id}));
            std::future::pending::<()>().await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        status = first.wait_for_exit() => assert!(!status.success(), "{status:?}"),
        () = waiting => {}
    }
    let second = broker_on(folder.path(), None, None).await;
    second.admin().wait_backend_state("default", "b", "ready").await;
    let client = second.client("/mcp").bearer(&key).connected(json!({"elicitation": {}})).await;
    let listed = client.list_all("tasks/list", "tasks").await;
    assert_eq!(listed.len(), 1, "what was begun is known: {listed:?}");
    let id = listed[0]["taskId"].as_str().unwrap().to_owned();
    Left { _broker: second, _folder: folder, client, id }
}

async fn waits_for_input(client: &TestClient) -> String {
    let look = || async {
        let listed = client.list_all("tasks/list", "tasks").await;
        match listed.first() {
            Some(task) if task["status"] == "input_required" => {
                Ok(task["taskId"].as_str().unwrap().to_owned())
            }
            other => Err(format!("{other:?}")),
        }
    };
    testkit::eventually("the task to need something", look).await
}

/// Returns a backend whose tool `job` begins to answer at once and counts as carried out then.
async fn backend(annotations: Value) -> FakeBackend {
    let backend = FakeBackend::start().await;
    backend.tool("job", |call| async move {
        call.open_stream().await;
        Reply::text("done")
    });
    backend.list(
        "tools",
        vec![json!({"name": "job", "inputSchema": {"type": "object"}, "annotations": annotations})],
    );
    backend
}

/// Returns the status, `data.kind` of the error if it is one, and how often the tool was called.
async fn outcome(left: &Left, backend: &FakeBackend) -> (String, String, usize) {
    let outcome = left.client.request("tasks/result", json!({"taskId": left.id})).await;
    let status = left.client.result("tasks/get", json!({"taskId": left.id})).await["status"]
        .as_str()
        .unwrap()
        .to_owned();
    let kind = outcome["error"]["data"]["kind"].as_str().unwrap_or("").to_owned();
    if outcome.get("result").is_some() {
        assert_eq!(text_of(&outcome["result"]), "done");
    } else {
        assert_eq!(outcome["error"]["data"]["retryable"], false, "{outcome}");
    }
    (status, kind, backend.count(|seen| seen.calls("job")))
}

#[tokio::test]
async fn f_32_a_task_killed_at_any_step_reports_its_true_outcome() {
    let unknown = |calls| ("failed".to_owned(), "outcome_unknown".to_owned(), calls);
    let completed = ("completed".to_owned(), String::new(), 1);
    for (point, expected) in [
        ("task.created", completed.clone()),
        ("task.sent.committed", unknown(0)),
        ("task.request.written", unknown(1)),
        ("task.answered", unknown(1)),
        ("task.ended.committed", completed),
    ] {
        let backend = backend(json!({})).await;
        let left = killed_at(point, &backend, false).await;
        assert_eq!(outcome(&left, &backend).await, expected, "{point}");
    }
}

#[tokio::test]
async fn f_33_a_harmless_tool_is_called_again_after_a_kill_at_any_step() {
    for (point, calls) in [
        ("task.created", 1),
        ("task.sent.committed", 1),
        ("task.request.written", 2),
        ("task.answered", 2),
        ("task.ended.committed", 1),
    ] {
        for annotations in [json!({"readOnlyHint": true}), json!({"idempotentHint": true})] {
            let backend = backend(annotations).await;
            let left = killed_at(point, &backend, false).await;
            assert_eq!(
                outcome(&left, &backend).await,
                ("completed".to_owned(), String::new(), calls),
                "{point}"
            );
        }
    }
}

#[tokio::test]
async fn f_34_a_backend_task_is_watched_again_after_a_restart() {
    for sessions in [false, true] {
        let done = Gate::new();
        let backend = with_tasks(&done).await;
        if sessions {
            backend.sessions();
        }
        let left = killed_at("task.delegated.committed", &backend, false).await;
        assert_eq!(
            left.client.result("tasks/get", json!({"taskId": left.id})).await["status"],
            "working"
        );
        let waiting = left.client.start_request("tasks/result", json!({"taskId": left.id}));
        done.open();
        assert_eq!(text_of(&waiting.result().await), "result of task-1", "sessions: {sessions}");
        assert_eq!(backend.count(|seen| seen.calls("job")), 1);
    }
}

#[tokio::test]
async fn f_35_a_task_killed_with_an_open_question_has_an_unknown_outcome() {
    for (point, answers) in [("task.input.asked", false), ("task.input.answered", true)] {
        let backend = FakeBackend::with_tool("job", |call| async move {
            let form =
                json!({"message": "?", "requestedSchema": {"type": "object", "properties": {}}});
            let (_id, _answer) = call.start_question("elicitation/create", form).await;
            Reply::Hang
        })
        .await;
        let left = killed_at(point, &backend, answers).await;
        assert_eq!(
            outcome(&left, &backend).await,
            ("failed".to_owned(), "outcome_unknown".to_owned(), 1),
            "{point}"
        );
    }
}

#[tokio::test]
async fn r_1_acknowledged_tasks_survive_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let done = Gate::new();
    let backend = FakeBackend::with_tool("job", done.before(Reply::text("done"))).await;
    backend.tool("quick", |_| async { Reply::text("quick") });
    let mut first = broker_on(folder.path(), None, Some(&backend)).await;
    let key = first.admin().create_key("default").await;
    let client = first.client("/mcp").bearer(&key).connected(json!({})).await;
    let (quick, slow, cancelled) = (
        start(&client, "b__quick").await,
        start(&client, "b__job").await,
        start(&client, "b__job").await,
    );
    wait_status(&client, &quick, "completed").await;
    client.result("tasks/cancel", json!({"taskId": cancelled})).await;
    backend.wait_count("both calls", 2, |seen| seen.calls("job")).await;
    first.kill().await;
    let second = broker_on(folder.path(), None, None).await;
    second.admin().wait_backend_state("default", "b", "ready").await;
    let client = second.client("/mcp").bearer(&key).connected(json!({})).await;
    assert_eq!(text_of(&client.result("tasks/result", json!({"taskId": quick})).await), "quick");
    assert_eq!(
        client.error("tasks/result", json!({"taskId": cancelled})).await["data"]["status"],
        "cancelled"
    );
    let error = client.error("tasks/result", json!({"taskId": slow})).await;
    assert_eq!(error["data"]["kind"], "outcome_unknown", "{error}");
    done.open();
    assert_eq!(
        client.result("tasks/get", json!({"taskId": slow})).await["status"],
        "failed",
        "and stays so"
    );
    assert_eq!(backend.count(|seen| seen.calls("job")), 2);
}

#[tokio::test]
async fn r_9_a_drain_releases_tasks_and_the_next_process_resumes_them() {
    let folder = tempfile::tempdir().unwrap();
    let done = Gate::new();
    let (keeping, gate) = (with_tasks(&done).await, done.clone());
    keeping.sessions();
    let plain = FakeBackend::start().await;
    for tool in ["read", "write"] {
        plain.tool(tool, gate.before(Reply::text("done")));
    }
    let described = |name: &str, read_only: bool| json!({"name": name, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": read_only}});
    plain.list("tools", vec![described("read", true), described("write", false)]);
    let url = format!("sqlite:{}", folder.path().join("broker.db").display());
    let config = json!({"storage": {"url": url}, "shutdown": {"grace": "1s"}});
    let mut first = builder()
        .auth_required()
        .config(config)
        .backend("default", "b", keeping.spec())
        .backend("default", "p", plain.spec())
        .start()
        .await;
    let key = first.admin().create_key("default").await;
    let client = first.client("/mcp").bearer(&key).connected(json!({})).await;
    let (kept, read, write) = (
        start(&client, "b__job").await,
        start(&client, "p__read").await,
        start(&client, "p__write").await,
    );
    plain.wait_count("both calls", 2, |seen| seen.is("tools/call")).await;
    keeping.wait_for("a look at the task", |seen| seen.is("tasks/get")).await;
    first.terminate().await;
    let second = broker_on(folder.path(), None, None).await;
    for backend in ["b", "p"] {
        second.admin().wait_backend_state("default", backend, "ready").await;
    }
    let client = second.client("/mcp").bearer(&key).connected(json!({})).await;
    let error = client.error("tasks/result", json!({"taskId": write})).await;
    assert_eq!(error["data"]["kind"], "outcome_unknown", "{error}");
    plain.wait_count("the harmless call again", 3, |seen| seen.is("tools/call")).await;
    done.open();
    assert_eq!(text_of(&client.result("tasks/result", json!({"taskId": read})).await), "done");
    assert_eq!(
        text_of(&client.result("tasks/result", json!({"taskId": kept})).await),
        "result of task-1"
    );
    assert_eq!(
        (plain.count(|seen| seen.calls("write")), keeping.count(|seen| seen.calls("job"))),
        (1, 1)
    );
}

#[tokio::test]
async fn task_12_an_expired_task_is_removed_and_its_call_is_cancelled() {
    let backend = FakeBackend::with_tool("job", |_| async { Reply::Hang }).await;
    let broker = builder().backend("default", "b", backend.spec()).start().await;
    let client = broker.connected(json!({})).await;
    let made = client.result("tools/call", json!({"name": "b__job", "task": {"ttl": 1000}})).await;
    let id = made["task"]["taskId"].as_str().unwrap().to_owned();
    backend.wait_for("the call to be given up", |seen| seen.is("notifications/cancelled")).await;
    let gone = || async {
        let answer = client.request("tasks/get", json!({"taskId": id})).await;
        if answer["error"]["data"]["kind"] == "task_not_found" { Ok(()) } else { Err(answer) }
    };
    testkit::eventually("the task to be deleted", gone).await;
}

#[tokio::test]
async fn task_15_limits_of_tasks_are_enforced() {
    let backend = FakeBackend::with_tool("job", |_| async { Reply::Hang }).await;
    backend.tool("large", |_| async { Reply::text(&"x".repeat(5_000)) });
    let tasks =
        json!({"tasks": {"running_per_tenant": 2, "stored_per_tenant": 4, "result_bytes": "4KiB"}});
    let broker = configured(tasks, backend.spec()).await;
    let client = broker.connected(json!({})).await;
    let large = start(&client, "b__large").await;
    let error = client.error("tasks/result", json!({"taskId": large})).await;
    assert_eq!(error["data"]["kind"], "result_too_large", "{error}");
    let running = [start(&client, "b__job").await, start(&client, "b__job").await];
    let error = client.error("tools/call", json!({"name": "b__job", "task": {}})).await;
    assert_eq!(
        (error["data"]["kind"].as_str(), error["data"]["retryable"].as_bool()),
        (Some("task_limit"), Some(true)),
        "{error}"
    );
    client.result("tasks/cancel", json!({"taskId": running[0]})).await;
    start(&client, "b__job").await;
    client.result("tasks/cancel", json!({"taskId": running[1]})).await;
    let error = client.error("tools/call", json!({"name": "b__job", "task": {}})).await;
    assert_eq!(error["data"]["kind"], "task_limit", "four are stored: {error}");
}

#[tokio::test]
async fn task_01_tasks_can_be_switched_off() {
    let backend = FakeBackend::echo().await;
    let broker = configured(json!({"tasks": {"enabled": false}}), backend.spec()).await;
    let client = broker.client("/mcp");
    let offered = client.initialize("2025-11-25", json!({})).await;
    assert!(offered["capabilities"].get("tasks").is_none(), "{offered}");
    assert!(client.list_all("tools/list", "tools").await[0].get("execution").is_none());
    let result = client
        .result("tools/call", json!({"name": "b__echo", "arguments": {"x": 1}, "task": {"ttl": 1}}))
        .await;
    assert_eq!(text_of(&result), r#"{"x":1}"#);
    assert_eq!(client.error("tasks/list", json!({})).await["code"], -32601);
}
