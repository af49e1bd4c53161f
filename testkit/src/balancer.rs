//! The balancer that a test puts in front of its replicas. It is as simple as possible, so that no
//! replica can rely on seeing a client again.
//!
//! Each request goes to the next replica in turn, whatever session it names. The balancer skips a
//! replica that refuses the connection, since nothing was sent to it. Once a byte was sent, a
//! request is never sent again. If its replica breaks, the client's connection breaks too. Bodies
//! pass both ways as they come. A client that disconnects also ends its connection to the replica.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, Version};
use http_body_util::{BodyExt, Empty, combinators::BoxBody};
use hyper::{
    body::{Body, Frame, Incoming, SizeHint},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    task::AbortHandle,
};

use crate::abort_on_drop::AbortOnDrop;

/// Headers about one connection, which the next peer does not get.
const HOP_BY_HOP: [&str; 7] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

#[derive(Debug, Default)]
struct BalancerState {
    replicas: Vec<SocketAddr>,
    turn: usize,
    sent: BTreeMap<SocketAddr, u64>,
    refused: u64,
    connections: Vec<AbortHandle>,
}

/// Listener on 127.0.0.1. Dropping it ends it and every connection through it.
#[derive(Debug)]
pub struct Balancer {
    state: Arc<Mutex<BalancerState>>,
    address: SocketAddr,
    _server: AbortOnDrop,
}

