//! A GET: a new general stream, or an old stream from where the client left it, whichever owner of the session began it.
//!
//! A position nobody can go on from is never passed over: on a GET stream the client is told what may have changed, on any
//! other stream it gets an error. A stream of answers whose calls ended with an earlier owner gets an answer for each.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    handshake,
    ids::RequestId,
    json,
    method::Method,
};

use super::{
    Session, SessionState,
    streams::{first_sequence, is_general},
};
use crate::{
    limits::NAMED_REQUEST_BYTES_MAX,
    persistence::{LogEntry, LoggedEvent, StoredStream},
    rules::event_log::{Event, EventKind, StreamSnapshot, Topic},
    sessions::stream::{
        EventId, EventStream, PendingAnswer, StreamCursor, answered_id, decode_pending,
        parse_event_id,
    },
};

/// A stream to be read by a GET.
#[derive(Debug)]
pub struct ResumedStream {
    pub reader: StreamCursor,
    /// Events were lost; the stream begins with what may have changed.
    pub gap: bool,
}

impl Session {
    /// A GET without `Last-Event-ID`. A gap there is, too, when something is missing of what an earlier owner had for it.
    pub async fn open_general_stream(&self) -> Result<ResumedStream, Refusal> {
        self.open_new(None, false).await
    }

    /// Opens the stream that a GET names in `Last-Event-ID`, and only that. `answer` sees to each request on it that an earlier
    /// owner left without an answer.
    pub(in crate::sessions) async fn open_stream_again(
        &self,
        last_event_id: &str,
        answer: impl Fn(PendingAnswer, &Arc<EventStream>),
    ) -> Result<ResumedStream, Refusal> {
        let EventId { stream: number, sequence: position, request } =
            parse_event_id(last_event_id).ok_or_else(cannot_resume)?;
        let (known, possible, foreign) = {
            let state = self.open_state()?;
            (
                state.streams.get(number),
                state.streams.may_have_existed(number),
                state.streams.is_inherited(number),
            )
        };
        if let Some(stream) = known {
            return self.resume_known(&stream, position).await;
        }
        if !possible {
            return Err(cannot_resume());
        }
        // What we made ourselves and do not know any more, we have let the log forget.
        let stored = match foreign {
            // With the event at the position, which may be an answer.
            true => match self
                .shared
                .durable
                .logged_stream(&self.key, number, position.saturating_sub(1))
                .await
            {
                Err(_) if is_general(number) && self.shared.durable.logs_apart() => {
                    return self.open_after_gap(Some(number)).await;
                }
                stored => stored?,
            },
            false => None,
        };
        let stored = stored.map(|stored| {
            InheritedStream::new(stored, position)
                .seen_with(request.as_ref(), self.version.batches())
        });
        match stored {
            Some(stored) if is_general(number) && !stored.gap => {
                self.continue_general(stored).await
            }
            Some(stored) if !is_general(number) && stored.can_be_answered() => {
                self.continue_answers(stored, answer)
            }
            _ if is_general(number) => self.open_after_gap(Some(number)).await,
            // Its owner died before it was logged, or the log lost it: the request is answered for what it is.
            None if foreign && request.is_some() => {
                self.continue_answers(InheritedStream::unlogged(number, position, request), answer)
            }
            _ => Err(events_gone()),
        }
    }

    async fn resume_known(
        &self,
        stream: &Arc<EventStream>,
        position: u64,
    ) -> Result<ResumedStream, Refusal> {
        match stream.read_from(position) {
            Ok(reader) => {
                if stream.is_general() {
                    let left_out = self.lock().streams.adopt_unknown(stream);
                    self.count_dropped(left_out);
                }
                Ok(ResumedStream { reader, gap: false })
            }
            Err(_) if stream.is_general() => self.open_after_gap(Some(stream.number)).await,
            Err(_) => Err(events_gone()),
        }
    }

    /// A new GET stream for a client that missed something.
    async fn open_after_gap(&self, lost: Option<u64>) -> Result<ResumedStream, Refusal> {
        self.open_new(lost, true).await
    }

