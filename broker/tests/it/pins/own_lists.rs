//! Pins of what a backend shows to one session or one principal alone.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use serde_json::{Value, json};
use testkit::{AdminClient, AuthorizationServer, FakeBackend, Reply, TestClient, backend::tool};

use super::{PINS, approve, broker_with, item, pin, refused_call, wait_state};
use crate::{
    kind,
    oauth_exchange::{Protected, broker_for, member, payload},
    session_lists::{lists, with_toolsets},
    text_of,
};

async fn block(admin: &AdminClient, tools: &[&str]) {
    let items: Vec<Value> =
        tools.iter().map(|name| json!({"kind": "tool", "name": name})).collect();
    let (status, answer) = admin.post(&format!("{PINS}/block"), &json!({"items": items})).await;
    assert_eq!(status, 200, "{answer}");
}

/// A hostile backend must not keep a blocked tool in use by its silence.
#[tokio::test]
async fn decisions_apply_to_the_lists_of_one_session_without_an_answer_of_the_backend() {
    let (backend, _) = with_toolsets().await;
    let broker = broker_with(&backend, json!("observe")).await;
    let (admin, client) = (broker.admin(), broker.connected(json!({})).await);
    client.call("b__enable", json!({})).await;
    lists(&client, "b__extra", true).await;
    wait_state(&admin, "tool", "extra", "pending").await;
    backend.on("tools/list", |_| async { Reply::Hang });
    let mut stream = client.open_get_stream().await;
    block(&admin, &["extra", "echo"]).await;
    for tool in ["b__extra", "b__echo"] {
        assert_eq!(refused_call(&client, tool).await, "tool_held", "{tool}");
    }
    assert_eq!(client.tool_names().await, ["b__enable"]);
    stream.find(|message| message["method"] == "notifications/tools/list_changed").await;
    let extra = pin(&admin, "tool", "extra").await.unwrap();
    let (status, answer) = approve(&admin, json!({"items": [item(&extra)]})).await;
    assert_eq!(status, 200, "{answer}");
    client.wait_tools(&["b__enable", "b__extra"]).await;
    assert_eq!(text_of(&client.call("b__extra", json!({})).await), "extra");
}

/// Answers reads of user interfaces with another text after each change of the number.
fn show_apps(backend: &FakeBackend) -> Arc<AtomicU32> {
    let version = Arc::new(AtomicU32::new(1));
    let read = version.clone();
    backend.on("resources/read", move |call| {
        let text = format!("<p>{}</p>", read.load(Ordering::SeqCst));
        async move {
            let uri = call.params()["uri"].clone();
            Reply::Result(json!({"contents": [{"uri": uri, "mimeType": "text/html;profile=mcp-app", "text": text}]}))
        }
    });
    version
}

fn linking(name: &str) -> Value {
    let mut made = tool(name);
    made["_meta"] = json!({"ui": {"resourceUri": "ui://view"}});
    made
}

/// Checks that a client gets the first contents of a user interface and not the next ones.
async fn holds_a_changed_app(client: &TestClient, admin: &AdminClient, version: &AtomicU32) {
    let asked = json!({"uri": "ui://b+view"});
    let first = client.result("resources/read", asked.clone()).await;
    assert_eq!(first["contents"][0]["text"], "<p>1</p>");
    wait_state(admin, "app", "ui://view", "pending").await;
    version.store(2, Ordering::SeqCst);
    let error = client.error("resources/read", asked).await;
    assert_eq!(kind(&error), "tool_held", "{error}");
}

#[tokio::test]
async fn a_user_interface_is_pinned_if_a_tool_of_one_session_links_it() {
    let (backend, enabled) = with_toolsets().await;
    let version = show_apps(&backend);
    backend.on("tools/list", move |call| {
        let has_extra = call.session.as_ref().is_some_and(|id| enabled.lock().contains(id));
        let more = has_extra.then(|| linking("extra"));
        let tools: Vec<Value> = [tool("enable")].into_iter().chain(more).collect();
        async move { Reply::Result(json!({"tools": tools})) }
    });
    let broker = broker_with(&backend, json!("hold_changed")).await;
    let (admin, client) = (broker.admin(), broker.connected(json!({})).await);
    client.call("b__enable", json!({})).await;
    lists(&client, "b__extra", true).await;
    holds_a_changed_app(&client, &admin, &version).await;
}

#[tokio::test]
async fn a_user_interface_is_pinned_if_a_tool_of_one_principal_links_it() {
    let protected = Protected::start(|request| {
        Some(payload(&member(request, "subject_token")?)["sub"].as_str()?.to_owned())
    })
    .await;
    protected.backend.list("tools", vec![linking("show")]);
    let version = show_apps(&protected.backend);
    let issuer = AuthorizationServer::start().await;
    let mut spec =
        protected.spec(json!({"type": "token_exchange", "catalog_auth": "per_principal"}));
    spec["pins"] = json!("hold_changed");
    let broker = broker_for(&issuer, true, &spec).await;
    let client = broker.client("/mcp").bearer(&issuer.token("ann")).connected(json!({})).await;
    client.wait_tools(&["b__show"]).await;
    holds_a_changed_app(&client, &broker.admin(), &version).await;
}
