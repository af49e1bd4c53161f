//! The WebSocket endpoints: access, framing, and sessions that continue on another connection.

use std::collections::BTreeSet;

use futures_util::StreamExt;
use serde_json::{Value, json};
use testkit::{
    Direction, DuplexClient, FakeBackend, FaultProxy, Reply, TestBroker, eventually,
    eventually_within, http, within,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{answering, everything, features, session_of};
use crate::{
    broker_with, builder, configured_alone, initialize_body, kind, request, stateless, stdio,
    text_of,
};

/// Time that the broker waits for answers if one half of a connection is closed.
const HALF_CLOSED_MAX: std::time::Duration = std::time::Duration::from_secs(10);

async fn broker() -> TestBroker {
    builder().single_process().backend("default", "b", stdio().spec()).start().await
}

/// Opens a client with a session; returns it and the session's id.
async fn opened(broker: &TestBroker, capabilities: Value) -> (DuplexClient, String) {
    let (client, _) =
        answering(broker.duplex()).websocket(broker.http_address(), "/ws", &[]).await.unwrap();
    let id = session_of(&client, capabilities).await;
    (client, id)
}

#[tokio::test]
async fn every_feature_works_over_websocket() {
    let broker = broker().await;
    let (client, headers) =
        answering(broker.duplex()).websocket(broker.http_address(), "/ws", &[]).await.unwrap();
    assert_eq!(headers["sec-websocket-protocol"], "mcp");
    assert!(
        !headers.contains_key("sec-websocket-extensions")
            && !headers.contains_key("mcp-session-id"),
        "{headers:?}"
    );
    let client = client.connected(everything()).await;
    features::every_one(&client).await;
    let sessions = broker.admin().sessions("default").await;
    assert_eq!((sessions.len(), &sessions[0]["transport"]), (1, &json!("websocket")));
    // A close frame of the client ends its session.
    drop(client);
    broker.admin().wait_sessions("default", 0).await;
}

#[tokio::test]
async fn one_backend_has_its_own_endpoint() {
    let broker = broker().await;
    let (client, _) = broker.duplex().websocket(broker.http_address(), "/ws/b", &[]).await.unwrap();
    let client = client.connected(json!({})).await;
    assert_eq!(text_of(&client.call("echo", json!({})).await), "{}");
    for path in ["/ws/nobody", "/ws/No", "/ws/b/c"] {
        assert_eq!(
            broker.duplex().websocket(broker.http_address(), path, &[]).await.unwrap_err(),
            404,
            "{path}"
        );
    }
}

#[tokio::test]
async fn w_01_foreign_origins_and_hosts_are_refused_before_the_upgrade() {
    let broker = broker().await;
    for (origin, allowed) in
        [("http://localhost:3000", true), ("https://evil.example", false), ("null", false)]
    {
        let opened = broker
            .duplex()
            .websocket(broker.http_address(), "/ws", &[("origin", origin), ("cookie", "a=b")])
            .await;
        assert_eq!(opened.map(|_| ()).err(), (!allowed).then_some(403), "{origin}");
    }
    let text = "GET /ws HTTP/1.1\r\nhost: rebound.example\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";
    assert!(raw(&broker, text).await.starts_with("HTTP/1.1 403 "));
}

async fn raw(broker: &TestBroker, text: &str) -> String {
    let mut socket = TcpStream::connect(broker.http_address()).await.unwrap();
    socket.write_all(text.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    let count = within("an answer", socket.read(&mut answer)).await.unwrap();
    String::from_utf8_lossy(&answer[..count]).into_owned()
}

#[tokio::test]
async fn w_02_an_invalid_handshake_is_refused() {
    let broker = broker().await;
    let host = broker.http_address();
    let head = |method: &str, version: &str, key: &str| {
        format!(
            "{method} /ws HTTP/1.1\r\nhost: {host}\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: {version}\r\nsec-websocket-key: {key}\r\n\r\n"
        )
    };
    const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAA==";
    let old = raw(&broker, &head("GET", "8", KEY)).await;
    assert!(
        old.starts_with("HTTP/1.1 426 ")
            && old.to_lowercase().contains("sec-websocket-version: 13"),
        "{old}"
    );
    assert!(raw(&broker, &head("GET", "13", "short")).await.starts_with("HTTP/1.1 400 "));
    assert!(raw(&broker, &head("POST", "13", KEY)).await.starts_with("HTTP/1.1 405 "));
    assert!(
        raw(&broker, &format!("GET /ws HTTP/1.1\r\nhost: {host}\r\n\r\n"))
            .await
            .starts_with("HTTP/1.1 426 ")
    );
    let extension =
        "sec-websocket-extensions: permessage-deflate; server_max_window_bits=99\r\n\r\n";
    let answer =
        raw(&broker, &head("GET", "13", KEY).replace("\r\n\r\n", &format!("\r\n{extension}")))
            .await;
    assert!(
        answer.starts_with("HTTP/1.1 101 ") && !answer.to_lowercase().contains("extensions"),
        "{answer}"
    );
}

/// Returns a text frame of a client, under a mask that changes nothing.
fn frame(text: &str) -> Vec<u8> {
    let length = u16::try_from(text.len()).unwrap();
    let bytes = length.to_be_bytes();
    let head = if length < 126 {
        vec![0x81, 0x80 | bytes[1]]
    } else {
        vec![0x81, 0x80 | 126, bytes[0], bytes[1]]
    };
    [&head, &[0; 4][..], text.as_bytes()].concat()
}

#[tokio::test]
async fn frames_in_one_write_with_the_upgrade_are_all_accepted() {
    use tokio_tungstenite::{WebSocketStream, tungstenite::protocol::Role};
    let broker = broker().await;
    let ids = 2..60;
    let call = |id| {
        request(
            id,
            "tools/call",
            json!({"name": "echo", "arguments": {"n": id, "pad": "x".repeat(500)}}),
        )
    };
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string();
    let messages: Vec<String> = [initialize_body("2025-11-25"), initialized]
        .into_iter()
        .chain(ids.clone().map(call))
        .collect();
    let frames: Vec<u8> = messages.iter().flat_map(|text| frame(text)).collect();
    assert!(frames.len() > 3 * 8 * 1024);
    let upgrade = format!(
        "GET /ws/b HTTP/1.1\r\nhost: {}\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        broker.http_address()
    );
    // The upgrade comes on a new connection, and behind requests that the broker has read by
    // itself: the larger these were, the more it reads at once.
    for before in ["", &http::post("/mcp", "", "{}"), &http::post("/mcp", "", &" ".repeat(100_000))]
    {
        let mut socket = TcpStream::connect(broker.http_address()).await.unwrap();
        socket.write_all(&[before.as_bytes(), upgrade.as_bytes(), &frames].concat()).await.unwrap();
        let mut read = Vec::new();
        let started = loop {
            let text = String::from_utf8_lossy(&read);
            if let Some((at, head)) = text
                .match_indices("HTTP/1.1 101 ")
                .next()
                .and_then(|(at, _)| Some((at, text[at..].find("\r\n\r\n")?)))
            {
                break at + head + 4;
            }
            assert!(
                within("the upgrade", socket.read_buf(&mut read)).await.unwrap() > 0,
                "{}",
                String::from_utf8_lossy(&read)
            );
        };
        let mut socket = WebSocketStream::from_partially_read(
            socket,
            read.split_off(started),
            Role::Client,
            None,
        )
        .await;
        let mut missing: BTreeSet<u64> = [1].into_iter().chain(ids.clone()).collect();
        while !missing.is_empty() {
            let message = within("the answers", socket.next())
                .await
                .unwrap_or_else(|| panic!("{missing:?} are missing"))
                .unwrap();
            let answer: Value = serde_json::from_str(message.to_text().unwrap()).unwrap();
            let id = answer["id"].as_u64().unwrap_or_else(|| panic!("{answer}"));
            assert!(missing.remove(&id) && answer["result"].is_object(), "{answer}");
            assert!(
                id == 1 || text_of(&answer["result"]).contains(&format!("\"n\":{id},")),
                "{answer}"
            );
        }
    }
}

#[tokio::test]
async fn a_key_is_required_at_the_upgrade() {
    let broker = builder()
        .single_process()
        .auth_required()
        .tenant("acme")
        .backend("acme", "b", stdio().spec())
        .start()
        .await;
    let (id, key) = broker.admin().create_key_with_id("acme").await;
    let bearer = format!("Bearer {key}");
    for headers in [vec![], vec![("authorization", "Bearer wrong")]] {
        assert_eq!(
            broker.duplex().websocket(broker.http_address(), "/ws", &headers).await.unwrap_err(),
            401
        );
    }
    let opened = broker
        .duplex()
        .websocket(broker.http_address(), "/ws", &[("authorization", &bearer)])
        .await;
    let client = opened.unwrap().0.connected(json!({})).await;
    assert_eq!(text_of(&client.call("b__echo", json!({})).await), "{}");
    // W-08: the end of the key ends the connection opened with it.
    assert_eq!(broker.admin().delete(&format!("/admin/v1/tenants/acme/keys/{id}")).await.0, 204);
    assert!(client.wait_for_close().await.starts_with("1008"));
}

#[tokio::test]
async fn w_08_a_key_or_tenant_that_ends_before_initialize_opens_no_session() {
    let broker = builder()
        .single_process()
        .auth_required()
        .tenant("acme")
        .backend("acme", "b", stdio().spec())
        .start()
        .await;
    let admin = broker.admin();
    let (id, revoked) = admin.create_key_with_id("acme").await;
    let key = admin.create_key("acme").await;
    let upgraded = |key: String| {
        let broker = &broker;
        async move {
            let bearer = format!("Bearer {key}");
            broker
                .duplex()
                .websocket(broker.http_address(), "/ws", &[("authorization", &bearer)])
                .await
                .unwrap()
                .0
        }
    };
    let (first, second) = (upgraded(revoked).await, upgraded(key).await);
    assert_eq!(admin.delete(&format!("/admin/v1/tenants/acme/keys/{id}")).await.0, 204);
    assert_eq!(kind(&first.initialize(json!({}), json!({})).await["error"]), "unauthorized");
    first.wait_for_close().await;
    admin.put_tenant("acme", json!({"enabled": false})).await;
    assert_eq!(kind(&second.initialize(json!({}), json!({})).await["error"]), "unauthorized");
    second.wait_for_close().await;
    assert!(admin.sessions("acme").await.is_empty());
}

#[tokio::test]
async fn w_06_binary_frames_are_refused_and_several_messages_in_one_are_not() {
    use futures_util::SinkExt;
    use tokio_tungstenite::tungstenite::Message;
    let broker = broker().await;
    let url = format!("ws://{}/ws", broker.http_address());
    for (message, code) in
        [(Message::binary(&b"{}"[..]), 1003), (Message::text("x".repeat(17 << 20)), 1009)]
    {
        let socket = TcpStream::connect(broker.http_address()).await.unwrap();
        let (mut socket, _) = tokio_tungstenite::client_async(&url, socket).await.unwrap();
        let _may_be_cut = socket.send(message).await;
        let closed = async {
            loop {
                match socket.next().await {
                    Some(Ok(Message::Close(Some(frame)))) => return u16::from(frame.code),
                    Some(Ok(_)) => {}
                    other => panic!("no close frame: {other:?}"),
                }
            }
        };
        assert_eq!(within("a close frame", closed).await, code);
    }
    let (client, _) = opened(&broker, json!({})).await;
    let ping = |id: u64| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"ping\"}}");
    client.send(format!("{}\n{}\n\n{}", ping(901), ping(902), ping(903))).await;
    for id in [901, 902, 903] {
        client.wait_for_message("an answer", |message| message["id"] == id).await;
    }
    client.send("{").await;
    client.wait_for_message("an error", |message| message["error"]["code"] == -32700).await;
    client.result("ping", json!({})).await;
}

#[tokio::test]
async fn a_session_resumes_after_its_connection_was_lost() {
    let broker = broker().await;
    let (client, id) = opened(&broker, everything()).await;
    client.result("resources/subscribe", json!({"uri": "b+test://one"})).await;
    let call = client.start_call("b__hang", json!({})).await;
    client.result("ping", json!({})).await;
    client.disconnect();
    drop(call);
    eventually("the loss to be noticed", || async {
        let streams = broker.admin().sessions("default").await[0]["streams"].clone();
        if streams == 0 { Ok(()) } else { Err(streams) }
    })
    .await;
    let headers = [("mcp-session-id", id.as_str())];
    let (client, head) =
        answering(broker.duplex()).websocket(broker.http_address(), "/ws", &headers).await.unwrap();
    assert_eq!(head["mcp-session-id"], id.as_str());
    client.call("b__touch", json!({})).await;
    client.notification("notifications/resources/updated").await;
    // The call is still in flight, and its id taken.
    let sessions = broker.admin().sessions("default").await;
    assert_eq!((sessions.len(), &sessions[0]["calls_in_flight"]), (1, &json!(1)), "{sessions:?}");
    for (path, wrong) in
        [("/ws/b", id.as_str()), ("/ws", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"), ("/ws", "x")]
    {
        let headers = [("mcp-session-id", wrong)];
        assert_eq!(
            broker.duplex().websocket(broker.http_address(), path, &headers).await.unwrap_err(),
            404,
            "{path} {wrong}"
        );
    }
}

#[tokio::test]
async fn the_session_of_a_websocket_is_not_reachable_over_http() {
    let broker = broker().await;
    let (websocket, id) = opened(&broker, json!({})).await;
    let http = broker.client("/mcp");
    let headers = [
        ("mcp-session-id", id.as_str()),
        ("mcp-protocol-version", "2025-11-25"),
        ("accept", "application/json, text/event-stream"),
        ("content-type", "application/json"),
    ];
    for method in ["POST", "GET", "DELETE"] {
        let body = if method == "POST" { request(1, "ping", json!({})) } else { String::new() };
        let answer = http.send(method, &headers, body).await;
        let status = answer.status;
        assert_eq!(
            (status, kind(&answer.json().await["error"])),
            (404, "session_not_found"),
            "{method}"
        );
    }
    websocket.result("ping", json!({})).await;
    assert_eq!(broker.admin().sessions("default").await.len(), 1);
}

#[tokio::test]
async fn unreceived_messages_are_sent_again_to_a_client_that_counts() {
    let broker = broker().await;
    let (client, _) = broker.duplex().websocket(broker.http_address(), "/ws", &[]).await.unwrap();
    client.result("ping", json!({})).await;
    let answer = client.initialize(json!({}), json!({})).await;
    let id = answer["result"]["_meta"]["dev.mcp-broker/session"].as_str().unwrap().to_owned();
    client.notify("notifications/initialized", json!({})).await;
    for n in 0..5 {
        client.call("b__echo", json!({"n": n})).await;
    }
    // The answers to the ping and to `initialize`, and five more, of which it claims to have lost
    // two.
    let received = client.received();
    assert_eq!(received, 7);
    client.disconnect();
    let headers = [("mcp-session-id", id.as_str()), ("mcp-broker-received", "5")];
    let (client, _) =
        broker.duplex().websocket(broker.http_address(), "/ws", &headers).await.unwrap();
    for n in [3, 4] {
        let again =
            client.wait_for_message("an answer", |message| message["result"].is_object()).await;
        assert_eq!(text_of(&again["result"]), format!("{{\"n\":{n}}}"));
    }
    client.disconnect();
    // A client that has every message gets none twice.
    let headers = [("mcp-session-id", id.as_str()), ("mcp-broker-received", "7")];
    let (client, _) =
        broker.duplex().websocket(broker.http_address(), "/ws", &headers).await.unwrap();
    client.result("ping", json!({})).await;
    assert_eq!(client.received(), 1);
    client.disconnect();
    for wrong in ["1", "9", "many", "-1"] {
        let headers = [("mcp-session-id", id.as_str()), ("mcp-broker-received", wrong)];
        assert_eq!(
            broker.duplex().websocket(broker.http_address(), "/ws", &headers).await.unwrap_err(),
            400,
            "{wrong}"
        );
    }
}

#[tokio::test]
async fn a_client_that_disconnects_before_its_session_id_leaves_no_session() {
    use futures_util::SinkExt;
    let broker = broker().await;
    for _ in 0..30 {
        let socket = TcpStream::connect(broker.http_address()).await.unwrap();
        socket2::SockRef::from(&socket).set_linger(Some(std::time::Duration::ZERO)).unwrap();
        let (mut socket, _) =
            tokio_tungstenite::client_async(&format!("ws://{}/ws", broker.http_address()), socket)
                .await
                .unwrap();
        socket
            .send(tokio_tungstenite::tungstenite::Message::text(initialize_body("2025-11-25")))
            .await
            .unwrap();
    }
    let labels = [("version", "2025-11-25"), ("side", "client")];
    broker
        .admin()
        .wait_metric("mcp_protocol_version_negotiated_total", &labels, |count| count > 0.0)
        .await;
    // The sessions end before the time of `session.resume`, which is for clients that can come
    // back.
    broker.admin().wait_sessions("default", 0).await;
}

#[tokio::test]
async fn a_normal_close_ends_the_session_with_calls_in_flight() {
    let broker = broker().await;
    let (client, id) = opened(&broker, json!({})).await;
    let call = client.start_call("b__hang", json!({})).await;
    client.result("ping", json!({})).await;
    drop((client, call));
    // Earlier than for a client that might still wait for its answer.
    eventually_within(HALF_CLOSED_MAX / 2, "the end of the session", || async {
        let headers = [("mcp-session-id", id.as_str())];
        match broker.duplex().websocket(broker.http_address(), "/ws", &headers).await {
            Err(404) => Ok(()),
            other => Err(other.map(|_| "opened")),
        }
    })
    .await;
    // The admin API shows the end once it is stored, which is a moment later.
    broker.admin().wait_sessions("default", 0).await;
}

#[tokio::test]
async fn a_normal_close_cancels_the_requests_of_a_client_without_a_session() {
    let backend = FakeBackend::with_tool("hang", |_| async { Reply::Hang }).await;
    let broker = broker_with(&backend).await;
    let speaking = broker.duplex().speaking(testkit::judge::Revision::V2026_07_28);
    let (client, _) = speaking.websocket(broker.http_address(), "/ws", &[]).await.unwrap();
    let params = json!({"name": "b__hang", "arguments": {}, "_meta": stateless::meta(json!({}))});
    let call = client.start_request("tools/call", params).await;
    backend.wait_for("the call", |seen| seen.calls("hang")).await;
    drop((client, call));
    // Earlier than for a client that might still read the answer.
    eventually_within(HALF_CLOSED_MAX / 2, "the cancellation", || async {
        match backend.count(|seen| seen.is("notifications/cancelled")) {
            0 => Err("not cancelled"),
            _ => Ok(()),
        }
    })
    .await;
}

#[tokio::test]
async fn a_client_that_does_not_reconnect_loses_its_session() {
    let broker = configured_alone(json!({"session": {"resume": "100ms"}}), stdio().spec()).await;
    let (client, id) = opened(&broker, json!({})).await;
    client.disconnect();
    broker.admin().wait_sessions("default", 0).await;
    let headers = [("mcp-session-id", id.as_str())];
    assert_eq!(
        broker.duplex().websocket(broker.http_address(), "/ws", &headers).await.unwrap_err(),
        404
    );
}

#[tokio::test]
async fn a_second_connection_of_a_session_replaces_the_first() {
    let broker = broker().await;
    let (first, id) = opened(&broker, json!({})).await;
    let headers = [("mcp-session-id", id.as_str())];
    let (second, _) =
        broker.duplex().websocket(broker.http_address(), "/ws", &headers).await.unwrap();
    assert!(first.wait_for_close().await.starts_with("1008"));
    assert_eq!(text_of(&second.call("b__echo", json!({})).await), "{}");
}

#[tokio::test]
async fn a_session_survives_a_restart_of_the_broker() {
    let mut broker = broker().await;
    let (client, id) = opened(&broker, json!({})).await;
    client.result("resources/subscribe", json!({"uri": "b+test://one"})).await;
    broker.request_shutdown();
    assert!(
        client.wait_for_close().await.starts_with("1001"),
        "the client is told to go elsewhere"
    );
    assert!(broker.wait_for_exit().await.success());
    broker.restart().await;
    let headers = [("mcp-session-id", id.as_str())];
    let (client, _) =
        broker.duplex().websocket(broker.http_address(), "/ws", &headers).await.unwrap();
    assert_eq!(
        client.notification("notifications/resources/updated").await["params"]["uri"],
        "b+test://one"
    );
    assert_eq!(text_of(&client.call("b__echo", json!({})).await), "{}");
}

#[tokio::test]
async fn w_07_a_silent_client_is_disconnected() {
    let timeouts = json!({"timeouts": {"websocket_ping": "100ms", "websocket_idle": "2s"}});
    let broker = configured_alone(timeouts, stdio().spec()).await;
    // This client answers pings, though it sends no request.
    let (quiet, _) = opened(&broker, json!({})).await;
    let mut deaf = TcpStream::connect(broker.http_address()).await.unwrap();
    let host = broker.http_address();
    let head = format!(
        "GET /ws HTTP/1.1\r\nhost: {host}\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    );
    deaf.write_all(head.as_bytes()).await.unwrap();
    let mut all = Vec::new();
    within("the end", deaf.read_to_end(&mut all)).await.unwrap();
    assert!(all.windows(2).any(|bytes| bytes == 1008_u16.to_be_bytes()), "{all:?}");
    quiet.result("ping", json!({})).await;
}

#[tokio::test]
async fn w_07_a_vanished_client_is_disconnected_and_its_session_is_kept() {
    let timeouts = json!({"timeouts": {"websocket_ping": "200ms", "websocket_idle": "3s"}});
    let broker = configured_alone(timeouts, stdio().spec()).await;
    let network = FaultProxy::start(broker.http_address()).await;
    let (client, _) = broker.duplex().websocket(network.address(), "/ws", &[]).await.unwrap();
    let answer = client.initialize(json!({}), json!({})).await;
    let id = answer["result"]["_meta"]["dev.mcp-broker/session"].as_str().unwrap().to_owned();
    client.result("ping", json!({})).await;
    // Half-open: neither an end nor an answer to a ping arrives.
    for way in [Direction::Upstream, Direction::Downstream] {
        network.hole(way, true);
    }
    eventually("the cut", || async {
        let sessions = broker.admin().sessions("default").await;
        if sessions[0]["streams"] == 0 { Ok(()) } else { Err(sessions) }
    })
    .await;
    let headers = [("mcp-session-id", id.as_str())];
    let (again, _) =
        broker.duplex().websocket(broker.http_address(), "/ws", &headers).await.unwrap();
    assert_eq!(text_of(&again.call("b__echo", json!({})).await), "{}");
}

#[tokio::test]
async fn a_draining_broker_accepts_no_new_sessions() {
    let broker = broker().await;
    let busy = broker
        .duplex()
        .websocket(broker.http_address(), "/ws", &[])
        .await
        .unwrap()
        .0
        .connected(json!({}))
        .await;
    let _hanging = busy.start_call("b__hang", json!({})).await;
    busy.result("ping", json!({})).await;
    broker.request_shutdown();
    eventually("the refusal", || async {
        match broker.duplex().websocket(broker.http_address(), "/ws", &[]).await {
            Err(status) => Ok(status),
            Ok(_) => Err("taken"),
        }
    })
    .await;
}

#[tokio::test]
async fn an_earlier_disconnect_does_not_end_a_resumed_session() {
    let broker = configured_alone(json!({"session": {"resume": "1500ms"}}), stdio().spec()).await;
    let (mut client, id) = opened(&broker, json!({})).await;
    let headers = [("mcp-session-id", id.as_str())];
    let started = std::time::Instant::now();
    // Lost again and again, for longer than one loss may last.
    while started.elapsed() < std::time::Duration::from_millis(2_500) {
        client.disconnect();
        client = broker.duplex().websocket(broker.http_address(), "/ws", &headers).await.unwrap().0;
        client.call("b__echo", json!({})).await;
    }
}
