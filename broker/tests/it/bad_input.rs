//! Every kind of refusal through the real binary, which affects no other request.

use serde_json::{Value, json};
use testkit::{FakeBackend, Gate, Reply};

use crate::{broker_with, configured, configured_alone, echo, kind, raw_http, refused, request};

/// Returns the files of the JSON Test Suite whose name starts with `prefix`.
pub(crate) fn suite(prefix: &str) -> Vec<(String, Vec<u8>)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../protocol/tests/corpus/json-test-suite");
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let mut files: Vec<_> = entries
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| {
            (entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{folder} has {prefix} files");
    files
}

#[tokio::test]
async fn j_01_every_n_file_is_refused_as_a_body_and_inside_arguments() {
    let (broker, backend) = echo().await;
    let client = broker.connected(json!({})).await;
    for (name, content) in suite("n_") {
        let (status, error) = refused(client.post(content.clone()).await).await;
        assert!(
            status == 400 && [-32700, -32600].contains(&error["code"].as_i64().unwrap()),
            "{name}: {status} {error}"
        );
        let mut body = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"b__echo","arguments":{"x":"#.to_vec();
        body.extend_from_slice(&content);
        body.extend_from_slice(b"}}}");
        let response = client.post(body).await;
        // A few files are broken only as a whole document (two values, a closing bracket too many).
        if response.status != 200 {
            let (status, error) = refused(response).await;
            assert!(
                status == 400 && [-32700, -32600].contains(&error["code"].as_i64().unwrap()),
                "{name} inside: {status} {error}"
            );
        }
    }
    for seen in backend.recorded_of("tools/call") {
        assert!(
            serde_json::from_slice::<Value>(&seen.body).is_ok(),
            "a backend got {:?}",
            seen.body
        );
    }
    client.result("ping", json!({})).await;
}

#[tokio::test]
async fn j_01_every_y_file_passes_as_an_argument_unchanged() {
    let (broker, backend) = echo().await;
    let client = broker.client("/mcp/b").connected(json!({})).await;
    for (name, content) in suite("y_") {
        let Ok(text) = String::from_utf8(content) else { continue };
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"echo","arguments":{{"x":{text}}}}}}}"#
        );
        client.post(body).await.expect_status(200, &name).await;
        let seen = backend.recorded_of("tools/call").pop().unwrap();
        let at_backend = String::from_utf8(seen.body.to_vec()).unwrap();
        assert!(
            at_backend.contains(&format!("\"arguments\":{{\"x\":{text}}}")),
            "{name}: {at_backend}"
        );
    }
}

#[tokio::test]
async fn j_01_i_files_are_accepted_or_refused_without_harm() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({})).await;
    for (name, content) in suite("i_") {
        let mut body = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"b__echo","arguments":{"x":"#.to_vec();
        body.extend_from_slice(&content);
        body.extend_from_slice(b"}}}");
        let status = client.post(body).await.status;
        assert!([200, 400].contains(&status), "{name}: {status}");
    }
    client.result("ping", json!({})).await;
}

#[tokio::test]
async fn j_03_invalid_utf8_is_a_parse_error() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({})).await;
    for bad in [&b"\xff"[..], b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc3"] {
        let mut body = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"b__echo","arguments":{"x":""#.to_vec();
        body.extend_from_slice(bad);
        body.extend_from_slice(br#""}}}"#);
        let (status, error) = refused(client.post(body).await).await;
        assert_eq!((status, kind(&error)), (400, "parse_error"), "{bad:x?}");
    }
}

#[tokio::test]
async fn j_07_too_deep_nesting_is_refused_with_the_limit() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({})).await;
    let nested = |depth: usize| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"b__echo","arguments":{{"x":{}{}}}}}}}"#,
            "[".repeat(depth),
            "]".repeat(depth)
        )
    };
    assert_eq!(client.post(nested(100)).await.status, 200);
    for depth in [200, 100_000] {
        let (status, error) = refused(client.post(nested(depth)).await).await;
        assert_eq!((status, kind(&error)), (400, "parse_error"), "{depth}");
        assert!(error["message"].as_str().unwrap().contains("128"), "{error}");
    }
    let (status, _) = refused(client.post("[".repeat(100_000)).await).await;
    assert_eq!(status, 400);
}

