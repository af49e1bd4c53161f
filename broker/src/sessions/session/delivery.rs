//! Delivery of messages to a session's client: on the stream of a request, or on the general stream.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use protocol::{ids::RequestId, phase::SessionPhase};
use rules::event_log::{EventKind, Overflow, Topic};

use super::Session;
use crate::sessions::stream::{EventStream, StreamCursor};

impl Session {
    /// Opens the stream of one POST with these requests, and `unnamed` more whose ids could not be
    /// read.
    pub fn open_stream(&self, due: Vec<RequestId>, unnamed: usize) -> Arc<EventStream> {
        self.lock().streams.open_answer_stream(due, unnamed)
    }

    /// Opens a stream for the messages of a pooled session that belong to no request.
    pub fn open_notification_stream(&self) -> Option<StreamCursor> {
        self.lock().streams.open_general(Vec::new(), Vec::new()).stream.read_from(0).ok()
    }

    /// Keeps a stream for resumption, because the client gets its event ids.
    pub fn retain_stream(&self, stream: &Arc<EventStream>) {
        let mut state = self.lock();
        if !self.is_leaving() {
            state.streams.retain(stream);
        }
    }

    /// Leaves this stream to the session's next owner. Returns false if the client cannot come back
    /// to it.
    pub(super) fn retain_for_next_owner(&self, stream: &Arc<EventStream>) -> bool {
        if !can_resume_later(self, stream) {
            return false;
        }
        self.lock().streams.retain(stream);
        stream.pause();
        true
    }

    /// Sends a message that belongs to no request.
    pub fn deliver(&self, kind: EventKind, frame: Bytes) {
        self.deliver_coalesced(kind, None, frame);
    }

    /// Sends a message as [`Session::deliver`] does. An unread message of the same topic makes it
    /// superfluous.
    pub fn deliver_coalesced(&self, kind: EventKind, topic: Option<Topic>, frame: Bytes) {
        let mut state = self.lock();
        // The push happens under the lock. Once the session begins to leave, no event is added that
        // its next owner would miss.
        let pushed = match state.phase {
            SessionPhase::Closing | SessionPhase::Closed => Err(Overflow),
            _ if !self.kind.has_client() && state.streams.all_general().is_empty() => {
                self.shared.metrics.dropped_notification("unattributed");
                return;
            }
            _ => state.streams.general().push_coalesced(Instant::now(), kind, topic, frame),
        };
        drop(state);
        match pushed {
            Ok(true) => {}
            Ok(false) => self.shared.metrics.dropped_notification("repeated"),
            Err(Overflow) => self.shared.metrics.dropped_notification("slow_client"),
        }
    }

    /// Sends a message on one stream of the session. Counts the messages that did not fit.
    pub fn push_to(&self, stream: &EventStream, kind: EventKind, frame: Bytes) {
        let _cut = stream.push(Instant::now(), kind, frame);
        let dropped = stream.take_dropped_count();
        (0..dropped).for_each(|_| self.shared.metrics.dropped_notification("slow_client"));
    }
}

/// Returns whether the client has, or is about to get, an event id with which it can resume the stream
/// at the session's next owner.
pub(super) fn can_resume_later(session: &Session, stream: &EventStream) -> bool {
    let is_logged = session.shared.persistence.event_log.is_some();
    let has_event_id = stream.is_resumable() || session.agreement.version.priming_event();
    // A stream of any other kind of connection exists only in this process.
    let is_bound = stream.is_outbox() || session.transport.ends_with_connection();
    is_logged && has_event_id && !is_bound
}
