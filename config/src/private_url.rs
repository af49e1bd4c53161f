//! URLs over which the broker may send secrets: those with TLS, and those of this machine.

use http::Uri;

/// Returns whether the connection to this URL is private: TLS, or loopback.
pub fn is_private(uri: &Uri) -> bool {
    uri.scheme_str() == Some("https") || is_loopback(uri)
}

/// Returns whether the URL is on this machine.
pub fn is_loopback(uri: &Uri) -> bool {
    uri.host().is_some_and(is_loopback_host)
}

/// Returns whether a host without a port is `localhost` or a loopback address.
pub fn is_loopback_host(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost")
        || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}
