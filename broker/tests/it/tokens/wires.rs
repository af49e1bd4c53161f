//! Every listener accepts tokens, and no client without one where it is required (AUTH-10,
//! N-AUTH-01).

use serde_json::{Value, json};
use testkit::{
    Authority, AuthorizationServer, FakeBackend, QuicPeer, TestBroker, duplex::Wire,
    judge::Revision,
};

use super::{guarded, until_status};
use crate::{
    kind,
    stateless::{Modern, meta},
};

async fn started() -> (TestBroker, Authority, AuthorizationServer, FakeBackend) {
    let (server, backend, authority) =
        (AuthorizationServer::start().await, FakeBackend::echo().await, Authority::new());
    let signed = authority.server("server");
    let listen = json!({
        "listen": {"tcp": "127.0.0.1:0", "quic": "127.0.0.1:0"},
        "tls": {"cert_file": signed.cert, "key_file": signed.key},
    });
    let broker =
        guarded(&server, &backend, json!({})).single_process().config(listen).start().await;
    until_status(&broker, &server.token("ann"), 200).await;
    (broker, authority, server, backend)
}

fn token_in_meta(token: &str) -> Value {
    json!({"dev.mcp-broker/token": token})
}

#[tokio::test]
async fn auth_10_every_wire_requires_a_token_to_open_a_session() {
    let (broker, authority, server, _backend) = started().await;
    let (good, bad) = (server.token("ann"), server.token_with("ann", json!({"aud": "x"})));
    for token in [None, Some(&bad)] {
        let headers: Vec<(String, String)> = token
            .map(|token| ("authorization".to_owned(), format!("Bearer {token}")))
            .into_iter()
            .collect();
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(
            broker
                .duplex()
                .websocket(broker.http_address(), "/ws", &headers)
                .await
                .map(|_| ())
                .unwrap_err(),
            401
        );
        assert_eq!(
            Wire::http_sse(broker.http_address(), "/sse", &headers).await.map(|_| ()).unwrap_err(),
            401
        );
        let meta = token.map_or(json!({}), |token| token_in_meta(token));
        let lines = broker.duplex().tcp(broker.tcp_address()).await;
        assert_eq!(kind(&lines.initialize(json!({}), meta.clone()).await["error"]), "unauthorized");
        lines.wait_for_close().await;
        let peer = QuicPeer::connect(broker.quic_address(), &authority, None, "mcp").await.unwrap();
        let control = broker.duplex().over(peer.control().await);
        assert_eq!(kind(&control.initialize(json!({}), meta).await["error"]), "unauthorized");
        control.wait_for_close().await;
    }
    let bearer = format!("Bearer {good}");
    let headers = [("authorization", bearer.as_str())];
    let (socket, _) =
        broker.duplex().websocket(broker.http_address(), "/ws", &headers).await.unwrap();
    socket.connected(json!({})).await.call("b__echo", json!({})).await;
    let legacy = Wire::http_sse(broker.http_address(), "/sse", &headers).await.unwrap();
    broker.duplex().over(legacy).connected(json!({})).await.call("b__echo", json!({})).await;
    let lines = broker.duplex().tcp(broker.tcp_address()).await;
    lines.connected_with(json!({}), token_in_meta(&good)).await.call("b__echo", json!({})).await;
    let peer = QuicPeer::connect(broker.quic_address(), &authority, None, "mcp").await.unwrap();
    let control = broker.duplex().over(peer.control().await);
    control.connected_with(json!({}), token_in_meta(&good)).await.call("b__echo", json!({})).await;
}

#[tokio::test]
async fn n_auth_01_each_stateless_request_needs_a_token() {
    let (broker, authority, server, _backend) = started().await;
    let (good, bad) = (server.token("ann"), server.token_with("ann", json!({"exp": 1})));
    let modern = Modern::of(&broker, "/mcp");
    assert_eq!(modern.bearer(&good).call("b__echo", json!({})).await["resultType"], "complete");
    for refused in [modern.clone(), modern.bearer(&bad)] {
        let response = refused.post(json!(1), "tools/list", json!({})).await;
        assert!(
            response
                .header("www-authenticate")
                .is_some_and(|text| text.contains("resource_metadata="))
        );
        assert_eq!(response.status, 401);
    }
    let list = |token: &str| {
        let mut meta = meta(json!({}));
        meta["dev.mcp-broker/token"] = json!(token);
        json!({"_meta": meta})
    };
    let lines = broker.duplex().speaking(Revision::V2026_07_28).tcp(broker.tcp_address()).await;
    assert_eq!(lines.result("tools/list", list(&good)).await["tools"][0]["name"], "b__echo");
    assert_eq!(kind(&lines.error("tools/list", list(&bad)).await), "unauthorized");
    lines.wait_for_close().await;
    let peer = QuicPeer::connect(broker.quic_address(), &authority, None, "mcp").await.unwrap();
    let control = broker.duplex().speaking(Revision::V2026_07_28).over(peer.control().await);
    assert_eq!(control.result("tools/list", list(&good)).await["tools"][0]["name"], "b__echo");
    let (_writer, reader) = peer
        .request(&json!({"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": list(&good)}))
        .await;
    assert_eq!(QuicPeer::lines(reader).await[0]["result"]["tools"][0]["name"], "b__echo");
}
