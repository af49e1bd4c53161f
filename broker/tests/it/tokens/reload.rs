//! Settings of sign-in that a reload applies: issuers, origins and hosts.

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{AuthorizationServer, FakeBackend, TestBroker, eventually, within};

use super::{client, guarded, status, until_status, with_token};
use crate::{builder, initialize_body, request};

/// Changes the configuration file, and waits until the broker has read it.
pub(crate) async fn reload(broker: &TestBroker, edit: impl FnOnce(&mut Value)) {
    let file = broker.folder().join("config.yaml");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    edit(&mut config);
    std::fs::write(&file, config.to_string()).unwrap();
    let read = || broker.log().matches("reloaded").count();
    let before = read();
    broker.signal(Signal::HUP);
    eventually("the reload", || async {
        let now = read();
        if now > before { Ok(()) } else { Err(now) }
    })
    .await;
}

#[tokio::test]
async fn issuers_are_added_and_removed_without_a_restart() {
    let (server, other, backend) = (
        AuthorizationServer::start().await,
        AuthorizationServer::start().await,
        FakeBackend::echo().await,
    );
    let broker = guarded(&server, &backend, json!({}))
        .single_process()
        .config(json!({"listen": {"tcp": "127.0.0.1:0"}}))
        .start()
        .await;
    until_status(&broker, &server.token("ann"), 200).await;
    let keys = server.key_requests();
    let ann = client(&broker, &server.token("ann")).connected(json!({})).await;
    assert_eq!(status(&broker, &other.token("bob")).await, 401);

    reload(&broker, |config| {
        let issuers = config["auth"]["issuers"].as_array_mut().unwrap();
        issuers.push(other.entry("acme", json!({})));
    })
    .await;
    until_status(&broker, &other.token("bob"), 200).await;
    ann.call("b__echo", json!({})).await;
    assert_eq!(server.key_requests(), keys, "an unchanged issuer keeps its keys");

    let bob = client(&broker, &other.token("bob")).connected(json!({})).await;
    let mut events = bob.open_get_stream().await;
    let bearer = format!("Bearer {}", other.token("bob"));
    let headers = [("authorization", bearer.as_str())];
    let (socket, _) =
        broker.duplex().websocket(broker.http_address(), "/ws", &headers).await.unwrap();
    socket.initialize(json!({}), json!({})).await;
    let lines = broker.duplex().tcp(broker.tcp_address()).await;
    let meta = json!({"_meta": {"dev.mcp-broker/token": other.token("bob")}});
    lines.initialize(json!({}), meta).await;

    reload(&broker, |config| {
        config["auth"]["issuers"] = json!([server.entry("acme", json!({}))]);
    })
    .await;
    assert_eq!(bob.post(request(9, "ping", json!({}))).await.status, 401, "on a kept connection");
    assert_eq!(status(&broker, &other.token("bob")).await, 401);
    within("the end of the stream", async { while events.advance().await.is_some() {} }).await;
    let why = socket.wait_for_close().await;
    assert!(why.starts_with("1008"), "{why}");
    lines.wait_for_close().await;
    ann.call("b__echo", json!({})).await;
    assert_eq!(server.key_requests(), keys);
    assert_eq!(broker.admin().metric("mcp_issuers_without_keys", &[]).await, Some(0.0));
}

#[tokio::test]
async fn a_changed_issuer_is_fetched_again_and_a_bad_file_changes_nothing() {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    let broker = guarded(&server, &backend, json!({})).single_process().start().await;
    let token = server.token("ann");
    until_status(&broker, &token, 200).await;
    let ann = client(&broker, &token).connected(json!({})).await;

    reload(&broker, |config| {
        config["auth"]["allowed_origins"] = json!(["https://page.example"]);
        config["auth"]["issuers"] = json!([{"issuer": "https://login.example"}]);
    })
    .await;
    assert!(broker.log().contains("auth.issuers[0].tenant: is missing"), "{}", broker.log());
    ann.call("b__echo", json!({})).await;
    let origin = [("origin", "https://page.example"), ("authorization", "Bearer x")];
    let from_page = || async {
        let metadata = testkit::TestClient::new(broker.http_address(), super::WELL_KNOWN);
        metadata.send("GET", &origin[..1], "").await.status
    };
    assert_eq!(from_page().await, 403);

    reload(&broker, |config| {
        config["auth"]["issuers"] = json!([server.entry("acme", json!({"scopes": ["mcp:tools"]}))]);
    })
    .await;
    assert_eq!(from_page().await, 200);
    until_status(&broker, &token, 403).await;
    assert_eq!(ann.post(request(9, "ping", json!({}))).await.status, 403, "on a kept connection");
    let scoped = server.token_with("ann", json!({"scope": "mcp:tools"}));
    with_token(&broker, &ann, &scoped).call("b__echo", json!({})).await;

    // The settings that only a restart applies stay.
    reload(&broker, |config| {
        config["auth"]["required"] = json!(false);
        config["auth"]["issuers"] = json!([]);
    })
    .await;
    assert!(
        broker.log().contains("a section of the configuration changed, which needs a restart"),
        "{}",
        broker.log()
    );
    assert_eq!(broker.client("/mcp").post(initialize_body("2025-11-25")).await.status, 401);
    assert_eq!(status(&broker, &scoped).await, 401);
}

#[tokio::test]
async fn browsers_get_addresses_below_the_reloaded_resource() {
    let broker = builder().single_process().start().await;
    let client_id = async || {
        let client = testkit::TestClient::new(broker.http_address(), "/oauth/client-metadata.json");
        client.send("GET", &[], "").await.json().await["client_id"].clone()
    };
    let of = |base: &str| format!("{base}/oauth/client-metadata.json");
    assert_eq!(client_id().await, of(&format!("http://{}", broker.http_address())));
    for base in ["https://first.example", "https://second.example"] {
        reload(&broker, |config| config["auth"] = json!({"resource": base})).await;
        assert_eq!(client_id().await, of(base));
    }
    reload(&broker, |config| config["auth"] = json!({})).await;
    assert_eq!(client_id().await, of(&format!("http://{}", broker.http_address())));
}
