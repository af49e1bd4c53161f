//! The checks every request passes before anything is done for it: who may call from where, in which media types.

use std::net::SocketAddr;

use http::{
    HeaderMap, HeaderName, HeaderValue, Uri,
    header::{ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HOST, ORIGIN},
};
use protocol::{
    error::{ErrorKind, Refusal},
    version::Version,
};

use super::exchange::PROTOCOL_VERSION;
use crate::config::AuthConfig;

/// Origin and Host rules of one listener (MCP 2025-11-25, Transports: Security).
#[derive(Debug)]
pub(super) struct RequestGuard {
    loopback: bool,
    origins: Vec<String>,
    hosts: Vec<String>,
}

impl RequestGuard {
    pub(super) fn new(auth: &AuthConfig, local: SocketAddr) -> Self {
        let lower = |list: &[String]| list.iter().map(|text| text.to_ascii_lowercase()).collect();
        Self {
            loopback: local.ip().is_loopback(),
            origins: lower(&auth.allowed_origins),
            hosts: lower(&auth.allowed_hosts),
        }
    }

    /// Keeps web pages of strangers out: a page's origin must be one that is allowed, and on a loopback listener the Host
    /// must be a loopback name, which a rebound DNS name is not.
    pub(super) fn admits(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), Refusal> {
        let is_repeated = |name: HeaderName| headers.get_all(name).iter().nth(1).is_some();
        if is_repeated(ORIGIN) || is_repeated(HOST) {
            return Err(Refusal::new(ErrorKind::HostRefused, "Origin and Host may be given once"));
        }
        if let Some(origin) = headers.get(ORIGIN)
            && !self.allows_origin(origin)
        {
            return Err(Refusal::new(
                ErrorKind::OriginRefused,
                "this Origin is not allowed, see auth.allowed_origins",
            ));
        }
        let named = headers.get(HOST).and_then(|host| host.to_str().ok());
        if let (Some(authority), Some(host)) = (uri.authority(), named)
            && !authority.as_str().eq_ignore_ascii_case(host)
        {
            return Err(Refusal::new(
                ErrorKind::HostRefused,
                "the request names two different hosts",
            ));
        }
        let host = uri.authority().map(|authority| authority.as_str()).or(named);
        if self.loopback && !host.is_some_and(|host| self.allows_host(host)) {
            return Err(Refusal::new(
                ErrorKind::HostRefused,
                "this Host is not allowed, see auth.allowed_hosts",
            ));
        }
        Ok(())
    }

    pub(super) fn allows_origin(&self, origin: &HeaderValue) -> bool {
        let Ok(origin) = origin.to_str().map(str::to_ascii_lowercase) else { return false };
        if self.origins.contains(&origin) {
            return true;
        }
        let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        self.loopback && rest.is_some_and(is_loopback_host)
    }

    fn allows_host(&self, host: &str) -> bool {
        // Mostly so, and then nothing is copied.
        if is_loopback_host(host) {
            return true;
        }
        let host = host.to_ascii_lowercase();
        is_loopback_host(&host)
            || self
                .hosts
                .iter()
                .any(|allowed| *allowed == host || host_name(&host) == Some(allowed))
    }
}

/// `localhost`, `127.x.y.z` or `[::1]`, with or without a port, and nothing else.
fn is_loopback_host(host: &str) -> bool {
    let Some(name) = host_name(host) else { return false };
    name == "localhost"
        || name == "[::1]"
        || name.parse::<std::net::Ipv4Addr>().is_ok_and(|address| address.is_loopback())
}

/// The host without its port; `None` when what follows is no port.
fn host_name(host: &str) -> Option<&str> {
    let end = if host.starts_with('[') {
        host.find(']')? + 1
    } else {
        host.find(':').unwrap_or(host.len())
    };
    let (name, port) = host.split_at(end);
    let port_is_fine = port.is_empty()
        || port.strip_prefix(':').is_some_and(|port| {
            port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok()
        });
    port_is_fine.then_some(name)
}

/// The bearer token, if one is given. A token in the query string is refused (MCP 2025-11-25, Authorization).
pub(super) fn bearer<'a>(headers: &'a HeaderMap, uri: &Uri) -> Result<Option<&'a str>, Refusal> {
    if uri
        .query()
        .is_some_and(|query| query.split('&').any(|pair| pair.starts_with("access_token=")))
    {
        return Err(Refusal::new(
            ErrorKind::InvalidRequest,
            "a token never goes in the query string, use the Authorization header",
        ));
    }
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = given.next() else { return Ok(None) };
    let wrong =
        || Refusal::new(ErrorKind::Unauthorized, "the Authorization header must be: Bearer <key>");
    if given.next().is_some() {
        return Err(wrong());
    }
    let (scheme, token) = value.to_str().map_err(|_| wrong())?.split_once(' ').ok_or_else(wrong)?;
    if scheme.eq_ignore_ascii_case("bearer") { Ok(Some(token.trim())) } else { Err(wrong()) }
}

/// What nearly every client accepts, in as many words.
const USUAL_ACCEPT: [&[u8]; 3] =
    [b"application/json, text/event-stream", b"application/json,text/event-stream", b"*/*"];

