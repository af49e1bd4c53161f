//! Hostile HTTP/2 at the data plane, in frames written by hand. A client that floods is closed or
//! refused, and costs other clients nothing. A text that is not a request never reaches a handler.

use std::time::Duration;

use serde_json::json;
use testkit::{FakeBackend, Reply, TestBroker, TestClient, eventually, eventually_within, within};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{alone_with, configured_alone, initialize_body, request};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

const SETTINGS_INITIAL_WINDOW: u16 = 4;

/// Returns a frame (RFC 9113, 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Returns an integer with a prefix of seven bits (RFC 7541, 5.1).
fn length(value: usize) -> Vec<u8> {
    let Some(mut rest) = value.checked_sub(127) else { return vec![value as u8] };
    let mut bytes = vec![127];
    while rest >= 128 {
        bytes.push((rest % 128 + 128) as u8);
        rest /= 128;
    }
    bytes.push(rest as u8);
    bytes
}

/// Returns one header, literal and not indexed (RFC 7541, 6.2.2).
fn header(name: &str, value: &[u8]) -> Vec<u8> {
    [&[0][..], &length(name.len()), name.as_bytes(), &length(value.len()), value].concat()
}

type Headers<'a> = [(&'a str, &'a str)];

fn block(headers: &Headers<'_>) -> Vec<u8> {
    headers.iter().flat_map(|(name, value)| header(name, value.as_bytes())).collect()
}

const POST: [(&str, &str); 6] = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/mcp"),
    (":authority", "localhost"),
    ("content-type", "application/json"),
    ("accept", "application/json, text/event-stream"),
];

/// A connection whose settings are exchanged.
struct Raw {
    stream: TcpStream,
    seen: Vec<u8>,
}

/// A frame of the broker.
#[derive(Debug)]
struct ReceivedFrame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Raw {
    async fn connect(broker: &TestBroker, settings: &[(u16, u32)]) -> Self {
        let mut stream = TcpStream::connect(broker.http_address()).await.unwrap();
        let settings: Vec<u8> = settings
            .iter()
            .flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
            .collect();
        let hello = [
            &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
            &frame(SETTINGS, 0, 0, &settings),
            &frame(SETTINGS, ACK, 0, &[]),
        ]
        .concat();
        stream.write_all(&hello).await.unwrap();
        let mut raw = Self { stream, seen: Vec::new() };
        let first = raw.next().await.expect("the broker speaks HTTP/2");
        assert_eq!(first.kind, SETTINGS);
        raw
    }

    /// Writes until the write fails. A broker that closes, or that stops reading, accepts no more.
    async fn pour(&mut self, bytes: &[u8]) {
        let _taken =
            tokio::time::timeout(Duration::from_secs(3), self.stream.write_all(bytes)).await;
    }

