//! Reasons why a request got no response. Returned by [`crate::http_client`], its connector, and
//! [`crate::peer`]. Callers use them to decide whether the other side may have acted on the
//! request.

use h2::Reason;

use crate::{connect_error::ConnectError, egress::Denied};

/// Reason why a request got no response.
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
    #[error(
        "the request was not sent: {max} requests to this replica are in flight, and a connection allows no more"
    )]
    NoStreamLeft { max: u32 },
    #[error("the request was not sent: {reason}")]
    NotSent { reason: String },
    #[error("the connection ended before the response: {reason}")]
    Aborted { reason: String },
}

impl SendError {
    /// Returns true when the other side cannot have acted on the request, so that sending it again
    /// is safe.
    pub fn is_safe_to_retry(&self) -> bool {
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

/// Returns true if the server reported that it did not process the request (RFC 9113, 6.8 and 8.7).
pub(crate) fn was_not_processed(error: &h2::Error) -> bool {
    error.is_remote()
        && (error.is_go_away() && error.reason() == Some(Reason::NO_ERROR)
            || error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM))
}
