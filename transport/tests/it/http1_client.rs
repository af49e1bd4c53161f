//! Tests of HTTP/1.1 without TLS against servers that control each byte: the ends of bodies, reuse
//! of connections, and requests that must not be sent twice.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use transport::{
    BodyError, EgressPolicy, HttpClient, HttpClientConfig, SendError, VectoredBody, parse_http_url,
};

use crate::soon;

fn client(idle_timeout: Duration) -> HttpClient {
    let egress = Arc::new(EgressPolicy { loopback: true, ..EgressPolicy::default() });
    HttpClient::new(HttpClientConfig { egress, idle_timeout, ..HttpClientConfig::default() })
        .unwrap()
}

fn patient() -> HttpClient {
    client(Duration::from_secs(60))
}

fn post(url: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    Request::builder()
        .method(Method::POST)
        .uri(parse_http_url(url).unwrap())
        .body(Full::new(body.into()))
        .unwrap()
}

/// A server that runs `serve` on each connection and counts the connections.
async fn server<Serving>(
    serve: impl Fn(TcpStream, usize) -> Serving + Send + 'static,
) -> (String, Arc<AtomicUsize>)
where
    Serving: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(serve(socket, number));
        }
    });
    (url, connections)
}

/// Returns the next request of a connection, head and body, or `None` at its end.
async fn request(socket: &mut TcpStream) -> Option<String> {
    let mut read = Vec::new();
    loop {
        let mut byte = [0; 1];
        if socket.read(&mut byte).await.unwrap_or(0) == 0 {
            return None;
        }
        read.push(byte[0]);
        if read.ends_with(b"\r\n\r\n") {
            break;
        }
    }
    let mut text = String::from_utf8(read).unwrap();
    let length = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    socket.read_exact(&mut body).await.ok()?;
    text += &String::from_utf8(body).unwrap();
    Some(text)
}

/// A server that answers every request with the same bytes, in pieces of `at_once`, and keeps its
/// connections open.
async fn saying(answer: &'static [u8], at_once: usize) -> (String, Arc<AtomicUsize>) {
    server(move |mut socket, _| async move {
        socket.set_nodelay(true).unwrap();
        while request(&mut socket).await.is_some() {
            for piece in answer.chunks(at_once) {
                let _ = socket.write_all(piece).await;
                tokio::task::yield_now().await;
            }
        }
    })
    .await
}

async fn body_of(client: &HttpClient, url: &str) -> Result<Bytes, BodyError> {
    let response = soon("a response", client.send(post(url, "ping"))).await.unwrap();
    soon("its body", response.into_body().read_whole(1_000_000)).await
}

#[tokio::test]
async fn bodies_end_as_declared_by_their_heads_in_any_pieces() {
    let answers: [&'static [u8]; 6] = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n12345678",
        b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nContent-Length: 8\r\n\r\n12345678",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n3\r\n123\r\n05;a=\"b\"\r\n45678\r\n0\r\nX-Trailer: 1\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n12345678",
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 8\r\n\r\n12345678",
        b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: Keep-Alive\r\n\r\n12345678",
    ];
    for answer in answers {
        for at_once in [1, 7, 1000] {
            let (url, connections) = saying(answer, at_once).await;
            let client = patient();
            for _ in 0..3 {
                assert_eq!(
                    body_of(&client, &url).await.unwrap(),
                    "12345678",
                    "{}",
                    answer.escape_ascii()
                );
            }
            assert_eq!(connections.load(Ordering::SeqCst), 1, "{}", answer.escape_ascii());
        }
    }
}

