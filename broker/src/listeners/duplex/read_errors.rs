//! What a client is told of a message that cannot be read, or that another era would have to serve.

use protocol::error::{ErrorKind, Refusal};
use transport::frame::{CloseReason, ReadError};

/// What to tell a client about a message that could not be read.
pub(super) fn refusal_of(error: &ReadError) -> Option<Refusal> {
    match error {
        ReadError::TooLong { limit } => Some(Refusal::new(
            ErrorKind::MessageTooLarge,
            format!("a message may have at most {limit} bytes"),
        )),
        _ => None,
    }
}

/// What a request that stands alone gets where there are only sessions.
pub(super) fn stateless_unsupported() -> Refusal {
    Refusal::new(
        ErrorKind::UnsupportedEra,
        "there are only sessions here, which speak MCP up to 2025-11-25",
    )
}

/// How a connection ends whose client sent what cannot be read. Returns `None` when the connection is gone.
pub(super) fn close_reason(error: &ReadError) -> Option<CloseReason> {
    match error {
        ReadError::Closed { .. } | ReadError::Io(_) => None,
        fault => Some(fault.goodbye()),
    }
}
