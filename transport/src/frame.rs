//! What every wire has in common: a source of whole messages, a sink for them, and why either of them ends.
//!
//! Implemented by `lines` (pipes, TCP), `websocket` and `quic`; used by the broker's listeners and links, which therefore know
//! no wire. Invariant: a source never yields part of a message, unless the end of the stream was that of its last message too
//! ([`FrameSource::is_unended`]), and neither half keeps more of the peer's bytes than the limit it was made with.

use std::{future::Future, io, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{sync::Semaphore, time::timeout};

/// How long a goodbye may take: to be written, and then until the peer has seen it.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The receiving half of a connection.
pub trait FrameSource: Send {
    /// The next whole message, never an empty one; `None` once the peer has ended in an orderly way.
    ///
    /// Cancel-safe. An error is said once, after that the source is at its end.
    fn next(&mut self) -> impl Future<Output = Result<Option<Bytes>, ReadError>> + Send;

    /// Whether the message that came last had no end of its own but that of the stream, on wires where that can be. Some peers
    /// leave it out behind their last message; one that cannot be read is what a connection that broke left of it.
    fn is_unended(&self) -> bool {
        false
    }

    /// From now on a message may have so many bytes. With `room`, one that grows beyond a few kilobytes takes a permit of it
    /// for as long as it is incomplete, and ends the connection where there is none: for peers that nobody knows yet.
    fn allow(&mut self, message_bytes_max: usize, room: Option<&Arc<Semaphore>>);

    /// Throws away what still comes until the peer ends. For after a goodbye: closing a socket with unread bytes in it resets the
    /// connection, and the peer would lose what it was told last. Whoever calls it sets the time limit.
    fn drain(&mut self) -> impl Future<Output = ()> + Send;
}

/// The sending half of a connection.
pub trait FrameSink: Send {
    /// Writes all of `frames`, in order, in as few system calls as it takes, and leaves it empty (after an error too).
    ///
    /// Not cancel-safe: a dropped call may have written part of a frame, after which only dropping the sink is right.
    fn send_all(
        &mut self,
        frames: &mut Vec<Bytes>,
    ) -> impl Future<Output = Result<(), WriteError>> + Send;

    /// Says goodbye in the wire's own way and ends this half. Takes at most about [`CLOSE_TIMEOUT`].
    fn close(&mut self, goodbye: CloseReason) -> impl Future<Output = ()> + Send;
}

/// Ends a connection so that the peer gets all that was sent, and the reason.
pub async fn farewell(
    source: &mut impl FrameSource,
    sink: &mut impl FrameSink,
    goodbye: CloseReason,
) {
    sink.close(goodbye).await;
    // A peer that goes on talking has had its time.
    let _ = timeout(CLOSE_TIMEOUT, source.drain()).await;
}

/// Why a connection is closed by us. Pipes and TCP have no words for it; there the last message has to say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// The conversation is over.
    Done,
    /// This process stops, or the session lives on elsewhere.
    GoingAway,
    /// The peer broke the rules of the wire.
    Protocol,
    /// A binary message where only text is spoken.
    NotText,
    InvalidUtf8,
    /// Not, or no longer, allowed; or silent for too long.
    Policy,
    /// A message over the limit.
    TooLarge,
    /// The peer takes less than it is sent, for longer than we buffer for it.
    SlowReader,
    /// No room for this connection now; later perhaps.
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

    /// The status code of a WebSocket close frame (RFC 6455, 7.4.1; 1013 is registered with IANA).
    pub fn ws_code(self) -> u16 {
        match self {
            Self::Done => 1000,
            Self::GoingAway => 1001,
            Self::Protocol => 1002,
            Self::NotText => 1003,
            Self::InvalidUtf8 => 1007,
            // There is no code for a slow reader; the reason says which of the two it is.
            Self::Policy | Self::SlowReader => 1008,
            Self::TooLarge => 1009,
            Self::Overloaded => 1013,
        }
    }

    /// The application error code of a QUIC connection close (this project's binding, docs/transports.md).
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

    /// A few words for the peer's log; short enough for every wire.
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

/// Why there is no further message.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("a message is longer than the {limit} bytes allowed")]
    TooLong { limit: usize },
    #[error("a message is binary, only text is accepted")]
    NotText,
    #[error("a message is not utf-8")]
    InvalidUtf8,
    #[error("the peer broke the protocol: {0}")]
    Protocol(&'static str),
    #[error("nothing was heard of the peer for {limit:?}")]
    IdleTimeout { limit: Duration },
    /// The peer closed and named a fault.
    #[error("the peer closed with code {code}: {reason:?}")]
    Closed { code: u64, reason: String },
    /// The peer gave up this one exchange; the connection goes on.
    #[error("the peer gave the exchange up")]
    Cancelled,
    #[error("reading failed: {0}")]
    Io(#[from] io::Error),
}

impl ReadError {
    /// What to tell the peer, where it still listens.
    pub fn goodbye(&self) -> CloseReason {
        match self {
            Self::TooLong { .. } => CloseReason::TooLarge,
            Self::NotText => CloseReason::NotText,
            Self::InvalidUtf8 => CloseReason::InvalidUtf8,
            Self::Protocol(_) => CloseReason::Protocol,
            Self::IdleTimeout { .. } => CloseReason::Policy,
            Self::Io(error) if error.kind() == io::ErrorKind::QuotaExceeded => {
                CloseReason::Overloaded
            }
            Self::Closed { .. } | Self::Cancelled | Self::Io(_) => CloseReason::Done,
        }
    }
}

/// Why frames could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("the connection is closed")]
    Closed,
    #[error("the peer took nothing for {limit:?}")]
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
