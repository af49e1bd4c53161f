//! Proxies and balancers in front of the listeners: which are believed, and how they tell whose connection or request it is.

use transport::Cidr;

use super::{
    config_key::{ConfigKey, KeyKind, key},
    config_reader::{ConfigReader, text, wrong},
};

/// In front of all listeners; a listener takes PROXY protocol headers where its own key says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedProxyConfig {
    pub trusted: Vec<Cidr>,
    pub forwarded_header: ForwardedHeader,
    pub http: bool,
    pub admin: bool,
    pub tcp: bool,
}

/// The header that the proxies write. The other one is the client's own, and means nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardedHeader {
    XForwardedFor,
    Forwarded,
}

pub(super) const TRUSTED: ConfigKey = key(
    "trusted_proxies",
    KeyKind::Networks,
    "[]",
    "Networks of the proxies and balancers in front. They are believed about the address of a client, which is what counts for audit and for limits per address. Nothing else should have an address in them.",
);
pub(super) const FORWARDED_HEADER: ConfigKey = key(
    "forwarded_header",
    KeyKind::Choice(&["x-forwarded-for", "forwarded"]),
    "x-forwarded-for",
    "The header in which `trusted_proxies` name the client of an HTTP request. The client is the rightmost address in it that is not a trusted proxy.",
);
pub(super) const PROTOCOL_HTTP: ConfigKey = key(
    "proxy_protocol.http",
    KeyKind::Bool,
    "false",
    "Connections of `trusted_proxies` to `http` begin with a PROXY protocol header, version 1 or 2, before TLS. One without is closed, and so is one of another address that has one.",
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
        _ => Err(wrong(value)),
    });
    let mut takes = |key: &str| {
        let takes = reading.bool(key);
        if takes && trusted.is_empty() && reading.faults.is_empty() {
            reading.fault(
                key,
                "is true, and no proxy is trusted that could send such a header",
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
    fn s16_a_listener_takes_proxy_headers_of_proxies_that_are_trusted_only() {
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
                "listen.proxy_protocol.http: is true, and no proxy is trusted",
            ),
            (
                "{trusted_proxies: [10.0.0.1/8]}",
                "listen.trusted_proxies: has an entry that is \"10.0.0.1/8\"",
            ),
            ("{forwarded_header: via}", "listen.forwarded_header: is \"via\""),
            ("{proxy_protocol: {quic: true}}", "listen.proxy_protocol.quic"),
        ] {
            let faults = listen(text).unwrap_err().to_string();
            assert!(faults.contains(fault), "{text}: {faults}");
        }
    }
}
