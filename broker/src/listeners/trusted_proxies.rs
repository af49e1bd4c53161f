//! Trusted proxies and balancers in front of the broker, and the clients behind them.
//!
//! Used by every listener that counts, logs or audits by client address. Invariants:
//! - A peer outside the trusted proxies of a listener cannot name another address as its client.
//! - The admin listener trusts only `listen.admin_trusted_proxies`, and never a proxy of clients.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use config::{Config, ForwardedHeader};
use http::{HeaderMap, HeaderName, HeaderValue, header::FORWARDED};
use parking_lot::Mutex;
use rules::local_rate_limit::{LocalRateLimiter, one_per};
use tokio::{net::TcpStream, time::timeout};
use transport::{
    Cidr,
    proxy_protocol::{ProxyHeader, ProxyHeaderError, read_header, starts_with_header},
};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Minimum interval of log lines about refused proxy headers. Each line has the number of lines
/// left out.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Listener that proxies can be in front of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProxiedListener {
    Http,
    Tcp,
    Quic,
    Admin,
}

/// Trusted peers of one listener. Clones are cheap.
#[derive(Debug, Clone)]
pub(super) struct TrustedProxies(Arc<TrustedProxiesInner>);

#[derive(Debug)]
struct TrustedProxiesInner {
    /// Configuration key of the networks.
    key: &'static str,
    networks: Vec<Cidr>,
    header: ForwardedHeader,
}

impl TrustedProxies {
    fn new(config: &Config, listener: ProxiedListener) -> Self {
        let proxies = &config.listen.proxies;
        let (key, networks) = match listener {
            ProxiedListener::Http | ProxiedListener::Tcp | ProxiedListener::Quic => {
                ("listen.trusted_proxies", &proxies.trusted)
            }
            ProxiedListener::Admin => ("listen.admin_trusted_proxies", &proxies.admin_trusted),
        };
        Self(Arc::new(TrustedProxiesInner {
            key,
            networks: networks.clone(),
            header: proxies.forwarded_header,
        }))
    }

    pub(super) fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.networks.iter().any(|network| network.contains(address))
    }

    /// Returns the rightmost address of the request's proxy chain that is not a trusted proxy. An
    /// entry that is not an address ends the chain: the origin of the entries before it is unknown.
    fn forwarded_address(&self, headers: &HeaderMap, peer: IpAddr) -> IpAddr {
        let mut client = peer;
        let entries: fn(&str) -> Vec<Option<IpAddr>> = match self.0.header {
            ForwardedHeader::XForwardedFor => |value| value.split(',').map(address).collect(),
            ForwardedHeader::Forwarded => forwarded_for,
        };
        let name = match self.0.header {
            ForwardedHeader::XForwardedFor => X_FORWARDED_FOR,
            ForwardedHeader::Forwarded => FORWARDED,
        };
        let values: Vec<&HeaderValue> = headers.get_all(name).iter().collect();
        for value in values.into_iter().rev() {
            let Ok(value) = value.to_str() else { return client };
            for entry in entries(value).into_iter().rev() {
                if !self.trusts(client) {
                    return client;
                }
                let Some(entry) = entry else { return client };
                client = entry;
            }
        }
        client
    }
}

/// Remote end of a connection.
#[derive(Debug, Clone)]
pub(super) struct ClientAddress {
    address: IpAddr,
    /// `None`: the peer is not a trusted proxy.
    proxies: Option<TrustedProxies>,
}

impl ClientAddress {
    pub(super) fn new(address: IpAddr, proxies: &TrustedProxies) -> Self {
        let address = address.to_canonical();
        Self { address, proxies: proxies.trusts(address).then(|| proxies.clone()) }
    }

    /// Returns the address of the connection's client.
    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the address of the request's client.
    pub(super) fn request_address(&self, headers: &HeaderMap) -> IpAddr {
        self.proxies
            .as_ref()
            .map_or(self.address, |proxies| proxies.forwarded_address(headers, self.address))
    }
}

/// Reason why a connection is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProxyProtocolError {
    #[error("a connection of a trusted proxy is refused: {0}")]
    Header(#[from] ProxyHeaderError),
    #[error(
        "a connection is refused: it begins with a PROXY protocol header, and its address is not in {key}"
    )]
    Untrusted { key: &'static str },
}

/// PROXY protocol of one listener.
#[derive(Debug)]
pub(super) struct ProxyProtocol {
    proxies: TrustedProxies,
    /// Time limit for a header. `None`: the listener reads none.
    limit: Option<Duration>,
    /// Limits log lines about refused connections.
    lines: Mutex<LocalRateLimiter>,
    started: Instant,
}

