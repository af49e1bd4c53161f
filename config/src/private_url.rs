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

/// Returns whether a host without a port is `localhost` or a loopback address. A host name can end
/// with a dot, and an IPv6 address can stand for an IPv4 address.
pub fn is_loopback_host(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.strip_suffix('.').unwrap_or(host).eq_ignore_ascii_case("localhost")
        || bare
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_found_in_every_spelling() {
        for host in
            ["localhost", "LOCALHOST.", "127.0.0.1", "127.9.9.9", "[::1]", "[::ffff:127.0.0.1]"]
        {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in ["", ".", "localhost..", "localhost.example", "[::ffff:10.0.0.1]", "10.0.0.1"] {
            assert!(!is_loopback_host(host), "{host}");
        }
    }
}
