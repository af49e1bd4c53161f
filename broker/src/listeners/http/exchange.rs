//! One HTTP request, from its head to its response (MCP 2025-11-25, Streamable HTTP).
//!
//! The checks come in a fixed order: path, origin, method, credential, media types, body, envelope, version, session. A
//! session learns nothing of HTTP: it gets messages and pushes into streams. The same way is gone for clients and for other
//! replicas that ask for theirs; [`RequestSource`] is the difference.

use std::{error::Error, sync::Arc};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method as HttpMethod, Request, Response, StatusCode,
    header::{ACCESS_CONTROL_REQUEST_HEADERS, ALLOW, ORIGIN, VARY},
    request::Parts as HeadParts,
};
use hyper::body::Incoming;
use protocol::{
    envelope::Rejection,
    error::{ErrorKind, Refusal},
    ids::BackendId,
    stateless::headers::PARAM_PREFIX,
};

use super::{
    challenge,
    connection_cache::{ConnectionCache, ValidatedHead},
    forward::{SessionLocation, SessionLookup},
    replica_headers,
    request_guard::{self, RequestGuard},
    response::{self, Body, EventStreamOptions, ServerResponse},
    tunnel, websocket,
};
use crate::{
    auth::{AuthError, AuthenticatedCaller, Caller, RemotePeer},
    boxed::in_place,
    broker::{Broker, unknown_backend},
    config::EventLogStorage,
    limits::PREFLIGHT_PARAMS_MAX,
    listeners::tls_acceptor::CertificateCaller,
    rules::{endpoint::Endpoint, sign_in_failures::Plane},
    sessions::session::{ResumedStream, Session},
    telemetry::request,
};

pub(super) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub(super) const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Who asks.
#[derive(Clone, Copy)]
pub(super) enum RequestSource<'a> {
    /// A client, at its address: it passes the gate and shows its key, and may be served by another replica.
    Client(&'a RequestGuard, RemotePeer),
    /// Another replica, for one of its clients: it says who that is. What is not here is its own to look for.
    Replica,
}

/// The body of a request, however it is read.
pub(super) trait RequestBody:
    hyper::body::Body<Data = Bytes, Error: Error + 'static> + Send + Unpin
{
}

impl<B: hyper::body::Body<Data = Bytes, Error: Error + 'static> + Send + Unpin> RequestBody for B {}

/// A head, and what its connection has kept.
type CachedHead<'a> = (&'a HeadParts, &'a ConnectionCache);

/// A request past the checks of its head, but for its media types.
pub(super) struct InboundRequest<'a> {
    pub(super) broker: &'a Arc<Broker>,
    pub(super) reach: RequestSource<'a>,
    pub(super) caller: Caller,
    pub(super) endpoint: Endpoint,
    pub(super) head: &'a HeadParts,
    pub(super) kept: &'a ConnectionCache,
}

/// Serves one request of a client. Whatever is wrong with it becomes a response.
pub(super) async fn handle(
    broker: &Arc<Broker>,
    (gate, remote): (&RequestGuard, RemotePeer),
    head: CachedHead<'_>,
    body: impl RequestBody,
) -> ServerResponse {
    let answer = match served(broker, RequestSource::Client(gate, remote), head, body).await {
        ServerResponse::Other(response) if challenge::is_one(&response) => {
            let shown = challenge::is_shown(&head.0.headers);
            challenge::complete(&broker.shared.config.auth, head.0.uri.path(), shown, response)
                .into()
        }
        answer => answer,
    };
    match head.0.headers.get(ORIGIN) {
        Some(origin) => readable_by(answer.into_response(), gate, Some(origin.clone())).into(),
        None => answer,
    }
}

/// A page from an allowed origin may read the answer, the session id included.
pub(super) fn readable_by(
    mut response: Response<Body>,
    gate: &RequestGuard,
    origin: Option<HeaderValue>,
) -> Response<Body> {
    if let Some(origin) = origin.filter(|origin| gate.allows_origin(origin)) {
        let headers = response.headers_mut();
        headers.insert("access-control-allow-origin", origin);
        headers.insert(
            "access-control-expose-headers",
            HeaderValue::from_static("mcp-session-id, mcp-protocol-version, www-authenticate"),
        );
        headers.append(VARY, HeaderValue::from_static("origin"));
    }
    response
}

