//! Tasks of the extension, which a backend makes of calls unasked.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::{
    FaultProxy, RecordedRequest, StatelessBackend, StatelessReply, TestClient, eventually,
};

use super::{broker_with, on_both_wires};
use crate::{builder, kind, tasks::wait_status, text_of};

/// The task's state in the next answers.
pub(crate) type TaskState = Arc<Mutex<Value>>;

pub(crate) fn state(status: &str, more: Value) -> Value {
    let mut state = json!({"taskId": "t-1", "status": status, "createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:01Z",
        "ttlMs": 60000, "pollIntervalMs": 50});
    state.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    state
}

pub(crate) fn done(text: &str, is_error: bool) -> Value {
    state(
        "completed",
        json!({"result": {"resultType": "complete", "content": [{"type": "text", "text": text}], "isError": is_error}}),
    )
}

/// Gives a backend a tool `job` that becomes a task.
pub(crate) fn with_task(backend: &StatelessBackend, first: Value) -> TaskState {
    let task_state = TaskState::new(Mutex::new(first));
    backend.tool("job", |_| async {
        let mut created = state("working", json!({}));
        created["resultType"] = json!("task");
        StatelessReply::Exactly(created)
    });
    let shown = task_state.clone();
    backend.on("tasks/get", move |_| {
        let state = shown.lock().clone();
        async move { StatelessReply::Result(state) }
    });
    let (answered, cancelled) = (task_state.clone(), task_state.clone());
    backend.on("tasks/update", move |call| {
        let task_state = answered.clone();
        async move {
            let who = call.params()["inputResponses"]["who"]["content"]["name"]
                .as_str()
                .unwrap_or("nobody")
                .to_owned();
            *task_state.lock() = done(&who, false);
            StatelessReply::Result(json!({}))
        }
    });
    backend.on("tasks/cancel", move |_| {
        *cancelled.lock() = state("cancelled", json!({}));
        async { StatelessReply::Result(json!({})) }
    });
    task_state
}

