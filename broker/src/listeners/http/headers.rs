//! Request headers that MCP defines (MCP 2025-11-25, Streamable HTTP): session, revision, media
//! types, last event.
//!
//! Every reader refuses a repeated header, because two readers could use different values of it.

use http::{
    HeaderMap, HeaderName,
    header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, USER_AGENT},
};
use protocol::{
    error::{ErrorKind, Refusal},
    version::Version,
};

pub(super) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");

pub(super) const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Returns the event after which a client resumes a stream.
pub(super) fn last_event_id(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let mut given = headers.get_all(LAST_EVENT_ID).iter();
    let Some(id) = given.next() else { return Ok(None) };
    if given.next().is_some() {
        return Err(Refusal::new(
            ErrorKind::InvalidRequest,
            "Last-Event-ID is given more than once",
        ));
    }
    Ok(Some(id.to_str().unwrap_or_default()))
}

/// Returns whether the client breaks off an event stream at a `retry` line. The clients of the Java
/// SDK do so, and the HTTP library of the JDK names itself in their requests.
pub(super) fn refuses_retry(headers: &HeaderMap) -> bool {
    headers.get(USER_AGENT).is_some_and(|agent| agent.as_bytes().starts_with(b"Java-http-client/"))
}

/// Returns the session id header: at most one, visible ASCII (MCP 2025-11-25, Session Management).
pub(in crate::listeners) fn session_id(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
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

/// Returns the `MCP-Protocol-Version` header: absent, or one supported version.
pub(super) fn protocol_version(headers: &HeaderMap) -> Result<Option<Version>, Refusal> {
    let mut given = headers.get_all(PROTOCOL_VERSION).iter();
    let Some(value) = given.next() else { return Ok(None) };
    if given.next().is_some() {
        return Err(Refusal::new(
            ErrorKind::InvalidRequest,
            "MCP-Protocol-Version is given more than once",
        ));
    }
    let version = value.to_str().ok().and_then(Version::parse);
    match version {
        Some(Version::V2026_07_28) => Err(Refusal::new(
            ErrorKind::InvalidRequest,
            "MCP-Protocol-Version of a session must be a revision up to 2025-11-25",
        )),
        Some(version) => Ok(Some(version)),
        None => {
            let supported: Vec<_> = Version::ALL
                .iter()
                .filter(|v| **v != Version::V2026_07_28)
                .map(|v| v.as_str())
                .collect();
            let text = format!("MCP-Protocol-Version is not one of {}", supported.join(", "));
            Err(Refusal::new(ErrorKind::InvalidRequest, text))
        }
    }
}

/// The most common values of `Accept`, to the letter.
const USUAL_ACCEPT: [&[u8]; 3] =
    [b"application/json, text/event-stream", b"application/json,text/event-stream", b"*/*"];

/// Checks that a POST accepts both forms of answer.
pub(super) fn check_post_accept(headers: &HeaderMap) -> Result<(), Refusal> {
    let mut given = headers.get_all(ACCEPT).iter();
    // A full parse costs more than the check of the credential.
    if given.next().is_some_and(|value| USUAL_ACCEPT.contains(&value.as_bytes()))
        && given.next().is_none()
    {
        return Ok(());
    }
    if accepts(headers, "application/json") && accepts(headers, "text/event-stream") {
        return Ok(());
    }
    Err(Refusal::new(
        ErrorKind::NotAcceptable,
        "Accept must list both application/json and text/event-stream",
    ))
}

/// Checks that a GET accepts an event stream.
pub(super) fn check_get_accept(headers: &HeaderMap) -> Result<(), Refusal> {
    if accepts(headers, "text/event-stream") {
        return Ok(());
    }
    Err(Refusal::new(ErrorKind::NotAcceptable, "Accept must list text/event-stream"))
}

fn accepts(headers: &HeaderMap, wanted: &str) -> bool {
    let mut listed = headers.get_all(ACCEPT).iter().peekable();
    if listed.peek().is_none() {
        return true; // RFC 9110, 12.5.1: no header means anything is fine
    }
    let (kind, _) = wanted.split_once('/').unwrap_or((wanted, ""));
    listed.filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let range = parts.next().unwrap_or_default();
        // RFC 9110, 12.4.2: a weight of 0 means not acceptable.
        if parts.any(|part| {
            part.split_once('=').is_some_and(|(name, weight)| {
                name.eq_ignore_ascii_case("q") && weight.parse() == Ok(0.0)
            })
        }) {
            return false;
        }
        range.eq_ignore_ascii_case(wanted)
            || range == "*/*"
            || range.strip_suffix("/*").is_some_and(|of| of.eq_ignore_ascii_case(kind))
    })
}

pub(super) fn check_content_type(headers: &HeaderMap) -> Result<(), Refusal> {
    let coded = headers
        .get_all(CONTENT_ENCODING)
        .iter()
        .any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"));
    if coded {
        return Err(Refusal::new(
            ErrorKind::MediaTypeUnsupported,
            "the body must not have a Content-Encoding",
        ));
    }
    let mut given = headers.get_all(CONTENT_TYPE).iter();
    let first = given.next().filter(|_| given.next().is_none()); // with two it is unknown which counts
    if first.is_some_and(|value| value.as_bytes() == b"application/json") {
        return Ok(());
    }
    let text = first.and_then(|value| value.to_str().ok()).unwrap_or_default();
    if text.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(Refusal::new(
        ErrorKind::MediaTypeUnsupported,
        "Content-Type must be application/json, given once",
    ))
}

pub(super) fn names_stateless(headers: &HeaderMap) -> bool {
    headers
        .get(PROTOCOL_VERSION)
        .is_some_and(|version| version.as_bytes() == Version::V2026_07_28.as_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn http_10_accept_lists_both_or_everything() {
        for (accept, fine) in [
            ("application/json, text/event-stream", true),
            ("text/event-stream;q=0.5,APPLICATION/JSON", true),
            ("*/*", true),
            ("application/*, text/*", true),
            ("application/json", false),
            ("application/json, text/event-stream;q=0.0", false),
            ("text/html", false),
            ("text/event-stream", false),
        ] {
            assert_eq!(
                check_post_accept(&HeaderMap::from_iter([(
                    ACCEPT,
                    HeaderValue::from_static(accept)
                )]))
                .is_ok(),
                fine,
                "{accept}"
            );
        }
        assert!(check_post_accept(&HeaderMap::new()).is_ok());
    }
}