impl ProxyProtocol {
    pub(super) fn new(config: &Config, listener: ProxiedListener) -> Self {
        let is_on = match listener {
            ProxiedListener::Http => config.listen.proxies.http,
            ProxiedListener::Tcp => config.listen.proxies.tcp,
            ProxiedListener::Admin => config.listen.proxies.admin,
            ProxiedListener::Quic => false,
        };
        Self {
            proxies: TrustedProxies::new(config, listener),
            limit: is_on.then_some(config.timeouts.handshake),
            lines: Mutex::new(LocalRateLimiter::new(one_per(LOG_INTERVAL))),
            started: Instant::now(),
        }
    }

    pub(super) fn proxies(&self) -> &TrustedProxies {
        &self.proxies
    }

    /// Reads the header of a new connection and returns its client. Logs refusals.
    pub(super) async fn client(
        &self,
        socket: &mut TcpStream,
        peer: SocketAddr,
    ) -> Result<ClientAddress, ProxyProtocolError> {
        let identified = self.identify(socket, peer).await;
        if let Err(error) = &identified {
            self.log_refusal(peer, error);
        }
        identified
    }

    async fn identify(
        &self,
        socket: &mut TcpStream,
        peer: SocketAddr,
    ) -> Result<ClientAddress, ProxyProtocolError> {
        let Some(limit) = self.limit else {
            return Ok(ClientAddress::new(peer.ip(), &self.proxies));
        };
        let address = if self.proxies.trusts(peer.ip()) {
            match read_header(socket, limit).await? {
                ProxyHeader::Client(client) => client.ip(),
                ProxyHeader::Local => peer.ip(),
            }
        } else {
            // A silent connection is passed on to its next reader.
            if matches!(timeout(limit, starts_with_header(socket)).await, Ok(Ok(true))) {
                return Err(ProxyProtocolError::Untrusted { key: self.proxies.0.key });
            }
            peer.ip()
        };
        Ok(ClientAddress::new(address, &self.proxies))
    }

    fn log_refusal(&self, peer: SocketAddr, error: &ProxyProtocolError) {
        let checked = self.lines.lock().check(self.started.elapsed());
        if let Ok(left_out) = checked {
            tracing::warn!(%peer, left_out, "{error}");
        }
    }
}

/// Parses an address with or without a port, for IPv6 also in brackets.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim_matches([' ', '\t']);
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    text.parse()
        .ok()
        .or_else(with_port)
        .or_else(|| bracketed().map(IpAddr::V6))
        .map(|address| address.to_canonical())
}

/// Returns the nodes of `Forwarded` (RFC 7239, 4), one for each element. An element without an
/// address is `None`.
fn forwarded_for(value: &str) -> Vec<Option<IpAddr>> {
    split_unquoted(value, ',').into_iter().map(element_address).collect()
}

fn element_address(element: &str) -> Option<IpAddr> {
    let mut nodes = split_unquoted(element, ';').into_iter().filter_map(|pair| {
        let (name, node) = pair.split_once('=')?;
        name.trim_matches([' ', '\t'])
            .eq_ignore_ascii_case("for")
            .then(|| node.trim_matches([' ', '\t']))
    });
    let (Some(node), None) = (nodes.next(), nodes.next()) else { return None };
    let node = node.strip_prefix('"').map_or(Some(node), |node| node.strip_suffix('"'))?;
    address(node)
}

