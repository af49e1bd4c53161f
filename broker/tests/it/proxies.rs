//! Proxies in front of the broker: a client's own address counts if a trusted proxy names it, and
//! only then. The tests use a real HAProxy and a real nginx. Clients differ by their addresses of
//! the loopback network.

use std::net::SocketAddr;

use serde_json::{Value, json};
use testkit::{Authority, FakeBackend, Reply, TestBroker, eventually, servers::FrontProxy, within};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use crate::{
    builder, configured_alone, initialize_body, read_answer, read_to_close,
    stateless::{Modern, meta},
};

/// Network from which proxies of tests connect.
const TRUSTED: &str = "127.0.0.1/32";

async fn started(listen: Value) -> TestBroker {
    let backend = FakeBackend::echo().await;
    configured_alone(json!({"listen": listen, "audit": {"calls": "metadata"}}), backend.spec())
        .await
}

trait Merged {
    fn merged(self, listen: Value) -> Value;
}

impl Merged for Value {
    /// Merges these keys into `listen` and returns the configuration.
    fn merged(mut self, listen: Value) -> Value {
        for (key, value) in listen.as_object().unwrap() {
            self["listen"][key] = value.clone();
        }
        self
    }
}

/// Opens a connection from this address of ours.
async fn from(address: &str, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{address}:0").parse().unwrap()).unwrap();
    within("a connection", socket.connect(to)).await.unwrap()
}

fn put(tenant: &str, headers: &str) -> String {
    format!(
        "PUT /admin/v1/tenants/{tenant} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n{headers}content-length: 2\r\n\r\n{{}}"
    )
}

/// Returns the source address of a request to the admin plane in the audit log.
async fn audited(broker: &TestBroker, tenant: &str) -> Value {
    let path = format!("/admin/v1/audit?tenant={tenant}&kind=admin");
    let look = || async {
        let (_, answer) = within("the audit log", broker.admin().get(&path)).await;
        let address = answer["records"]
            .as_array()
            .and_then(|records| records.last().map(|record| record["address"].clone()));
        address.ok_or(answer)
    };
    eventually("the record", look).await
}

