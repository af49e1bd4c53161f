//! The TCP listener: framing, identity of a client, the life of a session.

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{TestBroker, eventually, within};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

use super::{everything, listening, with_stdio, with_tcp};
use crate::{initialize_body, kind, request, stdio, text_of};

/// Opens a raw connection with a session.
async fn opened(broker: &TestBroker) -> BufReader<TcpStream> {
    let mut socket = BufReader::new(TcpStream::connect(broker.tcp_address()).await.unwrap());
    let hello = format!(
        "{}\n{}\n",
        initialize_body("2025-11-25"),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"})
    );
    socket.write_all(hello.as_bytes()).await.unwrap();
    assert_eq!(line(&mut socket).await["result"]["protocolVersion"], "2025-11-25");
    socket
}

async fn line(socket: &mut BufReader<TcpStream>) -> Value {
    let mut text = String::new();
    within("a line", socket.read_line(&mut text)).await.unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"))
}

fn echo(id: u64) -> String {
    request(id, "tools/call", json!({"name": "b__echo", "arguments": {"id": id}}))
}

/// Reads the answers to these ids, in any order.
async fn answers(socket: &mut BufReader<TcpStream>, ids: std::ops::Range<u64>) {
    let mut left: std::collections::BTreeSet<u64> = ids.collect();
    while !left.is_empty() {
        let answer = line(socket).await;
        let id = answer["id"].as_u64().unwrap_or_else(|| panic!("{answer}"));
        assert!(left.remove(&id), "{answer}");
        assert_eq!(text_of(&answer["result"]), format!("{{\"id\":{id}}}"));
    }
}

#[tokio::test]
async fn j_17_good_lines_after_a_bad_one_are_answered() {
    let broker = with_stdio().await;
    let mut socket = opened(&broker).await;
    // The messages come in one segment.
    let text =
        format!("{{\"jsonrpc\":\n{}\nnot json\n{}\n[]\n\n{}\n", echo(10), echo(11), echo(12));
    socket.write_all(text.as_bytes()).await.unwrap();
    let mut codes = Vec::new();
    let mut answered = 0;
    while answered < 3 || codes.len() < 3 {
        let received = line(&mut socket).await;
        match received["error"]["code"].as_i64() {
            Some(code) => {
                assert_eq!(received["id"], Value::Null, "{received}");
                codes.push(code);
            }
            None => answered += 1,
        }
    }
    assert_eq!(codes, [-32700, -32700, -32600]);
    // The message comes byte by byte.
    for byte in format!("}}\n{}\n", echo(13)).bytes() {
        socket.write_all(&[byte]).await.unwrap();
        socket.flush().await.unwrap();
    }
    assert_eq!(line(&mut socket).await["error"]["code"], -32700);
    answers(&mut socket, 13..14).await;
}

#[tokio::test]
async fn j_18_a_line_without_end_is_refused_at_the_limit() {
    let broker = listening()
        .config(json!({"limits": {"message_bytes": 100_000}}))
        .backend("default", "b", stdio().spec())
        .start()
        .await;
    for open in [false, true] {
        let mut socket = match open {
            true => opened(&broker).await,
            false => BufReader::new(TcpStream::connect(broker.tcp_address()).await.unwrap()),
        };
        // More than the limit, and no end; the broker need not read it all.
        let _closed = socket.write_all(&vec![b'['; 1_000_000]).await;
        let refused = line(&mut socket).await;
        assert_eq!(
            (kind(&refused["error"]), &refused["id"]),
            ("message_too_large", &Value::Null),
            "session open: {open}"
        );
        assert_eq!(within("the end", socket.read_to_end(&mut Vec::new())).await.unwrap_or(0), 0);
    }
}

#[tokio::test]
async fn a_message_before_a_session_must_be_short() {
    let broker = with_stdio().await;
    // The connection has no session, and the message is far below the limit.
    let mut socket = BufReader::new(TcpStream::connect(broker.tcp_address()).await.unwrap());
    let _closed = socket.write_all(&vec![b'['; 200_000]).await;
    assert_eq!(kind(&line(&mut socket).await["error"]), "message_too_large");
    assert_eq!(within("the end", socket.read_to_end(&mut Vec::new())).await.unwrap_or(0), 0);
    let mut socket = opened(&broker).await;
    let arguments = json!({"text": "x".repeat(1_000_000)});
    socket
        .write_all(
            format!(
                "{}\n",
                request(10, "tools/call", json!({"name": "b__echo", "arguments": arguments}))
            )
            .as_bytes(),
        )
        .await
        .unwrap();
    assert_eq!(line(&mut socket).await["id"], 10);
}

