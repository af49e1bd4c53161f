//! Tests of the request framing before the HTTP library. Valid requests pass unchanged, in pieces
//! of any size. Requests that two readers could interpret differently do not pass.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, ReadBuf},
    time::timeout,
};
use transport::framing::{ChunksTooLong, FramingGuard};

const HEAD_BYTES_MAX: usize = 512;
const BODY_BYTES_MAX: usize = 256 * 1024;
const FINE: &[u8] = b"GET /fine HTTP/1.1\r\nHost: a\r\n\r\n";

/// A peer that sends at most `at_once` bytes in each read, and then hangs up.
struct Peer<'a> {
    rest: &'a [u8],
    at_once: usize,
}

impl AsyncRead for Peer<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (now, rest) =
            self.rest.split_at(self.at_once.min(self.rest.len()).min(buffer.remaining()));
        buffer.put_slice(now);
        self.rest = rest;
        Poll::Ready(Ok(()))
    }
}

/// Returns the bytes of `sent` that pass the guard. They arrive in pieces of `at_once` bytes, and
/// the guard gets the first piece at its creation.
fn passed(sent: &[u8], at_once: usize, buffer_bytes: usize) -> Vec<u8> {
    let (first, rest) = sent.split_at(at_once.min(sent.len()));
    let mut guard = FramingGuard::new(
        Peer { rest, at_once },
        Bytes::copy_from_slice(first),
        HEAD_BYTES_MAX,
        BODY_BYTES_MAX,
    );
    let (mut passed, mut buffer) = (Vec::new(), vec![0; buffer_bytes]);
    // After a refusal no byte arrives, and no end of the stream either.
    while let Some(count) = guard.read(&mut buffer).now_or_never() {
        match count.unwrap() {
            0 => break,
            count => passed.extend_from_slice(&buffer[..count]),
        }
    }
    passed
}

/// Checks that the result is the same for several sizes of the pieces and of the read buffer.
fn passed_in_pieces(sent: &[u8]) -> Vec<u8> {
    let whole = passed(sent, sent.len(), 4096);
    for (at_once, buffer_bytes) in
        [(1, 4096), (2, 1), (3, 7), (7, 3), (64, 64), (sent.len() / 2 + 1, 5)]
    {
        assert_eq!(
            passed(sent, at_once, buffer_bytes).escape_ascii().to_string(),
            whole.escape_ascii().to_string(),
            "{at_once} {buffer_bytes}"
        );
    }
    whole
}

#[test]
fn framing_passes_unambiguous_requests_unchanged() {
    for request in [
        &b"GET / HTTP/1.1\r\nHost: localhost:80\r\n\r\n"[..],
        b"GET / HTTP/1.1\r\nHost: [::1]:80\r\nX: \tspaced \r\n\r\n",
        b"GET / HTTP/1.1\r\nHost:\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n\n\r\r\n\0",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length:  0005 \r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
        b"POST / HTTP/1.0\r\nContent-Length: 2\r\n\r\nok",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0A;name=value\r\n0123456789\r\n000\r\nTrailer: x\r\n\r\n",
    ] {
        // A second request follows, and empty lines precede both.
        let sent = [b"\r\n\r\n", request, b"\r\n", FINE].concat();
        let passed = passed_in_pieces(&sent);
        assert_eq!(passed.escape_ascii().to_string(), [request, FINE].concat().escape_ascii().to_string());
    }
}

