//! Accepts the requests of other replicas. Called by the broker's internal listener.
//!
//! Invariants:
//! - The server reads no byte of a request from a connection without a certificate of the replicas'
//!   authority.
//! - Connections that never finish a handshake do not use up the connections for replicas.

use std::{future::poll_fn, io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use h2::{
    Reason,
    server::{self, SendResponse},
};
use http::{HeaderValue, Request, Response, header::CONTENT_LENGTH};
use http_body::Body;
use parking_lot::Mutex;
use tokio::{
    io::BufReader,
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    ALPN_H2, CONNECTION_WINDOW_BYTES, DATA_FRAME_BUDGET, GIVEN_UP_STREAMS_MAX, HANDSHAKE_TIMEOUT,
    HANDSHAKES_MAX, HEAD_BYTES_MAX, PEER_CONNECTIONS_MAX, PeerBody, PeerIdentity, READ_BYTES,
    STREAM_WINDOW_BYTES, STREAMS_MAX, body, coalesced_writes::CoalescedWrites, until_unanswered,
};

/// Wait after a failed accept. The usual reason is that no descriptor is free until another
/// connection ends.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// Minimum interval of log lines about refused connections, and of those about failed accepts. Each
/// line has the number of lines left out.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Called with the address of each peer that is not a replica.
type UntrustedPeerHook = Arc<dyn Fn(SocketAddr) + Send + Sync>;

#[derive(Clone)]
pub struct PeerServer {
    tls: TlsAcceptor,
    http: server::Builder,
    permits: Arc<Semaphore>,
    refused_connections: Option<RefusedConnections>,
    untrusted_peer_hook: Option<UntrustedPeerHook>,
}

/// Connections that are refused before the handshake.
#[derive(Clone)]
struct RefusedConnections {
    /// Returns whether there may be any now.
    may_exist: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Returns true if a connection with this peer and local address is one. May block for a moment.
    is_one: Arc<dyn Fn(SocketAddr, SocketAddr) -> bool + Send + Sync>,
    lines: Arc<Mutex<RefusalLines>>,
}

/// Limits the log lines of one kind, such as those about refused connections.
#[derive(Default)]
struct RefusalLines {
    logged_at: Option<Instant>,
    left_out: u64,
}

impl RefusalLines {
    /// Counts an event. Returns the number of lines left out before it, or `None` if it gets no
    /// line.
    fn check(&mut self, now: Instant) -> Option<u64> {
        let is_recent = |logged_at| now.saturating_duration_since(logged_at) < LOG_INTERVAL;
        if self.logged_at.is_some_and(is_recent) {
            self.left_out += 1;
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

impl std::fmt::Debug for PeerServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerServer").finish_non_exhaustive()
    }
}

impl PeerServer {
    pub fn new(identity: &PeerIdentity) -> Self {
        let mut http = server::Builder::new();
        http.max_concurrent_streams(STREAMS_MAX)
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .data_frame_budget(DATA_FRAME_BUDGET)
            .max_header_list_size(HEAD_BYTES_MAX)
            // These limits protect against strangers. They must not close the connection of a peer
            // when many of its clients hang up at once.
            .max_concurrent_reset_streams(GIVEN_UP_STREAMS_MAX)
            .max_pending_accept_reset_streams(STREAMS_MAX as usize)
            .max_local_error_reset_streams(None);
        Self {
            tls: TlsAcceptor::from(Arc::clone(&identity.server)),
            http,
            permits: Arc::new(Semaphore::new(PEER_CONNECTIONS_MAX)),
            refused_connections: None,
            untrusted_peer_hook: None,
        }
    }

    /// Refuses connections before the handshake if `is_one` returns true. Calls it only while
    /// `may_exist` returns true, on a thread of its own. The broker uses it for connections that it
    /// knows do not come from a replica.
    #[must_use]
    pub fn refuse_connections(
        self,
        may_exist: impl Fn() -> bool + Send + Sync + 'static,
        is_one: impl Fn(SocketAddr, SocketAddr) -> bool + Send + Sync + 'static,
    ) -> Self {
        let rejected = RefusedConnections {
            may_exist: Arc::new(may_exist),
            is_one: Arc::new(is_one),
            lines: Arc::default(),
        };
        Self { refused_connections: Some(rejected), ..self }
    }

    /// Sets a function that is called for each peer whose handshake proves that it is not a
    /// replica. A peer that only hangs up is not reported.
    #[must_use]
    pub fn on_untrusted_peer(mut self, hook: impl Fn(SocketAddr) + Send + Sync + 'static) -> Self {
        self.untrusted_peer_hook = Some(Arc::new(hook));
        self
    }

    /// Serves until `stop` resolves, then lets the requests in flight finish.
    pub async fn serve<Handler, Answering, ResponseBody>(
        self,
        listener: TcpListener,
        stop: impl Future<Output = ()>,
        handler: Handler,
    ) where
        Handler: Fn(Request<PeerBody>) -> Answering + Clone + Send + Sync + 'static,
        Answering: Future<Output = Response<ResponseBody>> + Send + 'static,
        ResponseBody: Body<Data = Bytes, Error: Send> + Send + 'static,
    {
        let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
        let (connections, stopping) = (TaskTracker::new(), CancellationToken::new());
        let mut accept_lines = RefusalLines::default();
        tokio::pin!(stop);
        loop {
            // At the limit nothing is accepted: new connections wait in the kernel's queue.
            let next = async {
                let handshake = Arc::clone(&handshakes).acquire_owned().await;
                (handshake, listener.accept().await)
            };
            let (handshake, socket) = tokio::select! {
                () = &mut stop => break,
                (handshake, accepted) = next => match accepted {
                    Ok((socket, _)) => (handshake, socket),
                    Err(error) => {
                        // Without a free descriptor, every attempt fails.
                        if let Some(left_out) = accept_lines.check(Instant::now()) {
                            tracing::warn!(%error, left_out, "a replica's connection could not be accepted");
                        }
                        sleep(ACCEPT_RETRY).await;
                        continue;
                    }
                },
            };
            let (server, stopping, handler) = (self.clone(), stopping.clone(), handler.clone());
            connections.spawn(async move {
                let Some((stream, permit)) = server.admit(socket).await else { return };
                drop(handshake);
                server.serve_connection(stream, &stopping, handler).await;
                drop(permit);
            });
        }
        drop(listener);
        stopping.cancel();
        connections.close();
        connections.wait().await;
    }

    /// Makes the handshake. Returns the connection if it is from a replica and the limit allows it.
    async fn admit(
        &self,
        socket: TcpStream,
    ) -> Option<(TlsStream<BufReader<TcpStream>>, OwnedSemaphorePermit)> {
        let (peer, local) = (socket.peer_addr().ok()?, socket.local_addr().ok()?);
        if let Some(rejected) = &self.refused_connections
            && (rejected.may_exist)()
        {
            let is_one = Arc::clone(&rejected.is_one);
            if tokio::task::spawn_blocking(move || is_one(peer, local)).await.unwrap_or(true) {
                let checked = rejected.lines.lock().check(Instant::now());
                if let Some(left_out) = checked {
                    tracing::warn!(%peer, left_out, "the broker refused a replica connection of a child process");
                }
                return None;
            }
        }
        let _ = socket.set_nodelay(true);
        let stream = match timeout(
            HANDSHAKE_TIMEOUT,
            self.tls.accept(BufReader::with_capacity(READ_BYTES, socket)),
        )
        .await
        {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                tracing::debug!(%peer, %error, "the peer is not a replica of this broker");
                if let Some(hook) = self
                    .untrusted_peer_hook
                    .as_ref()
                    .filter(|_| error.kind() == io::ErrorKind::InvalidData)
                {
                    hook(peer);
                }
                return None;
            }
            Err(_) => {
                tracing::debug!(%peer, "the peer did not complete the handshake in time");
                return None;
            }
        };
        if stream.get_ref().1.alpn_protocol() != Some(ALPN_H2) {
            tracing::debug!(%peer, "a replica does not support http/2");
            return None;
        }
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        permit
            .inspect_err(|_| tracing::warn!(%peer, "too many connections of replicas"))
            .ok()
            .map(|permit| (stream, permit))
    }

    /// Serves a connection to its end. After `stopping`, it serves the requests in flight.
    async fn serve_connection<Handler, Answering, ResponseBody>(
        &self,
        stream: TlsStream<BufReader<TcpStream>>,
        stopping: &CancellationToken,
        handler: Handler,
    ) where
        Handler: Fn(Request<PeerBody>) -> Answering + Send + Sync + 'static,
        Answering: Future<Output = Response<ResponseBody>> + Send + 'static,
        ResponseBody: Body<Data = Bytes, Error: Send> + Send + 'static,
    {
        let opening = self.http.handshake(CoalescedWrites::new(stream));
        let mut connection = match timeout(HANDSHAKE_TIMEOUT, opening).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => return tracing::debug!(%error, "a replica's connection ended"),
            Err(_) => return tracing::debug!("a replica did not begin with http/2 in time"),
        };
        let mut unanswered = pin!(until_unanswered(connection.ping_pong()));
        let mut stopped = pin!(stopping.cancelled());
        let mut is_ending = false;
        loop {
            tokio::select! {
                biased;
                // This also drives all streams of the connection.
                accepted = connection.accept() => match accepted {
                    Some(Ok((request, respond))) => {
                        let (head, stream) = request.into_parts();
                        let body = PeerBody::new(stream, &head.headers, None);
                        tokio::spawn(answer(handler(Request::from_parts(head, body)), respond));
                    }
                    Some(Err(error)) => {
                        return tracing::debug!(%error, "a replica's connection ended");
                    }
                    None => return,
                },
                () = &mut unanswered => {
                    return tracing::debug!("a replica answers no ping: its connection is closed");
                }
                () = &mut stopped, if !is_ending => {
                    is_ending = true;
                    connection.graceful_shutdown();
                }
            }
        }
    }
}

