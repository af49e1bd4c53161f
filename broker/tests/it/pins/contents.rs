//! What backends answer: hidden characters in results of tools, and the contents of user interfaces.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::{FakeBackend, Reply, backend::tool};

use super::{approve, broker_with, item, pins, wait_state};
use crate::{kind, stateless::Modern, text_of};

const SNEAKY: &str = "see\u{200b}n and \u{e0041}unseen";

#[tokio::test]
async fn hidden_characters_in_results_are_flagged_or_removed_as_configured() {
    let backend = FakeBackend::start().await;
    for (name, text) in [("sneaky", SNEAKY), ("plain", "K\u{f6}ln")] {
        backend.tool(name, move |_| async move { Reply::text(text) });
    }
    backend.list("tools", vec![tool("sneaky"), tool("plain")]);
    for (setting, expected, flagged) in
        [("off", SNEAKY, false), ("flag", SNEAKY, true), ("strip", "seen and unseen", true)]
    {
        let broker = broker_with(&backend, json!({"results": setting})).await;
        let client = broker.connected(json!({})).await;
        let modern = Modern::of(&broker, "/mcp");
        for result in
            [client.call("b__sneaky", json!({})).await, modern.call("b__sneaky", json!({})).await]
        {
            assert_eq!(text_of(&result), expected, "{setting}");
            let findings = result["_meta"]["dev.mcp-broker/findings"].as_array();
            let rules: Vec<&str> = findings
                .into_iter()
                .flatten()
                .map(|finding| finding["rule"].as_str().unwrap())
                .collect();
            let wanted: &[&str] = if flagged { &["hidden-zero-width", "hidden-tag"] } else { &[] };
            assert_eq!(rules, wanted, "{setting}: {result}");
        }
        let plain = client.call("b__plain", json!({})).await;
        assert_eq!((text_of(&plain), plain.get("_meta")), ("K\u{f6}ln", None));
        let counted = if flagged { 2.0 } else { 0.0 };
        let labels = [("rule", "hidden-tag")];
        broker
            .admin()
            .wait_metric("mcp_result_findings_total", &labels, |count| count == counted)
            .await;
    }
}

/// A backend with one tool that links a user interface, whose HTML can be changed.
async fn with_app() -> (FakeBackend, Arc<Mutex<String>>) {
    let backend = FakeBackend::start().await;
    let mut shown = tool("show");
    shown["_meta"] = json!({"ui": {"resourceUri": "ui://view"}});
    backend.tool("show", |_| async { Reply::text("shown") });
    backend.list("tools", vec![shown]);
    backend.list("resources", vec![]);
    let html = Arc::new(Mutex::new("<p>one</p>".to_owned()));
    let read = html.clone();
    backend.on("resources/read", move |call| {
        let text = read.lock().clone();
        async move {
            let uri = call.params()["uri"].clone();
            Reply::Result(json!({"contents": [{"uri": uri, "mimeType": "text/html;profile=mcp-app", "text": text}]}))
        }
    });
    (backend, html)
}

#[tokio::test]
async fn a_changed_user_interface_is_held_until_it_is_approved() {
    let (backend, html) = with_app().await;
    let broker = broker_with(&backend, json!("hold_changed")).await;
    let (admin, client) = (broker.admin(), broker.connected(json!({})).await);
    let native = broker.client("/mcp/b").connected(json!({})).await;
    let modern = Modern::of(&broker, "/mcp");
    let merged = json!({"uri": "ui://b+view"});
    let read = client.result("resources/read", merged.clone()).await;
    assert_eq!(read["contents"][0]["text"], "<p>one</p>");
    wait_state(&admin, "app", "ui://view", "pending").await;
    *html.lock() = "<p>two</p>".to_owned();
    let refused = [
        client.error("resources/read", merged.clone()).await,
        native.error("resources/read", json!({"uri": "ui://view"})).await,
        modern.error("resources/read", merged.clone()).await,
    ];
    for error in &refused {
        assert_eq!(kind(error), "tool_held", "{error}");
    }
    let changed = wait_state(&admin, "app", "ui://view", "changed").await;
    assert_eq!(changed["held"], true);
    // Without a tool that links it, a resource is not pinned.
    let other = client.result("resources/read", json!({"uri": "ui://b+other"})).await;
    assert_eq!(other["contents"][0]["text"], "<p>two</p>");
    assert!(pins(&admin).await.iter().all(|pin| pin["name"] != "ui://other"));
    let (status, answer) = approve(&admin, json!({"items": [item(&changed)]})).await;
    assert_eq!(status, 200, "{answer}");
    let read = client.result("resources/read", merged.clone()).await;
    assert_eq!(read["contents"][0]["text"], "<p>two</p>");
    *html.lock() = "<p>one</p>".to_owned();
    let error = client.error("resources/read", merged).await;
    assert_eq!(kind(&error), "tool_held", "the first one is not approved: {error}");
}

#[tokio::test]
async fn a_held_tool_is_held_under_its_own_name_and_in_a_searched_toolset() {
    let (backend, _html) = with_app().await;
    let broker = broker_with(&backend, json!("hold_all")).await;
    let admin = broker.admin();
    wait_state(&admin, "tool", "show", "pending").await;
    let set = json!({"published": true, "search": true, "include": {"tools": ["b/*"]}});
    assert_eq!(admin.put("/admin/v1/tenants/default/toolsets/set", &set).await.0, 201);
    let call = |name: &str, arguments: Value| json!({"name": name, "arguments": arguments});
    let asked = [
        ("/mcp", call("show", json!({}))),
        ("/mcp", call("b__show", json!({}))),
        ("/mcp/t/set", call("call_tool_destructive", json!({"name": "b__show"}))),
        ("/mcp/t/set", call("describe_tool", json!({"name": "b__show"}))),
    ];
    for (path, params) in &asked {
        let client = broker.client(path).connected(json!({})).await;
        let error = client.error("tools/call", params.clone()).await;
        assert_eq!(kind(&error), "tool_held", "{path} {params}: {error}");
        let error = Modern::of(&broker, path).error("tools/call", params.clone()).await;
        assert_eq!(kind(&error), "tool_held", "{path} {params}: {error}");
        let unknown = params.to_string().replace("show", "absent");
        let unknown: Value = serde_json::from_str(&unknown).unwrap();
        assert_eq!(kind(&client.error("tools/call", unknown).await), "tool_not_found");
    }
    let policy = json!({"default": "allow", "rules": [{"id": "r", "effect": "deny", "objects": {"tools": ["b/show"]}}]});
    assert_eq!(admin.put("/admin/v1/tenants/default/policy", &policy).await.0, 201);
    for (path, params) in asked {
        let client = broker.client(path).connected(json!({})).await;
        let error = client.error("tools/call", params.clone()).await;
        assert_eq!(kind(&error), "tool_not_found", "{path} {params}: {error}");
    }
}
