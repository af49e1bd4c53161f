//! The handshake towards clients, and the requests it permits before and after.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::{FakeBackend, Reply, backend::tool};

use crate::{broker_with, builder, echo, initialize_body, kind, refused, request, text_of};

#[tokio::test]
async fn life_01_a_request_before_initialize_is_refused() {
    let (broker, _backend) = echo().await;
    let client = broker.client("/mcp");
    for method in ["tools/list", "tools/call", "resources/list", "logging/setLevel"] {
        let (status, _) = refused(client.post(request(1, method, json!({}))).await).await;
        assert_eq!(status, 400, "{method}");
    }
}

#[tokio::test]
async fn life_02_each_supported_version_is_echoed() {
    let (broker, _backend) = echo().await;
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let client = broker.client("/mcp");
        assert_eq!(client.initialize(version, json!({})).await["protocolVersion"], version);
        assert_eq!(client.tool_names().await, ["b__echo"], "{version}");
    }
}

#[tokio::test]
async fn life_03_an_unsupported_version_is_answered_with_the_newest_supported() {
    let (broker, _backend) = echo().await;
    for version in ["1900-01-01", "2099-01-01", "2026-07-28", "", "nonsense", "2025-11-26"] {
        let client = broker.client("/mcp");
        assert_eq!(
            client.initialize(version, json!({})).await["protocolVersion"],
            "2025-11-25",
            "{version:?}"
        );
    }
}

#[tokio::test]
async fn life_04_the_initialize_result_is_complete() {
    let (broker, _backend) = echo().await;
    for path in ["/mcp", "/mcp/b"] {
        let result = broker.client(path).initialize("2025-11-25", json!({})).await;
        assert!(result["capabilities"].is_object(), "{result}");
        assert!(
            result["serverInfo"]["name"].is_string() && result["serverInfo"]["version"].is_string(),
            "{result}"
        );
    }
}

#[tokio::test]
async fn life_05_an_old_session_gets_no_request_that_its_version_lacks() {
    let backend = FakeBackend::with_tool("ask", |call| async move {
        let params =
            json!({"message": "?", "requestedSchema": {"type": "object", "properties": {}}});
        Reply::text(&call.request("elicitation/create", params).await["error"]["code"].to_string())
    })
    .await;
    let broker = broker_with(&backend).await;
    for version in ["2024-11-05", "2025-03-26"] {
        let client = broker.client("/mcp");
        client.initialize(version, json!({"elicitation": {}})).await;
        let mut call = client.start_call("b__ask", json!({}));
        let answer = call.finish().await;
        assert_eq!(text_of(&answer.value["result"]), "-32601", "{version}");
        assert!(call.before.is_empty(), "{version}: nothing reached the client: {:?}", call.before);
    }
}

#[tokio::test]
async fn life_06_no_list_changed_is_sent_before_initialized() {
    let backend = FakeBackend::echo().await;
    let broker = broker_with(&backend).await;
    let client = broker.client("/mcp");
    client.initialize_only("2025-11-25", json!({})).await;
    let mut stream = client.open_get_stream().await;
    backend.wait_get_streams(1).await;
    backend.list("tools", vec![tool("echo"), tool("new")]);
    backend.notify("notifications/tools/list_changed", json!({})).await;
    broker.admin().wait_backend("default", "b", "two tools", |view| view["tools"] == 2).await;
    while let Ok(event) = stream.next_event(Duration::from_millis(200)).await {
        let event = event.expect("the stream stays open");
        assert!(event.message().is_none(), "too early: {event:?}");
    }
    client.notify("notifications/initialized", json!({})).await;
    // From now on changes are announced.
    backend.list("tools", vec![tool("echo")]);
    backend.notify("notifications/tools/list_changed", json!({})).await;
    stream.find(|message| message["method"] == "notifications/tools/list_changed").await;
}

#[tokio::test]
async fn life_07_only_capabilities_of_the_backends_are_advertised() {
    let backend = FakeBackend::echo().await;
    backend.capabilities(json!({"tools": {}}));
    let broker = broker_with(&backend).await;
    for path in ["/mcp", "/mcp/b"] {
        let client = broker.client(path);
        let capabilities = client.initialize("2025-11-25", json!({})).await["capabilities"].clone();
        assert!(capabilities["tools"].is_object(), "{capabilities}");
        for absent in ["prompts", "resources", "logging", "completions"] {
            assert!(capabilities.get(absent).is_none(), "{path}: {absent} in {capabilities}");
        }
        for (method, params) in [
            ("prompts/list", json!({})),
            ("prompts/get", json!({"name": "x"})),
            ("resources/list", json!({})),
            ("resources/read", json!({"uri": "b+test://x"})),
            ("resources/subscribe", json!({"uri": "b+test://x"})),
            ("logging/setLevel", json!({"level": "info"})),
            (
                "completion/complete",
                json!({"ref": {"type": "ref/prompt", "name": "x"}, "argument": {"name": "a", "value": ""}}),
            ),
        ] {
            let error = client.error(method, params).await;
            assert_eq!(
                (error["code"].as_i64(), kind(&error)),
                (Some(-32601), "capability_missing"),
                "{path} {method}"
            );
            assert_eq!(backend.recorded_of(method).len(), 0, "{method} did not reach the backend");
        }
    }
}

