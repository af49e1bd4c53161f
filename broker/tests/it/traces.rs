//! Traces:
//!
//! - one connected tree from a client's span to its backend's, over every hop between them
//! - the traces that are exported
//! - a collector that hangs or is gone

use std::{collections::HashSet, path::Path};

use serde_json::{Value, json};
use testkit::{
    BrokerBuilder, CollectedSpan, Collector, CollectorBehavior, FakeBackend, Ledger, Reply,
    TestBroker, eventually,
};

use crate::{
    builder,
    cluster::{as_task, on, opened_at, over, served_at},
    stdio, text_of,
};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CLIENT_SPAN: &str = "b7ad6b7169203331";

fn traceparent(sampled: bool) -> String {
    format!("00-{TRACE}-{CLIENT_SPAN}-0{}", u8::from(sampled))
}

fn traced_with(collector: &Collector, more: Value) -> BrokerBuilder {
    let mut traces = json!({"endpoint": collector.endpoint()});
    traces.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    builder().config(json!({"telemetry": {"traces": traces}}))
}

/// Returns all requests that a recording child received.
fn heard(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

async fn call_heard(file: &Path, tool: &str) -> Value {
    eventually("the child to hear the call", || async {
        let all = heard(file);
        let call = all
            .iter()
            .find(|message| message["method"] == "tools/call" && message["params"]["name"] == tool)
            .cloned();
        call.ok_or(all)
    })
    .await
}

/// Returns `(trace, span)` of a message.
fn carried(message: &Value) -> (String, String) {
    let text = message["params"]["_meta"]["traceparent"]
        .as_str()
        .unwrap_or_else(|| panic!("a traceparent in {message}"));
    let parts: Vec<&str> = text.split('-').collect();
    (parts[1].to_owned(), parts[2].to_owned())
}

/// Checks that the spans are one trace in which every span has its parent, up to the client's own.
#[track_caller]
fn assert_connected(spans: &[CollectedSpan]) {
    let mut known: HashSet<&str> = spans.iter().map(|span| span.id.as_str()).collect();
    known.insert(CLIENT_SPAN);
    assert!(spans.iter().all(|span| span.trace == TRACE), "{spans:#?}");
    let orphans: Vec<_> =
        spans.iter().filter(|span| !known.contains(span.parent.as_str())).collect();
    assert!(orphans.is_empty(), "{orphans:#?} of {spans:#?}");
    assert!(spans.iter().any(|span| span.parent == CLIENT_SPAN), "{spans:#?}");
}

fn find<'a>(spans: &'a [CollectedSpan], kind: &str, name: &str) -> &'a CollectedSpan {
    spans
        .iter()
        .find(|span| span.kind == kind && span.name == name)
        .unwrap_or_else(|| panic!("a span {kind} {name} in {spans:#?}"))
}

fn has(spans: &[CollectedSpan], kind: &str, name: &str) -> bool {
    spans.iter().any(|span| span.kind == kind && span.name == name)
}

async fn with_child(collector: &Collector, folder: &Path, more: Value) -> TestBroker {
    traced_with(collector, more)
        .backend("default", "b", stdio().record(&folder.join("heard")).spec())
        .start()
        .await
}

