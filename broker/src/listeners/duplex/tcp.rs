//! The data plane over TCP: a message per line, a session per connection.

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use transport::tcp::{self, Stream};

use super::{Guest, serve as serve_connection};
use crate::{broker::Broker, limits::CLIENT_WRITE_STALL_MAX, listeners::admission::Admission};

const TRANSPORT: &str = "tcp";

/// Serves until `stop`, then until the connections there are have ended; those with a session end with it.
pub async fn serve(broker: Arc<Broker>, listener: TcpListener, stop: CancellationToken) {
    let admission = Admission::new(&broker.shared.config.limits);
    let connections = TaskTracker::new();
    loop {
        let (socket, peer, admitted) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = admission.accept(&listener, &broker.shared.metrics) => accepted,
        };
        tcp::tune(&socket);
        let (broker, stop) = (broker.clone(), stop.clone());
        connections.spawn(async move {
            let message_bytes = broker.shared.config.limits.message_bytes;
            let (source, sink) = Stream::Plain(socket).into_lines(message_bytes, CLIENT_WRITE_STALL_MAX);
            serve_connection(broker, Guest { transport: TRANSPORT }, source, sink, stop).await;
            tracing::debug!(%peer, "connection ended");
            drop(admitted);
        });
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}