#[tokio::test]
async fn life_07_the_aggregated_endpoint_advertises_the_union() {
    let (tools, prompts) = (FakeBackend::echo().await, FakeBackend::start().await);
    tools.capabilities(json!({"tools": {"listChanged": true}}));
    prompts.capabilities(json!({"prompts": {}, "experimental": {"x": {"y": 1}}}));
    let broker = builder()
        .backend("default", "t", tools.spec())
        .backend("default", "p", prompts.spec())
        .start()
        .await;
    let result = broker.client("/mcp").initialize("2025-11-25", json!({})).await;
    assert!(
        result["capabilities"]["tools"].is_object()
            && result["capabilities"]["prompts"].is_object(),
        "{result}"
    );
    let single = broker.client("/mcp/p").initialize("2025-11-25", json!({})).await;
    assert!(single["capabilities"].get("tools").is_none(), "{single}");
}

#[tokio::test]
async fn life_09_a_second_initialize_is_refused_and_the_session_continues() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({})).await;
    let (_, error) = refused(client.post(initialize_body("2025-11-25")).await).await;
    assert_eq!(error["code"], -32600);
    assert_eq!(client.tool_names().await, ["b__echo"]);
}

#[tokio::test]
async fn life_10_an_unanswered_question_is_cancelled_and_fails_at_the_backend() {
    let backend = FakeBackend::with_tool("ask", |call| async move {
        let answer = call.request("roots/list", json!({})).await;
        Reply::text(&answer["error"]["message"].to_string())
    })
    .await;
    let config = json!({"timeouts": {"client_request": "300ms"}});
    let broker = builder().config(config).backend("default", "b", backend.spec()).start().await;
    let client = broker.connected(json!({"roots": {}})).await;
    let mut call = client.start_call("b__ask", json!({}));
    let answer = call.finish().await;
    assert_ne!(text_of(&answer.value["result"]), "null", "the backend got an error");
    let methods: Vec<_> = call.before.iter().filter_map(|message| message.method()).collect();
    assert_eq!(methods, ["roots/list", "notifications/cancelled"]);
    assert_eq!(call.before[1].value["params"]["requestId"], call.before[0].value["id"]);
}

#[tokio::test]
async fn life_12_a_malformed_initialize_names_the_member() {
    let (broker, _backend) = echo().await;
    let good = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "n", "version": "1"}});
    let broken = |member: &str, value: Option<Value>| {
        let mut params = good.clone();
        match value {
            Some(value) => params[member] = value,
            None => drop(params.as_object_mut().unwrap().remove(member)),
        }
        params
    };
    for (member, params) in [
        ("protocolVersion", broken("protocolVersion", None)),
        ("protocolVersion", broken("protocolVersion", Some(json!(7)))),
        ("capabilities", broken("capabilities", None)),
        ("capabilities", broken("capabilities", Some(json!("all")))),
        ("clientInfo", broken("clientInfo", None)),
        ("clientInfo", broken("clientInfo", Some(json!([])))),
        ("clientInfo", broken("clientInfo", Some(json!({"version": "1"})))),
        ("clientInfo", broken("clientInfo", Some(json!({"name": "n"})))),
    ] {
        let response = broker.client("/mcp").post(request(1, "initialize", params.clone())).await;
        assert!(response.header("mcp-session-id").is_none());
        let (_, error) = refused(response).await;
        assert_eq!(error["code"], -32602, "{params}");
        assert!(error["message"].as_str().unwrap().contains(member), "{member}: {error}");
    }
    let (_, error) = refused(
        broker.client("/mcp").post(r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#).await,
    )
    .await;
    assert_eq!(error["code"], -32602);
}

#[tokio::test]
async fn the_endpoint_of_a_backend_shows_its_server_info() {
    let backend = FakeBackend::echo().await;
    backend.server_info(json!({"name": "weather", "version": "7"}), Some("ask about the sky"));
    let broker = broker_with(&backend).await;
    let single = broker.client("/mcp/b").initialize("2025-11-25", json!({})).await;
    assert_eq!(single["instructions"], "ask about the sky");
}
