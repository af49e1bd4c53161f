//! The data plane over TCP: a message per line, a session per connection.

use std::sync::Arc;

use tokio_util::{sync::CancellationToken, task::TaskTracker};
use transport::tls::ListenerKind;

use super::{incoming::IncomingConnection, serve as serve_connection};
use crate::{
    broker::Broker,
    limits::CLIENT_WRITE_STALL_MAX,
    listeners::{
        connection_limits::ConnectionLimiter, handoff_listener::HandoffListener,
        tls_acceptor::TlsAcceptor, trusted_proxies::ProxyProtocol,
    },
    rules::client_transport::Transport,
};

/// Serves until `stop`, then until the connections there are have ended; those with a session end with it.
pub async fn serve(
    broker: Arc<Broker>,
    listener: HandoffListener,
    door: TlsAcceptor,
    stop: CancellationToken,
) {
    let config = &broker.shared.config;
    let admission = Arc::new(ConnectionLimiter::new(
        &config.limits,
        ProxyProtocol::new(config, config.listen.proxies.tcp),
    ));
    let connections = TaskTracker::new();
    loop {
        let (mut socket, peer, mut admitted) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = admission.accept(&listener, &broker.shared.metrics) => accepted,
        };
        let (broker, door, stop, admission) =
            (broker.clone(), door.clone(), stop.clone(), admission.clone());
        connections.spawn(async move {
            // Boxed, as the opening of a session is.
            let opening = Box::pin(async {
                let client = admission
                    .identify(&mut socket, peer, &mut admitted, &broker.shared.metrics)
                    .await?;
                Some((door.open(socket, ListenerKind::Tcp).await, client))
            });
            let opened = tokio::select! {
                opened = opening => opened,
                () = stop.cancelled() => return,
            };
            let Some((stream, client)) = opened else { return };
            let (_place, client) = (admitted, client.address());
            match stream {
                Ok(stream) => {
                    let (certified, remote) = door.identified(&stream, client);
                    let guest = IncomingConnection {
                        transport: Transport::Tcp,
                        certified,
                        remote,
                        known: None,
                    };
                    let (source, sink) = stream.into_lines(
                        broker.shared.config.limits.message_bytes,
                        CLIENT_WRITE_STALL_MAX,
                    );
                    serve_connection(broker, guest, source, sink, stop).await;
                    tracing::debug!(%peer, %client, "connection ended");
                }
                Err(error) => {
                    tracing::debug!(%peer, %client, %error, "a connection did not come in")
                }
            }
        });
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}
