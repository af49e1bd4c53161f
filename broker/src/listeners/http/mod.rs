//! The data plane over Streamable HTTP: accepts connections and serves `/mcp` and `/mcp/{backend}` on them.
//!
//! HTTP/1.1 and HTTP/2 (with prior knowledge) on one port. The number of connections is bounded, in all and per address; a
//! request head that does not come in time ends its connection.

mod answer;
mod challenge;
mod exchange;
mod forward;
mod gate;
mod kept;
mod led;
mod legacy;
mod modern;
mod post;
mod posts;
mod spoken;
mod tunnel;
mod unsent;
mod vouched;
mod websocket;

use std::{convert::Infallible, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderValue, StatusCode,
    header::{CONNECTION, TRANSFER_ENCODING},
};
use hyper::{
    Request, Response,
    body::Incoming,
    server::conn::{http1, http2},
    service::{Service, service_fn},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use protocol::error::{ErrorKind, Refusal};
use tokio::{net::TcpStream, sync::Notify, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use transport::{StallGuard, Turns, tcp::Stream, tls::ListenerKind};

use self::{
    answer::Body,
    gate::Gate,
    kept::Kept,
    posts::Other,
    spoken::{Begun, Spoken},
    unsent::Unsent,
};
pub(in crate::listeners) use self::{
    exchange::handle_replica,
    led::{Led, lead},
};
use super::{
    admission::{Admission, Admitted},
    door::{Certified, Door},
    port::Port,
};
use crate::{
    auth::Remote,
    broker::Broker,
    limits::{CLIENT_WRITE_STALL_MAX, HTTP2_STREAMS_MAX, REQUEST_HEAD_BYTES_MAX},
};

/// Serves until `stop`, then lets the requests in flight finish.
pub async fn serve(broker: Arc<Broker>, listener: Port, door: Door, stop: CancellationToken) {
    let local = listener.local_addr().unwrap_or_else(|_| SocketAddr::from(([127, 0, 0, 1], 0)));
    let limits = &broker.shared.config.limits;
    let admission = Admission::new(limits);
    let gate = Arc::new(Gate::new(&broker.shared.config.auth, local));
    let (connections, sessions, streams) = (TaskTracker::new(), TaskTracker::new(), Arc::<legacy::Streams>::default());
    loop {
        let (socket, peer, admitted) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = admission.accept(&listener, &broker.shared.metrics) => accepted,
        };
        let (broker, gate, door) = (broker.clone(), gate.clone(), door.clone());
        let (stop, admitted) = (stop.clone(), Arc::new(admitted));
        let floor =
            Floor { sessions: sessions.clone(), stop, admitted, streams: streams.clone(), certified: None, remote: Remote::default() };
        connections.spawn(async move {
            if let Err(error) = served(broker, gate, &door, (socket, peer), floor).await {
                tracing::debug!(%peer, %error, "connection ended");
            }
        });
    }
    drop(listener);
    connections.close();
    connections.wait().await;
    sessions.close();
    sessions.wait().await;
}

/// What a connection that becomes a session takes with it.
#[derive(Debug, Clone)]
struct Floor {
    sessions: TaskTracker,
    stop: CancellationToken,
    /// The connection's place is taken for as long as anything of it lives.
    admitted: Arc<Admitted>,
    streams: Arc<legacy::Streams>,
    /// Who the connection's certificate speaks for; among a request's extensions too.
    certified: Option<Certified>,
    remote: Remote,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A connection on which somebody has begun to say something.
struct Connection {
    stream: TokioIo<Turns<StallGuard<Begun<Stream>>>>,
    floor: Floor,
    /// By when the first request is there.
    deadline: Instant,
}

/// Serves a connection, from the handshake to its end.
async fn served(
    broker: Arc<Broker>,
    gate: Arc<Gate>,
    door: &Door,
    (socket, peer): (TcpStream, SocketAddr),
    mut floor: Floor,
) -> Result<(), Failure> {
    // Boxed: an idle connection would otherwise keep room for its handshake for as long as it lives.
    let stream = Box::pin(door.open(socket, ListenerKind::Http)).await?;
    (floor.certified, floor.remote) = door.identified(&stream, peer.ip());
    // The time for a head begins only once it is known what is spoken; who never says a word would otherwise stay for ever.
    let deadline = Instant::now() + broker.shared.config.timeouts.request_read;
    let (stream, first, deadline) = match stream {
        Stream::Plain(socket) => match posts::serve(&broker, &gate, &floor, socket, deadline).await? {
            Some(Other { socket, first, deadline }) => (Stream::Plain(socket), first, deadline),
            None => return Ok(()),
        },
        stream @ Stream::Tls(_) => (stream, Bytes::new(), deadline),
    };
    let (spoken, stream) = Box::pin(async {
        tokio::select! {
            biased;
            heard = tokio::time::timeout_at(deadline, spoken::heard(stream, first)) => Ok::<_, Failure>(heard??),
            () = floor.stop.cancelled() => Err("nothing was said before the end".into()),
        }
    })
    .await?;
    let stream = TokioIo::new(Turns::new(StallGuard::new(stream, CLIENT_WRITE_STALL_MAX)));
    let connection = Connection { stream, floor, deadline };
    match spoken {
        Spoken::Http1 => connection.serve_http1(broker, gate).await,
        // Boxed, so that a connection of HTTP/1 has no room for it.
        Spoken::Http2 => Box::pin(connection.serve_http2(broker, gate)).await,
    }
}

impl Connection {
    async fn serve_http1(self, broker: Arc<Broker>, gate: Arc<Gate>) -> Result<(), Failure> {
        let mut builder = http1::Builder::new();
        // `HTTP_HEADERS_MAX` is what the library has as its own limit. Told to it, it would fill as much room anew for each request.
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(broker.shared.config.timeouts.request_read)
            .max_buf_size(REQUEST_HEAD_BYTES_MAX);
        let Self { stream, floor, deadline } = self;
        let (stop, certified, first) = (floor.stop.clone(), floor.certified.clone(), Arc::<Notify>::default());
        // HTTP/1 answers stall at the socket, where it shows.
        let connection = builder.serve_connection(stream, service(broker, gate, Arc::new(floor), first.clone(), None)).with_upgrades();
        let connection = attended(connection, http1::UpgradeableConnection::graceful_shutdown, &stop, &first, deadline);
        tokio::select! {
            ended = connection => ended,
            () = outlived(certified) => Err("the client's certificate is good no longer".into()),
        }
    }

    async fn serve_http2(self, broker: Arc<Broker>, gate: Arc<Gate>) -> Result<(), Failure> {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(HTTP2_STREAMS_MAX)
            .max_header_list_size(REQUEST_HEAD_BYTES_MAX as u32)
            .keep_alive_interval(Some(Duration::from_secs(20)))
            .keep_alive_timeout(Duration::from_secs(20));
        let Self { stream, floor, deadline } = self;
        let (stop, certified, first) = (floor.stop.clone(), floor.certified.clone(), Arc::<Notify>::default());
        let unsent = Arc::<Unsent>::default();
        let connection = builder.serve_connection(stream, service(broker, gate, Arc::new(floor), first.clone(), Some(unsent.clone())));
        let connection = attended(connection, http2::Connection::graceful_shutdown, &stop, &first, deadline);
        tokio::select! {
            ended = connection => ended,
            () = unsent.stalled() => Err("the client does not take its answers".into()),
            () = outlived(certified) => Err("the client's certificate is good no longer".into()),
        }
    }
}

/// What is done for each request; `first` hears of it.
fn service(
    broker: Arc<Broker>,
    gate: Arc<Gate>,
    floor: Arc<Floor>,
    first: Arc<Notify>,
    unsent: Option<Arc<Unsent>>,
) -> impl Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: Send> + Send {
    let is_http1 = unsent.is_none();
    service_fn(move |mut request: Request<Incoming>| {
        first.notify_one();
        let (broker, gate, floor, unsent) = (broker.clone(), gate.clone(), floor.clone(), unsent.clone());
        if let Some(certified) = &floor.certified {
            request.extensions_mut().insert(certified.clone());
        }
        // Whether there was a Content-Length as well is not seen here: a proxy may have taken another end for this body's.
        let ambiguous = request.headers().contains_key(TRANSFER_ENCODING);
        // HTTP/2 has counted by itself.
        let is_too_long = is_http1 && head_bytes(&request) > REQUEST_HEAD_BYTES_MAX;
        async move {
            // Boxed: the future of every request has room for its largest part, and is moved with it.
            let mut response = match request.uri().path() {
                _ if is_too_long => too_long(&broker),
                path if websocket::is_meant(path) => Box::pin(websocket::handle(&broker, &gate, request, Floor::clone(&floor))).await,
                path if challenge::is_meant(request.method(), path) => challenge::handle(&broker, &gate, &request),
                path if legacy::is_meant(path) => Box::pin(legacy::handle(&broker, &gate, request, Floor::clone(&floor))).await,
                _ => {
                    let (head, body) = request.into_parts();
                    exchange::handle(&broker, (&gate, floor.remote), (&head, &Kept::default()), body).await.into_response()
                }
            };
            // The goodbye of HTTP/1: its client opens its next connection where somebody stays. (HTTP/2 has GOAWAY.)
            if ambiguous || is_too_long || (is_http1 && broker.draining()) {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(match unsent {
                Some(unsent) => answer::tracked(response, &unsent),
                None => response,
            })
        }
    })
}

/// How long a head of HTTP/1 is with its lines written as usual. The library's own limit is one of the room it reads into, and lets
/// through some that are longer.
fn head_bytes<B>(request: &Request<B>) -> usize {
    let uri = request.uri();
    let origin = uri.scheme_str().zip(uri.authority()).map_or(0, |(scheme, host)| scheme.len() + "://".len() + host.as_str().len());
    let target = origin + uri.path_and_query().map_or(0, |path| path.as_str().len());
    let headers = request.headers().iter().map(|(name, value)| name.as_str().len() + ": \r\n".len() + value.len());
    request.method().as_str().len() + target + "  HTTP/1.1\r\n\r\n".len() + headers.sum::<usize>()
}

fn too_long(broker: &Broker) -> Response<Body> {
    let text = format!("the head of a request may have at most {REQUEST_HEAD_BYTES_MAX} bytes");
    let mut response = answer::refusal(&broker.shared, &Refusal::new(ErrorKind::MessageTooLarge, text), None);
    *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    response
}

/// Boxed: next to nobody has a certificate.
async fn outlived(certified: Option<Certified>) {
    match certified {
        Some(certified) => Box::pin(async move { certified.outlived().await }).await,
        None => std::future::pending().await,
    }
}

/// Serves a connection to its end, or gives it up when its first request does not come in time. From `stop` on it finishes
/// what is in flight.
async fn attended<C>(
    connection: C,
    finish: fn(Pin<&mut C>),
    stop: &CancellationToken,
    first: &Notify,
    deadline: Instant,
) -> Result<(), Failure>
where
    C: Future<Output = hyper::Result<()>>,
{
    tokio::pin!(connection);
    let (mut is_begun, mut is_ending) = (false, false);
    loop {
        tokio::select! {
            biased; // what was read already is served
            ended = &mut connection => return Ok(ended?),
            () = first.notified(), if !is_begun => is_begun = true,
            () = tokio::time::sleep_until(deadline), if !is_begun => return Err("no request came in time".into()),
            () = stop.cancelled(), if !is_ending => {
                is_ending = true;
                finish(connection.as_mut());
            }
        }
    }
}
