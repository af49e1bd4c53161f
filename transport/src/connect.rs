//! Opens connections to backends: resolve, ask the egress policy, connect, and TLS for the HTTP client.
//!
//! Called by the pool of `http_client` whenever it has no connection to reuse, and by the clients of the other wires. No
//! address is connected to that the policy has not allowed at this very connect, whether it came from a name or stood in the
//! URL; no certificate goes unverified. All of it together takes at most the connect timeout.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

use crate::{
    connect_error::ConnectError, descriptor_reserve, egress::EgressPolicy, send_error::SendError,
};

/// Head start of one address before the next one is tried beside it (RFC 8305 recommends 250 ms).
const ADDRESS_HEAD_START: Duration = Duration::from_millis(250);
/// Addresses of one name that are tried at all.
const ADDRESSES_MAX: usize = 8;

pub(crate) type ConnectorStream = MaybeHttpsStream<TokioIo<TcpStream>>;

#[derive(Clone)]
pub(crate) struct Connector {
    pub(crate) tls: TlsConnector,
    pub(crate) egress: Arc<EgressPolicy>,
    pub(crate) connect_timeout: Duration,
}

impl tower_service::Service<Uri> for Connector {
    type Response = ConnectorStream;
    type Error = SendError;
    type Future = Pin<Box<dyn Future<Output = Result<ConnectorStream, SendError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let connected = timeout(connector.connect_timeout, connector.connect(&uri)).await;
            connected.unwrap_or(Err(ConnectError::Timeout)).map_err(SendError::from)
        })
    }
}

impl Connector {
    /// A connection without TLS.
    pub(crate) async fn tcp(&self, uri: &Uri) -> Result<TcpStream, SendError> {
        let host = host_without_brackets(uri.host().unwrap_or_default());
        let connected =
            timeout(self.connect_timeout, open(host, uri.port_u16().unwrap_or(80), &self.egress))
                .await;
        connected.unwrap_or(Err(ConnectError::Timeout)).map_err(SendError::from)
    }

    async fn connect(&self, uri: &Uri) -> Result<ConnectorStream, ConnectError> {
        let secure = uri.scheme() == Some(&http::uri::Scheme::HTTPS);
        let host = host_without_brackets(uri.host().unwrap_or_default());
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });

        let tcp = open(host, port, &self.egress).await?;
        if !secure {
            return Ok(MaybeHttpsStream::Http(TokioIo::new(tcp)));
        }
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| ConnectError::Tls { reason: format!("{host}: {error}") })?;
        let stream = TokioIo::new(TokioIo::new(tcp));
        let stream = self
            .tls
            .connect(name, stream)
            .await
            .map_err(|error| ConnectError::Tls { reason: error.to_string() })?;
        Ok(MaybeHttpsStream::Https(TokioIo::new(stream)))
    }
}

/// An IPv6 address stands in brackets where a port may follow.
pub(crate) fn host_without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// A TCP connection to the host, by the first of its allowed addresses that answers.
pub(crate) async fn open(
    host: &str,
    port: u16,
    egress: &EgressPolicy,
) -> Result<TcpStream, ConnectError> {
    let tcp = first_of(allowed_addresses(host, port, egress).await?, connect_one).await?;
    // Messages are written whole; waiting for more to send would only delay them.
    let _ = tcp.set_nodelay(true);
    Ok(tcp)
}

/// What the host resolves to now, without what the policy refuses; in the order to try.
pub(crate) async fn allowed_addresses(
    host: &str,
    port: u16,
    egress: &EgressPolicy,
) -> Result<Vec<SocketAddr>, ConnectError> {
    let found: Vec<SocketAddr> = match host.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, port)],
        Err(_) => tokio::net::lookup_host((host, port))
            .await
            .map_err(|error| ConnectError::Unreachable {
                reason: format!("host {host} could not be resolved: {error}"),
            })?
            .collect(),
    };
    let mut allowed = Vec::new();
    let mut denied = None;
    for address in found {
        match egress.check(address.ip()) {
            Ok(()) if allowed.contains(&address) => {}
            Ok(()) => allowed.push(address),
            Err(refusal) => denied = denied.or(Some(refusal)),
        }
    }
    match denied {
        Some(refusal) if allowed.is_empty() => Err(ConnectError::Denied(refusal)),
        _ if allowed.is_empty() => {
            Err(ConnectError::Unreachable { reason: format!("host {host} has no address") })
        }
        _ => Ok(alternate_families(allowed)),
    }
}

/// The resolver's order, but with the two families taking turns, so that a dead one costs one head start only.
fn alternate_families(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (same, other): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == first_is_v6);
    let (mut same, mut other) = (same.into_iter(), other.into_iter());
    let mut ordered = Vec::new();
    loop {
        let before = ordered.len();
        ordered.extend(same.next());
        ordered.extend(other.next());
        if ordered.len() == before || ordered.len() >= ADDRESSES_MAX {
            ordered.truncate(ADDRESSES_MAX);
            return ordered;
        }
    }
}

/// The first connection to come up; each further address starts after a head start, or when the one before has failed.
pub(crate) async fn first_of<T, Attempt>(
    addresses: Vec<SocketAddr>,
    attempt: impl Fn(SocketAddr) -> Attempt,
) -> Result<T, ConnectError>
where
    T: Send + 'static,
    Attempt: Future<Output = Result<T, ConnectError>> + Send + 'static,
{
    if !descriptor_reserve::is_left() {
        return Err(ConnectError::Unreachable { reason: descriptor_reserve::NONE_LEFT.to_owned() });
    }
    if let [address] = addresses[..] {
        return attempt(address).await;
    }
    let mut waiting = addresses.into_iter();
    let mut attempts = JoinSet::new();
    let mut last = ConnectError::Unreachable { reason: "no address to connect to".to_owned() };
    loop {
        match waiting.next() {
            Some(address) => drop(attempts.spawn(attempt(address))),
            None if attempts.is_empty() => return Err(last),
            None => {}
        }
        let more = !waiting.as_slice().is_empty();
        tokio::select! {
            Some(ended) = attempts.join_next() => match ended {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => last = error,
                Err(_) => {}
            },
            () = sleep(ADDRESS_HEAD_START), if more => {}
        }
    }
}

async fn connect_one(address: SocketAddr) -> Result<TcpStream, ConnectError> {
    TcpStream::connect(address)
        .await
        .map_err(|error| ConnectError::Unreachable { reason: format!("{address}: {error}") })
}