/// Serves one request that another replica passed on.
pub(in crate::listeners) async fn handle_replica(
    broker: &Arc<Broker>,
    request: Request<Incoming>,
) -> Response<Body> {
    if websocket::is_meant(request.uri().path()) {
        return tunnel::handle_replica(broker, request).await;
    }
    let (head, body) = request.into_parts();
    served(broker, RequestSource::Replica, (&head, &ConnectionCache::default()), body)
        .await
        .into_response()
}

async fn served(
    broker: &Arc<Broker>,
    reach: RequestSource<'_>,
    head: CachedHead<'_>,
    body: impl RequestBody,
) -> ServerResponse {
    let context = request::header_context(&head.0.headers, broker.shared.traces.are_on());
    let work = async {
        // Boxed: what is around it is moved with room for it, and each time it is begun.
        match in_place(|| dispatch(broker, reach, head, body)).await {
            Ok(answer) => answer,
            Err(Rejection { refusal, id, .. }) => {
                response::refusal(&broker.shared, &refusal, id.as_ref()).into()
            }
        }
    };
    let client = match reach {
        RequestSource::Client(_, remote) => remote.address,
        RequestSource::Replica => None,
    };
    request::arriving(context, client, work).await
}

async fn dispatch(
    broker: &Arc<Broker>,
    reach: RequestSource<'_>,
    (head, kept): CachedHead<'_>,
    body: impl RequestBody,
) -> Result<ServerResponse, Rejection> {
    let endpoint = endpoint(head.uri.path())?;
    if let RequestSource::Client(gate, _) = reach
        && !kept.vetted.is()
    {
        gate.admits(&head.headers, &head.uri).map_err(anonymous)?;
    }
    let method = head.method.clone();
    if method == HttpMethod::OPTIONS {
        return Ok(preflight(&head.headers).into());
    }
    if ![HttpMethod::POST, HttpMethod::GET, HttpMethod::DELETE].contains(&method) {
        return Err(anonymous(Refusal::new(
            ErrorKind::MethodNotAllowed,
            "this endpoint takes GET, POST and DELETE",
        )));
    }
    let proven = match reach {
        RequestSource::Client(..) => known_client(broker, head, &kept.vetted),
        RequestSource::Replica => vouched_client(broker, head).map(AuthenticatedCaller::from),
    };
    let AuthenticatedCaller { caller, until } = match proven {
        Ok(proven) => proven,
        Err(denied) => match reach {
            RequestSource::Client(_, remote) => {
                Box::pin(client_again(broker, head, denied, remote)).await.map_err(anonymous)?
            }
            RequestSource::Replica => {
                return Err(anonymous(broker.refuse(
                    denied,
                    Plane::Internal,
                    RemotePeer::default(),
                )));
            }
        },
    };
    known_to(broker, &caller, &endpoint).map_err(anonymous)?;
    let asked = InboundRequest { broker, reach, caller, endpoint, head, kept };
    let answer = if method == HttpMethod::POST {
        asked.post(body).await
    } else if asked.is_of_no_session() {
        Ok(posts_only(broker).into())
    } else {
        // Boxed, as is all that is rare here: calls would be moved with room for it.
        Box::pin(asked.get_or_delete()).await.map(ServerResponse::from).map_err(anonymous)
    };
    match until {
        None => answer,
        Some(until) => answer.map(|answer| answer.ending(until)),
    }
}

/// The backend of the endpoint is one of the caller's tenant.
pub(super) fn known_to(
    broker: &Broker,
    caller: &Caller,
    endpoint: &Endpoint,
) -> Result<(), Refusal> {
    let Endpoint::Single(backend) = endpoint else { return Ok(()) };
    let known =
        broker.tenant(&caller.tenant).is_some_and(|tenant| tenant.backend(backend).is_some());
    if known { Ok(()) } else { Err(unknown_backend(backend)) }
}

/// For whom another replica asks.
pub(super) fn vouched_client(broker: &Broker, head: &HeadParts) -> Result<Caller, AuthError> {
    let caller = replica_headers::caller(&head.headers)?;
    broker.admit_proven(caller.into()).map(|proven| proven.caller)
}

