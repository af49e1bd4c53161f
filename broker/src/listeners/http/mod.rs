//! The data plane over Streamable HTTP: accepts connections and serves `/mcp` and `/mcp/{backend}` on them.
//!
//! HTTP/1.1 and HTTP/2 (with prior knowledge) on one port. The number of connections is bounded, in all and per address; a
//! request head that does not come in time ends its connection.

mod answer;
mod exchange;
mod forward;
mod gate;
mod post;
mod unsent;
mod vouched;

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use hyper::{Request, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Notify,
};
use tokio_util::sync::CancellationToken;
use transport::StallGuard;

pub(in crate::listeners) use self::exchange::handle_replica;
use self::{gate::Gate, unsent::Unsent};
use super::admission::Admission;
use crate::{
    broker::Broker,
    limits::{CLIENT_WRITE_STALL_MAX, HTTP_HEADERS_MAX, HTTP2_STREAMS_MAX, REQUEST_HEAD_BYTES_MAX},
};

/// Serves until `stop`, then lets the requests in flight finish.
pub async fn serve(broker: Arc<Broker>, listener: TcpListener, stop: CancellationToken) {
    let local = listener.local_addr().unwrap_or_else(|_| SocketAddr::from(([127, 0, 0, 1], 0)));
    let limits = &broker.shared.config.limits;
    let admission = Admission::new(limits);
    let gate = Arc::new(Gate::new(&broker.shared.config.auth, local));
    let graceful = GracefulShutdown::new();
    loop {
        let (socket, peer, admitted) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = admission.accept(&listener, &broker.shared.metrics) => accepted,
        };
        let (begun, unsent) = (Arc::new(Notify::new()), Arc::new(Unsent::default()));
        let connection = serve_connection(&broker, &gate, socket, peer, &begun, &unsent);
        let watched = graceful.watch(connection);
        let head_time = broker.shared.config.timeouts.request_read;
        tokio::spawn(async move {
            if let Err(error) = attended(watched, &begun, head_time, &unsent).await {
                tracing::debug!(%peer, %error, "connection ended");
            }
            drop(admitted);
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

fn serve_connection(
    broker: &Arc<Broker>,
    gate: &Arc<Gate>,
    socket: TcpStream,
    peer: SocketAddr,
    begun: &Arc<Notify>,
    unsent: &Arc<Unsent>,
) -> impl hyper_util::server::graceful::GracefulConnection<Error = Box<dyn std::error::Error + Send + Sync>> + Send + 'static {
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%peer, %error, "TCP_NODELAY could not be set");
    }
    let mut builder = auto::Builder::new(TokioExecutor::new());
    let head_time = broker.shared.config.timeouts.request_read;
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(head_time)
        .max_headers(HTTP_HEADERS_MAX)
        .max_buf_size(REQUEST_HEAD_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS_MAX)
        .max_header_list_size(REQUEST_HEAD_BYTES_MAX as u32)
        .keep_alive_interval(Some(Duration::from_secs(20)))
        .keep_alive_timeout(Duration::from_secs(20));
    let (broker, gate, begun, unsent) = (broker.clone(), gate.clone(), begun.clone(), unsent.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        begun.notify_one();
        let (broker, gate) = (broker.clone(), gate.clone());
        // HTTP/1 answers stall at the socket, where it shows.
        let unsent = (request.version() == http::Version::HTTP_2).then(|| unsent.clone());
        async move {
            let response = exchange::handle(&broker, &gate, request).await;
            Ok::<_, Infallible>(match unsent {
                Some(unsent) => answer::tracked(response, &unsent),
                None => response,
            })
        }
    });
    let socket = StallGuard::new(socket, CLIENT_WRITE_STALL_MAX);
    builder.serve_connection(TokioIo::new(socket), service).into_owned()
}

type Ended = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Serves a connection, or gives it up when no request head comes in time. The time for one head begins only once it is
/// known which HTTP is spoken; who never says a word would otherwise hold the connection for ever.
///
/// A connection whose client does not take its answers is given up as well.
async fn attended(connection: impl Future<Output = Ended>, begun: &Notify, head_time: Duration, unsent: &Unsent) -> Ended {
    tokio::pin!(connection);
    tokio::select! {
        ended = &mut connection => return ended,
        () = begun.notified() => {}
        () = tokio::time::sleep(head_time) => return Err("no request came in time".into()),
    }
    tokio::select! {
        ended = &mut connection => ended,
        () = unsent.stalled() => Err("the client does not take its answers".into()),
    }
}
