//! Policy before any backend gets a request: resource URIs below the roots, arguments that fit the
//! schema.

use serde_json::{Value, json};
use testkit::{FakeBackend, TestBroker};

use crate::{builder, kind, text_of};

const CLIMBING: &[&str] = &[
    "file:///srv/files/../../etc/passwd",
    "FILE:///srv/files/%2e%2E/%2e./x",
    "file:///srv/files/..%2f..%2fetc",
    "file:///srv/files/%252e%252e/x",
    "file:///srv/files\\..\\x",
    "file:///srv/files/%c0%ae%c0%ae/x",
    "file:///srv/files/a%00",
];
const OUTSIDE: &[&str] = &[
    "file:///etc/passwd",
    "file:///srv/filesystem",
    "file:///srv/%46iles/x",
    "file:///srv/%66iles/x",
    "FILE:///srv/files/x",
    "http://srv/files/x",
    "file://host/srv/files/x",
];
const INSIDE: &[&str] =
    &["file:///srv/files/a", "file:///srv/files/c%20d", "file:///srv/files/a..b"];

async fn with_resources(rules: Value) -> (TestBroker, FakeBackend) {
    let backend = FakeBackend::echo().await;
    backend.capabilities(json!({"tools": {}, "resources": {"subscribe": true}, "completions": {}}));
    backend.on("resources/read", |call| async move {
        testkit::Reply::Result(json!({"contents": [{"uri": call.params()["uri"], "text": "read"}]}))
    });
    backend.on("resources/subscribe", |_| async { testkit::Reply::Result(json!({})) });
    let mut spec = backend.spec();
    spec["resources"] = rules;
    (builder().backend("default", "b", spec).start().await, backend)
}

fn number(error: &Value) -> u64 {
    error["data"]["refusalCode"].as_u64().unwrap_or_default()
}

#[tokio::test]
async fn res_003_a_uri_with_path_traversal_reaches_no_backend() {
    let (broker, backend) = with_resources(json!({})).await;
    for (path, prefix) in [("/mcp", "b+"), ("/mcp/b", "")] {
        let client = broker.client(path).connected(json!({})).await;
        for uri in CLIMBING {
            for method in ["resources/read", "resources/subscribe", "resources/unsubscribe"] {
                let error = client.error(method, json!({"uri": format!("{prefix}{uri}")})).await;
                assert_eq!(
                    (error["code"].as_i64(), kind(&error), number(&error)),
                    (Some(-32602), "path_traversal", 1036),
                    "{path} {method} {uri}"
                );
            }
        }
        for uri in INSIDE.iter().chain(OUTSIDE) {
            client.result("resources/read", json!({"uri": format!("{prefix}{uri}")})).await;
        }
    }
    assert!(
        !backend
            .recorded()
            .iter()
            .any(|seen| CLIMBING.iter().any(|uri| seen.message["params"]["uri"] == *uri))
    );
}

