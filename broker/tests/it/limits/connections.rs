//! The number of connections of a tenant, and the rate at which an address may open them.

use serde_json::json;
use testkit::{Authority, QuicPeer, TestBroker, eventually};
use tokio::{io::AsyncReadExt, net::TcpStream};

use crate::{builder, configured_alone, kind, refused, stdio};

#[tokio::test]
async fn connections_and_open_streams_of_a_tenant_are_limited() {
    let config = json!({"listen": {"tcp": "127.0.0.1:0"}, "limits": {"connections_per_tenant": 2}});
    let broker = configured_alone(config, stdio().spec()).await;
    let tcp = broker.duplex().tcp(broker.tcp_address()).await.connected(json!({})).await;
    let http = broker.connected(json!({})).await;
    let stream = http.open_get_stream().await;
    // The tenant is full: on each wire the next connection is refused with a reason, and plain
    // requests continue.
    let (status, error) =
        refused(broker.connected(json!({})).await.get_stream_raw(None).await).await;
    assert_eq!((status, kind(&error), &error["code"]), (429, "too_many_connections", &json!(1003)));
    assert!(error["data"]["retryAfterMs"].as_u64().unwrap() > 0, "{error}");
    assert_eq!(broker.duplex().websocket(broker.http_address(), "/ws", &[]).await.err(), Some(429));
    assert_eq!(
        testkit::duplex::Wire::http_sse(broker.http_address(), "/sse", &[]).await.err(),
        Some(429)
    );
    let second = broker.duplex().tcp(broker.tcp_address()).await;
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    assert_eq!(kind(&second.error("initialize", params.clone()).await), "too_many_connections");
    http.tool_names().await;
    assert!(
        broker
            .admin()
            .metric("mcp_rate_limited_total", &[("scope", "connections_per_tenant")])
            .await
            .unwrap()
            >= 4.0
    );
    // A client that disconnects frees capacity, on any wire.
    drop(stream);
    eventually("the stream's permit to be free", || async {
        let answer = second.request("initialize", params.clone()).await;
        if answer.get("result").is_some() { Ok(()) } else { Err(answer) }
    })
    .await;
    tcp.disconnect();
    eventually("the connection's permit to be free", || async {
        broker.duplex().websocket(broker.http_address(), "/ws", &[]).await.map(drop)
    })
    .await;
}

#[tokio::test]
async fn the_connections_of_each_listener_are_limited() {
    let authority = Authority::new();
    let server = authority.server("server");
    let config = json!({
        "listen": {"tcp": "127.0.0.1:0", "quic": "127.0.0.1:0"}, "limits": {"connections": 2},
        "tls": {"cert_file": server.cert, "key_file": server.key},
    });
    let broker = builder().single_process().config(config).start().await;
    let over_tcp = async || broker.duplex().tcp(broker.tcp_address()).await;
    let full =
        [over_tcp().await.connected(json!({})).await, over_tcp().await.connected(json!({})).await];
    // The next connection waits in the kernel, and is served when there is capacity.
    let waiting = over_tcp().await;
    let mut opening = std::pin::pin!(waiting.initialize(json!({}), json!({})));
    let peers = [
        over_quic(&broker, &authority).await.unwrap(),
        over_quic(&broker, &authority).await.unwrap(),
    ];
    // Over QUIC no client waits: the connection is refused.
    assert!(over_quic(&broker, &authority).await.unwrap_err().contains("refused"));
    assert!(
        broker.admin().metric("mcp_rate_limited_total", &[("scope", "connections")]).await.unwrap()
            >= 1.0
    );
    assert!(
        tokio::time::timeout(std::time::Duration::from_millis(100), &mut opening).await.is_err()
    );
    full[0].result("ping", json!({})).await;
    full[1].disconnect();
    assert!(opening.await["result"].is_object());
    peers[0].close(0);
    eventually("room for another over QUIC", || async {
        over_quic(&broker, &authority).await.map(drop)
    })
    .await;
}

async fn over_quic(broker: &TestBroker, authority: &Authority) -> Result<QuicPeer, String> {
    QuicPeer::connect(broker.quic_address(), authority, None, "mcp").await
}

/// Opens connections; returns how many of them are closed at once.
async fn closed_of(address: std::net::SocketAddr, count: usize) -> usize {
    let mut sockets = Vec::new();
    for _ in 0..count {
        sockets.push(TcpStream::connect(address).await.unwrap());
    }
    let mut closed = 0;
    for socket in &mut sockets {
        let read =
            tokio::time::timeout(std::time::Duration::from_millis(20), socket.read(&mut [0])).await;
        closed += usize::from(matches!(read, Ok(Ok(0) | Err(_))));
    }
    closed
}

#[tokio::test]
async fn an_address_that_connects_too_often_is_refused_at_each_listener() {
    let limits =
        json!({"connections_per_second_per_address": 2, "connection_burst_per_address": 30});
    let config = json!({"listen": {"tcp": "127.0.0.1:0"}, "limits": limits});
    let broker = builder().single_process().config(config).start().await;
    for address in [broker.tcp_address(), broker.http_address()] {
        let closed = closed_of(address, 60).await;
        assert!((15..=35).contains(&closed), "{closed} closed at {address}");
    }
    let scope = [("scope", "connections_per_second_per_address")];
    assert!(broker.admin().metric("mcp_rate_limited_total", &scope).await.unwrap() >= 30.0);
    eventually("connections to be taken again", || async {
        match broker.client("/mcp").try_send("POST", &[], bytes::Bytes::new()).await {
            Ok(_) => Ok(()),
            Err(why) => Err(why),
        }
    })
    .await;
}
