//! Pins of what a backend shows to one session alone.

use serde_json::{Value, json};
use testkit::{AdminClient, Reply};

use super::{PINS, approve, broker_with, item, pin, refused_call, wait_state, wait_tools};
use crate::{
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
    wait_tools(&client, &["b__enable", "b__extra"]).await;
    assert_eq!(text_of(&client.call("b__extra", json!({})).await), "extra");
}
