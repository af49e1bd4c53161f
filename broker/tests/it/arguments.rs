//! Arguments that are meant to cost much, and arguments with two meanings: their effect on the call
//! and on other clients.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use testkit::{FakeBackend, TestBroker, TestClient, eventually_within};

use crate::{builder, configured, kind, text_of};

/// Nearly as many bytes as arguments may have.
const SIZE: usize = 1024 * 1024 - 256;

/// Returns a backend whose tools have these schemas.
async fn tools(schemas: &[(&str, Value)], rules: Value) -> (FakeBackend, Value) {
    let backend = FakeBackend::echo().await;
    let tools =
        schemas.iter().map(|(name, schema)| json!({"name": name, "inputSchema": schema})).collect();
    backend.list("tools", tools);
    for (name, _) in schemas {
        backend.tool(name, |_| async { testkit::Reply::text("carried out") });
    }
    let mut spec = backend.spec();
    spec["tools"] = rules;
    (backend, spec)
}

fn repeated(item: &str) -> String {
    format!("{{\"a\":[{}]}}", vec![item; SIZE / (item.len() + 1)].join(","))
}

/// Returns schemas, each with the arguments that make it cost most.
fn hostile() -> [(&'static str, Value, String); 4] {
    let items = |schema: Value| json!({"type": "object", "properties": {"a": {"items": schema}}});
    let object = json!({"type": "object", "required": ["x", "y"], "properties": {"x": {"type": "string"}, "y": {"type": "integer"}}});
    // The last two are alike, so that none of these fits whatever the time.
    let nearly_unlike: Vec<String> = (0..SIZE / 12)
        .map(|n| format!("[{}]", 1_000_000 + n))
        .chain(["[1]".into(), "[1]".into()])
        .collect();
    [
        ("objects", items(object), repeated("{}")),
        ("enum", items(json!({"enum": (0..9_000).collect::<Vec<_>>()})), repeated("9999")),
        (
            "pattern",
            items(json!({"pattern": "^(a|b|ab)*c{1,900}$"})),
            repeated(&format!("\"{}\"", "ab".repeat(5_000))),
        ),
        (
            "unique",
            items(json!({"uniqueItems": true})),
            format!("{{\"a\":[[{}]]}}", nearly_unlike.join(",")),
        ),
    ]
}

fn call_of(tool: &str, arguments: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{{"name":"b__{tool}","arguments":{arguments}}}}}"#
    )
}

/// Returns the answer to a call whose arguments are sent exactly as given.
async fn answer(client: &TestClient, tool: &str, arguments: &str) -> Value {
    let answer = client.post(call_of(tool, arguments)).await;
    assert_eq!(answer.status, 200);
    answer.json().await
}

/// Calls a tool without arguments. Compilation has a low priority, so a busy machine may exceed its
/// time limit. The call is then repeated.
async fn unhurried(client: &TestClient, tool: &str) -> Value {
    eventually_within(Duration::from_secs(60), "the schema is compiled", || async {
        let answer = answer(client, tool, "{}").await;
        if answer["error"]["data"]["reason"] == "timeout" { Err(answer) } else { Ok(answer) }
    })
    .await
}

/// Returns the peak of the process's memory.
fn peak_bytes(broker: &TestBroker) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", broker.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