#[tokio::test]
async fn a_call_has_one_trace_from_the_client_to_a_child() {
    let (collector, folder) = (Collector::start().await, tempfile::tempdir().unwrap());
    let broker = with_child(&collector, folder.path(), json!({"trusted": ["*"], "ratio": 0})).await;
    let client = broker.connected(json!({})).await;
    let meta =
        json!({"traceparent": traceparent(true), "tracestate": "vendor=1", "baggage": "user=ada"});
    client
        .result(
            "tools/call",
            json!({"name": "b__echo", "arguments": {"secret": "canary"}, "_meta": meta}),
        )
        .await;
    let spans = collector.trace(TRACE, "both spans", |spans| spans.len() == 2).await;
    assert_connected(&spans);
    let (server, attempt) = (
        find(&spans, "SERVER", "tools/call b__echo"),
        find(&spans, "CLIENT", "tools/call b__echo"),
    );
    assert_eq!(
        (server.parent.as_str(), attempt.parent.as_str()),
        (CLIENT_SPAN, server.id.as_str())
    );
    for (name, value) in [
        ("mcp.method.name", "tools/call"),
        ("gen_ai.tool.name", "b__echo"),
        ("gen_ai.operation.name", "execute_tool"),
        ("mcp_broker.tenant", "default"),
        ("mcp_broker.backend", "b"),
    ] {
        assert_eq!(server.attribute(name), value, "{name} of {server:#?}");
    }
    assert!(
        !server.attribute("rpc.jsonrpc.request_id").is_empty()
            && !server.attribute("mcp.protocol.version").is_empty()
    );
    let session = client.session().unwrap();
    assert!(
        !server.attribute("mcp.session.id").is_empty()
            && server.attribute("mcp.session.id") != session,
        "hashed"
    );
    assert_eq!(server.resource["service.name"], "mcp-broker");
    assert!(!format!("{spans:?}").contains("canary"), "no arguments: {spans:#?}");
    let call = call_heard(&folder.path().join("heard"), "echo").await;
    assert_eq!(carried(&call), (TRACE.to_owned(), attempt.id.clone()), "{call}");
    assert_eq!(
        (&call["params"]["_meta"]["tracestate"], &call["params"]["_meta"]["baggage"]),
        (&json!("vendor=1"), &json!("user=ada"))
    );
}

#[tokio::test]
async fn trace_headers_are_read_and_forwarded_as_headers() {
    let (collector, backend) = (Collector::start().await, FakeBackend::echo().await);
    let broker =
        traced_with(&collector, json!({})).backend("default", "b", backend.spec()).start().await;
    let client = broker.connected(json!({})).await;
    let body = |id: u64| {
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "b__echo", "arguments": {}}}).to_string()
    };
    let headers = client.headers_with(&[
        ("traceparent", &traceparent(true)),
        ("baggage", "a=1"),
        ("tracestate", "v=1"),
    ]);
    assert_eq!(client.send_with("POST", headers, body(900)).await.status, 200);
    let spans = collector.trace(TRACE, "both spans", |spans| spans.len() == 2).await;
    assert_connected(&spans);
    let seen = backend.wait_for("the call", |seen| seen.calls("echo")).await;
    let attempt = find(&spans, "CLIENT", "tools/call b__echo");
    assert_eq!(seen.header("traceparent"), Some(format!("00-{TRACE}-{}-01", attempt.id).as_str()));
    assert_eq!((seen.header("baggage"), seen.header("tracestate")), (Some("a=1"), Some("v=1")));
    assert!(
        seen.message["params"].get("_meta").is_none_or(|meta| meta.get("traceparent").is_none()),
        "{}",
        seen.message
    );
    // A caller without a trace begins one, which the backend continues.
    client.call("b__echo", json!({})).await;
    let seen = backend.wait_count("two calls", 2, |seen| seen.calls("echo")).await;
    let own = seen[1].header("traceparent").unwrap();
    assert!(!own.contains(TRACE), "{own}");
    collector
        .trace(own.split('-').nth(1).unwrap(), "a trace of its own", |spans| {
            spans.iter().any(|span| span.parent.is_empty())
        })
        .await;
}

#[tokio::test]
async fn a_task_and_its_questions_are_in_the_trace_of_their_request() {
    let (collector, folder) = (Collector::start().await, tempfile::tempdir().unwrap());
    let broker = with_child(
        &collector,
        folder.path(),
        json!({"trusted": ["default/anonymous"], "ratio": 0}),
    )
    .await;
    let client = broker
        .client("/mcp")
        .answers(|_, _| Ok(json!({"action": "accept", "content": {"name": "Ann"}})))
        .connected(json!({"elicitation": {}}))
        .await;
    let params = json!({"name": "b__elicit", "arguments": {"message": "who"}, "task": {}, "_meta": {"traceparent": traceparent(true)}});
    let made = client.result("tools/call", params).await;
    let id = made["task"]["taskId"].as_str().unwrap();
    let mut result = client.start_request("tasks/result", json!({"taskId": id}));
    let question = loop {
        match result.next().await {
            Some(message) if message.method() == Some("elicitation/create") => break message,
            Some(_) => {}
            None => panic!("no question"),
        }
    };
    assert!(text_of(&result.finish().await.value["result"]).contains("Ann"));
    let spans = collector
        .trace(TRACE, "all spans", |spans| {
            has(spans, "INTERNAL", "tools/call b__elicit") && spans.len() >= 4
        })
        .await;
    assert_connected(&spans);
    let asked = find(&spans, "CLIENT", "elicitation/create");
    assert_eq!(
        carried(&question.value),
        (TRACE.to_owned(), asked.id.clone()),
        "the client goes on with it"
    );
    let attempt = find(&spans, "CLIENT", "tools/call b__elicit");
    assert_eq!(asked.parent, attempt.id);
    assert_eq!(attempt.parent, find(&spans, "INTERNAL", "tools/call b__elicit").id);
    let call = call_heard(&folder.path().join("heard"), "elicit").await;
    assert_eq!(carried(&call), (TRACE.to_owned(), attempt.id.clone()));
}

