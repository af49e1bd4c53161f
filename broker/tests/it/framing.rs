//! The framing of HTTP/1.1 requests: stricter than that of any proxy in front, so that no request
//! is read in two ways.
//!
//! The same bytes are sent to several readers:
//!
//! - the data plane, on its path for calls and on the one for everything else
//! - the admin listener
//! - the data plane over TLS
//! - nginx and HAProxy in front

use std::net::SocketAddr;

use serde_json::{Value, json};
use testkit::{Authority, FakeBackend, TestBroker, TestClient, servers::FrontProxy, within};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    configured_alone, hostile_http::answers_in, raw_http, read_answer, read_to_close, request,
};

/// A request whose framing could be read in two ways.
struct Ambiguous {
    name: &'static str,
    /// The headers of its framing, `host` included, each with its line end.
    framing: String,
    body: String,
    /// Set when the head alone is acceptable, and the body is refused.
    head_is_fine: bool,
}

fn of_head(name: &'static str, framing: impl Into<String>, body: impl Into<String>) -> Ambiguous {
    Ambiguous { name, framing: framing.into(), body: body.into(), head_is_fine: false }
}

fn of_body(name: &'static str, body: impl Into<String>) -> Ambiguous {
    let framing = "host: localhost\r\ntransfer-encoding: chunked\r\n".to_owned();
    Ambiguous { name, framing, body: body.into(), head_is_fine: true }
}

/// Returns the ambiguous requests. `smuggled`: a whole request, which a reader may take for a part
/// of the first one's body or for the next request.
fn ambiguous(smuggled: &str) -> Vec<Ambiguous> {
    let host = "host: localhost\r\n";
    let ping = request(7, "ping", json!({}));
    let length = ping.len();
    let ending = format!("0\r\n\r\n{smuggled}");
    let whole = ending.len();
    let chunk = format!("{:x}\r\n{smuggled}\r\n0\r\n\r\n", smuggled.len());
    let first_line = chunk.find('\n').unwrap_or(0) + 1;
    let with = |headers: String| format!("{host}{headers}");
    let mut cases = vec![
        of_head(
            "length, then chunks",
            with(format!("content-length: {whole}\r\ntransfer-encoding: chunked\r\n")),
            &ending,
        ),
        of_head(
            "chunks, then length",
            with(format!("transfer-encoding: chunked\r\ncontent-length: {first_line}\r\n")),
            &chunk,
        ),
        of_head(
            "chunks twice",
            with("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n".to_owned()),
            &ending,
        ),
        of_head(
            "chunks, then identity",
            with("transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n".to_owned()),
            &ending,
        ),
        of_head(
            "white space before the colon",
            with(format!("transfer-encoding : chunked\r\ncontent-length: {whole}\r\n")),
            &ending,
        ),
        of_head(
            "a folded line",
            with(format!("transfer-encoding:\r\n chunked\r\ncontent-length: {whole}\r\n")),
            &ending,
        ),
        of_head(
            "length twice",
            with(format!("content-length: {length}\r\ncontent-length: {length}\r\n")),
            format!("{ping}{smuggled}"),
        ),
        of_head(
            "two lengths",
            with(format!(
                "content-length: {length}\r\ncontent-length: {}\r\n",
                length + smuggled.len()
            )),
            format!("{ping}{smuggled}"),
        ),
        of_head("no host", format!("content-length: {length}\r\n"), format!("{ping}{smuggled}")),
        of_head(
            "two hosts",
            with(format!("host: other\r\ncontent-length: {length}\r\n")),
            format!("{ping}{smuggled}"),
        ),
        of_head(
            "a list of hosts",
            format!("host: localhost, other\r\ncontent-length: {length}\r\n"),
            format!("{ping}{smuggled}"),
        ),
        of_head(
            "a bare line feed",
            with(format!("x: y\ncontent-length: {length}\r\n")),
            format!("{ping}{smuggled}"),
        ),
        of_head(
            "a bare carriage return",
            with(format!("x: y\rcontent-length: {whole}\r\ntransfer-encoding: chunked\r\n")),
            &ending,
        ),
        of_head(
            "a zero byte",
            with(format!("x: \0\r\ncontent-length: {length}\r\n")),
            format!("{ping}{smuggled}"),
        ),
        of_head(
            "a control character",
            with(format!("x: a\x08b\r\ncontent-length: {length}\r\n")),
            format!("{ping}{smuggled}"),
        ),
        of_head(
            "a header without a colon",
            with(format!("x\r\ncontent-length: {length}\r\n")),
            format!("{ping}{smuggled}"),
        ),
        of_body("a chunk that ends in a bare line feed", format!("{length:x}\n{ping}\r\n{ending}")),
        of_body("white space behind a size", format!("{length:x} \r\n{ping}\r\n{ending}")),
        of_body("a size with a sign", format!("+{length:x}\r\n{ping}\r\n{ending}")),
        of_body("a size with a prefix", format!("0x{length:x}\r\n{ping}\r\n{ending}")),
        of_body("a size of 2^64", format!("1{:016x}\r\n{ping}\r\n{ending}", length)),
        of_body(
            "a carriage return in an extension",
            format!("{length:x};a\rb\r\n{ping}\r\n{ending}"),
        ),
        of_body(
            "a chunk that is longer than it says",
            format!("{:x}\r\n{ping}\r\n{ending}", length - 1),
        ),
        of_body(
            "an endless extension",
            format!("{length:x};{}\r\n{ping}\r\n{ending}", "x".repeat(100_000)),
        ),
        of_body(
            "a trailer that ends in a bare line feed",
            format!("{length:x}\r\n{ping}\r\n0\r\nx: y\n\r\n{smuggled}"),
        ),
    ];
    for encoding in [
        "gzip, chunked",
        "identity",
        "chunked, chunked",
        "xchunked",
        "Chunked",
        "\u{b}chunked",
        "chunked;q=1",
        "\"chunked\"",
        "",
    ] {
        cases.push(of_head(
            "another transfer encoding",
            with(format!("transfer-encoding: {encoding}\r\n")),
            &ending,
        ));
    }
    for length in [
        format!("+{length}"),
        format!("{length}, {length}"),
        format!("{length} 0"),
        format!("0x{length:x}"),
        "-1".to_owned(),
        String::new(),
    ] {
        cases.push(of_head(
            "another length",
            with(format!("content-length: {length}\r\n")),
            format!("{ping}{smuggled}"),
        ));
    }
    cases
}

