//! Fast path for plain POSTs and plain GETs of event streams over HTTP/1.1.
//! `transport::http1_server` serves them. At the first request of another kind, the connection goes
//! to hyper.

use std::{future::poll_fn, io, pin::pin, sync::Arc};

use bytes::Bytes;
use rules::limits::{CLIENT_WRITE_STALL_MAX, REQUEST_HEAD_BYTES_MAX};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use transport::http1_server::{AfterAnswer, NextRequest, PlainRequest, ServerConnection};

use super::{
    connection::{BoxError, ConnectionContext},
    connection_cache::ConnectionCache,
    request,
    request_guard::RequestGuard,
    response::{ServerResponse, document_head},
};
use crate::{broker::Broker, sessions::unread_answer::UnreadAnswer};

/// A connection with another kind of request.
pub(super) struct FallbackConnection {
    pub(super) socket: TcpStream,
    /// Bytes that were read but not served.
    pub(super) first: Bytes,
    /// Deadline for the head of the current request.
    pub(super) deadline: Instant,
}

/// Serves a new connection until its end (`None`), or until a request of another kind. The first
/// request must arrive by `deadline`.
pub(super) async fn serve(
    broker: &Arc<Broker>,
    guard: &RequestGuard,
    context: &ConnectionContext,
    socket: TcpStream,
    mut deadline: Instant,
) -> Result<Option<FallbackConnection>, BoxError> {
    let mut connection =
        ServerConnection::new(socket, REQUEST_HEAD_BYTES_MAX, CLIENT_WRITE_STALL_MAX);
    // Created once and not for each request.
    let mut stopped = pin!(context.stop.cancelled());
    let mut cache = ConnectionCache::default();
    let timeouts = &broker.shared.config.timeouts;
    // End of the time without a request. `None`: the next request must come by `deadline`.
    let mut idle_until = None;
    loop {
        let next = tokio::select! {
            biased;
            next = connection.next() => next?,
            // An idle connection may close, and so may an incomplete request, because its service
            // has not begun.
            () = &mut stopped => return Ok(None),
            () = poll_fn(|context| cache.poll_deadline(context, deadline)) => {
                let Some(until) = idle_until.take() else {
                    return Err("the client sent no request in time".into());
                };
                // A request that has begun by now has its whole time from now on.
                // Boxed, because it is rare and would enlarge the future of every connection.
                if !Box::pin(request_begins(&mut connection, &context.stop, until)).await? {
                    return Ok(None);
                }
                deadline = Instant::now() + timeouts.request_read;
                continue;
            }
        };
        match next {
            NextRequest::Post if request::is_mcp_path(connection.path()) => {}
            NextRequest::EventStream if request::is_endpoint(connection.path()) => {}
            NextRequest::Post | NextRequest::EventStream | NextRequest::Other => {
                let (socket, first) = connection.into_parts();
                return Ok(Some(FallbackConnection { socket, first, deadline }));
            }
            NextRequest::Closed => return Ok(None),
        }
        let Some(PlainRequest { head, is_repeated, body, client }) = connection.take_request()
        else {
            return Ok(None);
        };
        if !is_repeated {
            cache.reset_head();
        }
        let from = context.request_remote(&head.headers);
        let answer = tokio::select! {
            biased;
            answer = request::handle(broker, guard, from, (head, &cache), body) => answer,
            () = client.disconnected() => return Ok(None),
        };
        // The close header of HTTP/1 during a drain: the client opens its next connection to
        // another process.
        let after = match broker.draining() {
            true => AfterAnswer::Close,
            false => AfterAnswer::KeepAlive,
        };
        let unread =
            UnreadAnswer::count(&broker.shared.unread_budget, answer.whole_bytes(), || {
                cache.validated_head.unread_owner()
            });
        let sending = async {
            match answer {
                ServerResponse::Json { version, text } => {
                    connection.respond_full(document_head(version), text, after).await
                }
                ServerResponse::Other(response) => connection.respond(*response, after).await,
            }
        };
        let stays_open = match unread {
            None => sending.await?,
            // Boxed, because it is rare and would enlarge the future of every connection.
            Some(unread) => Box::pin(send_unless_cut(sending, &unread)).await?,
        };
        if !stays_open {
            return Ok(None);
        }
        let now = Instant::now();
        deadline = now + timeouts.request_read.min(timeouts.http_idle);
        idle_until = Some(now + timeouts.http_idle);
    }
}

/// Waits until the next request of a client has begun. Returns false if the broker stops.
async fn request_begins(
    connection: &mut ServerConnection,
    stop: &CancellationToken,
    until: Instant,
) -> Result<bool, BoxError> {
    tokio::select! {
        biased;
        begun = connection.begun() => {
            begun?;
            Ok(true)
        }
        () = stop.cancelled() => Ok(false),
        () = sleep_until(until) => Err("the client sent no request in time".into()),
    }
}

/// Sends a large answer, unless too many bytes wait for clients that do not read.
async fn send_unless_cut(
    sending: impl Future<Output = io::Result<bool>>,
    unread: &UnreadAnswer,
) -> io::Result<bool> {
    tokio::select! {
        biased;
        sent = sending => sent,
        () = unread.was_cut() => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the client does not read its answer")),
    }
}
