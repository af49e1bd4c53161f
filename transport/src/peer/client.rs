//! Sends requests to other replicas. Called by the broker when a session is on another replica.
//!
//! The client keeps a few connections to each peer, and all requests share them. Invariants:
//! - [`SendError::is_safe_to_retry`] returns true only when the peer cannot have acted on the
//!   request.
//! - No request waits for a stream: beyond the streams of its connection it is refused.

use std::{
    collections::HashMap,
    error::Error,
    io,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use h2::client::{self, ResponseFuture, SendRequest};
use http::{
    HeaderValue, Request, Response, Uri,
    header::CONTENT_LENGTH,
    uri::{Authority, PathAndQuery, Scheme},
};
use http_body::Body;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::{
    io::BufReader,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::{
    ALPN_H2, CONNECT_TIMEOUT, CONNECTION_WINDOW_BYTES, CONNECTIONS_PER_PEER, DATA_FRAME_BUDGET,
    GIVEN_UP_STREAMS_MAX, HEAD_BYTES_MAX, PEER_NAME, PEERS_KEPT_MAX, PeerIdentity, READ_BYTES,
    STREAM_WINDOW_BYTES, STREAMS_MAX,
    body::{PeerBody, SentRequest, Upload},
    coalesced_writes::CoalescedWrites,
    until_unanswered,
};
use crate::{
    connect::open_replica,
    resolver::Resolver,
    send_error::{SendError, was_not_processed},
};

/// One attempt on the open connection, and one on a new connection if the first was closing.
const ATTEMPTS: usize = 2;

/// A shared client. Clones use the same connections.
#[derive(Clone)]
pub struct PeerClient {
    tls: TlsConnector,
    resolver: Resolver,
    peers: Arc<Mutex<HashMap<String, Arc<Peer>>>>,
}

impl std::fmt::Debug for PeerClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerClient").finish_non_exhaustive()
    }
}

/// The connections to one address.
#[derive(Default)]
struct Peer {
    lanes: [PeerConnection; CONNECTIONS_PER_PEER],
}

/// One connection, opened on demand. The first request that finds it closed opens it, and the
/// others wait.
struct PeerConnection {
    state: tokio::sync::Mutex<ConnectionState>,
    failures: AtomicU64,
    /// A permit for each stream. The library itself would queue further requests without a limit.
    streams: Arc<Semaphore>,
}

impl Default for PeerConnection {
    fn default() -> Self {
        Self {
            state: tokio::sync::Mutex::default(),
            failures: AtomicU64::default(),
            streams: Arc::new(Semaphore::new(STREAMS_MAX as usize)),
        }
    }
}

#[derive(Default)]
struct ConnectionState {
    sender: Option<SendRequest<Bytes>>,
    failure: Option<SendError>,
}

impl PeerClient {
    pub fn new(identity: &PeerIdentity) -> Self {
        Self {
            tls: TlsConnector::from(Arc::clone(&identity.client)),
            // Silent names of backends must not delay replicas.
            resolver: Resolver::of_system(),
            peers: Arc::default(),
        }
    }

    /// Sends the request to the replica at `address` (`host:port`) and waits for the response's
    /// head. Only path and query of the request's URI are used.
    ///
    /// Waits without limit for a response as long as the peer is alive. Dropping the future or the
    /// response's body ends the stream at the peer.
    pub async fn send(
        &self,
        address: &str,
        request: &Request<Bytes>,
    ) -> Result<Response<PeerBody>, SendError> {
        let peer = self.peer(address);
        let connection = peer.connection();
        let permit = connection.acquire_stream()?;
        let mut reason = String::new();
        for _ in 0..ATTEMPTS {
            let mut sender = connection.sender(self, address).await?;
            let response = match send_whole(&mut sender, request) {
                Ok(response) => response.await,
                Err(error) => {
                    reason = error.to_string();
                    continue;
                }
            };
            match response {
                Ok(response) => {
                    return Ok(with_body(response, SentRequest::new(None, permit)));
                }
                Err(error) if was_not_processed(&error) => reason = error.to_string(),
                Err(error) => return Err(SendError::Aborted { reason: error.to_string() }),
            }
        }
        Err(SendError::NotSent { reason })
    }

