//! GET requests: a new general stream, or a stream resumed from the client's position. The stream
//! may be an earlier owner's.
//!
//! A gap before the position is never skipped. On a GET stream the client gets notifications of
//! everything that may have changed. On any other stream it gets an error. Requests whose calls
//! ended with an earlier owner get an answer on their stream.

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
use records::{LogEntry, LoggedEvent, StoredStream};
use rules::{
    event_log::{Event, EventKind, StreamSnapshot, Topic},
    limits::NAMED_REQUEST_BYTES_MAX,
};

use super::{
    Session,
    state::{SessionState, first_sequence, is_general},
};
use crate::sessions::stream::{
    EventId, EventStream, PendingAnswer, StreamCursor, answered_id, decode_pending, parse_event_id,
};

/// A stream for a GET.
#[derive(Debug)]
pub struct ResumedStream {
    pub reader: StreamCursor,
    /// True if events were lost. The stream then begins with notifications of what may have
    /// changed.
    pub gap: bool,
}

/// Opens and resumes the streams of GET requests to one session.
#[derive(Debug, Clone, Copy)]
pub struct StreamResumption<'s> {
    session: &'s Session,
}

impl<'s> StreamResumption<'s> {
    pub fn new(session: &'s Session) -> Self {
        Self { session }
    }

    /// Opens the stream of a GET without `Last-Event-ID`. Missing events of an earlier owner also
    /// make a gap.
    pub async fn open_general_stream(self) -> Result<ResumedStream, Refusal> {
        self.open_new(None, false).await
    }

    /// Resumes the stream that a GET names in `Last-Event-ID`, and only that. `answer` settles each
    /// request on it that an earlier owner left without an answer.
    pub(in crate::sessions) async fn resume(
        self,
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
            return self.resume_local(&stream, position).await;
        }
        if !possible {
            return Err(cannot_resume());
        }
        // This owner's forgotten streams are not in the log either.
        let stored = match foreign {
            // The read includes the event at the position, which may be an answer.
            true => match self
                .session
                .shared
                .durable
                .logged_stream(&self.session.key, number, position.saturating_sub(1))
                .await
            {
                Err(_) if is_general(number) && self.session.shared.durable.logs_apart() => {
                    return self.open_after_gap(Some(number)).await;
                }
                stored => stored?,
            },
            false => None,
        };
        let stored = stored.map(|stored| {
            InheritedStream::new(stored, position)
                .seen_with(request.as_ref(), self.session.version.batches())
        });
        match stored {
            Some(stored) if is_general(number) && !stored.gap => {
                self.continue_general(stored).await
            }
            Some(stored) if !is_general(number) && stored.can_be_answered() => {
                self.continue_answers(stored, answer)
            }
            _ if is_general(number) => self.open_after_gap(Some(number)).await,
            // Its owner died before it was logged, or the log lost it. The request is answered as
            // one without a log.
            None if foreign && request.is_some() => {
                self.continue_answers(InheritedStream::unlogged(number, position, request), answer)
            }
            _ => Err(events_gone()),
        }
    }

    async fn resume_local(
        self,
        stream: &Arc<EventStream>,
        position: u64,
    ) -> Result<ResumedStream, Refusal> {
        self.session.withdraw_hidden(stream, position);
        match stream.read_from(position) {
            Ok(reader) => {
                if stream.is_general() {
                    let left_out = self.session.lock().streams.adopt_unknown(stream);
                    self.count_dropped(left_out);
                }
                Ok(ResumedStream { reader, gap: false })
            }
            Err(_) if stream.is_general() => self.open_after_gap(Some(stream.number)).await,
            Err(_) => Err(events_gone()),
        }
    }

    /// Opens a GET stream for a client that missed events.
    async fn open_after_gap(self, lost: Option<u64>) -> Result<ResumedStream, Refusal> {
        self.open_new(lost, true).await
    }

    /// Opens a GET stream. After a gap it begins with notifications of everything that may have
    /// changed.
    async fn open_new(self, lost: Option<u64>, gap: bool) -> Result<ResumedStream, Refusal> {
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
                Some(stream) if stream.is_connected() => {} // another connection reads it
                Some(_) => state.streams.forget(lost),
                None => self.drop_from_log(&[lost]),
            }
        }
        drop(state);
        self.session.withdraw_hidden(&opened.stream, 0);
        self.count_dropped(opened.left_out);
        if gap {
            self.session.shared.metrics.event_gap();
            tracing::info!(session = %self.session.digest, "events are lost, the client is told what may have changed");
        }
        Ok(ResumedStream { reader, gap })
    }

    fn change_notifications(self, state: &SessionState) -> Vec<(Topic, Bytes)> {
        let lists = [
            (self.session.advertised.tools_list_changed, Method::ToolsListChanged),
            (self.session.advertised.prompts_list_changed, Method::PromptsListChanged),
            (self.session.advertised.resources_list_changed, Method::ResourcesListChanged),
        ];
        let lists = lists.into_iter().filter(|(promised, _)| *promised);
        let lists =
            lists.map(|(_, method)| (Topic::List(method), handshake::notification(method, None)));
        let resources = state.subscriptions.exposed_uris().map(|uri| {
            let params = format!("{{\"uri\":{}}}", json::quote(uri));
            (
                Topic::Resource(uri.clone()),
                handshake::notification(Method::ResourcesUpdated, Some(params.as_bytes())),
            )
        });
        lists.chain(resources).collect()
    }

    async fn continue_general(self, stored: InheritedStream) -> Result<ResumedStream, Refusal> {
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
                    stored.held(self.session.epoch()),
                );
                let stream = state.streams.track_unread(stream);
                let left_out = state.streams.continue_general(&stream, inherited.events);
                self.drop_from_log(&inherited.streams);
                self.count_dropped(left_out);
                if gap {
                    self.session.shared.metrics.event_gap();
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
        self.session.withdraw_hidden(&stream, position);
        stream
            .read_from(position)
            .map(|reader| ResumedStream { reader, gap })
            .map_err(|_| cannot_resume())
    }

    fn continue_answers(
        self,
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
                    stored.held(self.session.epoch()),
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

    /// Loads the events that earlier owners left on streams that no client knows. `None` if the log
    /// cannot be read now. The client still gets its stream then.
    async fn load_inherited(self) -> Result<Option<Vec<StoredStream>>, Refusal> {
        match self.load_unread().await {
            Err(_) if self.session.shared.durable.logs_apart() => Ok(None),
            loaded => loaded.map(Some),
        }
    }

    async fn load_unread(self) -> Result<Vec<StoredStream>, Refusal> {
        if !self.session.lock().streams.may_inherit {
            return Ok(Vec::new());
        }
        let durable = &self.session.shared.durable;
        let unread = durable
            .logged_streams(&self.session.key)
            .await?
            .into_iter()
            .filter(|stream| stream.standalone && !stream.was_read);
        let mut streams = Vec::new();
        for record in unread {
            streams.extend(durable.logged_stream(&self.session.key, record.number, 0).await?);
        }
        Ok(streams)
    }

    /// Takes the inherited events, once: a second caller gets none.
    fn take_inherited(
        self,
        state: &mut SessionState,
        loaded: Option<Vec<StoredStream>>,
    ) -> InheritedEvents {
        let mut inherited = InheritedEvents::default();
        let Some(loaded) = loaded else {
            inherited.gap = state.streams.may_inherit; // until it can be read
            return inherited;
        };
        if !std::mem::take(&mut state.streams.may_inherit) {
            return inherited;
        }
        for stored in
            loaded.into_iter().filter(|stored| state.streams.get(stored.record.number).is_none())
        {
            inherited.streams.push(stored.record.number);
            // No client read the stream, so the trimmed events never reached one.
            inherited.gap |= stored.trimmed_through > 0;
            inherited.events.extend(stored.events.into_iter().map(restored_event));
        }
        inherited
    }

    fn open_state(self) -> Result<parking_lot::MutexGuard<'s, SessionState>, Refusal> {
        let state = self.session.lock();
        state.check_accepting().map(|()| state)
    }

    /// Removes streams from the log. Called after their events were logged elsewhere, so that none
    /// is lost in between.
    fn drop_from_log(self, streams: &[u64]) {
        if let Some(log) = &self.session.shared.durable.event_log {
            streams.iter().for_each(|stream| {
                log.log(LogEntry::Drop { session: self.session.key, stream: *stream })
            });
        }
    }

    fn count_dropped(self, count: usize) {
        (0..count).for_each(|_| self.session.shared.metrics.dropped_notification("slow_client"));
    }
}

