//! Trusted proxies and balancers in front of the listeners, and the ways in which they report the
//! client's address.

use transport::Cidr;

use super::{
    config_key::{ConfigKey, KeyKind, key},
    config_reader::{ConfigReader, text},
    field_error::invalid_value,
};

/// Proxies in front of the listeners. A listener reads PROXY protocol headers only if its own key
/// permits it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedProxyConfig {
    /// Proxies in front of the listeners of clients.
    pub trusted: Vec<Cidr>,
    /// Proxies in front of `listen.admin`, which trusts no others.
    pub admin_trusted: Vec<Cidr>,
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
    "Networks of the proxies and load balancers in front of the listeners of clients. The broker accepts the client address that they send, and uses it for audit and for limits per address. These networks must contain nothing else.",
);
pub(super) const ADMIN_TRUSTED: ConfigKey = key(
    "admin_trusted_proxies",
    KeyKind::Networks,
    "[]",
    "The same for `admin`, which does not trust the networks of `trusted_proxies`.",
);
pub(super) const FORWARDED_HEADER: ConfigKey = key(
    "forwarded_header",
    KeyKind::Choice(&["x-forwarded-for", "forwarded"]),
    "x-forwarded-for",
    "HTTP header in which `trusted_proxies` and `admin_trusted_proxies` name the client of a request. The client is the rightmost address in it that is not a trusted proxy.",
);
pub(super) const PROTOCOL_HTTP: ConfigKey = key(
    "proxy_protocol.http",
    KeyKind::Bool,
    "false",
    "Requires a PROXY protocol header, version 1 or 2, on each connection of `trusted_proxies` to `http`, before TLS. The broker closes a connection without one. It also closes a connection with one from another address.",
);
pub(super) const PROTOCOL_ADMIN: ConfigKey = key(
    "proxy_protocol.admin",
    KeyKind::Bool,
    "false",
    "The same for connections of `admin_trusted_proxies` to `admin`.",
);
pub(super) const PROTOCOL_TCP: ConfigKey =
    key("proxy_protocol.tcp", KeyKind::Bool, "false", "The same as for `http`, for `tcp`.");

pub(super) fn read(reading: &mut ConfigReader<'_>) -> TrustedProxyConfig {
    let [client_key, admin_key] = ["listen.trusted_proxies", "listen.admin_trusted_proxies"];
    let (trusted, admin_trusted) = (reading.networks(client_key), reading.networks(admin_key));
    let forwarded_header = reading.value("listen.forwarded_header", |value, _| match text(value) {
        Some("x-forwarded-for") => Ok(ForwardedHeader::XForwardedFor),
        Some("forwarded") => Ok(ForwardedHeader::Forwarded),
        _ => Err(invalid_value(value)),
    });
    let mut takes = |key: &str, proxies: &str, trusted: &[Cidr]| {
        let takes = reading.bool(key);
        if takes && trusted.is_empty() && reading.faults.is_empty() {
            reading.report(
                key,
                &format!("is true, but {proxies} names no proxy that could send the header"),
                &format!("true with {proxies}"),
            );
        }
        takes
    };
    let http = takes("listen.proxy_protocol.http", client_key, &trusted);
    let admin = takes("listen.proxy_protocol.admin", admin_key, &admin_trusted);
    let tcp = takes("listen.proxy_protocol.tcp", client_key, &trusted);
    TrustedProxyConfig { trusted, admin_trusted, forwarded_header, http, admin, tcp }
}

#[cfg(test)]
mod tests {
    use crate::{ForwardedHeader, load_from};

    #[test]
    fn s16_a_listener_accepts_proxy_headers_only_from_trusted_proxies() {
        let listen = |text: &str| {
            load_from(&format!("listen: {text}"), []).map(|config| config.listen.proxies)
        };
        let proxies = listen("{}").unwrap();
        assert!(proxies.trusted.is_empty() && !proxies.http && !proxies.admin && !proxies.tcp);
        assert!(proxies.admin_trusted.is_empty());
        let proxies = listen("{trusted_proxies: [10.0.0.0/8], proxy_protocol: {tcp: true}, forwarded_header: forwarded}").unwrap();
        assert!(
            proxies.tcp && !proxies.http && proxies.forwarded_header == ForwardedHeader::Forwarded
        );
        assert!(proxies.admin_trusted.is_empty(), "operators have proxies of their own");
        let proxies =
            listen("{admin_trusted_proxies: [10.1.0.0/16], proxy_protocol: {admin: true}}")
                .unwrap();
        assert!(proxies.admin && proxies.trusted.is_empty() && proxies.admin_trusted.len() == 1);
        for (text, fault) in [
            (
                "{proxy_protocol: {http: true}}",
                "listen.proxy_protocol.http: is true, but listen.trusted_proxies names no proxy",
            ),
            (
                "{trusted_proxies: [10.0.0.0/8], proxy_protocol: {admin: true}}",
                "listen.proxy_protocol.admin: is true, but listen.admin_trusted_proxies names no proxy",
            ),
            (
                "{admin_trusted_proxies: [10.0.0.0/8], proxy_protocol: {tcp: true}}",
                "listen.proxy_protocol.tcp: is true, but listen.trusted_proxies names no proxy",
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