    /// A new GET stream. After a gap it begins with everything that may have changed.
    async fn open_new(&self, lost: Option<u64>, gap: bool) -> Result<ResumedStream, Refusal> {
        let inheritance = self.load_inherited().await?;
        let mut state = self.open_state()?;
        let inherited = self.take_inherited(&mut state, inheritance);
        let gap = gap || inherited.gap;
        let changes = if gap { self.change_notifications(&state) } else { Vec::new() };
        let opened = state.streams.open_general(changes, inherited.events);
        let reader = opened.stream.read_from(0).map_err(|_| cannot_resume())?;
        self.drop_from_log(&inherited.streams);
        if let Some(lost) = lost {
            match state.streams.get(lost) {
                Some(stream) if stream.is_connected() => {} // somebody else reads it
                Some(_) => state.streams.forget(lost),
                None => self.drop_from_log(&[lost]),
            }
        }
        drop(state);
        self.count_dropped(opened.left_out);
        if gap {
            self.shared.metrics.event_gap();
            tracing::info!(session = %self.digest, "events are lost, the client is told what may have changed");
        }
        Ok(ResumedStream { reader, gap })
    }

    fn change_notifications(&self, state: &SessionState) -> Vec<(Topic, Bytes)> {
        let lists = [
            (self.advertised.tools_list_changed, Method::ToolsListChanged),
            (self.advertised.prompts_list_changed, Method::PromptsListChanged),
            (self.advertised.resources_list_changed, Method::ResourcesListChanged),
        ];
        let lists = lists.into_iter().filter(|(promised, _)| *promised);
        let lists =
            lists.map(|(_, method)| (Topic::List(method), handshake::notification(method, None)));
        let resources = state.subscriptions.keys().map(|uri| {
            let params = format!("{{\"uri\":{}}}", json::quote(uri));
            (
                Topic::Resource(uri.clone()),
                handshake::notification(Method::ResourcesUpdated, Some(params.as_bytes())),
            )
        });
        lists.chain(resources).collect()
    }

    async fn continue_general(&self, stored: InheritedStream) -> Result<ResumedStream, Refusal> {
        let inheritance = self.load_inherited().await?;
        let mut state = self.open_state()?;
        let (number, position, mut gap) = (stored.number, stored.position, false);
        let stream = match state.streams.get(number) {
            Some(stream) => stream, // another GET was faster
            None => {
                let inherited = self.take_inherited(&mut state, inheritance);
                gap = inherited.gap;
                let stream = EventStream::restored(
                    number,
                    state.streams.limits,
                    None,
                    stored.held(self.epoch()),
                );
                let stream = state.streams.track_unread(stream);
                let left_out = state.streams.continue_general(&stream, inherited.events);
                self.drop_from_log(&inherited.streams);
                self.count_dropped(left_out);
                if gap {
                    self.shared.metrics.event_gap();
                    self.change_notifications(&state).into_iter().for_each(|(topic, frame)| {
                        let _never_cut = stream.push_coalesced(
                            Instant::now(),
                            EventKind::Message,
                            Some(topic),
                            frame,
                        );
                    });
                }
                stream
            }
        };
        drop(state);
        stream
            .read_from(position)
            .map(|reader| ResumedStream { reader, gap })
            .map_err(|_| cannot_resume())
    }

    fn continue_answers(
        &self,
        stored: InheritedStream,
        answer: impl Fn(PendingAnswer, &Arc<EventStream>),
    ) -> Result<ResumedStream, Refusal> {
        let mut state = self.open_state()?;
        let (number, position, is_logged) = (stored.number, stored.position, stored.is_logged);
        let mut due = Vec::new();
        let stream = match state.streams.get(number) {
            Some(stream) => stream,
            None => {
                due.clone_from(&stored.pending);
                let stream = EventStream::restored(
                    number,
                    state.streams.limits,
                    Some(due.clone()),
                    stored.held(self.epoch()),
                );
                let stream = state.streams.track_unread(stream);
                if is_logged {
                    state.streams.continue_answers(&stream);
                } else {
                    state.streams.retain(&stream);
                }
                stream
            }
        };
        drop(state);
        due.into_iter().for_each(|due| answer(due, &stream));
        stream
            .read_from(position)
            .map(|reader| ResumedStream { reader, gap: false })
            .map_err(|_| events_gone())
    }

