//! What each mode lists and holds: on both endpoints, for every kind of object, on every wire, and
//! for lists of one session.

use serde_json::{Value, json};
use testkit::{Authority, FakeBackend, Reply, TestClient, backend::tool};

use super::{
    approve, approve_all, backend_of_each_kind, broker_with, described, item, pin, pinned, pins,
    refusal, refused_call, show_tools, wait_held, wait_state,
};
use crate::{
    alone_with, builder, kind,
    session_lists::{lists, with_toolsets},
    stateless::Modern,
    tasks::{start, wait_status},
    text_of,
    wires::matrix::{Doors, FRONTS, client, listening_everywhere},
};

/// An upgrade changes nothing: without `pins` in the settings, everything is listed and called.
#[tokio::test]
async fn by_default_changes_are_observed_and_nothing_is_held() {
    let backend = backend_of_each_kind().await;
    let broker = alone_with(&backend).await;
    let (admin, client) = (broker.admin(), broker.connected(json!({})).await);
    let all = pins(&admin).await;
    assert_eq!(all.len(), 6, "{all:?}");
    assert!(all.iter().all(|pin| pin["state"] == "pending" && pin["held"] == false), "{all:?}");
    show_tools(&backend, vec![described("read", "Reads, and sends mail."), tool("write")]).await;
    let changed = wait_state(&admin, "tool", "read", "changed").await;
    assert_eq!(changed["held"], false);
    client.wait_tools(&["b__read", "b__write"]).await;
    assert_eq!(text_of(&client.call("b__read", json!({})).await), "read");
    broker.wait_for_log("a backend changed a pinned definition").await;
    admin.wait_metric("mcp_catalog_pins", &[("state", "changed")], |count| count == 2.0).await;
    show_tools(&backend, vec![described("read", "Reads.")]).await;
    wait_state(&admin, "tool", "read", "pending").await;
    let gone = wait_state(&admin, "tool", "write", "gone").await;
    assert_eq!(gone["held"], false);
}

#[tokio::test]
async fn pins_that_are_off_store_nothing() {
    let backend = backend_of_each_kind().await;
    let broker = broker_with(&backend, json!("off")).await;
    assert_eq!(pins(&broker.admin()).await, Vec::<Value>::new());
    broker.connected(json!({})).await.wait_tools(&["b__read", "b__write"]).await;
}

/// MCP 2026-07-28 removed `execution`, so a server of both eras lists it in sessions only.
#[tokio::test]
async fn a_tool_stays_approved_when_its_backend_is_used_in_sessions_too() {
    let backend = FakeBackend::start().await;
    backend.on("server/discover", |_| async {
        Reply::Result(json!({
            "resultType": "complete", "supportedVersions": ["2026-07-28", "2025-11-25"],
            "capabilities": {"tools": {}}, "ttlMs": 0, "cacheScope": "private",
            "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "fake", "version": "1"}},
        }))
    });
    backend.on("tools/list", |call| async move {
        let version = &call.params()["_meta"]["io.modelcontextprotocol/protocolVersion"];
        let mut read = described("read", "Reads.");
        if version.is_string() {
            return Reply::Result(json!({
                "resultType": "complete", "tools": [read], "ttlMs": 60_000, "cacheScope": "public",
            }));
        }
        read["execution"] = json!({"taskSupport": "forbidden"});
        // It shows when the broker has read the list of sessions.
        Reply::Result(json!({"tools": [read, described("extra", "More.")]}))
    });
    let broker = broker_with(&backend, json!("hold_changed")).await;
    let admin = broker.admin();
    let listed = Modern::of(&broker, "/mcp").result("tools/list", json!({})).await;
    assert_eq!(listed["tools"].as_array().unwrap().len(), 1, "{listed}");
    let before = pin(&admin, "tool", "read").await.unwrap();
    let client = broker.connected(json!({})).await;
    wait_state(&admin, "tool", "extra", "pending").await;
    assert_eq!(pin(&admin, "tool", "read").await.unwrap()["state"], before["state"]);
    client.wait_tools(&["b__read", "b__extra"]).await;
}