#[test]
fn framing_stops_at_an_ambiguous_head() {
    let long = format!("X: {}\r\n", "y".repeat(HEAD_BYTES_MAX));
    let many = "X: y\r\n".repeat(101);
    let cases: &[(&str, &str)] = &[
        ("POST / HTTP/1.1\r\nHost: a\nContent-Length: 1\r\n\r\n", "bare-line-feed"),
        ("POST / HTTP/1.1\nHost: a\n\n", "bare-line-feed"),
        ("\nPOST / HTTP/1.1\r\nHost: a\r\n\r\n", "bare-line-feed"),
        ("GET / HTTP/1.1\r\nHost: a\r\n\n", "bare-line-feed"),
        ("GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", "bare-carriage-return"),
        ("GET / HTTP/1.1\r\r\nHost: a\r\n\r\n", "bare-carriage-return"),
        ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", "request-line"),
        ("GET /\r\nHost: a\r\n\r\n", "request-line"),
        ("GET / HTTP/1.2\r\nHost: a\r\n\r\n", "http-version"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", "line-folding"),
        ("GET / HTTP/1.1\r\n Host: a\r\n\r\n", "line-folding"),
        ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", "header-name"),
        ("GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n", "header-name"),
        ("GET / HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n", "header-name"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", "header-value"),
        ("GET / HTTP/1.1\r\nX: a\r\n\r\n", "host-missing"),
        ("GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", "host-repeated"),
        ("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", "host-invalid"),
        ("GET / HTTP/1.1\r\nHost: user@a\r\n\r\n", "host-invalid"),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\nx", "content-length-invalid"),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\nx", "content-length-invalid"),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1 1\r\n\r\nx", "content-length-invalid"),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\nx", "content-length-invalid"),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
            "content-length-repeated",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\nx",
            "content-length-invalid",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            "transfer-encoding-unsupported",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: CHUNKED\r\n\r\n0\r\n\r\n",
            "transfer-encoding-unsupported",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n\r\n0\r\n\r\n",
            "transfer-encoding-unsupported",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            "transfer-encoding-repeated",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "transfer-encoding-with-content-length",
        ),
        (
            "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "transfer-encoding-in-http10",
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nX-Mcp-Broker-Framing-Violation: host-missing\r\n\r\n",
            "reserved-header",
        ),
        (&format!("GET / HTTP/1.1\r\nHost: a\r\n{long}\r\n"), "head-too-long"),
        (&format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n"), "head-too-long"),
    ];
    for (refused, code) in cases {
        // Neither the refused request nor the bytes after it pass. The request before it does.
        let sent = [FINE, refused.as_bytes(), FINE].concat();
        let passed = String::from_utf8(passed_in_pieces(&sent)).unwrap();
        let pooled_session = passed
            .strip_prefix(std::str::from_utf8(FINE).unwrap())
            .unwrap_or_else(|| panic!("{refused:?}: {passed:?}"));
        assert!(
            pooled_session.ends_with(&format!("x-mcp-broker-framing-violation: {code}\r\n\r\n")),
            "{refused:?}: {pooled_session:?}"
        );
        assert_eq!(
            pooled_session.matches("HTTP/1.1").count(),
            1,
            "{refused:?}: {pooled_session:?}"
        );
    }
}

#[test]
fn framing_ends_a_body_with_ambiguous_chunks() {
    let head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let (extension, trailers) = (
        format!("2;{}\r\nok\r\n", "x".repeat(5_000)),
        format!("0\r\n{}\r\n", "T: y\r\n".repeat(5_000)),
    );
    let cases: &[(&[u8], &[u8])] = &[
        (b"2\nok\r\n", b""),
        (b"2 \r\nok\r\n", b""),
        (b" 2\r\nok\r\n", b""),
        (b"+2\r\nok\r\n", b""),
        (b"0x2\r\nok\r\n", b""),
        (b"\r\nok\r\n", b""),
        (b"fffffffffffffffff\r\n", b""),
        (b"2;a\rb\r\nok\r\n", b""),
        (b"2;a\0b\r\nok\r\n", b""),
        (extension.as_bytes(), b""),
        (b"2\r\nokay\r\n", b"2\r\nok"),
        (b"2\r\nok\n\n", b"2\r\nok"),
        (b"2\r\nok\r\n0\r\nno trailer\r\n\r\n", b"2\r\nok\r\n0\r\n"),
        (b"2\r\nok\r\n0\r\nT: x\n\r\n", b"2\r\nok\r\n0\r\n"),
        (b"2\r\nok\r\n0\r\n folded: x\r\n\r\n", b"2\r\nok\r\n0\r\n"),
    ];
    for (chunks, right) in cases {
        let passed = passed_in_pieces(&[&head[..], chunks, FINE].concat());
        let expected = [&head[..], right].concat();
        assert_eq!(
            passed.escape_ascii().to_string(),
            expected.escape_ascii().to_string(),
            "{}",
            chunks.escape_ascii()
        );
    }
    let passed = passed(&[head, trailers.as_bytes(), FINE].concat(), 1000, 4096);
    assert!(passed.len() < head.len() + 17 * 1024, "{} bytes of trailers", passed.len());
}

