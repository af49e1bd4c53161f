//! WebSockets on the HTTP listener: `/ws` and `/ws/{backend}` (MCP custom transport; RFC 6455).
//!
//! The checks are those of every client request, then those of the handshake. After the 101 the
//! connection is a duplex connection that outlives the request. `Mcp-Session-Id` resumes a session
//! whose connection was lost. A session on another replica is resumed through a [`tunnel`].

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method as HttpMethod, Request, Response, request};
use http_body_util::Full;
use hyper::{
    body::Incoming,
    upgrade::{OnUpgrade, Upgraded},
};
use protocol::error::{ErrorKind, Refusal};
use rules::{client_transport::Transport, endpoint::Endpoint, limits::CLIENT_WRITE_STALL_MAX};
use transport::websocket;

use super::{
    authenticate::authenticate,
    challenge,
    connection::{ConnectionContext, Http1Stream},
    headers::{SESSION_ID, session_id},
    request_guard::RequestGuard,
    response::{self, Body},
};
use crate::{
    auth::{self, AuthenticatedCaller, CredentialExpiry, RemotePeer},
    broker::{Broker, check_transport, session_lookup::ReplicaLookup},
    listeners::{
        duplex::{self, ConnectionParams, IncomingConnection, SessionConnection},
        replicas::{
            replica_headers,
            tunnel::{self, Tunnel, TunnelResult},
        },
        tls_acceptor::certificate_expired,
    },
    session_location::LookupOutcome,
    sessions::{
        session::{Session, outbox},
        stream::StreamCursor,
        tenant::SharedPermit,
    },
};

/// Number of messages that a resuming client has received since the answer to `initialize`.
const RECEIVED: HeaderName = HeaderName::from_static("mcp-broker-received");

/// Returns whether a path belongs to WebSockets.
pub(in crate::listeners) fn matches_path(path: &str) -> bool {
    path == "/ws" || path.starts_with("/ws/")
}

/// Answers one request. After a 101, the connection continues in a task of its own.
pub(super) async fn handle(
    broker: &Arc<Broker>,
    guard: &RequestGuard,
    mut request: Request<Incoming>,
    mut context: ConnectionContext,
) -> Response<Body> {
    context.remote = context.request_remote(request.headers());
    let upgrade = hyper::upgrade::on(&mut request);
    let (shown, uri) = (challenge::has_credential(request.headers()), request.uri().clone());
    match prepare_upgrade(broker, guard, request, context.remote).await {
        Ok(UpgradeResponse { response, plan }) => {
            if let Some(plan) = plan {
                let (broker, sessions) = (broker.clone(), context.sessions.clone());
                sessions.spawn(serve(broker, plan, upgrade, context));
            }
            response
        }
        Err(refusal) => {
            let response = response::refusal_response(&broker.shared, &refusal, None);
            challenge::complete(&broker.auth(), &uri, "", shown, response)
        }
    }
}

/// Response to a request, and the action after it.
struct UpgradeResponse {
    response: Response<Body>,
    plan: Option<UpgradeAction>,
}

enum UpgradeAction {
    Open(ConnectionParams),
    /// Attached before the upgrade: if that fails, the session waits for its client again.
    Resume(SessionConnection, StreamCursor),
    Proxy(Tunnel, Arc<SharedPermit>, Option<CredentialExpiry>),
}

/// Location of a session that a client resumes.
enum UpgradeTarget {
    Local(Arc<Session>),
    Remote(Tunnel),
    /// Response of the session's owner instead.
    Answered(Response<Body>),
}

async fn prepare_upgrade(
    broker: &Arc<Broker>,
    guard: &RequestGuard,
    request: Request<Incoming>,
    remote: RemotePeer,
) -> Result<UpgradeResponse, Refusal> {
    let endpoint = endpoint(request.uri().path())?;
    guard.check_origin_and_host(request.headers(), request.uri())?;
    if request.method() != HttpMethod::GET {
        return Err(Refusal::new(
            ErrorKind::MethodNotAllowed,
            "a WebSocket must be opened with GET",
        ));
    }
    let accepted = websocket::accept(&request);
    let (head, _) = request.into_parts();
    let AuthenticatedCaller { caller, until, .. } = authenticate(broker, &head, remote).await?;
    broker.check_endpoint(&caller, &endpoint)?;
    let mut response = match accepted {
        Ok(response) => with_text(response, String::new()),
        // RFC 6455 defines the response to a failed handshake.
        Err(error) => {
            return Ok(UpgradeResponse {
                response: with_text(error.response(), error.to_string()),
                plan: None,
            });
        }
    };
    broker.shared.limiters.overload.admits()?;
    let permit = duplex::acquire_connection(broker, &caller).await?;
    let known = ConnectionParams { caller, until, endpoint, can_come_back: true, permit };
    let plan = match session_id(&head.headers)? {
        None if broker.draining() => {
            return Err(Refusal::new(
                ErrorKind::Draining,
                "the broker is shutting down and takes no new sessions",
            ));
        }
        None => UpgradeAction::Open(known),
        Some(id) => {
            let plan = match locate_session(broker, id, &known, &head).await? {
                UpgradeTarget::Local(session) => resume_here(broker, session, known, &head)?,
                UpgradeTarget::Remote(tunnel) => {
                    UpgradeAction::Proxy(tunnel, known.permit, known.until)
                }
                UpgradeTarget::Answered(response) => {
                    return Ok(UpgradeResponse { response, plan: None });
                }
            };
            if let Ok(value) = HeaderValue::from_str(id) {
                response.headers_mut().insert(SESSION_ID, value);
            }
            plan
        }
    };
    Ok(UpgradeResponse { response, plan: Some(plan) })
}