    /// What earlier owners left on streams that no client knows of. `None`: that is nowhere to be read now, which keeps no
    /// client from its stream.
    async fn load_inherited(&self) -> Result<Option<Vec<StoredStream>>, Refusal> {
        match self.load_unread().await {
            Err(_) if self.shared.durable.logs_apart() => Ok(None),
            left => left.map(Some),
        }
    }

    async fn load_unread(&self) -> Result<Vec<StoredStream>, Refusal> {
        if !self.lock().streams.may_inherit {
            return Ok(Vec::new());
        }
        let durable = &self.shared.durable;
        let unread = durable
            .logged_streams(&self.key)
            .await?
            .into_iter()
            .filter(|stream| stream.general && !stream.was_read);
        let mut left = Vec::new();
        for record in unread {
            left.extend(durable.logged_stream(&self.key, record.number, 0).await?);
        }
        Ok(left)
    }

    /// Takes over what was left, once: whoever comes second finds nothing.
    fn take_inherited(
        &self,
        state: &mut SessionState,
        left: Option<Vec<StoredStream>>,
    ) -> InheritedEvents {
        let mut inherited = InheritedEvents::default();
        let Some(left) = left else {
            inherited.gap = state.streams.may_inherit; // until it can be read
            return inherited;
        };
        if !std::mem::take(&mut state.streams.may_inherit) {
            return inherited;
        }
        for stored in
            left.into_iter().filter(|stored| state.streams.get(stored.record.number).is_none())
        {
            inherited.streams.push(stored.record.number);
            // Nobody read it, so whatever is missing was never told.
            inherited.gap |= stored.trimmed_through > 0;
            inherited.events.extend(stored.events.into_iter().map(restored_event));
        }
        inherited
    }

    fn open_state(&self) -> Result<parking_lot::MutexGuard<'_, SessionState>, Refusal> {
        let state = self.lock();
        state.check_accepting().map(|()| state)
    }

    /// After what was on them was logged elsewhere, so that nothing is lost in between.
    fn drop_from_log(&self, streams: &[u64]) {
        if let Some(log) = &self.shared.durable.event_log {
            streams
                .iter()
                .for_each(|stream| log.log(LogEntry::Drop { session: self.key, stream: *stream }));
        }
    }

    fn count_dropped(&self, count: usize) {
        (0..count).for_each(|_| self.shared.metrics.dropped_notification("slow_client"));
    }
}

/// What waits on streams of earlier owners that no client knows of.
#[derive(Default)]
struct InheritedEvents {
    streams: Vec<u64>,
    events: Vec<Event>,
    /// Not all of it is there.
    gap: bool,
}

/// What the log has of a stream of an earlier owner, seen from a client's position.
struct InheritedStream {
    number: u64,
    position: u64,
    trimmed_through: u64,
    /// The newest that was logged.
    last_logged: u64,
    /// Those the client has not seen.
    events: Vec<Event>,
    /// Requests without an answer.
    pending: Vec<PendingAnswer>,
    /// Something between the position and these events is missing, or may be.
    gap: bool,
    /// The client has seen events that are not in the log.
    ahead: bool,
    /// What is due of that is known for all that.
    is_certain: bool,
    is_logged: bool,
}