#[tokio::test]
async fn every_error_has_kind_retryable_and_request_id_and_is_counted() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({})).await;
    for (method, params, expected, code) in [
        ("none/such", json!({}), "method_not_found", -32601),
        ("tools/call", json!({"name": "none"}), "tool_not_found", -32602),
        ("tools/call", json!({}), "invalid_params", -32602),
        ("prompts/get", json!({"name": "none"}), "prompt_not_found", -32602),
        ("resources/read", json!({"uri": "none+x:y"}), "resource_not_found", -32002),
        ("resources/read", json!({"uri": "bad"}), "uri_invalid", -32602),
        ("tools/list", json!({"cursor": "x"}), "cursor_invalid", -32602),
        ("logging/setLevel", json!({"level": "loud"}), "invalid_params", -32602),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "none"}, "argument": {"name": "a", "value": ""}}),
            "reference_not_found",
            -32602,
        ),
        ("tasks/get", json!({"taskId": "x"}), "task_not_found", -32602),
    ] {
        let error = client.error(method, params).await;
        assert_eq!(
            (kind(&error), error["code"].as_i64()),
            (expected, Some(code)),
            "{method}: {error}"
        );
        assert!(
            error["data"]["retryable"].is_boolean() && error["data"]["requestId"].is_string(),
            "{error}"
        );
        let message = error["message"].as_str().unwrap();
        assert!(!message.is_empty() && !message.ends_with('.') && message.len() < 500, "{message}");
    }
    broker
        .admin()
        .wait_metric("mcp_errors_total", &[("code", "-32602")], |count| count >= 7.0)
        .await;
}

#[tokio::test]
async fn excess_calls_in_flight_are_refused_and_the_others_continue() {
    let gate = Gate::new();
    let backend = FakeBackend::with_tool("wait", gate.before(Reply::text("waited"))).await;
    let config = json!({"limits": {"calls_in_flight_per_session": 3}});
    let broker = configured(config, backend.spec()).await;
    let client = broker.connected(json!({})).await;
    let calls: Vec<_> = (0..3).map(|_| client.start_call("b__wait", json!({}))).collect();
    backend.wait_count("three calls", 3, |seen| seen.calls("wait")).await;
    let error = client.error("tools/call", json!({"name": "b__wait"})).await;
    assert_eq!(
        (error["code"].as_i64(), kind(&error), &error["data"]["retryable"]),
        (Some(1004), "too_many_calls", &json!(true))
    );
    client.result("ping", json!({})).await;
    gate.open();
    for call in calls {
        call.result().await;
    }
    client.call("b__wait", json!({})).await;
}

#[tokio::test]
async fn j_22_a_key_in_another_case_is_refused() {
    let (broker, backend) = echo().await;
    let client = broker.connected(json!({})).await;
    for body in [
        r#"{"jsonrpc":"2.0","id":1,"METHOD":"tools/call","params":{"name":"b__echo"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","Params":{"name":"b__echo"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"Name":"b__echo"}}"#,
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"param\u{17f}\":{\"name\":\"b__echo\"}}",
    ] {
        let response = client.post(body).await;
        let answer = response.json().await;
        assert!(answer["error"]["code"].is_i64(), "{body}: {answer}");
    }
    assert_eq!(backend.recorded_of("tools/call").len(), 0);
}

#[tokio::test]
async fn j_05_nul_escapes_are_refused_in_names_and_harmless_elsewhere() {
    let (broker, backend) = echo().await;
    let client = broker.connected(json!({})).await;
    let error = client.error("tools/call", json!({"name": "b__echo\u{0}"})).await;
    assert_eq!(error["code"], -32602);
    client.call("b__echo", json!({"x": "a\u{0}b"})).await;
    assert_eq!(
        backend.recorded_of("tools/call").pop().unwrap().message["params"]["arguments"]["x"],
        "a\u{0}b"
    );
}