fn raw(line: &str, session: &str, case: &Ambiguous) -> String {
    let Ambiguous { framing, body, .. } = case;
    format!(
        "{line}\r\n{framing}content-type: application/json\r\naccept: application/json, text/event-stream\r\nmcp-session-id: {session}\r\n\r\n{body}"
    )
}

fn call(session: &str, text: &str) -> String {
    let body = request(8, "tools/call", json!({"name": "b__echo", "arguments": {"text": text}}));
    let headers =
        format!("mcp-session-id: {session}\r\naccept: application/json, text/event-stream\r\n");
    format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

struct Rig {
    broker: TestBroker,
    backend: FakeBackend,
    _client: TestClient,
    session: String,
}

impl Rig {
    async fn start(config: Value) -> Self {
        let backend = FakeBackend::echo().await;
        let broker = configured_alone(config, backend.spec()).await;
        let client = broker.client("/mcp").connected(json!({})).await;
        let session = client.session().unwrap();
        Self { broker, backend, _client: client, session }
    }

    /// Returns the texts of all calls that reached the backend.
    fn executed(&self) -> Vec<String> {
        let texts = self.backend.recorded_of("tools/call").into_iter();
        texts
            .map(|seen| {
                seen.message["params"]["arguments"]["text"].as_str().unwrap_or_default().to_owned()
            })
            .collect()
    }
}

/// Checks that there is one refusal, then the end of the connection, and no effect.
fn assert_refused(name: &str, answer: &str, case: &Ambiguous) {
    assert!(
        answer.starts_with("HTTP/1.1 400 ") && answers_in(answer) == 1,
        "{name}, {}: {:?}: {answer}",
        case.name,
        case.framing
    );
    assert!(
        case.head_is_fine || answer.to_lowercase().contains("connection: close"),
        "{name}, {}: {answer}",
        case.name
    );
}

#[tokio::test]
async fn framing_is_stricter_than_any_front_proxy() {
    let rig = Rig::start(json!({})).await;
    let (data, admin) = (rig.broker.http_address(), rig.broker.admin_address());
    let smuggled = call(&rig.session, "smuggled");
    let fine = call(&rig.session, "fine");
    let ping = request(7, "ping", json!({}));
    for case in ambiguous(&smuggled) {
        // The first bytes decide nothing: the path for calls, the one for everything else, the one
        // of operators.
        let answer =
            raw_http(data, raw("POST /mcp HTTP/1.1", &rig.session, &case).as_bytes()).await;
        assert_refused("a call", &answer, &case);
        if !case.head_is_fine {
            assert!(answer.contains("invalid_request"), "{answer}");
            let answer =
                raw_http(data, raw("DELETE /nowhere HTTP/1.1", &rig.session, &case).as_bytes())
                    .await;
            assert_refused("another method", &answer, &case);
        }
        let answer = raw_http(
            admin,
            raw("PUT /admin/v1/tenants/t HTTP/1.1", &rig.session, &case).as_bytes(),
        )
        .await;
        assert_refused("an operator", &answer, &case);
        assert!(answer.contains("application/problem+json"), "{answer}");
        // The request follows others that were served, on both paths.
        for first in
            [fine.clone(), format!("\r\nGET /nowhere HTTP/1.1\r\nhost: localhost\r\n\r\n{fine}")]
        {
            let mut stream = TcpStream::connect(data).await.unwrap();
            stream.write_all(first.as_bytes()).await.unwrap();
            for _ in 0..first.matches(" HTTP/1.1\r\n").count() {
                assert!(!read_answer(&mut stream).await.contains(" 400 "), "{}", case.name);
            }
            stream
                .write_all(raw("POST /mcp HTTP/1.1", &rig.session, &case).as_bytes())
                .await
                .unwrap();
            assert_refused("a later call", &read_to_close(&mut stream).await, &case);
        }
        // The request comes in pieces, each read by itself.
        let mut stream = TcpStream::connect(data).await.unwrap();
        stream.set_nodelay(true).unwrap();
        for piece in raw("POST /mcp HTTP/1.1", &rig.session, &case).as_bytes().chunks(50) {
            if stream.write_all(piece).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        assert_refused("a call in pieces", &read_to_close(&mut stream).await, &case);
    }
    assert!(!rig.executed().iter().any(|text| text == "smuggled"), "{:?}", rig.executed());
    // HTTP/1.0 may come without Host (RFC 9112, 3.2), and never with chunks.
    let old =
        |more: &str, body: &str| format!("PUT /admin/v1/tenants/t HTTP/1.0\r\n{more}\r\n{body}");
    let answer = raw_http(admin, old("content-length: 0\r\n", "").as_bytes()).await;
    assert!(answer.contains("Host header is missing"), "{answer}");
    let answer = raw_http(
        admin,
        old("host: localhost\r\ntransfer-encoding: chunked\r\n", "0\r\n\r\n").as_bytes(),
    )
    .await;
    assert!(
        answer.contains(" 400 ")
            && answer.contains("a request of HTTP/1.0 must not have a Transfer-Encoding"),
        "{answer}"
    );
    // Correct requests are served as before, with chunks too, and the connection stays.
    let chunked = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nmcp-session-id: {}\r\ntransfer-encoding: chunked\r\n\r\n{:x};a=b\r\n{ping}\r\n0\r\nx: y\r\n\r\n",
        rig.session,
        ping.len()
    );
    let mut stream = TcpStream::connect(data).await.unwrap();
    for _ in 0..2 {
        stream.write_all(chunked.as_bytes()).await.unwrap();
        assert!(read_answer(&mut stream).await.starts_with("HTTP/1.1 200"));
    }
}

#[tokio::test]
async fn framing_is_as_strict_over_tls() {
    let authority = Authority::new();
    let server = authority.server("server");
    let rig = Rig::start(json!({"tls": {"cert_file": server.cert, "key_file": server.key}})).await;
    let smuggled = call(&rig.session, "smuggled");
    for address in [rig.broker.http_address(), rig.broker.admin_address()] {
        for case in ambiguous(&smuggled).into_iter().filter(|case| !case.head_is_fine) {
            let mut stream = within("TLS", authority.connect(address.port(), None, &["http/1.1"]))
                .await
                .unwrap();
            stream
                .write_all(raw("POST /mcp HTTP/1.1", &rig.session, &case).as_bytes())
                .await
                .unwrap();
            let mut answer = Vec::new();
            let _no_close_notify = within("the end", stream.read_to_end(&mut answer)).await;
            assert_refused("over TLS", &String::from_utf8_lossy(&answer), &case);
        }
    }
    assert_eq!(rig.executed(), [""; 0]);
}

#[tokio::test]
async fn framing_of_a_body_above_the_limit_is_refused_before_it_arrives() {
    let rig = Rig::start(json!({"limits": {"message_bytes": "64KiB"}})).await;
    let head = |line: &str, length: usize| {
        let session = &rig.session;
        format!(
            "{line}\r\nhost: localhost\r\ncontent-type: application/json\r\nmcp-session-id: {session}\r\ncontent-length: {length}\r\n"
        )
    };
    for (address, line) in [
        (rig.broker.http_address(), "POST /mcp HTTP/1.1"),
        (rig.broker.http_address(), "POST /messages?session=x HTTP/1.1"),
        (rig.broker.admin_address(), "PUT /admin/v1/tenants/t HTTP/1.1"),
    ] {
        for more in ["", "expect: 100-continue\r\n"] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream
                .write_all(format!("{}{more}\r\n", head(line, 2 << 20)).as_bytes())
                .await
                .unwrap();
            // None of the body was sent.
            let answer = read_answer(&mut stream).await;
            assert!(
                answer.starts_with("HTTP/1.1 413 ")
                    && answer.to_lowercase().contains("connection: close"),
                "{line}: {answer}"
            );
            // Bytes that are sent nevertheless are not taken for another request.
            let _closed = stream.write_all(call(&rig.session, "smuggled").as_bytes()).await;
            assert_eq!(read_to_close(&mut stream).await, "", "{line}");
        }
    }
    assert_eq!(rig.executed(), [""; 0]);
}