#[tokio::test]
async fn a_repeated_head_is_decoded_with_its_current_values() {
    const ANSWERS: [(&str, &str, &str); 11] = [
        ("", "X: 1", "a"),
        ("", "X: 1", "bcd"),
        ("", "X: 1", "bcd"),
        // The early hints before a response are not part of it.
        (EARLY, "X: 1", "0123456789"),
        (EARLY, "X: 1", "01234567890123"),
        ("", "X: 1", "e"),
        (EARLY, "X: 2", "0123456789"),
        ("", "X: 2", "0"),
        ("", "X: 2", ""),
        ("", "X: 2\r\nConnection: close", "ef"),
        ("", "X: 2", "g"),
    ];
    const EARLY: &str =
        "HTTP/1.1 103 Early Hints\r\nContent-Length: 7\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n";
    for at_once in [1, 3, 1000] {
        let answered = Arc::new(AtomicUsize::new(0));
        let (url, connections) = server(move |mut socket, _| {
            let answered = answered.clone();
            async move {
                socket.set_nodelay(true).unwrap();
                while request(&mut socket).await.is_some() {
                    let (before, header, body) = ANSWERS[answered.fetch_add(1, Ordering::SeqCst)];
                    let text = format!("{before}HTTP/1.1 200 OK\r\n{header}\r\nContent-Length: {}\r\nY: 1\r\n\r\n{body}", body.len());
                    for piece in text.as_bytes().chunks(at_once) {
                        socket.write_all(piece).await.unwrap();
                        tokio::task::yield_now().await;
                    }
                    if header.ends_with("close") {
                        return;
                    }
                }
            }
        })
        .await;
        let client = patient();
        for (_, header, body) in ANSWERS {
            let response = soon("a response", client.send(post(&url, "ping"))).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK, "{at_once} at once");
            assert_eq!(response.headers()["x"], header[3..4]);
            assert!(
                !response.headers().contains_key("content-length"),
                "no length of another response"
            );
            assert_eq!(
                soon("its body", response.into_body().read_whole(1_000)).await.unwrap(),
                body
            );
        }
        assert_eq!(connections.load(Ordering::SeqCst), 2, "one was closed by the server");
    }
}

#[tokio::test]
async fn ambiguous_responses_are_refused() {
    let heads: [&'static [u8]; 7] = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nContent-Length: 9\r\n\r\n12345678",
        b"HTTP/1.1 200 OK\r\nContent-Length: 8, 8\r\n\r\n12345678",
        b"HTTP/1.1 200 OK\r\nContent-Length: +8\r\n\r\n12345678",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
    ];
    for answer in heads {
        let (url, _) = saying(answer, 1000).await;
        let error =
            soon("an error", patient().send(post(&url, "ping"))).await.map(|_| ()).unwrap_err();
        assert!(matches!(error, SendError::Aborted { .. }), "{}: {error}", answer.escape_ascii());
    }
    let bodies: [&'static [u8]; 6] = [
        b"-1\r\n",
        b"\r\n",
        b"3\n123\r\n0\r\n\r\n",
        b"3\r\n1234\r\n0\r\n\r\n",
        b"11111111111111111\r\n",
        b"3 x\r\n123\r\n",
    ];
    for chunks in bodies {
        let answer =
            [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunks].concat().leak();
        let (url, _) = saying(answer, 1000).await;
        assert!(
            matches!(body_of(&patient(), &url).await, Err(BodyError::Aborted { .. })),
            "{}",
            chunks.escape_ascii()
        );
    }
}

#[tokio::test]
async fn a_connection_is_not_reused_after_a_closing_or_ambiguous_answer() {
    let answers: [&'static [u8]; 5] = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 70\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        // An attacker could have planted the rest as the answer to the next request.
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
    ];
    for answer in answers {
        let (url, connections) = saying(answer, 1000).await;
        let client = patient();
        for _ in 0..3 {
            assert_eq!(body_of(&client, &url).await.unwrap(), "ok", "{}", answer.escape_ascii());
        }
        assert_eq!(connections.load(Ordering::SeqCst), 3, "{}", answer.escape_ascii());
    }
}

