//! Tests of plain POSTs at byte level: which requests the server handles, where they end, and that
//! no byte of other requests is lost.

use std::{
    convert::Infallible,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{Response, StatusCode};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt as _, Full, StreamBody};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::oneshot,
};
use transport::http1_server::{AfterAnswer, NextRequest, PlainRequest, ServerConnection};

use crate::soon;

const STALL_MAX: Duration = Duration::from_secs(10);
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Returns both ends of a connection.
async fn connected() -> (ServerConnection, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    client.set_nodelay(true).unwrap();
    let (server, _) = listener.accept().await.unwrap();
    (ServerConnection::new(server, HEAD_BYTES_MAX, STALL_MAX), client)
}

fn post(more: &str, body: &str) -> String {
    format!(
        "POST /mcp HTTP/1.1\r\nHost: a\r\n{more}Content-Length: {}\r\nX-Last: 1\r\n\r\n{body}",
        body.len()
    )
}

/// Returns the next request: its path, the length in its head, and its body.
async fn asked(posts: &mut ServerConnection) -> (String, String, String) {
    // A second call returns the same result.
    for _ in 0..2 {
        assert_eq!(soon("a request", posts.next()).await.unwrap(), NextRequest::Post);
    }
    let PlainRequest { head, body, .. } = posts.take_request().unwrap();
    let read = soon("the body", body.collect()).await.unwrap().to_bytes();
    let length = head.headers["content-length"].to_str().unwrap().to_owned();
    (head.uri.path().to_owned(), length, String::from_utf8(read.to_vec()).unwrap())
}

fn full(text: &'static str) -> Response<Full<Bytes>> {
    Response::new(Full::new(Bytes::from_static(text.as_bytes())))
}

/// Returns the text that arrives on a connection until it is closed.
async fn until_closed(client: &mut TcpStream) -> String {
    let mut text = String::new();
    soon("the end", client.read_to_string(&mut text)).await.unwrap();
    text
}

#[tokio::test]
async fn requests_are_separated_in_pieces_of_any_size() {
    let long = "x".repeat(150_000);
    let bodies = ["", "a", "0123456789", "b", "0123456789", long.as_str(), "f", "g", "hi"];
    let large = format!("X-Large: {}\r\n", "y".repeat(10_000)); // too large to be known again
    let heads = [
        "",
        "",
        "X-More: yes\r\n",
        "X-More: yes\r\n",
        "X-More: yes\r\n",
        "",
        "X-More: no\r\n",
        &large,
        &large,
    ];
    let all: String = bodies.iter().zip(heads).map(|(body, more)| post(more, body)).collect();
    for size in [1, 2, 3, 7, 64, 1000, all.len()] {
        let (mut posts, mut client) = connected().await;
        // Small pieces cover only the heads, because the long body would take too long.
        let text = if size < 64 { all[..all.find(&long).unwrap()].to_owned() } else { all.clone() };
        let sending = tokio::spawn(async move {
            for piece in text.as_bytes().chunks(size) {
                client.write_all(piece).await.unwrap();
            }
            client
        });
        for body in bodies.iter().take(if size < 64 { 5 } else { bodies.len() }) {
            let seen = asked(&mut posts).await;
            assert!(
                seen == ("/mcp".to_owned(), body.len().to_string(), (*body).to_owned()),
                "pieces of {size}"
            );
            assert!(
                soon("an answer", posts.respond(full("ok"), AfterAnswer::KeepAlive)).await.unwrap()
            );
        }
        drop(sending.await.unwrap());
    }
}

#[tokio::test]
async fn a_head_is_marked_as_repeated_only_if_it_equals_the_previous_one() {
    let (mut posts, mut client) = connected().await;
    for (more, repeats) in [("", false), ("", true), ("X: 1\r\n", false), ("", false)] {
        client.write_all(post(more, "a").as_bytes()).await.unwrap();
        for _ in 0..2 {
            assert_eq!(soon("a request", posts.next()).await.unwrap(), NextRequest::Post);
        }
        assert_eq!(posts.take_request().unwrap().is_repeated, repeats, "{more}");
        assert!(posts.respond(full("ok"), AfterAnswer::KeepAlive).await.unwrap());
    }
}

