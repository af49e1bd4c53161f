//! URLs over which the broker may send secrets: those with TLS, and those of this machine.

use http::Uri;

/// Returns whether the connection to this URL is private: TLS, or loopback.
pub fn is_private(uri: &Uri) -> bool {
    uri.scheme_str() == Some("https") || is_loopback(uri)
}

/// Returns whether the URL is on this machine.
pub fn is_loopback(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default();
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}
