//! Clients with a session that begin a message and do not end it.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use testkit::{
    Authority, FakeBackend, Ledger, QuicPeer, TestBroker, TestClient, eventually, within,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};

use crate::{builder, cluster, initialize_body, kind, request};

const MIB: usize = 1024 * 1024;
const STALLED_BYTES: usize = 15 * MIB;
/// Together they send all the memory that the broker may use.
const STALLED: usize = 40;
/// The same for messages of 1 MiB.
const STALLED_SMALL: usize = 600;

/// Returns the messages that open a session over TCP.
fn opening_lines() -> String {
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    format!("{}\n{initialized}\n", initialize_body("2025-11-25"))
}

/// Sends the beginning and so many bytes more. Returns all that the broker sent before it closed
/// the connection.
async fn stall(address: SocketAddr, begins: Vec<u8>, bytes: usize) -> String {
    let (mut reader, mut writer) = TcpStream::connect(address).await.unwrap().into_split();
    let sending = async {
        writer.write_all(&begins).await?;
        for begin in (0..bytes).step_by(MIB) {
            writer.write_all(&[b'x'; MIB][..MIB.min(bytes - begin)]).await?;
        }
        std::io::Result::Ok(())
    };
    let mut received = Vec::new();
    // The broker may reset a connection on which bytes are left.
    let (_sent, _read) = tokio::join!(sending, reader.read_to_end(&mut received));
    String::from_utf8_lossy(&received).into_owned()
}

async fn start(config: Value, backend: &FakeBackend) -> TestBroker {
    builder()
        .single_process()
        .config(json!({"listen": {"tcp": "127.0.0.1:0"}}))
        .config(config)
        .backend("default", "b", backend.spec())
        .start()
        .await
}

#[tokio::test]
async fn r17_an_incomplete_message_of_a_session_ends_its_connection() {
    let backend = FakeBackend::echo().await;
    let broker = start(json!({"timeouts": {"request_read": "1s"}}), &backend).await;
    let idle = broker.duplex().tcp(broker.tcp_address()).await.connected(json!({})).await;
    let (tcp, http) = (broker.tcp_address(), broker.http_address());

    let line = format!("{}{{\"jsonrpc\":\"2.0\",", opening_lines());
    let received = within("the end of the TCP connection", stall(tcp, line.into(), 0)).await;
    let last: Value = serde_json::from_str(received.lines().last().unwrap()).unwrap();
    assert_eq!(kind(&last["error"]), "invalid_request", "{last}");

    // A frame without its last 99 bytes, and a message without its last fragment.
    for unfinished in [&[0x81, 0xe4, 0, 0, 0, 0, b'{'][..], &[0x01, 0x81, 0, 0, 0, 0, b'{']] {
        let mut begins = b"GET /ws HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\n\
            connection: upgrade\r\nsec-websocket-version: 13\r\n\
            sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            .to_vec();
        let text = initialize_body("2025-11-25");
        begins.extend([0x81, 0xfe]);
        begins.extend(u16::try_from(text.len()).unwrap().to_be_bytes());
        begins.extend([0; 4]);
        begins.extend(text.as_bytes());
        begins.extend(unfinished);
        let received = within("the end of the WebSocket", stall(http, begins, 0)).await;
        assert!(received.ends_with("not allowed"), "the close frame: {received}");
    }
    idle.call("b__echo", json!({})).await;
}

