//! Lists that a backend changes for one session: heard, listed and used there, and nowhere else.

use std::{collections::HashSet, sync::Arc};

use parking_lot::Mutex;
use rules::limits::own_lists::LINK_LISTS_READ_MAX;
use serde_json::{Value, json};
use testkit::{
    AdminClient, FakeBackend, Gate, PipeBackend, Reply, TestClient, backend::tool, eventually,
};

use crate::{
    alone_with, builder, cluster::TAKEN_OVER_WITHIN, kind, restarts::written_behind, stdio, text_of,
};

/// Sessions at the backend that enabled its second toolset.
pub(crate) type Enabled = Arc<Mutex<HashSet<String>>>;

/// Starts a backend over Streamable HTTP whose tool `enable` registers `extra` for its session.
pub(crate) async fn with_toolsets() -> (FakeBackend, Enabled) {
    let (backend, enabled) = (FakeBackend::echo().await, Enabled::default());
    backend.sessions();
    let listed = enabled.clone();
    backend.on("tools/list", move |call| {
        let has_extra = call.session.as_ref().is_some_and(|id| listed.lock().contains(id));
        let names: &[&str] =
            if has_extra { &["echo", "enable", "extra"] } else { &["echo", "enable"] };
        let tools: Vec<Value> = names.iter().map(|name| tool(name)).collect();
        async move { Reply::Result(json!({"tools": tools})) }
    });
    let (all, asked) = (enabled.clone(), enabled.clone());
    backend.tool("enable", move |call| {
        if let Some(id) = &call.session {
            all.lock().insert(id.clone());
        }
        async move {
            call.notify("notifications/tools/list_changed", json!({})).await;
            Reply::text("enabled")
        }
    });
    backend.tool("extra", move |call| {
        let has_extra = call.session.as_ref().is_some_and(|id| asked.lock().contains(id));
        async move { Reply::text(if has_extra { "extra" } else { "unknown" }) }
    });
    (backend, enabled)
}

pub(crate) async fn lists(client: &TestClient, tool: &str, wanted: bool) {
    eventually("the list", || async {
        let names = client.tool_names().await;
        if names.iter().any(|name| name == tool) == wanted { Ok(()) } else { Err(names) }
    })
    .await;
}

async fn does_not_list(client: &TestClient, tool: &str) {
    let names = client.tool_names().await;
    assert!(!names.iter().any(|name| name == tool), "{names:?}");
}

#[tokio::test]
async fn tools_of_one_session_are_listed_and_called_only_there() {
    let (backend, _) = with_toolsets().await;
    let broker = alone_with(&backend).await;
    let (one, other) = (broker.connected(json!({})).await, broker.connected(json!({})).await);
    let native = broker.client("/mcp/b").connected(json!({})).await;
    let (mut stream, mut silent) = (one.open_get_stream().await, other.open_get_stream().await);
    other.call("b__echo", json!({})).await;
    one.call("b__enable", json!({})).await;
    let (_, received) = stream.next_message().await.unwrap();
    assert_eq!(received["method"], "notifications/tools/list_changed");
    lists(&one, "b__extra", true).await;
    assert_eq!(text_of(&one.call("b__extra", json!({})).await), "extra");
    does_not_list(&other, "b__extra").await;
    does_not_list(&native, "extra").await;
    let missing = other.error("tools/call", json!({"name": "b__extra", "arguments": {}})).await;
    assert_eq!(kind(&missing), "tool_not_found");
    // The other client heard nothing of it: the next message is about a change for all.
    native.call("enable", json!({})).await;
    lists(&native, "extra", true).await;
    backend.list("prompts", vec![json!({"name": "new"})]);
    backend.notify("notifications/prompts/list_changed", json!({})).await;
    let (_, received) = silent.next_message().await.unwrap();
    assert_eq!(received["method"], "notifications/prompts/list_changed");
}

/// A tool whose argument `n` has this type.
fn typed(name: &str, of: &str) -> Value {
    let schema = json!({"type": "object", "required": ["n"], "properties": {"n": {"type": of}}});
    json!({"name": name, "inputSchema": schema})
}

#[tokio::test]
async fn arguments_are_validated_by_the_list_that_the_session_sees() {
    let (backend, enabled) = with_toolsets().await;
    backend.on("tools/list", move |call| {
        let is_own = call.session.as_ref().is_some_and(|id| enabled.lock().contains(id));
        let mut tools =
            vec![typed("echo", if is_own { "integer" } else { "string" }), tool("enable")];
        tools.extend(is_own.then(|| typed("extra", "integer")));
        async move { Reply::Result(json!({"tools": tools})) }
    });
    let mut spec = backend.spec();
    spec["tools"] = json!({"validate_arguments": true, "validate_timeout": "10s"});
    let broker = builder().single_process().backend("default", "b", spec).start().await;
    let (one, other) = (broker.connected(json!({})).await, broker.connected(json!({})).await);
    one.call("b__enable", json!({})).await;
    lists(&one, "b__extra", true).await;
    // The second round uses the compiled schemas.
    for _ in 0..2 {
        for (client, name, n, is_valid) in [
            (&one, "b__extra", json!(1), true),
            (&one, "b__extra", json!("a"), false),
            (&one, "b__echo", json!(1), true),
            (&one, "b__echo", json!("a"), false),
            (&other, "b__echo", json!("a"), true),
            (&other, "b__echo", json!(1), false),
        ] {
            let params = json!({"name": name, "arguments": {"n": n}});
            let answer = client.request("tools/call", params).await;
            match is_valid {
                true => assert!(answer.get("result").is_some(), "{name} {n}: {answer}"),
                false => assert_eq!(kind(&answer["error"]), "arguments_invalid", "{name} {n}"),
            }
        }
    }
    assert_eq!(backend.count(|seen| seen.calls("extra")), 2);
    assert_eq!(backend.count(|seen| seen.calls("echo")), 4);
}

