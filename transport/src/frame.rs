//! Common interface of all wires: a source of whole messages, a sink for them, and the reasons why
//! they end.
//!
//! Implemented by `lines` (pipes, TCP), `websocket` and `quic`. The broker's listeners and links
//! use only this interface, so they do not depend on a wire. Invariants:
//! - A source never yields part of a message. The last message of a stream may end with the stream
//!   itself ([`FrameSource::is_unterminated`]).
//! - Neither half keeps more of the peer's bytes than its limit.

use std::{future::Future, io, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{sync::Semaphore, time::timeout};

use crate::message_bound::MessageBound;

/// Time to write the close message, and then again the time until the peer has seen it.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The receiving half of a connection.
pub trait FrameSource: Send {
    /// Returns the next whole message, which is never empty. Returns `None` after the peer has
    /// ended in an orderly way.
    ///
    /// Cancel-safe. Returns an error once. After the error the source is at its end.
    fn next(&mut self) -> impl Future<Output = Result<Option<Bytes>, ReadError>> + Send;

    /// Returns whether the last message ended with the stream instead of its own end mark. Only
    /// some wires allow this. Some peers omit the end mark after their last message. A message that
    /// cannot be read in this case is the rest of a broken connection.
    fn is_unterminated(&self) -> bool {
        false
    }

    /// Sets the size limit of a message. With `byte_budget`, a message larger than a few kilobytes
    /// takes a permit until it is complete. If no permit is free, the connection ends.
    /// `byte_budget` is for peers that are not authenticated yet.
    fn set_message_limit(&mut self, message_bytes_max: usize, byte_budget: Option<&Arc<Semaphore>>);

    /// Bounds the time and the memory of each incomplete message from now on. A message keeps its
    /// memory until the next call of [`FrameSource::next`]. For authenticated peers. A source of
    /// whole messages ignores it.
    fn bound_messages(&mut self, _bound: MessageBound) {}

    /// Reads and discards data until the peer ends. Callers use it after the close message: closing
    /// a socket with unread bytes resets the connection, and the peer would lose the last message.
    /// The caller sets the time limit.
    fn drain(&mut self) -> impl Future<Output = ()> + Send;
}

/// The sending half of a connection.
pub trait FrameSink: Send {
    /// Writes all of `frames`, in order, in as few system calls as possible. Leaves `frames` empty,
    /// after an error too.
    ///
    /// Not cancel-safe: a dropped call may have written part of a frame. The caller must then drop
    /// the sink.
    fn send_all(
        &mut self,
        frames: &mut Vec<Bytes>,
    ) -> impl Future<Output = Result<(), WriteError>> + Send;

    /// Sends the close reason in the wire's own form and ends this half. Takes at most about
    /// [`CLOSE_TIMEOUT`].
    fn close(&mut self, close_reason: CloseReason) -> impl Future<Output = ()> + Send;
}

/// Ends a connection so that the peer receives all data sent, and the reason.
pub async fn close_gracefully(
    source: &mut impl FrameSource,
    sink: &mut impl FrameSink,
    close_reason: CloseReason,
) {
    sink.close(close_reason).await;
    // A peer that still sends data after this time does not get more.
    let _ = timeout(CLOSE_TIMEOUT, source.drain()).await;
}

/// Reason why this side closes a connection. Pipes and TCP cannot transmit it. There the last
/// message has to give the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// The conversation is over.
    Done,
    /// This process stops, or the session continues on another replica.
    GoingAway,
    /// The peer broke the rules of the wire.
    Protocol,
    /// The peer sent a binary message on a wire that accepts only text.
    NotText,
    InvalidUtf8,
    /// The peer is not, or no longer, allowed, or was silent for too long.
    Policy,
    /// A message exceeded the size limit.
    TooLarge,
    /// The peer read more slowly than this side sent, and the buffer limit was reached.
    SlowReader,
    /// The limit of connections is reached. A later attempt may succeed.
    Overloaded,
}

