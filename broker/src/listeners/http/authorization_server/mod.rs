//! The authorization servers of the broker, in front of adapted issuers. They serve metadata (RFC
//! 8414, OpenID Connect Discovery 1.0), authorization and token requests (RFC 6749) and
//! registration (RFC 7591). No request needs a credential of the broker.

mod endpoints;

use std::sync::Arc;

use bytes::Bytes;
use http::{
    HeaderValue, Method as HttpMethod, Request, Response, StatusCode,
    header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, ORIGIN, RETRY_AFTER},
};
use serde_json::json;

use super::{
    cors::{preflight, with_cors_headers},
    inbound_request::RequestBody,
    request_guard::RequestGuard,
    response::{self, Body},
};
use crate::{
    auth::{
        RemotePeer,
        adapted::{AdaptedIssuer, FrontUnavailable, PATH},
    },
    broker::Broker,
};

/// Paths of metadata: with the path of the identifier behind them (RFC 8414, 3.1).
const OAUTH_METADATA: &str = "/.well-known/oauth-authorization-server";
const OPENID_METADATA: &str = "/.well-known/openid-configuration";
/// Seconds for which metadata may be cached.
const METADATA_AGE: &str = "public, max-age=60";
/// Seconds after which a client may try again.
const RETRY_SECONDS: &str = "5";

/// What a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    Metadata,
    Authorize,
    Token,
    Register,
}

impl Route {
    fn method(self) -> HttpMethod {
        match self {
            Self::Metadata | Self::Authorize => HttpMethod::GET,
            Self::Token | Self::Register => HttpMethod::POST,
        }
    }
}

/// An error as OAuth writes it (RFC 6749, 5.2).
struct OAuthError {
    status: StatusCode,
    code: &'static str,
    description: String,
}

impl OAuthError {
    fn invalid(description: impl ToString) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            code: "invalid_request",
            description: description.to_string(),
        }
    }

    fn unavailable(description: impl ToString) -> Self {
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            code: "temporarily_unavailable",
            description: description.to_string(),
        }
    }

    fn into_response(self) -> Response<Body> {
        let text = json!({"error": self.code, "error_description": self.description}).to_string();
        let mut response = uncached(response::json(self.status, text.into()));
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(RETRY_SECONDS));
        }
        response
    }
}

impl From<FrontUnavailable> for OAuthError {
    fn from(error: FrontUnavailable) -> Self {
        Self::unavailable(error)
    }
}

/// Returns whether a path belongs to an authorization server.
pub(super) fn matches_path(path: &str) -> bool {
    path.strip_prefix(PATH).is_some_and(|rest| rest.starts_with('/'))
        || (path.starts_with("/.well-known/") && route(path).is_some())
}

/// Returns what a path names, and the id of the issuer in it.
fn route(path: &str) -> Option<(Route, &str)> {
    for prefix in [OAUTH_METADATA, OPENID_METADATA] {
        if let Some(rest) = path.strip_prefix(prefix) {
            let id = rest.strip_prefix(PATH)?.strip_prefix('/')?;
            return (!id.contains('/')).then_some((Route::Metadata, id));
        }
    }
    let (id, rest) = path.strip_prefix(PATH)?.strip_prefix('/')?.split_once('/')?;
    let route = match rest {
        "authorize" => Route::Authorize,
        "token" => Route::Token,
        "register" => Route::Register,
        ".well-known/openid-configuration" => Route::Metadata,
        _ => return None,
    };
    Some((route, id))
}

/// Serves one request.
pub(super) async fn handle<B: RequestBody>(
    broker: &Arc<Broker>,
    guard: &RequestGuard,
    request: Request<B>,
    remote: RemotePeer,
) -> Response<Body> {
    let origin = request.headers().get(ORIGIN).cloned();
    let response = match guard.check_origin_and_host(request.headers(), request.uri()) {
        Err(refusal) => response::refusal_response(&broker.shared, &refusal, None),
        Ok(()) if request.method() == HttpMethod::OPTIONS => preflight(request.headers()),
        Ok(()) => answer(broker, request, remote).await.unwrap_or_else(OAuthError::into_response),
    };
    with_cors_headers(isolated(response), guard, origin)
}

