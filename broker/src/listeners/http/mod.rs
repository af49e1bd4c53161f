//! The data plane over Streamable HTTP: accepts connections and serves `/mcp` and `/mcp/{backend}` on them.
//!
//! HTTP/1.1 and HTTP/2 (with prior knowledge) on one port. The number of connections is bounded, in all and per address; a
//! request head that does not come in time ends its connection.

mod answer;
mod exchange;
mod forward;
mod gate;
mod led;
mod legacy;
mod modern;
mod post;
mod tunnel;
mod unsent;
mod vouched;
mod websocket;

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use http::{
    HeaderValue,
    header::{CONNECTION, TRANSFER_ENCODING},
};
use hyper::{Request, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
};
use tokio::sync::Notify;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use transport::{StallGuard, tcp::Stream, tls::ListenerKind};

pub(in crate::listeners) use self::{
    exchange::handle_replica,
    led::{Led, lead},
};
use self::{gate::Gate, unsent::Unsent};
use super::{
    admission::{Admission, Admitted},
    door::{Certified, Door},
    port::Port,
};
use crate::{
    broker::Broker,
    limits::{CLIENT_WRITE_STALL_MAX, HTTP2_STREAMS_MAX, REQUEST_HEAD_BYTES_MAX},
};

/// Serves until `stop`, then lets the requests in flight finish.
pub async fn serve(broker: Arc<Broker>, listener: Port, door: Door, stop: CancellationToken) {
    let local = listener.local_addr().unwrap_or_else(|_| SocketAddr::from(([127, 0, 0, 1], 0)));
    let limits = &broker.shared.config.limits;
    let admission = Admission::new(limits);
    let gate = Arc::new(Gate::new(&broker.shared.config.auth, local));
    let (graceful, sessions, streams) = (GracefulShutdown::new(), TaskTracker::new(), Arc::<legacy::Streams>::default());
    loop {
        let (socket, peer, admitted) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = admission.accept(&listener, &broker.shared.metrics) => accepted,
        };
        let (broker, gate, door) = (broker.clone(), gate.clone(), door.clone());
        let (watcher, admitted) = (graceful.watcher(), Arc::new(admitted));
        let floor = Floor { sessions: sessions.clone(), stop: stop.clone(), admitted, streams: streams.clone(), certified: None };
        tokio::spawn(async move {
            // Boxed: an idle connection would otherwise keep room for its handshake for as long as it lives.
            let stream = match Box::pin(door.open(socket, ListenerKind::Http)).await {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::debug!(%peer, %error, "a connection did not come in");
                    return;
                }
            };
            let (begun, unsent) = (Arc::new(Notify::new()), Arc::new(Unsent::default()));
            let certified = door.certified(&stream);
            let floor = Arc::new(Floor { certified: certified.clone(), ..floor });
            let connection = serve_connection(&broker, &gate, stream, floor, &begun, &unsent);
            let head_time = broker.shared.config.timeouts.request_read;
            if let Err(error) = attended(watcher.watch(connection), &begun, head_time, &unsent, certified).await {
                tracing::debug!(%peer, %error, "connection ended");
            }
        });
    }
    drop(listener);
    graceful.shutdown().await;
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
}

fn serve_connection(
    broker: &Arc<Broker>,
    gate: &Arc<Gate>,
    stream: Stream,
    floor: Arc<Floor>,
    begun: &Arc<Notify>,
    unsent: &Arc<Unsent>,
) -> impl hyper_util::server::graceful::GracefulConnection<Error = Box<dyn std::error::Error + Send + Sync>> + Send + 'static {
    let certified = floor.certified.clone();
    let mut builder = auto::Builder::new(TokioExecutor::new());
    let head_time = broker.shared.config.timeouts.request_read;
    // `HTTP_HEADERS_MAX` is what the library has as its own limit. Told to it, it would fill as much room anew for each request.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(head_time).max_buf_size(REQUEST_HEAD_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS_MAX)
        .max_header_list_size(REQUEST_HEAD_BYTES_MAX as u32)
        .keep_alive_interval(Some(Duration::from_secs(20)))
        .keep_alive_timeout(Duration::from_secs(20));
    let (broker, gate, begun, unsent) = (broker.clone(), gate.clone(), begun.clone(), unsent.clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        begun.notify_one();
        let (broker, gate, floor) = (broker.clone(), gate.clone(), floor.clone());
        if let Some(certified) = &certified {
            request.extensions_mut().insert(certified.clone());
        }
        // HTTP/1 answers stall at the socket, where it shows.
        let unsent = (request.version() == http::Version::HTTP_2).then(|| unsent.clone());
        // Whether there was a Content-Length as well is not seen here: a proxy may have taken another end for this body's.
        let ambiguous = request.headers().contains_key(TRANSFER_ENCODING);
        let is_http1 = request.version() != http::Version::HTTP_2;
        async move {
            // Boxed: the future of every request has room for its largest part, and is moved with it.
            let mut response = match request.uri().path() {
                path if websocket::is_meant(path) => Box::pin(websocket::handle(&broker, &gate, request, Floor::clone(&floor))).await,
                path if legacy::is_meant(path) => Box::pin(legacy::handle(&broker, &gate, request, Floor::clone(&floor))).await,
                _ => exchange::handle(&broker, &gate, request).await,
            };
            // The goodbye of HTTP/1: its client opens its next connection where somebody stays. (HTTP/2 has GOAWAY.)
            if ambiguous || (is_http1 && broker.draining()) {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(match unsent {
                Some(unsent) => answer::tracked(response, &unsent),
                None => response,
            })
        }
    });
    let stream = StallGuard::new(stream, CLIENT_WRITE_STALL_MAX);
    builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned()
}

type Ended = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Boxed: next to nobody has a certificate.
async fn outlived(certified: Option<Certified>) {
    match certified {
        Some(certified) => Box::pin(async move { certified.outlived().await }).await,
        None => std::future::pending().await,
    }
}

/// Serves a connection, or gives it up when no request head comes in time. The time for one head begins only once it is
/// known which HTTP is spoken; who never says a word would otherwise hold the connection for ever.
///
/// A connection whose client does not take its answers is given up as well, and one whose certificate is good no longer.
async fn attended(
    connection: impl Future<Output = Ended>,
    begun: &Notify,
    head_time: Duration,
    unsent: &Unsent,
    certified: Option<Certified>,
) -> Ended {
    tokio::pin!(connection);
    tokio::select! {
        ended = &mut connection => return ended,
        () = begun.notified() => {}
        () = tokio::time::sleep(head_time) => return Err("no request came in time".into()),
    }
    tokio::select! {
        ended = &mut connection => ended,
        () = unsent.stalled() => Err("the client does not take its answers".into()),
        () = outlived(certified) => Err("the client's certificate is good no longer".into()),
    }
}
