//! A listening socket that can be handed over to the next process. After the handover this process
//! accepts nothing, and new connections wait for the next process.

use std::{io, net::SocketAddr};

use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
pub struct HandoffListener {
    listener: TcpListener,
    handed_off: CancellationToken,
}

impl HandoffListener {
    pub fn new(listener: TcpListener) -> Self {
        Self { listener, handed_off: CancellationToken::new() }
    }

    pub fn handoff_token(&self) -> &CancellationToken {
        &self.handed_off
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Accepts the next connection. Never resolves after the handover. Cancel-safe.
    pub(super) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        tokio::select! { biased;
            () = self.handed_off.cancelled() => std::future::pending().await,
            accepted = self.listener.accept() => accepted,
        }
    }
}
