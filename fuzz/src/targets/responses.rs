//! The client's reading of responses, against hyper's.

use std::{
    cell::RefCell,
    io::Cursor,
    net::Shutdown,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    net::TcpListener,
};
use transport::{EgressPolicy, HttpClient, HttpClientConfig};

use super::{HTTP_TOKENS, block_on, plain_posts::reset};
use crate::{Outcome, Target};

pub(super) const TARGET: Target =
    Target { name: "responses", tokens: HTTP_TOKENS, bytes_max: 2048, check };

const BODY_BYTES_MAX: usize = 1 << 20;

type ReadResponse = (StatusCode, Vec<(String, Vec<u8>)>, Bytes);

fn check(input: &[u8]) -> Outcome {
    let ours = block_on(read_by_client(input));
    let theirs = block_on(read_by_hyper(input));
    match (&ours, &theirs) {
        (Ok(ours), Some(theirs)) => assert_eq!(ours, theirs, "the response"),
        (Ok(ours), None) => panic!("hyper refuses what the client reads as {ours:?}"),
        (Err(_), _) => {}
    }
    let shape = ours.map(|(status, headers, body)| {
        (status.as_u16(), headers.len().min(4), Outcome::magnitude(body.len()))
    });
    Outcome::of(&(shape, theirs.is_some()))
}

/// Returns the response that the broker's client reads from a server that sends `input` and ends.
async fn read_by_client(input: &[u8]) -> Result<ReadResponse, String> {
    thread_local! {
        static CLIENT: RefCell<Option<HttpClient>> = const { RefCell::new(None) };
        static LISTENER: RefCell<Option<TcpListener>> = const { RefCell::new(None) };
    }
    let client = CLIENT.with_borrow_mut(|client| client.get_or_insert_with(new_client).clone());
    let listener = match LISTENER.take() {
        Some(listener) => listener,
        None => TcpListener::bind("127.0.0.1:0").await.expect("a free port"),
    };
    let address = listener.local_addr().expect("it is bound");
    let request = Request::post(format!("http://{address}/")).body(Full::from("x"));
    let asking = async {
        let response =
            client.send(request.expect("a request")).await.map_err(|error| kind(&error))?;
        let (head, body) = response.into_parts();
        let body = body.read_whole(BODY_BYTES_MAX).await.map_err(|error| kind(&error))?;
        Ok((head.status, sorted(&head.headers), body))
    };
    let answering = async {
        let (mut socket, _) = listener.accept().await.expect("the client connects");
        let mut request = [0; 1024];
        let _ = socket.read(&mut request).await;
        // The client may have hung up at the first bytes.
        let _ = socket.write_all(input).await;
        let _ = SockRef::from(&socket).shutdown(Shutdown::Write);
        socket
    };
    let (read, socket) = tokio::join!(asking, answering);
    reset(socket);
    LISTENER.set(Some(listener));
    read
}

/// Returns the kind of an error. Its text may hold an address.
fn kind(error: &impl std::fmt::Debug) -> String {
    format!("{error:?}").split(['{', '(', ':']).next().unwrap_or_default().to_owned()
}

fn new_client() -> HttpClient {
    let egress = Arc::new(EgressPolicy { loopback: true, ..EgressPolicy::default() });
    let config = HttpClientConfig {
        egress,
        idle_timeout: Duration::ZERO,
        idle_per_host: 0,
        ..HttpClientConfig::default()
    };
    HttpClient::new(config).expect("the settings are valid")
}

/// Returns the headers in an order of their own. The length of the body is left out: it is part of
/// the framing.
fn sorted(headers: &http::HeaderMap) -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<_> = headers
        .iter()
        .filter(|(name, _)| *name != http::header::CONTENT_LENGTH)
        .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
        .collect();
    all.sort();
    all
}

async fn read_by_hyper(input: &[u8]) -> Option<ReadResponse> {
    let io = TokioIo::new(Answering {
        answer: Cursor::new(input.to_vec()),
        is_asked: false,
        waiting: None,
    });
    let (mut sender, connection) = http1::handshake(io).await.ok()?;
    let request = Request::post("/").header("host", "a").body(Full::new(Bytes::from_static(b"x")));
    let asking = async move {
        let response = sender.send_request(request.ok()?).await.ok()?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.ok()?.to_bytes();
        Some((head.status, sorted(&head.headers), body))
    };
    let (read, _) = tokio::join!(asking, connection);
    read
}

/// A server that sends its bytes once it was asked.
struct Answering {
    answer: Cursor<Vec<u8>>,
    is_asked: bool,
    waiting: Option<Waker>,
}

impl AsyncRead for Answering {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if !self.is_asked {
            self.waiting = Some(context.waker().clone());
            return Poll::Pending;
        }
        Pin::new(&mut self.answer).poll_read(context, buffer)
    }
}

impl AsyncWrite for Answering {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.is_asked = true;
        self.waiting.take().into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