#[tokio::test]
async fn a_question_of_a_call_is_in_its_trace() {
    let (collector, folder) = (Collector::start().await, tempfile::tempdir().unwrap());
    let broker = with_child(&collector, folder.path(), json!({})).await;
    let answer =
        json!({"role": "assistant", "content": {"type": "text", "text": "ho"}, "model": "m"});
    let client = broker
        .client("/mcp")
        .answers(move |_, _| Ok(answer.clone()))
        .connected(json!({"sampling": {}}))
        .await;
    let params = json!({"name": "b__sample", "arguments": {"prompt": "hi"}, "_meta": {"traceparent": traceparent(true)}});
    client.result("tools/call", params).await;
    let spans = collector.trace(TRACE, "three spans", |spans| spans.len() == 3).await;
    assert_connected(&spans);
    let asked = find(&spans, "CLIENT", "sampling/createMessage");
    assert_eq!(asked.parent, find(&spans, "CLIENT", "tools/call b__sample").id);
    assert!(!asked.failed, "{asked:#?}");
}

#[tokio::test]
async fn a_trace_stays_whole_when_another_replica_takes_over() {
    let (collector, ledger) = (Collector::start().await, Ledger::start().await);
    let traces = json!({"endpoint": collector.endpoint(), "trusted": ["*"], "ratio": 0});
    let mut cluster =
        on(&ledger).config(json!({"telemetry": {"traces": traces}})).cluster(2).start().await;
    let key = cluster.operator().create_key("default").await;
    let client = opened_at(&cluster, 0, &key).await;
    let there = cluster.at(1, &client);
    let meta = json!({"traceparent": traceparent(true)});
    let call = |key: &str| json!({"name": "b__write", "arguments": {"key": key}, "_meta": meta});
    there.result("tools/call", call("passed on to its owner")).await;
    let mut as_task = as_task("put", json!({"key": "moved", "hang": true}));
    as_task["_meta"] = meta.clone();
    let made = client.result("tools/call", as_task).await;
    ledger.wait_for("moved").await;
    let servers =
        |spans: &[CollectedSpan]| spans.iter().filter(|span| span.kind == "SERVER").count();
    collector.trace(TRACE, "what the first replica did", |spans| servers(spans) == 2).await;
    // The kill comes during the task's call. The call is safe to repeat, so the next owner repeats
    // it.
    cluster.kill(0).await;
    served_at(&cluster, 1, &client).await;
    eventually("the call again", || async {
        if ledger.count("moved") == 2 { Ok(()) } else { Err(()) }
    })
    .await;
    ledger.release();
    assert_eq!(over(&there, made["task"]["taskId"].as_str().unwrap()).await, "completed");
    there.result("tools/call", call("served by the next owner")).await;
    let all = |spans: &[CollectedSpan]| {
        servers(spans) == 3 && has(spans, "INTERNAL", "tools/call b__put")
    };
    let spans = collector.trace(TRACE, "what the second replica did", |spans| all(spans)).await;
    assert_connected(&spans);
    let (run, attempt) = (
        find(&spans, "INTERNAL", "tools/call b__put"),
        find(&spans, "CLIENT", "tools/call b__put"),
    );
    assert_eq!(
        (attempt.parent.as_str(), run.parent.as_str()),
        (run.id.as_str(), find(&spans, "SERVER", "tools/call b__put").id.as_str())
    );
    let seen = ledger.backend().wait_count("both calls", 2, |seen| seen.calls("put")).await;
    assert_eq!(
        seen[1].header("traceparent"),
        Some(format!("00-{TRACE}-{}-01", attempt.id).as_str())
    );
    let first = find(&spans, "SERVER", "tools/call b__put");
    assert_ne!(
        run.resource["service.instance.id"], first.resource["service.instance.id"],
        "two processes: {spans:#?}"
    );
}