/// Attaches the connection to a session of this replica.
fn resume_here(
    broker: &Arc<Broker>,
    session: Arc<Session>,
    known: ConnectionParams,
    head: &request::Parts,
) -> Result<UpgradeAction, Refusal> {
    let outbox = resume(&session, &head.headers)?;
    let (broker, ConnectionParams { caller, permit, until, .. }) = (broker.clone(), known);
    let resumed = (session, &outbox);
    let attached = SessionConnection::again(broker, resumed, &caller, permit, until);
    Ok(UpgradeAction::Resume(attached, outbox))
}

/// Returns the endpoint of `/ws`, `/ws/{backend}` and `/ws/t/{toolset}`, nothing else.
pub(in crate::listeners) fn endpoint(path: &str) -> Result<Endpoint, Refusal> {
    let nowhere =
        "the path does not exist: WebSockets are at /ws, /ws/{backend} and /ws/t/{toolset}";
    Endpoint::at("/ws", path).ok_or_else(|| Refusal::new(ErrorKind::NotFound, nowhere))
}

/// Finds a session that began on a WebSocket.
async fn locate_session(
    broker: &Arc<Broker>,
    id: &str,
    known: &ConnectionParams,
    head: &request::Parts,
) -> Result<UpgradeTarget, Refusal> {
    let mut lookup = ReplicaLookup::new(broker, id, &known.caller, &known.endpoint);
    loop {
        let owner = match lookup.next().await? {
            LookupOutcome::Local(session) => {
                check_transport(&session, Transport::WebSocket)?;
                broker.wait_until_adopted(&session).await;
                return Ok(UpgradeTarget::Local(session));
            }
            LookupOutcome::Remote(owner) => owner,
        };
        let mut headers = replica_headers::request_headers(&head.headers, &known.caller);
        replica_headers::set_lease_header(&mut headers, lookup.asserts_lease());
        match tunnel::open(broker, &owner, &head.uri, headers, &known.caller).await {
            TunnelResult::Open(tunnel) => return Ok(UpgradeTarget::Remote(tunnel)),
            TunnelResult::Refused(response) => return Ok(UpgradeTarget::Answered(response)),
            TunnelResult::SessionMissing(miss) => lookup.record_failure(&owner, miss),
        }
    }
}

/// Resumes the session after the messages that the client has received.
pub(in crate::listeners) fn resume(
    session: &Session,
    headers: &HeaderMap,
) -> Result<StreamCursor, Refusal> {
    let outbox = outbox::resume(session, received(headers)?)?;
    session.touch();
    Ok(outbox)
}

fn received(headers: &HeaderMap) -> Result<Option<u64>, Refusal> {
    let Some(value) = headers.get(RECEIVED) else { return Ok(None) };
    let count = value.to_str().ok().and_then(|text| text.parse().ok());
    count.map(Some).ok_or_else(|| {
        Refusal::new(
            ErrorKind::InvalidRequest,
            "Mcp-Broker-Received must be the number of received messages",
        )
    })
}

/// Returns the limits of every WebSocket.
pub(in crate::listeners) fn limits(broker: &Broker) -> websocket::Limits {
    let timeouts = &broker.shared.config.timeouts;
    websocket::Limits {
        message_bytes_max: broker.shared.config.limits.message_bytes,
        ping_interval: timeouts.websocket_ping,
        idle_timeout: timeouts.websocket_idle,
        stall_max: CLIENT_WRITE_STALL_MAX,
    }
}

fn with_text(response: Response<()>, text: String) -> Response<Body> {
    response.map(|()| Body::Left(Full::new(text.into())))
}

async fn serve(
    broker: Arc<Broker>,
    plan: UpgradeAction,
    upgrade: OnUpgrade,
    context: ConnectionContext,
) {
    let upgraded = tokio::select! {
        upgraded = upgrade => upgraded,
        () = tokio::time::sleep(broker.shared.config.timeouts.handshake) => return,
    };
    let parts = match upgraded.map(Upgraded::downcast::<Http1Stream>) {
        Ok(Ok(parts)) => parts,
        Ok(Err(_)) => return tracing::error!("an upgraded connection has an unexpected type"),
        Err(error) => return tracing::debug!(%error, "a connection ended before its upgrade"),
    };
    let (stream, unread) = parts.io.into_inner().into_inner().into_inner().into_parts();
    // Bytes that were read with the request: those that the library has parsed, then the others. A
    // copy, because the library's buffer would otherwise stay as long as the connection.
    let prefix = Bytes::from([parts.read_buf, unread].concat());
    match plan {
        UpgradeAction::Open(known) => {
            let (mut source, mut sink) = websocket::server(stream, prefix, &limits(&broker));
            let incoming = IncomingConnection {
                transport: Transport::WebSocket,
                certified: context.certified.clone(),
                remote: context.remote,
                known: Some(known),
            };
            duplex::serve(broker, incoming, &mut source, &mut sink, context.stop.clone()).await;
        }
        UpgradeAction::Resume(session_connection, outbox) => {
            let (mut source, mut sink) = websocket::server(stream, prefix, &limits(&broker));
            let certified = context.certified.clone();
            duplex::run_session(session_connection, outbox, &mut source, &mut sink, certified)
                .await;
        }
        // The other replica has neither the certificate nor the token.
        UpgradeAction::Proxy(tunnel, _permit, until) => tokio::select! {
            () = Box::pin(tunnel.serve(stream, prefix, &context.stop)) => {}
            () = certificate_expired(context.certified.as_ref()) => {}
            () = auth::credential_expired(until) => {}
        },
    }
    drop(context.admitted);
}
