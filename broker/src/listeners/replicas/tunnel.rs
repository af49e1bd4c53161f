//! Tunnel of a WebSocket whose session is on another replica. Its bytes are the bodies of one
//! request to that replica and of the response.
//!
//! The first replica has checked the handshake and the client. It then relays bytes, which the
//! session's owner handles as a WebSocket of its own. Invariants:
//! - The first replica buffers at most [`TUNNEL_BYTES`] in each direction.
//! - The end of either side or of either replica ends the other side too. The session then waits
//!   for its client as usual.

use std::{error::Error, io};

use bytes::Bytes;
use futures_util::TryStreamExt;
use http::{HeaderMap, Method as HttpMethod, Request, Response, Uri};
use http_body_util::{BodyExt, Either, StreamBody};
use hyper::body::Frame;
use rules::limits::{CLIENT_WRITE_STALL_MAX, TUNNEL_BYTES};
use tokio::{
    io::{AsyncRead, AsyncWriteExt, DuplexStream, copy},
    time::timeout,
};
use tokio_util::{
    io::{ReaderStream, StreamReader},
    sync::CancellationToken,
};
use transport::{PeerBody, SendError, StallGuard, frame::CLOSE_TIMEOUT, tcp::Stream};

use super::{forward::no_stream_left, relayed_source::TunnelBytes, replica_headers};
use crate::{
    auth::Caller,
    broker::Broker,
    listeners::http::response::{self, Body},
    metrics::ForwardOutcome,
    session_location::{ForwardFailure, PeerReplica},
};

/// An open connection to a session's owner.
#[derive(Debug)]
pub(in crate::listeners) struct Tunnel {
    /// Bytes that are written here go to the owner.
    here: DuplexStream,
    there: TunnelBytes,
}

/// Result of a request for a session to its owner.
pub(in crate::listeners) enum TunnelResult {
    Open(Tunnel),
    /// The owner has the session, but refuses to resume it with these headers.
    Refused(Response<Body>),
    SessionMissing(ForwardFailure),
}

/// Requests that `owner` resumes a session of its own, with the headers of the caller's request.
pub(in crate::listeners) async fn open(
    broker: &Broker,
    owner: &PeerReplica,
    uri: &Uri,
    headers: HeaderMap,
    caller: &Caller,
) -> TunnelResult {
    let (here, far) = tokio::io::duplex(TUNNEL_BYTES);
    let mut request = Request::new(StreamBody::new(ReaderStream::new(far).map_ok(Frame::data)));
    *request.method_mut() = HttpMethod::POST;
    *request.uri_mut() = uri.clone();
    *request.headers_mut() = headers;
    let (dug, outcome) = match broker
        .session_locator
        .peers
        .send_streaming(&owner.address, request)
        .await
    {
        Ok(response) => match replica_headers::read_miss(&response) {
            Some(miss) => (TunnelResult::SessionMissing(miss), ForwardOutcome::NotThere),
            None if response.status().is_success() => {
                let there = TunnelBytes::new(&broker.shared, caller.into(), response.into_body());
                (TunnelResult::Open(Tunnel { here, there }), ForwardOutcome::Answered)
            }
            None => (refused(response).await, ForwardOutcome::Answered),
        },
        Err(error @ SendError::NoStreamLeft { .. }) => {
            let refusal = no_stream_left(&error);
            let refused = response::refusal_response(&broker.shared, &refusal, None);
            (TunnelResult::Refused(refused), ForwardOutcome::Unreachable)
        }
        Err(error) => {
            tracing::debug!(address = owner.address, %error, "the broker could not forward a WebSocket to another replica");
            (TunnelResult::SessionMissing(ForwardFailure::Unreachable), ForwardOutcome::Unreachable)
        }
    };
    broker.shared.metrics.forwarded(outcome);
    dug
}

async fn refused(response: Response<PeerBody>) -> TunnelResult {
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
    /// Relays bytes between the client and the owner until one of them ends. `prefix` contains the
    /// bytes that the client has already sent.
    pub(in crate::listeners) async fn serve(
        self,
        client: Stream,
        prefix: Bytes,
        stop: &CancellationToken,
    ) {
        let Self { mut here, there } = self;
        let (mut from_client, to_client) = client.split();
        let (mut to_client, mut from_owner) =
            (StallGuard::new(to_client, CLIENT_WRITE_STALL_MAX), reader(there));
        // The owner evaluates the end of these bytes, clean or not.
        let up = async move {
            here.write_all(&prefix).await?;
            copy(&mut from_client, &mut here).await?;
            here.shutdown().await
        };
        let down = async {
            copy(&mut from_owner, &mut to_client).await?;
            to_client.shutdown().await
        };
        tokio::pin!(up, down);
        let ended = tokio::select! {
            // The client finds the session through another replica.
            () = stop.cancelled() => return,
            // The owner has sent its close frame: the client has a moment to answer it.
            ended = &mut down => match timeout(CLOSE_TIMEOUT, up).await {
                Ok(also) => ended.and(also),
                Err(_) => ended,
            },
            Ok(()) = &mut up => down.await,
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a forwarded WebSocket ended with an error");
        }
    }
}

pub(super) fn reader<B>(body: B) -> impl AsyncRead + Unpin + Send
where
    B: hyper::body::Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin,
{
    StreamReader::new(body.into_data_stream().map_err(io::Error::other))
}
