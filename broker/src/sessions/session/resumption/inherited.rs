//! Streams of earlier owners, as the log has them.

use std::time::Instant;

use bytes::Bytes;
use protocol::{envelope::Message, ids::RequestId, json, method::Method};
use records::{LoggedEvent, StoredStream};
use rules::{
    event_log::{Event, EventKind, StreamSnapshot, Topic},
    limits::NAMED_REQUEST_BYTES_MAX,
};

use super::super::state::first_sequence;
use crate::sessions::stream::{PendingAnswer, answered_id, decode_pending};

/// Events on streams of earlier owners that no client knows.
#[derive(Default)]
pub(super) struct InheritedEvents {
    pub(super) streams: Vec<u64>,
    pub(super) events: Vec<Event>,
    /// True if some of them are lost.
    pub(super) gap: bool,
    /// True if a client that does not resume a stream that it knows may miss events of it.
    pub(super) may_be_missed: bool,
}

/// The logged part of an earlier owner's stream, seen from a client's position.
pub(super) struct InheritedStream {
    pub(super) number: u64,
    pub(super) position: u64,
    pub(super) trimmed_through: u64,
    /// Sequence of the newest logged event.
    pub(super) last_logged: u64,
    /// Events that the client has not received.
    pub(super) events: Vec<Event>,
    /// Requests without an answer.
    pub(super) pending: Vec<PendingAnswer>,
    /// The request that the client's event id names, with the sequence of its answer among the
    /// events. Ids of events before it name the request too.
    pub(super) answered: Option<(RequestId, u64)>,
    /// True if an event between the position and these events is missing, or may be.
    pub(super) gap: bool,
    /// True if the client has received events that the log does not hold.
    pub(super) ahead: bool,
    /// True if the pending answers are known despite that.
    pub(super) is_certain: bool,
    pub(super) is_logged: bool,
}

impl InheritedStream {
    pub(super) fn new(stored: StoredStream, position: u64) -> Self {
        let answered: Vec<RequestId> = stored
            .events
            .iter()
            .filter(|event| is_answer(event))
            .filter_map(|e| answered_id(&e.frame))
            .collect();
        let mut due = decode_pending(&stored.record.pending_answers);
        due.retain(|due| !answered.contains(&due.id));
        let trimmed = stored.trimmed_through > position;
        let ahead = position > stored.last_sequence;
        Self {
            number: stored.record.number,
            position,
            trimmed_through: stored.trimmed_through,
            last_logged: stored.last_sequence,
            events: stored
                .events
                .into_iter()
                .filter(|event| event.sequence > position)
                .map(restored_event)
                .collect(),
            pending: due,
            answered: None,
            gap: trimmed || ahead,
            ahead,
            is_certain: false,
            is_logged: true,
        }
    }

    /// Makes a stream that the log does not hold. The client's event id names the request on it.
    pub(super) fn unlogged(number: u64, position: u64, request: Option<RequestId>) -> Self {
        let due = request.into_iter().map(PendingAnswer::from).collect();
        Self {
            number,
            position,
            trimmed_through: 0,
            last_logged: 0,
            events: Vec::new(),
            pending: due,
            answered: None,
            gap: true,
            ahead: true,
            is_certain: true,
            is_logged: false,
        }
    }

    /// Settles the pending answers of a client that is ahead of the log and may have received some
    /// of them.
    ///
    /// Event ids name a single request until its answer, so they show whether it was answered. That
    /// does not hold with batches: the pending request may be the last of several, which no id
    /// names.
    pub(super) fn seen_with(mut self, named: Option<&RequestId>, batches: bool) -> Self {
        let can_be_named = |due: &PendingAnswer| due.id.raw().len() <= NAMED_REQUEST_BYTES_MAX;
        self.is_certain = match &self.pending[..] {
            [] => true,
            [one] => Some(&one.id) == named || (named.is_none() && can_be_named(one) && !batches),
            _ => false,
        };
        if self.ahead && self.is_certain && named.is_none() {
            self.pending.clear();
        }
        self.answered = named.and_then(|named| {
            let is_its_answer = |event: &&Event| {
                event.kind == EventKind::Answer && answered_id(&event.frame).as_ref() == Some(named)
            };
            Some((named.clone(), self.events.iter().find(is_its_answer)?.sequence))
        });
        self
    }

    /// Returns whether the client can get everything that is left.
    pub(super) fn can_be_answered(&self) -> bool {
        !self.gap || (self.ahead && self.is_certain)
    }

    pub(super) fn held(self, epoch: i64) -> StreamSnapshot {
        let last_sequence = self
            .last_logged
            .max(self.position)
            .max(self.trimmed_through)
            .max(first_sequence(epoch));
        // Events before the position were not loaded. A client that comes with an earlier position
        // meets a gap.
        StreamSnapshot {
            trimmed_through: self.position,
            position: self.position,
            events: self.events,
            last_sequence,
        }
    }
}

fn is_answer(event: &LoggedEvent) -> bool {
    EventKind::from_code(event.kind) == EventKind::Answer
}

pub(super) fn restored_event(event: LoggedEvent) -> Event {
    let topic = topic_of(&event.frame);
    Event::from_stored(
        Instant::now(),
        event.sequence,
        EventKind::from_code(event.kind),
        topic,
        event.frame,
    )
}

