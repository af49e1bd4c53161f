//! Hostile HTTP/1.1 at the data plane: framing, heads, targets and pipelines that can be read in
//! two ways. None of it reaches a backend, none gets more than one answer. Another session is
//! served meanwhile.

use serde_json::{Value, json};
use testkit::{FakeBackend, TestBroker, eventually, within};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    alone_with, builder, configured_alone, echo, initialize_body, raw_http, read_answer, request,
};

const ACCEPT: &str = "accept: application/json, text/event-stream\r\n";
/// A text that would be a request if a reader took it for one.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// Returns a POST with these headers instead of its framing.
fn post(framing: &str, body: &str) -> String {
    format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{ACCEPT}{framing}\r\n{body}"
    )
}

pub(crate) fn answers_in(text: &str) -> usize {
    // Answer texts mention HTTP/1.1 too.
    text.split("HTTP/1.1 ")
        .skip(1)
        .filter(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
        .count()
}

/// Checks that each gets one refusal at most, then the end. A session from before is served as
/// before.
async fn each_is_refused(requests: Vec<String>) {
    let (broker, backend) = echo().await;
    let canary = broker.connected(json!({})).await;
    // The requests are correct except for the fault that the test names.
    let body = initialize_body("2025-11-25");
    let fine = post(&format!("connection: close\r\ncontent-length: {}\r\n", body.len()), &body);
    assert!(raw_http(broker.http_address(), fine.as_bytes()).await.starts_with("HTTP/1.1 200"));
    for text in requests {
        let answer = raw_http(broker.http_address(), text.as_bytes()).await;
        let shown: String = text.chars().take(300).collect();
        assert!(answers_in(&answer) <= 1, "{shown:?} gave {answer}");
        assert!(
            answer.is_empty()
                || answer.starts_with("HTTP/1.1 4")
                || answer.starts_with("HTTP/1.1 501"),
            "{shown:?} gave {answer}"
        );
        assert!(!answer.contains("smuggled"), "{answer}");
    }
    assert!(backend.recorded_of("tools/call").is_empty());
    canary.call("b__echo", json!({})).await;
}

#[tokio::test]
async fn h_01_contradicting_lengths_are_refused() {
    let body = initialize_body("2025-11-25");
    let length = body.len();
    let lengths = [
        format!("content-length: {length}\r\ncontent-length: {}\r\n", length + 1),
        format!("content-length: {length}, {}\r\n", length + 1),
        format!("content-length: +{length}\r\n"),
        "content-length: 0x10\r\n".to_owned(),
        "content-length: -1\r\n".to_owned(),
        "content-length: 1 0\r\n".to_owned(),
        "content-length: \r\n".to_owned(),
        "content-length: 99999999999999999999999\r\n".to_owned(),
    ];
    each_is_refused(
        lengths.iter().map(|lengths| format!("{}{SMUGGLED}", post(lengths, &body))).collect(),
    )
    .await;
}

#[tokio::test]
async fn h_01_a_body_with_both_content_length_and_chunks_is_refused() {
    let body = initialize_body("2025-11-25");
    let length = body.len();
    // The body is whole by either of the two.
    let chunked = format!("{length:x}\r\n{body}\r\n0\r\n\r\n");
    let requests = [
        format!("content-length: {}\r\ntransfer-encoding: chunked\r\n", chunked.len()),
        format!("transfer-encoding: chunked\r\ncontent-length: {}\r\n", chunked.len()),
        "content-length: 0\r\ntransfer-encoding: chunked\r\n".to_owned(),
    ];
    each_is_refused(
        requests.iter().map(|lengths| format!("{}{SMUGGLED}", post(lengths, &chunked))).collect(),
    )
    .await;
}

#[tokio::test]
async fn h_02_unknown_transfer_encodings_are_refused() {
    let body = "0\r\n\r\n";
    let mut requests: Vec<String> = [
        "xchunked",
        "chunked, identity",
        "identity",
        "chunked, gzip",
        "\x0bchunked",
        "chunked\x0b",
        "\"chunked\"",
        "chunked;q=1",
        "gzip, chunked, chunked, x",
    ]
    .iter()
    .map(|encoding| {
        format!("{}{SMUGGLED}", post(&format!("transfer-encoding: {encoding}\r\n"), body))
    })
    .collect();
    requests.push(format!(
        "{}{SMUGGLED}",
        post("transfer-encoding: chunked\r\n", body).replace("HTTP/1.1", "HTTP/1.0")
    ));
    requests.push(format!("{}{SMUGGLED}", post("transfer-encoding : chunked\r\n", body)));
    each_is_refused(requests).await;
}

#[tokio::test]
async fn h_03_ambiguous_heads_are_refused() {
    let heads = [
        "host : localhost\r\n",
        "host: localhost\r\nx: a\r\n folded: b\r\n",
        "host: localhost\r\nx: a\0b\r\n",
        "host: localhost\r\nx: a\rb: c\r\n",
        "host: localhost\r\n: nameless\r\n",
        "host: localhost\r\nno colon\r\n",
        " host: localhost\r\n",
        "host: localhost\r\nx\u{e4}: y\r\n",
        "host: localhost\r\nhost: localhost\r\n",
    ];
    let body = initialize_body("2025-11-25");
    let framing = format!("connection: close\r\ncontent-length: {}\r\n", body.len());
    each_is_refused(
        heads
            .iter()
            .map(|head| post(&framing, &body).replacen("host: localhost\r\n", head, 1))
            .collect(),
    )
    .await;
}

#[tokio::test]
async fn h_04_invalid_chunks_are_refused_and_trailers_are_ignored() {
    let chunked =
        |body: &str| format!("{}{SMUGGLED}", post("transfer-encoding: chunked\r\n", body));
    let body = initialize_body("2025-11-25");
    let size = body.len();
    let requests = vec![
        chunked("fffffffffffffffff\r\n"),
        chunked(&format!("-{size:x}\r\n{body}\r\n0\r\n\r\n")),
        chunked(&format!("+{size:x}\r\n{body}\r\n0\r\n\r\n")),
        chunked(&format!("0x{size:x}\r\n{body}\r\n0\r\n\r\n")),
        chunked(&format!("{size:x}\r\n{body}XX0\r\n\r\n")),
        chunked(&format!("{size:x} \t{}\r\n{body}\r\n0\r\n\r\n", ";".repeat(1_000_000))),
        chunked("\r\n"),
        chunked("zz\r\n"),
    ];
    each_is_refused(requests).await;
    // Trailers are read and dropped: they change neither the host nor the caller.
    let broker = builder().single_process().auth_required().start().await;
    let trailers =
        format!("{size:x}\r\n{body}\r\n0\r\nauthorization: Bearer x\r\nhost: evil.example\r\n\r\n");
    let answer = raw_http(
        broker.http_address(),
        post("connection: close\r\ntransfer-encoding: chunked\r\n", &trailers).as_bytes(),
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 401") && answers_in(&answer) == 1, "{answer}");
}

#[tokio::test]
async fn h_05_the_body_of_a_refused_request_is_never_a_request() {
    let (broker, _backend) = echo().await;
    let length = SMUGGLED.len();
    for head in [
        format!("POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n"),
        format!("POST /mcp HTTP/1.1\r\nhost: evil.example\r\ncontent-length: {length}\r\n"),
        format!(
            "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n"
        ),
        format!("DELETE /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n"),
        format!("GET /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n"),
    ] {
        let text = format!("{head}connection: close\r\n\r\n{SMUGGLED}");
        let answer = raw_http(broker.http_address(), text.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 4") && answers_in(&answer) == 1, "{head:?}: {answer}");
        // On a connection that stays, the next request is the one after the body.
        let next = "GET /nowhere HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        let answer =
            raw_http(broker.http_address(), format!("{head}\r\n{SMUGGLED}{next}").as_bytes()).await;
        assert!(answers_in(&answer) <= 2, "{head:?}: {answer}");
    }
}

#[tokio::test]
async fn h_06_upgrades_to_other_protocols_are_ignored() {
    let (broker, _backend) = echo().await;
    let body = initialize_body("2025-11-25");
    for upgrade in ["h2c", "mcp", "TLS/1.0"] {
        let framing = format!(
            "connection: upgrade, http2-settings\r\nupgrade: {upgrade}\r\nhttp2-settings: AAMAAABkAAQAAP__\r\ncontent-length: {}\r\n",
            body.len()
        );
        let next = "GET /nowhere HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        let answer =
            raw_http(broker.http_address(), format!("{}{next}", post(&framing, &body)).as_bytes())
                .await;
        // H-25: HTTP/2 is not used after an upgrade either.
        assert!(
            answer.starts_with("HTTP/1.1 200")
                && !answer.contains(" 101 ")
                && answers_in(&answer) == 2,
            "{upgrade}: {answer}"
        );
    }
    // Behind a request for a WebSocket no other is read: its bytes could be the WebSocket's.
    let refused = "GET /ws/nobody HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";
    let next = "GET /nowhere HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let answer = raw_http(broker.http_address(), format!("{refused}{next}").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 404") && answers_in(&answer) == 1, "{answer}");
    assert!(answer.to_lowercase().contains("connection: close"), "{answer}");
}

#[tokio::test]
async fn h_07_targets_of_other_forms_are_refused() {
    let body = initialize_body("2025-11-25");
    let framing = format!("connection: close\r\ncontent-length: {}\r\n", body.len());
    let requests = [
        "CONNECT localhost:80 HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "TRACE /mcp HTTP/1.1",
        "POST * HTTP/1.1",
        "POST http://evil.example/mcp HTTP/1.1",
        "POST evil.example:80 HTTP/1.1",
        "POST /../mcp HTTP/1.1",
        "POST /mcp/../mcp HTTP/1.1",
        "POST /mcp/%2e%2e/mcp HTTP/1.1",
        "POST /%2e%2e/mcp HTTP/1.1",
        "POST /%6dcp HTTP/1.1",
        "POST /mcp%00 HTTP/1.1",
        "POST /mcp/b%00 HTTP/1.1",
        "POST //mcp HTTP/1.1",
        "POST /mcp//b HTTP/1.1",
        "POST /MCP HTTP/1.1",
        "POST mcp HTTP/1.1",
        "POST /mcp HTTP/1.2",
        "POST /mcp HTTP/3.0",
        "POST /mcp",
        "POST\t/mcp HTTP/1.1",
        "post /mcp HTTP/1.1",
    ];
    each_is_refused(
        requests
            .iter()
            .map(|line| post(&framing, &body).replacen("POST /mcp HTTP/1.1", line, 1))
            .collect(),
    )
    .await;
}

#[tokio::test]
async fn h_08_oversized_heads_are_refused() {
    let many: String = (0..20_000).map(|n| format!("x-{n}: y\r\n")).collect();
    let body = initialize_body("2025-11-25");
    each_is_refused(vec![
        format!("POST /mcp HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "y".repeat(1 << 20)),
        format!("POST /mcp HTTP/1.1\r\nhost: localhost\r\n{}: y\r\n\r\n", "y".repeat(1 << 20)),
        format!("POST /mcp HTTP/1.1\r\nhost: localhost\r\n{many}\r\n"),
        format!("POST /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "y".repeat(200_000)),
        // The request is correct except for its length.
        post(&format!("content-length: {}\r\nx: {}\r\n", body.len(), "y".repeat(200_000)), &body),
    ])
    .await;
}

#[tokio::test]
async fn h_08_the_limit_of_a_head_is_exact_in_any_pieces() {
    const LIMIT: usize = 64 * 1024;
    let backend = FakeBackend::echo().await;
    let broker = alone_with(&backend).await;
    let body = initialize_body("2025-11-25");
    // The broker itself reads the first, and the library the second.
    let plain =
        post(&format!("connection: close\r\ncontent-length: {}\r\nx: @\r\n", body.len()), &body);
    let chunked =
        plain.replace(&format!("content-length: {}", body.len()), "transfer-encoding: chunked");
    let chunked = chunked.replace(&body, &format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()));
    let other =
        "GET /nowhere HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: @\r\n\r\n".to_owned();
    for (text, fine) in [(plain, 200), (chunked, 200), (other, 404)] {
        let empty = text.split_once("\r\n\r\n").unwrap().0.len() + "\r\n\r\n".len() - "@".len();
        for (bytes, status) in [(LIMIT, fine), (LIMIT + 1, 431), (100_000, 431), (1_000_000, 431)] {
            let text = text.replace('@', &"y".repeat(bytes - empty));
            for at_once in [text.len(), 5_000] {
                let mut stream = TcpStream::connect(broker.http_address()).await.unwrap();
                stream.set_nodelay(true).unwrap();
                let (mut reader, mut writer) = stream.split();
                let writing = async {
                    for piece in text.as_bytes().chunks(at_once) {
                        // The connection may be closed before all is written.
                        let _cut = writer.write_all(piece).await;
                        tokio::task::yield_now().await;
                    }
                };
                let mut answer = Vec::new();
                let (_, _reset) = within("the end", async {
                    tokio::join!(writing, reader.read_to_end(&mut answer))
                })
                .await;
                let answer = String::from_utf8_lossy(&answer);
                let shown =
                    format!("{} of {bytes} bytes, {at_once} at once: {answer}", &text[..20]);
                // The end of a connection on which much was not read may overtake the answer.
                let is_cut = bytes > LIMIT + 1 && answer.is_empty();
                assert!(
                    is_cut
                        || answer.starts_with(&format!("HTTP/1.1 {status} "))
                            && answers_in(&answer) == 1,
                    "{shown}"
                );
                assert!(is_cut || answer.to_lowercase().contains("connection: close"), "{shown}");
            }
            if bytes == LIMIT + 1 {
                let answer = raw_http(broker.http_address(), text.as_bytes()).await;
                assert!(
                    answer.contains("message_too_large") && answer.contains("at most 65536 bytes"),
                    "{answer}"
                );
            }
        }
    }
    served(&broker).await;
}

#[tokio::test]
async fn h_09_encoded_bodies_are_refused_unread() {
    let body = initialize_body("2025-11-25");
    let encodings = ["gzip", "deflate", "br", "zstd", "gzip, gzip", "identity, br", "x"];
    let framing = |encoding: &str| {
        format!(
            "connection: close\r\ncontent-encoding: {encoding}\r\ncontent-length: {}\r\n",
            body.len()
        )
    };
    let (broker, _backend) = echo().await;
    for encoding in encodings {
        let answer =
            raw_http(broker.http_address(), post(&framing(encoding), &body).as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 415"), "{encoding}: {answer}");
    }
}

#[tokio::test]
async fn h_11_a_missing_body_is_refused_at_the_deadline() {
    let backend = FakeBackend::echo().await;
    let deadline = json!({"timeouts": {"request_read": "300ms"}});
    let broker = configured_alone(deadline, backend.spec()).await;
    let answer = raw_http(
        broker.http_address(),
        post("expect: 100-continue\r\ncontent-length: 100\r\n", "").as_bytes(),
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 100"), "{answer}");
    assert!(answers_in(&answer) <= 2 && !answer.contains("HTTP/1.1 2"), "{answer}");
    // Other expectations of a client are ignored.
    let body = initialize_body("2025-11-25");
    let framing =
        format!("expect: miracles\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    let answer = raw_http(broker.http_address(), post(&framing, &body).as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answers_in(&answer) == 1, "{answer}");
    // A request that is refused before its body is needed gets no `100 Continue`.
    let refused = post("expect: 100-continue\r\ncontent-length: 100\r\nconnection: close\r\n", "")
        .replace("localhost", "evil.example");
    let answer = raw_http(broker.http_address(), refused.as_bytes()).await;
    assert!(answer.is_empty() || !answer.starts_with("HTTP/1.1 2"), "{answer}");
    broker.connected(json!({})).await;
}

#[tokio::test]
async fn f_16_a_request_cut_at_any_byte_is_never_carried_out() {
    let (broker, backend) = echo().await;
    let client = broker.client("/mcp").connected(json!({})).await;
    let text = client.post_as_text(
        "",
        &request(2, "tools/call", json!({"name": "b__echo", "arguments": {"cut": 12}})),
    );
    for length in 0..text.len() {
        let mut stream = TcpStream::connect(broker.http_address()).await.unwrap();
        stream.write_all(&text.as_bytes()[..length]).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _reset = within("the end", stream.read_to_end(&mut answer)).await;
        assert!(!String::from_utf8_lossy(&answer).contains("HTTP/1.1 2"), "{length}");
    }
    client.call("b__echo", json!({"whole": true})).await;
    assert_eq!(backend.recorded_of("tools/call").len(), 1);
}

/// Returns the ids of the answers, in their order.
fn ids_in(text: &str) -> Vec<u64> {
    let bodies = text.split("\r\n\r\n").skip(1);
    bodies
        .filter_map(|body| {
            serde_json::Deserializer::from_str(body).into_iter::<Value>().next()?.ok()?["id"]
                .as_u64()
        })
        .collect()
}

#[tokio::test]
async fn h_13_pipelined_requests_are_answered_in_order_up_to_a_hostile_one() {
    let (broker, _backend) = echo().await;
    let client = broker.client("/mcp").connected(json!({})).await;
    let pipelined = async |hostile_after: Option<u64>| {
        let mut text = String::new();
        for id in 1..=1_000 {
            text.push_str(&client.post_as_text("", &request(id, "ping", json!({}))));
            if hostile_after == Some(id) {
                text.push_str("POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n");
            }
        }
        text.push_str("GET /nowhere HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let mut stream = TcpStream::connect(broker.http_address()).await.unwrap();
        let (mut reader, mut writer) = stream.split();
        let mut answer = Vec::new();
        // A client that writes a thousand requests has to read meanwhile. The broker reads nothing
        // behind the hostile one.
        let (_, _) = tokio::join!(
            writer.write_all(text.as_bytes()),
            within("the end", reader.read_to_end(&mut answer))
        );
        ids_in(&String::from_utf8_lossy(&answer))
    };
    assert!(pipelined(None).await.into_iter().eq(1..=1_000));
    let ids = pipelined(Some(600)).await;
    assert!(ids.iter().copied().eq(1..=ids.len() as u64), "{ids:?}");
    // The end of a connection on which the client still writes may overtake the last answers.
    assert!((1..=600).contains(&ids.len()), "{}", ids.len());
    client.result("ping", json!({})).await;
}

/// The check of one head counts for equal heads, and for no other.
#[tokio::test]
async fn h_13_the_check_of_a_head_is_reused_only_for_an_equal_head() {
    let broker = builder().config(json!({"auth": {"required": true}})).start().await;
    let (id, key) = broker.admin().create_key_with_id("default").await;
    let body = initialize_body("2025-11-25");
    let response = |more: &str| {
        post(
            &format!("{more}authorization: Bearer {key}\r\ncontent-length: {}\r\n", body.len()),
            &body,
        )
    };
    let mut stream = TcpStream::connect(broker.http_address()).await.unwrap();
    let mut status_of = async |text: String| {
        stream.write_all(text.as_bytes()).await.unwrap();
        read_answer(&mut stream).await.split(' ').nth(1).unwrap().to_owned()
    };
    for _ in 0..2 {
        assert_eq!(status_of(response("")).await, "200");
        assert_eq!(status_of(response("origin: http://evil.example\r\n")).await, "403");
        assert_eq!(
            status_of(response("").replace("host: localhost", "host: evil.example")).await,
            "403"
        );
        assert_eq!(
            status_of(response("").replace("application/json\r\n", "text/plain\r\n")).await,
            "415"
        );
        assert_eq!(status_of(response("").replace(ACCEPT, "accept: text/html\r\n")).await, "406");
    }
    assert_eq!(status_of(response("")).await, "200");
    assert_eq!(status_of(response("")).await, "200");
    let (status, answer) =
        broker.admin().delete(&format!("/admin/v1/tenants/default/keys/{id}")).await;
    assert_eq!(status, 204, "{answer}");
    assert_eq!(status_of(response("")).await, "401", "who asks is asked of each request");
}

#[tokio::test]
async fn h_25_tls_and_random_bytes_at_a_plain_listener_end_cleanly() {
    let (broker, _backend) = echo().await;
    let hello = [&[22_u8, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3][..], &[7; 505]].concat();
    for bytes in [
        &hello[..],
        b"\x00\x01\x02",
        b"SSH-2.0-x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
        b"\x16\x03",
    ] {
        let mut stream = TcpStream::connect(broker.http_address()).await.unwrap();
        let _may_be_cut = stream.write_all(bytes).await;
        let _half_closed = stream.shutdown().await;
        let mut answer = Vec::new();
        let _reset = within("the end", stream.read_to_end(&mut answer)).await;
        assert!(!String::from_utf8_lossy(&answer).contains("HTTP/1.1 2"), "{bytes:?}");
    }
    served(&broker).await;
}

async fn served(broker: &TestBroker) {
    broker.connected(json!({})).await.call("b__echo", json!({})).await;
    eventually("connections to end", || async {
        let log = broker.log();
        if log.contains("panicked") { Err(log) } else { Ok(()) }
    })
    .await;
}
