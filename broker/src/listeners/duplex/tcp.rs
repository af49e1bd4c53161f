//! The data plane over TCP: one message per line, one session per connection.

use std::{pin::pin, sync::Arc};

use rules::{client_transport::Transport, limits::CLIENT_WRITE_STALL_MAX};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use transport::tls::ListenerKind;

use super::{incoming::IncomingConnection, serve as serve_connection};
use crate::{
    broker::Broker,
    listeners::{
        connection_limits::ConnectionLimiter,
        handoff_listener::{HandoffListener, listener_closing, stop_connections},
        tls_acceptor::TlsAcceptor,
        trusted_proxies::{ProxiedListener, ProxyProtocol},
    },
};

/// Serves until `stop`, then until the open connections have ended. Connections with a session end
/// with it.
pub async fn serve(
    broker: Arc<Broker>,
    listener: HandoffListener,
    tls_acceptor: TlsAcceptor,
    stop: CancellationToken,
) {
    let config = &broker.shared.config;
    let admission = Arc::new(ConnectionLimiter::new(
        &config.limits,
        ProxyProtocol::new(config, ProxiedListener::Tcp),
    ));
    let connections = TaskTracker::new();
    let mut queue_accepted = pin!(listener_closing(&stop));
    let connections_stop = CancellationToken::new();
    loop {
        let (mut socket, peer, mut admitted) = tokio::select! { biased;
            accepted = admission.accept(&listener, &broker.shared.metrics) => accepted,
            () = &mut queue_accepted => break,
        };
        let (broker, tls_acceptor, stop, admission) =
            (broker.clone(), tls_acceptor.clone(), connections_stop.clone(), admission.clone());
        connections.spawn(async move {
            // Boxed, like the opening of a session.
            let opening = Box::pin(async {
                let client = admission
                    .identify(&mut socket, peer, &mut admitted, &broker.shared.metrics)
                    .await?;
                Some((tls_acceptor.accept(socket, ListenerKind::Tcp).await, client))
            });
            let opened = tokio::select! {
                opened = opening => opened,
                () = stop.cancelled() => return,
            };
            let Some((stream, client)) = opened else { return };
            let (_permit, client) = (admitted, client.address());
            match stream {
                Ok(stream) => {
                    let (certified, remote) = tls_acceptor.identified(&stream, client);
                    let incoming = IncomingConnection {
                        transport: Transport::Tcp,
                        certified,
                        remote,
                        known: None,
                    };
                    let (mut source, mut sink) = stream.into_lines(
                        broker.shared.config.limits.message_bytes,
                        CLIENT_WRITE_STALL_MAX,
                    );
                    serve_connection(broker, incoming, &mut source, &mut sink, stop).await;
                    tracing::debug!(%peer, %client, "connection ended");
                }
                Err(error) => {
                    tracing::debug!(%peer, %client, %error, "a TCP connection could not be set up")
                }
            }
        });
    }
    drop(listener);
    connections.close();
    stop_connections(&connections, &connections_stop).await;
}
