//! State that all requests of a connection share, and the stream types of HTTP connections.

use std::sync::Arc;

use http::HeaderMap;
use hyper_util::rt::TokioIo;
use rules::limits::CLIENT_WRITE_STALL_MAX;
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use transport::{StallGuard, WriteBatching, framing::FramingGuard, tcp::Stream};

use super::sse_streams::SseStreams;
use crate::{
    auth::RemotePeer,
    listeners::{
        connection_limits::ListenerPermit, tls_acceptor::CertificateCaller,
        trusted_proxies::ClientAddress,
    },
};

/// State of a connection. A connection that becomes a session takes it along.
#[derive(Debug, Clone)]
pub(super) struct ConnectionContext {
    pub(super) sessions: TaskTracker,
    pub(super) stop: CancellationToken,
    /// Permit of the connection, held while any part of it exists.
    pub(super) admitted: Arc<ListenerPermit>,
    pub(super) streams: Arc<SseStreams>,
    pub(super) client: ClientAddress,
    /// Caller that the connection's certificate names. It is also in the extensions of each
    /// request, and so is the thumbprint of `remote`.
    pub(super) certified: Option<CertificateCaller>,
    pub(super) remote: RemotePeer,
    /// Permits for bodies that wait for memory or for capacity, over HTTP/2. A body that waits
    /// holds unread bytes there, and another request of the connection can follow it.
    pub(super) waiting_bodies: Option<Arc<Semaphore>>,
}

impl ConnectionContext {
    /// Returns the remote peer of a request. A trusted proxy may send the client's address in the
    /// headers.
    pub(super) fn request_remote(&self, headers: &HeaderMap) -> RemotePeer {
        RemotePeer { address: Some(self.client.request_address(headers)), ..self.remote }
    }
}

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Stream with batched writes and a stall limit, for the HTTP library.
pub(super) type GuardedIo<S> = TokioIo<WriteBatching<StallGuard<S>>>;

/// Stream of an HTTP/1.1 connection that passes only unambiguous request framing.
pub(super) type Http1Stream = GuardedIo<FramingGuard<Stream>>;

pub(super) fn guard_io<S>(stream: S) -> GuardedIo<S> {
    TokioIo::new(WriteBatching::new(StallGuard::new(stream, CLIENT_WRITE_STALL_MAX)))
}
