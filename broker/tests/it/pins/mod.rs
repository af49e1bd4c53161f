//! Pins of definitions: what no operator approved is not listed and not called while it is held, on
//! every wire and replica, and through crashes.

mod contents;
mod decisions;
mod findings;
mod modes;
mod own_lists;
mod replicas;
mod shell;

use serde_json::{Value, json};
use testkit::{AdminClient, FakeBackend, Reply, TestBroker, TestClient, backend::tool, eventually};

use crate::builder;

const PINS: &str = "/admin/v1/tenants/default/backends/b/pins";

/// Returns a tool with a description.
fn described(name: &str, description: &str) -> Value {
    let mut made = tool(name);
    made["description"] = description.into();
    made
}

fn pinned(backend: &FakeBackend, pins: Value) -> Value {
    let mut spec = backend.spec();
    spec["pins"] = pins;
    spec
}

/// Starts a backend with one object of each kind. Its tools answer with their name.
async fn backend_of_each_kind() -> FakeBackend {
    let backend = FakeBackend::start().await;
    for name in ["read", "write"] {
        backend.tool(name, move |_| async move { Reply::text(name) });
    }
    backend.list("tools", vec![described("read", "Reads."), described("write", "Writes.")]);
    backend.list("prompts", vec![json!({"name": "ask", "description": "Asks."})]);
    backend.list("resources", vec![json!({"uri": "file:///a", "name": "a"})]);
    backend.list("resourceTemplates", vec![json!({"uriTemplate": "db://{x}", "name": "db"})]);
    for method in ["resources/read", "resources/subscribe"] {
        backend.on(method, |_| async { Reply::Result(json!({"contents": []})) });
    }
    backend.on("prompts/get", |_| async { Reply::Result(json!({"messages": []})) });
    backend.on("completion/complete", |_| async {
        Reply::Result(json!({"completion": {"values": []}}))
    });
    backend.server_info(json!({"name": "fake", "version": "1"}), Some("Be kind."));
    backend
}

/// Starts a broker, always as one process, with this backend under the name `b`.
async fn broker_with(backend: &FakeBackend, pins: Value) -> TestBroker {
    let spec = pinned(backend, pins);
    builder().single_process().backend("default", "b", spec).start().await
}

/// Shows other tools, and reports it.
async fn show_tools(backend: &FakeBackend, tools: Vec<Value>) {
    backend.wait_get_streams(1).await;
    backend.list("tools", tools);
    backend.notify("notifications/tools/list_changed", json!({})).await;
}

async fn pins(admin: &AdminClient) -> Vec<Value> {
    let (status, answer) = admin.get(PINS).await;
    assert_eq!(status, 200, "{answer}");
    answer["pins"].as_array().unwrap().clone()
}

async fn pin(admin: &AdminClient, kind: &str, name: &str) -> Option<Value> {
    let is_wanted = |pin: &Value| pin["kind"] == kind && pin["name"] == name;
    pins(admin).await.into_iter().find(is_wanted)
}

/// Waits until a pin is in a state. Returns it.
async fn wait_state(admin: &AdminClient, kind: &str, name: &str, state: &str) -> Value {
    eventually("the state of a pin", || async {
        match pin(admin, kind, name).await {
            Some(pin) if pin["state"] == state => Ok(pin),
            other => Err(other),
        }
    })
    .await
}

fn item(pin: &Value) -> Value {
    json!({"kind": pin["kind"], "name": pin["name"], "hash": pin["hash"]})
}

async fn approve(admin: &AdminClient, body: Value) -> (u16, Value) {
    admin.post(&format!("{PINS}/approve"), &body).await
}

async fn approve_all(admin: &AdminClient) {
    let (status, answer) = approve(admin, json!({"all": true})).await;
    assert_eq!(status, 200, "{answer}");
}

/// Returns the kind of the refusal of a call.
async fn refusal(client: &TestClient, method: &str, params: Value) -> String {
    let answer = client.request(method, params).await;
    answer["error"]["data"]["kind"].as_str().unwrap_or_else(|| panic!("refused: {answer}")).into()
}

/// Waits until calls of a tool are refused because it is held.
async fn wait_held(client: &TestClient, tool: &str) {
    eventually("the refusal of a call", || async {
        let answer = client.request("tools/call", json!({"name": tool, "arguments": {}})).await;
        if answer["error"]["data"]["kind"] == "tool_held" { Ok(()) } else { Err(answer) }
    })
    .await;
}

async fn refused_call(client: &TestClient, tool: &str) -> String {
    refusal(client, "tools/call", json!({"name": tool, "arguments": {}})).await
}
