//! Tools, resources and prompts from the view of clients through the broker.

use std::collections::HashSet;

use serde_json::{Value, json};
use testkit::{FakeBackend, Reply, TestClient, backend::tool};

use crate::{broker_with, builder, echo, kind, text_of};

#[tokio::test]
async fn tool_01_names_are_unique_and_safe_and_identify_their_backend() {
    let (one, two) = (FakeBackend::start().await, FakeBackend::start().await);
    let long = "x".repeat(128);
    for (backend, mark) in [(&one, "one"), (&two, "two")] {
        for name in ["search", "files.read", "files read", "größe", &long, "a__b"] {
            backend.tool(name, move |call| async move {
                Reply::text(&format!("{mark}:{}", call.params()["name"].as_str().unwrap()))
            });
        }
    }
    let broker = builder()
        .backend("default", "one", one.spec())
        .backend("default", "two", two.spec())
        .start()
        .await;
    let client = broker.connected(json!({})).await;
    let names = client.tool_names().await;
    assert_eq!(names.len(), 12);
    assert_eq!(names.iter().collect::<HashSet<_>>().len(), 12, "{names:?}");
    assert!(names.contains(&"one__search".to_owned()) && names.contains(&"two__a__b".to_owned()));
    let mut natives = HashSet::new();
    for name in &names {
        assert!(
            name.len() <= 64
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte)),
            "{name}"
        );
        let answer = client.call(name, json!({})).await;
        let text = text_of(&answer).to_owned();
        assert!(text.starts_with(&name[..3]), "{name} gave {text}");
        natives.insert(text);
    }
    assert_eq!(natives.len(), 12, "each native tool was reached");
}

#[tokio::test]
async fn tool_01_adding_a_backend_never_renames_anothers_tools() {
    let (broker, _one) = echo().await;
    let client = broker.connected(json!({})).await;
    let before = client.tool_names().await;
    let other = FakeBackend::echo().await;
    broker.admin().put_ready_backend("default", "a", &other.spec()).await;
    let after = broker.connected(json!({})).await.tool_names().await;
    assert!(before.iter().all(|name| after.contains(name)), "{before:?} {after:?}");
}

#[tokio::test]
async fn tool_02_an_unknown_tool_is_32602_and_reaches_no_backend() {
    let (broker, backend) = echo().await;
    let client = broker.connected(json!({})).await;
    for name in ["none", "b__none", "echo", "b_echo", "", "b__echo "] {
        let error = client.error("tools/call", json!({"name": name})).await;
        assert_eq!(
            (error["code"].as_i64(), kind(&error)),
            (Some(-32602), "tool_not_found"),
            "{name}"
        );
    }
    for params in [json!({}), json!({"name": 7}), json!({"name": null})] {
        assert_eq!(client.error("tools/call", params).await["code"], -32602);
    }
    assert_eq!(backend.recorded_of("tools/call").len(), 0);
}

