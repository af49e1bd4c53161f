//! The broker as a client of stdio backends: framing, noise, processes that die or do not want to
//! die.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::{
    TestBroker,
    deadline::eventually_within,
    eventually,
    stdio::{processes_with, zombies_of},
};

use crate::{builder, kind, stdio, text_of};

fn marker(name: &str) -> String {
    format!("it-{name}-{}", std::process::id())
}

async fn broker_with(spec: Value) -> TestBroker {
    builder().backend("default", "s", spec).start().await
}

#[tokio::test]
async fn stdio_01_the_child_gets_one_message_per_line_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("stdin");
    let broker = broker_with(stdio().record(&record).spec()).await;
    let client = broker.connected(json!({})).await;
    let pretty = "{\n  \"jsonrpc\": \"2.0\",\r\n  \"id\": 5,\n  \"method\": \"tools/call\",\n  \"params\": {\n    \"name\": \"s__echo\",\n    \"arguments\": {\"text\": \"a\\nb\"}\n  }\n}\n";
    let answer = client.start_raw(json!(5), pretty).response().await;
    assert_eq!(text_of(&answer.value["result"]), r#"{"text":"a\nb"}"#);
    let bytes = std::fs::read(&record).unwrap();
    assert!(bytes.ends_with(b"\n"));
    let lines: Vec<&[u8]> = bytes[..bytes.len() - 1].split(|byte| *byte == b'\n').collect();
    for line in &lines {
        let message: Value = serde_json::from_slice(line)
            .unwrap_or_else(|_| panic!("not one JSON message: {}", String::from_utf8_lossy(line)));
        assert_eq!(message["jsonrpc"], "2.0");
    }
    assert!(lines.len() >= 4, "handshake, lists and the call: {}", lines.len());
}

