//! The one stream of a client whose connection carries everything: answers, and what belongs to no request.
//!
//! It is a general stream like that of a GET, so that all that is pushed to a session finds it, but it is not logged: who
//! comes back for it finds it in this process or not at all.

use std::sync::Arc;

use super::{Session, streams::Streams};
use crate::{
    actors::stream::{EventStream, Reader},
    limits::OUTBOX_FRAMES_MAX,
    rules::event_log::LogLimits,
};

/// Transports whose sessions end with their connection: nobody can come back for them.
const BOUND: [&str; 1] = ["tcp"];

impl Session {
    /// Begins the client's stream. What was delivered before there was one is on it.
    pub fn open_outbox(&self) -> Option<Reader> {
        let limits = LogLimits { events: OUTBOX_FRAMES_MAX, bytes: self.shared.config.limits.outbox_bytes };
        let stream = self.lock().streams.open_outbox(limits);
        stream.read_from(0).ok()
    }

    /// Whether it ends with its client's connection.
    pub fn ends_with_connection(&self) -> bool {
        BOUND.contains(&self.transport)
    }
}

impl Streams {
    fn open_outbox(&mut self, limits: LogLimits) -> Arc<EventStream> {
        let stream = EventStream::outbox(self.next_number(true), limits);
        self.take_over_unread(&stream);
        self.keep_general(&stream);
        stream
    }
}
