//! The data plane over HTTP: accepts connections and routes requests by path. [`request`] serves
//! Streamable HTTP. WebSocket upgrades, HTTP+SSE, the connect page and the authorization servers have
//! a module each.
//!
//! HTTP/1.1 and HTTP/2 (with prior knowledge) share one port. The number of connections is bounded,
//! in total and per address. A connection whose request head does not arrive in time is closed.

pub(super) mod authenticate;
mod authorization_server;
pub(super) mod body;
mod challenge;
mod connect;
mod connection;
pub(super) mod connection_cache;
mod cors;
mod detached_answers;
mod detect_version;
mod fast_path;
mod get_delete;
pub(super) mod headers;
mod http_sse;
pub(super) mod inbound_request;
mod listed_issuers;
mod post;
pub(super) mod request;
mod request_guard;
mod resource_metadata;
pub(super) mod response;
mod response_body;
mod sse_streams;
mod stateless;
pub(super) mod websocket;

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt as _, future::Either};
use http::{
    HeaderValue, Method, StatusCode,
    header::{CONNECTION, CONTENT_LENGTH, UPGRADE},
};
use hyper::{
    Request, Response,
    body::{Body as _, Incoming},
    server::conn::{http1, http2},
    service::{Service, service_fn},
};
use hyper_util::rt::TokioTimer;
use protocol::error::{ErrorKind, Refusal};
use rules::limits::{
    HTTP2_GIVEN_UP_MAX, HTTP2_STREAM_WINDOW_BYTES, HTTP2_STREAMS_MAX, HTTP2_WAITING_BODIES_MAX,
    REQUEST_HEAD_BYTES_MAX,
};
use tokio::{
    net::TcpStream,
    sync::{Notify, Semaphore},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use transport::{
    framing::{FramingGuard, FramingViolation, is_websocket_upgrade},
    tcp::Stream,
    tls::ListenerKind,
};

use self::{
    connection::{BoxError, ConnectionContext, GuardedIo, Http1Stream, guard_io},
    connection_cache::ConnectionCache,
    detached_answers::DetachedAnswers,
    detect_version::{HttpVersion, PrefixedStream},
    fast_path::FallbackConnection,
    request_guard::RequestGuard,
    response::Body,
    sse_streams::SseStreams,
};
use super::{
    connection_limits::ConnectionLimiter,
    handoff_listener::{HandoffListener, listener_closing, stop_connections},
    http2_requests::{RunningRequests, drive},
    http2_stall::{self, StreamExecutor},
    tls_acceptor::{TlsAcceptor, certificate_expired},
    trusted_proxies::{ProxiedListener, ProxyProtocol},
};
use crate::{auth::RemotePeer, broker::Broker};

/// Unread bytes of all request bodies of an HTTP/2 connection. Bodies that wait leave the other
/// streams their windows: clients of several tenants can share the connection of a gateway.
///
/// The library derives its limit for small frames from it. It ends a connection whose unread frames
/// together lack more than half as many bytes to 256 bytes each.
const HTTP2_CONNECTION_WINDOW_BYTES: u32 = HTTP2_STREAMS_MAX * HTTP2_STREAM_WINDOW_BYTES as u32;
/// Size of the smallest frames in which all waiting bodies of a connection may come.
const WAITING_FRAME_BYTES: usize = 16;

const _: () = assert!(
    HTTP2_WAITING_BODIES_MAX * HTTP2_STREAM_WINDOW_BYTES / WAITING_FRAME_BYTES
        * (256 - WAITING_FRAME_BYTES)
        <= HTTP2_CONNECTION_WINDOW_BYTES as usize / 2
); // a client that sends its bodies in such frames is not cut

/// Serves until `stop`, then accepts what waits in the queue, and waits for the requests in flight.
pub async fn serve(
    broker: Arc<Broker>,
    listener: HandoffListener,
    tls_acceptor: TlsAcceptor,
    stop: CancellationToken,
) {
    let local = listener.local_addr().unwrap_or_else(|_| SocketAddr::from(([127, 0, 0, 1], 0)));
    let limits = &broker.shared.config.limits;
    let proxies = ProxyProtocol::new(&broker.shared.config, ProxiedListener::Http);
    let admission = Arc::new(ConnectionLimiter::new(limits, proxies));
    let guard = Arc::new(RequestGuard::new(broker.auth_settings(), local));
    let (connections, sessions, streams) =
        (TaskTracker::new(), TaskTracker::new(), Arc::<SseStreams>::default());
    let mut queue_accepted = pin!(listener_closing(&stop));
    let connections_stop = CancellationToken::new();
    loop {
        let (mut socket, peer, mut admitted) = tokio::select! { biased;
            accepted = admission.accept(&listener, &broker.shared.metrics) => accepted,
            () = &mut queue_accepted => break,
        };
        let (broker, guard, tls_acceptor) = (broker.clone(), guard.clone(), tls_acceptor.clone());
        let (stop, admission, sessions, streams) =
            (connections_stop.clone(), admission.clone(), sessions.clone(), streams.clone());
        connections.spawn(async move {
            let identified = tokio::select! {
                // Boxed, like the handshake.
                client = Box::pin(admission.identify(&mut socket, peer, &mut admitted, &broker.shared.metrics)) => client,
                () = stop.cancelled() => None,
            };
            let Some(client) = identified else { return };
            let address = client.address();
            let admitted = Arc::new(admitted);
            let context = ConnectionContext { sessions, stop, admitted, streams, client, certified: None, remote: RemotePeer::default(), waiting_bodies: None };
            if let Err(error) = serve_connection(broker, guard, &tls_acceptor, socket, context).await {
                tracing::debug!(%peer, client = %address, %error, "connection ended");
            }
        });
    }
    drop(listener);
    connections.close();
    stop_connections(&connections, &connections_stop).await;
    sessions.close();
    sessions.wait().await;
}

/// A connection on which a client has begun to send.
struct HttpConnection<S> {
    stream: S,
    context: ConnectionContext,
    /// Deadline for the first request.
    deadline: Instant,
}

/// Serves a connection, from the handshake to its end.
async fn serve_connection(
    broker: Arc<Broker>,
    guard: Arc<RequestGuard>,
    tls_acceptor: &TlsAcceptor,
    socket: TcpStream,
    mut context: ConnectionContext,
) -> Result<(), BoxError> {
    // Boxed: an idle connection would otherwise keep the memory of its handshake for its whole
    // life.
    let stream = Box::pin(tls_acceptor.accept(socket, ListenerKind::Http)).await?;
    (context.certified, context.remote) =
        tls_acceptor.identified(&stream, context.client.address());
    // The time limit of the head starts when the version is known. The limit here covers clients
    // that send nothing.
    let deadline = Instant::now() + broker.shared.config.timeouts.request_read;
    let (stream, first, deadline) = match stream {
        Stream::Plain(socket) => {
            match fast_path::serve(&broker, &guard, &context, socket, deadline).await? {
                Some(FallbackConnection { socket, first, deadline }) => {
                    (Stream::Plain(socket), first, deadline)
                }
                None => return Ok(()),
            }
        }
        stream @ Stream::Tls(_) => (stream, Bytes::new(), deadline),
    };
    let (version, stream) = Box::pin(async {
        tokio::select! {
            biased;
            detected = tokio::time::timeout_at(deadline, detect_version::detect(stream, first)) => Ok::<_, BoxError>(detected??),
            () = context.stop.cancelled() => Err("the broker stopped before the client sent a request".into()),
        }
    })
    .await?;
    match version {
        HttpVersion::Http1 => {
            let (stream, first) = stream.into_parts();
            let config = &broker.shared.config;
            let message_bytes = config.limits.message_bytes;
            let stream = FramingGuard::new(stream, first, REQUEST_HEAD_BYTES_MAX, message_bytes)
                .limit_head_time(config.timeouts.request_read);
            let stream = guard_io(stream);
            HttpConnection { stream, context, deadline }.serve_http1(broker, guard).await
        }
        // Boxed, so that an HTTP/1 connection needs no memory for it.
        HttpVersion::Http2 => {
            context.waiting_bodies = Some(Arc::new(Semaphore::new(HTTP2_WAITING_BODIES_MAX)));
            Box::pin(
                HttpConnection { stream: guard_io(stream), context, deadline }
                    .serve_http2(broker, guard),
            )
            .await
        }
    }
}

impl HttpConnection<Http1Stream> {
    async fn serve_http1(
        self,
        broker: Arc<Broker>,
        guard: Arc<RequestGuard>,
    ) -> Result<(), BoxError> {
        let mut builder = http1::Builder::new();
        // `HTTP_HEADERS_MAX` is the library's own default. With an explicit limit, the library
        // would allocate that much for each request. Its timeout begins with the wait for a request.
        // The guard limits the time of a head that has begun.
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(broker.shared.config.timeouts.http_idle)
            .max_buf_size(REQUEST_HEAD_BYTES_MAX);
        let Self { stream, context, deadline } = self;
        let (stop, certified, first) =
            (context.stop.clone(), context.certified.clone(), Arc::<Notify>::default());
        // A stalled HTTP/1 answer stalls the socket, which has a limit of its own.
        let connection = builder
            .serve_connection(
                stream,
                service(broker, guard, Arc::new(context), first.clone(), None),
            )
            .with_upgrades();
        let finish = http1::UpgradeableConnection::graceful_shutdown;
        tokio::select! {
            biased; // what was read already is served
            ended = drive_http1(connection, finish, &stop) => ended,
            () = none_in_time(&first, deadline) => Err("no request came in time".into()),
            () = certificate_expired(certified.as_ref()) => Err("the client's certificate is not valid any more".into()),
        }
    }
}

impl HttpConnection<GuardedIo<PrefixedStream<Stream>>> {
    async fn serve_http2(
        self,
        broker: Arc<Broker>,
        guard: Arc<RequestGuard>,
    ) -> Result<(), BoxError> {
        let mut builder = http2::Builder::new(StreamExecutor);
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(HTTP2_STREAMS_MAX)
            .max_pending_accept_reset_streams(HTTP2_GIVEN_UP_MAX)
            .max_send_buf_size(http2_stall::SEND_BUFFER_BYTES)
            .initial_stream_window_size(HTTP2_STREAM_WINDOW_BYTES as u32)
            .initial_connection_window_size(HTTP2_CONNECTION_WINDOW_BYTES)
            .max_header_list_size(REQUEST_HEAD_BYTES_MAX as u32)
            .keep_alive_interval(Some(Duration::from_secs(20)))
            .keep_alive_timeout(Duration::from_secs(20));
        let Self { stream, context, deadline } = self;
        let unused_max = broker.shared.config.timeouts.http_idle;
        let (stop, certified, first) =
            (context.stop.clone(), context.certified.clone(), Arc::<Notify>::default());
        let requests = Arc::<RunningRequests>::default();
        let connection = builder.serve_connection(
            stream,
            service(broker, guard, Arc::new(context), first.clone(), Some(requests.clone())),
        );
        let finish = http2::Connection::graceful_shutdown;
        tokio::select! {
            biased; // what was read already is served
            ended = drive(connection, finish, &requests, unused_max, &stop) => ended,
            () = none_in_time(&first, deadline) => Err("no request came in time".into()),
            () = certificate_expired(certified.as_ref()) => Err("the client's certificate is not valid any more".into()),
        }
    }
}

/// Returns the service for each request. It notifies `first` of the first one. `requests` counts
/// the requests of an HTTP/2 connection; it is `None` for HTTP/1.
fn service(
    broker: Arc<Broker>,
    guard: Arc<RequestGuard>,
    context: Arc<ConnectionContext>,
    first: Arc<Notify>,
    requests: Option<Arc<RunningRequests>>,
) -> impl Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: Send> + Send
{
    let version = match requests {
        None => HttpVersion::Http1,
        Some(_) => HttpVersion::Http2,
    };
    let detached = DetachedAnswers::new(broker.shared.running.clone());
    service_fn(move |mut request: Request<Incoming>| {
        first.notify_one();
        let running = requests.as_ref().map(RunningRequests::begin);
        if let Some(certified) = &context.certified {
            request.extensions_mut().insert(certified.clone());
        }
        if let Some(thumbprint) = context.remote.certificate {
            request.extensions_mut().insert(thumbprint);
        }
        let runs_to_end = request.method() == Method::DELETE
            || request.method() == Method::GET && connect::is_callback(request.uri().path());
        let (broker, guard, context) = (broker.clone(), guard.clone(), context.clone());
        let answer = async move {
            let response = answer(&broker, &guard, &context, request, version).await;
            Ok(match running {
                Some(running) => response::track(response, running),
                None => response,
            })
        };
        match runs_to_end {
            // A client that hangs up still ends its session, and a browser still connects its
            // account.
            true => Either::Left(detached.start(answer).map(|answered| {
                answered.unwrap_or_else(|| Ok(response::empty(StatusCode::INTERNAL_SERVER_ERROR)))
            })),
            false => Either::Right(answer),
        }
    })
}

/// Answers a request by the rules of HTTP that hold for every path: framing, HEAD, and whether the
/// connection closes.
async fn answer(
    broker: &Arc<Broker>,
    guard: &Arc<RequestGuard>,
    context: &Arc<ConnectionContext>,
    request: Request<Incoming>,
    version: HttpVersion,
) -> Response<Body> {
    let is_http1 = version == HttpVersion::Http1;
    if is_http1 && let Some(violation) = FramingViolation::from_headers(request.headers()) {
        return framing_violation(broker, violation);
    }
    let upgrades = request.headers().get_all(UPGRADE);
    let is_last = is_http1 && is_websocket_upgrade(upgrades.iter().map(HeaderValue::as_bytes));
    let is_head = request.method() == Method::HEAD;
    let mut response = route(broker, guard, context, request).await;
    if is_head && !is_http1 {
        remove_content(&mut response);
    }
    // Closes the connection if the request was not read to its end, or if nothing is read after it.
    // Also closes HTTP/1 connections in a drain, so that clients reconnect to another process.
    // (HTTP/2 has GOAWAY.)
    let closes = is_last
        || (is_http1 && (broker.draining() || response.status() == StatusCode::PAYLOAD_TOO_LARGE));
    if closes && response.status() != StatusCode::SWITCHING_PROTOCOLS {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Answers a request by the handler of its path. Large futures are boxed: otherwise every request's
/// future would have the size of the largest one, and be moved with it.
async fn route(
    broker: &Arc<Broker>,
    guard: &Arc<RequestGuard>,
    context: &Arc<ConnectionContext>,
    request: Request<Incoming>,
) -> Response<Body> {
    match request.uri().path() {
        path if websocket::matches_path(path) => {
            let context = ConnectionContext::clone(context);
            Box::pin(websocket::handle(broker, guard, request, context)).await
        }
        path if resource_metadata::matches_path(request.method(), path) => {
            resource_metadata::handle(broker, guard, &request)
        }
        path if authorization_server::matches_path(path) => {
            let remote = context.request_remote(request.headers());
            Box::pin(authorization_server::handle(broker, guard, request, remote)).await
        }
        path if connect::matches_path(path) => {
            let remote = context.request_remote(request.headers());
            Box::pin(connect::handle(broker, guard, request, remote)).await
        }
        path if http_sse::matches_path(path) => {
            let context = ConnectionContext::clone(context);
            Box::pin(http_sse::handle(broker, guard, request, context)).await
        }
        _ => {
            let (head, body) = request.into_parts();
            let remote = context.request_remote(&head.headers);
            let cache = ConnectionCache::of_connection(context);
            let answer = request::handle(broker, guard, remote, (&head, &cache), body).await;
            response::count_unread(&broker.shared, &cache, answer.into_response())
        }
    }
}

/// Removes the content of an answer to HEAD, and keeps its length (RFC 9110, 9.3.2 and 8.6). The
/// library does so over HTTP/1.1 only.
fn remove_content(response: &mut Response<Body>) {
    if let Some(bytes) = response.body().size_hint().exact() {
        response.headers_mut().insert(CONTENT_LENGTH, bytes.into());
    }
    *response.body_mut() = response::empty(StatusCode::OK).into_body();
}

/// Returns the answer to a request with refused framing, whose connection closes.
fn framing_violation(broker: &Broker, violation: FramingViolation) -> Response<Body> {
    let refusal = match violation {
        FramingViolation::HeadTooLong => Refusal::new(
            ErrorKind::MessageTooLarge,
            format!("the head of a request may have at most {REQUEST_HEAD_BYTES_MAX} bytes"),
        ),
        FramingViolation::TooManyHeaders => {
            Refusal::new(ErrorKind::MessageTooLarge, violation.reason())
        }
        _ => Refusal::new(ErrorKind::InvalidRequest, violation.reason()),
    };
    let mut response = response::refusal_response(&broker.shared, &refusal, None);
    *response.status_mut() = violation.status();
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Resolves at the deadline, unless a first request has come.
async fn none_in_time(first: &Notify, deadline: Instant) {
    if tokio::time::timeout_at(deadline, first.notified()).await.is_ok() {
        std::future::pending().await
    }
}

/// Serves an HTTP/1 connection to its end. After `stop`, it finishes the request in flight.
async fn drive_http1<C>(
    connection: C,
    finish: fn(Pin<&mut C>),
    stop: &CancellationToken,
) -> Result<(), BoxError>
where
    C: Future<Output = hyper::Result<()>>,
{
    let mut connection = pin!(connection);
    tokio::select! {
        biased; // what was read already is served
        ended = connection.as_mut() => return Ok(ended?),
        () = stop.cancelled() => finish(connection.as_mut()),
    }
    Ok(connection.await?)
}
