//! Listening sockets and their tasks. All are bound or inherited before the broker serves, and
//! stopped one by one. A drain leaves a socket to another process that shares its port, or that
//! gets the inherited socket next.

use std::net::SocketAddr;

use config::{Config, DatabaseConfig};
use rules::limits::ACCEPT_QUEUE;
use socket2::{SockFilter, SockRef, Socket};
use tokio::{
    net::{TcpListener, TcpSocket},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;
use transport::quic::{ListenerSecret, QuicListener};

use super::{error::ServeError, inherited_sockets::InheritedSockets};
use crate::listeners::{self, handoff_listener::HandoffListener, tls_acceptor::TlsAcceptor};

pub(super) struct ListenerTask {
    pub(super) address: SocketAddr,
    /// The drain of the socket, until it has happened.
    drain: Option<SocketDrain>,
    stop: CancellationToken,
    pub(super) task: JoinHandle<()>,
}

/// How a drain keeps new connections from a listening socket. A filter on a socket drops them.
enum SocketDrain {
    /// The next process has the same inherited socket, so a filter would affect it too. The
    /// cancellation of this token stops the accept.
    Inherited(CancellationToken),
    /// Another process shares the port. The filter is attached when the drain begins.
    SharedPort(Socket),
    /// The filter is attached before the socket closes.
    OwnPort(Socket),
}

impl ListenerTask {
    pub(super) fn start<Serving>(
        bound: BoundSocket,
        serve: impl FnOnce(HandoffListener, CancellationToken) -> Serving,
    ) -> Result<Self, ServeError>
    where
        Serving: Future<Output = ()> + Send + 'static,
    {
        let system = |source| ServeError::System { what: "the address of a listener", source };
        let BoundSocket { socket, inherited } = bound;
        let address = socket.local_addr().map_err(system)?;
        let filtered = match inherited {
            true => None,
            false => {
                let filtered = SockRef::from(&socket);
                let is_port_shared = filtered.reuse_port().map_err(system)?;
                let filtered = filtered.try_clone().map_err(system)?;
                Some(match is_port_shared {
                    true => SocketDrain::SharedPort(filtered),
                    false => SocketDrain::OwnPort(filtered),
                })
            }
        };
        let port = HandoffListener::new(socket);
        let drain =
            filtered.unwrap_or_else(|| SocketDrain::Inherited(port.handoff_token().clone()));
        Ok(Self { drain: Some(drain), ..Self::spawn(address, |stop| serve(port, stop)) })
    }

    /// Leaves new connections to the process that gets the socket next. Accepted connections
    /// continue.
    pub(super) fn hand_off(&self) -> Option<()> {
        match &self.drain {
            Some(SocketDrain::Inherited(handoff)) => {
                handoff.cancel();
                Some(())
            }
            _ => None,
        }
    }

    /// Leaves new connections to another process that shares the port.
    ///
    /// The kernel offers connections to every socket of the port until the socket is closed. A
    /// closed socket resets the connections in its queue. This filter therefore drops the first
    /// packets of new connections. The clients send them again within a second, after this socket
    /// is closed.
    pub(super) fn release_shared_port(&mut self) -> Option<()> {
        match self.drain {
            Some(SocketDrain::SharedPort(_)) => self.drop_new_connections(),
            _ => None,
        }
    }

    fn drop_new_connections(&mut self) -> Option<()> {
        // The socket must not live on here: it would be listened on for ever.
        let (SocketDrain::SharedPort(socket) | SocketDrain::OwnPort(socket)) = self.drain.take()?
        else {
            return None;
        };
        match socket.attach_filter(&NO_FIRST_PACKETS) {
            Ok(()) => Some(()),
            Err(error) => {
                tracing::warn!(address = %self.address, %error, "the broker cannot refuse new connections while it drains");
                None
            }
        }
    }

    pub(super) fn spawn<Serving>(
        address: SocketAddr,
        serve: impl FnOnce(CancellationToken) -> Serving,
    ) -> Self
    where
        Serving: Future<Output = ()> + Send + 'static,
    {
        let stop = CancellationToken::new();
        let task = tokio::spawn(serve(stop.clone()));
        Self { address, drain: None, stop, task }
    }

    /// Closes the listener. Connections that the kernel has accepted are served first. The others
    /// have until `over` resolves.
    pub(super) async fn close(&mut self, over: impl Future<Output = ()>) {
        self.drop_new_connections();
        self.stop.cancel();
        let is_closed = tokio::select! {
            biased;
            _ = &mut self.task => true,
            () = over => false,
        };
        if !is_closed {
            tracing::warn!(address = %self.address, "connections did not close in time");
        }
    }
}

/// Resolves when the listener ends by itself. Never resolves without a listener.
pub(super) async fn ended(
    listener: &mut Option<ListenerTask>,
) -> Result<(), tokio::task::JoinError> {
    match listener {
        Some(listener) => (&mut listener.task).await,
        None => std::future::pending().await,
    }
}

/// Filter that drops packets with SYN and without ACK, which open a connection. A filter of a TCP
/// socket sees packets from the TCP header on. Byte 13 holds the flags.
const NO_FIRST_PACKETS: [SockFilter; 5] = {
    const LOAD_BYTE: u16 = 0x30;
    const AND: u16 = 0x54;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const FLAGS_AT: u32 = 13;
    const SYN: u32 = 0x02;
    const ACK: u32 = 0x10;
    [
        SockFilter::new(LOAD_BYTE, 0, 0, FLAGS_AT),
        SockFilter::new(AND, 0, 0, SYN | ACK),
        SockFilter::new(JUMP_IF_EQUAL, 0, 1, SYN),
        SockFilter::new(RETURN, 0, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ]
};

/// A listening socket.
pub(super) struct BoundSocket {
    socket: TcpListener,
    inherited: bool,
}

impl BoundSocket {
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()
    }
}

/// Returns the inherited socket, or binds a new one.
pub(super) fn bind_or_inherit(
    key: &'static str,
    address: SocketAddr,
    reuse_port: bool,
    inherited: &mut InheritedSockets,
) -> Result<BoundSocket, ServeError> {
    match inherited.of(key, address)? {
        Some(socket) => {
            let system = |source| ServeError::System { what: "an inherited socket", source };
            tracing::info!(listener = key, %address, "the listener uses an inherited socket");
            Ok(BoundSocket {
                socket: TcpListener::from_std(socket).map_err(system)?,
                inherited: true,
            })
        }
        None => Ok(BoundSocket { socket: bind(key, address, reuse_port)?, inherited: false }),
    }
}

pub(super) fn bind(
    key: &'static str,
    address: SocketAddr,
    reuse_port: bool,
) -> Result<TcpListener, ServeError> {
    let listening = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        socket.set_reuseport(reuse_port)?;
        socket.bind(address)?;
        socket.listen(ACCEPT_QUEUE)
    };
    listening().map_err(|source| ServeError::Bind { key, address, source })
}

