//! One event of a stream, with its role and its subject.

use std::time::Instant;

use bytes::Bytes;
use protocol::method::Method;

/// Role of an event in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// The answer to one of the stream's requests. Never dropped.
    Answer,
    /// A request or notification. Never dropped, but too many of them cut the stream.
    Message,
    /// Progress or a log message. Dropped, oldest first, when the client does not keep up.
    Droppable,
}

impl EventKind {
    /// Returns the code that is stored with an event.
    pub const fn code(self) -> u8 {
        match self {
            Self::Answer => 1,
            Self::Message => 2,
            Self::Droppable => 3,
        }
    }

    pub const fn from_code(code: u8) -> Self {
        match code {
            1 => Self::Answer,
            3 => Self::Droppable,
            _ => Self::Message, // never left out, whatever a later build means by it
        }
    }
}

/// Subject of a change notification. While one is unread, a second one about the same subject is
/// not queued.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Topic {
    /// A list, by its `list_changed`.
    List(Method),
    /// A subscribed resource, by the client's URI.
    Resource(String),
    /// A part of a subscribed resource, by the client's URI of the part.
    ResourcePart(String),
}

impl Topic {
    /// Returns whether events about the topic may exceed the limits of a log.
    pub fn may_exceed(&self) -> bool {
        !matches!(self, Self::ResourcePart(_))
    }
}

/// One event as the client gets it.
#[derive(Debug, Clone)]
pub struct Event {
    /// Position in the stream, from 1.
    pub sequence: u64,
    pub kind: EventKind,
    pub topic: Option<Topic>,
    pub frame: Bytes,
    pub(super) at: Instant,
}

impl Event {
    /// Creates an event from its stored parts.
    pub fn from_stored(
        now: Instant,
        sequence: u64,
        kind: EventKind,
        topic: Option<Topic>,
        frame: Bytes,
    ) -> Self {
        Self { sequence, kind, topic, frame, at: now }
    }
}
