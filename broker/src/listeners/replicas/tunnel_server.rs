//! Owner's side of a [`super::tunnel`]: serves the WebSocket of a client that is connected to
//! another replica.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt;
use http::{Request, Response, request};
use http_body_util::{BodyExt, Either, StreamBody};
use hyper::body::Frame;
use protocol::error::{ErrorKind, Refusal};
use rules::{
    client_transport::Transport,
    limits::{CLIENT_WRITE_STALL_MAX, TUNNEL_BYTES},
    sign_in_failures::Plane,
};
use tokio_util::io::ReaderStream;
use transport::{PeerBody, StallGuard, websocket};

use super::{
    relayed_source::TunnelBytes,
    replica_headers,
    session_lookup::{SessionLocation, locate_for_peer},
    tunnel::reader,
};
use crate::{
    auth::{Caller, RemotePeer},
    broker::{Broker, check_transport},
    listeners::{
        duplex,
        http::{
            headers::session_id,
            response::{self, Body, BodyAborted},
            websocket::{endpoint, limits, resume},
        },
    },
    sessions::{session::Session, stream::StreamCursor, tenant::SharedPermit},
};

/// A resumed session, its messages that the client has not received, the caller, and a permit for
/// the connection.
type ResumedWebSocket = (Arc<Session>, StreamCursor, Caller, Arc<SharedPermit>);

/// Serves the WebSocket of a client that is connected to another replica.
pub(super) async fn handle(broker: &Arc<Broker>, request: Request<PeerBody>) -> Response<Body> {
    let (head, body) = request.into_parts();
    match find_session(broker, &head).await {
        Ok(Ok((session, outbox, caller, permit))) => {
            let (near, far) = tokio::io::duplex(TUNNEL_BYTES);
            let writer = StallGuard::new(near, CLIENT_WRITE_STALL_MAX);
            let from_client = TunnelBytes::new(&broker.shared, (&caller).into(), body);
            let (mut source, mut sink) =
                websocket::server_over(reader(from_client), writer, Bytes::new(), &limits(broker));
            // The other replica ends it when the credential expires.
            let resumed = (session, &outbox);
            let session_connection =
                duplex::SessionConnection::again(broker.clone(), resumed, &caller, permit, None);
            broker.shared.running.spawn(async move {
                duplex::run_session(session_connection, outbox, &mut source, &mut sink, None).await;
            });
            let bytes = ReaderStream::new(far).map_ok(Frame::data).map_err(|_| BodyAborted);
            Response::new(Either::Right(StreamBody::new(bytes).boxed_unsync()))
        }
        Ok(Err(elsewhere)) => elsewhere,
        Err(refusal) => response::refusal_response(&broker.shared, &refusal, None),
    }
}

/// Finds the session and its unreceived messages, or returns the response that it is elsewhere.
async fn find_session(
    broker: &Arc<Broker>,
    head: &request::Parts,
) -> Result<Result<ResumedWebSocket, Response<Body>>, Refusal> {
    let endpoint = endpoint(head.uri.path())?;
    let vouched = replica_headers::forwarded_caller(broker, &head.headers);
    let caller =
        vouched.map_err(|denied| broker.refuse(denied, Plane::Internal, RemotePeer::default()))?;
    broker.check_endpoint(&caller, &endpoint)?;
    let id = session_id(&head.headers)?.ok_or_else(|| {
        Refusal::new(
            ErrorKind::SessionRequired,
            "the forwarded WebSocket request has no Mcp-Session-Id",
        )
    })?;
    match locate_for_peer(broker, &head.headers, id, &caller, &endpoint).await? {
        SessionLocation::Local(session) => {
            check_transport(&session, Transport::WebSocket)?;
            broker.wait_until_adopted(&session).await;
            let permit = duplex::acquire_connection(broker, &caller).await?;
            let outbox = resume(&session, &head.headers)?;
            Ok(Ok((session, outbox, caller, permit)))
        }
        SessionLocation::Answered(elsewhere) => Ok(Err(elsewhere)),
    }
}