#[tokio::test]
async fn root_005_a_uri_outside_of_the_roots_reaches_no_backend() {
    let (broker, backend) =
        with_resources(json!({"roots": ["file:///srv/files", "memo://"]})).await;
    for (path, prefix) in [("/mcp", "b+"), ("/mcp/b", "")] {
        let client = broker.client(path).connected(json!({})).await;
        for uri in OUTSIDE {
            for method in ["resources/read", "resources/subscribe"] {
                let error = client.error(method, json!({"uri": format!("{prefix}{uri}")})).await;
                assert_eq!(
                    (error["code"].as_i64(), kind(&error), number(&error)),
                    (Some(-32602), "outside_roots", 1039),
                    "{path} {method} {uri}"
                );
                assert!(
                    !error.to_string().contains("/srv/files"),
                    "the roots are the operator's: {error}"
                );
            }
        }
        let reference = json!({"ref": {"type": "ref/resource", "uri": format!("{prefix}file:///etc/x")}, "argument": {"name": "a", "value": ""}});
        assert_eq!(kind(&client.error("completion/complete", reference).await), "outside_roots");
        assert_eq!(
            kind(
                &client
                    .error("resources/read", json!({"uri": format!("{prefix}{}", CLIMBING[0])}))
                    .await
            ),
            "path_traversal"
        );
        for uri in INSIDE.iter().chain(&["memo://insights"]) {
            client.result("resources/read", json!({"uri": format!("{prefix}{uri}")})).await;
        }
    }
    let read: Vec<_> = backend
        .recorded_of("resources/read")
        .iter()
        .map(|seen| seen.message["params"]["uri"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(read.len(), 2 * (INSIDE.len() + 1), "{read:?}");
    let view = broker.admin().backend("default", "b").await;
    assert_eq!(view["settings"]["resources"]["roots"], json!(["file:///srv/files", "memo://"]));
}

#[tokio::test]
async fn bad_roots_are_refused_with_their_path() {
    let backend = FakeBackend::echo().await;
    let broker = builder().single_process().start().await;
    for root in ["/srv/files", "file:///a/../b", "file:///a%2fb", "file:///a?b"] {
        let mut spec = backend.spec();
        spec["resources"] = json!({"roots": ["file:///ok", root]});
        let answer =
            broker.admin().send("PUT", "/admin/v1/tenants/default/backends/b", Some(&spec)).await;
        assert!([400, 422].contains(&answer.status), "{root}");
        assert!(answer.text().await.contains("resources.roots[1]"), "{root}");
    }
}

async fn with_schema(schema: Value, validate: bool) -> (TestBroker, FakeBackend) {
    let backend = FakeBackend::echo().await;
    backend.list("tools", vec![json!({"name": "echo", "inputSchema": schema})]);
    let mut spec = backend.spec();
    spec["tools"] = json!({"validate_arguments": validate});
    (builder().backend("default", "b", spec).start().await, backend)
}

#[tokio::test]
async fn tool_006_invalid_arguments_are_refused_with_their_path_and_not_sent() {
    let schema = json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}, "list": {"items": {"maxLength": 3}}}});
    let (broker, backend) = with_schema(schema.clone(), true).await;
    for (path, name) in [("/mcp", "b__echo"), ("/mcp/b", "echo")] {
        let client = broker.client(path).connected(json!({})).await;
        for (arguments, fault_path) in [
            (json!({}), ""),
            (json!({"n": "canary-value"}), "/n"),
            (json!({"n": 1, "list": ["ok", "canary-value"]}), "/list/1"),
            (json!({"n": 1.5}), "/n"),
        ] {
            let error =
                client.error("tools/call", json!({"name": name, "arguments": arguments})).await;
            assert_eq!(
                (error["code"].as_i64(), kind(&error), number(&error)),
                (Some(-32602), "arguments_invalid", 1021),
                "{arguments}"
            );
            assert_eq!(error["data"]["path"], fault_path, "{arguments}: {error}");
            assert!(!error.to_string().contains("canary-value"), "{error}");
        }
        // The call of a task is checked in the same way.
        let task = json!({"name": name, "arguments": {"n": "x"}, "task": {}});
        assert_eq!(kind(&client.error("tools/call", task).await), "arguments_invalid");
        assert_eq!(
            text_of(&client.call(name, json!({"n": 1, "list": ["ok"]})).await),
            r#"{"list":["ok"],"n":1}"#
        );
    }
    assert_eq!(backend.count(|seen| seen.calls("echo")), 2);
    let (broker, _backend) = with_schema(schema, false).await;
    broker.connected(json!({})).await.call("b__echo", json!({})).await;
}

#[tokio::test]
async fn a_schema_is_read_again_when_the_list_changes() {
    let (broker, backend) = with_schema(json!({"type": "object", "required": ["a"]}), true).await;
    let client = broker.connected(json!({})).await;
    assert_eq!(
        kind(&client.error("tools/call", json!({"name": "b__echo", "arguments": {}})).await),
        "arguments_invalid"
    );
    backend.list("tools", vec![json!({"name": "echo", "inputSchema": {"type": "object"}})]);
    broker.admin().post("/admin/v1/tenants/default/backends/b/probe", &json!({})).await;
    testkit::eventually("the new schema", || async {
        let answer =
            client.request("tools/call", json!({"name": "b__echo", "arguments": {}})).await;
        if answer["result"].is_object() { Ok(()) } else { Err(answer) }
    })
    .await;
}

#[tokio::test]
async fn j_24_a_schema_bomb_is_not_used_and_fetches_nothing() {
    let canary = FakeBackend::echo().await;
    let doubled = |n: usize| json!({"allOf": [{"$ref": format!("#/$defs/a{}", n + 1)}, {"$ref": format!("#/$defs/a{}", n + 1)}]});
    let mut defs: serde_json::Map<String, Value> =
        (0..40).map(|n| (format!("a{n}"), doubled(n))).collect();
    defs.insert("a40".into(), json!({"type": "object", "required": ["never"]}));
    for schema in [
        json!({"type": "object", "$ref": "#/$defs/a0", "$defs": defs}),
        json!({"type": "object", "properties": {"x": {"$ref": canary.url()}}}),
        json!({"type": "object", "$schema": canary.url()}),
        json!({"type": "object", "description": "x".repeat(300_000)}),
    ] {
        let (broker, _backend) = with_schema(schema, true).await;
        let client = broker.connected(json!({})).await;
        let started = std::time::Instant::now();
        client.call("b__echo", json!({"x": 1})).await;
        assert!(started.elapsed() < std::time::Duration::from_secs(5), "{:?}", started.elapsed());
        broker
            .wait_for_log(
                "the broker cannot use the schema of a tool and does not validate its arguments",
            )
            .await;
    }
    assert_eq!(canary.recorded().len(), 0, "nothing was fetched");
}