/// A POST must accept both forms of answer.
pub(super) fn accepts_answers(headers: &HeaderMap) -> Result<(), Refusal> {
    let mut given = headers.get_all(ACCEPT).iter();
    // Taken apart, it costs more than the credential.
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

/// A GET must accept an event stream.
pub(super) fn accepts_events(headers: &HeaderMap) -> Result<(), Refusal> {
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

pub(super) fn is_json(headers: &HeaderMap) -> Result<(), Refusal> {
    let coded = headers
        .get_all(CONTENT_ENCODING)
        .iter()
        .any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"));
    if coded {
        return Err(Refusal::new(
            ErrorKind::MediaTypeUnsupported,
            "the body must come without Content-Encoding",
        ));
    }
    let mut given = headers.get_all(CONTENT_TYPE).iter();
    let first = given.next().filter(|_| given.next().is_none()); // of two nobody knows which counts
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

/// The `MCP-Protocol-Version` header: absent, or, once, a version this endpoint speaks.
pub(super) fn version(headers: &HeaderMap) -> Result<Option<Version>, Refusal> {
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
            "a session speaks a revision up to 2025-11-25",
        )),
        Some(version) => Ok(Some(version)),
        None => {
            let spoken: Vec<_> = Version::ALL
                .iter()
                .filter(|v| **v != Version::V2026_07_28)
                .map(|v| v.as_str())
                .collect();
            let text = format!("MCP-Protocol-Version is not one of {}", spoken.join(", "));
            Err(Refusal::new(ErrorKind::InvalidRequest, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(local: &str, origins: &[&str]) -> RequestGuard {
        let auth = AuthConfig {
            required: false,
            admin_token: None,
            allow_anonymous_public: false,
            allowed_origins: origins.iter().map(|&o| o.to_owned()).collect(),
            allowed_hosts: vec!["broker.internal".to_owned()],
            resource: None,
            issuers: Vec::new(),
        };
        RequestGuard::new(&auth, local.parse().unwrap())
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn http_02_strange_origins_are_refused_in_every_spelling() {
        let gate = gate("127.0.0.1:80", &["https://app.example"]);
        for origin in [
            "http://evil.example",
            "null",
            "",
            "http://localhost.evil.example",
            "http://evil.example:80@localhost",
            "http://127.0.0.1.nip.io",
            "file://",
            "http://localhost:99999",
            "http://[::1",
            "localhost",
            "https://app.example.evil",
            "http://app.example",
            "http://0x7f.1",
            "http://localhost:+80",
        ] {
            assert!(
                gate.admits(
                    &headers(&[("host", "localhost"), ("origin", origin)]),
                    &Uri::default()
                )
                .is_err(),
                "{origin}"
            );
        }
        for origin in [
            "http://localhost",
            "http://localhost:5173",
            "https://127.0.0.1:1",
            "http://[::1]:8080",
            "https://app.example",
        ] {
            assert!(
                gate.admits(
                    &headers(&[("host", "localhost:8080"), ("origin", origin)]),
                    &Uri::default()
                )
                .is_ok(),
                "{origin}"
            );
        }
    }

    #[test]
    fn http_03_a_loopback_listener_answers_to_loopback_names_only() {
        let gate = gate("127.0.0.1:80", &[]);
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "localhost:x",
            "2130706433",
            "",
        ] {
            assert!(gate.admits(&headers(&[("host", host)]), &Uri::default()).is_err(), "{host}");
        }
        for host in [
            "localhost",
            "LOCALHOST:80",
            "127.0.0.1:8080",
            "[::1]:8080",
            "127.9.9.9",
            "broker.internal:8080",
            "broker.internal",
        ] {
            assert!(gate.admits(&headers(&[("host", host)]), &Uri::default()).is_ok(), "{host}");
        }
        assert!(
            gate.admits(
                &headers(&[("host", "localhost"), ("host", "evil.example")]),
                &Uri::default()
            )
            .is_err()
        );
        assert!(gate.admits(&HeaderMap::new(), &Uri::default()).is_err());
    }

    #[test]
    fn a_public_listener_trusts_listed_origins_only() {
        let gate = gate("10.0.0.1:80", &["https://app.example"]);
        assert!(
            gate.admits(
                &headers(&[("host", "any.example"), ("origin", "http://localhost")]),
                &Uri::default()
            )
            .is_err()
        );
        assert!(
            gate.admits(
                &headers(&[("host", "any.example"), ("origin", "https://app.example")]),
                &Uri::default()
            )
            .is_ok()
        );
    }

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
            assert_eq!(accepts_answers(&headers(&[("accept", accept)])).is_ok(), fine, "{accept}");
        }
        assert!(accepts_answers(&HeaderMap::new()).is_ok());
    }

    #[test]
    fn auth_05_a_token_in_the_query_is_refused() {
        assert!(bearer(&HeaderMap::new(), &"/mcp?access_token=x".parse().unwrap()).is_err());
        assert_eq!(
            bearer(&headers(&[("authorization", "bearer abc")]), &"/mcp".parse().unwrap()).unwrap(),
            Some("abc")
        );
        assert!(
            bearer(&headers(&[("authorization", "Basic abc")]), &"/mcp".parse().unwrap()).is_err()
        );
        assert!(
            bearer(
                &headers(&[("authorization", "Bearer a"), ("authorization", "Bearer b")]),
                &"/mcp".parse().unwrap()
            )
            .is_err()
        );
    }
}