#[tokio::test]
async fn data_on_an_idle_connection_is_not_used_as_an_answer() {
    let (url, connections) = server(|mut socket, number| async move {
        while request(&mut socket).await.is_some() {
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
            if number == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
                let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil").await;
            }
        }
    })
    .await;
    let client = patient();
    assert_eq!(body_of(&client, &url).await.unwrap(), "ok");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(body_of(&client, &url).await.unwrap(), "ok");
    assert_eq!(connections.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_connection_closed_while_idle_fails_no_request() {
    let (url, connections) = server(|mut socket, _| async move {
        request(&mut socket).await;
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    })
    .await;
    let client = patient();
    for _ in 0..5 {
        assert_eq!(body_of(&client, &url).await.unwrap(), "ok");
        tokio::time::sleep(Duration::from_millis(50)).await; // its end arrives
    }
    assert_eq!(connections.load(Ordering::SeqCst), 5);
}

#[tokio::test]
async fn a_connection_that_was_idle_for_long_is_closed() {
    let (ended, mut seen) = tokio::sync::mpsc::channel(1);
    let (url, _) = server(move |mut socket, _| {
        let ended = ended.clone();
        async move {
            while request(&mut socket).await.is_some() {
                let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
            }
            let _ = ended.send(()).await;
        }
    })
    .await;
    let client = client(Duration::from_millis(100));
    assert_eq!(body_of(&client, &url).await.unwrap(), "ok");
    soon("the end of the connection", seen.recv()).await.unwrap();
}

#[tokio::test]
async fn an_answer_before_the_request_is_complete_is_accepted() {
    let (url, connections) = server(|mut socket, _| async move {
        let mut some = [0; 1024];
        let _ = socket.read(&mut some).await;
        let _ = socket
            .write_all(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nno!")
            .await;
        tokio::time::sleep(Duration::from_secs(60)).await; // and reads nothing more
    })
    .await;
    let client = patient();
    for _ in 0..2 {
        let response = soon("the answer", client.send(post(&url, vec![b'x'; 32 * 1024 * 1024])))
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(response.into_body().read_whole(10).await.unwrap(), "no!");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 2, "half a request is not followed by another");
}

#[tokio::test]
async fn the_request_body_is_sent_even_after_the_answer_began() {
    const BYTES: usize = 32 * 1024 * 1024;
    for head in ["Content-Length: 2\r\n", "Transfer-Encoding: chunked\r\n"] {
        let (url, _) = server(move |mut socket, _| async move {
            let mut some = vec![0; 64 * 1024];
            let read = socket.read(&mut some).await.unwrap();
            let head_bytes = some.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
            let _ = socket.write_all(format!("HTTP/1.1 200 OK\r\n{head}\r\n").as_bytes()).await;
            let mut remaining = BYTES + head_bytes - read;
            while remaining > 0 {
                let Ok(read @ 1..) = socket.read(&mut some).await else { return };
                remaining -= read;
            }
            let body = if head.starts_with("Content") { "ok" } else { "2\r\nok\r\n0\r\n\r\n" };
            let _ = socket.write_all(body.as_bytes()).await;
        })
        .await;
        let response =
            soon("the head", patient().send(post(&url, vec![b'x'; BYTES]))).await.unwrap();
        assert_eq!(
            soon("the body", response.into_body().read_whole(10)).await.unwrap(),
            "ok",
            "{head}"
        );
    }
}

#[tokio::test]
async fn interim_responses_do_not_stop_a_request() {
    const BYTES: usize = 32 * 1024 * 1024;
    let (url, connections) = server(|mut socket, _| async move {
        loop {
            let mut some = vec![0; 1024 * 1024];
            let mut remaining = BYTES;
            while remaining > 0 {
                let Ok(read @ 1..) = socket.read(&mut some).await else { return };
                if remaining == BYTES {
                    // The first piece contains the head of the request.
                    remaining += some.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
                    let _ =
                        socket.write_all(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n").await;
                }
                remaining -= read;
            }
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        }
    })
    .await;
    let client = patient();
    for _ in 0..2 {
        let response =
            soon("the answer", client.send(post(&url, vec![b'x'; BYTES]))).await.unwrap();
        assert_eq!(response.into_body().read_whole(10).await.unwrap(), "ok");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_request_is_complete_and_has_the_required_headers() {
    let (sender, mut requests) = tokio::sync::mpsc::channel(4);
    let (url, _) = server(move |mut socket, _| {
        let sender = sender.clone();
        async move {
            while let Some(request) = request(&mut socket).await {
                let _ = sender.send(request).await;
                let _ = socket.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
            }
        }
    })
    .await;
    let client = patient();
    let large = "x".repeat(300_000);
    let mut with_headers = post(&url, large.clone());
    for (name, value) in [("x-one", "1"), ("content-length", "5"), ("transfer-encoding", "chunked")]
    {
        with_headers.headers_mut().insert(name, value.parse().unwrap());
    }
    let authority = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
    assert_eq!(
        soon("an answer", client.send(with_headers)).await.unwrap().status(),
        StatusCode::NO_CONTENT
    );
    let expected = format!(
        "POST / HTTP/1.1\r\nhost: {authority}\r\nx-one: 1\r\ncontent-length: 300000\r\n\r\n{large}"
    );
    assert!(requests.recv().await.unwrap() == expected);

    let get = Request::builder()
        .uri(format!("http://{authority}/a/b?c=d"))
        .body(Full::default())
        .unwrap();
    soon("an answer", client.send(get)).await.unwrap();
    assert_eq!(
        requests.recv().await.unwrap(),
        format!("GET /a/b?c=d HTTP/1.1\r\nhost: {authority}\r\n\r\n")
    );
}

#[tokio::test]
async fn a_prepared_post_equals_the_original_post() {
    let (sender, mut requests) = tokio::sync::mpsc::channel(4);
    let (url, connections) = server(move |mut socket, _| {
        let sender = sender.clone();
        async move {
            while let Some(request) = request(&mut socket).await {
                let _ = sender.send(request).await;
                let _ = socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
            }
        }
    })
    .await;
    let client = patient();
    let mut usual = post(&url, "");
    for (name, value) in [("x-one", "1"), ("content-length", "5")] {
        usual.headers_mut().insert(name, value.parse().unwrap());
    }
    let prepared = client.prepare(usual.clone().map(drop)).unwrap();
    for body in ["", "{}", "a longer one"] {
        let sent = usual.clone().map(|_| Full::new(Bytes::from(body)));
        let first = soon("an answer", client.send(sent)).await.unwrap();
        assert_eq!(soon("its body", first.into_body().read_whole(10)).await.unwrap(), "ok");
        let (half, rest) = body.split_at(body.len() / 2);
        let pieces = VectoredBody::from([half.into(), Bytes::new(), rest.into()]);
        let second = soon("an answer", client.send_prepared(&prepared, pieces)).await.unwrap();
        assert_eq!(soon("its body", second.into_body().read_whole(10)).await.unwrap(), "ok");
        let (usual, prepared) = (requests.recv().await.unwrap(), requests.recv().await.unwrap());
        assert_eq!(usual, prepared);
        assert!(prepared.ends_with(body));
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1, "both kinds share connections");
    let https = Request::post("https://localhost/mcp").body(()).unwrap();
    assert!(client.prepare(https).is_none(), "with TLS the library writes heads");
}

#[tokio::test]
async fn events_are_received_as_soon_as_they_are_sent() {
    let (url, _) = server(|mut socket, _| async move {
        request(&mut socket).await;
        let _ = socket
            .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none\n\r\n")
            .await;
        request(&mut socket).await; // until it hangs up
    })
    .await;
    let mut body =
        soon("a response", patient().send(post(&url, "ping"))).await.unwrap().into_body();
    let first = soon("the first event", body.frame()).await.unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), "one\n");
}