/// Binds the QUIC listener, where one is configured with a certificate. `address` is that of this
/// process for other replicas.
pub(super) fn bind_quic(
    config: &Config,
    tls_acceptor: &TlsAcceptor,
    secret: &[u8; 32],
    address: Option<&str>,
) -> Result<Option<QuicListener>, ServeError> {
    let (Some(listener), Some(tls)) = (config.listen.quic, tls_acceptor.tls()) else {
        return Ok(None);
    };
    let limits = listeners::duplex::quic::limits(config);
    let secret = ListenerSecret { shared: secret, name: quic_name(config, address) };
    QuicListener::bind(listener, tls, limits, Some(secret))
        .map(Some)
        .map_err(|source| ServeError::Quic { source })
}

/// Returns a name that no other process with the same root secret has. It is the same after a
/// restart, as far as possible.
fn quic_name<'a>(config: &'a Config, address: Option<&'a str>) -> &'a str {
    match (address, &config.storage.database) {
        (Some(address), _) => address,
        (None, DatabaseConfig::Postgres(_)) => &config.node.id,
        // The database serves one process.
        (None, DatabaseConfig::Sqlite(_)) => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quic_listeners_of_two_replicas_have_different_names() {
        let config = |text: &str| config::load_from(text, []).unwrap();
        let alone = config("node: {id: one}");
        assert_eq!(quic_name(&alone, None), quic_name(&config("node: {id: two}"), None));
        let of = |id: &str| {
            config(&format!(
                "storage: {{url: 'postgres://localhost/db'}}\nnode: {{id: {id}, secret: 0123456789abcdef}}"
            ))
        };
        let (one, two) = (of("one"), of("two"));
        assert_ne!(quic_name(&one, None), quic_name(&two, None));
        let address = Some("10.0.0.1:7400");
        assert_eq!(quic_name(&one, address), quic_name(&two, address), "a generated name");
        assert_ne!(quic_name(&one, address), quic_name(&one, Some("10.0.0.2:7400")));
    }
}