#[tokio::test]
async fn long_messages_of_clients_without_a_session_share_one_limit() {
    let broker = with_stdio().await;
    let mut strangers = Vec::new();
    for _ in 0..520 {
        let mut socket = TcpStream::connect(broker.tcp_address()).await.unwrap();
        socket.write_all(&[b'['; 10_000]).await.unwrap();
        strangers.push(socket);
    }
    // Some strangers exceed the limit. They are closed at once and not after `timeouts.handshake`,
    // and a client with short messages is served.
    let ended = async {
        futures_util::future::select_all(
            strangers.iter_mut().map(|socket| Box::pin(socket.read_u8())),
        )
        .await
        .0
    };
    assert!(
        tokio::time::timeout(std::time::Duration::from_secs(5), ended)
            .await
            .expect("the end of one")
            .is_err()
    );
    opened(&broker).await;
}

#[tokio::test]
async fn j_19_only_a_line_feed_ends_a_line() {
    let broker = with_stdio().await;
    let mut socket = opened(&broker).await;
    let text = |id: u64, text: &str| {
        request(id, "tools/call", json!({"name": "b__echo", "arguments": {"t": text}}))
    };
    for (id, between) in [(20, "\u{2028}"), (21, "\u{85}"), (22, "a\u{2029}b")] {
        socket.write_all(format!("{}\r\n", text(id, between)).as_bytes()).await.unwrap();
        let answer = line(&mut socket).await;
        let echoed: Value = serde_json::from_str(text_of(&answer["result"])).unwrap();
        assert_eq!(echoed["t"], between);
    }
    // White space between tokens does not separate messages; a form feed is not even white space.
    socket.write_all(format!("{}\r{}\n", echo(30), echo(31)).as_bytes()).await.unwrap();
    assert_eq!(line(&mut socket).await["error"]["code"], -32700, "two messages on one line");
    socket.write_all(format!("\r{}\r\r\n", echo(32)).as_bytes()).await.unwrap();
    answers(&mut socket, 32..33).await;
    socket.write_all(format!("\u{c}{}\n", echo(33)).as_bytes()).await.unwrap();
    assert_eq!(line(&mut socket).await["error"]["code"], -32700);
}

#[tokio::test]
async fn requests_are_pipelined_from_the_first_segment_on() {
    let broker = with_stdio().await;
    let mut socket = BufReader::new(TcpStream::connect(broker.tcp_address()).await.unwrap());
    let mut text = format!(
        "{}\n{}\n",
        initialize_body("2025-11-25"),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"})
    );
    (100..400).for_each(|id| text.push_str(&format!("{}\n", echo(id))));
    socket.write_all(text.as_bytes()).await.unwrap();
    assert_eq!(line(&mut socket).await["id"], 1);
    answers(&mut socket, 100..400).await;
}

#[tokio::test]
async fn a_client_that_pipelines_beyond_its_limit_is_slowed_down_and_not_refused() {
    let limits = json!({"limits": {"calls_in_flight_per_session": 10}});
    let broker = listening().config(limits).backend("default", "b", stdio().spec()).start().await;
    let mut socket = opened(&broker).await;
    let text: String = (100..400).map(|id| format!("{}\n", echo(id))).collect();
    socket.write_all(text.as_bytes()).await.unwrap();
    answers(&mut socket, 100..400).await;
    // If only the client can free capacity, the request is refused, so that its next message is
    // read.
    let hang = |id: u64| request(id, "tools/call", json!({"name": "b__hang", "arguments": {}}));
    let text: String = (500..511).map(|id| format!("{}\n", hang(id))).collect();
    socket.write_all(text.as_bytes()).await.unwrap();
    let refused = line(&mut socket).await;
    assert_eq!((refused["id"].as_u64(), kind(&refused["error"])), (Some(510), "too_many_calls"));
}

#[tokio::test]
async fn a_client_that_closes_its_sending_half_gets_its_answers() {
    let broker = with_stdio().await;
    let mut socket = opened(&broker).await;
    let text: String = (50..60).map(|id| format!("{}\n", echo(id))).collect();
    socket.write_all(text.as_bytes()).await.unwrap();
    socket.shutdown().await.unwrap();
    answers(&mut socket, 50..60).await;
    assert_eq!(within("the end", socket.read_to_end(&mut Vec::new())).await.unwrap(), 0);
}

