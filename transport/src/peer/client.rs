//! Sends requests to other replicas. Called by the broker when a session is on another replica.
//!
//! The client keeps a few connections to each peer, and all requests share them. Invariant:
//! [`SendError::is_safe_to_retry`] returns true only when the peer cannot have acted on the
//! request.

use std::{
    collections::HashMap,
    error::Error,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Either, Full, combinators::UnsyncBoxBody};
use hyper::{
    body::Incoming,
    client::conn::{TrySendError, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;

use super::{
    ALPN_H2, CONNECT_TIMEOUT, CONNECTION_WINDOW_BYTES, CONNECTIONS_PER_PEER, GIVEN_UP_STREAMS_MAX,
    HEAD_BYTES_MAX, PEER_NAME, PEERS_KEPT_MAX, PING_INTERVAL, PING_TIMEOUT, PeerIdentity,
    STREAM_WINDOW_BYTES, STREAMS_MAX,
};
use crate::send_error::SendError;

/// One attempt on the open connection, and one on a new connection if the first was closing.
const ATTEMPTS: usize = 2;

/// A whole body, or a streamed one.
type PeerBody = Either<Full<Bytes>, UnsyncBoxBody<Bytes, io::Error>>;
type PeerSender = http2::SendRequest<PeerBody>;

/// A shared client. Clones use the same connections.
#[derive(Clone)]
pub struct PeerClient {
    tls: TlsConnector,
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
    next: AtomicUsize,
}

/// One connection, opened on demand. The first request that finds it closed opens it, and the
/// others wait.
#[derive(Default)]
struct PeerConnection {
    state: tokio::sync::Mutex<PeerConnectionState>,
    failures: AtomicU64,
}

#[derive(Default)]
struct PeerConnectionState {
    sender: Option<PeerSender>,
    failure: Option<SendError>,
}

impl PeerClient {
    pub fn new(identity: &PeerIdentity) -> Self {
        Self { tls: TlsConnector::from(Arc::clone(&identity.client)), peers: Arc::default() }
    }

    /// Sends the request to the replica at `address` (`host:port`) and waits for the response's
    /// head. Only path and query of the request's URI are used.
    ///
    /// Waits without limit for a response as long as the peer is alive. Dropping the future or the
    /// response's body ends the stream at the peer.
    pub async fn send(
        &self,
        address: &str,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, SendError> {
        *request.uri_mut() = at_peer(request.uri())?;
        let peer = self.peer(address);
        let mut reason = String::new();
        let lane = peer.next_connection();
        for _ in 0..ATTEMPTS {
            let mut sender = lane.sender(&self.tls, address).await?;
            match sender.try_send_request(request.clone().map(Either::Left)).await {
                Ok(response) => return Ok(response),
                Err(error) if was_not_processed(&error) => reason = error.error().to_string(),
                Err(error) => return Err(SendError::Aborted { reason: error.error().to_string() }),
            }
        }
        Err(SendError::NotSent { reason })
    }

    /// Works as [`PeerClient::send`] for a streamed body. Makes one attempt only, because the body
    /// cannot be sent again.
    pub async fn send_streaming<B>(
        &self,
        address: &str,
        mut request: Request<B>,
    ) -> Result<Response<Incoming>, SendError>
    where
        B: hyper::body::Body<Data = Bytes, Error = io::Error> + Send + 'static,
    {
        *request.uri_mut() = at_peer(request.uri())?;
        let mut sender = self.peer(address).next_connection().sender(&self.tls, address).await?;
        sender
            .try_send_request(request.map(|body| Either::Right(body.boxed_unsync())))
            .await
            .map_err(|error| {
                let reason = error.error().to_string();
                if was_not_processed(&error) {
                    SendError::NotSent { reason }
                } else {
                    SendError::Aborted { reason }
                }
            })
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
}

impl Peer {
    /// Returns the connections in turn.
    fn next_connection(&self) -> &PeerConnection {
        &self.lanes[self.next.fetch_add(1, Ordering::Relaxed) % CONNECTIONS_PER_PEER]
    }
}

impl PeerConnection {
    async fn sender(&self, tls: &TlsConnector, address: &str) -> Result<PeerSender, SendError> {
        let failures_before = self.failures.load(Ordering::Relaxed);
        let mut state = self.state.lock().await;
        if let Some(sender) = state.sender.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        state.sender = None;
        // A request that waited for another one's failed attempt returns the same failure. So a
        // dead peer delays each waiting request by one attempt only.
        if let Some(failure) = state
            .failure
            .as_ref()
            .filter(|_| self.failures.load(Ordering::Relaxed) != failures_before)
        {
            return Err(failure.clone());
        }
        match timeout(CONNECT_TIMEOUT, connect(tls, address))
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

    fn is_in_use(&self) -> bool {
        // A locked state means that the connection is being opened.
        self.state
            .try_lock()
            .map_or(true, |state| state.sender.as_ref().is_some_and(|sender| !sender.is_closed()))
    }
}

async fn connect(tls: &TlsConnector, address: &str) -> Result<PeerSender, SendError> {
    let unreachable =
        |error: &dyn Error| SendError::Connect { reason: format!("{address}: {error}") };
    let socket = TcpStream::connect(address).await.map_err(|error| unreachable(&error))?;
    let _ = socket.set_nodelay(true);
    let name = ServerName::try_from(PEER_NAME)
        .map_err(|error| SendError::Tls { reason: error.to_string() })?;
    let stream = tls
        .connect(name, socket)
        .await
        .map_err(|error| SendError::Tls { reason: error.to_string() })?;
    if stream.get_ref().1.alpn_protocol() != Some(ALPN_H2) {
        return Err(SendError::Tls { reason: format!("{address} does not speak http/2") });
    }
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_max_send_streams(STREAMS_MAX as usize)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(HEAD_BYTES_MAX)
        // Clients that hang up cause many reset streams. Late frames of the peer on them are not a
        // fault.
        .max_concurrent_reset_streams(GIVEN_UP_STREAMS_MAX)
        .max_local_error_reset_streams(None)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| unreachable(&error))?;
    let address = address.to_owned();
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%address, %error, "the connection to a replica ended");
        }
    });
    Ok(sender)
}

fn at_peer(uri: &Uri) -> Result<Uri, SendError> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let uri = Uri::builder().scheme("https").authority(PEER_NAME).path_and_query(path).build();
    uri.map_err(|error| SendError::Connect { reason: error.to_string() })
}

/// Returns true if the peer cannot have acted on the request. Either the request never left this
/// process, or the peer reported that it did not process it (RFC 9113, 6.8 and 8.7).
fn was_not_processed(error: &TrySendError<Request<PeerBody>>) -> bool {
    if error.message().is_some() {
        return true;
    }
    let Some(cause) = error.error().source().and_then(|cause| cause.downcast_ref::<h2::Error>())
    else {
        return false;
    };
    let (no_error, refused) = (h2::Reason::NO_ERROR, h2::Reason::REFUSED_STREAM);
    cause.is_remote()
        && (cause.is_go_away() && cause.reason() == Some(no_error)
            || cause.is_reset() && cause.reason() == Some(refused))
}