#[tokio::test]
async fn huge_heads_are_refused() {
    let (broker, _backend) = echo().await;
    let many: String = (0..2_000).map(|n| format!("x-{n}: y\r\n")).collect();
    for head in [
        format!("POST /mcp HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "y".repeat(1 << 20)),
        format!("POST /mcp HTTP/1.1\r\nhost: localhost\r\n{many}\r\n"),
        format!("POST /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "y".repeat(200_000)),
    ] {
        let answer = raw_http(broker.http_address(), head.as_bytes()).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{:.200}", answer);
    }
    broker.connected(json!({})).await;
}

#[tokio::test]
async fn a_flood_of_bad_input_does_not_affect_another_session() {
    let gate = Gate::new();
    let wait = gate.clone();
    let backend = FakeBackend::with_tool("wait", move |call| {
        let wait = wait.clone();
        async move {
            call.progress(1.0, 2.0).await;
            wait.passed().await;
            Reply::text("unharmed")
        }
    })
    .await;
    let broker = broker_with(&backend).await;
    let good = broker.connected(json!({})).await;
    let mut call =
        good.start_request("tools/call", json!({"name": "b__wait", "_meta": {"progressToken": 1}}));
    call.next().await.unwrap();
    let bad = broker.connected(json!({})).await;
    for round in 0..100 {
        for body in
            ["{", "[]", "\u{0}", r#"{"jsonrpc":"2.0"}"#, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#]
        {
            bad.post(body).await;
        }
        bad.fresh().post(request(round, "tools/call", json!({}))).await;
    }
    gate.open();
    assert_eq!(call.finish().await.value["result"]["content"][0]["text"], "unharmed");
    let log = broker.log();
    assert!(!log.contains("panicked"), "{log}");
}

#[tokio::test]
async fn sessions_per_principal_and_connections_per_address_are_bounded() {
    let backend = FakeBackend::echo().await;
    let config = json!({"limits": {"sessions_per_principal": 2, "connections_per_address": 5}});
    let broker = configured_alone(config, backend.spec()).await;
    let clients = [broker.connected(json!({})).await, broker.connected(json!({})).await];
    let (status, error) =
        refused(broker.client("/mcp").post(crate::initialize_body("2025-11-25")).await).await;
    assert_eq!((status, kind(&error)), (429, "too_many_sessions"));
    let mut streams = Vec::new();
    for _ in 0..5 {
        streams.push(clients[0].open_get_stream().await);
    }
    let sixth = clients[1]
        .try_send("POST", &clients[1].usual_headers(), request(1, "ping", json!({})).into())
        .await;
    assert!(sixth.is_err(), "{sixth:?}");
    streams.clear();
    testkit::eventually("room again", || async {
        let answer = clients[1]
            .try_send("POST", &clients[1].usual_headers(), request(1, "ping", json!({})).into())
            .await;
        answer.map(|_| ())
    })
    .await;
    broker
        .admin()
        .wait_metric("mcp_rate_limited_total", &[("scope", "connections_per_address")], |count| {
            count >= 1.0
        })
        .await;
}

#[tokio::test]
async fn a_tenants_calls_in_flight_are_bounded_over_all_its_sessions() {
    let gate = Gate::new();
    let backend = FakeBackend::with_tool("wait", gate.before(Reply::text("waited"))).await;
    let broker = broker_with(&backend).await;
    broker
        .admin()
        .put_tenant("default", json!({"limits": {"calls_in_flight_per_tenant": 2}}))
        .await;
    let clients = [broker.connected(json!({})).await, broker.connected(json!({})).await];
    let calls =
        [clients[0].start_call("b__wait", json!({})), clients[1].start_call("b__wait", json!({}))];
    backend.wait_count("both calls", 2, |seen| seen.calls("wait")).await;
    assert_eq!(
        kind(&clients[1].error("tools/call", json!({"name": "b__wait"})).await),
        "too_many_calls"
    );
    gate.open();
    for call in calls {
        call.result().await;
    }
    clients[0].call("b__wait", json!({})).await;
}
