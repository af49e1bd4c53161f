//! Cross-origin requests of web pages (Fetch standard): the preflight, and the headers that let an allowed page read a response.

use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
    header::{ACCESS_CONTROL_REQUEST_HEADERS, CACHE_CONTROL, VARY},
};
use protocol::stateless::headers::PARAM_PREFIX;
use rules::limits::PREFLIGHT_PARAMS_MAX;

use super::{
    request_guard::RequestGuard,
    response::{self, Body},
};

/// Adds the headers that let a page of an allowed origin read the answer, including the session id.
pub(super) fn with_cors_headers(
    mut response: Response<Body>,
    guard: &RequestGuard,
    origin: Option<HeaderValue>,
) -> Response<Body> {
    // Shared caches must not give a page the answer to a request without an origin.
    let is_public = |value: &HeaderValue| value.as_bytes().starts_with(b"public");
    let is_cached = response.headers().get(CACHE_CONTROL).is_some_and(is_public);
    let allowed = origin.filter(|origin| guard.allows_origin(origin));
    let headers = response.headers_mut();
    if is_cached || allowed.is_some() {
        headers.append(VARY, HeaderValue::from_static("origin"));
    }
    if let Some(origin) = allowed {
        headers.insert("access-control-allow-origin", origin);
        headers.insert(
            "access-control-expose-headers",
            HeaderValue::from_static("mcp-session-id, mcp-protocol-version, www-authenticate"),
        );
    }
    response
}

/// Returns the response to a CORS preflight (Fetch standard). A page of a forbidden origin gets no
/// grant. The headers that mirror arguments depend on the tools (MCP 2026-07-28, Streamable HTTP).
/// Of these, the requested ones are allowed.
pub(super) fn preflight(request_headers: &HeaderMap) -> Response<Body> {
    let mut response = response::empty(StatusCode::NO_CONTENT);
    let headers = response.headers_mut();
    headers.insert("allow", HeaderValue::from_static("GET, POST, DELETE, OPTIONS"));
    headers.insert("access-control-allow-methods", HeaderValue::from_static("GET, POST, DELETE"));
    let mut allowed = "authorization, content-type, accept, mcp-session-id, mcp-protocol-version, last-event-id, traceparent, tracestate, baggage, mcp-method, mcp-name".to_owned();
    let requested = request_headers
        .get_all(ACCESS_CONTROL_REQUEST_HEADERS)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let names = requested
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
