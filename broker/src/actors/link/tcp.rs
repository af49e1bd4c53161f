//! A link over TCP: a message per line.

use std::sync::Arc;

use transport::tcp;

use super::{
    Link,
    connection::{Connection, Failure},
    pipe,
};
use crate::limits::BACKEND_WRITE_STALL_MAX;

/// Connects and performs the handshake.
pub(super) async fn open(link: &Arc<Link>, address: &str) -> Result<Arc<Connection>, Failure> {
    let config = &link.backend.shared.config;
    let connected = tcp::connect(address, &config.egress, None, config.timeouts.connect).await;
    let stream = connected.map_err(|error| Failure::NotSent(error.to_string()))?;
    let (source, sink) = stream.into_lines(config.limits.message_bytes, BACKEND_WRITE_STALL_MAX);
    pipe::open(link, source, sink).await
}
