//! Refusals of messages that cannot be read, or that belong to an unsupported revision.

use protocol::error::{ErrorKind, Refusal};
use rules::limits::OVERLOAD_RETRY;
use transport::frame::{CloseReason, ReadError};

/// Returns the refusal of an unreadable message, if the client can still receive one.
pub(super) fn refusal_of(error: &ReadError) -> Option<Refusal> {
    match error {
        ReadError::TooLong { limit } => Some(Refusal::new(
            ErrorKind::MessageTooLarge,
            format!("a message may have at most {limit} bytes"),
        )),
        ReadError::Unfinished { is_overload: false, .. } => {
            Some(Refusal::new(ErrorKind::InvalidRequest, "a message was not complete in time"))
        }
        ReadError::Unfinished { is_overload: true, .. } => Some(unfinished_overload()),
        _ => None,
    }
}

/// Returns the refusal of a message that waited too long for memory.
pub(in crate::listeners) fn unfinished_overload() -> Refusal {
    Refusal::new(ErrorKind::Overloaded, "the tenant has too many incomplete messages")
        .retry_after(OVERLOAD_RETRY)
}

/// Returns the refusal of a stateless request on a connection that supports sessions only.
pub(super) fn stateless_unsupported() -> Refusal {
    Refusal::new(
        ErrorKind::UnsupportedEra,
        "this connection supports only sessions, with MCP revisions up to 2025-11-25",
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
