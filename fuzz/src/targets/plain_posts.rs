//! The server of plain POSTs: it reads the requests of a connection as hyper does behind the guard,
//! and hands the connection over without a loss.

use std::{cell::RefCell, net::Shutdown, time::Duration};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use socket2::SockRef;
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
};
use transport::{
    framing::FramingGuard,
    http1_server::{AfterAnswer, NextRequest, PlainRequest, ServerConnection},
};

use super::{
    HTTP_TOKENS, block_on,
    http_reader::{ReadRequest, read_by_hyper},
};
use crate::{Outcome, Target, pieces::Sent};

pub(super) const TARGET: Target =
    Target { name: "plain_posts", tokens: HTTP_TOKENS, bytes_max: 2048, check };

const HEAD_BYTES_MAX: usize = 1024;
const BODY_BYTES_MAX: usize = 4096;
const STALL_MAX: Duration = Duration::from_secs(5);

fn check(input: &[u8]) -> Outcome {
    block_on(async {
        let expected = behind_guard(Bytes::copy_from_slice(input)).await;
        let (mut client, server) = connected().await;
        client.write_all(input).await.expect("it fits into the socket");
        SockRef::from(&client).shutdown(Shutdown::Write).expect("the client ends its half");
        let mut posts = ServerConnection::new(server, HEAD_BYTES_MAX, STALL_MAX);
        let (mut read, mut is_handed_over) = (Vec::new(), false);
        loop {
            match posts.next().await.expect("a local connection") {
                NextRequest::Closed => break,
                NextRequest::Other => {
                    is_handed_over = true;
                    break;
                }
                NextRequest::Post | NextRequest::EventStream => {
                    let Some(request) = taken(&mut posts).await else { break };
                    read.push(request);
                    let (head, after) = ("HTTP/1.1 200 OK\r\n", AfterAnswer::KeepAlive);
                    let keeps_open = posts.respond_full(head, Bytes::new(), after).await;
                    if !keeps_open.expect("the answer fits into the socket") {
                        break;
                    }
                }
            }
        }
        let posts_read = read.len();
        if is_handed_over {
            let (socket, mut unread) = posts.into_parts();
            unread = [unread, rest_of(&socket)].concat().into();
            read.extend(behind_guard(unread).await);
        }
        reset(client);
        assert_eq!(
            without_zeros(read.clone()),
            without_zeros(expected),
            "the requests of the connection"
        );
        let repeats = read.windows(2).any(|pair| pair[0].headers == pair[1].headers);
        Outcome::of(&(posts_read.min(4), read.len().min(6), is_handed_over, repeats))
    })
}

/// Removes zeros before a length. A head that repeats another one gets the number alone.
fn without_zeros(mut requests: Vec<ReadRequest>) -> Vec<ReadRequest> {
    for (name, value) in requests.iter_mut().flat_map(|request| &mut request.headers) {
        if name == "content-length" {
            let zeros = value.iter().take_while(|digit| **digit == b'0').count();
            value.drain(..zeros.min(value.len() - 1));
        }
    }
    requests
}

/// Takes the next request. `None`: its body is incomplete.
async fn taken(posts: &mut ServerConnection) -> Option<ReadRequest> {
    let PlainRequest { head, body, .. } = posts.take_request().expect("a request was announced");
    let (method, target) = (head.method.to_string(), head.uri.to_string());
    let headers = head
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
        .collect();
    let body = body.collect().await.ok()?.to_bytes();
    Some(ReadRequest { method, target, headers, body })
}

/// Returns what hyper reads behind the guard.
async fn behind_guard(bytes: Bytes) -> Vec<ReadRequest> {
    // The connection has ended already, so the guard never waits for a byte.
    let guard = FramingGuard::new(Sent(Bytes::new()), bytes, HEAD_BYTES_MAX, BODY_BYTES_MAX);
    let read = read_by_hyper(guard);
    // After a refused request the guard waits until the answer is written, and hyper ends then.
    let mut requests = tokio::time::timeout(STALL_MAX, read).await.expect("hyper ends");
    requests.retain(|request| {
        !request.headers.iter().any(|(name, _)| name == "x-mcp-broker-framing-violation")
    });
    requests
}

fn rest_of(socket: &TcpStream) -> Bytes {
    let (mut rest, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = socket.try_read(&mut buffer) {
        rest.extend_from_slice(&buffer[..count]);
    }
    rest.into()
}

/// Returns both ends of a new connection.
pub(super) async fn connected() -> (TcpStream, TcpStream) {
    thread_local! {
        static LISTENER: RefCell<Option<(TcpListener, std::net::SocketAddr)>> = const { RefCell::new(None) };
    }
    let (listener, address) = match LISTENER.take() {
        Some(bound) => bound,
        None => {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("it is bound");
            (listener, address)
        }
    };
    let client = TcpStream::connect(address).await.expect("a local connection");
    let (server, _) = listener.accept().await.expect("a local connection");
    LISTENER.set(Some((listener, address)));
    (client, server)
}

/// Closes a connection without a rest in the kernel: thousands of them follow each other.
pub(super) fn reset(client: TcpStream) {
    SockRef::from(&client).set_linger(Some(Duration::ZERO)).expect("an option of each socket");
}