#[tokio::test]
async fn a_request_that_is_not_a_plain_post_is_returned_unread() {
    let strange = [
        "GET /mcp HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        "POST /mcp HTTP/1.0\r\nContent-Length: 0\r\n\r\n".to_owned(),
        "POST http://a/mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n".to_owned(),
        "POST /mcp HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        "nonsense\r\n\r\n".to_owned(),
        "\r\nPOST /mcp HTTP/1.1\r\nContent-Length: 0\r\n\r\n".to_owned(),
        post("Transfer-Encoding: chunked\r\n", "0\r\n\r\n"),
        post("Expect: 100-continue\r\n", "a"),
        post("Upgrade: websocket\r\n", "a"),
        post("Connection: upgrade\r\n", "a"),
        post("Connection: keep-alive, close\r\n", "a"),
        post("Content-Length: 1\r\n", "a"),
        post("Content-Length: 2\r\n", "a"),
        post("", "a").replace("Content-Length: 1", "Content-Length: +1"),
        post("", "a").replace("Content-Length: 1", "Content-Length: 1,1"),
        post("", "a").replace("Content-Length: 1", "Content-Length: 99999999999999999999999"),
        post(&"X-Many: 1\r\n".repeat(100), "a"),
        post(&format!("X-Large: {}\r\n", "y".repeat(HEAD_BYTES_MAX)), "a"),
        post(" folded\r\n", "a"),
    ];
    for text in strange {
        // The strange request also follows a plain one, whose head is cached by then.
        for before in ["", &post("", "first")] {
            let (mut posts, mut client) = connected().await;
            client.write_all(format!("{before}{text}").as_bytes()).await.unwrap();
            if !before.is_empty() {
                asked(&mut posts).await;
                posts.respond(full("ok"), AfterAnswer::KeepAlive).await.unwrap();
            }
            assert_eq!(soon("the next", posts.next()).await.unwrap(), NextRequest::Other, "{text}");
            assert!(posts.take_request().is_none());
            let (_socket, unread) = posts.into_parts();
            assert_eq!(unread, text.as_bytes());
        }
    }
}

fn get(accept: &str, more: &str) -> String {
    format!("GET /mcp HTTP/1.1\r\nHost: a\r\nAccept: {accept}\r\n{more}\r\n")
}

#[tokio::test]
async fn a_plain_get_of_an_event_stream_is_served_between_posts() {
    let (mut server, mut client) = connected().await;
    for (accept, more) in [
        ("text/event-stream", ""),
        ("application/json, text/event-stream", "Content-Length: 0\r\n"),
    ] {
        let text = [get(accept, more), get(accept, more), post("", "a")].concat();
        client.write_all(text.as_bytes()).await.unwrap();
        for _ in 0..2 {
            for _ in 0..2 {
                let next = soon("a request", server.next()).await.unwrap();
                assert_eq!(next, NextRequest::EventStream);
            }
            let PlainRequest { head, is_repeated, body, .. } = server.take_request().unwrap();
            assert_eq!(
                (head.method.as_str(), head.uri.path(), is_repeated),
                ("GET", "/mcp", false)
            );
            assert!(soon("no body", body.collect()).await.unwrap().to_bytes().is_empty());
            assert!(server.respond(full("ok"), AfterAnswer::KeepAlive).await.unwrap());
        }
        assert_eq!(asked(&mut server).await.2, "a");
        assert!(server.respond(full("ok"), AfterAnswer::KeepAlive).await.unwrap());
    }
}

