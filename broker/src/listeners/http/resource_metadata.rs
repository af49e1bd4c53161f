//! Metadata of the protected resource (RFC 9728), which clients request after a
//! [`super::challenge`].

use std::sync::Arc;

use http::{
    HeaderValue, Method as HttpMethod, Request, Response, StatusCode, Uri,
    header::{CACHE_CONTROL, ORIGIN},
};
use protocol::error::{ErrorKind, Refusal};
use serde_json::json;

use super::{
    challenge::{METADATA, OFFLINE_ACCESS, below, scopes},
    cors::{preflight, with_cors_headers},
    listed_issuers::ListedIssuers,
    request_guard::RequestGuard,
    response::{self, Body},
};
use crate::{auth::adapted::authorization_server, broker::Broker};

const NAME: &str = "MCP broker";
/// Time for which a client may cache the metadata. A policy can change its scopes.
const AGE: &str = "public, max-age=60";

/// Returns whether a request is for metadata.
pub(super) fn matches_path(method: &HttpMethod, path: &str) -> bool {
    path.starts_with(METADATA) && [HttpMethod::GET, HttpMethod::OPTIONS].contains(method)
}

/// Returns the metadata of the resource that the path names (RFC 9728, 3). The request needs no
/// credential.
pub(super) fn handle<B>(
    broker: &Arc<Broker>,
    guard: &RequestGuard,
    request: &Request<B>,
) -> Response<Body> {
    let origin = request.headers().get(ORIGIN).cloned();
    let answered =
        guard.check_origin_and_host(request.headers(), request.uri()).and_then(|()| match request
            .method()
        {
            &HttpMethod::OPTIONS => Ok(preflight(request.headers())),
            _ => metadata(broker, request.uri()),
        });
    let response = answered
        .unwrap_or_else(|refusal| response::refusal_response(&broker.shared, &refusal, None));
    with_cors_headers(response, guard, origin)
}

fn metadata(broker: &Broker, uri: &Uri) -> Result<Response<Body>, Refusal> {
    let nothing =
        || Refusal::new(ErrorKind::NotFound, "this path has no protected resource metadata");
    let auth = broker.auth();
    let listed = ListedIssuers::new(&auth, uri).ok_or_else(nothing)?;
    let rest = uri.path().strip_prefix(METADATA).ok_or_else(nothing)?;
    let of = if matches!(rest, "" | "/") { Some(String::new()) } else { below(rest) };
    let servers: Vec<_> =
        listed.issuers.iter().map(|issuer| authorization_server(listed.resource, issuer)).collect();
    let mut document = json!({
        "resource": format!("{}{}", listed.resource, of.ok_or_else(nothing)?),
        "authorization_servers": servers,
        "bearer_methods_supported": ["header"],
        "resource_name": NAME,
    });
    let policy = listed.tenant().and_then(|tenant| broker.policy(tenant));
    let mut scopes = scopes(&listed);
    for scope in policy.iter().flat_map(|policy| policy.scopes()) {
        if !scopes.contains(&scope) {
            scopes.push(scope);
        }
    }
    scopes.retain(|scope| *scope != OFFLINE_ACCESS);
    if !scopes.is_empty() {
        document["scopes_supported"] = json!(scopes);
    }
    let mut response = response::json(StatusCode::OK, document.to_string().into());
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static(AGE));
    Ok(response)
}
