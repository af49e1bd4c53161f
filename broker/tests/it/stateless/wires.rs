//! Stateless requests over connections (MCP 2026-07-28, Custom Transports).

use serde_json::{Value, json};
use testkit::{
    Authority, DuplexClient, FakeBackend, Gate, QuicPeer, Reply, TestBroker, eventually,
    judge::Revision,
};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use super::meta;
use crate::{builder, configured_alone, request, text_of};

/// Starts a broker that listens on TCP, and its backend.
async fn listening() -> (TestBroker, FakeBackend) {
    let backend = FakeBackend::echo().await;
    backend.tool("ask", |call| async move {
        Reply::text(&call.request("roots/list", json!({})).await["result"].to_string())
    });
    backend.tool("hang", |_| async { Reply::Hang });
    let tcp = json!({"listen": {"tcp": "127.0.0.1:0"}});
    (configured_alone(tcp, backend.spec()).await, backend)
}

fn params(capabilities: Value, mut params: Value) -> Value {
    params["_meta"] = meta(capabilities);
    params
}

async fn speaks(client: &DuplexClient, backend: &FakeBackend) {
    let capabilities = json!({"roots": {}});
    let with = |body: Value| params(capabilities.clone(), body);
    let found = client.result("server/discover", with(json!({}))).await;
    assert_eq!(found["resultType"], "complete");
    assert_eq!(client.result("tools/list", with(json!({}))).await["tools"][0]["name"], "b__echo");
    let call = |name: &str| json!({"name": name, "arguments": {"a": 1}});
    assert_eq!(text_of(&client.result("tools/call", with(call("b__echo"))).await), r#"{"a":1}"#);
    let required = client.result("tools/call", with(call("b__ask"))).await;
    let key = required["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    let mut retry = call("b__ask");
    (retry["requestState"], retry["inputResponses"]) =
        (required["requestState"].clone(), json!({key: {"roots": []}}));
    assert_eq!(text_of(&client.result("tools/call", with(retry)).await), r#"{"roots":[]}"#);

    // N-CAN-01: a cancellation is passed on, and nothing follows.
    let hanging = client.start_request("tools/call", with(call("b__hang"))).await;
    backend.wait_for("the call", |seen| seen.calls("hang")).await;
    let before = backend.recorded_of("notifications/cancelled").len();
    client
        .notify(
            "notifications/cancelled",
            json!({"requestId": hanging.id, "_meta": meta(json!({}))}),
        )
        .await;
    backend
        .wait_count("its cancellation", before + 1, |seen| seen.is("notifications/cancelled"))
        .await;

    let listening = client
        .start_request(
            "subscriptions/listen",
            with(json!({"notifications": {"toolsListChanged": true}})),
        )
        .await;
    let acknowledged = client.notification("notifications/subscriptions/acknowledged").await;
    assert_eq!(
        acknowledged["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"],
        listening.id
    );
    for (method, code) in
        [("ping", -32601), ("initialize", -32600), ("resources/subscribe", -32601)]
    {
        let asked = if method == "initialize" { json!({}) } else { with(json!({})) };
        let error = client.error(method, asked).await;
        assert!([code, -32602].contains(&error["code"].as_i64().unwrap()), "{method}: {error}");
    }
    let unsaid = client.error("tools/list", json!({})).await;
    assert_eq!(unsaid["code"], -32602, "N-META-01: {unsaid}");
}

#[tokio::test]
async fn n_can_01_stateless_requests_work_over_tcp() {
    let (broker, backend) = listening().await;
    let client = broker.duplex().speaking(Revision::V2026_07_28).tcp(broker.tcp_address()).await;
    speaks(&client, &backend).await;
}

#[tokio::test]
async fn stateless_requests_work_over_websocket() {
    let (broker, backend) = listening().await;
    let (client, _) = broker
        .duplex()
        .speaking(Revision::V2026_07_28)
        .websocket(broker.http_address(), "/ws", &[])
        .await
        .unwrap();
    speaks(&client, &backend).await;
    // A connection that breaks cancels its requests.
    let with = params(json!({}), json!({"name": "b__hang"}));
    let before = backend.recorded_of("notifications/cancelled").len();
    let calls = backend.count(|seen| seen.calls("hang"));
    let _hanging = client.start_request("tools/call", with).await;
    backend.wait_count("the call", calls + 1, |seen| seen.calls("hang")).await;
    client.disconnect();
    backend
        .wait_count("its cancellation", before + 1, |seen| seen.is("notifications/cancelled"))
        .await;
}

#[tokio::test]
async fn a_connection_may_open_a_session_after_a_discover_request() {
    let (broker, _backend) = listening().await;
    let client = broker.duplex().speaking(Revision::V2026_07_28).tcp(broker.tcp_address()).await;
    client.result("server/discover", params(json!({}), json!({}))).await;
    let client = client.connected(json!({})).await;
    assert_eq!(text_of(&client.call("b__echo", json!({"a": 1})).await), r#"{"a":1}"#);
}

#[tokio::test]
async fn f_19_a_client_without_a_session_that_does_not_read_is_cut() {
    let gate = Gate::new();
    let backend =
        FakeBackend::with_tool("large", gate.before(Reply::text(&"x".repeat(200_000)))).await;
    let config = json!({"listen": {"tcp": "127.0.0.1:0"}, "limits": {"outbox_bytes": "1MiB"}});
    let broker = configured_alone(config, backend.spec()).await;
    let mut socket = TcpStream::connect(broker.tcp_address()).await.unwrap();
    socket2::SockRef::from(&socket).set_recv_buffer_size(4096).unwrap();
    // More than the buffers of two sockets and the outbox hold together.
    let one = |id| {
        format!("{}\n", request(id, "tools/call", params(json!({}), json!({"name": "b__large"}))))
    };
    socket.write_all((0..50).map(one).collect::<String>().as_bytes()).await.unwrap();
    backend.wait_count("all calls at the backend", 50, |seen| seen.calls("large")).await;
    gate.open();
    let cut = [("scope", "outbox_bytes")];
    broker.admin().wait_metric("mcp_rate_limited_total", &cut, |count| count == 1.0).await;
    broker.admin().wait_metric("mcp_requests_pending", &[], |pending| pending == 0.0).await;
    broker.admin().wait_metric("mcp_outbox_bytes", &[], |bytes| bytes == 0.0).await;
    let other = DuplexClient::builder().tcp(broker.tcp_address()).await;
    assert_eq!(
        other.result("tools/call", params(json!({}), json!({"name": "b__large"}))).await["resultType"],
        "complete"
    );
}

#[tokio::test]
async fn connections_without_sessions_count_for_their_tenant() {
    let backend = FakeBackend::echo().await;
    let config = json!({"listen": {"tcp": "127.0.0.1:0"}, "limits": {"connections_per_tenant": 1}});
    let broker = configured_alone(config, backend.spec()).await;
    let list = || params(json!({}), json!({}));
    let first = DuplexClient::builder().tcp(broker.tcp_address()).await;
    first.result("tools/list", list()).await;
    first.result("tools/list", list()).await;
    let second = DuplexClient::builder().tcp(broker.tcp_address()).await;
    assert_eq!(second.error("tools/list", list()).await["data"]["kind"], "too_many_connections");
    eventually("the connection to end", || async {
        if second.wait_for_close().await.is_empty() { Err("open") } else { Ok(()) }
    })
    .await;
    first.disconnect();
    eventually("its permit to be free", || async {
        let next = DuplexClient::builder().tcp(broker.tcp_address()).await;
        let answer = next.request("tools/list", list()).await;
        if answer.get("result").is_some() { Ok(()) } else { Err(answer) }
    })
    .await;
}

#[tokio::test]
async fn n_auth_01_each_request_over_tcp_needs_a_credential() {
    let backend = FakeBackend::echo().await;
    let tcp = json!({"listen": {"tcp": "127.0.0.1:0"}});
    let broker = builder()
        .single_process()
        .auth_required()
        .config(tcp)
        .tenant("acme")
        .backend("acme", "b", backend.spec())
        .start()
        .await;
    let (id, key) = broker.admin().create_key_with_id("acme").await;
    let client = broker.duplex().speaking(Revision::V2026_07_28).tcp(broker.tcp_address()).await;
    let signed = |token: &str| {
        let mut params = params(json!({}), json!({"name": "echo", "arguments": {}}));
        params["_meta"]["dev.mcp-broker/token"] = json!(token);
        params["_meta"]["dev.mcp-broker/backend"] = json!("b");
        params
    };
    assert_eq!(client.result("tools/call", signed(&key)).await["resultType"], "complete");
    assert!(
        !backend
            .wait_for("the call", |seen| seen.calls("echo"))
            .await
            .message
            .to_string()
            .contains(&key),
        "the key goes no further"
    );
    broker.admin().delete(&format!("/admin/v1/tenants/acme/keys/{id}")).await;
    let error = client.error("tools/call", signed(&key)).await;
    assert_eq!(error["data"]["kind"], "unauthorized");
    eventually("the connection to end", || async {
        if client.wait_for_close().await.is_empty() { Err("open") } else { Ok(()) }
    })
    .await;
}

#[tokio::test]
async fn stateless_requests_work_over_quic() {
    let authority = Authority::new();
    let server = authority.server("server");
    let backend = FakeBackend::echo().await;
    backend.tool("hang", |_| async { Reply::Hang });
    let config = json!({"listen": {"quic": "127.0.0.1:0"}, "tls": {"cert_file": server.cert, "key_file": server.key}});
    let broker = configured_alone(config, backend.spec()).await;
    let peer = QuicPeer::connect(broker.quic_address(), &authority, None, "mcp").await.unwrap();
    let client = broker.duplex().speaking(Revision::V2026_07_28).over(peer.control().await);
    assert_eq!(
        client.result("tools/list", params(json!({}), json!({}))).await["tools"][0]["name"],
        "b__echo"
    );
    let call = |name: &str| json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params(json!({}), json!({"name": name, "arguments": {"a": 1}}))});
    let (_writer, reader) = peer.request(&call("b__echo")).await;
    let lines = QuicPeer::lines(reader).await;
    assert_eq!((lines.len(), text_of(&lines[0]["result"])), (1, r#"{"a":1}"#));
    let (mut writer, mut reader) = peer.request(&call("b__hang")).await;
    backend.wait_for("the call", |seen| seen.calls("hang")).await;
    let _finished = writer.reset(0u32.into());
    let _stopped = reader.stop(0u32.into());
    backend.wait_for("its cancellation", |seen| seen.is("notifications/cancelled")).await;
}