/// Keeps a browser from using an answer as a page of the broker's origin.
fn isolated(mut response: Response<Body>) -> Response<Body> {
    let policy = HeaderValue::from_static("default-src 'none'; sandbox");
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    response
}

async fn answer<B: RequestBody>(
    broker: &Arc<Broker>,
    request: Request<B>,
    remote: RemotePeer,
) -> Result<Response<Body>, OAuthError> {
    let path = request.uri().path().to_owned();
    let found = route(&path).and_then(|(route, id)| Some((route, broker.adapted_issuer(id)?)));
    let (route, issuer) = found.ok_or_else(|| OAuthError {
        status: StatusCode::NOT_FOUND,
        code: "not_found",
        description: "no authorization server has this identifier".to_owned(),
    })?;
    if request.method() != route.method() {
        return Ok(method_not_allowed(route));
    }
    let metadata = issuer.metadata().await?;
    match route {
        Route::Metadata => {
            let text = issuer.document(&metadata).to_string();
            let mut response = response::json(StatusCode::OK, text.into());
            response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static(METADATA_AGE));
            Ok(response)
        }
        Route::Authorize => endpoints::authorize(&issuer, &metadata, request.uri()),
        Route::Token => endpoints::token(broker, &issuer, &metadata, request, remote).await,
        Route::Register => endpoints::register(broker, &issuer, request).await,
    }
}

fn method_not_allowed(route: Route) -> Response<Body> {
    let allowed = route.method();
    let error = OAuthError {
        status: StatusCode::METHOD_NOT_ALLOWED,
        code: "invalid_request",
        description: format!("this endpoint supports only {allowed}"),
    };
    let mut response = error.into_response();
    let allowed = format!("{allowed}, OPTIONS");
    if let Ok(allowed) = HeaderValue::try_from(allowed) {
        response.headers_mut().insert(ALLOW, allowed);
    }
    response
}

/// Marks a response that may hold a code or a token (RFC 6749, 5.1).
fn uncached(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Reads the body of a request, within its limits.
async fn body_of<B: RequestBody>(broker: &Broker, body: B) -> Result<Bytes, OAuthError> {
    let time = broker.shared.config.timeouts.request_read;
    let bytes_max = rules::limits::tokens::AUTHORIZATION_REQUEST_BYTES_MAX;
    super::body::read_body(body, bytes_max, time).await.map_err(|refusal| OAuthError {
        status: match refusal.kind {
            protocol::error::ErrorKind::MessageTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            _ => StatusCode::BAD_REQUEST,
        },
        code: "invalid_request",
        description: refusal.message.to_string(),
    })
}

/// Returns the registered client of an issuer.
fn registered(issuer: &AdaptedIssuer) -> Result<&config::ClientRegistration, OAuthError> {
    issuer.front().registration.as_ref().ok_or_else(|| OAuthError {
        status: StatusCode::NOT_FOUND,
        code: "not_found",
        description: "this authorization server registers no clients".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_route_has_one_path_and_metadata_has_three() {
        for (path, named) in [
            ("/.well-known/oauth-authorization-server/authorization/ab", Some(Route::Metadata)),
            ("/.well-known/openid-configuration/authorization/ab", Some(Route::Metadata)),
            ("/authorization/ab/.well-known/openid-configuration", Some(Route::Metadata)),
            ("/authorization/ab/authorize", Some(Route::Authorize)),
            ("/authorization/ab/token", Some(Route::Token)),
            ("/authorization/ab/register", Some(Route::Register)),
            ("/authorization/ab", None),
            ("/authorization/ab/", None),
            ("/authorization/ab/token/", None),
            ("/authorization/ab/c/token", None),
            ("/.well-known/oauth-authorization-server", None),
            ("/.well-known/oauth-authorization-server/authorization/ab/token", None),
            ("/.well-known/oauth-protected-resource", None),
            ("/mcp", None),
        ] {
            assert_eq!(route(path).map(|(route, _)| route), named, "{path}");
            assert!(named.is_none() || matches_path(path), "{path}");
        }
        assert!(!matches_path("/.well-known/oauth-protected-resource") && !matches_path("/mcp"));
    }
}