/// Answers one request. Ends when the other replica resets its stream.
async fn answer<ResponseBody>(
    answering: impl Future<Output = Response<ResponseBody>>,
    mut respond: SendResponse<Bytes>,
) where
    ResponseBody: Body<Data = Bytes>,
{
    let response = tokio::select! {
        biased;
        response = answering => response,
        _ = poll_fn(|context| respond.poll_reset(context)) => return,
    };
    let (mut head, body) = response.into_parts();
    let is_empty = body.is_end_stream();
    if let Some(length) = body.size_hint().exact().filter(|_| !is_empty) {
        head.headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
    }
    match respond.send_response(Response::from_parts(head, ()), is_empty) {
        Ok(_) if is_empty => {}
        Ok(stream) => body::send(body, stream).await,
        Err(error) => {
            tracing::debug!(%error, "an answer cannot be sent to another replica");
            respond.send_reset(Reason::INTERNAL_ERROR);
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use socket2::{Domain, Socket, Type};
    use tracing::{
        Event, Level, Metadata, Subscriber,
        field::{Field, Visit},
        span,
    };

    use super::*;

    /// Collects the numbers of lines left out from the warnings of a server. Stops it after three.
    #[derive(Clone, Default)]
    struct Warnings {
        left_out: Arc<Mutex<Vec<u64>>>,
        stop: CancellationToken,
    }

    impl Visit for Warnings {
        fn record_u64(&mut self, field: &Field, value: u64) {
            let mut left_out = self.left_out.lock();
            if field.name() == "left_out" {
                left_out.push(value);
            }
            if left_out.len() == 3 {
                self.stop.cancel();
            }
        }

        fn record_debug(&mut self, _field: &Field, _value: &dyn std::fmt::Debug) {}
    }

    impl Subscriber for Warnings {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == Level::WARN
        }

        fn new_span(&self, _span: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}

        fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}

        fn event(&self, event: &Event<'_>) {
            event.record(&mut self.clone());
        }

        fn enter(&self, _span: &span::Id) {}

        fn exit(&self, _span: &span::Id) {}
    }

    #[tokio::test(start_paused = true)]
    async fn failed_accepts_are_retried_and_get_one_line_in_each_interval() {
        let warnings = Warnings::default();
        let _logged = tracing::subscriber::set_default(warnings.clone());
        // Every accept fails at a socket that does not listen.
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(socket.into()).unwrap();
        let server = PeerServer::new(&PeerIdentity::from_secret(&[7; 32]).unwrap());
        let handler =
            |_request: Request<PeerBody>| async { Response::new(Full::<Bytes>::default()) };
        server.serve(listener, warnings.stop.cancelled(), handler).await;
        let left_out = warnings.left_out.lock();
        assert_eq!((left_out.len(), left_out[0]), (3, 0), "{left_out:?}");
        let attempts = LOG_INTERVAL.as_millis() / ACCEPT_RETRY.as_millis();
        let are_many = left_out[1..].iter().all(|count| u128::from(*count) > attempts / 2);
        assert!(are_many, "{left_out:?} of {attempts} attempts in each interval");
    }

    #[test]
    fn refusals_get_one_line_in_each_interval_with_the_number_left_out() {
        let (mut lines, start) = (RefusalLines::default(), Instant::now());
        assert_eq!(lines.check(start), Some(0));
        assert_eq!([1, 9].map(|after| lines.check(start + Duration::from_secs(after))), [None; 2]);
        assert_eq!(lines.check(start + LOG_INTERVAL), Some(2));
        assert_eq!(lines.check(start + LOG_INTERVAL), None);
    }
}
