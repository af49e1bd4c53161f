//! Checks the URL of an HTTP backend before the broker uses it.
//!
//! Called when a backend is registered or read from the configuration. [`crate::HttpClient::send`]
//! accepts every URL that passes: absolute, `http` or `https`, with a host and without ambiguity.

use http::Uri;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("the url is empty, expected http://HOST[:PORT]/PATH or https://…")]
    Empty,
    #[error("the url is not valid: {reason}")]
    Invalid { reason: String },
    #[error("the url has no scheme, expected http:// or https://")]
    NoScheme,
    #[error("the url scheme {scheme:?} is not supported, expected http or https")]
    Scheme { scheme: String },
    #[error("the url has no host")]
    NoHost,
    #[error("the url must not contain a user name or password, use the backend's credentials")]
    UserInfo,
    #[error("the url must not contain a fragment (#…)")]
    Fragment,
    #[error("the url has another origin than the document that names it")]
    Origin,
    #[error("the url port is not valid, expected a number from 1 to 65535")]
    Port,
}

/// Parses an absolute `http` or `https` URL with a host. Refuses parts that would be dropped
/// silently.
pub fn parse_http_url(text: &str) -> Result<Uri, UrlError> {
    if text.is_empty() {
        return Err(UrlError::Empty);
    }
    if let Some(odd) = text.chars().find(|c| !c.is_ascii_graphic()) {
        return Err(UrlError::Invalid {
            reason: format!(
                "the character {odd:?} must be percent-encoded (in a host name: punycode)"
            ),
        });
    }
    // The parser drops fragments silently.
    if text.contains('#') {
        return Err(UrlError::Fragment);
    }
    let Some((scheme, rest)) = text.split_once("://") else { return Err(UrlError::NoScheme) };
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return Err(UrlError::Scheme { scheme: scheme.to_owned() });
    }
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err(UrlError::UserInfo);
    }
    if authority.is_empty() || authority.starts_with(':') {
        return Err(UrlError::NoHost);
    }
    check_port(authority)?;
    let uri: Uri = text
        .parse()
        .map_err(|error: http::uri::InvalidUri| UrlError::Invalid { reason: error.to_string() })?;
    match uri.host() {
        None | Some("") => Err(UrlError::NoHost),
        Some(host)
            if host.starts_with('[')
                && host.trim_matches(['[', ']']).parse::<std::net::Ipv6Addr>().is_err() =>
        {
            Err(UrlError::Invalid { reason: format!("{host} is not an IPv6 address") })
        }
        Some(_) => Ok(uri),
    }
}

/// Resolves a reference of a server against the URL of its document (RFC 3986). The result must have
/// the same scheme, host and port.
pub fn resolve_in_origin(base: &Uri, reference: &str) -> Result<Uri, UrlError> {
    let invalid = |error: url::ParseError| UrlError::Invalid { reason: error.to_string() };
    let base = url::Url::parse(&base.to_string()).map_err(invalid)?;
    let resolved = base.join(reference).map_err(invalid)?;
    if resolved.origin() != base.origin() {
        return Err(UrlError::Origin);
    }
    parse_http_url(resolved.as_str())
}

/// Checks the port. The parser accepts any digits after the colon and then reports no port at all.
fn check_port(authority: &str) -> Result<(), UrlError> {
    let after_host = match authority.rfind(']') {
        Some(bracket) => &authority[bracket + 1..],
        None => authority.find(':').map_or("", |colon| &authority[colon..]),
    };
    if after_host.is_empty() {
        return Ok(());
    }
    let digits = after_host.strip_prefix(':').ok_or(UrlError::Port)?;
    match digits.parse::<u16>() {
        Ok(port) if port > 0 && !digits.starts_with('+') => Ok(()),
        _ => Err(UrlError::Port),
    }
}
