//! Plain POSTs over HTTP/1.1, which is what calls are: served by `transport::fast_path`, until something else comes.

use std::{future::poll_fn, pin::pin, sync::Arc};

use bytes::Bytes;
use tokio::{net::TcpStream, time::Instant};
use transport::http1_server::{NextRequest, PostRequest, ServerConnection};

use super::{
    BoxError, ConnectionContext,
    connection_cache::ConnectionCache,
    exchange, http_sse,
    request_guard::RequestGuard,
    response::{ServerResponse, document_head},
    websocket,
};
use crate::{
    broker::Broker,
    limits::{CLIENT_WRITE_STALL_MAX, REQUEST_HEAD_BYTES_MAX},
};

/// A connection on which something else comes.
pub(super) struct FallbackConnection {
    pub(super) socket: TcpStream,
    /// What was read of it and not served.
    pub(super) first: Bytes,
    /// By when the head of the request is there that has begun.
    pub(super) deadline: Instant,
}

/// Serves a connection of which nothing was read, until its end (`None`) or until what comes is nothing for us. By `deadline` the
/// first request is there.
pub(super) async fn serve(
    broker: &Arc<Broker>,
    gate: &RequestGuard,
    floor: &ConnectionContext,
    socket: TcpStream,
    mut deadline: Instant,
) -> Result<Option<FallbackConnection>, BoxError> {
    let mut posts = ServerConnection::new(socket, REQUEST_HEAD_BYTES_MAX, CLIENT_WRITE_STALL_MAX);
    // Made once, and not for each request.
    let mut stopped = pin!(floor.stop.cancelled());
    let mut kept = ConnectionCache::default();
    loop {
        let next = tokio::select! {
            biased;
            next = posts.next() => next?,
            // What waits for its next request is not missed; nor is half a request, which nobody has begun to serve.
            () = &mut stopped => return Ok(None),
            () = poll_fn(|context| kept.poll_until(context, deadline)) => return Err("no request came in time".into()),
        };
        match next {
            NextRequest::Post
                if !http_sse::is_meant(posts.path()) && !websocket::is_meant(posts.path()) => {}
            NextRequest::Post | NextRequest::Other => {
                let (socket, first) = posts.into_unread();
                return Ok(Some(FallbackConnection { socket, first, deadline }));
            }
            NextRequest::Closed => return Ok(None),
        }
        let Some(PostRequest { head, is_repeated, body, client }) = posts.take() else {
            return Ok(None);
        };
        if !is_repeated {
            kept.begin();
        }
        let from = floor.remote_of(&head.headers);
        let answer = tokio::select! {
            biased;
            answer = exchange::handle(broker, (gate, from), (head, &kept), body) => answer,
            () = client.hung_up() => return Ok(None),
        };
        // The goodbye of HTTP/1: its client opens its next connection where somebody stays.
        let keeps = !broker.draining();
        let goes_on = match answer {
            ServerResponse::Json { version, text } => {
                posts.answer_whole(document_head(version), text, keeps).await?
            }
            ServerResponse::Other(response) => posts.answer(response, keeps).await?,
        };
        if !goes_on {
            return Ok(None);
        }
        deadline = Instant::now() + broker.shared.config.timeouts.request_read;
    }
}