#[tokio::test]
async fn a_get_that_is_not_plain_is_returned_with_all_bytes_read() {
    for text in [
        get("*/*", ""),
        get("application/json", ""),
        get("text/event-stream", "Content-Length: 1\r\n") + "a",
        get("text/event-stream", "Transfer-Encoding: chunked\r\n"),
        get("text/event-stream", "Connection: upgrade\r\nUpgrade: websocket\r\n"),
        get("text/event-stream", "").replace("HTTP/1.1", "HTTP/1.0"),
        get("text/event-stream", "").replace("GET", "HEAD"),
    ] {
        let (mut server, mut client) = connected().await;
        client.write_all(text.as_bytes()).await.unwrap();
        assert_eq!(soon("a request", server.next()).await.unwrap(), NextRequest::Other, "{text}");
        assert!(server.take_request().is_none());
        assert_eq!(server.into_parts().1, text.as_bytes());
    }
}

#[tokio::test]
async fn the_received_part_of_a_body_does_not_wait_for_its_rest() {
    let (mut posts, mut client) = connected().await;
    let text = post("", &"x".repeat(1_000_000));
    let (begun, rest) = text.as_bytes().split_at(100_000);
    client.write_all(begun).await.unwrap();
    assert_eq!(soon("a request", posts.next()).await.unwrap(), NextRequest::Post);
    let mut body = posts.take_request().unwrap().body;
    let mut received = 0;
    // The last bytes are few, and may wait.
    while received < 90_000 {
        let frame = soon("a piece", body.frame()).await.unwrap().unwrap();
        received += frame.data_ref().unwrap().len();
    }
    assert!(received < begun.len());
    let (written, rest) = tokio::join!(client.write_all(rest), body.collect());
    written.unwrap();
    assert_eq!(received + rest.unwrap().to_bytes().len(), 1_000_000);
}

#[tokio::test]
async fn a_body_of_the_largest_possible_length_can_be_declared() {
    for length in [1_u64 << 63, u64::MAX] {
        let (mut posts, mut client) = connected().await;
        client
            .write_all(
                post("", "a")
                    .replace("Content-Length: 1", &format!("Content-Length: {length}"))
                    .as_bytes(),
            )
            .await
            .unwrap();
        assert_eq!(soon("a request", posts.next()).await.unwrap(), NextRequest::Post);
        assert_eq!(
            posts.take_request().unwrap().head.headers["content-length"],
            length.to_string()
        );
        let serving =
            tokio::spawn(async move { posts.respond(full("no"), AfterAnswer::KeepAlive).await });
        assert!(until_closed(&mut client).await.ends_with("no"));
        drop(client);
        assert!(!serving.await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn an_answer_has_its_declared_length_or_ends_the_connection() {
    let pieces = |bytes: usize| {
        StreamBody::new(stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from(vec![
            b'x';
            bytes
        ])))]))
    };
    let (mut posts, mut client) = connected().await;
    client.write_all(post("", "a").as_bytes()).await.unwrap();
    asked(&mut posts).await;
    let mut nothing = Response::new(pieces(3));
    *nothing.status_mut() = StatusCode::NO_CONTENT;
    assert!(!posts.respond(nothing, AfterAnswer::Close).await.unwrap());
    let text = until_closed(&mut client).await;
    assert!(
        text.ends_with("GMT\r\n\r\n")
            && !text.contains("content-length")
            && !text.contains("chunked"),
        "{text}"
    );
    for bytes in [2, 4] {
        let (mut posts, mut client) = connected().await;
        client.write_all(post("", "a").as_bytes()).await.unwrap();
        asked(&mut posts).await;
        let body = Announced(pieces(bytes));
        assert!(posts.respond(Response::new(body), AfterAnswer::KeepAlive).await.is_err());
    }
}

/// A body that announces three bytes.
struct Announced<B>(B);

impl<B: http_body::Body + Unpin> http_body::Body for Announced<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.0).poll_frame(context)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(3)
    }
}

