//! Errors of a failed connect. Returned by `connect` and by the clients of every wire above it.

use http::StatusCode;

use crate::egress::Denied;

/// Reason for a failed connect. None of the caller's data has been sent in any of these cases.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    #[error(transparent)]
    Denied(Denied),
    #[error("could not connect: {reason}")]
    Unreachable { reason: String },
    #[error("tls handshake failed: {reason}")]
    Tls { reason: String },
    /// The server speaks HTTP and refused the upgrade.
    #[error("the upgrade to websocket was refused with status {}", status.as_u16())]
    Refused { status: StatusCode },
    #[error("the server does not support {protocol}: {reason}")]
    Handshake { protocol: &'static str, reason: String },
    #[error("connecting took too long")]
    Timeout,
}
