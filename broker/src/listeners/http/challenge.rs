//! What clients are told of authorization: in `WWW-Authenticate` (RFC 6750, RFC 9728; MCP 2025-11-25 and 2026-07-28, Authorization),
//! and in the metadata of the resource that they then look for.

use std::sync::Arc;

use http::{
    HeaderMap, HeaderValue, Method as HttpMethod, Request, Response, StatusCode,
    header::{AUTHORIZATION, WWW_AUTHENTICATE},
};
use protocol::{
    error::{ErrorKind, Refusal},
    ids::BackendId,
};
use serde_json::json;

use super::{
    exchange::{preflight, readable_by},
    request_guard::RequestGuard,
    response::{self, Body},
};
use crate::{broker::Broker, config::AuthConfig};

const METADATA: &str = "/.well-known/oauth-protected-resource";
const NAME: &str = "MCP broker";

/// A `403` of a token that is good and lacks a scope, which names all that are needed.
pub(super) fn insufficient_scope(refusal: &Refusal) -> Option<HeaderValue> {
    let scope = refusal
        .data
        .iter()
        .find(|(key, _)| *key == "scope")
        .and_then(|(_, scope)| scope.as_str())?;
    HeaderValue::try_from(format!("Bearer error=\"insufficient_scope\", scope=\"{scope}\"")).ok()
}

/// Completes a challenge, where tokens are taken: where the resource's metadata is, what was wrong with a token that was shown, and
/// which scopes one needs. Without issuers it stays as it is.
///
/// `path`: of the request; `shown`: whether it had a credential.
pub(super) fn complete(
    auth: &AuthConfig,
    path: &str,
    shown: bool,
    mut response: Response<Body>,
) -> Response<Body> {
    let Some(resource) = auth.resource.as_ref().filter(|_| !auth.issuers.is_empty()) else {
        return response;
    };
    let Some(begun) =
        response.headers().get(WWW_AUTHENTICATE).and_then(|begun| begun.to_str().ok())
    else {
        return response;
    };
    let place =
        format!("resource_metadata=\"{resource}{METADATA}{}\"", below(path).unwrap_or_default());
    let mut text = match begun.split_once(' ') {
        None => format!("{begun} {place}"),
        Some(_) => format!("{begun}, {place}"),
    };
    if response.status() == StatusCode::UNAUTHORIZED {
        if shown {
            text.push_str(", error=\"invalid_token\"");
        }
        let scopes = scopes(auth);
        if !scopes.is_empty() {
            text.push_str(&format!(", scope=\"{}\"", scopes.join(" ")));
        }
    }
    if let Ok(value) = HeaderValue::try_from(text) {
        response.headers_mut().insert(WWW_AUTHENTICATE, value);
    }
    response
}

/// Whether a response may be a challenge.
pub(super) fn is_one<B>(response: &Response<B>) -> bool {
    matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

/// Whether a request shows a credential.
pub(super) fn is_shown(headers: &HeaderMap) -> bool {
    headers.contains_key(AUTHORIZATION)
}

/// The scopes that tokens need, of any issuer.
fn scopes(auth: &AuthConfig) -> Vec<&str> {
    let mut scopes: Vec<&str> = Vec::new();
    for scope in auth.issuers.iter().flat_map(|issuer| &issuer.scopes) {
        if !scopes.contains(&scope.as_str()) {
            scopes.push(scope);
        }
    }
    scopes
}

/// Whether a request is one for metadata.
pub(super) fn is_meant(method: &HttpMethod, path: &str) -> bool {
    path.starts_with(METADATA) && [HttpMethod::GET, HttpMethod::OPTIONS].contains(method)
}

/// Answers with the metadata of the resource that the path names (RFC 9728, 3). Nobody need say who asks.
pub(super) fn handle<B>(
    broker: &Arc<Broker>,
    gate: &RequestGuard,
    request: &Request<B>,
) -> Response<Body> {
    let origin = request.headers().get(http::header::ORIGIN).cloned();
    let answered =
        gate.admits(request.headers(), request.uri()).and_then(|()| match request.method() {
            &HttpMethod::OPTIONS => Ok(preflight(request.headers())),
            _ => metadata(&broker.shared.config.auth, request.uri().path()),
        });
    let response =
        answered.unwrap_or_else(|refusal| response::refusal(&broker.shared, &refusal, None));
    readable_by(response, gate, origin)
}

fn metadata(auth: &AuthConfig, path: &str) -> Result<Response<Body>, Refusal> {
    let nothing = || Refusal::new(ErrorKind::NotFound, "there is no such metadata here");
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

/// The endpoint at a path, as it stands in the name of its resource. Whether there is such a backend is nobody's business here.
fn below(path: &str) -> Option<String> {
    match path.strip_prefix("/mcp")? {
        "" | "/" => Some("/mcp".to_owned()),
        rest => {
            let name = rest.strip_prefix('/')?;
            let backend = BackendId::parse(name.strip_suffix('/').unwrap_or(name)).ok()?;
            Some(format!("/mcp/{backend}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auth_01_each_endpoint_is_a_resource_and_nothing_else_is() {
        for (path, resource) in
            [("/mcp", "/mcp"), ("/mcp/", "/mcp"), ("/mcp/b-1", "/mcp/b-1"), ("/mcp/b/", "/mcp/b")]
        {
            assert_eq!(below(path).as_deref(), Some(resource), "{path}");
        }
        for path in
            ["", "/", "/ws", "/mcpx", "/mcp/B", "/mcp/b/c", "/mcp/b__c", "/mcp/%62", "/mcp//"]
        {
            assert_eq!(below(path), None, "{path}");
        }
    }
}