#[tokio::test]
async fn stdio_02_much_output_on_standard_error_is_not_a_failure() {
    let broker = broker_with(stdio().noisy_stderr().spec()).await;
    let client = broker.connected(json!({})).await;
    assert_eq!(text_of(&client.call("s__echo", json!({"x": 1})).await), r#"{"x":1}"#);
    assert_eq!(broker.admin().backend("default", "s").await["state"], "ready");
}

/// Waits until the broker has collected the status of each ended child.
async fn reaped(broker: &TestBroker) {
    eventually("the ended children to be reaped", || async {
        match zombies_of(broker.pid()) {
            0 => Ok(()),
            left => Err(left),
        }
    })
    .await;
}

#[tokio::test]
async fn stdio_03_a_stubborn_child_and_its_children_are_gone_after_removal() {
    let marker = marker("stubborn");
    let script = stdio().grandchildren(2).ignore_sigterm().ignore_stdin_close().marker(&marker);
    let broker = broker_with(script.spec()).await;
    let client = broker.connected(json!({})).await;
    client.call("s__echo", json!({})).await;
    assert!(processes_with(&marker).len() >= 3);
    let (status, _) = broker.admin().delete("/admin/v1/tenants/default/backends/s").await;
    assert!((200..300).contains(&status));
    eventually("all processes to be gone", || async {
        let left = processes_with(&marker);
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
    reaped(&broker).await;
}

#[tokio::test]
async fn stdio_03_a_stopped_broker_leaves_no_child_behind() {
    let marker = marker("stop");
    let script = stdio().grandchildren(1).ignore_sigterm().ignore_stdin_close().marker(&marker);
    let mut broker = broker_with(script.spec()).await;
    broker.connected(json!({})).await.call("s__echo", json!({})).await;
    assert!(broker.terminate().await.success());
    eventually("all processes to be gone", || async {
        let left = processes_with(&marker);
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
}

#[tokio::test]
async fn stdio_04_noise_on_standard_output_is_dropped() {
    let broker = broker_with(stdio().banner().spec()).await;
    let client = broker.connected(json!({})).await;
    assert_eq!(text_of(&client.call("s__garbage", json!({})).await), "after the noise");
    broker.wait_for_log("a message that is not valid MCP tenant=default backend=s").await;
    assert_eq!(text_of(&client.call("s__stray", json!({})).await), "mine");
    assert_eq!(text_of(&client.call("s__twice", json!({})).await), "first");
    assert_eq!(text_of(&client.call("s__echo", json!({})).await), "{}");
}

#[tokio::test]
async fn stdio_04_the_ends_of_noisy_pipes_are_logged_once_in_an_interval() {
    let broker = builder().single_process().start().await;
    let started = Instant::now();
    let noisy = json!({"transport": {"type": "stdio", "command": "yes", "args": ["noise"]}});
    broker.admin().put("/admin/v1/tenants/default/backends/s?wait=false", &noisy).await;
    let count = |text: &str| broker.log().matches(text).count();
    eventually("several starts of the child", || async {
        let starts = count("child process started");
        if starts >= 4 { Ok(()) } else { Err(starts) }
    })
    .await;
    let lines = count("too many messages that are not valid MCP: the broker closes");
    let intervals = usize::try_from(started.elapsed().as_secs() / 10).unwrap();
    assert!((1..=intervals + 1).contains(&lines), "{lines} lines");
}

#[tokio::test]
async fn stdio_05_a_child_that_dies_fails_its_calls_and_is_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let starts = folder.path().join("starts");
    let broker = broker_with(stdio().record_starts(&starts).spec()).await;
    let client = broker.connected(json!({})).await;
    let hanging = client.start_call("s__hang", json!({}));
    client.call("s__echo", json!({})).await;
    let error = client.error("tools/call", json!({"name": "s__exit"})).await;
    assert_eq!((error["code"].as_i64(), kind(&error)), (Some(1009), "outcome_unknown"));
    assert_eq!(kind(&hanging.error().await), "outcome_unknown");
    let answer = eventually("a call to the restarted child", || async {
        let answer = client
            .request("tools/call", json!({"name": "s__echo", "arguments": {"again": true}}))
            .await;
        if answer.get("result").is_some() { Ok(answer) } else { Err(answer) }
    })
    .await;
    assert_eq!(text_of(&answer["result"]), r#"{"again":true}"#);
    assert!(std::fs::read_to_string(&starts).unwrap().lines().count() >= 2);
    reaped(&broker).await;
}

#[tokio::test]
async fn stdio_05_subscriptions_are_renewed_at_a_restarted_child() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("stdin");
    let broker = broker_with(stdio().record(&record).spec()).await;
    let client = broker.connected(json!({})).await;
    let mut stream = client.open_get_stream().await;
    client.result("resources/subscribe", json!({"uri": "s+test://one"})).await;
    client.error("tools/call", json!({"name": "s__exit"})).await;
    eventually("the subscription again", || async {
        let recorded = String::from_utf8(std::fs::read(&record).unwrap()).unwrap();
        let count = recorded.matches("resources/subscribe").count();
        if count >= 2 { Ok(()) } else { Err(count) }
    })
    .await;
    client.call("s__touch", json!({})).await;
    let update =
        stream.find(|message| message["method"] == "notifications/resources/updated").await;
    assert_eq!(update["params"]["uri"], "s+test://one");
}

#[tokio::test]
async fn a_child_that_never_starts_is_a_failed_backend_with_the_reason() {
    let broker = builder().start().await;
    let admin = broker.admin();
    admin
        .put_backend(
            "default",
            "missing",
            &json!({"transport": {"type": "stdio", "command": "/no/such/program"}}),
        )
        .await;
    let view = admin.wait_backend_state("default", "missing", "failed").await;
    assert!(view["last_error"].as_str().unwrap().contains("/no/such/program"), "{view}");
    admin.put_backend("default", "broken", &stdio().broken().spec()).await;
    let view = admin.wait_backend_state("default", "broken", "failed").await;
    assert!(view["last_error"].is_string(), "{view}");
}

#[tokio::test]
async fn progress_questions_and_list_changes_work_over_stdio() {
    let broker = broker_with(stdio().spec()).await;
    let client = broker
        .client("/mcp")
        .answers(|method, params| match method {
            "sampling/createMessage" => Ok(
                json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": params["messages"][0]["content"]["text"]}}),
            ),
            "elicitation/create" => Ok(json!({"action": "accept", "content": {"name": "Ann"}})),
            _ => Ok(json!({"roots": [{"uri": "file:///r"}]})),
        })
        .connected(json!({"sampling": {}, "elicitation": {}, "roots": {}}))
        .await;
    let mut get = client.open_get_stream().await;
    let mut call = client.start_request(
        "tools/call",
        json!({"name": "s__progress", "_meta": {"progressToken": "t"}}),
    );
    assert_eq!(text_of(&call.finish().await.value["result"]), "done");
    assert_eq!(call.before.len(), 3);
    assert!(text_of(&client.call("s__sample", json!({"prompt": "poem"})).await).contains("poem"));
    assert!(text_of(&client.call("s__elicit", json!({"message": "who"})).await).contains("Ann"));
    assert!(text_of(&client.call("s__roots", json!({})).await).contains("file:///r"));
    client.call("s__add_tool", json!({})).await;
    // Each process keeps its own list. The catalog's child did not change, so no change is
    // announced without cause.
    client.result("ping", json!({})).await;
    client.delete_session().await;
    while get.next().await.is_some() {}
}

#[tokio::test]
async fn a_session_that_can_answer_questions_has_a_child_of_its_own() {
    let broker = broker_with(stdio().spec()).await;
    let pid = |client: testkit::TestClient| async move {
        text_of(&client.call("s__pid", json!({})).await).to_owned()
    };
    let plain = [broker.connected(json!({})).await, broker.connected(json!({})).await];
    let (first, second) = (pid(plain[0].clone()).await, pid(plain[1].clone()).await);
    assert_eq!(first, second, "sessions that can answer nothing share a child");
    let able = [
        broker.connected(json!({"roots": {}})).await,
        broker.connected(json!({"roots": {}})).await,
    ];
    let (third, fourth) = (pid(able[0].clone()).await, pid(able[1].clone()).await);
    assert!(third != first && fourth != first && third != fourth, "{first} {third} {fourth}");
}

#[tokio::test]
async fn a_child_gets_only_allowed_variables_and_its_own_settings() {
    let script = stdio().env("CHILD_SETTING", "given");
    let broker = builder()
        .env("AWS_SECRET_ACCESS_KEY", "leak")
        .env("MCP_BROKER__TELEMETRY__LOG", "info")
        .backend("default", "s", script.spec())
        .start()
        .await;
    let seen = broker.connected(json!({})).await.call("s__env", json!({})).await;
    let text = text_of(&seen);
    assert!(text.contains("CHILD_SETTING") && text.contains("PATH"), "{text}");
    assert!(!text.contains("AWS_SECRET") && !text.contains("MCP_BROKER"), "{text}");
}

#[tokio::test]
async fn stdio_03_two_hundred_sessions_leave_no_process_behind() {
    const SESSIONS: usize = 200;
    const AT_ONCE: usize = 10;
    let marker = marker("many");
    let script = stdio().grandchildren(1).ignore_sigterm().marker(&marker);
    let mut broker = broker_with(script.spec()).await;
    let at_start = processes_with(&marker).len();
    for _ in 0..SESSIONS / AT_ONCE {
        let mut clients = Vec::new();
        for _ in 0..AT_ONCE {
            clients.push(broker.connected(json!({"roots": {}})).await);
        }
        let calls: Vec<_> =
            clients.iter().map(|client| client.start_call("s__echo", json!({}))).collect();
        for call in calls {
            call.result().await;
        }
        for client in &clients {
            client.delete_session().await;
        }
    }
    eventually_within(Duration::from_secs(30), "the process count back at its start", || async {
        let now = processes_with(&marker).len();
        if now <= at_start { Ok(()) } else { Err(now) }
    })
    .await;
    reaped(&broker).await;
    let tools = broker.connected(json!({})).await.tool_names().await;
    assert!(tools.iter().any(|name| name == "s__echo"), "it still serves: {tools:?}");
    assert!(broker.terminate().await.success());
    assert_eq!(processes_with(&marker), Vec::<u32>::new(), "an orderly end leaves none at all");
}

#[tokio::test]
async fn b_03_a_child_that_dies_repeatedly_is_restarted_with_growing_delays() {
    let folder = tempfile::tempdir().unwrap();
    let starts = folder.path().join("starts");
    let broker = broker_with(stdio().record_starts(&starts).spec()).await;
    let client = broker.connected(json!({})).await;
    for _ in 0..8 {
        client.request("tools/call", json!({"name": "s__exit"})).await;
    }
    let error = client.error("tools/call", json!({"name": "s__exit"})).await;
    assert!(["backend_unavailable", "outcome_unknown"].contains(&kind(&error)), "{error}");
    let count = std::fs::read_to_string(&starts).unwrap().lines().count();
    assert!(count <= 12, "{count} starts");
    let view = broker.admin().backend("default", "s").await;
    assert!(view["failed_attempts"].as_u64().unwrap() >= 1, "operators see the back-off: {view}");
}

#[tokio::test]
async fn many_calls_over_one_pipe_each_get_their_own_answer() {
    let broker = broker_with(stdio().spec()).await;
    let client = broker.connected(json!({})).await;
    let filler = "x".repeat(20_000);
    let calls: Vec<_> =
        (0..200).map(|n| client.start_call("s__echo", json!({"n": n, "filler": filler}))).collect();
    for (n, call) in calls.into_iter().enumerate() {
        let result = call.result().await;
        assert!(text_of(&result).contains(&format!("\"n\":{n}")), "call {n}");
    }
}

#[tokio::test]
async fn a_child_that_does_not_read_holds_few_large_calls() {
    let broker = broker_with(stdio().spec()).await;
    let (client, admin) = (broker.connected(json!({})).await, broker.admin());
    let pid = text_of(&client.call("s__pid", json!({})).await).parse().unwrap();
    let pid = Pid::from_raw(pid).unwrap();
    let text = "x".repeat(15 << 20);
    let start = || client.start_call("s__pid", json!({"text": text}));
    kill_process(pid, Signal::STOP).unwrap();

    // The first call fills the pipe, and its rest has left the queue.
    let sent_bytes = [("direction", "out"), ("side", "backend")];
    let sent = admin.metric("mcp_bytes_total", &sent_bytes).await.unwrap_or_default();
    let mut calls = vec![start()];
    admin.wait_metric("mcp_bytes_total", &sent_bytes, |now| now - sent > 15_000_000.0).await;
    let queued = async |count: f64| {
        admin.wait_metric("mcp_queue_depth", &[("queue", "pipe")], |depth| depth == count).await
    };
    queued(0.0).await;
    for count in 1..=4 {
        calls.push(start());
        queued(f64::from(count)).await;
    }
    assert_eq!(kind(&start().error().await), "overloaded", "four calls are 60 of 64 MiB");

    kill_process(pid, Signal::CONT).unwrap();
    for call in calls {
        call.result().await;
    }
}

/// A server that closes its standard input when it is asked to, and stays. Its list has a further
/// tool after `add`.
const DEAF: &str = r#"
import json, os, sys, time
names = ["echo", "close", "add"]
def say(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def answer(id, result):
    say({"id": id, "result": result})
for line in sys.stdin:
    message = json.loads(line)
    id, method, params = message.get("id"), message["method"], message.get("params", {})
    if id is None:
        continue
    if method == "initialize":
        answer(id, {"protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": True}}, "serverInfo": {"name": "deaf", "version": "1"}})
    elif method == "tools/list":
        answer(id, {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]})
    elif method == "tools/call":
        tool = params["name"]
        if tool == "close":
            os.close(0)
        if tool == "add":
            names.append("extra")
            say({"method": "notifications/tools/list_changed"})
        answer(id, {"content": [{"type": "text", "text": str(os.getpid())}]})
        if tool == "close":
            time.sleep(60)
    else:
        say({"id": id, "error": {"code": -32601, "message": "unknown"}})
"#;

/// A server of 2026-07-28 that makes a task of each call. Its tasks end with its process. It expects
/// the next question about a task later than the broker ends an idle child.
const SLOW_TASKS: &str = r#"
import json, sys
info = {"io.modelcontextprotocol/serverInfo": {"name": "slow", "version": "1"}}
capabilities = {"tools": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
cache = {"ttlMs": 60000, "cacheScope": "public"}
tasks = []
def task(status, more):
    return {"taskId": "t-1", "status": status, "createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:01Z", "ttlMs": 60000, "pollIntervalMs": 3000, **more}
for line in sys.stdin:
    message = json.loads(line)
    id, method = message.get("id"), message["method"]
    if id is None:
        continue
    answer = {"error": {"code": -32601, "message": "unknown"}}
    if method == "server/discover":
        answer = {"result": {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": capabilities, "_meta": info, **cache}}
    elif method == "tools/list":
        answer = {"result": {"resultType": "complete", "tools": [{"name": "job", "inputSchema": {"type": "object"}}], **cache}}
    elif method == "tools/call":
        tasks.append("t-1")
        answer = {"result": task("working", {"resultType": "task"})}
    elif method == "tasks/get" and message["params"]["taskId"] in tasks:
        done = {"resultType": "complete", "content": [{"type": "text", "text": "done"}]}
        answer = {"result": task("completed", {"resultType": "complete", "result": done})}
    elif method == "tasks/get":
        answer = {"error": {"code": -32602, "message": "no such task"}}
    print(json.dumps({"jsonrpc": "2.0", "id": id, **answer}), flush=True)
"#;

#[tokio::test]
async fn nb_task_01_a_child_is_not_idle_while_a_call_waits_for_its_task() {
    let broker = broker_with(json!({
        "transport": {
            "type": "stdio",
            "command": "python3",
            "args": ["-u", "-c", SLOW_TASKS],
            "limits": {"idle": "1s"},
        },
        "protocol": "modern",
    }))
    .await;
    let client = broker.connected(json!({})).await;
    assert_eq!(text_of(&client.call("s__job", json!({})).await), "done");
}

#[tokio::test]
async fn a_child_that_closes_its_input_loses_its_call_and_is_replaced() {
    let marker = marker("deaf");
    let broker = broker_with(json!({
        "transport": {"type": "stdio", "command": "python3", "args": ["-u", "-c", DEAF, marker]},
    }))
    .await;
    let client = broker.connected(json!({"roots": {}})).await;
    let deaf = text_of(&client.call("s__close", json!({})).await).to_owned();
    let mut lost = 0;
    let next = loop {
        let answer =
            client.request("tools/call", json!({"name": "s__echo", "arguments": {}})).await;
        if answer["result"].is_object() {
            break text_of(&answer["result"]).to_owned();
        }
        lost += 1;
        assert!(lost < 3, "the next call opens another child: {answer}");
    };
    assert_ne!(next, deaf);
    assert_eq!(broker.admin().backend("default", "s").await["breaker"]["state"], "closed");
    client.call("s__add", json!({})).await;
    let shows_extra = async || match client.tool_names().await {
        names if names.contains(&"s__extra".to_owned()) => Ok(()),
        names => Err(names),
    };
    eventually("the list of the new child", shows_extra).await;
    eventually("the end of the old child", async || {
        match processes_with(&marker).contains(&deaf.parse().unwrap()) {
            true => Err("it runs"),
            false => Ok(()),
        }
    })
    .await;
    shows_extra().await.unwrap();
}
