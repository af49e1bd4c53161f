//! Serves one HTTP request, from its head to its response (MCP 2025-11-25, Streamable HTTP).
//!
//! The checks have a fixed order: path, origin and host, method, credential, endpoint, media types,
//! overload, body, envelope, session, version. A session does not depend on HTTP: it receives
//! messages and pushes into streams. Requests of clients, operators and other replicas take the same
//! path. [`RequestSource`] is the difference.

use std::sync::Arc;

use http::{
    HeaderValue, Method as HttpMethod, Response, header::ALLOW, request::Parts as HeadParts,
};
use protocol::{
    envelope::RefusedMessage,
    error::{ErrorKind, Refusal},
};
use rules::{endpoint::Endpoint, sign_in_failures::Plane};

use super::{
    authenticate::{authenticate_cached, retry_authentication},
    challenge,
    connection_cache::ConnectionCache,
    cors::{preflight, with_cors_headers},
    get_delete,
    inbound_request::{CachedHead, InboundRequest, RequestBody, RequestSource, refuse_without_id},
    post,
    request_guard::RequestGuard,
    response::{self, Body, ServerResponse},
};
use crate::{
    auth::{AuthError, AuthenticatedCaller, Caller, RemotePeer},
    boxed::box_pin_with,
    broker::{Broker, check_endpoint_of, tenant_gone},
    listeners::replicas::replica_headers::{client_address, forwarded_caller},
    telemetry::request,
};

/// Serves one request of a client. Every error becomes a response.
pub(super) async fn handle(
    broker: &Arc<Broker>,
    guard: &RequestGuard,
    remote: RemotePeer,
    head: CachedHead<'_>,
    body: impl RequestBody,
) -> ServerResponse {
    let answer = match serve_request(broker, RequestSource::Client(guard, remote), head, body).await
    {
        ServerResponse::Other(response) if challenge::may_be_challenge(&response) => {
            let shown = challenge::has_credential(&head.0.headers);
            let uri = &head.0.uri;
            challenge::complete(&broker.auth(), uri, uri.path(), shown, *response).into()
        }
        answer => answer,
    };
    match head.1.validated_head.origin(&head.0.headers) {
        Some(origin) => {
            with_cors_headers(answer.into_response(), guard, Some(origin.clone())).into()
        }
        None => answer,
    }
}

/// Serves one request of an operator, as a caller that the admin plane has made up.
pub(in crate::listeners) async fn serve_operator(
    broker: &Arc<Broker>,
    caller: &Caller,
    head: &HeadParts,
    body: impl RequestBody,
) -> Response<Body> {
    let cache = ConnectionCache::default();
    serve_request(broker, RequestSource::Operator(caller), (head, &cache), body)
        .await
        .into_response()
}

pub(in crate::listeners) async fn serve_request(
    broker: &Arc<Broker>,
    source: RequestSource<'_>,
    head: CachedHead<'_>,
    body: impl RequestBody,
) -> ServerResponse {
    let context = request::header_context(&head.0.headers, broker.shared.traces.is_enabled());
    let work = async {
        // Boxed: the futures around it would otherwise be moved with all its memory, for every
        // request.
        match box_pin_with(|| dispatch(broker, source, head, body)).await {
            Ok(answer) => answer,
            Err(RefusedMessage { refusal, id, .. }) => {
                response::refusal_response(&broker.shared, &refusal, id.as_ref()).into()
            }
        }
    };
    let client = match source {
        RequestSource::Client(_, remote) => remote.address,
        RequestSource::Operator(_) => None,
        RequestSource::Replica => client_address(&head.0.headers),
    };
    request::with_inbound_context(context, client, work).await
}