#[tokio::test]
async fn a_changed_tool_is_neither_listed_nor_called_until_it_is_approved() {
    let backend = backend_of_each_kind().await;
    let broker = broker_with(&backend, json!("hold_changed")).await;
    let (admin, client) = (broker.admin(), broker.connected(json!({})).await);
    let native = broker.client("/mcp/b").connected(json!({})).await;
    let mut stream = client.open_get_stream().await;
    client.wait_tools(&["b__read", "b__write"]).await;
    let first = pin(&admin, "tool", "read").await.unwrap();
    show_tools(&backend, vec![described("read", "Reads secrets."), described("write", "Writes.")])
        .await;
    client.wait_tools(&["b__write"]).await;
    native.wait_tools(&["write"]).await;
    let received = stream.find(|message| message["method"].as_str().is_some()).await;
    assert_eq!(received["method"], "notifications/tools/list_changed");
    let before = backend.recorded_of("tools/call").len();
    assert_eq!(refused_call(&client, "b__read").await, "tool_held");
    assert_eq!(refused_call(&native, "read").await, "tool_held");
    assert_eq!(refused_call(&native, "unlisted").await, "tool_not_found");
    assert_eq!(backend.recorded_of("tools/call").len(), before, "the backend got nothing");
    assert_eq!(text_of(&client.call("b__write", json!({})).await), "write");
    // A second sighting of the change approves nothing.
    show_tools(&backend, vec![described("write", "Writes."), described("read", "Reads secrets.")])
        .await;
    client.wait_tools(&["b__write"]).await;
    // The definition that was there first is back.
    show_tools(&backend, vec![described("read", "Reads.")]).await;
    client.wait_tools(&["b__read"]).await;
    show_tools(&backend, vec![described("read", "Reads secrets.")]).await;
    let changed = wait_state(&admin, "tool", "read", "changed").await;
    assert_eq!(changed["first"], first["hash"]);
    let (status, answer) = approve(&admin, json!({"items": [item(&changed)]})).await;
    assert_eq!(status, 200, "{answer}");
    client.wait_tools(&["b__read"]).await;
    assert_eq!(text_of(&native.call("read", json!({})).await), "read");
}