impl InheritedStream {
    fn new(stored: StoredStream, position: u64) -> Self {
        let answered: Vec<RequestId> = stored
            .events
            .iter()
            .filter(|event| is_answer(event))
            .filter_map(|e| answered_id(&e.frame))
            .collect();
        let mut due = decode_pending(&stored.record.due);
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
            gap: trimmed || ahead,
            ahead,
            is_certain: false,
            is_logged: true,
        }
    }

    /// A stream that the log knows nothing of; its client knows what it asked for there.
    fn unlogged(number: u64, position: u64, request: Option<RequestId>) -> Self {
        let due = request.into_iter().map(PendingAnswer::from).collect();
        Self {
            number,
            position,
            trimmed_through: 0,
            last_logged: 0,
            events: Vec::new(),
            pending: due,
            gap: true,
            ahead: true,
            is_certain: true,
            is_logged: false,
        }
    }

    /// A client that is ahead of the log may have seen answers that the log does not know of. Of a single request its event
    /// id tells, because ids name it until it is answered. Not so where there are batches: what is due may be the last of
    /// several, which no id names.
    fn seen_with(mut self, named: Option<&RequestId>, batches: bool) -> Self {
        let can_be_named = |due: &PendingAnswer| due.id.raw().len() <= NAMED_REQUEST_BYTES_MAX;
        self.is_certain = match &self.pending[..] {
            [] => true,
            [one] => Some(&one.id) == named || (named.is_none() && can_be_named(one) && !batches),
            _ => false,
        };
        if self.ahead && self.is_certain && named.is_none() {
            self.pending.clear();
        }
        self
    }

    /// Whether its client can be given all that is left.
    fn can_be_answered(&self) -> bool {
        !self.gap || (self.ahead && self.is_certain)
    }

    fn held(self, epoch: i64) -> StreamSnapshot {
        let last_sequence = self
            .last_logged
            .max(self.position)
            .max(self.trimmed_through)
            .max(first_sequence(epoch));
        // What is before the position was not loaded: an earlier one, should its client come with that too, is a gap here.
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

fn restored_event(event: LoggedEvent) -> Event {
    let topic = topic_of(&event.frame);
    Event::stored(
        Instant::now(),
        event.sequence,
        EventKind::from_code(event.kind),
        topic,
        event.frame,
    )
}

/// What a stored notification is about, so that what is told now does not repeat it.
fn topic_of(frame: &Bytes) -> Option<Topic> {
    let limits = json::Limits { bytes_max: frame.len(), ..json::Limits::default() };
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

fn cannot_resume() -> Refusal {
    Refusal::new(
        ErrorKind::InvalidRequest,
        "Last-Event-ID names nothing this session can be resumed from; open a stream without it",
    )
}

pub(super) fn events_gone() -> Refusal {
    Refusal::new(
        ErrorKind::EventsGone,
        "the events after this Last-Event-ID are not held any more; the answers they held are lost",
    )
}

#[cfg(test)]
mod tests {
    use crate::persistence::StreamRecord;

    use super::*;

    fn stored(
        trimmed_through: u64,
        due: &str,
        events: &[(u64, EventKind, &'static str)],
    ) -> StoredStream {
        let record = StreamRecord {
            number: 1 << 32 | 2,
            general: false,
            due: due.as_bytes().to_vec(),
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
    fn a_position_the_log_has_seen_is_gone_on_from() {
        // The store was asked for what follows 2, to see 3.
        let inherited =
            InheritedStream::new(stored(0, "[7]", &[PROGRESS, (4, EventKind::Message, "{}")]), 3);
        assert!(!inherited.gap && inherited.can_be_answered());
        assert_eq!(inherited.events.iter().map(|event| event.sequence).collect::<Vec<_>>(), [4]);
        assert_eq!(inherited.pending, [PendingAnswer::from(RequestId::from_u64(7))]);
        let held = inherited.held(2);
        assert_eq!((held.position, held.last_sequence, held.trimmed_through), (3, 2 << 32, 3));
    }

    #[test]
    fn the_start_and_the_very_end_of_what_was_trimmed_are_no_gaps() {
        assert!(!InheritedStream::new(stored(0, "[]", &[]), 0).gap);
        assert!(!InheritedStream::new(stored(5, "[]", &[]), 5).gap);
        assert!(!InheritedStream::new(stored(5, "[]", &[(6, EventKind::Message, "{}")]), 5).gap);
    }

    #[test]
    fn what_was_trimmed_or_never_logged_is_a_gap() {
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
    fn who_has_seen_the_answer_is_not_answered_again() {
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
        assert!(!ahead("[7]", Some(8), false).can_be_answered(), "nobody gave out such an id");
        let long = format!("[\"{}\"]", "x".repeat(NAMED_REQUEST_BYTES_MAX));
        assert!(!ahead(&long, None, false).can_be_answered(), "no id names it");
    }

    #[test]
    fn an_answer_in_the_log_is_not_due() {
        let answer = r#"{"jsonrpc":"2.0","id":"a","result":{}}"#;
        let inherited = InheritedStream::new(
            stored(0, r#"["a",8]"#, &[PROGRESS, (4, EventKind::Answer, answer)]),
            3,
        );
        assert_eq!(inherited.pending, [PendingAnswer::from(RequestId::from_u64(8))]);
    }
}