/// Checks that clients which do not end their messages take no memory from another client. Returns
/// what the broker answered them.
async fn assert_bounded(
    broker: &TestBroker,
    address: SocketAddr,
    begins: &str,
    (clients, bytes): (usize, usize),
) -> Vec<String> {
    let other = broker.connected(json!({})).await;
    let mut stalled = JoinSet::new();
    for _ in 0..clients {
        stalled.spawn(stall(address, begins.into(), bytes));
    }
    let mut answers = Vec::new();
    within("the end of the stalled connections", async {
        while !stalled.is_empty() {
            other.call("b__echo", json!({})).await;
            while let Some(answer) = stalled.try_join_next() {
                answers.push(answer.unwrap());
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let admin = broker.admin();
    let refused = admin.metric("mcp_overload_refused_total", &[("reason", "memory")]).await;
    assert_eq!(refused.unwrap_or(0.0), 0.0);
    answers
}

/// Checks that a part of the messages waited for memory.
#[track_caller]
fn assert_overloaded(answers: &[String]) {
    assert!(answers.iter().any(|answer| answer.contains("\"overloaded\"")), "{answers:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r16_incomplete_lines_of_a_tenant_are_bounded_in_bytes() {
    let backend = FakeBackend::echo().await;
    let broker = start(little_memory("4s"), &backend).await;
    let stalled = (STALLED, STALLED_BYTES);
    let lines = opening_lines();
    assert_overloaded(&assert_bounded(&broker, broker.tcp_address(), &lines, stalled).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r16_incomplete_bodies_of_a_tenant_are_bounded_in_bytes() {
    let backend = FakeBackend::echo().await;
    let broker = start(little_memory("4s"), &backend).await;
    let (address, stalled) = (broker.http_address(), (STALLED, STALLED_BYTES));
    assert_overloaded(&assert_bounded(&broker, address, &post_head(16 * MIB), stalled).await);
    // Their time ends in the order in which they wait, so each of them gets memory just before.
    assert_bounded(&broker, address, &post_head(MIB), (STALLED_SMALL, MIB - 1)).await;
}

/// Returns the head of a POST with a body of this size.
fn post_head(bytes: usize) -> String {
    format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\naccept: application/json, text/event-stream\r\n\
         content-length: {bytes}\r\n\r\n"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r16_a_quic_request_without_memory_gets_overloaded() {
    let authority = Authority::new();
    let server = authority.server("server");
    let config = json!({
        "listen": {"tcp": "127.0.0.1:0", "quic": "127.0.0.1:0"},
        "tls": {"cert_file": server.cert, "key_file": server.key},
        "overload": {"memory_bytes": "600MiB"},
        "timeouts": {"request_read": "8s"},
    });
    let backend = FakeBackend::echo().await;
    let broker = start(config, &backend).await;
    let peer = QuicPeer::connect(broker.quic_address(), &authority, None, "mcp").await.unwrap();
    let _client = broker.duplex().over(peer.control().await).connected(json!({})).await;
    // The time of the stream begins before that of its message.
    let (mut writer, reader) = peer.connection.open_bi().await.unwrap();
    writer.write_all(b"\n").await.unwrap();
    let mut stalled = JoinSet::new();
    for _ in 0..10 {
        stalled.spawn(stall(broker.tcp_address(), opening_lines().into(), STALLED_BYTES));
    }
    // A message of this size waits when the memory is used up.
    let other = broker.duplex().tcp(broker.tcp_address()).await.connected(json!({})).await;
    let text = "x".repeat(MIB);
    while timeout(Duration::from_millis(500), other.call("b__echo", json!({"text": text})))
        .await
        .is_ok()
    {}
    // The broker stops the stream that it refuses.
    let _stopped = writer.write_all(&[b'x'; MIB]).await;
    let answers = QuicPeer::lines(reader).await;
    assert_eq!(kind(&answers[0]["error"]), "overloaded", "{answers:?}");
}

/// Returns settings with which the bodies of this file wait for memory, up to `request_read`.
fn little_memory(request_read: &str) -> Value {
    json!({"overload": {"memory_bytes": "600MiB"}, "timeouts": {"request_read": request_read}})
}

/// Returns a request that needs memory while it is incomplete.
fn long_ping(id: u64, bytes: usize) -> String {
    request(id, "ping", json!({"_meta": {"pad": "x".repeat(bytes)}}))
}

/// Uses up the memory for incomplete messages of the client's tenant. The memory is free again when
/// the returned tasks have ended.
async fn use_up_memory(
    address: SocketAddr,
    credential: &str,
    client: &TestClient,
) -> JoinSet<String> {
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\n{credential}content-type: application/json\r\n\
         accept: application/json, text/event-stream\r\ncontent-length: {}\r\n\r\n",
        16 * MIB
    );
    let mut stalled = JoinSet::new();
    for _ in 0..5 {
        stalled.spawn(stall(address, head.clone().into(), STALLED_BYTES));
    }
    eventually("a message waits for memory", || async {
        match timeout(Duration::from_millis(500), client.post(long_ping(900, MIB / 4))).await {
            Ok(answer) => Err(answer.status),
            Err(_) => Ok(()),
        }
    })
    .await;
    stalled
}

/// Sends a request over a shared connection. Returns the body of the answer.
async fn exchange(mut sender: SendRequest<Full<Bytes>>, session: String, body: String) -> String {
    let request = http::Request::post("http://localhost/mcp")
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .header("mcp-session-id", session)
        .body(Full::from(body))
        .unwrap();
    sender.ready().await.unwrap();
    let answer = sender.send_request(request).await.unwrap();
    String::from_utf8(answer.collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r16_bodies_that_wait_for_memory_do_not_block_their_http2_connection() {
    let backend = FakeBackend::echo().await;
    let broker = start(little_memory("2m"), &backend).await;
    let client = broker.connected(json!({})).await;
    let stalled = use_up_memory(broker.http_address(), "", &client).await;
    let socket = TcpStream::connect(broker.http_address()).await.unwrap();
    let (sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    let exchange = |body| exchange(sender.clone(), client.session().unwrap(), body);
    let mut bodies = JoinSet::new();
    for id in 1_000..1_016 {
        bodies.spawn(exchange(long_ping(id, MIB)));
    }
    for _ in 0..8 {
        let refused = within("a refusal", bodies.join_next()).await.unwrap().unwrap();
        assert!(refused.contains("\"overloaded\""), "{refused}");
    }
    let answer = within("another request", exchange(long_ping(1_016, 0))).await;
    assert!(answer.contains("\"result\""), "{answer}");
    assert!(bodies.try_join_next().is_none(), "as many as may wait");
    drop(stalled);
    while let Some(answer) = within("an answer", bodies.join_next()).await {
        let answer = answer.unwrap();
        assert!(answer.contains("\"result\""), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r16_a_forwarded_message_does_not_wait_for_memory_at_the_owner() {
    let ledger = Ledger::start().await;
    let cluster = cluster::on(&ledger).config(little_memory("2m")).cluster(2).start().await;
    let key = cluster.operator().create_key("default").await;
    let client = cluster::opened_at(&cluster, 0, &key).await;
    let owner = cluster.replicas()[0].http_address();
    let credential = format!("authorization: Bearer {key}\r\n");
    let _stalled = use_up_memory(owner, &credential, &client).await;
    let answer = cluster.at(1, &client).post(long_ping(7, MIB / 4)).await.json().await;
    assert!(answer["result"].is_object(), "{answer}");
}