    /// Works as [`PeerClient::send`] for a streamed body. Makes one attempt only, because the body
    /// cannot be sent again. Dropping the response's body ends the request's body too.
    pub async fn send_streaming<B>(
        &self,
        address: &str,
        request: Request<B>,
    ) -> Result<Response<PeerBody>, SendError>
    where
        B: Body<Data = Bytes, Error = io::Error> + Send + 'static,
    {
        let (mut head, body) = request.into_parts();
        head.uri = at_peer(head.uri).map_err(not_sent)?;
        let peer = self.peer(address);
        let connection = peer.connection();
        let permit = connection.acquire_stream()?;
        let mut sender = connection.sender(self, address).await?;
        let (response, stream) =
            sender.send_request(Request::from_parts(head, ()), false).map_err(not_sent)?;
        let upload = Upload::start(body, stream);
        match response.await {
            Ok(response) => Ok(with_body(response, SentRequest::new(Some(upload), permit))),
            Err(error) if was_not_processed(&error) => Err(not_sent(error)),
            Err(error) => Err(SendError::Aborted { reason: error.to_string() }),
        }
    }

    fn peer(&self, address: &str) -> Arc<Peer> {
        let mut peers = self.peers.lock();
        if let Some(peer) = peers.get(address) {
            return Arc::clone(peer);
        }
        if peers.len() >= PEERS_KEPT_MAX {
            peers.retain(|_, peer| peer.lanes.iter().any(PeerConnection::is_in_use));
        }
        let peer = Arc::<Peer>::default();
        peers.insert(address.to_owned(), Arc::clone(&peer));
        peer
    }

    async fn connect(&self, address: &str) -> Result<SendRequest<Bytes>, SendError> {
        let unreachable =
            |error: &dyn Error| SendError::Connect { reason: format!("{address}: {error}") };
        let socket = open_replica(&self.resolver, address).await?;
        let _ = socket.set_nodelay(true);
        let name = ServerName::try_from(PEER_NAME)
            .map_err(|error| SendError::Tls { reason: error.to_string() })?;
        let stream = self
            .tls
            .connect(name, BufReader::with_capacity(READ_BYTES, socket))
            .await
            .map_err(|error| SendError::Tls { reason: error.to_string() })?;
        if stream.get_ref().1.alpn_protocol() != Some(ALPN_H2) {
            return Err(SendError::Tls { reason: format!("{address} does not speak http/2") });
        }
        let (sender, mut connection) = client::Builder::new()
            .enable_push(false)
            .initial_max_send_streams(STREAMS_MAX as usize)
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .data_frame_budget(DATA_FRAME_BUDGET)
            .max_header_list_size(HEAD_BYTES_MAX)
            // Clients that hang up cause many reset streams. Late frames of the peer on them are not
            // a fault.
            .max_concurrent_reset_streams(GIVEN_UP_STREAMS_MAX)
            .max_local_error_reset_streams(None)
            .handshake(CoalescedWrites::new(stream))
            .await
            .map_err(|error| unreachable(&error))?;
        let pings = connection.ping_pong();
        let address = address.to_owned();
        tokio::spawn(async move {
            // Dropping the connection ends its streams with an error.
            tokio::select! {
                // An answer that has arrived counts, however late this task reads it.
                biased;
                ended = connection => if let Err(error) = ended {
                    tracing::debug!(%address, %error, "the connection to a replica ended");
                },
                () = until_unanswered(pings) => {
                    tracing::debug!(%address, "a replica answers no ping: its connection is closed");
                }
            }
        });
        Ok(sender)
    }
}

impl Peer {
    /// Returns the connection of this thread. The requests of one thread share writes, and those of
    /// two threads rarely wait for each other.
    fn connection(&self) -> &PeerConnection {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static LANE: usize = THREADS.fetch_add(1, Ordering::Relaxed) % CONNECTIONS_PER_PEER;
        }
        &self.lanes[LANE.with(|lane| *lane)]
    }
}

impl PeerConnection {
    fn acquire_stream(&self) -> Result<OwnedSemaphorePermit, SendError> {
        let permit = Arc::clone(&self.streams).try_acquire_owned();
        permit.map_err(|_| SendError::NoStreamLeft { max: STREAMS_MAX })
    }

    async fn sender(
        &self,
        client: &PeerClient,
        address: &str,
    ) -> Result<SendRequest<Bytes>, SendError> {
        let failures_before = self.failures.load(Ordering::Relaxed);
        let mut state = self.state.lock().await;
        if let Some(sender) = state.sender.take()
            && let Ok(sender) = sender.ready().await
        {
            state.sender = Some(sender.clone());
            return Ok(sender);
        }
        // A request that waited for another one's failed attempt returns the same failure. So a
        // dead peer delays each waiting request by one attempt only.
        if let Some(failure) = state
            .failure
            .as_ref()
            .filter(|_| self.failures.load(Ordering::Relaxed) != failures_before)
        {
            return Err(failure.clone());
        }
        match timeout(CONNECT_TIMEOUT, client.connect(address))
            .await
            .unwrap_or(Err(SendError::ConnectTimeout))
        {
            Ok(sender) => {
                state.sender = Some(sender.clone());
                Ok(sender)
            }
            Err(failure) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                state.failure = Some(failure.clone());
                Err(failure)
            }
        }
    }

    /// Returns whether the connection is open, or being opened.
    fn is_in_use(&self) -> bool {
        // A locked state means that the connection is being opened.
        self.state.try_lock().map_or(true, |state| state.sender.as_ref().is_some_and(is_open))
    }
}

