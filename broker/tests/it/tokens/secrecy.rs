//! Tokens never leave the broker: no backend, no log, no store, no operator gets one (AUTH-07,
//! AUTH-08).

use serde_json::json;
use testkit::{AuthorizationServer, FakeBackend};

use super::{client, guarded, until_status};
use crate::stateless::{Modern, meta};

#[tokio::test]
async fn auth_07_auth_08_a_36_a_token_never_leaves_the_broker() {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    backend.sessions();
    let more = json!({"listen": {"tcp": "127.0.0.1:0"}, "telemetry": {"log": "trace"}, "audit": {"calls": "arguments"}});
    let mut broker =
        guarded(&server, &backend, json!({})).single_process().config(more).start().await;
    let (good, bad) = (server.token("ann"), server.token_with("ann", json!({"exp": 1})));
    until_status(&broker, &good, 200).await;
    let ann = client(&broker, &good).connected(json!({})).await;
    ann.call("b__echo", json!({})).await;
    let bearer = format!("Bearer {good}");
    let (socket, _) = broker
        .duplex()
        .websocket(broker.http_address(), "/ws", &[("authorization", &bearer)])
        .await
        .unwrap();
    socket.connected(json!({})).await.call("b__echo", json!({})).await;
    let in_meta = json!({"dev.mcp-broker/token": good});
    let lines = broker
        .duplex()
        .tcp(broker.tcp_address())
        .await
        .connected_with(json!({}), in_meta.clone())
        .await;
    // The token is sent where it is not needed, too.
    let called = lines
        .result("tools/call", json!({"name": "b__echo", "arguments": {}, "_meta": in_meta}))
        .await;
    assert!(called["content"].is_array());
    Modern::of(&broker, "/mcp").bearer(&good).call("b__echo", json!({})).await;
    let alone = broker
        .duplex()
        .speaking(testkit::judge::Revision::V2026_07_28)
        .tcp(broker.tcp_address())
        .await;
    let mut with = meta(json!({}));
    with["dev.mcp-broker/token"] = json!(good);
    alone.result("tools/call", json!({"name": "b__echo", "arguments": {}, "_meta": with})).await;
    assert_eq!(super::status(&broker, &bad).await, 401);

    let mut received = Vec::new();
    for seen in backend.recorded() {
        assert!(
            ["authorization", "cookie"].iter().all(|name| seen.header(name).is_none()),
            "{:?}",
            seen.headers
        );
        received.push(("a backend".to_owned(), format!("{:?} {}", seen.headers, seen.message)));
    }
    for path in [
        "/metrics",
        "/admin/v1/sessions",
        "/admin/v1/tenants/acme",
        "/admin/v1/audit",
        "/admin/v1/configuration",
    ] {
        received.push((path.to_owned(), broker.admin().send("GET", path, None).await.text().await));
    }
    broker.wait_for_log("a token is refused").await;
    broker.terminate().await;
    let entries: Vec<_> = std::fs::read_dir(broker.folder()).unwrap().flatten().collect();
    for entry in
        entries.iter().filter(|entry| entry.file_name().to_string_lossy().contains("broker.db"))
    {
        received.push((
            entry.path().display().to_string(),
            String::from_utf8_lossy(&std::fs::read(entry.path()).unwrap()).into_owned(),
        ));
    }
    received.push(("the log".to_owned(), broker.log()));
    for token in [&good, &bad] {
        let parts: Vec<&str> = token.split('.').collect();
        // Its claims and its signature, which no other text contains.
        for part in &parts[1..] {
            for (output, text) in &received {
                assert!(!text.contains(part), "{output} tells a part of a token");
            }
        }
    }
}
