//! Lists of backends that offer something only to clients with a capability.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::{BrokerBuilder, FakeBackend, Gate, Reply, TestClient, backend::tool, eventually};

use crate::{builder, stateless::Modern, stdio, text_of};

/// Returns a backend that offers a tool to clients with roots, sampling or elicitation, one for each,
/// and one to clients with the latter two. A call of a tool that its client is not offered answers
/// with an error of the backend.
async fn picky() -> FakeBackend {
    let backend = FakeBackend::start().await;
    backend.sessions();
    let declared: Arc<Mutex<Vec<Value>>> = Arc::default();
    let known = declared.clone();
    backend.on("initialize", move |call| {
        known.lock().push(call.params()["capabilities"].clone());
        async {
            Reply::Result(json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": true}},
                "serverInfo": {"name": "picky", "version": "1"}}))
        }
    });
    let offered = move |session: &Option<String>| {
        let id = session.as_deref().unwrap_or_default();
        let number: usize = id.trim_start_matches("fake-session-").parse().unwrap();
        let capabilities = declared.lock()[number - 1].clone();
        let has = |name: &str| capabilities.get(name).is_some();
        let all = [
            ("plain", true),
            ("roots", has("roots")),
            ("sampling", has("sampling")),
            ("elicitation", has("elicitation")),
            ("both", has("sampling") && has("elicitation")),
        ];
        all.into_iter().filter(|(_, offered)| *offered).map(|(name, _)| name).collect::<Vec<_>>()
    };
    let of_calls = offered.clone();
    backend.on("tools/list", move |call| {
        let tools: Vec<Value> = offered(&call.session).into_iter().map(tool).collect();
        async move { Reply::Result(json!({"tools": tools})) }
    });
    backend.on("tools/call", move |call| {
        let name = call.params()["name"].as_str().unwrap_or_default().to_owned();
        let is_offered = of_calls(&call.session).contains(&name.as_str());
        async move {
            match is_offered {
                true => Reply::text(&name),
                false => Reply::error(-32602, "the fake backend does not offer it"),
            }
        }
    });
    backend
}

fn probing() -> BrokerBuilder {
    builder().single_process().config(json!({"compat": {"capability_probe": true}}))
}

fn prefixed(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| format!("b__{name}")).collect()
}

async fn names(client: &TestClient) -> Vec<String> {
    client.tool_names().await
}

#[tokio::test]
async fn a_probe_ends_with_the_removal_of_its_backend() {
    let (backend, gate) = (FakeBackend::start().await, Gate::new());
    backend.sessions();
    let (lists, hold) = (AtomicUsize::new(0), gate.clone());
    backend.on("tools/list", move |_| {
        let is_probe = lists.fetch_add(1, Ordering::Relaxed) > 0;
        let hold = hold.clone();
        async move {
            if is_probe {
                hold.passed().await;
            }
            Reply::Result(json!({"tools": [tool("one")]}))
        }
    });
    let broker = probing().start().await;
    let admin = broker.admin();
    admin.put_backend("default", "b", &backend.spec()).await;
    backend.wait_count("the list of the probe", 2, |seen| seen.is("tools/list")).await;
    admin.delete("/admin/v1/tenants/default/backends/b").await;
    backend.wait_live_sessions(|count| count == 0).await;
}