#[tokio::test]
async fn before_initialize_only_ping_is_accepted() {
    let broker = with_stdio().await;
    let client = broker.duplex().tcp(broker.tcp_address()).await;
    assert_eq!(client.result("ping", json!({})).await, json!({}));
    assert_eq!(kind(&client.error("tools/list", json!({})).await), "session_required");
    client.notify("notifications/initialized", json!({})).await;
    let client = client.connected(json!({})).await;
    assert_eq!(text_of(&client.call("b__echo", json!({})).await), "{}");
    let again = client.initialize(json!({}), json!({})).await;
    assert!(again["error"].is_object(), "a second handshake: {again}");
    assert_eq!(text_of(&client.call("b__echo", json!({})).await), "{}");
}

#[tokio::test]
async fn a_01_a_request_of_a_web_page_opens_no_session() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let broker = listening().backend("default", "b", stdio().record(&record).spec()).start().await;
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let body = format!("{}\n{initialized}\n{}\n", initialize_body("2025-11-25"), echo(10));
    let length = body.len();
    // Heads that a browser sends without a preflight: `fetch` with `no-cors`, or a form.
    for head in [
        "POST / HTTP/1.1",
        "GET /?x=1 HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "{}",
        "[]",
        "{\"jsonrpc\":\"1.0\"}",
    ] {
        let text = format!(
            "{head}\r\nhost: 127.0.0.1\r\norigin: https://evil.example\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        let mut socket = BufReader::new(TcpStream::connect(broker.tcp_address()).await.unwrap());
        socket.write_all(text.as_bytes()).await.unwrap();
        assert!(line(&mut socket).await["error"]["code"].is_i64(), "{head}");
        assert_eq!(
            within("the end", socket.read_to_end(&mut Vec::new())).await.unwrap(),
            0,
            "one answer, then the end: {head}"
        );
    }
    assert!(broker.admin().sessions("default").await.is_empty());
    assert!(!std::fs::read_to_string(&record).unwrap_or_default().contains("tools/call"));
}

#[tokio::test]
async fn a_client_that_disconnects_during_initialize_leaves_no_session() {
    let broker = with_stdio().await;
    for _ in 0..30 {
        let mut socket = TcpStream::connect(broker.tcp_address()).await.unwrap();
        socket.write_all(format!("{}\n", initialize_body("2025-11-25")).as_bytes()).await.unwrap();
        socket2::SockRef::from(&socket).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    }
    let labels = [("version", "2025-11-25"), ("side", "client")];
    broker
        .admin()
        .wait_metric("mcp_protocol_version_negotiated_total", &labels, |count| count > 0.0)
        .await;
    broker.admin().wait_sessions("default", 0).await;
}

#[tokio::test]
async fn a_client_that_sends_no_message_is_disconnected_in_time() {
    let broker = listening().config(json!({"timeouts": {"handshake": "100ms"}})).start().await;
    for received in ["", "{\"jsonrpc\":", "\n\n\n"] {
        let mut socket = TcpStream::connect(broker.tcp_address()).await.unwrap();
        socket.write_all(received.as_bytes()).await.unwrap();
        assert_eq!(
            within("the end", socket.read_to_end(&mut Vec::new())).await.unwrap(),
            0,
            "{received:?}"
        );
    }
}

#[tokio::test]
async fn a_token_and_a_backend_are_named_in_initialize() {
    let broker = listening()
        .config(json!({"auth": {"required": true}}))
        .tenant("acme")
        .backend("acme", "b", stdio().spec())
        .start()
        .await;
    let (id, key) = broker.admin().create_key_with_id("acme").await;
    let connect = || async { broker.duplex().tcp(broker.tcp_address()).await };
    for meta in
        [json!({}), json!({"dev.mcp-broker/token": "wrong"}), json!({"dev.mcp-broker/token": ""})]
    {
        let client = connect().await;
        let refused = client.initialize(json!({}), meta.clone()).await;
        assert_eq!(kind(&refused["error"]), "unauthorized", "{meta}");
        client.wait_for_close().await;
    }
    let client = connect().await;
    assert_eq!(
        kind(&client.initialize(json!({}), json!({"dev.mcp-broker/token": 5})).await["error"]),
        "invalid_params"
    );
    let token =
        |backend: &str| json!({"dev.mcp-broker/token": key, "dev.mcp-broker/backend": backend});
    let client = client.connected_with(json!({}), json!({"dev.mcp-broker/token": key})).await;
    assert_eq!(text_of(&client.call("b__echo", json!({})).await), "{}");
    let single = connect().await.connected_with(json!({}), token("b")).await;
    assert_eq!(text_of(&single.call("echo", json!({})).await), "{}", "its own names");
    assert_eq!(
        kind(&connect().await.initialize(json!({}), token("nobody")).await["error"]),
        "not_found"
    );
    assert_eq!(
        kind(&connect().await.initialize(json!({}), token("No Name")).await["error"]),
        "invalid_params"
    );
    assert!(!broker.log().contains(&key), "the token is in no log");
    assert_eq!(broker.admin().delete(&format!("/admin/v1/tenants/acme/keys/{id}")).await.0, 204);
    client.wait_for_close().await;
    single.wait_for_close().await;
}

