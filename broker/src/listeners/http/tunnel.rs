//! A WebSocket whose session is on another replica: its bytes are the body of one request to that replica, and of the answer.
//!
//! The replica that the client reached has checked the handshake and who the client is. From then on it passes on bytes, which
//! the session's owner reads and writes as a WebSocket of its own. Invariants: nothing is kept here but [`TUNNEL_BYTES`] each
//! way; when either side ends, or either replica, so does the other side, and the session waits for its client as ever.

use std::{io, sync::Arc};

use bytes::Bytes;
use futures_util::TryStreamExt;
use http::{HeaderMap, Method as HttpMethod, Request, Response, Uri, request};
use http_body_util::{BodyExt, Either, StreamBody};
use hyper::body::{Frame, Incoming};
use protocol::error::{ErrorKind, Refusal};
use tokio::{
    io::{AsyncRead, AsyncWriteExt, DuplexStream, copy},
    time::timeout,
};
use tokio_util::{
    io::{ReaderStream, StreamReader},
    sync::CancellationToken,
};
use transport::{StallGuard, frame::CLOSE_TIMEOUT, tcp::Stream, websocket};

use super::{
    exchange::{self, session_id},
    forward::{self, SessionLocation},
    replica_headers,
    response::{self, Body, BodyAborted},
    websocket::{begun_here, endpoint, limits, resumed},
};
use crate::{
    actors::{session::Session, stream::StreamCursor, tenant::ConnectionPermit},
    auth::RemotePeer,
    broker::Broker,
    limits::{CLIENT_WRITE_STALL_MAX, TUNNEL_BYTES},
    listeners::duplex,
    metrics::ForwardOutcome,
    rules::sign_in_failures::Plane,
    session_location::{ForwardFailure, SessionOwner},
};

/// The way to a session's owner, open.
#[derive(Debug)]
pub(super) struct Tunnel {
    /// What is written here goes there.
    here: DuplexStream,
    there: Incoming,
}

/// A session that its client goes on with, what that has not received, and a place for the connection.
type ResumedWebSocket = (Arc<Session>, StreamCursor, Arc<ConnectionPermit>);

/// What came of asking a session's owner for it.
pub(super) enum TunnelResult {
    Open(Tunnel),
    /// It has the session, and the client can not go on with it like this.
    Refused(Response<Body>),
    SessionMissing(ForwardFailure),
}

/// Asks `owner` to go on with a session of its own, in the words of the client's request.
pub(super) async fn dig(
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
        Ok(response) => match replica_headers::miss(&response) {
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
    replica_headers::incoming(&mut head.headers);
    match body.collect().await {
        Ok(body) => {
            TunnelResult::Refused(Response::from_parts(head, Either::Left(body.to_bytes().into())))
        }
        Err(_) => TunnelResult::SessionMissing(ForwardFailure::Unreachable),
    }
}

impl Tunnel {
    /// Passes on what the client and the owner send each other, until one of them has ended. `begun` is what the client has
    /// sent already.
    pub(super) async fn serve(self, client: Stream, begun: Bytes, stop: &CancellationToken) {
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

/// Serves a WebSocket that a client has at the replica that asks.
pub(super) async fn handle_replica(
    broker: &Arc<Broker>,
    request: Request<Incoming>,
) -> Response<Body> {
    let (head, body) = request.into_parts();
    match asked(broker, &head).await {
        Ok(Ok((session, outbox, place))) => {
            let (near, far) = tokio::io::duplex(TUNNEL_BYTES);
            let writer = StallGuard::new(near, CLIENT_WRITE_STALL_MAX);
            let (source, sink) =
                websocket::server_over(reader(body), writer, Bytes::new(), &limits(broker));
            // Until when that is, the other replica sees to.
            let seat = duplex::SessionConnection::again(broker.clone(), session, place, None);
            broker.shared.running.spawn(duplex::converse(seat, outbox, source, sink, None));
            let bytes = ReaderStream::new(far).map_ok(Frame::data).map_err(|_| BodyAborted);
            Response::new(Either::Right(StreamBody::new(bytes).boxed_unsync()))
        }
        Ok(Err(elsewhere)) => elsewhere,
        Err(refusal) => response::refusal(&broker.shared, &refusal, None),
    }
}

/// The session and what its client has not received of it yet, or where it is.
async fn asked(
    broker: &Arc<Broker>,
    head: &request::Parts,
) -> Result<Result<ResumedWebSocket, Response<Body>>, Refusal> {
    let endpoint = endpoint(head.uri.path())?;
    let vouched = exchange::vouched_client(broker, head);
    let caller =
        vouched.map_err(|denied| broker.refuse(denied, Plane::Internal, RemotePeer::default()))?;
    exchange::known_to(broker, &caller, &endpoint)?;
    let id = session_id(&head.headers)?.ok_or_else(|| {
        Refusal::new(ErrorKind::SessionRequired, "which session it is for is not said")
    })?;
    match forward::inside(broker, &head.headers, id, &caller, &endpoint).await? {
        SessionLocation::Local(session) => {
            begun_here(&session)?;
            broker.taken_up(&session).await;
            let place = duplex::place(broker, &caller)?;
            let outbox = resumed(&session, &head.headers)?;
            Ok(Ok((session, outbox, place)))
        }
        SessionLocation::Answered(elsewhere) => Ok(Err(elsewhere)),
    }
}

fn reader(body: Incoming) -> impl AsyncRead + Unpin + Send {
    StreamReader::new(body.into_data_stream().map_err(io::Error::other))
}