#[tokio::test]
async fn lists_of_one_session_end_when_every_session_has_them() {
    let (backend, enabled) = with_toolsets().await;
    let broker = alone_with(&backend).await;
    let (one, other) = (broker.connected(json!({})).await, broker.connected(json!({})).await);
    one.call("b__enable", json!({})).await;
    lists(&one, "b__extra", true).await;
    let live = backend.live_sessions();
    enabled.lock().extend(live);
    backend.notify("notifications/tools/list_changed", json!({})).await;
    lists(&other, "b__extra", true).await;
    lists(&one, "b__extra", true).await;
    enabled.lock().clear();
    backend.notify("notifications/tools/list_changed", json!({})).await;
    lists(&other, "b__extra", false).await;
    lists(&one, "b__extra", false).await;
}

#[tokio::test]
async fn the_lists_of_many_sessions_are_read_a_few_at_a_time() {
    const SESSIONS: usize = 2 * LINK_LISTS_READ_MAX;
    let (backend, _) = with_toolsets().await;
    let broker = alone_with(&backend).await;
    let mut clients = Vec::new();
    for _ in 0..SESSIONS {
        let client = broker.connected(json!({})).await;
        client.call("b__echo", json!({})).await;
        clients.push(client);
    }
    backend.wait_get_streams(SESSIONS + 1).await;
    let (gate, read) = (Gate::new(), backend.count(|seen| seen.is("tools/list")));
    let tools = json!({"tools": [tool("echo"), tool("enable")]});
    backend.on("tools/list", gate.before(Reply::Result(tools)));
    backend.notify("notifications/tools/list_changed", json!({})).await;
    // The catalog reads its list too.
    let first = read + LINK_LISTS_READ_MAX + 1;
    backend.wait_count("the first lists", first, |seen| seen.is("tools/list")).await;
    for client in &clients {
        client.call("b__echo", json!({})).await;
    }
    assert_eq!(backend.count(|seen| seen.is("tools/list")), first, "the other links wait");
    gate.open();
    let all = read + SESSIONS + 1;
    backend.wait_count("all lists", all, |seen| seen.is("tools/list")).await;
}

#[tokio::test]
async fn the_access_policy_hides_a_tool_of_one_session_too() {
    let (backend, _) = with_toolsets().await;
    let broker = alone_with(&backend).await;
    let rule = json!({"id": "no-extra", "effect": "deny", "objects": {"tools": ["b/extra"]}});
    let policy = json!({"default": "allow", "rules": [rule]});
    let (status, answer) = broker.admin().put("/admin/v1/tenants/default/policy", &policy).await;
    assert!([200, 201].contains(&status), "{answer}");
    let client = broker.connected(json!({})).await;
    client.call("b__enable", json!({})).await;
    backend.wait_count("the list of the session", 2, |seen| seen.is("tools/list")).await;
    let hidden = client.error("tools/call", json!({"name": "b__extra", "arguments": {}})).await;
    assert_eq!(kind(&hidden), "tool_not_found");
    does_not_list(&client, "b__extra").await;
}

#[tokio::test]
async fn a_stream_with_missed_updates_opens_again_in_a_session_with_own_lists() {
    let (backend, _) = with_toolsets().await;
    backend.list("resources", vec![json!({"uri": "test://one", "name": "one"})]);
    backend.capabilities(json!({"tools": {"listChanged": true}, "resources": {"subscribe": true}}));
    backend.on("resources/subscribe", |_| async { Reply::Result(json!({})) });
    backend.tool("echo", |call| async move {
        call.notify("notifications/resources/updated", json!({"uri": "test://one"})).await;
        Reply::text("touched")
    });
    let broker = alone_with(&backend).await;
    let rule = json!({"id": "d", "effect": "deny", "objects": {"tools": ["b/nothing"]}});
    let policy = json!({"rules": [rule]});
    let (status, answer) = broker.admin().put("/admin/v1/tenants/default/policy", &policy).await;
    assert_eq!(status, 201, "{answer}");
    let client = broker.connected(json!({})).await;
    client.result("resources/subscribe", json!({"uri": "b+test://one"})).await;
    client.call("b__enable", json!({})).await;
    lists(&client, "b__extra", true).await;
    // The client has no stream yet, so the update waits for one.
    client.call("b__echo", json!({})).await;
    let mut stream = client.open_get_stream().await;
    let updated = |message: &Value| message["method"] == "notifications/resources/updated";
    assert_eq!(stream.find(updated).await["params"]["uri"], "b+test://one");
    assert!(client.tool_names().await.contains(&"b__extra".to_owned()));
}

