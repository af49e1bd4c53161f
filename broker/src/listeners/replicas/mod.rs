//! Requests that other replicas pass on for their clients, because the session is here or nobody else can take them.
//!
//! The same exchange as for clients, but the caller is the one that the other replica names, there is no Origin and no Host
//! to check, and nothing is passed on again. Who calls has proved to be a replica before a byte of its request is read.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use transport::PeerServer;

use super::http::handle_replica;
use crate::{
    broker::Broker,
    rules::sign_in_failures::{Plane, SignInFailureReason},
};

/// Serves until `stop`, then lets the requests in flight finish.
pub async fn serve(broker: Arc<Broker>, listener: TcpListener, stop: CancellationToken) {
    let confinement = Arc::clone(&broker.shared.confinement);
    let told = Arc::downgrade(&broker);
    let server = PeerServer::new(&broker.placement.identity)
        .without(move |peer, local| confinement.is_from_child(peer, local))
        .on_stranger(move |peer| {
            if let Some(broker) = told.upgrade() {
                broker.sign_in_failed(
                    Plane::Internal,
                    SignInFailureReason::PeerCertificate,
                    Some(peer.ip()),
                );
            }
        });
    let handler = move |request| {
        let broker = Arc::clone(&broker);
        async move { handle_replica(&broker, request).await }
    };
    server.serve(listener, stop.cancelled_owned(), handler).await;
}
