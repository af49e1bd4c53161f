//! Trusted proxies and balancers in front of the listeners, and the ways in which they report the
//! client's address.

use transport::Cidr;

use super::{
    config_key::{ConfigKey, KeyKind, key},
    config_reader::{ConfigReader, text},
    field_error::invalid_value,
};

/// Proxies in front of all listeners. A listener reads PROXY protocol headers only if its own key
/// permits it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedProxyConfig {
    pub trusted: Vec<Cidr>,
    pub forwarded_header: ForwardedHeader,
    pub http: bool,
    pub admin: bool,
    pub tcp: bool,
}

/// Header that the proxies write. The broker ignores the other one, because it comes from the
/// client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardedHeader {
    XForwardedFor,
    Forwarded,
}

pub(super) const TRUSTED: ConfigKey = key(
    "trusted_proxies",
    KeyKind::Networks,
    "[]",
    "Networks of the proxies and load balancers in front of the broker. The broker accepts the client address that they send, and uses it for audit and for limits per address. These networks must contain nothing else.",
);
pub(super) const FORWARDED_HEADER: ConfigKey = key(
    "forwarded_header",
    KeyKind::Choice(&["x-forwarded-for", "forwarded"]),
    "x-forwarded-for",
    "HTTP header in which `trusted_proxies` name the client of a request. The client is the rightmost address in it that is not a trusted proxy.",
);
pub(super) const PROTOCOL_HTTP: ConfigKey = key(
    "proxy_protocol.http",
    KeyKind::Bool,
    "false",
    "Requires a PROXY protocol header, version 1 or 2, on each connection of `trusted_proxies` to `http`, before TLS. The broker closes a connection without one. It also closes a connection with one from another address.",
);
pub(super) const PROTOCOL_ADMIN: ConfigKey =
    key("proxy_protocol.admin", KeyKind::Bool, "false", "The same for `admin`.");
pub(super) const PROTOCOL_TCP: ConfigKey =
    key("proxy_protocol.tcp", KeyKind::Bool, "false", "The same for `tcp`.");

pub(super) fn read(reading: &mut ConfigReader<'_>) -> TrustedProxyConfig {
    let trusted = reading.networks("listen.trusted_proxies");
    let forwarded_header = reading.value("listen.forwarded_header", |value, _| match text(value) {
        Some("x-forwarded-for") => Ok(ForwardedHeader::XForwardedFor),
        Some("forwarded") => Ok(ForwardedHeader::Forwarded),
        _ => Err(invalid_value(value)),
    });
    let mut takes = |key: &str| {
        let takes = reading.bool(key);
        if takes && trusted.is_empty() && reading.faults.is_empty() {
            reading.report(
                key,
                "is true, but listen.trusted_proxies names no proxy that could send the header",
                "true with listen.trusted_proxies",
            );
        }
        takes
    };
    let [http, admin, tcp] =
        ["listen.proxy_protocol.http", "listen.proxy_protocol.admin", "listen.proxy_protocol.tcp"]
            .map(&mut takes);
    TrustedProxyConfig { trusted, forwarded_header, http, admin, tcp }
}

#[cfg(test)]
mod tests {
    use crate::config::{ForwardedHeader, load_from};

    #[test]
    fn s16_a_listener_accepts_proxy_headers_only_from_trusted_proxies() {
        let listen = |text: &str| {
            load_from(&format!("listen: {text}"), []).map(|config| config.listen.proxies)
        };
        let proxies = listen("{}").unwrap();
        assert!(proxies.trusted.is_empty() && !proxies.http && !proxies.admin && !proxies.tcp);
        let proxies = listen("{trusted_proxies: [10.0.0.0/8], proxy_protocol: {tcp: true}, forwarded_header: forwarded}").unwrap();
        assert!(
            proxies.tcp && !proxies.http && proxies.forwarded_header == ForwardedHeader::Forwarded
        );
        for (text, fault) in [
            (
                "{proxy_protocol: {http: true}}",
                "listen.proxy_protocol.http: is true, but listen.trusted_proxies names no proxy",
            ),
            ("{trusted_proxies: [10.0.0.1/8]}", "listen.trusted_proxies[0]: is \"10.0.0.1/8\""),
            ("{forwarded_header: via}", "listen.forwarded_header: is \"via\""),
            ("{proxy_protocol: {quic: true}}", "listen.proxy_protocol.quic"),
        ] {
            let faults = listen(text).unwrap_err().to_string();
            assert!(faults.contains(fault), "{text}: {faults}");
        }
    }
}