#[tokio::test]
async fn tool_03_a_tool_error_stays_a_result() {
    let backend = FakeBackend::with_tool("fail", |_| async {
        Reply::Result(json!({"content": [{"type": "text", "text": "it rained"}], "isError": true}))
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    assert_eq!(client.call("b__fail", json!({})).await["isError"], true);
    broker
        .admin()
        .wait_metric(
            "mcp_requests_total",
            &[("method", "tools/call"), ("outcome", "tool_error")],
            |value| value == 1.0,
        )
        .await;
}

#[tokio::test]
async fn tool_03_a_backends_protocol_error_is_relayed_with_its_data() {
    let error = json!({"code": -32099, "message": "the backend's own words", "data": {"x": [1, 2.50], "uri": "not-a-resource"}});
    let given = error.clone();
    let backend = FakeBackend::with_tool("fail", move |_| {
        let given = given.clone();
        async move { Reply::Error(given) }
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.client("/mcp/b").connected(json!({})).await;
    assert_eq!(client.error("tools/call", json!({"name": "fail"})).await, error);
}

#[tokio::test]
async fn tool_04_every_kind_of_content_passes_intact() {
    let result = json!({
        "content": [
            {"type": "text", "text": "t", "annotations": {"audience": ["user"], "priority": 0.50}},
            {"type": "image", "data": "aGk=", "mimeType": "image/png"},
            {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
            {"type": "resource", "resource": {"uri": "test://r", "mimeType": "text/plain", "text": "r"}},
            {"type": "resource_link", "uri": "test://l", "name": "l"},
            {"type": "of-tomorrow", "uri": "test://kept", "x": {"y": null}},
        ],
        "structuredContent": {"n": 1e3, "deep": [{"a": {}}]},
        "_meta": {"com.example/k": true},
    });
    let given = result.clone();
    let backend = FakeBackend::with_tool("all", move |_| {
        let given = given.clone();
        async move { Reply::Result(given) }
    })
    .await;
    let broker = broker_with(&backend).await;
    let why = "a content type of tomorrow must pass too";
    let single = broker.client("/mcp/b").connected(json!({})).await;
    single.content_is_invalid_on_purpose(why);
    assert_eq!(
        single.call("all", json!({})).await,
        result,
        "the transparent endpoint changes nothing"
    );
    let mut exposed = result;
    exposed["content"][3]["resource"]["uri"] = json!("b+test://r");
    exposed["content"][4]["uri"] = json!("b+test://l");
    let aggregated = broker.connected(json!({})).await;
    aggregated.content_is_invalid_on_purpose(why);
    assert_eq!(aggregated.call("b__all", json!({})).await, exposed, "URIs name their backend");
}

#[tokio::test]
async fn tool_04_definitions_pass_unchanged_but_for_their_name() {
    let definition = json!({
        "name": "full", "title": "Full", "description": "d",
        "inputSchema": {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "$defs": {"a": {"$anchor": "x"}}, "additionalProperties": false},
        "outputSchema": {"type": "object", "properties": {"n": {"type": "number"}}},
        "annotations": {"readOnlyHint": true, "unknownHint": 1}, "icons": [{"src": "https://example.com/i.png", "sizes": ["48x48"]}],
        "execution": {"taskSupport": "forbidden"}, "_meta": {"com.example/x": 1}, "unknown": [1.0],
    });
    let backend = FakeBackend::start().await;
    backend.list("tools", vec![definition.clone()]);
    let broker = broker_with(&backend).await;
    assert_eq!(
        broker.client("/mcp/b").connected(json!({})).await.list_all("tools/list", "tools").await,
        std::slice::from_ref(&definition)
    );
    let mut exposed = definition;
    exposed["name"] = json!("b__full");
    assert_eq!(broker.connected(json!({})).await.list_all("tools/list", "tools").await, [exposed]);
}

#[tokio::test]
async fn invalid_tools_are_left_out_and_the_others_are_served() {
    let backend = FakeBackend::start().await;
    backend.list(
        "tools",
        vec![
            json!({"name": "no-schema"}),
            json!({"name": "", "inputSchema": {"type": "object"}}),
            json!({"inputSchema": {"type": "object"}}),
            json!({"name": "null-schema", "inputSchema": null}),
            json!({"name": "line\nbreak", "inputSchema": {"type": "object"}}),
            json!({"name": "x".repeat(5000), "inputSchema": {"type": "object"}}),
            json!(7),
            tool("good"),
            tool("good"),
        ],
    );
    let broker = broker_with(&backend).await;
    assert_eq!(broker.connected(json!({})).await.tool_names().await, ["b__good"]);
}

/// SDKs refuse a whole list, or the answer to `initialize`, for one member of a wrong type. The test
/// kit validates what the broker sends.
#[tokio::test]
async fn a_backend_with_members_of_wrong_types_shuts_out_no_client() {
    let (good, odd) = (FakeBackend::echo().await, FakeBackend::start().await);
    good.capabilities(json!({"tools": {}}));
    odd.capabilities(json!({"tools": {}, "prompts": null, "experimental": {"streaming": true}}));
    odd.list(
        "tools",
        vec![
            json!({"name": "untyped", "title": null, "annotations": null, "inputSchema": {}}),
            json!({"name": "other", "inputSchema": {"type": "array"}}),
        ],
    );
    let broker = builder()
        .backend("default", "good", good.spec())
        .backend("default", "odd", odd.spec())
        .start()
        .await;
    for (path, prefix, names) in
        [("/mcp", "odd__", vec!["good__echo", "odd__untyped"]), ("/mcp/odd", "", vec!["untyped"])]
    {
        let client = broker.client(path).connected(json!({})).await;
        assert_eq!(client.tool_names().await, names, "{path}");
        let listed = client.result("tools/list", json!({})).await;
        let mut untyped = listed["tools"][names.len() - 1].clone();
        untyped.as_object_mut().unwrap().remove("execution");
        let name = format!("{prefix}untyped");
        assert_eq!(untyped, json!({"name": name, "inputSchema": {"type": "object"}}), "{path}");
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}});
        let opened = broker.client(path).request("initialize", params).await;
        let capabilities = &opened["result"]["capabilities"];
        assert_eq!(capabilities["experimental"], json!({"streaming": {}}), "{path}");
        assert_eq!(capabilities.get("prompts"), None, "{path}");
    }
}

async fn with_resources() -> (testkit::TestBroker, FakeBackend) {
    let backend = FakeBackend::start().await;
    backend.list(
        "resources",
        vec![
            json!({"uri": "test://one", "name": "one"}),
            json!({"uri": "file:///a+b c", "name": "two"}),
        ],
    );
    backend.list("resourceTemplates", vec![json!({"uriTemplate": "test://t/{id}", "name": "t"})]);
    backend.on("resources/read", |call| async move {
        match call.params()["uri"].as_str() {
            Some("test://none") => Reply::Error(json!({"code": -32002, "message": "Resource not found", "data": {"uri": "test://none"}})),
            uri => Reply::Result(json!({"contents": [{"uri": uri, "mimeType": "application/octet-stream", "blob": "AAECAwQ="}]})),
        }
    });
    (broker_with(&backend).await, backend)
}

#[tokio::test]
async fn res_01_a_uri_is_routed_to_its_backend_and_an_unknown_one_is_32002() {
    let (broker, backend) = with_resources().await;
    let client = broker.connected(json!({})).await;
    let listed = client.list_all("resources/list", "resources").await;
    assert_eq!(
        listed.iter().map(|item| item["uri"].as_str().unwrap()).collect::<Vec<_>>(),
        ["b+test://one", "b+file:///a+b c"]
    );
    assert_eq!(
        client.list_all("resources/templates/list", "resourceTemplates").await[0]["uriTemplate"],
        "b+test://t/{id}"
    );
    for uri in ["test://one", "file:///a+b c", "test://t/77"] {
        let exposed = format!("b+{uri}");
        let result = client.result("resources/read", json!({"uri": exposed})).await;
        assert_eq!(result["contents"][0]["uri"], exposed);
        assert_eq!(
            backend.recorded_of("resources/read").pop().unwrap().message["params"]["uri"],
            uri
        );
    }
    let count = backend.recorded_of("resources/read").len();
    for uri in ["test://one", "none+test://one", "x+y:z"] {
        let error = client.error("resources/read", json!({"uri": uri})).await;
        assert_eq!(
            (error["code"].as_i64(), kind(&error), error["data"]["uri"].as_str()),
            (Some(-32002), "resource_not_found", Some(uri))
        );
    }
    assert_eq!(backend.recorded_of("resources/read").len(), count);
    let error = client.error("resources/read", json!({"uri": "b+test://none"})).await;
    assert_eq!(
        (error["code"].as_i64(), error["data"]["uri"].as_str()),
        (Some(-32002), Some("b+test://none"))
    );
}

#[tokio::test]
async fn res_01_the_transparent_endpoint_keeps_native_uris() {
    let (broker, _backend) = with_resources().await;
    let client = broker.client("/mcp/b").connected(json!({})).await;
    assert_eq!(client.list_all("resources/list", "resources").await[0]["uri"], "test://one");
    assert_eq!(
        client.result("resources/read", json!({"uri": "test://one"})).await["contents"][0]["uri"],
        "test://one"
    );
    assert_eq!(
        client.error("resources/read", json!({"uri": "test://none"})).await["data"]["uri"],
        "test://none"
    );
}

#[tokio::test]
async fn res_02_a_malformed_uri_is_refused() {
    let (broker, backend) = with_resources().await;
    let client = broker.connected(json!({})).await;
    for uri in ["", "no-scheme", "b+test://a\nb", &format!("b+test://{}", "x".repeat(100_000))] {
        let error = client.error("resources/read", json!({"uri": uri})).await;
        assert_eq!(
            (error["code"].as_i64(), kind(&error)),
            (Some(-32602), "uri_invalid"),
            "{:.40}",
            uri
        );
    }
    for params in [json!({}), json!({"uri": 7})] {
        assert_eq!(client.error("resources/read", params).await["code"], -32602);
    }
    assert_eq!(backend.recorded_of("resources/read").len(), 0);
}

async fn subscribe(client: &TestClient, uri: &str) {
    assert_eq!(client.result("resources/subscribe", json!({"uri": uri})).await, json!({}));
}

#[tokio::test]
async fn res_03_updates_reach_subscribers_only_and_each_once() {
    let (broker, backend) = with_resources().await;
    let clients = [
        broker.connected(json!({})).await,
        broker.connected(json!({})).await,
        broker.connected(json!({})).await,
    ];
    let mut streams = Vec::new();
    for client in &clients {
        streams.push(client.open_get_stream().await);
    }
    subscribe(&clients[0], "b+test://one").await;
    subscribe(&clients[0], "b+test://one").await;
    subscribe(&clients[1], "b+test://one").await;
    backend.wait_get_streams(1).await;
    let update = |uri: &str| json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}});
    assert!(backend.push(update("test://one")).await >= 1);
    assert!(backend.push(update("test://other")).await >= 1);
    for stream in &mut streams[..2] {
        let (_, message) = stream.next_message().await.unwrap();
        assert_eq!(
            message,
            json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "b+test://one"}})
        );
    }
    for (client, stream) in clients.iter().zip(&mut streams) {
        client.delete_session().await;
        while let Some(event) = stream.next().await {
            assert!(event.message().is_none(), "{event:?}");
        }
    }
}