/// Events on streams of earlier owners that no client knows.
#[derive(Default)]
struct InheritedEvents {
    streams: Vec<u64>,
    events: Vec<Event>,
    /// True if some of them are lost.
    gap: bool,
}

/// The logged part of an earlier owner's stream, seen from a client's position.
struct InheritedStream {
    number: u64,
    position: u64,
    trimmed_through: u64,
    /// Sequence of the newest logged event.
    last_logged: u64,
    /// Events that the client has not received.
    events: Vec<Event>,
    /// Requests without an answer.
    pending: Vec<PendingAnswer>,
    /// True if an event between the position and these events is missing, or may be.
    gap: bool,
    /// True if the client has received events that the log does not hold.
    ahead: bool,
    /// True if the pending answers are known despite that.
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
            gap: trimmed || ahead,
            ahead,
            is_certain: false,
            is_logged: true,
        }
    }

    /// Makes a stream that the log does not hold. The client's event id names the request on it.
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

    /// Settles the pending answers of a client that is ahead of the log and may have received some
    /// of them.
    ///
    /// Event ids name a single request until its answer, so they show whether it was answered. That
    /// does not hold with batches: the pending request may be the last of several, which no id
    /// names.
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

    /// Returns whether the client can get everything that is left.
    fn can_be_answered(&self) -> bool {
        !self.gap || (self.ahead && self.is_certain)
    }

    fn held(self, epoch: i64) -> StreamSnapshot {
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

fn restored_event(event: LoggedEvent) -> Event {
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
    use records::StreamRecord;

    use super::*;

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