#[tokio::test]
async fn a_session_lists_only_tools_that_its_client_supports() {
    let backend = picky().await;
    let broker = probing().backend("default", "b", backend.spec()).start().await;
    let all: &[&str] = &["plain", "roots", "sampling", "elicitation", "both"];
    for (capabilities, expected) in [
        (json!({}), &["plain"] as &[&str]),
        (json!({"roots": {}}), &["plain", "roots"]),
        (json!({"elicitation": {"url": {}}}), &["plain", "elicitation"]),
        (json!({"sampling": {}, "elicitation": {}}), &["plain", "sampling", "elicitation", "both"]),
        (json!({"roots": {}, "sampling": {}, "elicitation": {}}), all),
    ] {
        let client = broker.connected(capabilities.clone()).await;
        assert_eq!(names(&client).await, prefixed(expected), "{capabilities}");
        let native = broker.client("/mcp/b").connected(capabilities.clone()).await;
        assert_eq!(names(&native).await, expected, "{capabilities}");
        // A call of the tool has the answer of the backend.
        let answer =
            client.request("tools/call", json!({"name": "b__both", "arguments": {}})).await;
        match expected.contains(&"both") {
            true => assert_eq!(text_of(&answer["result"]), "both"),
            false => assert_eq!(answer["error"]["message"], "the fake backend does not offer it"),
        }
    }
    // Lists of 2026-07-28 do not depend on the client.
    let listed = Modern::of(&broker, "/mcp").result("tools/list", json!({})).await;
    assert_eq!(listed["tools"].as_array().unwrap().len(), all.len());
    // The connections of the probes are closed again: one reads the lists.
    assert_eq!(broker.admin().backend("default", "b").await["links"], 6);
    assert_eq!(backend.recorded_of("initialize").len(), 1 + 7 + 5);
}

/// One further connection is enough for a backend that offers everything to everyone, and none is
/// opened for lists that are known.
#[tokio::test]
async fn a_backend_with_one_list_for_all_clients_is_probed_once() {
    let backend = FakeBackend::echo().await;
    let broker = probing().backend("default", "b", backend.spec()).start().await;
    let client = broker.connected(json!({})).await;
    assert_eq!(names(&client).await, ["b__echo"]);
    for round in 2..4 {
        backend.notify("notifications/tools/list_changed", json!({})).await;
        backend.wait_count("the list is read again", round + 1, |seen| seen.is("tools/list")).await;
    }
    let first = &backend.recorded_of("initialize")[1].message["params"]["capabilities"];
    for hidden in ["roots", "sampling", "elicitation"] {
        assert_eq!(first.get(hidden), None, "{first}");
    }
    let sessions = backend.recorded_of("initialize");
    assert_eq!(sessions.len(), 2, "the link of the lists, and one probe");
}

/// A backend that refuses a second connection, or never answers on it, works as without probes.
#[tokio::test]
async fn a_failed_probe_changes_nothing() {
    let backend = picky().await;
    let refused = Arc::new(Mutex::new(0));
    let seen = refused.clone();
    backend.on("initialize", move |_| {
        let number = {
            let mut count = seen.lock();
            *count += 1;
            *count
        };
        async move {
            if number == 2 {
                return Reply::error(-32603, "one connection is enough");
            }
            Reply::Result(json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": true}},
                "serverInfo": {"name": "picky", "version": "1"}}))
        }
    });
    backend.list("tools", vec![tool("plain")]);
    backend.on("tools/list", |_| async { Reply::Result(json!({"tools": [tool("plain")]})) });
    let broker = probing().backend("default", "b", backend.spec()).start().await;
    let client = broker.connected(json!({})).await;
    assert_eq!(names(&client).await, ["b__plain"]);
    let shown = broker.admin().backend("default", "b").await;
    assert_eq!((&shown["state"], shown.get("last_error")), (&json!("ready"), None), "{shown}");
    assert_eq!(*refused.lock(), 2);
}

/// A child process is started for the probe and ends with it.
#[tokio::test]
async fn the_process_of_a_probe_ends() {
    let folder = tempfile::tempdir().unwrap();
    let starts = folder.path().join("starts");
    let script = stdio().marker("capability-probe").record_starts(&starts);
    let broker = probing().backend("default", "s", script.spec()).start().await;
    let client = broker.connected(json!({})).await;
    assert!(names(&client).await.contains(&"s__echo".to_owned()));
    let started = std::fs::read_to_string(&starts).unwrap().lines().count();
    assert_eq!(started, 2, "one reads the lists, and one is the probe");
    eventually("the end of the probe's process", || async {
        let running = testkit::stdio::processes_with("capability-probe");
        if running.len() == 1 { Ok(()) } else { Err(running) }
    })
    .await;
}