/// Who a client is: by the key or token it shows, or by its connection's certificate.
pub(super) async fn client(
    broker: &Broker,
    head: &HeadParts,
    remote: RemotePeer,
) -> Result<AuthenticatedCaller, Refusal> {
    match client_now(broker, head) {
        Ok(proven) => Ok(proven),
        Err(denied) => client_again(broker, head, denied, remote).await,
    }
}

/// The same, as far as it is known without waiting.
fn client_now(broker: &Broker, head: &HeadParts) -> Result<AuthenticatedCaller, AuthError> {
    let bearer = request_guard::bearer(&head.headers, &head.uri)?;
    broker.authenticate_on(bearer, certified(head))
}

async fn client_again(
    broker: &Broker,
    head: &HeadParts,
    denied: AuthError,
    remote: RemotePeer,
) -> Result<AuthenticatedCaller, Refusal> {
    let bearer = request_guard::bearer(&head.headers, &head.uri).unwrap_or_default();
    broker.authenticate_again(denied, bearer, certified(head), remote).await
}

fn certified(head: &HeadParts) -> Option<&Caller> {
    head.extensions.get::<CertificateCaller>().map(CertificateCaller::caller)
}

/// [`client_now`] for one that may have shown the same before.
fn known_client(
    broker: &Broker,
    head: &HeadParts,
    vetted: &ValidatedHead,
) -> Result<AuthenticatedCaller, AuthError> {
    let edition = broker.keys_edition();
    if let Some(proven) = vetted.caller(edition) {
        return broker.admit_proven(proven);
    }
    let proven = client_now(broker, head)?;
    vetted.note_caller(edition, &proven);
    Ok(proven)
}

/// What a GET or DELETE of 2026-07-28 gets (MCP 2026-07-28, Streamable HTTP: there are neither).
fn posts_only(broker: &Broker) -> Response<Body> {
    let refusal = Refusal::new(ErrorKind::MethodNotAllowed, "requests of 2026-07-28 are POSTs");
    let mut response = response::refusal(&broker.shared, &refusal, None);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST, OPTIONS"));
    response
}

impl InboundRequest<'_> {
    /// Whether there is no session that it could be about, whatever else it says.
    fn is_of_no_session(&self) -> bool {
        let eras = self.broker.shared.config.compat.eras;
        !eras.has_sessions()
            || (eras.has_modern() && self.kept.vetted.names_modern(&self.head.headers))
    }

    async fn get_or_delete(self) -> Result<Response<Body>, Refusal> {
        let (headers, is_get) = (&self.head.headers, self.head.method == HttpMethod::GET);
        let session_id = session_id(headers)?;
        if is_get {
            request_guard::accepts_events(headers)?;
        }
        request_guard::version(headers)?;
        let session_id = session_id.ok_or_else(session_required)?;
        if is_get {
            self.broker.shared.overload.admits()?;
        }
        let mut way = SessionLookup::new(&self, session_id);
        loop {
            let session = match self.locate(&mut way, &Bytes::new()).await? {
                SessionLocation::Local(session) => session,
                SessionLocation::Answered(response) => return Ok(response),
            };
            session.touch();
            if !is_get {
                self.broker.delete_session(&session).await?;
                return Ok(response::empty(StatusCode::NO_CONTENT));
            }
            match listen(&session, headers).await {
                Err(refusal) if refusal.kind == ErrorKind::SessionElsewhere => {
                    if let Some(response) = self.led_on(&mut way, &session, refusal).await? {
                        return Ok(response);
                    }
                }
                listening => return listening,
            }
        }
    }
}

/// `/mcp` and `/mcp/{backend}`, nothing else.
fn endpoint(path: &str) -> Result<Endpoint, Rejection> {
    let nowhere = || {
        Refusal::new(
            ErrorKind::NotFound,
            "there is nothing here: MCP is at /mcp and /mcp/{backend}",
        )
    };
    match path.strip_prefix("/mcp") {
        Some("" | "/") => Ok(Endpoint::Aggregated),
        Some(rest) => {
            let name = rest.strip_prefix('/').map(|name| name.strip_suffix('/').unwrap_or(name));
            name.and_then(|name| BackendId::parse(name).ok())
                .map(Endpoint::Single)
                .ok_or_else(|| anonymous(nowhere()))
        }
        None => Err(anonymous(nowhere())),
    }
}

