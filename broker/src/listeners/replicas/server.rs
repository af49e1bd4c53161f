//! Serves requests that other replicas forward for their clients, because the session is here or
//! because no other replica can accept them.
//!
//! The exchange is that of a client, with these differences:
//! - The other replica names the caller.
//! - There is neither an Origin nor a Host to check.
//! - The request is not forwarded again.
//!
//! The peer has authenticated as a replica before a byte of its request is read.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use http::{Request, Response};
use rules::sign_in_failures::{Plane, SignInFailureReason};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use transport::{PeerBody, PeerServer};

use super::{connection_notice, drain_request, tunnel_server};
use crate::{
    broker::Broker,
    listeners::http::{
        connection_cache::ConnectionCache,
        inbound_request::RequestSource,
        request,
        response::{self, Body},
        websocket,
    },
};

/// Serves until `stop`, then waits for the requests in flight.
pub async fn serve(broker: Arc<Broker>, listener: TcpListener, stop: CancellationToken) {
    let confinement = Arc::clone(&broker.shared.confinement);
    let suspicion = Arc::clone(&confinement);
    let weak_broker = Arc::downgrade(&broker);
    let server = PeerServer::new(&broker.session_locator.identity)
        .refuse_connections(
            move || suspicion.has_users(),
            move |peer, local| confinement.is_from_child(peer, local),
        )
        .on_untrusted_peer(move |peer| {
            if let Some(broker) = weak_broker.upgrade() {
                broker.sign_in_failed(
                    Plane::Internal,
                    SignInFailureReason::PeerCertificate,
                    Some(peer.ip()),
                );
            }
        });
    let handler = move |request| {
        let broker = Arc::clone(&broker);
        async move { handle(&broker, request).await }
    };
    server.serve(listener, stop.cancelled_owned(), handler).await;
}

/// Serves one request that another replica forwarded.
async fn handle(broker: &Arc<Broker>, request: Request<PeerBody>) -> Response<Body> {
    if websocket::matches_path(request.uri().path()) {
        return tunnel_server::handle(broker, request).await;
    }
    if connection_notice::matches_path(request.uri().path()) {
        return connection_notice::take(broker, request).await;
    }
    if drain_request::matches_path(request.uri().path()) {
        return drain_request::take(broker, request.uri().path());
    }
    let (head, body) = request.into_parts();
    let cache = ConnectionCache::default();
    let answer = request::serve_request(broker, RequestSource::Replica, (&head, &cache), body);
    let answer = answer.await.into_response();
    response::count_unread(&broker.shared, &cache, answer)
}
