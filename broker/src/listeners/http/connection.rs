//! What every request of a connection shares, and the stream types of HTTP connections.

use std::sync::Arc;

use http::HeaderMap;
use hyper_util::rt::TokioIo;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use transport::{StallGuard, WriteBatching, framing::FramingGuard, tcp::Stream};

use super::sse_streams::SseStreams;
use crate::{
    auth::RemotePeer,
    limits::CLIENT_WRITE_STALL_MAX,
    listeners::{
        connection_limits::ListenerPermit, tls_acceptor::CertificateCaller,
        trusted_proxies::ClientAddress,
    },
};

/// What a connection that becomes a session takes with it.
#[derive(Debug, Clone)]
pub(super) struct ConnectionContext {
    pub(super) sessions: TaskTracker,
    pub(super) stop: CancellationToken,
    /// The connection's place is taken for as long as anything of it lives.
    pub(super) admitted: Arc<ListenerPermit>,
    pub(super) streams: Arc<SseStreams>,
    pub(super) client: ClientAddress,
    /// Who the connection's certificate speaks for; among a request's extensions too.
    pub(super) certified: Option<CertificateCaller>,
    pub(super) remote: RemotePeer,
}

impl ConnectionContext {
    /// The other end of a request: a trusted proxy may name its client's address in the headers.
    pub(super) fn request_remote(&self, headers: &HeaderMap) -> RemotePeer {
        RemotePeer { address: Some(self.client.of_request(headers)), ..self.remote }
    }
}

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What is read and written, as the HTTP library gets it.
pub(super) type GuardedIo<S> = TokioIo<WriteBatching<StallGuard<S>>>;

/// A connection of HTTP/1.1, which passes whole requests of one reading only.
pub(super) type Http1Stream = GuardedIo<FramingGuard<Stream>>;

pub(super) fn guard_io<S>(stream: S) -> GuardedIo<S> {
    TokioIo::new(WriteBatching::new(StallGuard::new(stream, CLIENT_WRITE_STALL_MAX)))
}