async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, text: &str) -> String {
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _no_goodbye = within("the answer", stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn s16_operators_behind_nginx_are_audited_by_their_own_addresses() {
    let broker = started(json!({"admin_trusted_proxies": [TRUSTED]})).await;
    let nginx = FrontProxy::nginx(
        broker.admin_address(),
        "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;",
    )
    .await;
    // A client's own header stands before the value that the proxy adds.
    let forged = "x-forwarded-for: 203.0.113.9\r\nforwarded: for=203.0.113.9\r\n";
    for (tenant, headers) in [("plain", ""), ("forged", forged)] {
        let answer =
            exchange(from("127.0.0.42", nginx.address()).await, &put(tenant, headers)).await;
        assert!(answer.starts_with("HTTP/1.1 20"), "{answer}");
        assert_eq!(audited(&broker, tenant).await, "127.0.0.42", "{tenant}");
    }
    // Headers of a peer that is not trusted are ignored.
    let answer =
        exchange(from("127.0.0.43", broker.admin_address()).await, &put("direct", forged)).await;
    assert!(answer.starts_with("HTTP/1.1 20"), "{answer}");
    assert_eq!(audited(&broker, "direct").await, "127.0.0.43");
}

#[tokio::test]
async fn s16_a_proxy_of_clients_cannot_name_the_address_of_an_operator() {
    let broker = started(json!({"trusted_proxies": [TRUSTED]})).await;
    let forged = "x-forwarded-for: 203.0.113.9\r\n";
    let answer =
        exchange(from("127.0.0.1", broker.admin_address()).await, &put("forged", forged)).await;
    assert!(answer.starts_with("HTTP/1.1 20"), "{answer}");
    assert_eq!(audited(&broker, "forged").await, "127.0.0.1");
}

#[tokio::test]
async fn s16_clients_behind_nginx_are_audited_by_their_own_addresses() {
    let broker = started(json!({"trusted_proxies": [TRUSTED]})).await;
    let nginx = FrontProxy::nginx(
        broker.http_address(),
        "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;",
    )
    .await;
    let client = broker.connected(json!({})).await;
    let session = client.session().unwrap();
    let body = crate::request(5, "tools/call", json!({"name": "b__echo", "arguments": {}}));
    let text = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\naccept: application/json, text/event-stream\r\nmcp-session-id: {session}\r\nx-forwarded-for: 203.0.113.9\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = exchange(from("127.0.0.42", nginx.address()).await, &text).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let look = || async {
        let (_, answer) = broker.admin().get("/admin/v1/audit?kind=call").await;
        let called = answer["records"].as_array().and_then(|records| {
            records.iter().find(|record| record["action"] == "tools/call").cloned()
        });
        called.map(|record| record["address"].clone()).ok_or(answer)
    };
    assert_eq!(eventually("the record of the call", look).await, "127.0.0.42");
}

/// Returns the options that the balancer of the compose file sets for all of its parts.
fn options_of_the_compose_file() -> String {
    let config = include_str!("../../../deploy/haproxy/haproxy.cfg");
    let defaults = config.split("\n\n").find(|section| section.starts_with("defaults\n")).unwrap();
    let options = defaults.lines().filter(|line| line.trim_start().starts_with("option "));
    options.flat_map(|line| [line, "\n"]).collect()
}

#[tokio::test]
async fn n_sse_03_a_stateless_client_behind_haproxy_cancels_a_request_that_has_no_answer_yet() {
    let backend = FakeBackend::echo().await;
    backend.tool("hang", |_| async { Reply::Hang });
    // Neither a comment of the broker nor a timeout of HAProxy ends the request.
    let broker = configured_alone(json!({"events": {"keepalive": "10m"}}), backend.spec()).await;
    let options = format!("timeout server 10m\n{}", options_of_the_compose_file());
    let front = FrontProxy::haproxy(broker.http_address(), "http", "", &options).await;
    let client = Modern::at(front.address(), "/mcp/b", json!({}));
    let params = json!({"name": "hang", "arguments": {}, "_meta": meta(json!({}))});
    let headers = client.headers("tools/call", &params);
    let headers: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let body = crate::request(1, "tools/call", params);
    let text = format!(
        "POST /mcp/b HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(front.address()).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    backend.wait_for("the call", |seen| seen.calls("hang")).await;
    drop(stream);
    backend.wait_for("its cancellation", |seen| seen.is("notifications/cancelled")).await;
}

#[tokio::test]
async fn s16_proxy_protocol_of_haproxy_names_the_client_over_http_and_tcp() {
    let authority = Authority::new();
    let server = authority.server("server");
    let listen = json!({"tcp": "127.0.0.1:0", "proxy_protocol": {"http": true, "tcp": true}});
    let more = json!({"tls": {"cert_file": server.cert, "key_file": server.key}, "limits": {"connections_per_address": 1}});
    let broker = started_behind(listen, more).await;
    for version in ["send-proxy", "send-proxy-v2"] {
        let get = "GET /nowhere HTTP/1.1\r\nhost: localhost\r\n\r\n";
        let front = FrontProxy::haproxy(broker.http_address(), "tcp", version, "").await;
        // Connections are counted for each client, and not for the proxy, from whose address all of
        // them come.
        let (mut first, mut other) =
            (from("127.0.0.5", front.address()).await, from("127.0.0.6", front.address()).await);
        for stream in [&mut first, &mut other] {
            stream.write_all(get.as_bytes()).await.unwrap();
            assert!(read_answer(stream).await.starts_with("HTTP/1.1 404"), "{version}");
        }
        let mut second = from("127.0.0.5", front.address()).await;
        let _closed = second.write_all(get.as_bytes()).await;
        assert_eq!(
            read_to_close(&mut second).await,
            "",
            "{version}: the client has its one connection"
        );
        drop((first, other));
        // The header comes before TLS.
        let secured =
            within("TLS", authority.connect(front.address().port(), None, &["http/1.1"])).await;
        let answer = exchange(
            secured.unwrap(),
            "GET /nowhere HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        )
        .await;
        assert!(answer.starts_with("HTTP/1.1 404"), "{version}: {answer}");
        let front = FrontProxy::haproxy(broker.tcp_address(), "tcp", version, "").await;
        let mut stream = from("127.0.0.7", front.address()).await;
        stream.write_all(format!("{}\n", initialize_body("2025-11-25")).as_bytes()).await.unwrap();
        let mut answer = vec![0; 4096];
        let count = within("an answer", stream.read(&mut answer)).await.unwrap();
        assert!(String::from_utf8_lossy(&answer[..count]).contains("\"serverInfo\""), "{version}");
    }
}

/// Starts a broker behind a proxy. Clients of the test kit send no header, so backends stand in the
/// configuration.
async fn started_behind(listen: Value, more: Value) -> TestBroker {
    let config = json!({"listen": {"trusted_proxies": [TRUSTED]}}).merged(listen);
    builder().single_process().config(config).config(more).start().await
}

#[tokio::test]
async fn s16_a_proxy_header_is_required_from_trusted_and_refused_from_others() {
    let broker = started_behind(json!({"proxy_protocol": {"http": true}}), json!({})).await;
    let get = "GET /nowhere HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let header = "PROXY TCP4 192.0.2.1 127.0.0.1 1 2\r\n";
    assert_eq!(exchange(from("127.0.0.1", broker.http_address()).await, get).await, "");
    broker.wait_for_log("it does not begin with a PROXY protocol header of version 1 or 2").await;
    assert!(
        exchange(from("127.0.0.1", broker.http_address()).await, &format!("{header}{get}"))
            .await
            .starts_with("HTTP/1.1 404")
    );
    assert!(
        exchange(from("127.0.0.9", broker.http_address()).await, get)
            .await
            .starts_with("HTTP/1.1 404"),
        "a client without a proxy"
    );
    assert_eq!(
        exchange(from("127.0.0.9", broker.http_address()).await, &format!("{header}{get}")).await,
        ""
    );
    assert_eq!(
        exchange(from("127.0.0.1", broker.http_address()).await, &format!("PROXY TCP9 x\r\n{get}"))
            .await,
        ""
    );
}

#[tokio::test]
async fn s16_a_proxy_header_of_an_untrusted_address_is_logged() {
    let broker =
        started_behind(json!({"proxy_protocol": {"http": true, "admin": false}}), json!({})).await;
    let header = "PROXY TCP4 192.0.2.1 127.0.0.1 1 2\r\n";
    assert_eq!(exchange(from("127.0.0.9", broker.http_address()).await, header).await, "");
    broker.wait_for_log("its address is not in listen.trusted_proxies").await;
}

#[tokio::test]
async fn s16_operators_are_audited_by_the_address_of_the_proxy_header() {
    // The test itself connects from another address, without a proxy.
    let broker = started_behind(
        json!({"admin_trusted_proxies": ["127.0.0.77/32"], "proxy_protocol": {"admin": true}}),
        json!({}),
    )
    .await;
    for (tenant, source) in [("one", "192.0.2.1"), ("two", "198.51.100.2")] {
        let mut stream = from("127.0.0.77", broker.admin_address()).await;
        stream
            .write_all(format!("PROXY TCP4 {source} 127.0.0.1 1 2\r\n").as_bytes())
            .await
            .unwrap();
        let answer = exchange(stream, &put(tenant, "")).await;
        assert!(answer.starts_with("HTTP/1.1 20"), "{answer}");
        assert_eq!(audited(&broker, tenant).await, source);
    }
}

#[tokio::test]
async fn s16_connections_of_trusted_proxies_are_not_counted_by_address() {
    let limits = json!({"limits": {"connections_per_address": 2}});
    let broker = started_behind(json!({}), limits).await;
    let mut open = Vec::new();
    for _ in 0..6 {
        let mut stream = from("127.0.0.1", broker.http_address()).await;
        stream.write_all(b"GET /nowhere HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        assert!(read_answer(&mut stream).await.starts_with("HTTP/1.1 404"));
        open.push(stream);
    }
}
