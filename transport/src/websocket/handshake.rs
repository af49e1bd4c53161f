//! The opening handshake (RFC 6455, section 4): the server's answer to a request, and the client's
//! check of that answer.
//!
//! The listener checks origin, authentication and path. Extensions are never accepted.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version,
    header::{
        CONNECTION, CONTENT_LENGTH, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_EXTENSIONS,
        SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, TRANSFER_ENCODING,
        UPGRADE,
    },
};

/// The subprotocol of MCP messages, one in each text frame.
pub const SUBPROTOCOL: &str = "mcp";

const VERSION: HeaderValue = HeaderValue::from_static("13");
const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");
const KEY_BYTES: usize = 16;
const ACCEPT_SALT: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Reason why a request does not become a WebSocket connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UpgradeError {
    #[error(
        "this path speaks websocket only: an HTTP/1.1 GET with `Upgrade: websocket` and `Connection: upgrade` is expected"
    )]
    NoUpgrade,
    #[error("`Sec-WebSocket-Version: 13` is expected")]
    Version,
    #[error("`Sec-WebSocket-Key` must be given once, as 16 bytes in base64")]
    Key,
    #[error("an upgrade request must not have a body")]
    Body,
}

impl UpgradeError {
    /// Returns the response's head. The caller puts the error text into a body.
    pub fn response(self) -> Response<()> {
        let mut response = Response::new(());
        let headers = match self {
            Self::Key | Self::Body => {
                *response.status_mut() = StatusCode::BAD_REQUEST;
                return response;
            }
            Self::NoUpgrade => {
                [(UPGRADE, WEBSOCKET), (CONNECTION, HeaderValue::from_static("upgrade"))]
            }
            Self::Version => {
                [(SEC_WEBSOCKET_VERSION, VERSION), (CONNECTION, HeaderValue::from_static("close"))]
            }
        };
        *response.status_mut() = StatusCode::UPGRADE_REQUIRED;
        response.headers_mut().extend(headers.map(|(name, value)| (Some(name), value)));
        response
    }
}

/// Returns the `101` answer to a client's request. The answer names the subprotocol only if the
/// client offered it.
pub fn accept<B>(request: &Request<B>) -> Result<Response<()>, UpgradeError> {
    let headers = request.headers();
    let is_upgrade = request.method() == Method::GET
        && request.version() == Version::HTTP_11
        && has_token(headers, &UPGRADE, "websocket")
        && has_token(headers, &CONNECTION, "upgrade");
    if !is_upgrade {
        return Err(UpgradeError::NoUpgrade);
    }
    if only(headers, &SEC_WEBSOCKET_VERSION) != Some(&VERSION) {
        return Err(UpgradeError::Version);
    }
    if headers.contains_key(TRANSFER_ENCODING)
        || headers.get(CONTENT_LENGTH).is_some_and(|length| length != "0")
    {
        return Err(UpgradeError::Body);
    }
    let key = only(headers, &SEC_WEBSOCKET_KEY).ok_or(UpgradeError::Key)?;
    if BASE64.decode(key).map(|key| key.len()) != Ok(KEY_BYTES) {
        return Err(UpgradeError::Key);
    }
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let answer = response.headers_mut();
    answer.insert(UPGRADE, WEBSOCKET);
    answer.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    answer.insert(SEC_WEBSOCKET_ACCEPT, accept_value(key));
    if tokens(headers, &SEC_WEBSOCKET_PROTOCOL).any(|offered| offered == SUBPROTOCOL) {
        answer.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
    }
    Ok(response)
}

/// Adds the upgrade headers to a client's request. Returns the key, with which the client checks
/// the answer.
pub(super) fn prepare(headers: &mut HeaderMap, nonce: [u8; KEY_BYTES]) -> HeaderValue {
    let key = HeaderValue::try_from(BASE64.encode(nonce)).expect("base64 is a header value");
    headers.insert(UPGRADE, WEBSOCKET);
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(SEC_WEBSOCKET_VERSION, VERSION);
    headers.insert(SEC_WEBSOCKET_KEY, key.clone());
    headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
    key
}

/// Returns an error if a server's `101` is not valid (4.1). A server that chose no subprotocol is
/// accepted.
pub(super) fn check_answer<B>(
    response: &Response<B>,
    key: &HeaderValue,
) -> Result<(), &'static str> {
    let headers = response.headers();
    if !has_token(headers, &UPGRADE, "websocket") || !has_token(headers, &CONNECTION, "upgrade") {
        return Err("the server did not agree to an upgrade to websocket");
    }
    if only(headers, &SEC_WEBSOCKET_ACCEPT) != Some(&accept_value(key)) {
        return Err("the server's `Sec-WebSocket-Accept` does not match the key");
    }
    if headers.contains_key(SEC_WEBSOCKET_EXTENSIONS) {
        return Err("the server uses an extension that was not offered");
    }
    match headers.get(SEC_WEBSOCKET_PROTOCOL) {
        Some(chosen) if chosen != SUBPROTOCOL => {
            Err("the server chose a subprotocol that was not offered")
        }
        _ => Ok(()),
    }
}

fn accept_value(key: &HeaderValue) -> HeaderValue {
    // The RFC requires SHA-1. It proves only that the other side has read the key.
    let mut digest = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY);
    digest.update(key.as_bytes());
    digest.update(ACCEPT_SALT);
    HeaderValue::try_from(BASE64.encode(digest.finish())).expect("base64 is a header value")
}

/// Returns the value of a header that occurs once.
fn only<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}

fn has_token(headers: &HeaderMap, name: &http::HeaderName, token: &str) -> bool {
    tokens(headers, name).any(|found| found.eq_ignore_ascii_case(token))
}

/// Returns the items of a comma-separated header, over all of its lines.
fn tokens<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> impl Iterator<Item = &'a str> {
    let lines = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim)
}
