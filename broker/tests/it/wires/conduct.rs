//! The broker treats its clients in the same way on every wire in front:
//!
//! - messages in order
//! - an exact limit
//! - pieces of any size
//! - clients that end their half of a connection
//! - clients that do not read
//! - connections that break
//!
//! [`behind`] tests the same for backends. A suite of the `transport` crate tests the wires
//! themselves, each of them in both directions.

mod behind;
mod half_closed;

use std::{net::SocketAddr, time::Duration};

use quinn::{ConnectionError, SendStream};
use serde_json::{Value, json};
use testkit::{
    Authority, Direction, FakeBackend, FaultProxy, Gate, QuicPeer, Reply, TestBroker,
    eventually_within, http, within,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    net::TcpStream,
};

use super::{
    features,
    matrix::{Client, Doors, FRONTS, client, listening_everywhere},
    over_each, sse_endpoint, telling_half_closes,
};
use crate::{initialize_body, raw_http, request, slow_clients::call_messages, text_of};

const LIMIT: usize = 256 << 10;
const ANSWER_BYTES: usize = 200_000;
/// Answers that are more than the buffers of sockets, of a proxy and the outbox hold together.
const ANSWERS: u64 = 60;
/// Over QUIC the broker has no more in flight than its client accepts.
const ANSWERS_OF_QUIC: u64 = 12;
/// Log messages that are more than the buffers and the outbox hold.
const FLOOD: usize = 100;
/// On busy processors a few seconds are not much for so many bytes: only a hang takes this long.
const MEGABYTES_WITHIN: Duration = Duration::from_secs(60);
const IN_ORDER: usize = 300;
/// Messages that come in one piece.
const TOGETHER: u64 = 50;

/// The broker and backend that all clients of one wire share.
struct Topology {
    front: &'static str,
    broker: TestBroker,
    authority: Authority,
    backend: FakeBackend,
    gate: Gate,
    /// Gate for the calls of clients that have ended their half of a connection.
    held: Gate,
}

impl Topology {
    async fn new(front: &'static str) -> Self {
        let authority = Authority::new();
        let backend = FakeBackend::echo().await;
        backend.capabilities(json!({"tools": {}, "logging": {}}));
        backend.on("logging/setLevel", |_| async { Reply::Result(json!({})) });
        backend.tool("count", |call| async move {
            for n in 0..IN_ORDER {
                call.notify("notifications/message", json!({"level": "info", "data": n})).await;
            }
            Reply::text("done")
        });
        let gate = Gate::new();
        backend.tool("large", gate.before(Reply::text(&"x".repeat(ANSWER_BYTES))));
        backend.tool("hang", |_| async { Reply::Hang });
        let held = Gate::new();
        backend.tool("held", held.before(Reply::text("held no longer")));
        backend.tool("flood", |call| async move {
            for _ in 0..FLOOD {
                call.notify(
                    "notifications/message",
                    json!({"level": "info", "data": "x".repeat(ANSWER_BYTES)}),
                )
                .await;
            }
            Reply::text("flooded")
        });
        let limits = json!({
            "limits": {"message_bytes": LIMIT, "outbox_bytes": "1MiB"},
            "events": {"stream_bytes": "1MiB"},
        });
        let building =
            listening_everywhere(&authority).config(limits).config(telling_half_closes());
        let broker = building.backend("default", "b", backend.spec()).start().await;
        Self { front, broker, authority, backend, gate, held }
    }

    /// Answers all calls once they are all sent. The broker stops reading requests of a client that
    /// does not read.
    async fn answer_all(&self, calls: u64) {
        self.backend.wait_count("all calls", calls as usize, |seen| seen.calls("large")).await;
        self.gate.open();
    }

    async fn client(&self) -> Client {
        client(self.front, &self.broker, Doors::of(&self.broker), &self.authority).await
    }