/// Returns the topic of a stored notification, so that a new notification can replace it.
fn topic_of(frame: &Bytes) -> Option<Topic> {
    let limits = json::Limits::with_bytes_max(frame.len());
    let message = Message::decode(frame.clone(), &limits).ok()?;
    match message.method {
        Method::ToolsListChanged | Method::PromptsListChanged | Method::ResourcesListChanged => {
            Some(Topic::List(message.method))
        }
        Method::ResourcesUpdated => {
            Some(Topic::Resource(message.text(message.fields.uri)?.into_owned()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use records::StreamRecord;

    use super::*;

    #[test]
    fn the_answer_of_the_named_request_is_found_among_the_events() {
        let seven = RequestId::from_u64(7);
        let answer = (5, EventKind::Answer, r#"{"jsonrpc":"2.0","id":7,"result":{}}"#);
        let read = || InheritedStream::new(stored(0, "[7]", &[PROGRESS, answer]), 3);
        let named = read().seen_with(Some(&seven), false);
        assert_eq!((named.answered, named.pending.len()), (Some((seven, 5)), 0));
        assert_eq!(read().seen_with(None, false).answered, None);
        let other = RequestId::from_u64(8);
        assert_eq!(read().seen_with(Some(&other), false).answered, None);
    }

    fn stored(
        trimmed_through: u64,
        due: &str,
        events: &[(u64, EventKind, &'static str)],
    ) -> StoredStream {
        let record = StreamRecord {
            number: 1 << 32 | 2,
            standalone: false,
            pending_answers: due.as_bytes().to_vec(),
            was_read: true,
        };
        let event = |(sequence, kind, frame): &(u64, EventKind, &'static str)| LoggedEvent {
            sequence: *sequence,
            kind: kind.code(),
            frame: Bytes::from_static(frame.as_bytes()),
        };
        let last_sequence = events.last().map_or(trimmed_through, |(sequence, ..)| *sequence);
        StoredStream {
            record,
            trimmed_through,
            last_sequence,
            events: events.iter().map(event).collect(),
        }
    }

    const PROGRESS: (u64, EventKind, &str) = (3, EventKind::Droppable, "{}");

    #[test]
    fn a_stream_resumes_from_a_position_in_the_log() {
        // The store was read from 2 on, so that 3 is included.
        let inherited =
            InheritedStream::new(stored(0, "[7]", &[PROGRESS, (4, EventKind::Message, "{}")]), 3);
        assert!(!inherited.gap && inherited.can_be_answered());
        assert_eq!(inherited.events.iter().map(|event| event.sequence).collect::<Vec<_>>(), [4]);
        assert_eq!(inherited.pending, [PendingAnswer::from(RequestId::from_u64(7))]);
        let held = inherited.held(2);
        assert_eq!((held.position, held.last_sequence, held.trimmed_through), (3, 2 << 32, 3));
    }

    #[test]
    fn the_start_and_the_end_of_the_trimmed_part_are_not_gaps() {
        assert!(!InheritedStream::new(stored(0, "[]", &[]), 0).gap);
        assert!(!InheritedStream::new(stored(5, "[]", &[]), 5).gap);
        assert!(!InheritedStream::new(stored(5, "[]", &[(6, EventKind::Message, "{}")]), 5).gap);
    }

    #[test]
    fn a_position_in_trimmed_or_missing_events_is_a_gap() {
        assert!(InheritedStream::new(stored(5, "[]", &[(6, EventKind::Message, "{}")]), 4).gap);
        let seven = RequestId::from_u64(7);
        let ahead = InheritedStream::new(stored(0, "[7]", &[]), 9).seen_with(Some(&seven), false);
        assert!(
            ahead.gap && ahead.can_be_answered() && ahead.pending.len() == 1,
            "the one answer is still due"
        );
        assert!(ahead.held(1).last_sequence >= 9, "what is told now comes after what was told");
        let both = InheritedStream::new(stored(0, "[7,8]", &[]), 9).seen_with(None, true);
        assert!(!both.can_be_answered(), "either may have been answered");
        assert!(
            !InheritedStream::new(stored(5, "[7]", &[]), 4)
                .seen_with(Some(&seven), false)
                .can_be_answered()
        );
    }

    #[test]
    fn an_answer_that_the_client_has_seen_is_not_sent_again() {
        let ahead = |due: &str, named: Option<u64>, batches: bool| {
            let named = named.map(RequestId::from_u64);
            InheritedStream::new(stored(0, due, &[]), 9).seen_with(named.as_ref(), batches)
        };
        let answered = ahead("[7]", None, false);
        assert!(
            answered.can_be_answered() && answered.pending.is_empty(),
            "ids name the request until its answer"
        );
        assert!(!ahead("[7]", None, true).can_be_answered(), "it may be what is left of a batch");
        assert!(
            !ahead("[7]", Some(8), false).can_be_answered(),
            "the broker never issued such an id"
        );
        let long = format!("[\"{}\"]", "x".repeat(NAMED_REQUEST_BYTES_MAX));
        assert!(!ahead(&long, None, false).can_be_answered(), "no id names it");
    }

    #[test]
    fn a_logged_answer_is_not_pending() {
        let answer = r#"{"jsonrpc":"2.0","id":"a","result":{}}"#;
        let inherited = InheritedStream::new(
            stored(0, r#"["a",8]"#, &[PROGRESS, (4, EventKind::Answer, answer)]),
            3,
        );
        assert_eq!(inherited.pending, [PendingAnswer::from(RequestId::from_u64(8))]);
    }
}