#[tokio::test]
async fn an_unsampled_request_is_exported_when_it_fails() {
    let (collector, folder) = (Collector::start().await, tempfile::tempdir().unwrap());
    let broker = with_child(&collector, folder.path(), json!({"trusted": ["default"]})).await;
    let client = broker.connected(json!({})).await;
    let meta = json!({"traceparent": traceparent(false)});
    client.result("tools/call", json!({"name": "b__echo", "arguments": {}, "_meta": meta})).await;
    client.error("tools/call", json!({"name": "b__exit", "arguments": {}, "_meta": meta})).await;
    let spans = collector.trace(TRACE, "the failed call", |spans| spans.len() >= 2).await;
    assert_connected(&spans);
    assert!(!has(&spans, "SERVER", "tools/call b__echo"), "{spans:#?}");
    let failed = find(&spans, "SERVER", "tools/call b__exit");
    assert!(failed.failed && failed.attribute("error.type") == "outcome_unknown", "{failed:#?}");
    assert!(find(&spans, "CLIENT", "tools/call b__exit").failed);
    let calls: Vec<Value> = heard(&folder.path().join("heard"))
        .into_iter()
        .filter(|message| message["method"] == "tools/call")
        .collect();
    assert!(
        calls
            .iter()
            .all(|call| call["params"]["_meta"]["traceparent"].as_str().unwrap().ends_with("-00")),
        "{calls:?}"
    );
    // A task is exported too, whose failure comes long after the request that made it.
    let params = json!({"name": "b__exit", "arguments": {}, "task": {}, "_meta": meta});
    let made = client.result("tools/call", params).await;
    let _failed = client.request("tasks/result", json!({"taskId": made["task"]["taskId"]})).await;
    let spans = collector
        .trace(TRACE, "the failed task", |spans| has(spans, "INTERNAL", "tools/call b__exit"))
        .await;
    assert_connected(&spans);
}

#[tokio::test]
async fn the_span_of_a_request_has_the_decision_of_the_access_policy() {
    let (collector, backend) = (Collector::start().await, FakeBackend::echo().await);
    let broker = traced_with(&collector, json!({"ratio": 1}))
        .backend("default", "b", backend.spec())
        .start()
        .await;
    let policy = json!({"rules": [{"id": "no-echo", "effect": "deny", "objects": {"tools": ["b/echo"]}, "required_scopes": ["echo"]}]});
    let (status, answer) = broker.admin().put("/admin/v1/tenants/default/policy", &policy).await;
    assert_eq!(status, 201, "{answer}");
    let client = broker.client("/mcp").connected(json!({})).await;
    let params =
        json!({"name": "b__echo", "arguments": {}, "_meta": {"traceparent": traceparent(true)}});
    let body =
        json!({"jsonrpc": "2.0", "id": client.take_id(), "method": "tools/call", "params": params});
    assert_eq!(client.post(body.to_string()).await.status, 403);
    let spans = collector.trace(TRACE, "the refused call", |spans| !spans.is_empty()).await;
    let decision =
        ["mcp.policy.verdict", "mcp.policy.rule"].map(|name| spans[0].attribute(name).to_owned());
    assert_eq!(decision, ["challenge", "no-echo"], "{spans:#?}");
}