    /// Connects through a proxy, over wires that have connections of TCP.
    async fn through_a_proxy(&self) -> Option<(FaultProxy, Client)> {
        let mut doors = Doors::of(&self.broker);
        let door = match self.front {
            "quic" | "quic_streams" => return None,
            "tcp" | "tls" => &mut doors.tcp,
            _ => &mut doors.http,
        };
        let proxy = FaultProxy::start(*door).await;
        *door = proxy.address();
        let client = client(self.front, &self.broker, doors, &self.authority).await;
        Some((proxy, client))
    }

    /// Returns whether a connection that breaks ends its session.
    fn ends_with_connection(&self) -> bool {
        !["http", "websocket"].contains(&self.front)
    }

    /// Closes the client in order and checks that so many sessions are left. That of a WebSocket
    /// whose connection broke waits for its client.
    async fn leave(&self, client: Client, left: usize) {
        if self.front == "sse" {
            client.client.disconnect(); // its stream is its session
        }
        drop(client);
        self.broker.admin().wait_sessions("default", left).await;
    }

    async fn sessions(&self) -> usize {
        self.broker.admin().sessions("default").await.len()
    }
}

async fn messages_come_in_order(topology: &Topology) {
    let before = topology.sessions().await;
    let client = topology.client().await;
    client.client.result("logging/setLevel", json!({"level": "debug"})).await;
    assert_eq!(text_of(&client.client.call("b__count", json!({})).await), "done");
    for n in 0..IN_ORDER {
        assert_eq!(client.client.notification("notifications/message").await["params"]["data"], n);
    }
    topology.leave(client, before).await;
}

/// Returns a call of so many bytes.
fn call_of(id: u64, bytes: usize) -> String {
    let with = |text: &str| {
        request(id, "tools/call", json!({"name": "b__echo", "arguments": {"text": text}}))
    };
    with(&"x".repeat(bytes - with("").len()))
}

async fn the_limit_is_exact(topology: &Topology) {
    let (before, seen) =
        (topology.sessions().await, topology.backend.count(|seen| seen.calls("echo")));
    let client = topology.client().await;
    client.client.send(call_of(9_000, LIMIT)).await;
    // The answer is an echo, and so above the limit of a backend's message: the request was not.
    let answer =
        client.client.wait_for_message("an answer", |message| message["id"] == 9_000).await;
    assert_ne!(answer["error"]["data"]["kind"], "message_too_large", "{answer}");
    assert_eq!(topology.backend.count(|seen| seen.calls("echo")), seen + 1);
    client.client.send(call_of(9_001, LIMIT + 1)).await;
    match topology.front {
        // A POST is answered by its own response, which this client does not read.
        "sse" => posts_over_the_limit_are_refused(topology).await,
        "websocket" => assert!(client.client.wait_for_close().await.starts_with("1009 ")),
        _ => drop(
            client
                .client
                .wait_for_message("a refusal", |message| {
                    message["error"]["data"]["kind"] == "message_too_large"
                })
                .await,
        ),
    }
    let other = topology.client().await;
    other.client.call("b__echo", json!({})).await;
    // Over HTTP+SSE there was one more of the right size.
    let right = 2 + usize::from(topology.front == "sse");
    assert_eq!(
        topology.backend.count(|seen| seen.calls("echo")),
        seen + right,
        "what is too large goes nowhere"
    );
    if topology.front == "sse" {
        client.client.disconnect();
    }
    drop(client);
    topology.leave(other, before + usize::from(topology.front == "websocket")).await;
}

/// Posts to the address that a stream of HTTP+SSE has named.
async fn posted(address: SocketAddr, path: &str, message: &str) -> String {
    raw_http(address, http::post(path, "connection: close\r\n", message).as_bytes()).await
}

/// A session over HTTP+SSE whose POSTs are the test's own.
struct SseStream {
    address: SocketAddr,
    path: String,
    stream: TcpStream,
    received: String,
}

impl SseStream {
    async fn open(topology: &Topology) -> Self {
        let address = topology.broker.http_address();
        let mut stream = TcpStream::connect(address).await.unwrap();
        let path = sse_endpoint(&mut stream).await;
        let opened = Self { address, path, stream, received: String::new() };
        for message in opening() {
            assert!(opened.post(&message).await.contains(" 202 "));
        }
        opened
    }