#[tokio::test]
async fn f_01_a_client_that_vanishes_cancels_its_calls() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let broker = listening().backend("default", "b", stdio().record(&record).spec()).start().await;
    let mut socket = opened(&broker).await;
    socket
        .write_all(
            format!("{}\n", request(70, "tools/call", json!({"name": "b__hang", "arguments": {}})))
                .as_bytes(),
        )
        .await
        .unwrap();
    let recorded = || std::fs::read_to_string(&record).unwrap_or_default();
    eventually("the call at the backend", || async {
        recorded().contains("\"hang\"").then_some(()).ok_or_else(recorded)
    })
    .await;
    let socket = socket.into_inner();
    socket2::SockRef::from(&socket).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(socket);
    eventually("the cancellation", || async {
        recorded().contains("notifications/cancelled").then_some(()).ok_or_else(recorded)
    })
    .await;
    let metrics = broker.admin().metrics().await;
    assert!(metrics.contains("mcp_requests_pending 0"), "{metrics}");
    assert!(metrics.contains(r#"outcome="cancelled",transport="tcp""#), "{metrics}");
}

#[tokio::test]
async fn f_04_a_drain_finishes_calls_and_closes_connections() {
    let (mut broker, _backend) = with_tcp().await;
    let idle = broker.duplex().tcp(broker.tcp_address()).await.connected(json!({})).await;
    let busy = broker
        .duplex()
        .answers({
            let pid = broker.pid();
            move |_, _| {
                // The drain begins while the call waits for this answer.
                let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
                rustix::process::kill_process(pid, Signal::TERM).unwrap();
                Ok(json!({"action": "decline"}))
            }
        })
        .tcp(broker.tcp_address())
        .await
        .connected(everything())
        .await;
    let call = busy.start_call("b__elicit", json!({"message": "m"})).await;
    assert!(text_of(&call.result().await).contains("decline"));
    idle.wait_for_close().await;
    busy.wait_for_close().await;
    assert!(broker.wait_for_exit().await.success());
}

#[tokio::test]
async fn a_changed_list_is_announced() {
    let broker = with_stdio().await;
    let client = broker.duplex().tcp(broker.tcp_address()).await.connected(everything()).await;
    broker.admin().put_ready_backend("default", "c", &stdio().spec()).await;
    client.notification("notifications/tools/list_changed").await;
}

#[tokio::test]
async fn batches_of_2025_03_26_are_answered_one_by_one() {
    let broker = with_stdio().await;
    let mut socket = BufReader::new(TcpStream::connect(broker.tcp_address()).await.unwrap());
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    socket
        .write_all(format!("{}\n{initialized}\n", initialize_body("2025-03-26")).as_bytes())
        .await
        .unwrap();
    assert_eq!(line(&mut socket).await["result"]["protocolVersion"], "2025-03-26");
    socket.write_all(format!("[{},{}]\n", echo(80), echo(81)).as_bytes()).await.unwrap();
    answers(&mut socket, 80..82).await;
}

#[tokio::test]
async fn the_connections_of_an_address_are_limited() {
    let broker =
        listening().config(json!({"limits": {"connections_per_address": 2}})).start().await;
    let first = broker.duplex().tcp(broker.tcp_address()).await.connected(json!({})).await;
    let second = broker.duplex().tcp(broker.tcp_address()).await.connected(json!({})).await;
    let third = broker.duplex().tcp(broker.tcp_address()).await;
    third.wait_for_close().await;
    drop(first);
    eventually("a permit", || async {
        let client = broker.duplex().tcp(broker.tcp_address()).await;
        client.start_request("ping", json!({})).await.response_or_end().await.ok_or("still full")
    })
    .await;
    second.result("ping", json!({})).await;
}