#[tokio::test]
async fn res_03_an_update_of_a_sub_resource_reaches_the_subscriber_of_its_parent() {
    let (broker, backend) = with_resources().await;
    let client = broker.connected(json!({})).await;
    let mut stream = client.open_get_stream().await;
    subscribe(&client, "b+test://one").await;
    backend.wait_get_streams(1).await;
    backend.notify("notifications/resources/updated", json!({"uri": "test://one/part"})).await;
    let message =
        stream.find(|message| message["method"] == "notifications/resources/updated").await;
    assert_eq!(message["params"]["uri"], "b+test://one/part");
}

#[tokio::test]
async fn res_03_subscribing_needs_the_capability() {
    let backend = FakeBackend::start().await;
    backend.capabilities(json!({"resources": {}}));
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let error = client.error("resources/subscribe", json!({"uri": "b+test://one"})).await;
    assert_eq!((error["code"].as_i64(), kind(&error)), (Some(-32601), "capability_missing"));
    assert_eq!(backend.recorded_of("resources/subscribe").len(), 0);
}

#[tokio::test]
async fn res_04_all_sessions_of_a_link_share_one_subscription_at_the_backend() {
    let (broker, backend) = with_resources().await;
    let clients = [broker.connected(json!({})).await, broker.connected(json!({})).await];
    for client in &clients {
        subscribe(client, "b+test://one").await;
    }
    assert_eq!(backend.recorded_of("resources/subscribe").len(), 1);
    assert_eq!(broker.admin().get("/admin/v1/subscriptions?tenant=default").await.0, 200);
    clients[0].result("resources/unsubscribe", json!({"uri": "b+test://one"})).await;
    clients[0].result("resources/unsubscribe", json!({"uri": "b+test://one"})).await;
    assert_eq!(backend.recorded_of("resources/unsubscribe").len(), 0);
    clients[1].delete_session().await;
    backend.wait_for("the end of the subscription", |seen| seen.is("resources/unsubscribe")).await;
}