/// CORS preflight (Fetch standard); a page that is not allowed gets no grant. Which headers repeat arguments depends on the
/// tools (MCP 2026-07-28, Streamable HTTP): of these, those that are asked for are allowed.
pub(super) fn preflight(asked: &HeaderMap) -> Response<Body> {
    let mut response = response::empty(StatusCode::NO_CONTENT);
    let headers = response.headers_mut();
    headers.insert("allow", HeaderValue::from_static("GET, POST, DELETE, OPTIONS"));
    headers.insert("access-control-allow-methods", HeaderValue::from_static("GET, POST, DELETE"));
    let mut allowed = "authorization, content-type, accept, mcp-session-id, mcp-protocol-version, last-event-id, traceparent, tracestate, baggage, mcp-method, mcp-name".to_owned();
    let wished = asked
        .get_all(ACCESS_CONTROL_REQUEST_HEADERS)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let names = wished
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok());
    for name in
        names.filter(|name| name.as_str().starts_with(PARAM_PREFIX)).take(PREFLIGHT_PARAMS_MAX)
    {
        allowed.push_str(", ");
        allowed.push_str(name.as_str());
    }
    if let Ok(allowed) = HeaderValue::try_from(allowed) {
        headers.insert("access-control-allow-headers", allowed);
    }
    headers.insert("access-control-max-age", HeaderValue::from_static("600"));
    headers.append(VARY, HeaderValue::from_static("access-control-request-headers"));
    response
}

/// A GET: a new general stream, or an old stream from where the client left it.
async fn listen(session: &Arc<Session>, headers: &HeaderMap) -> Result<Response<Body>, Refusal> {
    let mut given = headers.get_all(LAST_EVENT_ID).iter();
    let (id, another) = (given.next(), given.next());
    if another.is_some() {
        return Err(Refusal::new(
            ErrorKind::InvalidRequest,
            "Last-Event-ID is given more than once",
        ));
    }
    let place = session.tenant.acquire_connection()?;
    let ResumedStream { reader, gap } = match id {
        None => session.open_general_stream().await?,
        Some(id) => {
            let resumed = session.resume(id.to_str().unwrap_or_default()).await?;
            if !resumed.gap {
                session.shared.metrics.events_replayed(resumed.reader.backlog());
            }
            resumed
        }
    };
    Ok(stamped(
        response::events(
            &session.shared,
            reader,
            &[],
            EventStreamOptions { gap, _place: Some(place), ..style(session) },
        ),
        session,
    ))
}

pub(super) fn style(session: &Session) -> EventStreamOptions {
    let events = &session.shared.config.events;
    // Clients before 2025-11-25 may take an empty event for a broken message.
    EventStreamOptions {
        priming: session.version.priming_event(),
        gap: false,
        ids: events.log != EventLogStorage::Off,
        retry: events.retry,
        keepalive: events.keepalive,
        _place: None,
    }
}

pub(super) fn stamped(mut response: Response<Body>, session: &Session) -> Response<Body> {
    response
        .headers_mut()
        .insert(PROTOCOL_VERSION, HeaderValue::from_static(session.version.as_str()));
    response
}

/// The session id header: at most one, visible ASCII (MCP 2025-11-25, Session Management).
pub(super) fn session_id(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let mut given = headers.get_all(SESSION_ID).iter();
    let Some(value) = given.next() else { return Ok(None) };
    match value.to_str() {
        Ok(text) if given.next().is_none() => Ok(Some(text)),
        _ => Err(Refusal::new(
            ErrorKind::InvalidRequest,
            "Mcp-Session-Id must be given once, in visible ASCII",
        )),
    }
}

pub(super) fn session_required() -> Refusal {
    Refusal::new(
        ErrorKind::SessionRequired,
        "Mcp-Session-Id is missing: open a session with initialize",
    )
}

/// A refusal of a message whose id is not known (yet).
pub(super) fn anonymous(refusal: Refusal) -> Rejection {
    Rejection::new(refusal, None)
}
