//! Cross-origin requests of web pages (Fetch standard): the preflight, and the headers that let an allowed page read a response.

use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
    header::{ACCESS_CONTROL_REQUEST_HEADERS, VARY},
};
use protocol::stateless::headers::PARAM_PREFIX;

use super::{
    request_guard::RequestGuard,
    response::{self, Body},
};
use crate::limits::PREFLIGHT_PARAMS_MAX;

/// A page from an allowed origin may read the answer, the session id included.
pub(super) fn with_cors_headers(
    mut response: Response<Body>,
    guard: &RequestGuard,
    origin: Option<HeaderValue>,
) -> Response<Body> {
    if let Some(origin) = origin.filter(|origin| guard.allows_origin(origin)) {
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
