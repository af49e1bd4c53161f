//! Profiles of message sizes: for all, for a tenant's clients, for messages of a backend, by wire.

use serde_json::{Value, json};
use testkit::{FakeBackend, Reply, TestBroker};

use super::key_of;
use crate::{builder, kind, text_of};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn call(bytes: usize) -> Value {
    json!({"name": "b__t", "arguments": {"text": "x".repeat(bytes)}})
}

async fn broker(tenant_limits: Value, config: Value) -> (TestBroker, FakeBackend, String) {
    let backend = FakeBackend::with_tool("t", |_| async { Reply::text("taken") }).await;
    let config = json!({"listen": {"tcp": "127.0.0.1:0"}, "limits": config});
    let broker = builder()
        .single_process()
        .auth_required()
        .config(config)
        .tenant("acme")
        .backend("acme", "b", backend.spec())
        .start()
        .await;
    broker.admin().put_tenant("acme", json!({"limits": tenant_limits})).await;
    let key = key_of(&broker, "acme", "ada").await;
    (broker, backend, key)
}

#[track_caller]
fn assert_too_large(error: &Value) {
    let reported =
        (&error["code"], kind(error), &error["data"]["refusalCode"], &error["data"]["retryable"]);
    assert_eq!(
        reported,
        (&json!(-32600), "message_too_large", &json!(1068), &json!(false)),
        "{error}"
    );
}

#[tokio::test]
async fn a_message_profile_of_a_tenant_applies_to_its_clients_on_every_wire() {
    let own = json!({"small": {"default": "64KiB", "tcp": "256KiB"}});
    let (broker, backend, key) =
        broker(json!({"message_profile": "small"}), json!({"message_profiles": own})).await;
    let view = broker.admin().get("/admin/v1/tenants/acme").await.1;
    assert_eq!(view["limits"]["message_profile"], "small", "{view}");
    let client = broker.client("/mcp").bearer(&key).connected(json!({})).await;
    assert!(client.request("tools/call", call(60 * KIB)).await["result"].is_object());
    let error = client.error("tools/call", call(65 * KIB)).await;
    assert_too_large(&error);
    let headers = [("authorization", format!("Bearer {key}"))];
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let (websocket, _) =
        broker.duplex().websocket(broker.http_address(), "/ws", &headers).await.unwrap();
    let websocket = websocket.connected(json!({})).await;
    assert!(websocket.request("tools/call", call(60 * KIB)).await["result"].is_object());
    let tcp = broker
        .duplex()
        .tcp(broker.tcp_address())
        .await
        .connected_with(json!({}), json!({"dev.mcp-broker/token": key}))
        .await;
    assert!(tcp.request("tools/call", call(250 * KIB)).await["result"].is_object(), "its own size");
    assert_eq!(backend.count(|seen| seen.calls("t")), 3, "what was refused was not sent");

    broker.admin().put_tenant("acme", json!({})).await;
    assert!(
        client.request("tools/call", call(2 * MIB)).await["result"].is_object(),
        "from the next message on"
    );
}

#[tokio::test]
async fn the_global_message_profile_applies_unless_a_tenant_has_its_own() {
    let (broker, _backend, key) = broker(json!({}), json!({"message_profile": "1MB"})).await;
    let client = broker.client("/mcp").bearer(&key).connected(json!({})).await;
    assert!(client.request("tools/call", call(1_000 * KIB)).await["result"].is_object());
    assert_too_large(&client.error("tools/call", call(1_030 * KIB)).await);
    broker.admin().put_tenant("acme", json!({"limits": {"message_profile": "standard"}})).await;
    assert!(client.request("tools/call", call(1_030 * KIB)).await["result"].is_object());
}

#[tokio::test]
async fn a_message_profile_of_a_backend_applies_to_its_answers() {
    let backend =
        FakeBackend::with_tool("large", |_| async { Reply::text(&"x".repeat(100 * KIB)) }).await;
    let mut spec = backend.spec();
    spec["limits"] = json!({"message_profile": "small"});
    let config = json!({"limits": {"message_profiles": {"small": {"http": "64KiB"}}}});
    let broker = builder()
        .single_process()
        .config(config)
        .backend("default", "b", spec)
        .backend("default", "c", backend.spec())
        .start()
        .await;
    let client = broker.connected(json!({})).await;
    assert_eq!(
        kind(&client.error("tools/call", json!({"name": "b__large"})).await),
        "result_too_large"
    );
    assert_eq!(text_of(&client.call("c__large", json!({})).await).len(), 100 * KIB);
    let unknown = json!({"transport": {"type": "http", "url": "http://127.0.0.1:1/"}, "limits": {"message_profile": "tiny"}});
    for (path, body) in
        [("backends/d", &unknown), ("", &json!({"limits": {"message_profile": "tiny"}}))]
    {
        let path = format!("/admin/v1/tenants/other/{path}");
        broker.admin().put_tenant("other", json!({})).await;
        let answer = broker.admin().send("PUT", path.trim_end_matches('/'), Some(body)).await;
        let (status, text) = (answer.status, answer.text().await);
        assert!(
            [400, 422].contains(&status)
                && text.contains("limits.message_profile")
                && text.contains("ws-64k"),
            "{status}: {text}"
        );
    }
}