    /// Returns the next frame; `None` at the end of the connection.
    async fn next(&mut self) -> Option<ReceivedFrame> {
        loop {
            if let Some(frame) = self.take_seen() {
                return Some(frame);
            }
            match within("a frame", self.stream.read_buf(&mut self.seen)).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// Returns the next frame that has arrived completely.
    fn take_seen(&mut self) -> Option<ReceivedFrame> {
        let head = self.seen.first_chunk::<9>()?;
        let size = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        if self.seen.len() < 9 + size {
            return None;
        }
        let rest = self.seen.split_off(9 + size);
        let bytes = std::mem::replace(&mut self.seen, rest);
        Some(ReceivedFrame {
            kind: bytes[3],
            flags: bytes[4],
            stream: u32::from_be_bytes([bytes[5], bytes[6], bytes[7], bytes[8]]),
            payload: bytes[9..].to_vec(),
        })
    }

    /// Answers pings, and opens no window, until the connection ends.
    async fn answer_pings(&mut self) {
        loop {
            while let Some(seen) = self.take_seen() {
                if seen.kind == PING && seen.flags & ACK == 0 {
                    let _ended = self.stream.write_all(&frame(PING, ACK, 0, &seen.payload)).await;
                }
            }
            match self.stream.read_buf(&mut self.seen).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }

    /// Returns the first frame that `wanted` accepts; `None` if the connection ends before.
    async fn find(&mut self, wanted: impl Fn(&ReceivedFrame) -> bool) -> Option<ReceivedFrame> {
        while let Some(frame) = self.next().await {
            if wanted(&frame) {
                return Some(frame);
            }
        }
        None
    }

    /// Checks that the connection ends, with a reason or without.
    async fn ends(&mut self, what: &str) {
        let answer = self.find(|frame| frame.kind == HEADERS).await;
        assert!(answer.is_none(), "{what} was answered: {answer:?}");
    }

    /// Returns the code by which a stream was refused; `None` if the connection was.
    async fn refusal(&mut self, stream: u32, what: &str) -> Option<u32> {
        let frame = self
            .find(|frame| {
                frame.stream == stream && (frame.kind == RST_STREAM || frame.kind == HEADERS)
            })
            .await?;
        if frame.kind == HEADERS {
            // 400, 404, 413 or 431 from the static table or as a literal: anything but the index of
            // 200.
            assert_ne!(frame.payload[0], 0x88, "{what} was answered with 200");
            return Some(0);
        }
        Some(u32::from_be_bytes(frame.payload[..4].try_into().unwrap()))
    }
}

async fn started() -> (TestBroker, FakeBackend, TestClient) {
    let backend = FakeBackend::echo().await;
    let broker = alone_with(&backend).await;
    let canary = broker.connected(json!({})).await;
    (broker, backend, canary)
}

/// Checks that another client is served, and the memory is that of a broker at rest.
async fn unharmed(broker: &TestBroker, canary: &TestClient) {
    canary.call("b__echo", json!({})).await;
    let resident = broker.admin().metric("process_resident_memory_bytes", &[]).await.unwrap();
    assert!(resident < f64::from(400 << 20), "{resident} bytes");
    assert!(!broker.log().contains("panicked"));
}

#[tokio::test]
async fn h_20_streams_that_are_reset_at_once_end_the_connection() {
    let (broker, backend, canary) = started().await;
    let mut raw = Raw::connect(&broker, &[]).await;
    let mut flood = Vec::new();
    for stream in (1..80_000).step_by(2) {
        flood.extend(frame(HEADERS, END_HEADERS, stream, &block(&POST)));
        flood.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
    }
    raw.pour(&flood).await;
    let goaway = raw.find(|frame| frame.kind == GOAWAY).await;
    if let Some(goaway) = goaway {
        assert_eq!(goaway.payload[4..8], 11_u32.to_be_bytes(), "ENHANCE_YOUR_CALM: {goaway:?}");
    }
    assert!(raw.next().await.is_none_or(|frame| frame.kind == GOAWAY), "the connection ends");
    unharmed(&broker, &canary).await;
    assert_eq!(
        backend.recorded_of("initialize").len(),
        backend.recorded_of("notifications/initialized").len()
    );
}

/// The clients of a gateway share its connection, and one of them can give up many requests.
#[tokio::test]
async fn h_20_requests_given_up_together_leave_the_others_of_their_connection() {
    let (broker, _backend, canary) = started().await;
    let mut raw = Raw::connect(&broker, &[]).await;
    let mut requests = Vec::new();
    for stream in (1..400).step_by(2) {
        requests.extend(frame(HEADERS, END_HEADERS, stream, &block(&POST)));
        requests.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
    }
    requests.extend(frame(HEADERS, END_HEADERS, 401, &block(&POST)));
    requests.extend(frame(DATA, END_STREAM, 401, initialize_body("2025-11-25").as_bytes()));
    raw.pour(&requests).await;
    let answer = raw.find(|frame| frame.stream == 401 && frame.kind == HEADERS).await;
    assert_eq!(answer.expect("an answer").payload[0], 0x88, "200 of the static table");
    unharmed(&broker, &canary).await;
}

#[tokio::test]
async fn h_20_many_provoked_resets_of_the_broker_end_the_connection() {
    let (broker, _backend, canary) = started().await;
    let mut raw = Raw::connect(&broker, &[]).await;
    let mut flood = Vec::new();
    for stream in (1..8_000).step_by(2) {
        flood.extend(frame(HEADERS, END_HEADERS, stream, &block(&POST)));
        // An increment of zero is a fault of the stream.
        flood.extend(frame(WINDOW_UPDATE, 0, stream, &0_u32.to_be_bytes()));
    }
    raw.pour(&flood).await;
    assert!(raw.find(|frame| frame.kind == GOAWAY).await.is_some(), "a reason");
    unharmed(&broker, &canary).await;
}

#[tokio::test]
async fn h_21_endless_heads_close_the_connection() {
    let (broker, _backend, canary) = started().await;
    for (what, piece) in [("empty", Vec::new()), ("full", header("x", &[b'y'; 16_000]))] {
        let mut raw = Raw::connect(&broker, &[]).await;
        let mut flood = frame(HEADERS, END_STREAM, 1, &block(&POST));
        let count = if piece.is_empty() { 100_000 } else { 1_000 };
        (0..count).for_each(|_| flood.extend(frame(CONTINUATION, 0, 1, &piece)));
        raw.pour(&flood).await;
        raw.ends(what).await;
    }
    // Small on the wire, large when unpacked: one entry of the dynamic table, named sixteen
    // thousand times.
    let mut raw = Raw::connect(&broker, &[]).await;
    let entry = [&[0x40][..], &length(1), b"x", &length(3_900), &[b'y'; 3_900]].concat();
    let bomb = [block(&POST), entry, vec![0x80 | 62; 12_000]].concat();
    raw.pour(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &bomb)).await;
    raw.refusal(1, "a bomb").await;
    unharmed(&broker, &canary).await;
}

#[tokio::test]
async fn h_22_floods_of_small_frames_do_not_affect_other_clients() {
    let (broker, _backend, canary) = started().await;
    let floods = [
        ("settings", frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255])),
        ("pings", frame(PING, 0, 0, &[7; 8])),
        ("priorities", frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 15])),
        ("window updates", frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])),
        ("unknown frames", frame(99, 0, 0, &[])),
    ];
    let mut held = Vec::new();
    for (what, one) in floods {
        let mut raw = Raw::connect(&broker, &[]).await;
        // The client does not read the broker's answers to that.
        raw.pour(&one.repeat(100_000)).await;
        canary.call("b__echo", json!({"during": what})).await;
        held.push(raw);
    }
    let mut raw = Raw::connect(&broker, &[]).await;
    let open = frame(HEADERS, END_HEADERS, 1, &block(&POST));
    raw.pour(&[open, frame(DATA, 0, 1, &[]).repeat(100_000)].concat()).await;
    canary.call("b__echo", json!({})).await;
    unharmed(&broker, &canary).await;
}

