//! Opens connections to backends and replicas: name resolution, egress policy, TCP, and TLS for the
//! HTTP client.
//!
//! The callers are the pool of `http_client` without a connection to reuse, the clients of the
//! other wires, and the client of replicas. Every connect to a backend checks the address against
//! the egress policy, even when the URL contains the address itself. The client verifies every
//! certificate. All steps together take at most the connect timeout.

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

use crate::{
    connect_error::ConnectError, connection_watch::ConnectionWatch, descriptor_reserve,
    egress::EgressPolicy, http_client_tls::HttpClientTls, resolver::Resolver,
    send_error::SendError, socket_options, watched_stream::WatchedStream,
};

/// Head start of one address before the next attempt begins (RFC 8305 recommends 250 ms).
const ADDRESS_HEAD_START: Duration = Duration::from_millis(250);
/// Number of addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;

pub(crate) type ConnectorStream = MaybeHttpsStream<TokioIo<WatchedStream>>;

#[derive(Clone)]
pub(crate) struct Connector {
    pub(crate) tls: Arc<HttpClientTls>,
    pub(crate) egress: Arc<EgressPolicy>,
    pub(crate) connect_timeout: Duration,
    /// Watch over the connections with TLS.
    pub(crate) watch: ConnectionWatch,
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
    /// Opens a connection without TLS.
    pub(crate) async fn tcp(&self, uri: &Uri) -> Result<TcpStream, SendError> {
        let host = host_without_brackets(uri.host().unwrap_or_default());
        let port = uri.port_u16().unwrap_or(80);
        let opening = open(self.watch.resolver(), host, port, &self.egress);
        let connected = timeout(self.connect_timeout, opening).await;
        connected.unwrap_or(Err(ConnectError::Timeout)).map_err(SendError::from)
    }

    async fn connect(&self, uri: &Uri) -> Result<ConnectorStream, ConnectError> {
        let secure = uri.scheme() == Some(&http::uri::Scheme::HTTPS);
        let host = host_without_brackets(uri.host().unwrap_or_default());
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });

        let socket = open(self.watch.resolver(), host, port, &self.egress).await?;
        let watched = self.watch.add(host, &socket);
        let socket = WatchedStream { socket, watched };
        if !secure {
            return Ok(MaybeHttpsStream::Http(TokioIo::new(socket)));
        }
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| ConnectError::Tls { reason: format!("{host}: {error}") })?;
        let stream = TokioIo::new(TokioIo::new(socket));
        let stream = self
            .tls
            .connector()
            .await
            .connect(name, stream)
            .await
            .map_err(|error| ConnectError::Tls { reason: error.to_string() })?;
        Ok(MaybeHttpsStream::Https(TokioIo::new(stream)))
    }
}

/// Removes the brackets round an IPv6 address. A URL needs them because a port may follow.
pub(crate) fn host_without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Splits an address. An IPv6 address must have brackets.
pub(crate) fn host_and_port(address: &str) -> Result<(&str, u16), ConnectError> {
    let parts = address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let parts = parts
        .filter(|(host, _)| !host.is_empty() && (host.starts_with('[') || !host.contains(':')));
    let (host, port) = parts.ok_or_else(|| ConnectError::Unreachable {
        reason: format!("{address:?} is not an address, host:port is expected"),
    })?;
    Ok((host_without_brackets(host), port))
}

/// Opens a TCP connection to the first allowed address of the host that answers, with the socket
/// options of every wire.
pub(crate) async fn open(
    resolver: &Resolver,
    host: &str,
    port: u16,
    egress: &EgressPolicy,
) -> Result<TcpStream, ConnectError> {
    let addresses = allowed_addresses(resolver, host, port, egress).await?;
    let tcp = race_addresses(addresses, connect_one).await?;
    socket_options::tune(&tcp);
    Ok(tcp)
}

/// Opens a TCP connection to the first address of a replica (`host:port`) that answers. The egress
/// policy and the reserve of descriptors are for backends, so neither applies.
pub(crate) async fn open_replica(
    resolver: &Resolver,
    address: &str,
) -> Result<TcpStream, ConnectError> {
    let (host, port) = host_and_port(address)?;
    let addresses = alternate_families(resolved(resolver, host, port).await?);
    race(addresses, connect_one).await
}

async fn resolved(
    resolver: &Resolver,
    host: &str,
    port: u16,
) -> Result<Vec<SocketAddr>, ConnectError> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    resolver.addresses(host, port).await.map_err(|reason| ConnectError::Unreachable {
        reason: format!("host {host} could not be resolved: {reason}"),
    })
}

/// Resolves the host and returns the addresses that the policy allows, in the order to try.
pub(crate) async fn allowed_addresses(
    resolver: &Resolver,
    host: &str,
    port: u16,
    egress: &EgressPolicy,
) -> Result<Vec<SocketAddr>, ConnectError> {
    let found = resolved(resolver, host, port).await?;
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

/// Keeps the resolver's order but alternates the address families, so that a dead family costs only
/// one head start.
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

/// Returns the first connection that comes up, unless only descriptors of the reserve are free.
pub(crate) async fn race_addresses<T, Attempt>(
    addresses: Vec<SocketAddr>,
    attempt: impl Fn(SocketAddr) -> Attempt,
) -> Result<T, ConnectError>
where
    T: Send + 'static,
    Attempt: Future<Output = Result<T, ConnectError>> + Send + 'static,
{
    if !descriptor_reserve::is_available() {
        return Err(ConnectError::Unreachable {
            reason: descriptor_reserve::DESCRIPTORS_EXHAUSTED.to_owned(),
        });
    }
    race(addresses, attempt).await
}

/// Returns the first connection that comes up. Each further attempt starts after a head start or
/// when the attempt before it has failed.
async fn race<T, Attempt>(
    addresses: Vec<SocketAddr>,
    attempt: impl Fn(SocketAddr) -> Attempt,
) -> Result<T, ConnectError>
where
    T: Send + 'static,
    Attempt: Future<Output = Result<T, ConnectError>> + Send + 'static,
{
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