/// Splits at a character outside quotes.
fn split_unquoted(text: &str, separator: char) -> Vec<&str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    text.split(|character| {
        let was_escaped = is_escaped;
        is_escaped = is_quoted && !was_escaped && character == '\\';
        if character == '"' && !was_escaped {
            is_quoted = !is_quoted;
        }
        character == separator && !is_quoted
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn client_of(listen: &str, peer: &str, headers: &[(&'static str, &str)]) -> String {
        client_at(ProxiedListener::Http, listen, peer, headers)
    }

    fn client_at(
        listener: ProxiedListener,
        listen: &str,
        peer: &str,
        headers: &[(&'static str, &str)],
    ) -> String {
        let config = config::load_from(&format!("listen: {listen}"), []).unwrap();
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        ClientAddress::new(peer.parse().unwrap(), &TrustedProxies::new(&config, listener))
            .request_address(&map)
            .to_string()
    }

    const TRUSTED: &str = "{trusted_proxies: [10.0.0.0/8, \"fd00::/8\"]}";
    const FORWARDED: &str = "{trusted_proxies: [10.0.0.0/8], forwarded_header: forwarded}";

    #[test]
    fn s16_the_client_is_the_rightmost_address_that_is_not_a_trusted_proxy() {
        let x = "x-forwarded-for";
        for (peer, headers, client) in [
            ("10.0.0.1", &[(x, "203.0.113.7")][..], "203.0.113.7"),
            ("10.0.0.1", &[(x, "198.51.100.1, 203.0.113.7, 10.2.2.2")], "203.0.113.7"),
            (
                "10.0.0.1",
                &[(x, "198.51.100.1"), (x, "203.0.113.7"), (x, "10.2.2.2,10.3.3.3")],
                "203.0.113.7",
            ),
            ("10.0.0.1", &[(x, "203.0.113.7:4711")], "203.0.113.7"),
            ("10.0.0.1", &[(x, "[2001:db8::1]:4711")], "2001:db8::1"),
            ("10.0.0.1", &[(x, "2001:db8::1")], "2001:db8::1"),
            ("fd00::1", &[(x, "::ffff:203.0.113.7")], "203.0.113.7"),
            ("::ffff:10.0.0.1", &[(x, "203.0.113.7")], "203.0.113.7"),
            // All are proxies: the most distant one.
            ("10.0.0.1", &[(x, "10.9.9.9, 10.2.2.2")], "10.9.9.9"),
            // Entries before an invalid entry are not trusted.
            ("10.0.0.1", &[(x, "198.51.100.1, unknown, 10.2.2.2")], "10.2.2.2"),
            ("10.0.0.1", &[(x, "198.51.100.1, ")], "10.0.0.1"),
            ("10.0.0.1", &[], "10.0.0.1"),
            // The other header comes from the client.
            ("10.0.0.1", &[("forwarded", "for=198.51.100.1")], "10.0.0.1"),
            // A header of an untrusted peer is ignored.
            ("192.0.2.1", &[(x, "203.0.113.7")], "192.0.2.1"),
        ] {
            assert_eq!(client_of(TRUSTED, peer, headers), client, "{peer} {headers:?}");
        }
        for (value, client) in [
            ("for=203.0.113.7", "203.0.113.7"),
            ("for=198.51.100.1, FOR=203.0.113.7;proto=https, for=\"10.2.2.2:80\"", "203.0.113.7"),
            ("for=\"[2001:db8::1]:4711\"", "2001:db8::1"),
            ("for=\"198.51.100.1, for=203.0.113.7\"", "10.0.0.1"),
            ("for=203.0.113.7;by=\"a,\\\"b;for=198.51.100.1\"", "203.0.113.7"),
            ("for=_hidden, for=10.2.2.2", "10.2.2.2"),
            ("for=203.0.113.7;for=198.51.100.1", "10.0.0.1"),
        ] {
            let headers = [("forwarded", value), ("x-forwarded-for", "192.0.2.99")];
            assert_eq!(client_of(FORWARDED, "10.0.0.1", &headers), client, "{value}");
        }
        assert_eq!(
            client_of("{}", "127.0.0.1", &[(x, "203.0.113.7")]),
            "127.0.0.1",
            "no proxy is trusted by default"
        );
    }

    #[test]
    fn s16_operators_and_clients_have_trusted_proxies_of_their_own() {
        use ProxiedListener::{Admin, Http, Quic, Tcp};

        let (peer, named) = ("10.0.0.1", "203.0.113.7");
        let headers = [("x-forwarded-for", named)];
        let of_clients = "{trusted_proxies: [10.0.0.0/8]}";
        let of_operators = "{admin_trusted_proxies: [10.0.0.0/8]}";
        for listener in [Http, Tcp, Quic] {
            assert_eq!(client_at(listener, of_clients, peer, &headers), named);
            assert_eq!(client_at(listener, of_operators, peer, &headers), peer);
        }
        assert_eq!(client_at(Admin, of_clients, peer, &headers), peer);
        assert_eq!(client_at(Admin, of_operators, peer, &headers), named);
    }

    proptest! {
        #[test]
        fn s16_addresses_written_by_a_client_are_ignored(written in "[ -~]{0,60}", real in any::<[u8; 4]>()) {
            let real = IpAddr::from(real);
            prop_assume!(!matches!(real, IpAddr::V4(real) if real.octets()[0] == 10));
            // A proxy appends its peer's address to the existing header.
            let chain = format!("{written}, {real}");
            prop_assert_eq!(client_of(TRUSTED, "10.0.0.1", &[("x-forwarded-for", &chain)]), real.to_string());
            let headers = [("x-forwarded-for", written.as_str()), ("x-forwarded-for", &real.to_string())];
            prop_assert_eq!(client_of(TRUSTED, "10.0.0.1", &headers), real.to_string());
        }
    }
}