/// Two fifths of a window. A whole one may end the connection if the broker reads the body too late.
#[tokio::test]
async fn h_22_a_message_in_frames_of_one_byte_is_read() {
    let (broker, _backend, canary) = started().await;
    let mut raw = Raw::connect(&broker, &[]).await;
    let body = format!("{}{}", initialize_body("2025-11-25"), " ".repeat(50_000));
    let open = frame(HEADERS, END_HEADERS, 1, &block(&POST));
    let bytes: Vec<u8> = body.bytes().flat_map(|byte| frame(DATA, 0, 1, &[byte])).collect();
    raw.pour(&[open, bytes, frame(DATA, END_STREAM, 1, &[])].concat()).await;
    let answer = raw.find(|frame| frame.kind == HEADERS).await.expect("an answer");
    assert_eq!(answer.payload[0], 0x88, "200 of the static table");
    unharmed(&broker, &canary).await;
}

#[tokio::test]
async fn h_23_ten_thousand_streams_are_refused() {
    let (broker, _backend, canary) = started().await;
    let mut raw = Raw::connect(&broker, &[]).await;
    let flood: Vec<u8> = (0..10_000_u32)
        .flat_map(|n| frame(HEADERS, END_HEADERS, 2 * n + 1, &block(&POST)))
        .collect();
    raw.pour(&flood).await;
    let refused = raw
        .find(|frame| {
            frame.kind == GOAWAY
                || (frame.kind == RST_STREAM && frame.payload == 7_u32.to_be_bytes())
        })
        .await;
    assert!(refused.is_some(), "REFUSED_STREAM, or the end of the connection with a reason");
    unharmed(&broker, &canary).await;
}

