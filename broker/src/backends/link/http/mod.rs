//! A link over Streamable HTTP, in the client's role (MCP 2025-11-25, Transports).
//!
//! Each message is a POST over pooled connections. An answer is JSON or an event stream
//! ([`event_stream`]). One GET stream ([`get_stream`]) carries messages outside calls.
//! Notifications and answers are sent one after the other. A backend of 2024-11-05 uses [`http_sse`]
//! instead.

mod authorization;
mod content_kind;
mod error_status;
mod event_stream;
mod get_outcome;
mod get_stream;
pub(super) mod http_sse;
pub(super) mod http_wire;
mod post;
pub(super) mod post_outcome;
mod resumption;
mod setup;
mod sse_post;

use std::{sync::Arc, time::Duration};

use tokio::sync::{mpsc, oneshot};

use self::{http_wire::HttpWire, setup::send_one_way};
use super::{
    Link, connection::Connection, connection_guard::ConnectionGuard, failure::Failure,
    queue::QueuedFrame, stateless, wire::WireSender,
};

/// Longest time that the head of the GET stream may delay the opening of a link.
const STREAM_HEAD_WAIT: Duration = Duration::from_secs(1);

/// Connects by Streamable HTTP, or by HTTP+SSE if the URL turns out to be one of that.
pub(super) async fn open(link: &Arc<Link>, url: &str) -> Result<Arc<Connection>, Failure> {
    if link.backend.era.uses_http_sse()
        && let Some(opened) = http_sse::open_again(link, url).await
    {
        return opened;
    }
    let wire = HttpWire::to(&link.backend, link.principal.clone(), url).await?;
    let (wire, frames) = (Arc::new(wire.0), wire.1);
    match open_streamable(link, url, &wire, frames).await {
        Err(failure) if wire.may_be_http_sse(link) => {
            http_sse::open_instead(link, url).await.ok_or(failure)
        }
        opened => opened,
    }
}

/// Connects: the handshake, unless there is a session to resume, then the GET stream.
async fn open_streamable(
    link: &Arc<Link>,
    url: &str,
    wire: &Arc<HttpWire>,
    frames: mpsc::Receiver<QueuedFrame>,
) -> Result<Arc<Connection>, Failure> {
    let context = &link.backend.context;
    let connection = Connection::new(WireSender::Http(wire.clone()), context.metrics.clone());
    let mut guard = ConnectionGuard::new(&connection, &context.running);
    context.running.spawn(send_one_way(wire.clone(), link.clone(), connection.clone(), frames));
    if resumption::resume(link, url, wire, &connection).await? {
        guard.keep_session();
    } else {
        stateless::handshake::agree(&connection, link).await?;
    }
    if connection.stateless().is_some() {
        context.running.spawn(watch(link.clone(), connection.clone()));
        guard.disarm();
        return Ok(connection);
    }
    let (opened, head) = oneshot::channel();
    context.running.spawn(get_stream::listen(
        wire.clone(),
        link.clone(),
        connection.clone(),
        opened,
    ));
    // Before the first call, because some servers lose messages that they cannot deliver at once.
    let _late_is_fine = tokio::time::timeout(STREAM_HEAD_WAIT, head).await;
    link.take_resumption(); // the connection has the session now
    guard.disarm();
    Ok(connection)
}

/// Reports the end of a connection that has no GET stream.
async fn watch(link: Arc<Link>, connection: Arc<Connection>) {
    connection.closed().await;
    link.backend.connection_ended(&link, &connection);
}
