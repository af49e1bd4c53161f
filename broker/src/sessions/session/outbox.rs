//! The one stream of a client whose connection carries everything: answers, and what belongs to no request.
//!
//! It is a general stream like that of a GET, so that all that is pushed to a session finds it, but it is not logged: who
//! comes back for it finds it in this process or not at all.

use std::sync::Arc;

use protocol::error::Refusal;

use super::{Session, resumption::events_gone, session_ended, streams::SessionStreams};
use crate::{
    limits::OUTBOX_FRAMES_MAX,
    rules::event_log::LogLimits,
    sessions::stream::{EventStream, StreamCursor},
};

impl Session {
    /// Begins the client's stream, after so many messages that were said before it. What was delivered before there was one
    /// is on it.
    pub fn open_outbox(&self, said: Option<u64>) -> Option<StreamCursor> {
        let limits =
            LogLimits { events: OUTBOX_FRAMES_MAX, bytes: self.shared.config.limits.outbox_bytes };
        let stream = self.lock().streams.open_outbox(limits, said);
        stream.read_from(0).ok()
    }

    /// Goes on with the client's stream, for one that has received so many messages; without a number, after what was sent.
    /// What an earlier process had for it is not known any more.
    pub fn resume_outbox(&self, received: Option<u64>) -> Result<StreamCursor, Refusal> {
        let Some(stream) = self.outbox() else {
            return match received {
                None => self.open_outbox(None).ok_or_else(session_ended),
                Some(_) => Err(events_gone()),
            };
        };
        let position = stream.position_of(received).map_err(|_| events_gone())?;
        let reader = stream.read_from(position).map_err(|_| events_gone())?;
        self.shared.metrics.events_replayed(reader.backlog());
        Ok(reader)
    }

    /// How many connections the client's stream has had.
    pub fn connection_count(&self) -> u64 {
        self.outbox().map_or(0, |stream| stream.reader_count())
    }

    /// Nobody reads the client's stream since it has had this many connections.
    pub fn is_disconnected_since(&self, connections: u64) -> bool {
        self.connection_count() == connections && !self.lock().streams.any_connected()
    }

    fn outbox(&self) -> Option<Arc<EventStream>> {
        self.lock().streams.all_general().iter().rev().find(|stream| stream.is_outbox()).cloned()
    }

    /// Whether it ends with its client's connection.
    pub fn ends_with_connection(&self) -> bool {
        self.transport.ends_with_connection()
    }
}

impl SessionStreams {
    fn open_outbox(&mut self, limits: LogLimits, said: Option<u64>) -> Arc<EventStream> {
        let stream = EventStream::outbox(self.next_number(true), limits, said);
        let stream = self.track_unread(stream);
        self.adopt_unread(&stream);
        self.retain_general(&stream);
        stream
    }
}