#[tokio::test]
async fn res_04_a_refused_subscription_is_reported_and_not_kept() {
    let (broker, backend) = with_resources().await;
    backend.on("resources/subscribe", |_| async { Reply::error(-32002, "no such thing") });
    let client = broker.connected(json!({})).await;
    assert_eq!(
        client.error("resources/subscribe", json!({"uri": "b+test://one"})).await["code"],
        -32002
    );
    broker.admin().wait_metric("mcp_subscriptions", &[], |value| value == 0.0).await;
    backend.on("resources/subscribe", |_| async { Reply::Result(json!({})) });
    subscribe(&client, "b+test://one").await;
    broker.admin().wait_metric("mcp_subscriptions", &[], |value| value == 1.0).await;
}

#[tokio::test]
async fn res_05_tool_06_prom_02_list_changes_reach_each_session() {
    let (broker, backend) = with_resources().await;
    let clients =
        [broker.connected(json!({})).await, broker.client("/mcp/b").connected(json!({})).await];
    let mut streams = [clients[0].open_get_stream().await, clients[1].open_get_stream().await];
    backend.wait_get_streams(1).await;
    for (list, member, item) in [
        ("resources", "resources", json!({"uri": "test://new", "name": "new"})),
        ("prompts", "prompts", json!({"name": "new"})),
        ("tools", "tools", tool("new")),
    ] {
        backend.list(member, vec![item]);
        let method = format!("notifications/{list}/list_changed");
        backend.notify(&method, json!({})).await;
        for (client, stream) in clients.iter().zip(&mut streams) {
            stream.find(|message| message["method"] == method.as_str()).await;
            let listed = client.list_all(&format!("{list}/list"), member).await;
            assert_eq!(
                listed.len(),
                1,
                "the new list is served once the change is told: {listed:?}"
            );
        }
    }
}