/// A child process of one session shows that session its tools, until it ends.
#[tokio::test]
async fn a_child_of_one_session_changes_only_the_lists_of_this_session() {
    let broker = builder().single_process().backend("default", "s", stdio().spec()).start().await;
    let roots = json!({"roots": {}});
    let (one, other) = (broker.connected(roots.clone()).await, broker.connected(roots).await);
    other.call("s__echo", json!({})).await;
    one.call("s__add_tool", json!({})).await;
    lists(&one, "s__extra", true).await;
    does_not_list(&other, "s__extra").await;
    one.request("tools/call", json!({"name": "s__exit", "arguments": {}})).await;
    lists(&one, "s__extra", false).await;
}

/// Sessions that share a connection see the same lists, because the backend cannot tell them apart.
#[tokio::test]
async fn sessions_that_share_a_connection_share_its_lists() {
    let backend = PipeBackend::tcp(&stdio()).await;
    let broker = builder().single_process().backend("default", "s", backend.spec()).start().await;
    let (one, other) = (broker.connected(json!({})).await, broker.connected(json!({})).await);
    other.call("s__echo", json!({})).await;
    one.call("s__add_tool", json!({})).await;
    lists(&one, "s__extra", true).await;
    lists(&other, "s__extra", true).await;
    let later = broker.connected(json!({})).await;
    later.call("s__echo", json!({})).await; // from now on it uses the connection too
    lists(&later, "s__extra", true).await;
    let apart = broker.connected(json!({"roots": {}})).await;
    apart.call("s__echo", json!({})).await;
    does_not_list(&apart, "s__extra").await;
    broker.admin().delete(&AdminClient::backend_path("default", "s")).await;
    lists(&one, "s__extra", false).await;
}

/// The session at the backend goes on under its next owner, which is another replica, and so do the
/// lists that it alone has.
#[tokio::test]
async fn lists_of_one_session_follow_it_to_another_replica() {
    for crashes in [false, true] {
        let (backend, _) = with_toolsets().await;
        let mut cluster =
            builder().backend("default", "b", backend.spec()).cluster(2).start().await;
        let connected = || async {
            let client = cluster.client_of(0, "/mcp").connected(json!({})).await;
            client.call("b__echo", json!({})).await;
            client
        };
        let (one, other) = (connected().await, connected().await);
        one.call("b__enable", json!({})).await;
        lists(&one, "b__extra", true).await;
        written_behind(&cluster.admin(0)).await;
        match crashes {
            true => cluster.kill(0).await,
            false => assert!(cluster.terminate(0).await),
        }
        let (one, other) = (cluster.at(1, &one), cluster.at(1, &other));
        eventually("the session at the other replica", || async {
            let answer = one.attempt("ping", json!({}), TAKEN_OVER_WITHIN).await;
            if answer.kind() == "result" { Ok(()) } else { Err(answer) }
        })
        .await;
        lists(&one, "b__extra", true).await;
        assert_eq!(text_of(&one.call("b__extra", json!({})).await), "extra", "{crashes}");
        does_not_list(&other, "b__extra").await;
        let handshakes = backend.recorded_of("initialize");
        assert_eq!(handshakes.len(), 4, "each replica reads lists, and each session has one");
    }
}

/// Many sessions that are taken over at once wait for each other's lists.
#[tokio::test]
async fn lists_of_one_session_that_are_late_after_a_takeover_are_shown_later() {
    let (backend, enabled) = with_toolsets().await;
    let builder = builder().config(json!({"timeouts": {"control": "1m"}}));
    let mut cluster = builder.backend("default", "b", backend.spec()).cluster(2).start().await;
    let client = cluster.client_of(0, "/mcp").connected(json!({})).await;
    client.call("b__enable", json!({})).await;
    lists(&client, "b__extra", true).await;
    written_behind(&cluster.admin(0)).await;
    let gate = Gate::new();
    let held = gate.clone();
    backend.on("tools/list", move |call| {
        let has_extra = call.session.as_ref().is_some_and(|id| enabled.lock().contains(id));
        let held = held.clone();
        async move {
            if has_extra {
                held.passed().await;
            }
            let names = if has_extra { vec!["echo", "extra"] } else { vec!["echo"] };
            let tools: Vec<Value> = names.into_iter().map(tool).collect();
            Reply::Result(json!({"tools": tools}))
        }
    });
    cluster.kill(0).await;
    let client = cluster.at(1, &client);
    eventually("the session at the other replica", || async {
        let answer = client.attempt("ping", json!({}), TAKEN_OVER_WITHIN).await;
        if answer.kind() == "result" { Ok(()) } else { Err(answer) }
    })
    .await;
    does_not_list(&client, "b__extra").await;
    gate.open();
    lists(&client, "b__extra", true).await;
}
