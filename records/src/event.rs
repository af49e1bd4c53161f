//! The log of event streams, from which a client can resume on any replica. Entries are written
//! behind. Events that were not logged when a process died form a gap, which the broker reports to
//! the client.

use bytes::Bytes;

use crate::SessionKey;

/// One stream of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamRecord {
    /// Unique in the session, across all its owners.
    pub number: u64,
    /// True for a GET stream, which has no end of its own.
    pub standalone: bool,
    /// Requests to be answered on the stream. Opaque here.
    pub pending_answers: Vec<u8>,
    /// Set when a connection has read from the stream.
    pub was_read: bool,
}

/// One event. Frames are whole JSON-RPC messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedEvent {
    /// Starts at 1. Gaps exist only for messages that were never to be sent.
    pub sequence: u64,
    /// Opaque here.
    pub kind: u8,
    pub frame: Bytes,
}

/// One entry of the log. The entries of a stream are in the order of its events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogEntry {
    /// A stream begins. A repeated entry replaces the record of the stream but not its events.
    Stream {
        session: SessionKey,
        record: StreamRecord,
    },
    Event {
        session: SessionKey,
        stream: u64,
        event: LoggedEvent,
    },
    /// The log drops the events up to and including this one.
    Trim {
        session: SessionKey,
        stream: u64,
        through: u64,
    },
    /// No client will resume the stream.
    Drop {
        session: SessionKey,
        stream: u64,
    },
}

/// A stream and the events that the log holds of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredStream {
    pub record: StreamRecord,
    /// Sequence number up to which events are gone.
    pub trimmed_through: u64,
    /// The newest event that the log ever had of the stream, even if it is gone, or 0 if none. A
    /// higher position is ahead of the log.
    pub last_sequence: u64,
    /// The events after the requested position, in order.
    pub events: Vec<LoggedEvent>,
}
