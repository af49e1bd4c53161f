//! Refusals of messages that cannot be read, or that belong to an unsupported revision.

use protocol::error::{ErrorKind, Refusal};
use transport::frame::{CloseReason, ReadError};

/// Returns the refusal of an unreadable message, if the client can still receive one.
pub(super) fn refusal_of(error: &ReadError) -> Option<Refusal> {
    match error {
        ReadError::TooLong { limit } => Some(Refusal::new(
            ErrorKind::MessageTooLarge,
            format!("a message may have at most {limit} bytes"),
        )),
        _ => None,
    }
}

/// Returns the refusal of a stateless request on a connection that supports sessions only.
pub(super) fn stateless_unsupported() -> Refusal {
    Refusal::new(
        ErrorKind::UnsupportedEra,
        "there are only sessions here, which speak MCP up to 2025-11-25",
    )
}

/// Returns the close reason after an unreadable message, or `None` if the connection is already
/// closed.
pub(super) fn close_reason(error: &ReadError) -> Option<CloseReason> {
    match error {
        ReadError::Closed { .. } | ReadError::Io(_) => None,
        fault => Some(fault.close_reason()),
    }
}
