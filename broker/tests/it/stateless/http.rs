//! Headers, statuses and eras over HTTP (MCP 2026-07-28, Streamable HTTP).

use futures_util::future::join_all;
use serde_json::{Value, json};
use testkit::{Direction, FakeBackend, FaultProxy, Gate, StatelessBackend, StatelessReply};

use super::{Modern, VERSION, meta};
use crate::{broker_with, builder, configured, echo, initialize_body, kind, refused, request};

fn with(headers: &[(String, String)], name: &str, value: Option<&str>) -> Vec<(String, String)> {
    let mut headers: Vec<_> = headers.iter().filter(|(known, _)| known != name).cloned().collect();
    headers.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    headers
}

fn call(id: u64) -> (Value, String) {
    let params = json!({"name": "echo", "arguments": {"text": "x"}, "_meta": meta(json!({}))});
    (params.clone(), request(id, "tools/call", params))
}

#[tokio::test]
async fn n_meta_01_a_request_must_contain_its_metadata() {
    let (broker, _backend) = echo().await;
    let client = Modern::of(&broker, "/mcp/b");
    for (bad, member) in [
        (json!({}), "protocolVersion"),
        (json!({"io.modelcontextprotocol/protocolVersion": VERSION}), "clientCapabilities"),
        (json!({"io.modelcontextprotocol/clientCapabilities": {}}), "protocolVersion"),
        (
            json!({"io.modelcontextprotocol/protocolVersion": VERSION, "io.modelcontextprotocol/clientCapabilities": 7}),
            "clientCapabilities",
        ),
    ] {
        let response = client.post(json!(1), "tools/list", json!({"_meta": bad})).await;
        let (status, error) = refused(response).await;
        assert_eq!((status, error["code"].as_i64()), (400, Some(-32602)), "{error}");
        assert!(error["message"].as_str().unwrap().contains(member), "{error}");
    }
    let bare = json!({"io.modelcontextprotocol/protocolVersion": VERSION, "io.modelcontextprotocol/clientCapabilities": {}});
    assert!(
        client.result("tools/list", json!({"_meta": bare})).await["tools"].is_array(),
        "clientInfo may be left out"
    );
}

#[tokio::test]
async fn n_meta_02_the_capabilities_of_a_request_are_bounded() {
    let (broker, _backend) = echo().await;
    let client = Modern::of(&broker, "/mcp");
    let declaring = |bytes: usize| {
        let extension = json!({"text": "x".repeat(bytes)});
        client.with(json!({"extensions": {"org.example/large": extension}}))
    };
    let call = json!({"name": "b__echo", "arguments": {"n": 1}});
    declaring(63 * 1024).result("tools/call", call.clone()).await;
    for (method, params) in [("tools/call", call), ("tools/list", json!({}))] {
        let error = declaring(64 * 1024).error(method, params).await;
        assert_eq!((error["code"].as_i64(), kind(&error)), (Some(-32602), "invalid_params"));
    }
}