    async fn post(&self, message: &str) -> String {
        posted(self.address, &self.path, message).await
    }

    /// Returns the answer to the request with this id.
    async fn answer(&mut self, id: u64) -> Value {
        let answers = |event: &str| {
            let message: Value = serde_json::from_str(event.split_once("data: ")?.1).ok()?;
            (message["id"] == id).then_some(message)
        };
        loop {
            // A large event has several chunks, and a message has no CR LF.
            let is_data = |line: &&str| u32::from_str_radix(line, 16).is_err();
            let text: String = self.received.split("\r\n").filter(is_data).collect();
            if let Some(answer) = text.split("\n\n").find_map(answers) {
                return answer;
            }
            let mut piece = vec![0; 1 << 16];
            let count = within("the answer", self.stream.read(&mut piece)).await.unwrap();
            assert!(count > 0, "the stream ended: {}", self.received);
            self.received.push_str(&String::from_utf8_lossy(&piece[..count]));
        }
    }
}

async fn posts_over_the_limit_are_refused(topology: &Topology) {
    let mut stream = SseStream::open(topology).await;
    let refused = stream.post(&call_of(9_002, LIMIT + 1)).await;
    assert!(
        refused.starts_with("HTTP/1.1 413 ") && refused.contains("message_too_large"),
        "{refused}"
    );
    // The stream continues.
    assert!(stream.post(&call_of(9_003, LIMIT)).await.contains(" 202 "));
    stream.answer(9_003).await;
    assert!(!stream.received.contains("9002"), "{}", stream.received);
}

/// Returns the first messages of a client.
fn opening() -> [String; 2] {
    [
        initialize_body("2025-11-25"),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string(),
    ]
}

async fn pieces_of_any_size_have_the_same_result(topology: &Topology) {
    let before = topology.sessions().await;
    let text = "x".repeat(500);
    let client = match topology.through_a_proxy().await {
        Some((proxy, client)) => {
            for way in [Direction::Upstream, Direction::Downstream] {
                proxy.slice(way, true);
            }
            assert!(
                text_of(&client.client.call("b__echo", json!({"text": text})).await)
                    .contains(&text)
            );
            proxy.heal();
            features::many_calls(&client.client).await;
            all_in_one_piece(topology, &client).await;
            return topology.leave(client, before).await;
        }
        None => topology.client().await,
    };
    byte_by_byte(topology, &text).await;
    all_in_one_piece(topology, &client).await;
    topology.leave(client, before).await;
}

/// Sends many messages at once.
async fn all_in_one_piece(topology: &Topology, client: &Client) {
    let ids = 20_000..20_000 + TOGETHER;
    let echo =
        |id: u64| request(id, "tools/call", json!({"name": "b__echo", "arguments": {"n": id}}));
    let echoed = |answer: &Value, id: u64| {
        assert_eq!(text_of(&answer["result"]), json!({"n": id}).to_string())
    };
    match topology.front {
        // The requests are written before the first is answered: their answers come in the same
        // order.
        "http" => {
            let client = topology.broker.connected(json!({})).await;
            let posts: String = ids.clone().map(|id| client.post_as_text("", &echo(id))).collect();
            let last = client.post_as_text("connection: close\r\n", &request(1, "ping", json!({})));
            let received =
                raw_http(topology.broker.http_address(), format!("{posts}{last}").as_bytes()).await;
            let answers = received
                .split("HTTP/1.1 200 OK\r\n")
                .skip(1)
                .map(|answer| answer.split_once("\r\n\r\n").unwrap().1);
            let answers: Vec<Value> =
                answers.map(|body| serde_json::from_str(body).unwrap()).collect();
            assert_eq!(answers.len() as u64, TOGETHER + 1, "{received}");
            for (answer, id) in answers.iter().zip(ids) {
                assert_eq!(answer["id"], id, "{answer}");
                echoed(answer, id);
            }
            client.delete_session().await;
        }
        // The requests are the same, but the answers come on the stream.
        "sse" => {
            let mut stream = SseStream::open(topology).await;
            let posts: String =
                ids.clone().map(|id| http::post(&stream.path, "", &echo(id))).collect();
            let last =
                http::post(&stream.path, "connection: close\r\n", &request(1, "ping", json!({})));
            let received =
                raw_http(topology.broker.http_address(), format!("{posts}{last}").as_bytes()).await;
            assert_eq!(
                received.matches("HTTP/1.1 202 ").count() as u64,
                TOGETHER + 1,
                "{received}"
            );
            for id in ids {
                echoed(&stream.answer(id).await, id);
            }
        }
        _ => {
            client.client.send(ids.clone().map(echo).collect::<Vec<_>>().join("\n")).await;
            for id in ids {
                echoed(
                    &client
                        .client
                        .wait_for_message("an answer", |received| received["id"] == id)
                        .await,
                    id,
                );
            }
        }
    }
}

