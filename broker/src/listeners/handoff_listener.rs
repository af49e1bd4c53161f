//! A listening socket that can be handed over to the next process. After the handover this process
//! accepts nothing, and new connections wait for the next process.

use std::{io, net::SocketAddr};

use rules::limits::shutdown::{LAST_REQUESTS_WITHIN, QUEUE_ACCEPTED_WITHIN};
use tokio::{
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

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

/// Resolves when a stopped listener has had the time to accept what waits in its queue.
pub(super) async fn listener_closing(stop: &CancellationToken) {
    stop.cancelled().await;
    sleep(QUEUE_ACCEPTED_WITHIN).await;
}

/// Waits for the connections of a closed listener. Stops those that have no request by then.
///
/// A client, or a balancer, may have sent a request before it could know that this process ends.
/// It must get an answer, because it cannot detect whether an unanswered request had an effect.
pub(super) async fn stop_connections(connections: &TaskTracker, stop: &CancellationToken) {
    let _over = timeout(LAST_REQUESTS_WITHIN, connections.wait()).await;
    stop.cancel();
    connections.wait().await;
}