#[tokio::test]
async fn n_ver_01_an_unsupported_revision_is_refused_with_the_supported_ones() {
    let (broker, _backend) = echo().await;
    let client = Modern::of(&broker, "/mcp");
    let params = json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "2099-01-01", "io.modelcontextprotocol/clientCapabilities": {}}});
    let headers =
        with(&client.headers("tools/list", &params), "mcp-protocol-version", Some("2099-01-01"));
    let (status, error) =
        refused(client.send(&headers, request(5, "tools/list", params.clone())).await).await;
    assert_eq!(
        (status, error["code"].as_i64(), error["data"]["requested"].as_str()),
        (400, Some(-32022), Some("2099-01-01"))
    );
    let supported = json!(["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]);
    assert_eq!(error["data"]["supported"], supported);
    // If header and body disagree, that error comes first.
    let (status, error) = refused(
        client.send(&client.headers("tools/list", &params), request(5, "tools/list", params)).await,
    )
    .await;
    assert_eq!((status, error["code"].as_i64()), (400, Some(-32020)));
}

#[tokio::test]
async fn n_hdr_01_n_hdr_02_n_hdr_04_headers_repeat_the_body() {
    let (broker, _backend) = echo().await;
    let client = Modern::of(&broker, "/mcp/b");
    let (params, body) = call(3);
    let right = client.headers("tools/call", &params);
    for (name, value) in [
        ("mcp-protocol-version", None),
        ("mcp-protocol-version", Some("2025-11-25")),
        ("mcp-method", None),
        ("mcp-method", Some("tools/list")),
        ("mcp-method", Some("Tools/Call")),
        ("mcp-name", None),
        ("mcp-name", Some("ECHO")),
        ("mcp-name", Some("")),
        ("mcp-name", Some("=?base64?!?=")),
        ("mcp-name", Some("=?base64?ZWNobw=?=")),
        ("mcp-name", Some("=?base64?/w==?=")),
        ("mcp-name", Some("=?base64?eA==?=")),
        ("mcp-name", Some("=?BASE64?ZWNobw==?=")),
    ] {
        let (status, error) =
            refused(client.send(&with(&right, name, value), body.clone()).await).await;
        assert_eq!(
            (status, error["code"].as_i64()),
            (400, Some(-32020)),
            "{name} {value:?}: {error}"
        );
    }
    for (name, value) in [("mcp-name", "=?base64?ZWNobw==?="), ("mcp-name", "  echo ")] {
        client
            .send(&with(&right, name, Some(value)), body.clone())
            .await
            .expect_status(200, value)
            .await;
    }
    let shouted: Vec<_> =
        right.iter().map(|(name, value)| (name.to_ascii_uppercase(), value.clone())).collect();
    client.send(&shouted, body.clone()).await.expect_status(200, "names in any case").await;
    // A header that occurs twice is refused, whether both values are equal or not.
    for (name, value) in [
        ("mcp-protocol-version", VERSION),
        ("mcp-protocol-version", "2025-11-25"),
        ("mcp-method", "tools/call"),
        ("mcp-method", "tools/list"),
        ("mcp-name", "echo"),
        ("mcp-name", "other"),
    ] {
        let mut twice = right.clone();
        twice.push((name.to_owned(), value.to_owned()));
        let (status, error) = refused(client.send(&twice, body.clone()).await).await;
        assert_eq!(
            (status, error["code"].as_i64()),
            (400, Some(-32020)),
            "{name} {value:?} twice: {error}"
        );
    }
}

#[tokio::test]
async fn h_14_the_name_header_must_repeat_the_name_of_every_method() {
    let (broker, _backend) = echo().await;
    for (method, member, value) in [
        ("tools/call", "name", "b__echo"),
        ("prompts/get", "name", "b__p"),
        ("resources/read", "uri", "b+test://r"),
        ("tasks/get", "taskId", "t"),
        ("tasks/update", "taskId", "t"),
        ("tasks/cancel", "taskId", "t"),
    ] {
        let client = Modern::of(&broker, "/mcp");
        let params = json!({member: value, "_meta": meta(json!({}))});
        let (right, body) = (client.headers(method, &params), request(4, method, params.clone()));
        for wrong in [None, Some("another"), Some("=?base64?YW5vdGhlcg==?=")] {
            let (status, error) =
                refused(client.send(&with(&right, "mcp-name", wrong), body.clone()).await).await;
            assert_eq!(
                (status, error["code"].as_i64()),
                (400, Some(-32020)),
                "{method} {wrong:?}: {error}"
            );
        }
    }
}

#[tokio::test]
async fn n_hdr_03_arguments_repeated_in_headers_are_compared() {
    let backend = FakeBackend::echo().await;
    let properties = json!({"region": {"type": "string", "x-mcp-header": "Region"}, "count": {"type": "integer", "x-mcp-header": "Count"}});
    let tool = json!({"name": "echo", "inputSchema": {"type": "object", "properties": properties}});
    let bad = json!({"name": "bad", "inputSchema": {"type": "object", "properties": {"p": {"type": "number", "x-mcp-header": "P"}}}});
    backend.list("tools", vec![tool, bad]);
    let broker = broker_with(&backend).await;
    for (path, name) in [("/mcp/b", "echo"), ("/mcp", "b__echo")] {
        let client = Modern::of(&broker, path);
        let sent = async |arguments: Value, headers: &[(&str, &str)]| {
            let params = json!({"name": name, "arguments": arguments, "_meta": meta(json!({}))});
            let mut all = client.headers("tools/call", &params);
            all.extend(
                headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
            );
            let response = client.send(&all, request(1, "tools/call", params)).await;
            if response.status == 200 {
                200
            } else {
                refused(response).await.1["code"].as_i64().unwrap()
            }
        };
        assert_eq!(
            sent(
                json!({"region": "eu", "count": 3}),
                &[("mcp-param-region", "eu"), ("Mcp-Param-Count", "3.0")]
            )
            .await,
            200
        );
        assert_eq!(
            sent(json!({"region": "é"}), &[("mcp-param-region", "=?base64?w6k=?=")]).await,
            200
        );
        assert_eq!(sent(json!({"region": null}), &[]).await, 200);
        assert_eq!(
            sent(
                json!({"region": "eu"}),
                &[("mcp-param-region", "eu"), ("mcp-param-other", "passes")]
            )
            .await,
            200
        );
        for (what, arguments, headers) in [
            ("missing", json!({"region": "eu"}), &[][..]),
            ("different", json!({"region": "eu"}), &[("mcp-param-region", "us")]),
            ("not in the body", json!({}), &[("mcp-param-region", "eu")]),
            ("for a null", json!({"region": null}), &[("mcp-param-region", "null")]),
            ("malformed", json!({"region": "eu"}), &[("mcp-param-region", "=?base64?%?=")]),
            ("another number", json!({"count": 3}), &[("mcp-param-count", "4")]),
            (
                "twice",
                json!({"region": "eu"}),
                &[("mcp-param-region", "eu"), ("Mcp-Param-Region", "eu")],
            ),
            ("no argument at all", json!(null), &[("mcp-param-region", "eu")]),
        ] {
            assert_eq!(sent(arguments, headers).await, -32020, "{what}");
        }
        let listed = client.result("tools/list", json!({})).await;
        let names: Vec<&str> = listed["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| tool["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, [name], "a tool that asks for what no client can send is not listed");
    }
}

/// The backend is reached for the first time while the call waits.
#[tokio::test]
async fn n_hdr_05_an_argument_header_stays_with_a_call_that_waits_for_its_backend() {
    let backend = StatelessBackend::http().await;
    backend.list("tools", vec![json!({"name": "echo", "inputSchema": {"type": "object"}})]);
    let mut spec = backend.spec();
    let url = spec["transport"]["url"].as_str().unwrap().to_owned();
    let address = url.strip_prefix("http://").unwrap().split('/').next().unwrap();
    let proxy = FaultProxy::start(address.parse().unwrap()).await;
    proxy.hold(Direction::Upstream, true);
    spec["transport"]["url"] = json!(url.replace(address, &proxy.address().to_string()));
    let broker = builder().start().await;
    broker.admin().put("/admin/v1/tenants/default/backends/b?wait=false", &spec).await;
    let client = Modern::of(&broker, "/mcp");
    let params = json!({"name": "b__echo", "arguments": {}, "_meta": meta(json!({}))});
    let mut headers = client.headers("tools/call", &params);
    headers.push(("mcp-param-colour".to_owned(), "red".to_owned()));
    let reached = async {
        let admin = broker.admin();
        admin.wait_metric("mcp_requests_pending", &[], |pending| pending == 1.0).await;
        proxy.heal();
    };
    let call = client.send(&headers, request(1, "tools/call", params));
    let (response, ()) = tokio::join!(call, reached);
    response.expect_status(200, "a call that waited").await;
    let seen = backend.recorded_of("tools/call").pop().unwrap();
    assert_eq!(seen.header("mcp-param-colour"), Some("red"));
}

#[tokio::test]
async fn n_hdr_05_argument_headers_follow_the_schema_of_the_backend() {
    let backend = StatelessBackend::http().await;
    let properties = json!({"region": {"type": "string", "x-mcp-header": "Region"}});
    backend.list("tools", vec![json!({"name": "regional", "inputSchema": {"type": "object", "properties": properties}})]);
    let mut spec = backend.spec();
    spec["credentials"] = json!({"headers": {"Mcp-Param-Account": "acme"}});
    let broker = builder().backend("default", "b", spec).start().await;
    for (path, name) in [("/mcp/b", "regional"), ("/mcp", "b__regional")] {
        let client = Modern::of(&broker, path);
        let params = json!({"name": name, "arguments": {"region": "ü"}, "_meta": meta(json!({}))});
        let mut headers = client.headers("tools/call", &params);
        headers.push(("mcp-param-region".to_owned(), "=?base64?w7w=?=".to_owned()));
        headers.push(("Mcp-Param-Unheard-Of".to_owned(), "as it came".to_owned()));
        headers.push(("mcp-param-account".to_owned(), "another".to_owned()));
        client
            .send(&headers, request(1, "tools/call", params))
            .await
            .expect_status(200, path)
            .await;
        let seen = backend.recorded_of("tools/call").pop().unwrap();
        assert_eq!(
            (seen.header("mcp-name"), seen.header("mcp-param-region")),
            (Some("regional"), Some("=?base64?w7w=?="))
        );
        assert_eq!(
            seen.header("mcp-param-unheard-of"),
            Some("as it came"),
            "what no schema here names is for the backend to judge"
        );
        assert_eq!(
            seen.header("mcp-param-account"),
            Some("acme"),
            "what the operator says no client says"
        );
    }
}

#[tokio::test]
async fn a_refusal_of_client_headers_is_not_a_failure_of_the_backend() {
    let backend = StatelessBackend::http().await;
    backend.list("tools", vec![testkit::backend::tool("t")]);
    backend.on("tools/call", |_| async { StatelessReply::error(-32020, "Mcp-Param-Odd is odd") });
    let broker = builder().backend("default", "b", backend.spec()).start().await;
    let client = Modern::of(&broker, "/mcp/b");
    for number in 0..6 {
        let params = json!({"name": "t", "arguments": {}, "_meta": meta(json!({}))});
        let mut headers = client.headers("tools/call", &params);
        headers.push(("mcp-param-odd".to_owned(), "odd".to_owned()));
        let answer =
            client.send(&headers, request(number, "tools/call", params)).await.json().await;
        assert_eq!(answer["error"]["message"], "Mcp-Param-Odd is odd", "{answer}");
    }
    assert_eq!(broker.admin().backend("default", "b").await["breaker"]["state"], "closed");
}

#[tokio::test]
async fn nb_hdr_04_calls_with_refused_headers_share_the_reads_of_tools() {
    let (backend, gate) = (StatelessBackend::http().await, Gate::new());
    let tools = json!([testkit::backend::tool("t")]);
    backend.list("tools", vec![tools[0].clone()]);
    backend.on("tools/call", |_| async { StatelessReply::error(-32020, "Mcp-Param-Odd is odd") });
    let broker = builder().backend("default", "b", backend.spec()).start().await;
    let client = Modern::of(&broker, "/mcp/b");
    client.error("tools/call", json!({"name": "t", "arguments": {}})).await;
    let held = gate.clone();
    backend.on("tools/list", move |_| {
        let held = held.clone();
        let lists = json!({"tools": tools, "ttlMs": 60_000, "cacheScope": "private"});
        async move {
            held.passed().await;
            StatelessReply::Result(lists)
        }
    });
    let before = backend.recorded_of("tools/list").len();
    let params = json!({"name": "t", "arguments": {}});
    let calls = join_all((0..20).map(|_| client.error("tools/call", params.clone())));
    let every_call_is_refused = async {
        backend.wait_count("every call", 22, |seen| seen.is("tools/call")).await;
        gate.open();
    };
    tokio::join!(calls, every_call_is_refused);
    let reads = backend.recorded_of("tools/list").len() - before;
    assert!(reads < 10, "{reads} reads for 20 calls");
}

#[tokio::test]
async fn n_http_01_only_post_is_supported() {
    let backend = FakeBackend::echo().await;
    let broker = broker_with(&backend).await;
    let client = broker.client("/mcp");
    for method in ["GET", "DELETE"] {
        for session in [None, Some(("mcp-session-id", "ignored"))] {
            let headers = [("accept", "text/event-stream"), ("mcp-protocol-version", "2026-07-28")];
            let headers: Vec<_> = headers.into_iter().chain(session).collect();
            let response = client.send(method, &headers, "").await;
            assert_eq!(
                (response.status, response.header("allow")),
                (405, Some("POST, OPTIONS")),
                "{method}"
            );
        }
        let legacy = client.send(method, &[("accept", "text/event-stream")], "").await;
        assert_eq!(legacy.status, 400, "{method}: whoever does not say so may mean a session");
    }
}

#[tokio::test]
async fn n_http_06_web_pages_may_send_the_headers_that_repeat_the_body() {
    let backend = FakeBackend::echo().await;
    let broker = broker_with(&backend).await;
    let client = broker.client("/mcp");
    let asked =
        "content-type, Mcp-Method, mcp-name,MCP-PARAM-Region ,mcp-param-x, x-other, mcp-param-a b";
    let headers = [
        ("origin", "http://localhost:3000"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", asked),
    ];
    let answer = client.send("OPTIONS", &headers, "").await;
    let allowed = answer.header("access-control-allow-headers").unwrap().to_owned();
    let names: Vec<&str> = allowed.split(", ").collect();
    for wanted in
        ["mcp-method", "mcp-name", "mcp-param-region", "mcp-param-x", "mcp-protocol-version"]
    {
        assert!(names.contains(&wanted), "{wanted}: {allowed}");
    }
    assert!(!allowed.contains("x-other") && !allowed.contains("a b"), "{allowed}");
    assert!(answer.header("vary").is_some());
}

#[tokio::test]
async fn n_err_03_n_err_04_removed_methods_are_not_found() {
    let backend = FakeBackend::echo().await;
    backend.capabilities(json!({"tools": {}}));
    let broker = broker_with(&backend).await;
    let client = Modern::of(&broker, "/mcp");
    for method in [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "tasks/list",
        "tasks/result",
        "sampling/createMessage",
        "roots/list",
        "no/such",
    ] {
        let response = client
            .post(json!("id"), method, json!({"level": "info", "uri": "b+x:1", "taskId": "t"}))
            .await;
        assert_eq!(response.status, 404, "{method}");
        let body = response.json().await;
        assert_eq!(
            (body["id"].as_str(), body["error"]["code"].as_i64()),
            (Some("id"), Some(-32601)),
            "{method}: {body}"
        );
    }
    let not_offered = client.post(json!(2), "prompts/list", json!({})).await;
    let (status, error) = refused(not_offered).await;
    assert_eq!((status, error["code"].as_i64()), (404, Some(-32601)));
}

#[tokio::test]
async fn n_http_01_n_http_03_no_session_is_opened_and_no_stream_is_resumed() {
    let (broker, backend) = echo().await;
    let client = Modern::of(&broker, "/mcp/b");
    let (params, body) = call(1);
    let mut headers = client.headers("tools/call", &params);
    headers.push(("mcp-session-id".to_owned(), "made-up".to_owned()));
    headers.push(("last-event-id".to_owned(), "1-1".to_owned()));
    let response = client
        .send(&headers, body)
        .await
        .expect_status(200, "what belongs to sessions is ignored")
        .await;
    assert_eq!(response.header("mcp-session-id"), None);
    backend.wait_for("the call", |seen| seen.calls("echo")).await;
    assert!(broker.admin().sessions("default").await.is_empty(), "none is opened");
    for method in ["GET", "DELETE"] {
        let headers = with(&client.headers("x", &json!({})), "mcp-method", None);
        let response = broker.client("/mcp").send_with(method, headers, "").await;
        assert!((400..500).contains(&response.status), "{method}: {}", response.status);
    }
    let batch = format!("[{}]", call(1).1);
    let (status, error) =
        refused(client.send(&client.headers("tools/call", &params), batch).await).await;
    assert_eq!((status, error["code"].as_i64()), (400, Some(-32600)));
    let received = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1, "_meta": meta(json!({}))}});
    assert_eq!(
        client
            .send(&client.headers("notifications/cancelled", &json!({})), received.to_string())
            .await
            .status,
        202
    );
}