#[tokio::test]
async fn h_23_unread_answers_end_the_connection_after_a_while() {
    let backend = FakeBackend::echo().await;
    backend.tool("large", |_| async { Reply::text(&"x".repeat(12 << 20)) });
    backend.tool("progressing", |call| async move {
        call.progress(1.0, 2.0).await;
        Reply::text(&"x".repeat(12 << 20))
    });
    let broker = alone_with(&backend).await;
    let canary = broker.connected(json!({})).await;
    let open = async || broker.admin().metric("process_open_fds", &[]).await.unwrap();
    canary.call("b__echo", json!({})).await; // so that what it needs is open
    let before = open().await;
    let mut half_deaf = unread_large_event(&broker, &canary).await;
    // Over HTTP/1.1 the answer is more than the sockets hold.
    let _deaf = unread_large_requests_over_http1(&broker, &canary).await;
    let mut raw = Raw::connect(&broker, &[(SETTINGS_INITIAL_WINDOW, 0)]).await;
    let body = initialize_body("2025-11-25");
    for stream in (1..100).step_by(2) {
        raw.pour(&frame(HEADERS, END_HEADERS, stream, &block(&POST))).await;
        raw.pour(&frame(DATA, END_STREAM, stream, body.as_bytes())).await;
    }
    canary.call("b__echo", json!({})).await;
    // The broker waits 30 s for a client that does not read (docs/transports.md).
    let ended = tokio::time::timeout(Duration::from_secs(60), async {
        tokio::join!(half_deaf.answer_pings(), raw.answer_pings());
    });
    ended.await.expect("both connections end");
    // The other connection's wait began later: when its answers were there.
    eventually_within(Duration::from_secs(60), "the end of both", async || {
        let now = open().await;
        // One more may be the connection of this request, or that to the backend.
        if now <= before + 2.0 { Ok(()) } else { Err((before, now)) }
    })
    .await;
    unharmed(&broker, &canary).await;
}

/// A client without a credential must not hold a connection with pings alone.
#[tokio::test]
async fn an_unused_connection_ends_and_an_open_stream_keeps_its_connection() {
    let backend = FakeBackend::echo().await;
    let broker = configured_alone(json!({"timeouts": {"http_idle": "1s"}}), backend.spec()).await;
    let canary = broker.connected(json!({})).await;
    let session = canary.session().unwrap();
    let get = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/mcp"),
        (":authority", "localhost"),
        ("accept", "text/event-stream"),
        ("mcp-session-id", &*session),
    ];
    let mut listening = Raw::connect(&broker, &[]).await;
    listening.pour(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&get))).await;
    assert!(listening.find(|frame| frame.kind == HEADERS).await.is_some());
    let mut unused = Raw::connect(&broker, &[]).await;
    unused.pour(&frame(HEADERS, END_HEADERS, 1, &block(&POST))).await;
    let body = initialize_body("2025-11-25");
    unused.pour(&frame(DATA, END_STREAM, 1, body.as_bytes())).await;
    assert!(unused.find(|frame| frame.kind == DATA).await.is_some());
    within("the end of the unused connection", unused.answer_pings()).await;
    let head = [block(&POST), block(&[("mcp-session-id", &*session)])].concat();
    listening.pour(&frame(HEADERS, END_HEADERS, 3, &head)).await;
    listening.pour(&frame(DATA, END_STREAM, 3, request(9, "ping", json!({})).as_bytes())).await;
    assert!(listening.find(|frame| frame.stream == 3 && frame.kind == DATA).await.is_some());
}