#[tokio::test]
async fn s17_a_chunk_above_the_limit_is_refused_before_it_arrives() {
    let rig = Rig::start(json!({"limits": {"message_bytes": "64KiB"}})).await;
    let session = &rig.session;
    for (address, line) in [
        (rig.broker.http_address(), "POST /mcp HTTP/1.1"),
        (rig.broker.admin_address(), "PUT /admin/v1/tenants/t HTTP/1.1"),
    ] {
        for size in ["200000", "7fffffff", "ffffffffffffffff"] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let head = format!(
                "{line}\r\nhost: localhost\r\ncontent-type: application/json\r\nmcp-session-id: {session}\r\ntransfer-encoding: chunked\r\n"
            );
            stream.write_all(format!("{head}\r\n{size}\r\nabc").as_bytes()).await.unwrap();
            let answer = read_answer(&mut stream).await;
            assert!(
                answer.starts_with("HTTP/1.1 413 ")
                    && answer.to_lowercase().contains("connection: close"),
                "{line}, {size}: {answer}"
            );
            let _closed = stream.write_all(call(session, "smuggled").as_bytes()).await;
            assert_eq!(read_to_close(&mut stream).await, "", "{line}, {size}");
        }
    }
    // The target of a request has no fragment.
    let mut stream = TcpStream::connect(rig.broker.http_address()).await.unwrap();
    stream
        .write_all(call(session, "smuggled").replacen("/mcp", "/mcp#x", 1).as_bytes())
        .await
        .unwrap();
    let answer = read_to_close(&mut stream).await;
    assert!(
        answer.starts_with("HTTP/1.1 400 ") && answer.contains("without a fragment"),
        "{answer}"
    );
    assert_eq!(rig.executed(), [""; 0]);
}

