//! A socket that listens, and may be left to the next process: from then on nobody is taken here, and who comes waits for that
//! one.

use std::{io, net::SocketAddr};

use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
pub struct HandoffListener {
    listener: TcpListener,
    left: CancellationToken,
}

impl HandoffListener {
    pub fn new(listener: TcpListener) -> Self {
        Self { listener, left: CancellationToken::new() }
    }

    pub fn left(&self) -> &CancellationToken {
        &self.left
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next connection; none any more once the port is left. Cancel-safe.
    pub(super) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        tokio::select! { biased;
            () = self.left.cancelled() => std::future::pending().await,
            accepted = self.listener.accept() => accepted,
        }
    }
}