async fn dispatch(
    broker: &Arc<Broker>,
    source: RequestSource<'_>,
    (head, cache): CachedHead<'_>,
    body: impl RequestBody,
) -> Result<ServerResponse, RefusedMessage> {
    let endpoint =
        cache.validated_head.endpoint(|| endpoint(head.uri.path())).map_err(refuse_without_id)?;
    check_guard(source, head, cache).map_err(refuse_without_id)?;
    let method = head.method.clone();
    if method == HttpMethod::OPTIONS {
        return Ok(preflight(&head.headers).into());
    }
    if ![HttpMethod::POST, HttpMethod::GET, HttpMethod::DELETE].contains(&method) {
        return Err(refuse_without_id(Refusal::new(
            ErrorKind::MethodNotAllowed,
            "this endpoint supports only GET, POST and DELETE",
        )));
    }
    let AuthenticatedCaller { caller, until, .. } =
        match authenticate_source(broker, source, head, cache) {
            Ok(proven) => proven,
            // Boxed, because it is rare and would enlarge the future of every request.
            Err(denied) => Box::pin(retry_or_refuse(broker, source, head, denied))
                .await
                .map_err(refuse_without_id)?,
        };
    cache.validated_head.record_unread_owner(&caller);
    let tenant = cache.validated_head.tenant(broker, &caller.tenant);
    check_endpoint_of(tenant.as_deref(), &caller, &endpoint).map_err(refuse_without_id)?;
    let Some(tenant) = tenant else { return Err(refuse_without_id(tenant_gone())) };
    let inbound = InboundRequest { broker, source, caller, tenant, endpoint, head, cache, until };
    if method == HttpMethod::POST {
        post::serve(&inbound, body).await
    } else if is_sessionless(&inbound) {
        Ok(method_not_allowed(broker).into())
    } else {
        // Boxed, like every rare branch: the futures of calls would otherwise be moved with its
        // memory.
        Box::pin(get_delete::serve(&inbound))
            .await
            .map(|response| ServerResponse::from(response).end_with(inbound.until.as_ref()))
            .map_err(refuse_without_id)
    }
}

/// Checks the origin and the host of a client's request, unless an equal head of the connection
/// passed before.
fn check_guard(
    source: RequestSource<'_>,
    head: &HeadParts,
    cache: &ConnectionCache,
) -> Result<(), Refusal> {
    let RequestSource::Client(guard, _) = source else { return Ok(()) };
    let edition = guard.edition();
    if !cache.validated_head.passed_guard(edition) {
        guard.check_origin_and_host(&head.headers, &head.uri)?;
        cache.validated_head.record_guard(edition);
    }
    Ok(())
}

/// Authenticates the sender without waiting for the keys of an issuer.
fn authenticate_source(
    broker: &Arc<Broker>,
    source: RequestSource<'_>,
    head: &HeadParts,
    cache: &ConnectionCache,
) -> Result<AuthenticatedCaller, AuthError> {
    match source {
        RequestSource::Client(..) => authenticate_cached(broker, head, &cache.validated_head),
        RequestSource::Operator(caller) => broker.admit_authenticated(caller.clone().into()),
        RequestSource::Replica => {
            forwarded_caller(broker, &head.headers).map(AuthenticatedCaller::from)
        }
    }
}

/// Authenticates a client again, after a wait for the keys of its issuer. Refuses other senders.
async fn retry_or_refuse(
    broker: &Arc<Broker>,
    source: RequestSource<'_>,
    head: &HeadParts,
    denied: AuthError,
) -> Result<AuthenticatedCaller, Refusal> {
    match source {
        RequestSource::Client(_, remote) => {
            retry_authentication(broker, head, denied, remote).await
        }
        RequestSource::Operator(_) | RequestSource::Replica => {
            Err(broker.refuse(denied, Plane::Internal, RemotePeer::default()))
        }
    }
}

/// Returns the answer to a GET or DELETE of 2026-07-28, which has neither (MCP 2026-07-28,
/// Streamable HTTP).
fn method_not_allowed(broker: &Broker) -> Response<Body> {
    let refusal = Refusal::new(ErrorKind::MethodNotAllowed, "requests of 2026-07-28 must use POST");
    let mut response = response::refusal_response(&broker.shared, &refusal, None);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST, OPTIONS"));
    response
}

/// Returns whether the request cannot belong to a session.
fn is_sessionless(request: &InboundRequest<'_>) -> bool {
    let eras = request.broker.shared.config.compat.eras;
    !eras.has_sessions()
        || (eras.has_stateless()
            && request.cache.validated_head.names_stateless(&request.head.headers))
}

/// Returns whether the path is `/mcp` or begins with it.
pub(super) fn is_mcp_path(path: &str) -> bool {
    path.strip_prefix("/mcp").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns whether the path is that of an endpoint.
pub(super) fn is_endpoint(path: &str) -> bool {
    endpoint(path).is_ok()
}

/// Returns the endpoint of a path: `/mcp`, `/mcp/{backend}` or `/mcp/t/{toolset}`, nothing else.
fn endpoint(path: &str) -> Result<Endpoint, Refusal> {
    let nowhere = "the path does not exist: MCP is at /mcp, /mcp/{backend} and /mcp/t/{toolset}";
    Endpoint::at("/mcp", path).ok_or_else(|| Refusal::new(ErrorKind::NotFound, nowhere))
}