#[tokio::test]
async fn answers_declare_their_length_and_keep_the_connection() {
    let (mut posts, mut client) = connected().await;
    for _ in 0..2 {
        client.write_all(post("", "a").as_bytes()).await.unwrap();
        asked(&mut posts).await;
        let mut response = full("{}");
        response.headers_mut().insert("content-type", "application/json".parse().unwrap());
        assert!(posts.respond(response, AfterAnswer::KeepAlive).await.unwrap());
    }
    client.write_all(post("", "a").as_bytes()).await.unwrap();
    asked(&mut posts).await;
    let mut nothing = full("");
    *nothing.status_mut() = StatusCode::ACCEPTED;
    assert!(!posts.respond(nothing, AfterAnswer::Close).await.unwrap());
    let text = until_closed(&mut client).await;
    let answers: Vec<&str> = text.split_inclusive("GMT\r\n\r\n").collect();
    assert!(
        answers[0].starts_with(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\ndate: "
        ),
        "{text}"
    );
    assert!(
        answers[1].starts_with("{}HTTP/1.1 200 OK\r\n") && !answers[1].contains("connection"),
        "{text}"
    );
    assert!(
        answers[2]
            .starts_with("{}HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\nconnection: close\r\n"),
        "{text}"
    );
}

#[tokio::test]
async fn a_request_with_close_ends_the_connection_after_the_answer() {
    let (mut posts, mut client) = connected().await;
    client.write_all(post("Connection: Close\r\n", "a").as_bytes()).await.unwrap();
    asked(&mut posts).await;
    assert!(!posts.respond(full("bye"), AfterAnswer::KeepAlive).await.unwrap());
    assert!(until_closed(&mut client).await.ends_with("\r\n\r\nbye"));
}

#[tokio::test]
async fn an_incomplete_unread_body_ends_the_connection() {
    let (mut posts, mut client) = connected().await;
    client.write_all(post("", "unwanted").as_bytes()).await.unwrap();
    assert_eq!(posts.next().await.unwrap(), NextRequest::Post);
    posts.take_request().unwrap();
    assert!(posts.respond(full("no"), AfterAnswer::KeepAlive).await.unwrap(), "it was all there");
    let begun = post("", &"x".repeat(100_000));
    client.write_all(&begun.as_bytes()[..200]).await.unwrap();
    assert_eq!(posts.next().await.unwrap(), NextRequest::Post);
    posts.take_request().unwrap();
    let serving =
        tokio::spawn(async move { posts.respond(full("no"), AfterAnswer::KeepAlive).await });
    // The server does not read these bytes, but the client must still get the answer.
    client.write_all(&begun.as_bytes()[200..]).await.unwrap();
    assert!(until_closed(&mut client).await.ends_with("no"));
    assert!(!serving.await.unwrap().unwrap());
}

#[tokio::test]
async fn answers_of_unknown_length_are_sent_in_chunks_without_delay() {
    let (mut posts, mut client) = connected().await;
    client.write_all(post("", "a").as_bytes()).await.unwrap();
    asked(&mut posts).await;
    let (sender, receiver) = oneshot::channel::<Bytes>();
    let pieces =
        stream::iter([Bytes::from_static(b"one"), Bytes::new(), Bytes::from(vec![b'y'; 10_000])]);
    let pieces = pieces
        .chain(stream::once(async { receiver.await.unwrap() }))
        .map(|piece| Ok::<_, Infallible>(Frame::data(piece)));
    let body = StreamBody::new(Box::pin(pieces));
    let serving =
        tokio::spawn(async move { posts.respond(Response::new(body), AfterAnswer::Close).await });
    let mut read = Vec::new();
    while !read.ends_with(b"yy\r\n") {
        soon("the first pieces", client.read_buf(&mut read)).await.unwrap();
    }
    sender.send(Bytes::from_static(b"two")).unwrap();
    client.read_to_end(&mut read).await.unwrap();
    let text = String::from_utf8(read).unwrap();
    assert!(
        text.contains("\r\ntransfer-encoding: chunked\r\n") && !text.contains("content-length"),
        "{text}"
    );
    let pieces =
        format!("\r\n\r\n3\r\none\r\n2710\r\n{}\r\n3\r\ntwo\r\n0\r\n\r\n", "y".repeat(10_000));
    assert!(text.ends_with(&pieces), "{text}");
    assert!(!serving.await.unwrap().unwrap());
}