#[tokio::test]
async fn s02_hostile_arguments_affect_only_their_tenant() {
    const MEMORY_MAX: usize = 256 * 1024 * 1024;
    let shapes = hostile();
    let schemas: Vec<(&str, Value)> =
        shapes.iter().map(|(name, schema, _)| (*name, schema.clone())).collect();
    let (loud_backend, loud) = tools(&schemas, json!({"validate_arguments": true})).await;
    let plain = json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}, "text": {"type": "string"}}});
    let (_quiet_backend, quiet) =
        tools(&[("plain", plain)], json!({"validate_arguments": true, "validate_timeout": "10s"}))
            .await;
    let broker = builder().single_process().auth_required().tenant("loud").tenant("quiet");
    let broker = broker.backend("loud", "b", loud).backend("quiet", "b", quiet).start().await;
    let loud = broker
        .client("/mcp")
        .bearer(&broker.admin().create_key("loud").await)
        .connected(json!({}))
        .await;
    let quiet = broker
        .client("/mcp")
        .bearer(&broker.admin().create_key("quiet").await)
        .connected(json!({}))
        .await;
    let before = peak_bytes(&broker);

    let over = Arc::new(AtomicBool::new(false));
    let mut attacks = tokio::task::JoinSet::new();
    for (name, _, arguments) in shapes {
        for _ in 0..2 {
            let (client, over, arguments) =
                (loud.fresh().connected(json!({})).await, over.clone(), arguments.clone());
            attacks.spawn(async move {
                let mut answers = Vec::new();
                while !over.load(Ordering::Relaxed) || answers.is_empty() {
                    answers.push((name, answer(&client, name, &arguments).await));
                }
                answers
            });
        }
    }
    // Too large to be checked at once: these need a thread, too.
    let large = json!({"n": 1, "text": "x".repeat(64 * 1024)}).to_string();
    for _ in 0..10 {
        let answered = answer(&quiet, "plain", &large).await;
        assert_eq!(text_of(&answered["result"]), "carried out", "{answered}");
    }
    over.store(true, Ordering::Relaxed);
    for (name, answer) in attacks.join_all().await.into_iter().flatten() {
        let error = &answer["error"];
        assert_eq!(
            (kind(error), error["data"]["refusalCode"].as_u64()),
            ("arguments_invalid", Some(1021)),
            "{name}: {answer}"
        );
        let reason = error["data"]["reason"].as_str().unwrap();
        assert!(["mismatch", "timeout", "too_costly"].contains(&reason), "{name}: {answer}");
        assert!(
            error["data"]["paths"].as_array().is_none_or(|paths| paths.len() <= 5),
            "{name}: {answer}"
        );
    }
    assert_eq!(loud_backend.recorded_of("tools/call").len(), 0);
    let grown = peak_bytes(&broker).saturating_sub(before);
    assert!(grown < MEMORY_MAX, "{grown} bytes for eight clients with arguments of one MiB each");
}