/// Opens a session over QUIC whose messages come a byte at a time: on its control stream, or each
/// on a stream of its own.
async fn byte_by_byte(topology: &Topology, text: &str) {
    let peer = QuicPeer::connect(topology.broker.quic_address(), &topology.authority, None, "mcp")
        .await
        .unwrap();
    let (mut control, reader) = peer.connection.open_bi().await.unwrap();
    let mut lines = BufReader::new(reader).lines();
    for message in opening() {
        dripped(&mut control, &message).await;
    }
    let opened = within("a session", lines.next_line()).await.unwrap().unwrap();
    assert!(opened.contains("protocolVersion"), "{opened}");
    let call = request(2, "tools/call", json!({"name": "b__echo", "arguments": {"text": text}}));
    let answer = if topology.front == "quic" {
        dripped(&mut control, &call).await;
        within("an answer", lines.next_line()).await.unwrap().unwrap()
    } else {
        let (mut writer, reader) = peer.connection.open_bi().await.unwrap();
        dripped(&mut writer, &call).await;
        writer.finish().unwrap();
        json!(QuicPeer::lines(reader).await).to_string()
    };
    assert!(answer.contains(text), "{answer}");
}

async fn dripped(writer: &mut SendStream, message: &str) {
    for byte in message.bytes().chain([b'\n']) {
        writer.write_all(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
}

async fn a_client_that_never_reads_is_cut(topology: &Topology) {
    let (before, cut) = (topology.sessions().await, [("scope", "outbox_bytes")]);
    let other = topology.client().await;
    match topology.front {
        // The broker drops log messages of an answer that is not read. The rest waits 30 s for its
        // client, as `h_23_unread_answers_end_the_connection_after_a_while`
        // shows.
        "http" => {
            let (proxy, client) = topology.through_a_proxy().await.unwrap();
            client.client.result("logging/setLevel", json!({"level": "debug"})).await;
            proxy.hold(Direction::Downstream, true);
            let call = client.client.start_call("b__flood", json!({})).await;
            let left_out = [("kind", "slow_client")];
            let admin = topology.broker.admin();
            eventually_within(MEGABYTES_WITHIN, "events that are left out", || async {
                let count = admin.metric("mcp_dropped_notifications_total", &left_out).await;
                if count > Some(0.0) { Ok(()) } else { Err(count) }
            })
            .await;
            other.client.call("b__echo", json!({})).await;
            proxy.heal();
            assert_eq!(text_of(&call.result_within(MEGABYTES_WITHIN).await), "flooded");
            topology.leave(client, before + 1).await;
        }
        "quic" | "quic_streams" => {
            let peer = QuicPeer::connect_narrowly(
                topology.broker.quic_address(),
                &topology.authority,
                4096,
            )
            .await;
            let (mut writer, _reader) = peer.connection.open_bi().await.unwrap();
            writer
                .write_all(call_messages(ANSWERS_OF_QUIC, "b__large", &json!({})).as_bytes())
                .await
                .unwrap();
            topology.answer_all(ANSWERS_OF_QUIC).await;
            topology
                .broker
                .admin()
                .wait_metric("mcp_rate_limited_total", &cut, |count| count == 1.0)
                .await;
            let ended = within("the end", peer.connection.closed()).await;
            // A client that was blocked until the broker has forgotten the connection gets a reset
            // instead.
            let is_reported = matches!(&ended, ConnectionError::ApplicationClosed(closed) if closed.error_code == 7_u32.into());
            assert!(is_reported || ended == ConnectionError::Reset, "{ended}");
        }
        "sse" => {
            let _stream = unread_stream(topology.broker.http_address()).await;
            topology.answer_all(ANSWERS).await;
            topology
                .broker
                .admin()
                .wait_metric("mcp_rate_limited_total", &cut, |count| count == 1.0)
                .await;
        }
        _ => {
            let (proxy, client) = topology.through_a_proxy().await.unwrap();
            proxy.hold(Direction::Downstream, true);
            for _ in 0..ANSWERS {
                client.client.start_call("b__large", json!({})).await;
            }
            topology.answer_all(ANSWERS).await;
            topology
                .broker
                .admin()
                .wait_metric("mcp_rate_limited_total", &cut, |count| count == 1.0)
                .await;
            client.client.disconnect();
        }
    }
    other.client.call("b__echo", json!({})).await;
    topology.leave(other, before + usize::from(topology.front == "websocket")).await;
}

/// Opens a stream of HTTP+SSE that is not read from its second event on, with a client that
/// requests much.
async fn unread_stream(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    socket2::SockRef::from(&stream).set_recv_buffer_size(4096).unwrap();
    let path = sse_endpoint(&mut stream).await;
    for message in call_messages(ANSWERS, "b__large", &json!({})).lines() {
        let answer = posted(address, &path, message).await;
        assert!(answer.contains(" 202 "), "{answer}");
    }
    stream
}

async fn a_broken_connection_ends_its_sessions_and_calls(topology: &Topology) {
    let before = topology.sessions().await;
    // Over TCP alone an orderly end would leave half of it open.
    let (proxy, client) = match topology.through_a_proxy().await {
        Some((proxy, client)) => (Some(proxy), client),
        None => (None, topology.client().await),
    };
    let (calls, cancelled) =
        (topology.backend.count(|seen| seen.calls("hang")), cancellations(&topology.backend));
    let _hanging = client.client.start_call("b__hang", json!({})).await;
    topology.backend.wait_count("the call", calls + 1, |seen| seen.calls("hang")).await;
    match (&proxy, &client.peer) {
        (Some(proxy), _) => proxy.reset(),
        (None, Some(peer)) => peer.close(1),
        (None, None) => unreachable!("a wire has one or the other"),
    }
    if topology.ends_with_connection() {
        topology
            .backend
            .wait_count("its cancellation", cancelled + 1, |seen| {
                seen.is("notifications/cancelled")
            })
            .await;
        topology.broker.admin().wait_sessions("default", before).await;
    } else {
        let other = topology.client().await;
        other.client.call("b__echo", json!({})).await;
        assert_eq!(
            (topology.sessions().await, cancellations(&topology.backend)),
            (before + 2, cancelled)
        );
    }
}

fn cancellations(backend: &FakeBackend) -> usize {
    backend.count(|seen| seen.is("notifications/cancelled"))
}

async fn conducts(front: &'static str) {
    let topology = Topology::new(front).await;
    messages_come_in_order(&topology).await;
    the_limit_is_exact(&topology).await;
    pieces_of_any_size_have_the_same_result(&topology).await;
    half_closed::a_half_closed_client_gets_its_answers(&topology).await;
    a_client_that_never_reads_is_cut(&topology).await;
    a_broken_connection_ends_its_sessions_and_calls(&topology).await;
}

over_each!(FRONTS.map(|(front, _)| front), conducts: http, sse, websocket, tcp, tls, quic, quic_streams);
