//! The driver of all links: opens a connection over the wire of its backend, and restores the state
//! of the last one.

use std::sync::Arc;

use config::spec::TransportSpec;
use futures_util::future::BoxFuture;
use protocol::version::Version;
use rules::catalog::ListKind;

use super::{
    Link, LinkDriver, LinkParams,
    connection::Connection,
    era::Era,
    failure::Failure,
    http::{self, http_sse},
    quic,
    stateless::{feed_streams, handshake},
    stdio, tcp, websocket,
};
use crate::{backends::backend::Backend, metrics::Side};

impl Link {
    pub fn new(backend: Arc<Backend>, params: LinkParams) -> Arc<Self> {
        Self::with_driver(&WireDriver, backend, params)
    }
}

/// Connects over the wire that the settings of the backend name.
#[derive(Debug)]
struct WireDriver;

impl LinkDriver for WireDriver {
    fn open<'a>(&self, link: &'a Arc<Link>) -> BoxFuture<'a, Result<Arc<Connection>, Failure>> {
        Box::pin(open(link))
    }

    fn restore<'a>(
        &self,
        link: &'a Arc<Link>,
        connection: &'a Arc<Connection>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(restore(link, connection))
    }

    fn read_lists(&self, link: &Arc<Link>, kinds: &[ListKind]) {
        link.read_own_lists(kinds);
    }

    fn probe_era<'a>(
        &self,
        link: &'a Arc<Link>,
        connection: &'a Arc<Connection>,
    ) -> BoxFuture<'a, Option<Era>> {
        Box::pin(handshake::probe_era(connection, link))
    }
}

async fn open(link: &Arc<Link>) -> Result<Arc<Connection>, Failure> {
    match &link.backend.spec.transport {
        TransportSpec::Http { url } => http::open(link, url).await,
        TransportSpec::Sse { url } => http_sse::open(link, url).await,
        TransportSpec::Stdio { .. } => stdio::open(link).await,
        TransportSpec::Tcp { address, tls } => tcp::open(link, address, tls.as_ref()).await,
        TransportSpec::Quic { address, server_name, streams } => {
            quic::open(link, address, server_name.as_ref(), *streams).await
        }
        TransportSpec::Websocket { url } => websocket::open(link, url).await,
    }
}

async fn restore(link: &Arc<Link>, connection: &Arc<Connection>) {
    link.backend.context.metrics.version_negotiated(
        connection.negotiated().map_or(Version::LATEST_WITH_SESSIONS, |n| n.version),
        Side::Backend,
    );
    if link.has_no_client() {
        feed_streams::watch_lists(connection, link);
    }
    link.restore_level(connection).await;
    link.subscriptions.restore(link, connection).await;
}