impl CloseReason {
    pub const ALL: [Self; 9] = [
        Self::Done,
        Self::GoingAway,
        Self::Protocol,
        Self::NotText,
        Self::InvalidUtf8,
        Self::Policy,
        Self::TooLarge,
        Self::SlowReader,
        Self::Overloaded,
    ];

    /// Returns the status code of a WebSocket close frame (RFC 6455, 7.4.1; 1013 is registered with
    /// IANA).
    pub fn ws_code(self) -> u16 {
        match self {
            Self::Done => 1000,
            Self::GoingAway => 1001,
            Self::Protocol => 1002,
            Self::NotText => 1003,
            Self::InvalidUtf8 => 1007,
            // No code exists for a slow reader. The reason text distinguishes the two.
            Self::Policy | Self::SlowReader => 1008,
            Self::TooLarge => 1009,
            Self::Overloaded => 1013,
        }
    }

    /// Returns the application error code of a QUIC connection close (this project's binding,
    /// docs/transports.md).
    pub fn quic_code(self) -> u32 {
        match self {
            Self::Done => 0,
            Self::GoingAway => 1,
            Self::Protocol => 2,
            Self::NotText => 3,
            Self::InvalidUtf8 => 4,
            Self::Policy => 5,
            Self::TooLarge => 6,
            Self::SlowReader => 7,
            Self::Overloaded => 8,
        }
    }

    /// Returns a short text for the peer's log, which fits every wire.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::GoingAway => "going away",
            Self::Protocol => "protocol error",
            Self::NotText => "only text messages are accepted",
            Self::InvalidUtf8 => "message is not utf-8",
            Self::Policy => "not allowed",
            Self::TooLarge => "message too large",
            Self::SlowReader => "too slow in reading",
            Self::Overloaded => "overloaded, try again later",
        }
    }
}

/// Reason why a source yields no further message.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("a message is longer than the {limit} bytes allowed")]
    TooLong { limit: usize },
    #[error("a message is binary, only text is accepted")]
    NotText,
    #[error("a message is not utf-8")]
    InvalidUtf8,
    #[error("the peer violated the protocol: {0}")]
    Protocol(&'static str),
    #[error("the peer sent nothing for {limit:?}")]
    IdleTimeout { limit: Duration },
    /// A message was not complete in time. With `is_overload` it waited for memory.
    #[error("a message was not complete within {limit:?}")]
    Unfinished { limit: Duration, is_overload: bool },
    /// The peer closed and named a fault.
    #[error("the peer closed with code {code}: {reason:?}")]
    Closed { code: u64, reason: String },
    /// The peer cancelled this one exchange. The connection stays open.
    #[error("the peer cancelled the exchange")]
    Cancelled,
    #[error("reading failed: {0}")]
    Io(#[from] io::Error),
}

impl ReadError {
    /// Returns the reason to send to a peer that can still receive one.
    pub fn close_reason(&self) -> CloseReason {
        match self {
            Self::TooLong { .. } => CloseReason::TooLarge,
            Self::NotText => CloseReason::NotText,
            Self::InvalidUtf8 => CloseReason::InvalidUtf8,
            Self::Protocol(_) => CloseReason::Protocol,
            Self::IdleTimeout { .. } | Self::Unfinished { is_overload: false, .. } => {
                CloseReason::Policy
            }
            Self::Unfinished { is_overload: true, .. } => CloseReason::Overloaded,
            Self::Io(error) if error.kind() == io::ErrorKind::QuotaExceeded => {
                CloseReason::Overloaded
            }
            Self::Closed { .. } | Self::Cancelled | Self::Io(_) => CloseReason::Done,
        }
    }
}

/// Reason why frames could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("the connection is closed")]
    Closed,
    #[error("the peer read nothing for {limit:?}")]
    Stalled { limit: Duration },
    #[error("writing failed: {0}")]
    Io(#[from] io::Error),
}

impl From<WriteError> for io::Error {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Closed => Self::from(io::ErrorKind::BrokenPipe),
            WriteError::Stalled { .. } => Self::new(io::ErrorKind::TimedOut, error),
            WriteError::Io(error) => error,
        }
    }
}