fn is_open(sender: &SendRequest<Bytes>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    !matches!(sender.clone().poll_ready(&mut context), Poll::Ready(Err(_)))
}

/// Sends a request with its body, both in one write. An error means that neither was sent.
fn send_whole(
    sender: &mut SendRequest<Bytes>,
    request: &Request<Bytes>,
) -> Result<ResponseFuture, RequestError> {
    let mut head = Request::new(());
    *head.method_mut() = request.method().clone();
    *head.uri_mut() = at_peer(request.uri().clone())?;
    *head.headers_mut() = request.headers().clone();
    let body = request.body();
    if body.is_empty() {
        return Ok(sender.send_request(head, true)?.0);
    }
    head.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    let (response, mut stream) = sender.send_request(head, false)?;
    // The library keeps the rest of a body that exceeds the peer's window.
    stream.send_data(body.clone(), true)?;
    Ok(response)
}

fn with_body(response: Response<h2::RecvStream>, sent: SentRequest) -> Response<PeerBody> {
    let (head, stream) = response.into_parts();
    let body = PeerBody::new(stream, &head.headers, Some(sent));
    Response::from_parts(head, body)
}

/// Returns the URI of a request to a peer: with a scheme and an authority, as HTTP/2 demands.
fn at_peer(uri: Uri) -> Result<Uri, RequestError> {
    static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| Authority::from_static(PEER_NAME));
    let mut parts = uri.into_parts();
    parts.scheme = Some(Scheme::HTTPS);
    parts.authority = Some(AUTHORITY.clone());
    parts.path_and_query.get_or_insert_with(|| PathAndQuery::from_static("/"));
    Ok(Uri::from_parts(parts)?)
}

/// Reason why a request was not sent.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error(transparent)]
    Uri(#[from] http::uri::InvalidUriParts),
    #[error(transparent)]
    Stream(#[from] h2::Error),
}

fn not_sent(error: impl Error) -> SendError {
    SendError::NotSent { reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::net::{TcpListener, TcpSocket, TcpStream};

    use super::*;

    #[tokio::test]
    async fn a_silent_address_of_a_replica_leaves_time_for_its_next_one() {
        let live = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let answering = live.local_addr().unwrap();
        let silent = SocketAddr::from(([127, 0, 0, 2], answering.port()));
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(silent).unwrap();
        let _listening = socket.listen(0).unwrap();
        // The kernel answers no further connect to a listener with a full queue.
        let _queued = TcpStream::connect(silent).await.unwrap();
        let mut client = PeerClient::new(&PeerIdentity::from_secret(&[7; 32]).unwrap());
        client.resolver = Resolver::new(move |_| Ok(vec![silent, answering]));
        let (address, request) =
            (format!("replica.test:{}", answering.port()), Request::new(Bytes::new()));
        tokio::select! {
            connected = live.accept() => drop(connected.unwrap()),
            sent = client.send(&address, &request) => panic!("no connection arrived: {sent:?}"),
        }
    }

    #[tokio::test]
    async fn a_request_beyond_the_streams_of_its_connection_is_refused() {
        let client = PeerClient::new(&PeerIdentity::from_secret(&[7; 32]).unwrap());
        // No process listens there.
        let (address, request) = ("127.0.0.1:1", Request::new(Bytes::new()));
        let peer = client.peer(address);
        let streams = &peer.connection().streams;
        let others = Arc::clone(streams).try_acquire_many_owned(STREAMS_MAX).unwrap();
        let refused = client.send(address, &request).await.unwrap_err();
        assert_eq!(refused, SendError::NoStreamLeft { max: STREAMS_MAX });
        assert!(refused.is_safe_to_retry());
        drop(others);
        let failed = client.send(address, &request).await.unwrap_err();
        assert!(matches!(failed, SendError::Connect { .. }), "{failed}");
        assert_eq!(streams.available_permits(), STREAMS_MAX as usize);
    }
}