/// Sends through a proxy that keeps its connections to the broker. Whatever the proxy makes of a
/// request, the broker answers as many as the proxy has sent. Each client gets its own answers.
async fn nothing_is_smuggled(rig: &Rig, name: &str, front: SocketAddr) {
    for (number, _) in ambiguous("").iter().enumerate() {
        let (smuggled, victims) =
            (format!("smuggled-{name}-{number}"), format!("victim-{name}-{number}"));
        let case = &ambiguous(&call(&rig.session, &smuggled))[number];
        let mut attacker = TcpStream::connect(front).await.unwrap();
        attacker.write_all(raw("POST /mcp HTTP/1.1", &rig.session, case).as_bytes()).await.unwrap();
        // The shutdown marks the end of the request, so that a proxy that waits for more of it
        // gives up.
        attacker.shutdown().await.unwrap();
        let attacked = read_to_close(&mut attacker).await;
        // The next client gets its own answer, over the connection that was used before if there is
        // one.
        let mut victim = TcpStream::connect(front).await.unwrap();
        victim.write_all(call(&rig.session, &victims).as_bytes()).await.unwrap();
        let answer = read_answer(&mut victim).await;
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.contains(&victims),
            "{name}, {}: {answer}",
            case.name
        );
        // A request that the proxy itself took for a second one was answered to its sender.
        let was_executed = rig.executed().contains(&smuggled);
        assert!(
            !was_executed || attacked.contains(&smuggled),
            "{name}, {}: {:?}: {attacked}",
            case.name,
            case.framing
        );
        assert!(!answer.contains("smuggled"), "{name}, {}: {answer}", case.name);
    }
}

#[tokio::test]
async fn framing_is_unambiguous_behind_nginx() {
    let rig = Rig::start(json!({})).await;
    let front = FrontProxy::nginx(rig.broker.http_address(), "").await;
    nothing_is_smuggled(&rig, "nginx", front.address()).await;
}

#[tokio::test]
async fn framing_is_unambiguous_behind_haproxy() {
    let rig = Rig::start(json!({})).await;
    // Some versions of HAProxy wait for the rest of a chunk's size, even after the end of the
    // client's half.
    const PATIENCE: &str =
        "timeout client 2s\n timeout server 2s\n timeout http-request 2s\n timeout client-fin 2s\n";
    let lenient = format!("{PATIENCE} option accept-invalid-http-request");
    for (name, option) in [("haproxy", PATIENCE), ("lenient haproxy", &lenient)] {
        let front = FrontProxy::haproxy(rig.broker.http_address(), "http", "", option).await;
        nothing_is_smuggled(&rig, name, front.address()).await;
    }
}
