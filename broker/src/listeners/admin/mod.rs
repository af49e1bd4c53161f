//! The admin plane: a small HTTP API for operators, for probes and for Prometheus, on a listener of its own.
//!
//! Started by the runtime with the bound listener; every change goes through [`Control`]. Invariants: nothing but the two
//! health probes answers without passing [`access`]; every refusal is a [`problem::Problem`]; a slow or silent peer holds
//! one of a bounded number of connections for a bounded time and nothing else.

mod access;
mod backends;
mod health;
mod input;
mod live;
pub mod openapi;
pub mod problem;
mod tenants;
#[cfg(test)]
mod tests;

use std::{io, sync::Arc, time::Duration};

use axum::{
    Router, middleware,
    routing::{get, post, put},
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::sync::CancellationToken;

use self::access::Access;
use crate::control::Control;

/// Operators, probes and scrapers are few; the rest is somebody's mistake.
const CONNECTIONS_MAX: usize = 128;
/// For a whole request head, and for the silence between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// How long answers under way may take once the listener was told to stop.
const GOODBYE: Duration = Duration::from_secs(3);
/// Before accepting again when the process has no descriptors left: an error without a pause would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `stop`, then lets answers under way finish.
pub async fn serve(control: Arc<Control>, listener: TcpListener, stop: CancellationToken) {
    let access = match listener.local_addr() {
        Ok(address) => Access::new(&control.config.auth, address),
        Err(error) => {
            tracing::error!(%error, "the admin listener has no address");
            return;
        }
    };
    access.announce();
    let service = TowerToHyperService::new(router(control, access));
    let (connections, graceful) = (Arc::new(Semaphore::new(CONNECTIONS_MAX)), GracefulShutdown::new());
    loop {
        // Both are cancel-safe: an accepted connection is never dropped unserved.
        let accepted = tokio::select! { biased;
            () = stop.cancelled() => break,
            accepted = accept(&listener, &connections) => accepted,
        };
        let (stream, permit) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "the admin listener could not accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), service.clone());
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an admin connection ended early");
            }
            drop(permit);
        });
    }
    drop(listener);
    if tokio::time::timeout(GOODBYE, graceful.shutdown()).await.is_err() {
        tracing::warn!("admin requests were cut off by the end of the broker");
    }
}

/// Waits for room first, so that a full house leaves new connections in the kernel's queue.
async fn accept(listener: &TcpListener, connections: &Arc<Semaphore>) -> io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = Arc::clone(connections).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, permit))
}

/// Every route; [`openapi`] documents the same list, and a test compares the two.
fn router(control: Arc<Control>, access: Access) -> Router {
    Router::new()
        .route("/admin/v1/tenants", get(tenants::list))
        .route("/admin/v1/tenants/{tenant}", put(tenants::put).get(tenants::show).delete(tenants::remove))
        .route("/admin/v1/tenants/{tenant}/keys", post(tenants::create_key).get(tenants::list_keys))
        .route("/admin/v1/tenants/{tenant}/keys/{id}", axum::routing::delete(tenants::revoke_key))
        .route("/admin/v1/tenants/{tenant}/backends", get(backends::list))
        .route("/admin/v1/tenants/{tenant}/backends/{backend}", put(backends::put).get(backends::show).delete(backends::remove))
        .route("/admin/v1/tenants/{tenant}/backends/{backend}/probe", post(backends::probe))
        .route("/admin/v1/sessions", get(live::sessions))
        .route("/admin/v1/sessions/{id}", get(live::session).delete(live::end_session))
        .route("/admin/v1/tasks", get(live::tasks))
        .route("/admin/v1/tasks/{id}", get(live::task))
        .route("/admin/v1/tasks/{id}/cancel", post(live::cancel_task))
        .route("/admin/v1/subscriptions", get(live::subscriptions))
        .route("/admin/v1/nodes", get(live::nodes))
        .route("/admin/v1/drain", post(live::drain))
        .route("/admin/v1/openapi.json", get(openapi::serve))
        .route("/metrics", get(health::metrics))
        .route(health::LIVE, get(health::live))
        .route(health::READY, get(health::ready))
        .fallback(problem::no_such_route)
        .method_not_allowed_fallback(problem::method_not_allowed)
        // Outermost: the fallbacks, too, are for operators only.
        .layer(middleware::from_fn_with_state(Arc::new(access), access::check))
        .with_state(control)
}
