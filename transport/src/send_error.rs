//! Why a request got no response. Made by [`crate::http_client`], the connector below it and [`crate::peer`]; callers
//! read from it whether the other side can have acted on the request.

use crate::{connect_error::ConnectError, egress::Denied};

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
    #[error("the request was not taken: {reason}")]
    NotSent { reason: String },
    #[error("the connection ended before the response: {reason}")]
    Aborted { reason: String },
}

impl SendError {
    /// True when the other side cannot have acted on the request, so that sending it again is safe.
    pub fn nothing_was_sent(&self) -> bool {
        !matches!(self, Self::Aborted { .. })
    }
}

impl From<ConnectError> for SendError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Denied(denied) => Self::Denied(denied),
            ConnectError::Unreachable { reason } => Self::Connect { reason },
            ConnectError::Tls { reason } => Self::Tls { reason },
            ConnectError::Timeout => Self::ConnectTimeout,
            ConnectError::Refused { .. } | ConnectError::Handshake { .. } => {
                Self::Connect { reason: error.to_string() }
            }
        }
    }
}