pub(crate) fn needs_a_name() -> Value {
    let form = json!({"mode": "form", "message": "who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}});
    state(
        "input_required",
        json!({"inputRequests": {"who": {"method": "elicitation/create", "params": form}}}),
    )
}

fn ann(_: &str, _: &Value) -> Result<Value, Value> {
    Ok(json!({"action": "accept", "content": {"name": "Ann"}}))
}

async fn as_task(client: &TestClient) -> String {
    let created = client
        .result("tools/call", json!({"name": "b__job", "arguments": {}, "task": {"ttl": 60000}}))
        .await;
    created["task"]["taskId"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn nb_task_01_a_plain_call_that_becomes_a_task_is_answered_at_its_end() {
    for backend in on_both_wires().await {
        let task_state = with_task(&backend, state("working", json!({})));
        let broker = broker_with(&backend).await;
        let client = broker.connected(json!({})).await;
        let call = client.start_call("b__job", json!({}));
        let asked =
            backend.wait_for("a question about the task", |seen| seen.is("tasks/get")).await;
        assert_eq!(asked.message["params"]["taskId"], "t-1");
        *task_state.lock() = done("ready", false);
        let result = call.result().await;
        assert_eq!(
            result,
            json!({"content": [{"type": "text", "text": "ready"}], "isError": false}),
            "nothing tells of a task"
        );
    }
}

#[tokio::test]
async fn nb_task_01_an_error_of_the_task_becomes_the_error_of_the_call() {
    let backend = StatelessBackend::http().await;
    with_task(&backend, state("failed", json!({"error": {"code": -32000, "message": "it broke"}})));
    let broker = broker_with(&backend).await;
    let error = broker
        .connected(json!({}))
        .await
        .error("tools/call", json!({"name": "b__job", "arguments": {}}))
        .await;
    assert_eq!((&error["code"], &error["message"]), (&json!(-32000), &json!("it broke")));
}

#[tokio::test]
async fn nb_task_01_an_error_that_passes_does_not_end_the_call() {
    for backend in on_both_wires().await {
        with_task(&backend, state("working", json!({})));
        let count = AtomicUsize::new(0);
        backend.on("tasks/get", move |_| {
            let reply = match count.fetch_add(1, Ordering::Relaxed) {
                0 => StatelessReply::error(-32603, "later"),
                _ => StatelessReply::Result(done("ready", false)),
            };
            async move { reply }
        });
        let broker = broker_with(&backend).await;
        let client = broker.connected(json!({})).await;
        assert_eq!(text_of(&client.call("b__job", json!({})).await), "ready");
    }
}

#[tokio::test]
async fn nb_task_01_a_task_that_the_backend_does_not_know_ends_the_call() {
    let backend = StatelessBackend::http().await;
    with_task(&backend, state("working", json!({})));
    backend.on("tasks/get", |_| async { StatelessReply::error(-32602, "no such task") });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let error = client.error("tools/call", json!({"name": "b__job", "arguments": {}})).await;
    assert_eq!(error["code"], -32602, "{error}");
    assert_eq!(backend.recorded_of("tasks/get").len(), 1);
}

#[tokio::test]
async fn nb_task_01_a_task_that_the_backend_describes_wrongly_fails_the_call_at_once() {
    let backend = StatelessBackend::http().await;
    let task_state = with_task(&backend, json!({}));
    // The broker cancels the task of a call that failed, which must not change the next state.
    backend.on("tasks/cancel", |_| async { StatelessReply::Result(json!({})) });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let mut of_another = done("another", false);
    of_another["taskId"] = json!("t-2");
    for known in [json!({}), state("zzz", json!({})), of_another] {
        *task_state.lock() = known.clone();
        let error = client.error("tools/call", json!({"name": "b__job", "arguments": {}})).await;
        assert_eq!(kind(&error), "backend_protocol_error", "{known}: {error}");
    }
    backend.tool("job", |_| async {
        let mut created = state("zzz", json!({}));
        created["resultType"] = json!("task");
        StatelessReply::Exactly(created)
    });
    let error = client.error("tools/call", json!({"name": "b__job", "arguments": {}})).await;
    assert_eq!(kind(&error), "backend_protocol_error", "{error}");
}

#[tokio::test]
async fn nb_task_02_br_06_inputs_of_a_task_are_requested_on_the_call_stream() {
    for backend in on_both_wires().await {
        with_task(&backend, needs_a_name());
        let broker = broker_with(&backend).await;
        let client = broker.client("/mcp").answers(ann).connected(json!({"elicitation": {}})).await;
        assert_eq!(text_of(&client.call("b__job", json!({})).await), "Ann");
        assert_eq!(backend.recorded_of("tasks/update").len(), 1, "each key is answered once");
    }
}

#[tokio::test]
async fn br_06_a_cancelled_call_cancels_the_task_it_became() {
    let backend = StatelessBackend::http().await;
    with_task(&backend, state("working", json!({})));
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let call = client.start_call("b__job", json!({}));
    backend.wait_for("a question about the task", |seen| seen.is("tasks/get")).await;
    client.notify("notifications/cancelled", json!({"requestId": call.id})).await;
    let cancelled = backend.wait_for("the cancellation", |seen| seen.is("tasks/cancel")).await;
    assert_eq!(
        (&cancelled.message["params"]["taskId"], cancelled.header("mcp-name")),
        (&json!("t-1"), Some("t-1"))
    );
}

#[tokio::test]
async fn br_06_a_legacy_task_follows_the_backend_task() {
    for backend in on_both_wires().await {
        let task_state = with_task(&backend, state("working", json!({})));
        let broker = broker_with(&backend).await;
        let client = broker.connected(json!({})).await;
        let task = as_task(&client).await;
        backend.wait_for("a question about the task", |seen| seen.is("tasks/get")).await;
        assert!(
            backend.recorded_of("tools/call")[0].message["params"].get("task").is_none(),
            "the backend alone decides"
        );
        *task_state.lock() = done("ready", false);
        let result = client.result("tasks/result", json!({"taskId": task})).await;
        assert_eq!((text_of(&result), result.get("resultType")), ("ready", None));
        wait_status(&client, &task, "completed").await;
        assert!(
            backend.recorded_of("tasks/result").is_empty(),
            "there is no such request any more"
        );
    }
}

#[tokio::test]
async fn br_04_a_tool_that_reports_an_error_fails_its_task_for_legacy_readers() {
    let backend = StatelessBackend::http().await;
    with_task(&backend, done("it went wrong", true));
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let task = as_task(&client).await;
    wait_status(&client, &task, "failed").await;
    assert_eq!(client.result("tasks/result", json!({"taskId": task})).await["isError"], true);
}

#[tokio::test]
async fn br_06_inputs_of_a_backend_task_are_requested_on_the_result_stream() {
    let backend = StatelessBackend::http().await;
    with_task(&backend, needs_a_name());
    let broker = broker_with(&backend).await;
    let client = broker.client("/mcp").answers(ann).connected(json!({"elicitation": {}})).await;
    let task = as_task(&client).await;
    wait_status(&client, &task, "input_required").await;
    assert_eq!(text_of(&client.result("tasks/result", json!({"taskId": task})).await), "Ann");
}

#[tokio::test]
async fn br_06_cancelling_a_legacy_task_cancels_the_backend_task() {
    let backend = StatelessBackend::http().await;
    with_task(&backend, state("working", json!({})));
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let task = as_task(&client).await;
    backend.wait_for("a question about the task", |seen| seen.is("tasks/get")).await;
    client.result("tasks/cancel", json!({"taskId": task})).await;
    wait_status(&client, &task, "cancelled").await;
    backend.wait_for("the cancellation", |seen| seen.is("tasks/cancel")).await;
}

#[tokio::test]
async fn nb_task_01_only_a_call_becomes_a_task() {
    let backend = StatelessBackend::http().await;
    backend.on("resources/read", |_| async {
        let mut created = state("working", json!({}));
        created["resultType"] = json!("task");
        StatelessReply::Exactly(created)
    });
    let broker = broker_with(&backend).await;
    let error = broker
        .connected(json!({}))
        .await
        .error("resources/read", json!({"uri": "b+test://one"}))
        .await;
    assert_eq!(crate::kind(&error), "backend_protocol_error");
}

fn needs(keys: &[&str]) -> Value {
    let form = |key: &&str| {
        let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
        let params = json!({"mode": "form", "message": key, "requestedSchema": schema});
        ((*key).to_owned(), json!({"method": "elicitation/create", "params": params}))
    };
    let requests: serde_json::Map<_, _> = keys.iter().map(form).collect();
    state("input_required", json!({"inputRequests": requests}))
}

#[tokio::test]
async fn nb_task_02_inputs_come_and_go_while_the_task_waits() {
    let backend = StatelessBackend::http().await;
    let task_state = with_task(&backend, needs(&["first"]));
    backend.on("tasks/update", |_| async { StatelessReply::Result(json!({})) });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({"elicitation": {}})).await; // answers nothing by itself
    let mut stream = client.open_get_stream().await;
    let mut call = client.start_call("b__job", json!({}));
    let first = call.next().await.unwrap().value;
    assert_eq!(first["params"]["message"], "first");
    *task_state.lock() = needs(&["first", "second"]);
    let second = call.next().await.unwrap().value;
    assert_eq!(second["params"]["message"], "second");
    let accepted = json!({"action": "accept", "content": {"name": "Ann"}});
    client.respond(second["id"].clone(), accepted.clone()).await;
    let update = backend.wait_for("the answer", |seen| seen.is("tasks/update")).await;
    assert_eq!(update.message["params"]["inputResponses"], json!({"second": accepted}));
    *task_state.lock() = needs(&["third"]);
    let mut rest = Vec::new();
    while rest.len() < 2 {
        let next = tokio::select! {
            next = call.next() => next.map(|one| one.value),
            next = stream.next_message() => next.map(|(_, message)| message),
        };
        rest.push(next.unwrap());
    }
    let withdrawn = rest.iter().find(|one| one["method"] == "notifications/cancelled").unwrap();
    assert_eq!(withdrawn["params"]["requestId"], first["id"], "{rest:?}");
    let third = rest.iter().find(|one| one["method"] == "elicitation/create").unwrap();
    assert_eq!(third["params"]["message"], "third", "{rest:?}");
    *task_state.lock() = done("ready", false);
    assert_eq!(text_of(&call.result().await), "ready");
    assert_eq!(backend.recorded_of("tasks/update").len(), 1);
}

#[tokio::test]
async fn nb_task_02_an_input_that_comes_back_is_requested_again() {
    let backend = StatelessBackend::http().await;
    let task_state = with_task(&backend, needs(&["first", "second"]));
    let answered = task_state.clone();
    // As a server that works on the first answer, and then waits for the other one again.
    backend.on("tasks/update", move |_| {
        let mut now = answered.lock();
        if now["status"] == "input_required" {
            *now = state("working", json!({}));
        }
        async { StatelessReply::Result(json!({})) }
    });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({"elicitation": {}})).await; // answers nothing by itself
    let mut stream = client.open_get_stream().await;
    let mut call = client.start_call("b__job", json!({}));
    let asked = [call.next().await.unwrap().value, call.next().await.unwrap().value];
    let of = |key: &str| asked.iter().find(|one| one["params"]["message"] == key).unwrap();
    let accepted = json!({"action": "accept", "content": {"name": "Ann"}});
    client.respond(of("first")["id"].clone(), accepted.clone()).await;
    let withdrawn = tokio::select! {
        next = call.next() => next.map(|one| one.value),
        next = stream.next_message() => next.map(|(_, message)| message),
    };
    let withdrawn = withdrawn.unwrap();
    assert_eq!(withdrawn["params"]["requestId"], of("second")["id"], "{withdrawn}");
    *task_state.lock() = needs(&["first", "second"]);
    let again = call.next().await.unwrap().value;
    assert_eq!(again["params"]["message"], "second", "an answered input is not requested again");
    assert_ne!(again["id"], of("second")["id"]);
    client.respond(again["id"].clone(), accepted).await;
    backend.wait_count("both answers", 2, |seen| seen.is("tasks/update")).await;
    *task_state.lock() = done("ready", false);
    assert_eq!(text_of(&call.result().await), "ready");
}

#[tokio::test]
async fn nb_task_02_a_task_may_request_a_limited_number_of_inputs() {
    let backend = StatelessBackend::http().await;
    with_task(&backend, state("working", json!({})));
    let polled = Arc::new(AtomicUsize::new(0));
    backend.on("tasks/get", move |_| {
        let round = polled.fetch_add(1, Ordering::Relaxed);
        let keys: Vec<String> = (0..30).map(|n| format!("{round}-{n}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let mut state = needs(&keys);
        state["pollIntervalMs"] = json!(50);
        async move { StatelessReply::Result(state) }
    });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({"elicitation": {}})).await;
    let error = client.error("tools/call", json!({"name": "b__job", "arguments": {}})).await;
    assert_eq!(kind(&error), "backend_protocol_error", "{error}");
    backend.wait_for("the cancellation", |seen| seen.is("tasks/cancel")).await;
}

#[tokio::test]
async fn nb_task_02_a_refused_input_ends_the_call_and_its_task() {
    let backend = StatelessBackend::http().await;
    with_task(&backend, needs(&["first"]));
    let broker = broker_with(&backend).await;
    let refuses = |_: &str, _: &Value| Err(json!({"code": -32000, "message": "never"}));
    let client = broker.client("/mcp").answers(refuses).connected(json!({"elicitation": {}})).await;
    let error = client.error("tools/call", json!({"name": "b__job", "arguments": {}})).await;
    assert_eq!(error["message"], "never", "{error}");
    backend.wait_for("the cancellation", |seen| seen.is("tasks/cancel")).await;
}

#[tokio::test]
async fn nb_task_02_an_input_is_requested_again_after_the_backend_was_away() {
    let backend = StatelessBackend::pipe().await;
    with_task(&backend, needs_a_name());
    let mut spec = backend.spec();
    let address = spec["transport"]["address"].as_str().unwrap().parse().unwrap();
    let proxy = FaultProxy::start(address).await;
    spec["transport"]["address"] = json!(proxy.address().to_string());
    let broker = builder().single_process().backend("default", "b", spec).start().await;
    let client = broker.connected(json!({"elicitation": {}})).await; // answers nothing by itself
    let mut call = client.start_call("b__job", json!({}));
    let first = call.next().await.unwrap().value;
    assert_eq!(first["method"], "elicitation/create", "{first}");
    proxy.refuse().await;
    proxy.reset();
    // Attempts of the catalog's link do not count.
    eventually("failed attempts to connect", || async {
        let view = broker.admin().backend("default", "b").await;
        let failures = view["breaker"]["failures_in_a_row"].as_u64();
        if failures >= Some(3) { Ok(()) } else { Err(view) }
    })
    .await;
    proxy.accept_again().await;
    let again = loop {
        let next = call.next().await.unwrap().value;
        if next["method"] != "notifications/cancelled" {
            break next;
        }
    };
    assert_eq!(again["method"], "elicitation/create", "{again}");
    let accepted = json!({"action": "accept", "content": {"name": "Ann"}});
    client.respond(again["id"].clone(), accepted).await;
    assert_eq!(text_of(&call.result().await), "Ann");
}

/// Returns a backend whose task the broker has polled once, and does not poll again soon.
async fn rarely_polled() -> StatelessBackend {
    let backend = StatelessBackend::pipe().await;
    with_task(&backend, state("working", json!({"pollIntervalMs": 60_000})));
    backend
}

/// Ends the connections of a backend. Returns once the broker has opened the one that it always has.
async fn reconnect(backend: &StatelessBackend) {
    let is_discover = |seen: &RecordedRequest| seen.is("server/discover");
    let before = backend.recorded_of("server/discover").len();
    backend.cut_connections();
    backend.wait_count("another connection", before + 1, is_discover).await;
}

#[tokio::test]
async fn br_06_a_cancellation_is_sent_on_the_next_connection() {
    for is_task in [false, true] {
        let backend = rarely_polled().await;
        let broker = broker_with(&backend).await;
        let client = broker.connected(json!({})).await;
        let is_get = |seen: &RecordedRequest| seen.is("tasks/get");
        if is_task {
            let task = as_task(&client).await;
            backend.wait_for("a question about the task", is_get).await;
            reconnect(&backend).await;
            client.result("tasks/cancel", json!({"taskId": task})).await;
            wait_status(&client, &task, "cancelled").await;
        } else {
            let call = client.start_call("b__job", json!({}));
            backend.wait_for("a question about the task", is_get).await;
            reconnect(&backend).await;
            client.notify("notifications/cancelled", json!({"requestId": call.id})).await;
        }
        backend.wait_for("the cancellation", |seen| seen.is("tasks/cancel")).await;
    }
}