/// RFC 9110, 9.3.2: an answer to HEAD has no content.
#[tokio::test]
async fn an_answer_to_head_has_no_content() {
    let (broker, _backend, _canary) = started().await;
    let mut raw = Raw::connect(&broker, &[]).await;
    for (stream, path) in [(1, "/mcp"), (3, "/nothing")] {
        let head = [
            (":method", "HEAD"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "localhost"),
        ];
        raw.pour(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(&head))).await;
        let frame = raw.find(|frame| frame.stream == stream).await.expect("an answer");
        assert_eq!(
            (frame.kind, frame.flags & END_STREAM),
            (HEADERS, END_STREAM),
            "{path}: {frame:?}"
        );
    }
}

/// Requests a large event, and takes only the events before it.
async fn unread_large_event(broker: &TestBroker, canary: &TestClient) -> Raw {
    let params =
        json!({"name": "b__progressing", "arguments": {}, "_meta": {"progressToken": "p"}});
    let session = canary.session().unwrap();
    let head = [block(&POST), block(&[("mcp-session-id", &session)])].concat();
    let mut raw = Raw::connect(broker, &[(SETTINGS_INITIAL_WINDOW, 2048)]).await;
    raw.pour(&frame(HEADERS, END_HEADERS, 1, &head)).await;
    raw.pour(&frame(DATA, END_STREAM, 1, request(600, "tools/call", params).as_bytes())).await;
    let first = raw.find(|frame| frame.kind == DATA).await.expect("the progress");
    let text = String::from_utf8_lossy(&first.payload).into_owned();
    assert!(text.contains("notifications/progress"), "{text}");
    // The event waits in the broker, and counts there.
    broker.admin().wait_metric("mcp_outbox_bytes", &[], |bytes| bytes >= (12 << 20) as f64).await;
    raw
}

/// Sends requests of the canary's session on connections that are never read from.
async fn unread_large_requests_over_http1(
    broker: &TestBroker,
    canary: &TestClient,
) -> Vec<TcpStream> {
    let body = request(700, "tools/call", json!({"name": "b__large", "arguments": {}}));
    let mut deaf = Vec::new();
    for id in 0..4 {
        let body = body.replace("700", &(700 + id).to_string());
        let mut socket = TcpStream::connect(broker.http_address()).await.unwrap();
        socket2::SockRef::from(&socket).set_recv_buffer_size(4096).unwrap();
        socket.write_all(canary.post_as_text("", &body).as_bytes()).await.unwrap();
        deaf.push(socket);
    }
    deaf
}