/// Uses of everything that [`backend_of_each_kind`] lists, by the endpoint of one backend.
fn uses() -> [(&'static str, Value); 7] {
    let complete =
        |reference: Value| json!({"ref": reference, "argument": {"name": "x", "value": "a"}});
    [
        ("tools/call", json!({"name": "read", "arguments": {}})),
        ("prompts/get", json!({"name": "ask"})),
        ("resources/read", json!({"uri": "file:///a"})),
        ("resources/read", json!({"uri": "db://table"})),
        ("resources/subscribe", json!({"uri": "file:///a"})),
        ("completion/complete", complete(json!({"type": "ref/prompt", "name": "ask"}))),
        ("completion/complete", complete(json!({"type": "ref/resource", "uri": "db://{x}"}))),
    ]
}

/// Returns the same use on the aggregated endpoint.
fn exposed(mut params: Value) -> Value {
    for pointer in ["/name", "/ref/name"] {
        if let Some(Value::String(name)) = params.pointer_mut(pointer) {
            *name = format!("b__{name}");
        }
    }
    for pointer in ["/uri", "/ref/uri"] {
        if let Some(Value::String(uri)) = params.pointer_mut(pointer) {
            *uri = format!("b+{uri}");
        }
    }
    params
}

async fn listed(client: &TestClient) -> usize {
    let mut count = 0;
    for (method, member) in [
        ("tools/list", "tools"),
        ("prompts/list", "prompts"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
    ] {
        count += client.list_all(method, member).await.len();
    }
    count
}

#[tokio::test]
async fn objects_of_every_kind_are_held_until_they_are_approved() {
    let backend = backend_of_each_kind().await;
    let broker = broker_with(&backend, json!("hold_all")).await;
    let admin = broker.admin();
    let (client, native) =
        (broker.connected(json!({})).await, broker.client("/mcp/b").connected(json!({})).await);
    for client in [&client, &native] {
        assert_eq!(listed(client).await, 0);
    }
    for (method, params) in uses() {
        assert_eq!(
            refusal(&native, method, params.clone()).await,
            "tool_held",
            "{method} {params}"
        );
        let params = exposed(params);
        assert_eq!(
            refusal(&client, method, params.clone()).await,
            "tool_held",
            "{method} {params}"
        );
    }
    let fresh = broker.client("/mcp/b");
    let hello = fresh.initialize_only("2025-11-25", json!({})).await;
    assert_eq!(hello.get("instructions"), None, "{hello}");
    for asked in ["tools/call", "prompts/get", "resources/read", "completion/complete"] {
        assert_eq!(backend.recorded_of(asked).len(), 0, "{asked}");
    }
    approve_all(&admin).await;
    assert!(pins(&admin).await.iter().all(|pin| pin["state"] == "trusted"));
    for client in [&client, &native] {
        assert_eq!(listed(client).await, 5);
    }
    for (method, params) in uses() {
        native.result(method, params.clone()).await;
        client.result(method, exposed(params)).await;
    }
    let hello = broker.client("/mcp/b").initialize_only("2025-11-25", json!({})).await;
    assert_eq!(hello["instructions"], "Be kind.");
    // Annotations are a part of the definition.
    let mut harmless = described("read", "Reads.");
    harmless["annotations"] = json!({"readOnlyHint": true});
    show_tools(&backend, vec![harmless]).await;
    wait_state(&admin, "tool", "read", "changed").await;
    assert_eq!(refused_call(&client, "b__read").await, "tool_held");
}

#[tokio::test]
async fn a_held_tool_is_refused_on_every_wire_and_to_stateless_clients() {
    let authority = Authority::new();
    let backend = backend_of_each_kind().await;
    let broker = listening_everywhere(&authority)
        .backend("default", "b", pinned(&backend, json!("hold_all")))
        .start()
        .await;
    let read = pin(&broker.admin(), "tool", "write").await.unwrap();
    approve(&broker.admin(), json!({"items": [item(&read)]})).await;
    for (front, _) in FRONTS {
        let client = client(front, &broker, Doors::of(&broker), &authority).await;
        let tools = client.client.request("tools/list", json!({})).await;
        let tools = tools["result"]["tools"].as_array().unwrap().clone();
        let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["b__write"], "{front}");
        let asked = json!({"name": "b__read", "arguments": {}});
        let answer = client.client.request("tools/call", asked).await;
        assert_eq!(answer["error"]["data"]["kind"], "tool_held", "{front}: {answer}");
        assert_eq!(answer["error"]["code"], 1005, "{front}");
    }
    for (path, name) in [("/mcp", "b__read"), ("/mcp/b", "read")] {
        let stateless = Modern::of(&broker, path);
        let tools = stateless.result("tools/list", json!({})).await;
        assert!(!tools.to_string().contains(name), "{tools}");
        let asked = json!({"name": name, "arguments": {}});
        assert_eq!(kind(&stateless.error("tools/call", asked).await), "tool_held");
    }
    assert_eq!(backend.recorded_of("tools/call").len(), 0);
}

/// Clients see the first of several tools with one name. The backend may execute another one.
#[tokio::test]
async fn a_tool_with_an_unapproved_twin_is_held() {
    let backend = backend_of_each_kind().await;
    let broker = broker_with(&backend, json!("hold_changed")).await;
    let client = broker.connected(json!({})).await;
    client.wait_tools(&["b__read", "b__write"]).await;
    let reads = || described("read", "Reads.");
    let twin = described("read", "Reads, and sends mail.");
    show_tools(&backend, vec![reads(), twin, described("write", "Writes.")]).await;
    wait_held(&client, "b__read").await;
    client.wait_tools(&["b__write"]).await;
    broker.wait_for_log("an entry is left out of the catalog").await;
    show_tools(&backend, vec![reads(), reads(), described("write", "Writes.")]).await;
    client.wait_tools(&["b__read", "b__write"]).await;
    assert_eq!(text_of(&client.call("b__read", json!({})).await), "read");
}

/// What a backend shows to one session alone is held to the same pins.
#[tokio::test]
async fn a_tool_of_one_session_is_held_until_it_is_approved() {
    let (backend, _) = with_toolsets().await;
    let broker = broker_with(&backend, json!("hold_all")).await;
    let admin = broker.admin();
    approve_all(&admin).await;
    let (one, other) = (broker.connected(json!({})).await, broker.connected(json!({})).await);
    one.call("b__enable", json!({})).await;
    let extra = wait_state(&admin, "tool", "extra", "pending").await;
    assert_eq!(extra["held"], true);
    one.wait_tools(&["b__echo", "b__enable"]).await;
    wait_held(&one, "b__extra").await;
    assert_eq!(refused_call(&other, "b__extra").await, "tool_not_found");
    let (status, answer) = approve(&admin, json!({"items": [item(&extra)]})).await;
    assert_eq!(status, 200, "{answer}");
    lists(&one, "b__extra", true).await;
    assert_eq!(text_of(&one.call("b__extra", json!({})).await), "extra");
    other.wait_tools(&["b__echo", "b__enable"]).await;
}

#[tokio::test]
async fn a_task_that_runs_finishes_after_its_tool_is_held() {
    let backend = FakeBackend::start().await;
    let gate = testkit::Gate::new();
    backend.tool("job", gate.before(Reply::text("done")));
    backend.list("tools", vec![described("job", "Works.")]);
    let broker = broker_with(&backend, json!("hold_changed")).await;
    let client = broker.connected(json!({})).await;
    let task = start(&client, "b__job").await;
    backend.wait_for("the call", |seen| seen.calls("job")).await;
    show_tools(&backend, vec![described("job", "Works, and more.")]).await;
    wait_state(&broker.admin(), "tool", "job", "changed").await;
    assert_eq!(refused_call(&client, "b__job").await, "tool_held");
    let again = client.error("tools/call", json!({"name": "b__job", "arguments": {}, "task": {}}));
    assert_eq!(kind(&again.await), "tool_held");
    gate.open();
    wait_status(&client, &task, "completed").await;
    let outcome = client.result("tasks/result", json!({"taskId": task})).await;
    assert_eq!(text_of(&outcome), "done");
}

#[tokio::test]
async fn changes_of_ignored_members_are_not_held() {
    let backend = backend_of_each_kind().await;
    let rules = json!({"mode": "hold_changed", "ignore": {"tool/read": ["/description"]}});
    let broker = broker_with(&backend, rules).await;
    let client = broker.connected(json!({})).await;
    show_tools(&backend, vec![described("read", "It is noon."), described("write", "Changed.")])
        .await;
    wait_state(&broker.admin(), "tool", "write", "changed").await;
    client.wait_tools(&["b__read"]).await;
    let tools = client.list_all("tools/list", "tools").await;
    assert_eq!(tools[0]["description"], "It is noon.", "what clients get is not cut");
}

/// A stricter mode applies at once to what was listed before.
#[tokio::test]
async fn another_mode_applies_to_the_same_pins() {
    let backend = backend_of_each_kind().await;
    let broker = builder().single_process().start().await;
    let admin = broker.admin();
    for (mode, names) in [
        ("off", &["b__read", "b__write"][..]),
        ("observe", &["b__read", "b__write"]),
        ("hold_changed", &["b__read", "b__write"]),
        ("hold_all", &[]),
        ("observe", &["b__read", "b__write"]),
    ] {
        admin.put_ready_backend("default", "b", &pinned(&backend, json!(mode))).await;
        broker.connected(json!({})).await.wait_tools(names).await;
    }
}
