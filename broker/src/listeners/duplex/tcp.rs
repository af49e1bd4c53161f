//! The data plane over TCP: a message per line, a session per connection.

use std::sync::Arc;

use tokio_util::{sync::CancellationToken, task::TaskTracker};
use transport::tls::ListenerKind;

use super::{Guest, serve as serve_connection};
use crate::{
    broker::Broker,
    limits::CLIENT_WRITE_STALL_MAX,
    listeners::{admission::Admission, door::Door, port::Port},
};

const TRANSPORT: &str = "tcp";

/// Serves until `stop`, then until the connections there are have ended; those with a session end with it.
pub async fn serve(broker: Arc<Broker>, listener: Port, door: Door, stop: CancellationToken) {
    let admission = Admission::new(&broker.shared.config.limits);
    let connections = TaskTracker::new();
    loop {
        let (socket, peer, admitted) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = admission.accept(&listener, &broker.shared.metrics) => accepted,
        };
        let (broker, door, stop) = (broker.clone(), door.clone(), stop.clone());
        connections.spawn(async move {
            let _place = admitted;
            let stream = tokio::select! {
                // Boxed, as the opening of a session is.
                opened = Box::pin(door.open(socket, ListenerKind::Tcp)) => opened,
                () = stop.cancelled() => return,
            };
            match stream {
                Ok(stream) => {
                    let (certified, remote) = door.identified(&stream, peer.ip());
                    let guest = Guest { transport: TRANSPORT, certified, remote, known: None };
                    let (source, sink) = stream.into_lines(broker.shared.config.limits.message_bytes, CLIENT_WRITE_STALL_MAX);
                    serve_connection(broker, guest, source, sink, stop).await;
                    tracing::debug!(%peer, "connection ended");
                }
                Err(error) => tracing::debug!(%peer, %error, "a connection did not come in"),
            }
        });
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}