#[tokio::test]
async fn res_06_blobs_pass_intact() {
    let (broker, _backend) = with_resources().await;
    let client = broker.connected(json!({})).await;
    let result = client.result("resources/read", json!({"uri": "b+test://one"})).await;
    assert_eq!(
        (result["contents"][0]["blob"].as_str(), result["contents"][0]["mimeType"].as_str()),
        (Some("AAECAwQ="), Some("application/octet-stream"))
    );
}

#[tokio::test]
async fn prom_01_prompts_are_found_by_name_and_unknown_ones_are_32602() {
    let backend = FakeBackend::start().await;
    backend.list(
        "prompts",
        vec![json!({"name": "p", "arguments": [{"name": "a", "required": true}], "icons": []})],
    );
    backend.on("prompts/get", |call| async move {
        if call.arguments()["a"].is_null() {
            return Reply::error(-32602, "argument a is required");
        }
        let embedded = json!({"type": "resource", "resource": {"uri": "test://r", "text": call.arguments()["a"]}});
        Reply::Result(json!({"description": "d", "messages": [{"role": "user", "content": embedded}]}))
    });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    assert_eq!(
        client.list_all("prompts/list", "prompts").await,
        [json!({"name": "b__p", "arguments": [{"name": "a", "required": true}], "icons": []})]
    );
    let result =
        client.result("prompts/get", json!({"name": "b__p", "arguments": {"a": "x"}})).await;
    let resource: &Value = &result["messages"][0]["content"]["resource"];
    assert_eq!(
        (resource["text"].as_str(), resource["uri"].as_str()),
        (Some("x"), Some("b+test://r"))
    );
    assert_eq!(
        client.error("prompts/get", json!({"name": "b__p", "arguments": {}})).await["code"],
        -32602
    );
    let error = client.error("prompts/get", json!({"name": "p"})).await;
    assert_eq!((error["code"].as_i64(), kind(&error)), (Some(-32602), "prompt_not_found"));
}

#[tokio::test]
async fn res_03_an_update_waits_for_the_clients_next_stream() {
    let (broker, backend) = with_resources().await;
    let client = broker.connected(json!({})).await;
    subscribe(&client, "b+test://one").await;
    backend.wait_get_streams(2).await;
    backend.notify("notifications/resources/updated", json!({"uri": "test://one"})).await;
    let mut stream = client.open_get_stream().await;
    let message =
        stream.find(|message| message["method"] == "notifications/resources/updated").await;
    assert_eq!(message["params"]["uri"], "b+test://one");
}