#[tokio::test]
async fn n_ver_02_n_id_01_both_eras_are_served_on_one_endpoint() {
    let (broker, _backend) = echo().await;
    let modern = Modern::of(&broker, "/mcp");
    let legacy = broker.connected(json!({})).await;
    for _ in 0..3 {
        assert_eq!(modern.call("b__echo", json!({"text": "m"})).await["resultType"], "complete");
        let result = legacy.call("b__echo", json!({"text": "l"})).await;
        assert!(result.get("resultType").is_none() && result["content"].is_array());
    }
    let offered = legacy.fresh().initialize("2026-07-28", json!({})).await;
    assert_eq!(offered["protocolVersion"], "2025-11-25", "a session cannot be of 2026-07-28");
    let mut answers = Vec::new();
    for _ in 0..20 {
        answers.push(modern.post(
            json!(7),
            "tools/call",
            json!({"name": "b__echo", "arguments": {"text": "x"}}),
        ));
    }
    for answer in futures_util::future::join_all(answers).await {
        assert_eq!(answer.json().await["id"], 7, "an id is one POST's");
    }
}

#[tokio::test]
async fn n_ver_03_one_era_can_be_turned_off() {
    let backend = FakeBackend::echo().await;
    let only =
        async |eras: &str| configured(json!({"compat": {"eras": eras}}), backend.spec()).await;
    let modern = only("modern").await;
    let (status, error) =
        refused(modern.client("/mcp").post(initialize_body("2025-11-25")).await).await;
    assert_eq!((status, error["code"].as_i64()), (400, Some(-32022)));
    assert_eq!(
        error["data"],
        json!({"kind": error["data"]["kind"], "retryable": false, "requestId": error["data"]["requestId"], "supported": [VERSION], "requested": "2025-11-25"})
    );
    assert_eq!(
        Modern::of(&modern, "/mcp").result("server/discover", json!({})).await["supportedVersions"],
        json!([VERSION])
    );
    let legacy = only("legacy").await;
    let (status, error) =
        refused(Modern::of(&legacy, "/mcp").post(json!(1), "tools/list", json!({})).await).await;
    assert_eq!(
        (status, error["code"].as_i64(), kind(&error)),
        (400, Some(-32600), "unsupported_era")
    );
    assert_eq!(legacy.connected(json!({})).await.tool_names().await, ["b__echo"]);
}

#[tokio::test]
async fn n_http_02_n_auth_01_both_eras_check_authentication_and_origin() {
    let backend = FakeBackend::echo().await;
    let broker =
        builder().auth_required().tenant("acme").backend("acme", "b", backend.spec()).start().await;
    let client = Modern::of(&broker, "/mcp");
    let (status, _) = refused(client.post(json!(1), "tools/list", json!({})).await).await;
    assert_eq!(status, 401);
    let key = broker.admin().create_key("acme").await;
    let alice = client.bearer(&key);
    assert_eq!(alice.result("tools/list", json!({})).await["tools"][0]["name"], "b__echo");
    let params = json!({"_meta": meta(json!({}))});
    let mut headers = alice.headers("tools/list", &params);
    headers.push(("origin".to_owned(), "https://evil.example".to_owned()));
    assert_eq!(alice.send(&headers, request(1, "tools/list", params)).await.status, 403);
}
