//! Why a connection did not come about. Made by `connect` and by the clients of every wire above it.

use http::StatusCode;

use crate::egress::Denied;

/// Why there is no connection. Nothing of the caller's has been sent in any of these cases.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    #[error(transparent)]
    Denied(Denied),
    #[error("could not connect: {reason}")]
    Unreachable { reason: String },
    #[error("tls handshake failed: {reason}")]
    Tls { reason: String },
    /// The other side speaks HTTP and said no to the upgrade.
    #[error("the upgrade to websocket was refused with status {}", status.as_u16())]
    Refused { status: StatusCode },
    #[error("the other side does not speak {protocol}: {reason}")]
    Handshake { protocol: &'static str, reason: String },
    #[error("connecting took too long")]
    Timeout,
}