#[tokio::test]
async fn s02_arguments_that_take_too_long_to_check_are_refused_with_a_reason() {
    let schema = json!({"type": "object", "properties": {"a": {"items": {"pattern": "^(a|b|ab)*c{1,900}$"}}}});
    let (backend, spec) =
        tools(&[("t", schema)], json!({"validate_arguments": true, "validate_timeout": "1ms"}))
            .await;
    let broker = builder().backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    let refused = answer(&client, "t", &repeated(&format!("\"{}\"", "ab".repeat(5_000)))).await;
    let error = &refused["error"];
    assert_eq!(
        (kind(error), &error["data"]["reason"], &error["data"]["refusalCode"]),
        ("arguments_invalid", &json!("timeout"), &json!(1021))
    );
    assert_eq!(backend.recorded_of("tools/call").len(), 0);
    // Small ones are checked at once, and the tool works.
    assert_eq!(text_of(&answer(&client, "t", r#"{"a":["c"]}"#).await["result"]), "carried out");
    let view = broker.admin().backend("default", "b").await;
    assert_eq!(
        view["settings"]["tools"],
        json!({"validate_arguments": true, "validate_timeout": "1ms"}),
        "{view}"
    );
}

#[tokio::test]
async fn s02_a_timeout_out_of_range_is_refused_with_its_key() {
    let (_backend, mut spec) = tools(&[], json!({})).await;
    let broker = builder().single_process().start().await;
    for (timeout, wrong) in
        [(json!("0s"), "0"), (json!("11s"), "11s"), (json!(100), "number"), (json!("soon"), "soon")]
    {
        spec["tools"] = json!({"validate_arguments": true, "validate_timeout": timeout});
        let answer =
            broker.admin().send("PUT", "/admin/v1/tenants/default/backends/b", Some(&spec)).await;
        assert!([400, 422].contains(&answer.status), "{timeout}");
        let text = answer.text().await;
        assert!(
            text.contains("tools.validate_timeout")
                && text.contains("from 1ms to 10s")
                && text.contains(wrong),
            "{timeout}: {text}"
        );
    }
}

#[tokio::test]
async fn s02_a_schema_too_large_to_compile_is_not_used_and_is_reported() {
    let parts: serde_json::Map<String, Value> =
        (0..1_000).map(|n| (format!("p{n}"), json!({"type": "string"}))).collect();
    let schema =
        json!({"type": "object", "properties": {"x".repeat(20_000): {"properties": parts}}});
    let (_backend, spec) = tools(
        &[("large", schema), ("plain", json!({"type": "object"}))],
        json!({"validate_arguments": true}),
    )
    .await;
    let broker = builder().single_process().backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    let before = peak_bytes(&broker);
    for tool in ["large", "plain"] {
        assert_eq!(text_of(&unhurried(&client, tool).await["result"]), "carried out");
    }
    broker
        .wait_for_log(
            "the broker cannot use the schema of a tool and does not validate its arguments tenant=default",
        )
        .await;
    let view = broker.admin().backend("default", "b").await;
    let unchecked = view["unchecked_tools"].as_object().unwrap();
    assert!(
        unchecked.len() == 1
            && unchecked["large"]
                .as_str()
                .unwrap()
                .contains("the compiled schema would need more than"),
        "{view}"
    );
    let grown = peak_bytes(&broker).saturating_sub(before);
    assert!(grown < 128 * 1024 * 1024, "{grown}");
}

/// Arguments, each with the path of the member that stands twice.
const TWICE: [(&str, &str); 5] = [
    (r#"{"path":"/srv/a","path":"/etc/passwd"}"#, "/path"),
    (r#"{"path":"/srv/a","\u0070ath":"/etc/passwd"}"#, "/path"),
    (r#"{"a":[{"b":{"c":1}},{"b":{"c":1,"c":2}}]}"#, "/a/1/b/c"),
    (r#"{"a/b":{"":0,"x":1,"":2}}"#, "/a~1b/"),
    (r#"{"a":{"x":1},"b":0,"a":{"y":1}}"#, "/a"),
];
/// Arguments in which no member stands twice.
const ONCE: [&str; 3] = [
    r#"{"path":"a","Path":"b"}"#,
    r#"{"a":[{"x":1},{"x":1}],"x":1}"#,
    r#"{"a":"é","b":"e\u0301"}"#,
];

async fn refuses_duplicate_members(client: &TestClient, backend: &FakeBackend) {
    let large =
        format!(r#"{{"text":"{}","path":1,"deep":{{"path":1}},"path":2}}"#, "x".repeat(200_000));
    for (arguments, path) in TWICE.into_iter().chain([(large.as_str(), "/path")]) {
        let error = answer(client, "t", arguments).await["error"].take();
        assert_eq!(
            (kind(&error), &error["data"]["refusalCode"]),
            ("arguments_invalid", &json!(1021)),
            "{error}"
        );
        assert_eq!(
            (&error["data"]["reason"], &error["data"]["path"]),
            (&json!("duplicate_member"), &json!(path)),
            "{error}"
        );
    }
    let long = "k".repeat(5_000);
    let error = answer(client, "t", &format!(r#"{{"{long}":1,"{long}":2}}"#)).await["error"].take();
    assert_eq!(error["data"]["path"].as_str().unwrap().len(), 200, "{error}");
    assert_eq!(backend.recorded_of("tools/call").len(), 0, "nothing was sent");
    for arguments in ONCE {
        assert_eq!(
            text_of(&answer(client, "t", arguments).await["result"]),
            "carried out",
            "{arguments}"
        );
    }
    assert_eq!(backend.recorded_of("tools/call").len(), ONCE.len());
}

#[tokio::test]
async fn s07_duplicate_members_are_refused_when_arguments_are_validated() {
    let (backend, spec) = tools(
        &[("t", json!({"type": "object"}))],
        json!({"validate_arguments": true, "validate_timeout": "10s"}),
    )
    .await;
    let broker = builder().backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    refuses_duplicate_members(&client, &backend).await;
    // The call of a task is checked in the same way.
    let task = r#"{"jsonrpc":"2.0","id":"t","method":"tools/call","params":{"name":"b__t","arguments":{"a":1,"a":2},"task":{}}}"#;
    let answer: Value = client.post(task).await.json().await;
    assert_eq!(answer["error"]["data"]["reason"], "duplicate_member", "{answer}");
}

#[tokio::test]
async fn s07_duplicate_members_are_refused_when_arguments_are_audited() {
    let (backend, spec) =
        tools(&[("t", json!({"type": "object"}))], json!({"validate_timeout": "10s"})).await;
    let broker = configured(json!({"audit": {"calls": "arguments"}}), spec).await;
    refuses_duplicate_members(&broker.connected(json!({})).await, &backend).await;
}

#[tokio::test]
async fn s07_arguments_that_are_not_inspected_pass_unchanged() {
    let (backend, spec) = tools(&[("t", json!({"type": "object"}))], json!({})).await;
    let broker = builder().backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    for (arguments, _) in TWICE {
        assert_eq!(
            text_of(&answer(&client, "t", arguments).await["result"]),
            "carried out",
            "{arguments}"
        );
    }
    assert_eq!(backend.recorded_of("tools/call").len(), TWICE.len());
}
