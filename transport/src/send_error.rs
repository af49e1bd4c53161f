//! Why a request got no response. Made by [`crate::http_client`] and by the connector below it; callers read from it
//! whether the backend can have seen the request.

use crate::egress::Denied;

/// Why there is no response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    #[error(transparent)]
    Denied(Denied),
    #[error("could not connect: {reason}")]
    Connect { reason: String },
    #[error("tls handshake failed: {reason}")]
    Tls { reason: String },
    #[error("connecting took too long")]
    ConnectTimeout,
    #[error("the connection ended before the response: {reason}")]
    Aborted { reason: String },
}

impl SendError {
    /// True when no byte of the request can have reached the backend, so that sending it again is safe.
    pub fn nothing_was_sent(&self) -> bool {
        !matches!(self, Self::Aborted { .. })
    }
}
