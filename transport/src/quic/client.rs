//! Connects to a QUIC server.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use quinn::{Connection, Endpoint, EndpointConfig, crypto::rustls::QuicClientConfig};
use tokio::time::timeout;

use super::{
    Limits, QuicConnection, QuicSink, QuicSource, RequestStream, frames::printable,
    gso::GsoLimitRuntime,
};
use crate::{
    connect::{self, host_and_port},
    connect_error::ConnectError,
    egress::EgressPolicy,
    frame::{CloseReason, FrameSink, WriteError},
    resolver::Resolver,
    tls::ClientTls,
};

/// Options of a connect.
#[derive(Debug)]
pub struct ConnectOptions<'a> {
    /// `host:port`.
    pub address: &'a str,
    pub egress: &'a EgressPolicy,
    /// QUIC always uses TLS.
    pub tls: &'a ClientTls,
    pub limits: &'a Limits,
    /// Time limit for name resolution and handshake together.
    pub timeout: Duration,
}

/// A connection to a server, for requests on their own streams next to the control stream. Clones
/// share the connection.
#[derive(Debug, Clone)]
pub struct QuicClient {
    connection: QuicConnection,
    /// The socket, which only this connection uses.
    endpoint: Endpoint,
}

/// Opens a connection and its control stream.
pub async fn connect(
    options: ConnectOptions<'_>,
) -> Result<(QuicClient, QuicSource, QuicSink), ConnectError> {
    timeout(options.timeout, connected(&options)).await.unwrap_or(Err(ConnectError::Timeout))
}

async fn connected(
    options: &ConnectOptions<'_>,
) -> Result<(QuicClient, QuicSource, QuicSink), ConnectError> {
    let (host, port) = host_and_port(options.address)?;
    let name = options.tls.server_name(host)?.to_str().into_owned();
    let crypto = QuicClientConfig::try_from(options.tls.quic())
        .map_err(|error| ConnectError::Tls { reason: error.to_string() })?;
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    config.transport_config(options.limits.client_transport());

    let addresses =
        connect::allowed_addresses(Resolver::shared(), host, port, options.egress).await?;
    let attempt = |address| handshake(address, config.clone(), name.clone());
    let (endpoint, connection) = connect::race_addresses(addresses, attempt).await?;
    let connection = QuicConnection::new(connection, options.limits);
    let (source, sink) =
        connection.open_control().await.map_err(|error| unreachable(options.address, &error))?;
    Ok((QuicClient { connection, endpoint }, source, sink))
}

async fn handshake(
    address: SocketAddr,
    config: quinn::ClientConfig,
    name: String,
) -> Result<(Endpoint, Connection), ConnectError> {
    let endpoint = UdpSocket::bind(any_port(address))
        .and_then(|socket| {
            Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(GsoLimitRuntime))
        })
        .map_err(|error| unreachable(address, &error))?;
    let connecting = endpoint
        .connect_with(config, address, &name)
        .map_err(|error| unreachable(address, &error))?;
    let connection = connecting.await.map_err(|error| match error {
        // Codes from 0x100 on are TLS alerts (RFC 9001, 4.8) of either side.
        quinn::ConnectionError::TransportError(error) => {
            ConnectError::Tls { reason: printable(&error) }
        }
        quinn::ConnectionError::ConnectionClosed(closed) => {
            ConnectError::Tls { reason: printable(&closed) }
        }
        error => unreachable(address, &error),
    })?;
    Ok((endpoint, connection))
}

/// Returns the unspecified address and port 0 in the same address family.
fn any_port(address: SocketAddr) -> SocketAddr {
    if address.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    }
}

fn unreachable(address: impl std::fmt::Display, error: &dyn std::fmt::Display) -> ConnectError {
    ConnectError::Unreachable { reason: format!("{address}: {}", printable(error)) }
}

impl QuicClient {
    /// Sends a request on its own stream. Waits while the server's stream limit is reached.
    pub async fn open_request(&self, request: Bytes) -> Result<RequestStream, WriteError> {
        let mut stream = self.open_stream().await?;
        stream.sink.send_all(&mut vec![request]).await?;
        stream.sink.finish();
        Ok(stream)
    }

    /// Opens a stream if the server allows one more now. Returns `None` otherwise.
    pub fn try_open_stream(&self) -> Option<RequestStream> {
        let mut opening = std::pin::pin!(self.connection.open_request());
        match opening.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(opened) => opened.ok(),
            Poll::Pending => None,
        }
    }

    /// Opens a stream. The server learns of the stream with the first bytes sent on it.
    pub async fn open_stream(&self) -> Result<RequestStream, WriteError> {
        self.connection.open_request().await.map_err(|error| WriteError::Io(error.into()))
    }

    /// Moves to another local port, like a client whose network has changed. The connection stays
    /// open.
    pub fn rebind(&self) -> io::Result<()> {
        self.endpoint.rebind(UdpSocket::bind(any_port(self.endpoint.local_addr()?))?)
    }

    /// Closes the connection at once. For an orderly end close the sink of the control stream.
    pub fn close(&self, close_reason: CloseReason) {
        self.connection.close(close_reason);
    }

    /// Resolves when either side has ended the connection.
    pub async fn closed(&self) {
        self.connection.closed().await;
    }
}
