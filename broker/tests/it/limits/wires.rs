//! The form of a refusal on each wire.

use serde_json::{Value, json};
use testkit::{Authority, DuplexClient, FakeBackend, QuicPeer};

use super::{assert_rate_limited, assert_too_many_requests};
use crate::{configured_alone, request, stdio};

/// Sends requests until one is refused; returns the refusal.
async fn refusal_on(client: &DuplexClient) -> Value {
    for _ in 0..200 {
        let answer = client.request("tools/list", json!({})).await;
        if let Some(error) = answer.get("error") {
            return error.clone();
        }
    }
    panic!("it was never refused")
}

/// Each GET causes work of the event log.
#[tokio::test]
async fn gets_of_one_session_count_against_the_rate_beyond_a_few_free_ones() {
    const FREE: usize = 30;
    let backend = FakeBackend::echo().await;
    let limits = json!({"requests_per_second": 1, "burst": 5});
    let broker = configured_alone(json!({"limits": limits}), backend.spec()).await;
    let client = broker.connected(json!({})).await;
    let mut opened = 0;
    let refused = loop {
        let answer = client.get_stream_raw(None).await;
        if answer.status != 200 {
            break answer;
        }
        opened += 1;
        assert!(opened < 100 * FREE, "none of {opened} was refused");
    };
    assert!(opened >= FREE, "{opened}");
    assert_too_many_requests(refused, "tenant").await;
}

#[tokio::test]
async fn an_exhausted_rate_is_reported_equally_on_every_wire() {
    let authority = Authority::new();
    let server = authority.server("server");
    let config = json!({
        "listen": {"tcp": "127.0.0.1:0", "quic": "127.0.0.1:0"},
        "tls": {"cert_file": server.cert, "key_file": server.key},
        "limits": {"requests_per_second": 1, "burst": 30},
    });
    let broker = configured_alone(config, stdio().spec()).await;
    let http = broker.connected(json!({})).await;
    let tcp = broker.duplex().tcp(broker.tcp_address()).await.connected(json!({})).await;
    let websocket = broker
        .duplex()
        .websocket(broker.http_address(), "/ws", &[])
        .await
        .unwrap()
        .0
        .connected(json!({}))
        .await;
    let peer = QuicPeer::connect(broker.quic_address(), &authority, None, "mcp").await.unwrap();
    let quic = broker.duplex().over(peer.control().await).connected(json!({})).await;
    let legacy = testkit::duplex::Wire::http_sse(broker.http_address(), "/sse", &[]).await.unwrap();
    let legacy = broker.duplex().over(legacy).connected(json!({})).await;
    for client in [&tcp, &websocket, &quic, &legacy] {
        assert_rate_limited(&refusal_on(client).await, "tenant");
    }
    let (_writer, reader) =
        peer.request(&json!({"jsonrpc": "2.0", "id": 9, "method": "tools/list"})).await;
    assert_rate_limited(&QuicPeer::lines(reader).await[0]["error"], "tenant");
    // A second may have passed, and with it one token came back.
    let mut response = http.post(request(1, "tools/list", json!({}))).await;
    while response.status == 200 {
        response = http.post(request(1, "tools/list", json!({}))).await;
    }
    assert_too_many_requests(response, "tenant").await;
    let mut response = broker.client("/mcp").post(crate::initialize_body("2025-11-25")).await;
    while response.status == 200 {
        response = broker.client("/mcp").post(crate::initialize_body("2025-11-25")).await;
    }
    assert_too_many_requests(response, "tenant").await;
}
