//! A WebSocket whose session is on another replica: its bytes are the body of one request to that replica, and of the answer.
//!
//! The replica that the client reached has checked the handshake and who the client is. From then on it passes on bytes, which
//! the session's owner reads and writes as a WebSocket of its own. Invariants: nothing is kept here but [`TUNNEL_BYTES`] each
//! way; when either side ends, or either replica, so does the other side, and the session waits for its client as ever.

use std::io;

use bytes::Bytes;
use futures_util::TryStreamExt;
use http::{HeaderMap, Method as HttpMethod, Request, Response, Uri};
use http_body_util::{BodyExt, Either, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::{
    io::{AsyncRead, AsyncWriteExt, DuplexStream, copy},
    time::timeout,
};
use tokio_util::{
    io::{ReaderStream, StreamReader},
    sync::CancellationToken,
};
use transport::{StallGuard, frame::CLOSE_TIMEOUT, tcp::Stream};

use super::replica_headers;
use crate::{
    broker::Broker,
    limits::{CLIENT_WRITE_STALL_MAX, TUNNEL_BYTES},
    listeners::http::response::Body,
    metrics::ForwardOutcome,
    session_location::{ForwardFailure, SessionOwner},
};

/// The way to a session's owner, open.
#[derive(Debug)]
pub(in crate::listeners) struct Tunnel {
    /// What is written here goes there.
    here: DuplexStream,
    there: Incoming,
}

/// What came of asking a session's owner for it.
pub(in crate::listeners) enum TunnelResult {
    Open(Tunnel),
    /// It has the session, and the client cannot go on with it like this.
    Refused(Response<Body>),
    SessionMissing(ForwardFailure),
}

/// Asks `owner` to resume a session of its own, with the headers of the client's request.
pub(in crate::listeners) async fn open(
    broker: &Broker,
    owner: &SessionOwner,
    uri: &Uri,
    headers: HeaderMap,
) -> TunnelResult {
    let (here, far) = tokio::io::duplex(TUNNEL_BYTES);
    let mut request = Request::new(StreamBody::new(ReaderStream::new(far).map_ok(Frame::data)));
    *request.method_mut() = HttpMethod::POST;
    *request.uri_mut() = uri.clone();
    *request.headers_mut() = headers;
    let (dug, outcome) = match broker.placement.peers.open(&owner.address, request).await {
        Ok(response) => match replica_headers::read_miss(&response) {
            Some(miss) => (TunnelResult::SessionMissing(miss), ForwardOutcome::NotThere),
            None if response.status().is_success() => (
                TunnelResult::Open(Tunnel { here, there: response.into_body() }),
                ForwardOutcome::Answered,
            ),
            None => (refused(response).await, ForwardOutcome::Answered),
        },
        Err(error) => {
            tracing::debug!(address = owner.address, %error, "a WebSocket could not be passed on");
            (TunnelResult::SessionMissing(ForwardFailure::Unreachable), ForwardOutcome::Unreachable)
        }
    };
    broker.shared.metrics.forwarded(outcome);
    dug
}

async fn refused(response: Response<Incoming>) -> TunnelResult {
    let (mut head, body) = response.into_parts();
    replica_headers::strip_response_headers(&mut head.headers);
    match body.collect().await {
        Ok(body) => {
            TunnelResult::Refused(Response::from_parts(head, Either::Left(body.to_bytes().into())))
        }
        Err(_) => TunnelResult::SessionMissing(ForwardFailure::Unreachable),
    }
}

impl Tunnel {
    /// Passes on what the client and the owner send each other, until one of them has ended. `started_at` is what the client has
    /// sent already.
    pub(in crate::listeners) async fn serve(
        self,
        client: Stream,
        begun: Bytes,
        stop: &CancellationToken,
    ) {
        let Self { mut here, there } = self;
        let (mut from_client, to_client) = client.split();
        let (mut to_client, mut from_owner) =
            (StallGuard::new(to_client, CLIENT_WRITE_STALL_MAX), reader(there));
        // Whose end, good or bad, is the owner's to see.
        let up = async move {
            here.write_all(&begun).await?;
            copy(&mut from_client, &mut here).await?;
            here.shutdown().await
        };
        let down = async {
            copy(&mut from_owner, &mut to_client).await?;
            to_client.shutdown().await
        };
        tokio::pin!(up, down);
        let ended = tokio::select! {
            // Its client finds the session through another replica.
            () = stop.cancelled() => return,
            // The owner has said its goodbye: the client has a moment to answer it.
            ended = &mut down => match timeout(CLOSE_TIMEOUT, up).await {
                Ok(also) => ended.and(also),
                Err(_) => ended,
            },
            Ok(()) = &mut up => down.await,
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a WebSocket that is passed on broke off");
        }
    }
}

pub(super) fn reader(body: Incoming) -> impl AsyncRead + Unpin + Send {
    StreamReader::new(body.into_data_stream().map_err(io::Error::other))
}