/// Returns heads that are not a request in HTTP/2.
fn broken_heads() -> Vec<(&'static str, Vec<u8>)> {
    let with = |more: &Headers<'_>| [block(&POST), block(more)].concat();
    let without = |name: &str| {
        block(&POST.iter().copied().filter(|(one, _)| *one != name).collect::<Vec<_>>())
    };
    vec![
        ("a header in capitals", with(&[("X-Y", "z")])),
        ("CR LF in a value", with(&[("x", "a\r\nb: c")])),
        ("NUL in a value", with(&[("x", "a\0b")])),
        ("a space in a name", with(&[("x y", "z")])),
        ("an empty name", with(&[("", "z")])),
        ("transfer-encoding", with(&[("transfer-encoding", "chunked")])),
        ("connection", with(&[("connection", "close")])),
        ("te", with(&[("te", "gzip")])),
        ("two paths", with(&[(":path", "/mcp")])),
        ("an unknown pseudo-header", with(&[(":x", "y")])),
        ("no method", without(":method")),
        ("no path", without(":path")),
        ("an empty path", [without(":path"), block(&[(":path", "")])].concat()),
        ("a pseudo-header at the end", [without(":path"), block(&[(":path", "/mcp")])].concat()),
        ("another host", with(&[("host", "evil.example")])),
        (
            "an evil authority",
            [block(&[(":authority", "evil.example")]), without(":authority")].concat(),
        ),
        ("a length that lies", with(&[("content-length", "5")])),
        ("two lengths", with(&[("content-length", "5"), ("content-length", "6")])),
        ("an index that is none", [block(&POST), vec![0xff, 0xff, 0xff, 0x7f]].concat()),
        ("a length beyond the block", [block(&POST), vec![0, 1, b'x', 127, 127]].concat()),
        ("a table that is too large", [vec![0x3f, 0xff, 0xff, 0xff, 0x7f], block(&POST)].concat()),
    ]
}

#[tokio::test]
async fn h_24_an_invalid_request_reaches_no_handler() {
    let (broker, _backend, canary) = started().await;
    let sessions = broker.admin().sessions("default").await.len();
    let body = initialize_body("2025-11-25");
    for (what, head) in broken_heads() {
        let mut raw = Raw::connect(&broker, &[]).await;
        raw.pour(
            &[frame(HEADERS, END_HEADERS, 1, &head), frame(DATA, END_STREAM, 1, body.as_bytes())]
                .concat(),
        )
        .await;
        raw.refusal(1, what).await;
    }
    // Frames in a state that does not allow them end the connection.
    for (what, bytes) in [
        ("data of no stream", frame(DATA, 0, 0, b"x")),
        ("data of an idle stream", frame(DATA, 0, 5, b"x")),
        ("an even stream", frame(HEADERS, END_HEADERS | END_STREAM, 2, &block(&POST))),
        ("a head of no stream", frame(HEADERS, END_HEADERS | END_STREAM, 0, &block(&POST))),
        ("settings of a stream", frame(SETTINGS, 0, 1, &[])),
        ("settings cut short", frame(SETTINGS, 0, 0, &[0, 4, 0])),
        ("an acknowledgement with a payload", frame(SETTINGS, ACK, 0, &[0, 4, 0, 0, 0, 0])),
        ("a window beyond measure", frame(SETTINGS, 0, 0, &[0, 4, 255, 255, 255, 255])),
        ("a short ping", frame(PING, 0, 0, &[1, 2, 3])),
        (
            "a continuation frame follows no open message",
            frame(CONTINUATION, END_HEADERS, 1, &block(&POST)),
        ),
        ("a push", frame(5, END_HEADERS, 1, &[0, 0, 0, 2])),
        ("too much padding", frame(HEADERS, END_HEADERS | 8, 1, &[255, 0x82])),
        (
            "a frame beyond measure",
            [&[0xff, 0xff, 0xff, DATA, 0, 0, 0, 0, 1][..], &[0; 64]].concat(),
        ),
        (
            "window overflow",
            [
                frame(WINDOW_UPDATE, 0, 0, &[0x7f, 255, 255, 255]),
                frame(WINDOW_UPDATE, 0, 0, &[0x7f, 255, 255, 255]),
            ]
            .concat(),
        ),
    ] {
        let mut raw = Raw::connect(&broker, &[]).await;
        raw.pour(&bytes).await;
        assert!(
            raw.find(|frame| frame.kind == GOAWAY && frame.flags == 0).await.is_some(),
            "{what}"
        );
    }
    eventually("no further session", || async {
        let now = broker.admin().sessions("default").await.len();
        if now == sessions { Ok(()) } else { Err(now) }
    })
    .await;
    unharmed(&broker, &canary).await;
}
