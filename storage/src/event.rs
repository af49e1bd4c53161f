//! The log of event streams, from which a client can resume on any replica. Written behind: what was not logged when a
//! process died is a gap, which the broker tells its client about.

use async_trait::async_trait;
use bytes::Bytes;

use crate::{SessionKey, StoreError};

/// One stream of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamRecord {
    /// Unique in the session, over all its owners.
    pub number: u64,
    /// A GET stream, which has no end of its own.
    pub general: bool,
    /// What is to be answered on it; opaque here.
    pub due: Vec<u8>,
    /// Some connection has read from it.
    pub was_read: bool,
}

/// One event. Frames are whole JSON-RPC messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedEvent {
    /// From 1, without holes except for what was never to be sent.
    pub sequence: u64,
    /// Opaque here.
    pub kind: u8,
    pub frame: Bytes,
}

/// One entry of the log, in the order in which things happened to its stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogEntry {
    /// A stream begins; told again, it replaces what was known of the stream but not its events.
    Stream {
        session: SessionKey,
        record: StreamRecord,
    },
    Event {
        session: SessionKey,
        stream: u64,
        event: LoggedEvent,
    },
    /// Events up to and including this one are not held any more.
    Trim {
        session: SessionKey,
        stream: u64,
        through: u64,
    },
    /// Nobody will come back for it.
    Drop {
        session: SessionKey,
        stream: u64,
    },
}

/// A stream and what is held of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredStream {
    pub record: StreamRecord,
    /// Events up to here are gone.
    pub trimmed_through: u64,
    /// The newest event the log ever had of it, still held or not; 0: none. A position beyond it is ahead of the log.
    pub last_sequence: u64,
    /// In order, those after the position that was asked for.
    pub events: Vec<LoggedEvent>,
}

/// A log of event streams.
#[async_trait]
pub trait EventStore: Send + Sync {
    /// `sqlite`, `postgres` or `redis`: a metric's label.
    fn engine(&self) -> &'static str;

    /// Adds entries in their order, in one step. What is told again changes nothing, so an append whose outcome is unknown
    /// may be repeated. Entries about a stream that is not known (any more) are passed over.
    async fn append(&self, entries: &[LogEntry]) -> Result<(), StoreError>;

    /// The streams of a session, by number, without their events.
    async fn streams(&self, session: &SessionKey) -> Result<Vec<StreamRecord>, StoreError>;

    /// One stream with its events after `position`.
    async fn stream(
        &self,
        session: &SessionKey,
        number: u64,
        position: u64,
    ) -> Result<Option<StoredStream>, StoreError>;

    /// The session is over.
    async fn forget_session(&self, session: &SessionKey) -> Result<(), StoreError>;

    /// Removes up to `limit` events and emptied streams to which nothing was added for `age`. Returns how many events went.
    async fn expire_events(&self, age: std::time::Duration, limit: u32) -> Result<u64, StoreError>;
}