#[tokio::test]
async fn a_broken_answer_has_its_first_part_and_no_final_chunk() {
    let (mut posts, mut client) = connected().await;
    client.write_all(post("", "a").as_bytes()).await.unwrap();
    asked(&mut posts).await;
    let pieces =
        stream::iter([Ok(Frame::data(Bytes::from_static(b"half"))), Err(io::Error::other("lost"))]);
    assert!(
        posts
            .respond(Response::new(StreamBody::new(pieces)), AfterAnswer::KeepAlive)
            .await
            .is_err()
    );
    drop(posts);
    let text = until_closed(&mut client).await;
    assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("\r\n4\r\nhalf\r\n"), "{text}");
}

#[tokio::test]
async fn a_disconnect_is_detected_and_not_confused_with_pipelining() {
    let (mut posts, mut client) = connected().await;
    client.write_all(post("", "a").as_bytes()).await.unwrap();
    assert_eq!(posts.next().await.unwrap(), NextRequest::Post);
    let PlainRequest { body, client: waiting, .. } = posts.take_request().unwrap();
    body.collect().await.unwrap();
    client.write_all(post("", "next").as_bytes()).await.unwrap();
    let hung_up = tokio::time::timeout(Duration::from_millis(50), waiting.disconnected()).await;
    assert!(hung_up.is_err(), "it only asks on");
    posts.respond(full("ok"), AfterAnswer::KeepAlive).await.unwrap();
    assert_eq!(asked(&mut posts).await.2, "next");
    // This repeats the check while an answer is being written.
    let never = stream::pending::<Result<Frame<Bytes>, Infallible>>();
    let serving = tokio::spawn(async move {
        posts.respond(Response::new(StreamBody::new(never)), AfterAnswer::KeepAlive).await
    });
    drop(client);
    assert!(soon("the end", serving).await.unwrap().is_err());
}

#[tokio::test]
async fn a_disconnect_while_the_client_waits_is_detected() {
    let (mut posts, mut client) = connected().await;
    client.write_all(post("", "a").as_bytes()).await.unwrap();
    assert_eq!(posts.next().await.unwrap(), NextRequest::Post);
    let PlainRequest { body, client: waiting, .. } = posts.take_request().unwrap();
    body.collect().await.unwrap();
    drop(client);
    soon("the end", waiting.disconnected()).await;
}

/// An answer that notices when its memory is freed.
struct Tracked(
    Vec<u8>,
    #[expect(dead_code, reason = "its drop closes the channel")] oneshot::Sender<()>,
);

impl AsRef<[u8]> for Tracked {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[tokio::test]
async fn the_sent_part_of_a_large_answer_is_freed() {
    const BYTES: usize = 16 << 20;
    let (mut posts, mut client) = connected().await;
    client.write_all(post("", "").as_bytes()).await.unwrap();
    asked(&mut posts).await;
    let text: Vec<u8> = (0..BYTES).map(|at| (at / 1000) as u8).collect();
    let (alive, freed) = oneshot::channel();
    let answer = Bytes::from_owner(Tracked(text.clone(), alive));
    let serving = tokio::spawn(async move {
        posts.respond_full("HTTP/1.1 200 OK\r\n", answer, AfterAnswer::Close).await.unwrap();
    });
    let mut read = vec![0; BYTES / 2];
    soon("half of the answer", client.read_exact(&mut read)).await.unwrap();
    assert!(soon("the answer to be freed", freed).await.is_err());
    soon("the rest", client.read_to_end(&mut read)).await.unwrap();
    assert!(read.ends_with(&text), "each byte comes once and in order");
    serving.await.unwrap();
}
