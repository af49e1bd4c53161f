//! The admin plane: a small HTTP API for operators, probes and Prometheus, on a listener of its
//! own.
//!
//! [`crate::serve`] starts it with the bound listener. Every change uses [`Control`]. Invariants:
//! - Only the two health probes and the files of the [`console`] answer without the token check of
//!   [`access`].
//! - Every other operation requires a permission ([`permissions`]).
//! - Every refusal is a [`problem::Problem`].
//! - A slow or silent peer holds only one of a bounded number of connections, for a bounded time.
//!   One address has half of them.

mod access;
mod approvals;
mod audit;
mod audit_verify;
mod backends;
mod catalog;
mod configuration;
mod connections;
mod console;
mod health;
mod http2;
mod input;
mod issuers;
mod live;
mod log;
mod login_cookie;
pub mod openapi;
#[cfg(test)]
mod operator_tests;
mod operators;
mod overview;
mod page;
mod permissions;
mod pins;
mod policies;
mod preconditions;
pub mod problem;
mod revocations;
mod roots;
mod tenants;
#[cfg(test)]
mod tests;
mod trial;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    BoxError, Router,
    extract::Request,
    http::{HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::{get, post, put},
};
use bytes::Bytes;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::{GracefulShutdown, Watcher},
    service::TowerToHyperService,
};
use parking_lot::Mutex;
use rules::{
    client_network::client_network,
    limits::CLIENT_WRITE_STALL_MAX,
    local_rate_limit::{LocalRateLimiter, one_per},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::sync::CancellationToken;
use transport::{
    StallGuard,
    framing::{FramingGuard, FramingViolation, is_websocket_upgrade},
    tls::ListenerKind,
};

use self::{access::Access, problem::Problem};
use super::{
    address_counts::{AddressCounts, AddressSlot},
    connection_limits::LogPace,
    handoff_listener::HandoffListener,
    tls_acceptor::{self, TlsAcceptor},
    trusted_proxies::{ProxiedListener, ProxyProtocol},
};
use crate::{control::Control, sandbox::Confinement};

/// Maximum number of connections. Operators, probes and scrapers are few, and more connections are
/// a mistake.
const CONNECTIONS_MAX: usize = 128;
/// Maximum number of connections of one client address, so that one client leaves room for the
/// probes. A trusted proxy has no limit.
const CONNECTIONS_PER_ADDRESS_MAX: usize = 64;
/// Time for an entire request head, and for the silence between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Time for running answers after the listener was stopped.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(3);
/// Pause before the next accept when the process has no descriptors left. Without a pause the loop
/// would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Minimum interval of log lines about connections of children. Each line has the number of lines
/// left out.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Serves until `stop`, then waits for running answers.
pub async fn serve(
    control: Arc<Control>,
    listener: HandoffListener,
    tls_acceptor: TlsAcceptor,
    stop: CancellationToken,
) {
    let access = match listener.local_addr() {
        Ok(address) => {
            let access = Access::new(control.broker.auth_settings(), address);
            access.announce(address);
            access
        }
        Err(error) => {
            tracing::error!(%error, "the broker cannot read the address of the admin listener");
            return;
        }
    };
    let acceptor = AdminAcceptor {
        confinement: Arc::clone(&control.broker.shared.confinement),
        child_lines: Arc::new(Mutex::new(LocalRateLimiter::new(one_per(LOG_INTERVAL)))),
        started: Instant::now(),
        addresses: AddressCounts::new(CONNECTIONS_PER_ADDRESS_MAX),
        proxies: Arc::new(ProxyProtocol::new(&control.config, ProxiedListener::Admin)),
        router: router(control, access),
        tls_acceptor,
        stop,
    };
    let (connections, graceful) =
        (Arc::new(Semaphore::new(CONNECTIONS_MAX)), GracefulShutdown::new());
    let refusal_log = LogPace::default();
    loop {
        // Both are cancel-safe: an accepted connection is never dropped without service.
        let accepted = tokio::select! { biased;
            () = acceptor.stop.cancelled() => break,
            accepted = accept(&listener, &connections) => accepted,
        };
        match accepted {
            Ok((stream, peer, permit)) => {
                let serving = acceptor.clone().serve_connection(stream, peer, graceful.watcher());
                tokio::spawn(async move {
                    let _permit = permit;
                    serving.await;
                });
            }
            Err(error) => {
                if refusal_log.is_due(Instant::now()) {
                    tracing::warn!(%error, "the admin listener could not accept a connection; the log omits further refusals for a minute");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    if tokio::time::timeout(SHUTDOWN_WAIT, graceful.shutdown()).await.is_err() {
        tracing::warn!("the broker ended before all admin requests were answered");
    }
}

/// What each connection of the admin listener needs.
#[derive(Clone)]
struct AdminAcceptor {
    confinement: Arc<Confinement>,
    /// Limits log lines about refused connections of children.
    child_lines: Arc<Mutex<LocalRateLimiter>>,
    started: Instant,
    addresses: AddressCounts,
    proxies: Arc<ProxyProtocol>,
    router: Router,
    tls_acceptor: TlsAcceptor,
    stop: CancellationToken,
}

impl AdminAcceptor {
    /// Takes a slot of the address, which a trusted proxy does not need. `Err`: it has too many.
    fn slot(&self, address: IpAddr) -> Result<Option<AddressSlot>, ()> {
        if self.proxies.proxies().trusts(address) {
            return Ok(None);
        }
        let slot = self.addresses.acquire(client_network(address));
        if slot.is_none() {
            tracing::debug!(client = %address, "the broker closed an admin connection: its address has too many");
        }
        slot.map(Some).ok_or(())
    }

    fn log_child(&self) {
        let checked = self.child_lines.lock().check(self.started.elapsed());
        if let Ok(left_out) = checked {
            tracing::warn!(left_out, "the broker refused an admin connection of a child process");
        }
    }

    /// Sets up one connection and serves its requests.
    async fn serve_connection(self, mut stream: TcpStream, peer: SocketAddr, watcher: Watcher) {
        if comes_from_child(&self.confinement, &stream).await {
            self.log_child();
            return;
        }
        let Ok(_peer_slot) = self.slot(peer.ip()) else { return };
        let Ok(client) = self.proxies.client(&mut stream, peer).await else { return };
        let is_peer = client.address() == peer.ip().to_canonical();
        let Ok(_client_slot) = (if is_peer { Ok(None) } else { self.slot(client.address()) })
        else {
            return;
        };
        let router =
            self.router.layer(middleware::from_fn_with_state(client, audit::record_client));
        let stream = match self.tls_acceptor.accept(stream, ListenerKind::Http).await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%error, "an admin connection could not be set up");
                return;
            }
        };
        let is_http2 = tls_acceptor::negotiated_http2(&stream);
        let stream = StallGuard::new(stream, CLIENT_WRITE_STALL_MAX);
        let ended = match is_http2 {
            true => http2::serve(stream, router, &self.stop).await,
            false => serve_http1(stream, router, watcher).await,
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "an admin connection ended with an error");
        }
    }
}

async fn serve_http1(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    router: Router,
    watcher: Watcher,
) -> Result<(), BoxError> {
    let stream = FramingGuard::new(stream, Bytes::new(), HEAD_BYTES_MAX, input::BODY_BYTES_MAX);
    let service = TowerToHyperService::new(router.layer(middleware::from_fn(framed)));
    let connection = http1().serve_connection(TokioIo::new(stream), service);
    watcher.watch(connection).await.map_err(Into::into)
}

/// Returns whether the peer is a child with a user of its own. Landlock keeps other children from
/// connecting at all.
async fn comes_from_child(confinement: &Arc<Confinement>, stream: &TcpStream) -> bool {
    let (Ok(peer), Ok(local)) = (stream.peer_addr(), stream.local_addr()) else { return true };
    let confinement = Arc::clone(confinement);
    tokio::task::spawn_blocking(move || confinement.is_from_child(peer, local))
        .await
        .unwrap_or(true)
}

/// Middleware around every route over HTTP/1.1. Refuses framing violations, and closes connections
/// whose request was not read to its end.
async fn framed(request: Request, next: Next) -> Response {
    let violation = FramingViolation::from_headers(request.headers());
    let upgrades = request.headers().get_all(header::UPGRADE);
    let is_last =
        violation.is_some() || is_websocket_upgrade(upgrades.iter().map(HeaderValue::as_bytes));
    let mut response = match violation {
        Some(violation) => {
            Problem::new(violation.status(), "framing", violation.reason()).into_response()
        }
        None => next.run(request).await,
    };
    if is_last || response.status() == StatusCode::PAYLOAD_TOO_LARGE {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn http1() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(HEAD_BYTES_MAX);
    builder
}

/// Accepts a connection. First waits for a permit, so that at the limit new connections stay in the
/// kernel's queue.
async fn accept(
    listener: &HandoffListener,
    connections: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let permit = Arc::clone(connections).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    Ok((stream, peer, permit))
}

/// Returns a router of all routes. [`openapi`] documents the same list, and a test compares the
/// two.
fn router(control: Arc<Control>, access: Access) -> Router {
    let access = Arc::new(access);
    let console = console::routes(Arc::clone(&control), Arc::clone(&access));
    api_routes()
        .fallback(problem::no_such_route)
        .method_not_allowed_fallback(problem::method_not_allowed)
        .layer(middleware::from_fn(permissions::authorize))
        .layer(middleware::from_fn_with_state(Arc::clone(&control), audit::record))
        // Outermost layer: the fallbacks are for operators only too.
        .layer(middleware::from_fn_with_state((Arc::clone(&control), access), access::check))
        .with_state(control)
        .merge(console)
}

fn api_routes() -> Router<Arc<Control>> {
    Router::new()
        .route("/admin/v1/overview", get(overview::overview))
        .route("/admin/v1/operator", get(overview::signed_in))
        .route("/admin/v1/backends", get(overview::backends))
        .route("/admin/v1/activity", get(overview::activity))
        .route("/admin/v1/tenants/{tenant}/catalog", get(overview::catalog))
        .route(
            "/admin/v1/tenants/{tenant}/try",
            post(trial::send).get(trial::listen).delete(trial::end),
        )
        .route("/admin/v1/tenants", get(tenants::list))
        .route(
            "/admin/v1/tenants/{tenant}",
            put(tenants::put).get(tenants::show).delete(tenants::remove),
        )
        .route("/admin/v1/tenants/{tenant}/keys", post(tenants::create_key).get(tenants::list_keys))
        .route("/admin/v1/tenants/{tenant}/keys/{id}", axum::routing::delete(tenants::revoke_key))
        .route("/admin/v1/tenants/{tenant}/backends", get(backends::list))
        .route(
            "/admin/v1/tenants/{tenant}/backends/{backend}",
            put(backends::put).get(backends::show).delete(backends::remove),
        )
        .route("/admin/v1/tenants/{tenant}/backends/{backend}/probe", post(backends::probe))
        .route("/admin/v1/tenants/{tenant}/backends/{backend}/breaker", post(backends::breaker))
        .route("/admin/v1/tenants/{tenant}/backends/{backend}/pins", get(pins::list))
        .route(
            "/admin/v1/tenants/{tenant}/backends/{backend}/pins/{kind}/{name}/diff",
            get(pins::diff),
        )
        .route("/admin/v1/tenants/{tenant}/backends/{backend}/pins/approve", post(pins::approve))
        .route("/admin/v1/tenants/{tenant}/backends/{backend}/pins/block", post(pins::block))
        .route(
            "/admin/v1/tenants/{tenant}/backends/{backend}/roots",
            post(roots::add).delete(roots::remove),
        )
        .route(
            "/admin/v1/tenants/{tenant}/policy",
            get(policies::show).put(policies::put).delete(policies::remove),
        )
        .route("/admin/v1/tenants/{tenant}/policy/check", post(policies::check))
        .route("/admin/v1/tenants/{tenant}/policy/report", get(policies::report))
        .route("/admin/v1/tenants/{tenant}/toolsets", get(catalog::list_toolsets))
        .route(
            "/admin/v1/tenants/{tenant}/toolsets/{toolset}",
            get(catalog::show_toolset).put(catalog::put_toolset).delete(catalog::remove_toolset),
        )
        .route("/admin/v1/tenants/{tenant}/prompts", get(catalog::list_prompts))
        .route(
            "/admin/v1/tenants/{tenant}/prompts/{prompt}",
            get(catalog::show_prompt).put(catalog::put_prompt).delete(catalog::remove_prompt),
        )
        .route("/admin/v1/tenants/{tenant}/catalog/cost", get(catalog::cost))
        .route("/admin/v1/tenants/{tenant}/approvals", get(approvals::list))
        .route(
            "/admin/v1/tenants/{tenant}/approvals/{id}",
            get(approvals::show).post(approvals::decide),
        )
        .route(
            "/admin/v1/tenants/{tenant}/connections",
            get(connections::list).post(connections::link),
        )
        .route(
            "/admin/v1/tenants/{tenant}/connections/{principal}/{backend}",
            axum::routing::delete(connections::remove),
        )
        .route(
            "/admin/v1/tenants/{tenant}/connections/{principal}/{backend}/test",
            axum::routing::post(connections::test),
        )
        .route("/admin/v1/tenants/{tenant}/issuers", get(issuers::list))
        .route(
            "/admin/v1/tenants/{tenant}/issuers/{issuer}",
            get(issuers::show).put(issuers::put).delete(issuers::remove),
        )
        .route(
            "/admin/v1/tenants/{tenant}/revocations",
            post(revocations::create).get(revocations::list),
        )
        .route(
            "/admin/v1/tenants/{tenant}/revocations/{id}",
            axum::routing::delete(revocations::remove),
        )
        .route("/admin/v1/sessions", get(live::sessions))
        .route("/admin/v1/sessions/{id}", get(live::session).delete(live::end_session))
        .route("/admin/v1/tasks", get(live::tasks))
        .route("/admin/v1/tasks/{id}", get(live::task))
        .route("/admin/v1/tasks/{id}/cancel", post(live::cancel_task))
        .route("/admin/v1/subscriptions", get(live::subscriptions))
        .route("/admin/v1/nodes", get(live::nodes))
        .route("/admin/v1/configuration", get(configuration::show))
        .route("/admin/v1/configuration/effective", get(configuration::effective))
        .route("/admin/v1/log", get(log::show).put(log::put).delete(log::reset))
        .route("/admin/v1/drain", post(live::drain))
        .route("/admin/v1/nodes/{node}/drain", post(live::drain_node))
        .route("/admin/v1/audit", get(audit::list))
        .route("/admin/v1/audit/export", get(audit::export))
        .route("/admin/v1/audit/chains", get(audit_verify::chains))
        .route("/admin/v1/audit/verify", get(audit_verify::verify))
        .route("/admin/v1/operators", get(operators::list).post(operators::create))
        .route("/admin/v1/operators/{id}", axum::routing::delete(operators::revoke))
        .route("/admin/v1/openapi.json", get(openapi::serve))
        .route("/metrics", get(health::metrics))
        .route(health::LIVE, get(health::live))
        .route(health::READY, get(health::ready))
}