impl Balancer {
    pub async fn start(replicas: Vec<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port on loopback");
        let address = listener.local_addr().expect("a bound listener has an address");
        let state = Arc::new(Mutex::new(BalancerState { replicas, ..BalancerState::default() }));
        let server = AbortOnDrop(tokio::spawn(serve(state.clone(), listener)));
        Self { state, address, _server: server }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Replaces the replicas from the next request on. Requests in flight stay where they are.
    pub fn set_replicas(&self, replicas: Vec<SocketAddr>) {
        self.state.lock().replicas = replicas;
    }

    /// Returns how many requests were sent to this replica.
    pub fn sent_to(&self, replica: SocketAddr) -> u64 {
        self.state.lock().sent.get(&replica).copied().unwrap_or(0)
    }

    /// Returns how often a replica refused the connection and was skipped.
    pub fn refused(&self) -> u64 {
        self.state.lock().refused
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.state.lock().connections.drain(..).for_each(|connection| connection.abort());
    }
}

async fn serve(state: Arc<Mutex<BalancerState>>, listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let to_service = state.clone();
        let service = service_fn(move |request| forward(to_service.clone(), request));
        let connection = tokio::spawn(async move {
            let _ = auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
        let mut state = state.lock();
        state.connections.retain(|connection| !connection.is_finished());
        state.connections.push(connection.abort_handle());
    }
}

/// Forwards a request. An error makes the server drop the client's connection, as a broken replica
/// does.
async fn forward(
    state: Arc<Mutex<BalancerState>>,
    request: Request<Incoming>,
) -> Result<Response<BoxBody<Bytes, hyper::Error>>, hyper::Error> {
    let Some((replica, stream)) = connect(&state).await else {
        let nobody = Empty::new().map_err(|never| match never {}).boxed();
        let mut response = Response::new(nobody);
        *response.status_mut() = StatusCode::BAD_GATEWAY;
        return Ok(response);
    };
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = AbortOnDrop(tokio::spawn(async move {
        let _ = connection.await;
    }));
    *state.lock().sent.entry(replica).or_default() += 1;
    let response = sender.send_request(for_replica(request, replica)).await?;
    let (mut parts, body) = response.into_parts();
    strip_hop_by_hop(&mut parts.headers);
    parts.version = Version::default();
    Ok(Response::from_parts(
        parts,
        ForwardedBody { body, _sender: sender, _connection: connection }.boxed(),
    ))
}

/// Connects to the next replica in turn that accepts.
async fn connect(state: &Mutex<BalancerState>) -> Option<(SocketAddr, TcpStream)> {
    let in_turn = {
        let mut state = state.lock();
        let count = state.replicas.len();
        let first = state.turn % count.max(1);
        state.turn = first + 1;
        let mut in_turn = state.replicas.clone();
        in_turn.rotate_left(first);
        in_turn
    };
    for replica in in_turn {
        match TcpStream::connect(replica).await {
            Ok(stream) => {
                let _ = stream.set_nodelay(true);
                return Some((replica, stream));
            }
            Err(_) => state.lock().refused += 1,
        }
    }
    None
}

/// Returns the request as HTTP/1.1 with a path as its target, and the Host that the client named.
fn for_replica(request: Request<Incoming>, replica: SocketAddr) -> Request<Incoming> {
    let (mut parts, body) = request.into_parts();
    strip_hop_by_hop(&mut parts.headers);
    let named = parts.uri.authority().map_or_else(|| replica.to_string(), ToString::to_string);
    if let (false, Ok(host)) = (parts.headers.contains_key("host"), HeaderValue::from_str(&named)) {
        parts.headers.insert("host", host);
    }
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    parts.uri = Uri::try_from(path).unwrap_or_default();
    parts.version = Version::HTTP_11;
    Request::from_parts(parts, body)
}

fn strip_hop_by_hop(headers: &mut HeaderMap) {
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// A replica's answer. It keeps its connection open until the answer is read or dropped.
struct ForwardedBody {
    body: Incoming,
    // Without it the connection would count as unused.
    _sender: hyper::client::conn::http1::SendRequest<Incoming>,
    _connection: AbortOnDrop,
}

impl Body for ForwardedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicUsize, sync::atomic::Ordering, time::Duration};

    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::{FakeBackend, HttpVersion, Reply, TestClient, eventually, within};

    fn ping() -> String {
        json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string()
    }

    async fn two() -> (FakeBackend, FakeBackend, Balancer) {
        let (one, two) = (FakeBackend::start().await, FakeBackend::start().await);
        let balancer = Balancer::start(vec![one.address(), two.address()]).await;
        (one, two, balancer)
    }

    #[tokio::test]
    async fn requests_alternate_between_replicas_on_one_and_many_connections() {
        let (one, two, balancer) = two().await;
        for version in [HttpVersion::Http1, HttpVersion::Http2] {
            let client = TestClient::new(balancer.address(), "/mcp").http(version);
            for _ in 0..10 {
                assert_eq!(client.request("ping", json!({})).await["result"], json!({}));
            }
        }
        assert_eq!((one.recorded().len(), two.recorded().len()), (10, 10));
        assert_eq!((balancer.sent_to(one.address()), balancer.sent_to(two.address())), (10, 10));
        assert_eq!(
            one.recorded()[0].header("host"),
            Some(balancer.address().to_string().as_str()),
            "the client's own Host"
        );
    }

    #[tokio::test]
    async fn a_refusing_replica_is_skipped_and_a_new_replica_is_used_at_once() {
        let (one, two, balancer) = two().await;
        let dead = one.die().await;
        let client = TestClient::new(balancer.address(), "/mcp");
        for _ in 0..4 {
            assert_eq!(client.post(ping()).await.status, 200);
        }
        assert_eq!(
            (balancer.sent_to(dead), balancer.sent_to(two.address()), balancer.refused()),
            (0, 4, 2)
        );
        let three = FakeBackend::start().await;
        balancer.set_replicas(vec![three.address()]);
        assert_eq!(client.post(ping()).await.status, 200);
        assert_eq!(three.recorded().len(), 1);
        balancer.set_replicas(Vec::new());
        assert_eq!(client.post(ping()).await.status, 502);
    }

    #[tokio::test]
    async fn a_sent_request_is_not_repeated_and_fails_with_its_replica() {
        let (one, two, balancer) = two().await;
        one.on("ping", |_| async { Reply::Cut });
        let client = TestClient::new(balancer.address(), "/mcp");
        let answer = client.try_send("POST", &client.usual_headers(), ping().into()).await;
        assert!(answer.is_err(), "{answer:?}");
        assert_eq!((one.recorded().len(), two.recorded().len()), (1, 0));
    }

    #[tokio::test]
    async fn a_stream_passes_event_by_event_and_breaks_with_its_replica() {
        let (one, _two, balancer) = two().await;
        let (proceed, sent) = (crate::Gate::new(), Arc::new(AtomicUsize::new(0)));
        let gates = (proceed.clone(), sent.clone());
        one.on("ping", move |call| {
            let (proceed, sent) = gates.clone();
            async move {
                call.progress(1.0, 2.0).await;
                sent.store(1, Ordering::SeqCst);
                proceed.passed().await;
                call.progress(2.0, 2.0).await;
                Reply::Cut
            }
        });
        let client = TestClient::new(balancer.address(), "/mcp");
        let mut events = client.post_stream(ping()).await;
        // The first event comes while the replica still waits to send the second.
        assert_eq!(events.next_message().await.unwrap().1["params"]["progress"], 1.0);
        assert_eq!(sent.load(Ordering::SeqCst), 1);
        proceed.open();
        assert_eq!(events.next_message().await.unwrap().1["params"]["progress"], 2.0);
        assert_eq!(events.next().await, None);
        assert!(events.broken, "no orderly end was given where there was none");
    }

    #[tokio::test]
    async fn a_client_disconnect_is_forwarded_to_the_replica() {
        let (one, _two, balancer) = two().await;
        let gone = crate::Gate::new();
        let disconnected = gone.clone();
        one.on("ping", move |call| {
            let disconnected = disconnected.clone();
            async move {
                call.client_disconnected().await;
                disconnected.open();
                Reply::Hang
            }
        });
        // Before the head of an answer, and in the middle of a stream.
        let client = TestClient::new(balancer.address(), "/mcp");
        let call = client.start_request("ping", json!({}));
        one.wait_for("the request", |seen| seen.is("ping")).await;
        drop(call);
        within("the replica to notice", gone.passed()).await;
        balancer.set_replicas(vec![one.address()]);
        let stream = client.open_get_stream().await;
        one.wait_get_streams(1).await;
        drop(stream);
        eventually("the stream's end at the replica", || async {
            // A send to a stream without a reader fails.
            match one.push(json!({"jsonrpc": "2.0", "method": "notifications/progress"})).await {
                0 => Ok(()),
                open => Err(open),
            }
        })
        .await;
    }

    #[tokio::test]
    async fn a_request_body_is_forwarded_before_it_is_complete() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let balancer = Balancer::start(vec![listener.local_addr().unwrap()]).await;
        let mut client = TcpStream::connect(balancer.address()).await.unwrap();
        client
            .write_all(b"POST /mcp HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nhello")
            .await
            .unwrap();
        let (mut replica, _) =
            within("the connection to the replica", listener.accept()).await.unwrap();
        let mut read = Vec::new();
        while !read.ends_with(b"hello") {
            let more = tokio::time::timeout(Duration::from_secs(5), replica.read_buf(&mut read))
                .await
                .unwrap()
                .unwrap();
            assert!(more > 0, "{}", String::from_utf8_lossy(&read));
        }
        drop(client);
        let rest = within("the end of the connection", replica.read_to_end(&mut read)).await;
        assert!(rest.is_err() || read.ends_with(b"hello"), "half a body stays half a body");
    }
}
