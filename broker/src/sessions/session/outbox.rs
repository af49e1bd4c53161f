//! The one stream of a client whose connection carries everything: answers, and messages that
//! belong to no request.
//!
//! It is a general stream like that of a GET, so that pushes to a session find it. It is not
//! logged, so a client can resume it only in this process.

use std::sync::Arc;

use protocol::error::Refusal;
use rules::{event_log::LogLimits, limits::OUTBOX_FRAMES_MAX};

use super::{
    Session,
    resumption::events_gone,
    state::{SessionStreams, session_ended},
};
use crate::sessions::stream::{EventStream, StreamCursor};

/// Opens the client's stream after `sent_before` earlier messages. Messages that were delivered
/// before it go to it.
pub fn open(session: &Session, sent_before: Option<u64>) -> Option<StreamCursor> {
    let limits =
        LogLimits { events: OUTBOX_FRAMES_MAX, bytes: session.shared.config.limits.outbox_bytes };
    let mut state = session.lock();
    let stream = state.streams.open_outbox(limits, sent_before);
    if !session.transport.ends_with_connection() {
        state.streams.track_retained(&stream);
    }
    drop(state);
    stream.read_from(0).ok()
}

/// Resumes the client's stream after `received` messages. Without a number it continues after the
/// last sent message. Messages of an earlier process are gone.
pub fn resume(session: &Session, received: Option<u64>) -> Result<StreamCursor, Refusal> {
    let Some(stream) = current(session) else {
        return match received {
            None => open(session, None).ok_or_else(session_ended),
            Some(_) => Err(events_gone()),
        };
    };
    let position = stream.position_of(received).map_err(|_| events_gone())?;
    session.withdraw_hidden(&stream, position);
    let reader = stream.read_from(position).map_err(|_| events_gone())?;
    session.shared.metrics.events_replayed(reader.backlog());
    Ok(reader)
}

/// Returns how many connections the client's stream has had.
pub fn connection_count(session: &Session) -> u64 {
    current(session).map_or(0, |stream| stream.reader_count())
}

/// Returns whether the client's stream has no reader, and has had no more than this many
/// connections.
pub fn is_disconnected_since(session: &Session, connections: u64) -> bool {
    connection_count(session) == connections && !session.lock().streams.any_connected()
}

fn current(session: &Session) -> Option<Arc<EventStream>> {
    session.lock().streams.all_general().iter().rev().find(|stream| stream.is_outbox()).cloned()
}

impl SessionStreams {
    fn open_outbox(&mut self, limits: LogLimits, sent_before: Option<u64>) -> Arc<EventStream> {
        let stream = EventStream::outbox(self.next_number(true), limits, sent_before);
        let stream = self.track_unread(stream);
        self.adopt_unread(&stream);
        self.retain_general(&stream);
        stream
    }
}
