//! Metadata of the protected resource (RFC 9728), which clients request after a
//! [`super::challenge`].

use std::sync::Arc;

use http::{Method as HttpMethod, Request, Response, StatusCode, header::ORIGIN};
use protocol::error::{ErrorKind, Refusal};
use serde_json::json;

use super::{
    challenge::{METADATA, below, scopes},
    cors::{preflight, with_cors_headers},
    request_guard::RequestGuard,
    response::{self, Body},
};
use crate::{broker::Broker, config::AuthConfig};

const NAME: &str = "MCP broker";

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
            _ => metadata(&broker.auth(), request.uri().path()),
        });
    let response = answered
        .unwrap_or_else(|refusal| response::refusal_response(&broker.shared, &refusal, None));
    with_cors_headers(response, guard, origin)
}

fn metadata(auth: &AuthConfig, path: &str) -> Result<Response<Body>, Refusal> {
    let nothing = || Refusal::new(ErrorKind::NotFound, "this path has no such metadata");
    let resource =
        auth.resource.as_ref().filter(|_| !auth.issuers.is_empty()).ok_or_else(nothing)?;
    let rest = path.strip_prefix(METADATA).ok_or_else(nothing)?;
    let of = if matches!(rest, "" | "/") { Some(String::new()) } else { below(rest) };
    let mut document = json!({
        "resource": format!("{resource}{}", of.ok_or_else(nothing)?),
        "authorization_servers": auth.issuers.iter().map(|issuer| &issuer.issuer).collect::<Vec<_>>(),
        "bearer_methods_supported": ["header"],
        "resource_name": NAME,
    });
    let scopes = scopes(auth);
    if !scopes.is_empty() {
        document["scopes_supported"] = json!(scopes);
    }
    Ok(response::json(StatusCode::OK, document.to_string().into()))
}