#[tokio::test]
async fn a_42_untrusted_clients_do_not_control_traces_and_baggage_is_bounded() {
    let (collector, backend) = (Collector::start().await, FakeBackend::echo().await);
    let broker = traced_with(&collector, json!({"ratio": 0, "trusted": ["acme"]}))
        .backend("default", "b", backend.spec())
        .start()
        .await;
    let client = broker.connected(json!({})).await;
    let giant = (0..3_000).map(|number| format!("k{number}=v")).collect::<Vec<_>>().join(",");
    let meta = json!({"traceparent": traceparent(true), "baggage": giant});
    client.result("tools/call", json!({"name": "b__echo", "arguments": {}, "_meta": meta})).await;
    let seen = backend.wait_for("the call", |seen| seen.calls("echo")).await;
    let baggage = seen.message["params"]["_meta"]["baggage"].as_str().unwrap();
    assert!(baggage.len() <= 8_192 && baggage.split(',').count() <= 64, "{} bytes", baggage.len());
    assert!(seen.header("baggage").unwrap().len() <= 8_192);
    assert!(
        seen.header("traceparent").unwrap().ends_with("-00"),
        "the stranger's flag is not followed"
    );
    // A failure follows, so that everything that was to be exported before it has come.
    let meta = json!({"traceparent": traceparent(true)});
    client.error("tools/call", json!({"name": "b__nothing", "arguments": {}, "_meta": meta})).await;
    let spans = collector.trace(TRACE, "the refused call", |spans| !spans.is_empty()).await;
    assert_eq!(spans.len(), 1, "{spans:#?}");
    assert_eq!(
        (spans[0].name.as_str(), spans[0].attribute("error.type")),
        ("tools/call", "tool_not_found"),
        "no name of a client's making"
    );
}

#[tokio::test]
async fn without_an_endpoint_trace_headers_are_unchanged_except_huge_ones() {
    let (broker, backend) = crate::echo().await;
    let client = broker.connected(json!({})).await;
    let meta = json!({"traceparent": traceparent(true), "baggage": "a=1"});
    client.result("tools/call", json!({"name": "b__echo", "arguments": {}, "_meta": meta})).await;
    let seen = backend.wait_for("the call", |seen| seen.calls("echo")).await;
    assert_eq!(
        (&seen.message["params"]["_meta"]["traceparent"], seen.header("traceparent")),
        (&json!(traceparent(true)), None)
    );
    let meta = json!({"baggage": format!("a=1,b={}", "x".repeat(10_000))});
    client.result("tools/call", json!({"name": "b__echo", "arguments": {}, "_meta": meta})).await;
    let seen = backend.wait_count("two calls", 2, |seen| seen.calls("echo")).await;
    assert_eq!(seen[1].message["params"]["_meta"]["baggage"], "a=1");
}

#[tokio::test]
async fn o_08_a_hung_or_stopped_collector_delays_no_request() {
    let (collector, backend) = (Collector::start().await, FakeBackend::start().await);
    backend.tool("echo", |_| async { Reply::text("x") });
    let broker = traced_with(&collector, json!({"queue_spans": 20}))
        .single_process()
        .backend("default", "b", backend.spec())
        .start()
        .await;
    let client = broker.connected(json!({})).await;
    collector.set_behavior(CollectorBehavior::Hangs);
    let started = std::time::Instant::now();
    for _ in 0..60 {
        client.call("b__echo", json!({})).await;
    }
    assert!(started.elapsed().as_secs() < 5, "{:?}", started.elapsed());
    let dropped = |text: &str| {
        let lines = text
            .lines()
            .filter(|line| line.starts_with("mcp_trace_spans_total{outcome=\"queue_full\"}"));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>()
    };
    assert!(dropped(&broker.admin().metrics().await) > 0);
    drop(collector);
    client.call("b__echo", json!({})).await;
    broker.wait_for_log("the collector does not accept spans: the broker drops them").await;
}

#[tokio::test]
async fn log_lines_of_a_request_contain_the_request_id_of_its_error() {
    for format in ["text", "json"] {
        let collector = Collector::start().await;
        let config = json!({"telemetry": {"log": "debug", "log_format": format, "traces": {"endpoint": collector.endpoint()}}});
        let broker = builder().single_process().config(config).start().await;
        let client = broker.connected(json!({})).await;
        let meta = json!({"traceparent": traceparent(true)});
        let error = client
            .error("tools/call", json!({"name": "nothing", "arguments": {}, "_meta": meta}))
            .await;
        let id = error["data"]["requestId"].as_str().unwrap().to_owned();
        let line = eventually("the line", || async {
            let log = broker.log();
            log.lines().find(|line| line.contains(&id)).map(str::to_owned).ok_or(log)
        })
        .await;
        assert!(line.contains("refused"), "{line}");
        if format == "json" {
            let line: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(line["request_id"], id);
        }
        let spans = collector.trace(TRACE, "the span", |spans| !spans.is_empty()).await;
        assert_eq!(spans[0].attribute("mcp_broker.request_id"), id, "the span tells it too");
    }
}
