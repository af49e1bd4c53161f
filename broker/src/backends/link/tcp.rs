//! A link over TCP, with or without TLS: a message per line.

use std::sync::Arc;

use config::spec::TcpTls;
use rules::limits::BACKEND_WRITE_STALL_MAX;
use transport::tcp;

use super::{Link, connection::Connection, failure::Failure, pipe};

/// Connects and performs the handshake.
pub(super) async fn open(
    link: &Arc<Link>,
    address: &str,
    tls: Option<&TcpTls>,
) -> Result<Arc<Connection>, Failure> {
    let config = &link.backend.context.config;
    let tls = match tls.and_then(TcpTls::settings) {
        Some(settings) => Some(
            link.backend
                .resources
                .tls_clients
                .tls_client(settings.server_name, link.backend.spec.tls.identity())
                .await?,
        ),
        None => None,
    };
    let connected =
        tcp::connect(address, &config.egress, tls.as_ref(), config.timeouts.connect).await;
    let stream = connected.map_err(|error| Failure::NotSent(error.to_string()))?;
    let (source, sink) = stream.into_lines(link.backend.message_bytes(), BACKEND_WRITE_STALL_MAX);
    pipe::open(link, source, sink).await
}