#[test]
fn s17_a_chunk_above_the_limit_ends_the_body_as_soon_as_it_is_announced() {
    let head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let read = |chunks: &str| {
        let sent = [&head[..], chunks.as_bytes()].concat();
        let mut guard = FramingGuard::new(
            Peer { rest: &sent, at_once: 64 },
            Bytes::new(),
            HEAD_BYTES_MAX,
            0x20,
        );
        let (mut passed, mut buffer) = (0, [0; 64]);
        loop {
            match guard.read(&mut buffer).now_or_never().unwrap() {
                Ok(0) => return (passed - head.len(), false),
                Ok(count) => passed += count,
                Err(error) => return (passed - head.len(), ChunksTooLong::caused(&error)),
            }
        }
    };
    let full = format!("20\r\n{}\r\n0\r\n\r\n", "x".repeat(0x20));
    assert_eq!(read(&full), (full.len(), false), "as much as may be");
    for size in ["21", "10000000", "7fffffff", "ffffffffffffffff", "0021;a=b"] {
        assert_eq!(read(&format!("{size}\r\nabc")), (0, true), "{size}");
    }
    let first = format!("10\r\n{}\r\n", "x".repeat(0x10));
    assert_eq!(
        read(&format!("{first}11\r\nabc")),
        (first.len(), true),
        "all chunks together count"
    );
}

#[test]
fn s17_a_target_with_a_fragment_is_refused() {
    for target in ["/mcp#x", "/#", "#", "http://a/mcp#x"] {
        let sent = format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
        let passed = String::from_utf8(passed(sent.as_bytes(), 4096, 4096)).unwrap();
        assert!(passed.contains("request-line") && !passed.contains("POST"), "{target}: {passed}");
    }
    let fine = b"GET /a%23b HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(passed(fine, 4096, 4096), fine);
}

#[test]
fn framing_does_not_read_bytes_after_an_upgrade() {
    let upgrade =
        b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c, WebSocket\r\n\r\n";
    let sent = [&upgrade[..], b"\x81\x00frames"].concat();
    let mut guard = FramingGuard::new(
        Peer { rest: &sent, at_once: 1024 },
        Bytes::new(),
        HEAD_BYTES_MAX,
        BODY_BYTES_MAX,
    );
    let mut head = vec![0; upgrade.len()];
    guard.read_exact(&mut head).now_or_never().unwrap().unwrap();
    assert_eq!(head, upgrade);
    assert_eq!(
        guard.read(&mut [0; 64]).now_or_never().unwrap().unwrap(),
        0,
        "nothing passes behind a request for a WebSocket"
    );
    let (_, unread) = guard.into_parts();
    assert_eq!(unread, &b"\x81\x00frames"[..]);
    // The broker upgrades to WebSocket only, so the next bytes are a request.
    let other = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n";
    assert_eq!(passed_in_pieces(&[&other[..], FINE].concat()), [&other[..], FINE].concat());
}

#[tokio::test(start_paused = true)]
async fn an_incomplete_head_has_a_time_limit_and_an_unused_connection_has_none() {
    let head_time = Duration::from_secs(30);
    let (mut client, server) = tokio::io::duplex(1024);
    let mut guard = FramingGuard::new(server, Bytes::new(), HEAD_BYTES_MAX, BODY_BYTES_MAX)
        .limit_head_time(head_time);
    let mut buffer = [0; 1024];
    for _ in 0..2 {
        assert!(timeout(head_time * 3, guard.read(&mut buffer)).await.is_err(), "it waits");
        client.write_all(&FINE[..9]).await.unwrap();
        assert!(timeout(head_time / 2, guard.read(&mut buffer)).await.is_err(), "it waits");
        client.write_all(&FINE[9..]).await.unwrap();
        let count = guard.read(&mut buffer).await.unwrap();
        assert_eq!(&buffer[..count], FINE);
        guard.write_all(b"answer").await.unwrap();
    }
    client.write_all(&FINE[..9]).await.unwrap();
    let read = timeout(head_time * 2, guard.read(&mut buffer)).await.expect("the time limit");
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
}

/// The HTTP library reads during an answer, and an error would end the answer.
#[tokio::test(start_paused = true)]
async fn an_incomplete_head_does_not_end_the_answer_before_it() {
    let head_time = Duration::from_secs(30);
    let (mut client, server) = tokio::io::duplex(1024);
    let mut guard = FramingGuard::new(server, Bytes::new(), HEAD_BYTES_MAX, BODY_BYTES_MAX)
        .limit_head_time(head_time);
    let mut buffer = [0; 1024];
    client.write_all(&[FINE, &FINE[..9]].concat()).await.unwrap();
    let count = guard.read(&mut buffer).await.unwrap();
    assert_eq!(&buffer[..count], FINE);
    assert!(timeout(head_time * 3, guard.read(&mut buffer)).await.is_err(), "no answer yet");
    for _ in 0..3 {
        guard.write_all(b"event").await.unwrap();
        assert!(timeout(head_time / 2, guard.read(&mut buffer)).await.is_err(), "an event stream");
    }
    let read = timeout(head_time * 2, guard.read(&mut buffer)).await.expect("the time limit");
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
}
