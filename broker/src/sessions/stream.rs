//! An event stream to a client: an [`EventLog`] with waiting readers.
//!
//! Senders push and never wait. The holder of the client's connection reads. A stream outlives its
//! connections: a later reader continues from the position that the client names. Once its client
//! can resume it, the stream is also logged, in the order of its changes, and outlives the process.

mod batch;
mod cursor;
mod event_ids;
mod latest_reader;
mod log_level;
mod logging;
mod retained_events;
mod unread_budget;
mod wakers;
mod work_driver;

use std::{
    sync::{Arc, OnceLock, atomic::AtomicBool},
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use protocol::{
    envelope::Message,
    ids::{RequestId, TaskId},
    json::Limits,
};
use rules::{
    event_log::{Event, EventKind, EventLog, LogLimits, Overflow, StreamSnapshot, Topic},
    limits::TRIM_LOGGED_EVERY,
    log_level::LogLevel,
};

pub use self::batch::Batch;
pub use self::cursor::StreamCursor;
pub use self::event_ids::{EventId, PendingAnswer, decode_pending, parse_event_id};
pub use self::retained_events::{RetainedBudget, TenantRetained};
pub use self::unread_budget::{LeftOut, UnreadBudget, UnreadHolder};
use self::{
    event_ids::{encode_request_id, is_nameable},
    latest_reader::LatestReader,
    logging::EventLogSink,
    retained_events::{RetainedAccount, RetainedShare},
    unread_budget::UnreadAccount,
    wakers::{Wakers, unlock_and_wake},
};

/// One stream of a session.
///
/// Event ids are `{stream number}-{sequence}`, unique in the session. While the one request of a
/// POST stream has no answer, the ids also name it (`-{id in base64url}`). A client may resume with
/// such an id at a process that does not know the stream. That process can then settle the request.
#[derive(Debug)]
pub struct EventStream {
    pub number: u64,
    /// The request that event ids name.
    request: Option<RequestId>,
    state: Mutex<StreamState>,
    /// The lowest level of log messages that the request wants, if it has a level of its own.
    log_level: Mutex<Option<LogLevel>>,
    unread_account: OnceLock<UnreadAccount>,
    retained_account: OnceLock<RetainedAccount>,
    /// Set when the stream holds more than at the last enforcement of the budget.
    grown: AtomicBool,
}

#[derive(Debug)]
struct StreamState {
    log: EventLog,
    reader: LatestReader,
    /// Set when the reader must close its connection. The stream stays resumable.
    pause: bool,
    /// Set when no connection is served any more (the session ended or the broker drains).
    closed: bool,
    ended_at: Option<Instant>,
    /// Set when the client has an event id of this stream and may resume it.
    resumable: bool,
    answers: StreamAnswers,
    /// The stream's entry in the event log.
    sink: Option<EventLogSink>,
    counted: CountedBytes,
    wakers: Wakers,
}

/// The answers of a stream.
#[derive(Debug)]
struct StreamAnswers {
    /// The requests that wait for an answer.
    pending: Vec<PendingAnswer>,
    /// True if the stream ends with one answer, whose id need not be read.
    is_single: bool,
    /// Set when the broker answered the pending requests itself. Later answers are dropped.
    given_up: bool,
    /// Sequence of the last answer.
    last_sequence: Option<u64>,
}

/// Bytes of a stream, as counted in the budgets of all streams.
#[derive(Debug, Default)]
struct CountedBytes {
    unread_steps: usize,
    retained: RetainedShare,
}

/// Item for a reader.
#[derive(Debug)]
pub enum StreamItem {
    Event(Event),
    Ended(StreamEnd),
}

/// Reason why a connection gets nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
    /// Everything was read, and nothing more will come.
    Complete,
    /// The connection must close. The client may resume, here or elsewhere.
    Paused,
    /// Another connection reads this stream now.
    Displaced,
    /// The client did not keep up.
    Slow,
    /// The next event is not held any more. A client that resumes from its position learns of the
    /// gap.
    Lost,
}

impl EventStream {
    /// Makes a stream that ends with the answers to these requests, and to `unnamed` more whose ids
    /// could not be read.
    pub fn for_answers(
        number: u64,
        limits: LogLimits,
        due: Vec<RequestId>,
        unnamed: usize,
    ) -> Arc<Self> {
        let log = EventLog::new(limits, Some(due.len() + unnamed));
        let is_single = due.len() == 1 && unnamed == 0;
        Self::with_log(number, log, due.into_iter().map(PendingAnswer::from).collect(), is_single)
    }

    /// Makes a GET stream, which ends only with its session.
    pub fn general(number: u64, limits: LogLimits) -> Arc<Self> {
        Self::with_log(number, EventLog::new(limits, None), Vec::new(), false)
    }

    /// Makes a stream that carries everything of its session, for a client whose connection is its
    /// session.
    pub fn outbox(number: u64, limits: LogLimits, sent_before: Option<u64>) -> Arc<Self> {
        Self::with_log(number, EventLog::outbox(limits, sent_before), Vec::new(), false)
    }

    /// Makes a stream that an earlier owner of the session began. `due` holds the requests without
    /// an answer; `None` for a GET stream. `answered` is the request that the client's event id
    /// names, with the sequence of its answer.
    pub fn restored(
        number: u64,
        limits: LogLimits,
        due: Option<Vec<PendingAnswer>>,
        answered: Option<(RequestId, u64)>,
        held: StreamSnapshot,
    ) -> Arc<Self> {
        let log = EventLog::restored(limits, due.as_ref().map(Vec::len), held);
        let due = due.unwrap_or_default();
        let is_single = due.len() == 1;
        let (request, last_sequence) = answered.unzip();
        let request = request.or_else(|| Self::single_request(&due, is_single));
        let stream = Self::with_request(number, log, due, is_single, request);
        let mut state = stream.lock();
        state.answers.last_sequence = last_sequence;
        state.resumable = true;
        if state.log.is_complete() {
            state.ended_at = Some(Instant::now());
        }
        drop(state);
        stream
    }

    fn with_log(
        number: u64,
        log: EventLog,
        pending: Vec<PendingAnswer>,
        is_single: bool,
    ) -> Arc<Self> {
        let request = Self::single_request(&pending, is_single);
        Self::with_request(number, log, pending, is_single, request)
    }

    /// Returns the request that event ids name. The id is copied, because a slice would keep the
    /// whole request alive.
    fn single_request(pending: &[PendingAnswer], is_single: bool) -> Option<RequestId> {
        let single = pending.first().filter(|one| is_single && is_nameable(&one.id));
        single.map(|one| RequestId::from_raw(Bytes::copy_from_slice(one.id.raw())))
    }

    fn with_request(
        number: u64,
        log: EventLog,
        pending: Vec<PendingAnswer>,
        is_single: bool,
        request: Option<RequestId>,
    ) -> Arc<Self> {
        let state = StreamState {
            log,
            reader: LatestReader::default(),
            pause: false,
            closed: false,
            ended_at: None,
            resumable: false,
            answers: StreamAnswers { pending, is_single, given_up: false, last_sequence: None },
            sink: None,
            counted: CountedBytes::default(),
            wakers: Wakers::default(),
        };
        Arc::new(Self {
            number,
            request,
            state: Mutex::new(state),
            log_level: Mutex::default(),
            unread_account: OnceLock::new(),
            retained_account: OnceLock::new(),
            grown: AtomicBool::new(false),
        })
    }

    pub fn push(&self, now: Instant, kind: EventKind, frame: Bytes) -> Result<(), Overflow> {
        self.push_coalesced(now, kind, None, frame).map(|_| ())
    }

    /// Pushes as [`EventStream::push`] does. Returns false if an unread message of the topic made
    /// it superfluous.
    pub fn push_coalesced(
        &self,
        now: Instant,
        kind: EventKind,
        topic: Option<Topic>,
        frame: Bytes,
    ) -> Result<bool, Overflow> {
        let mut state = self.lock();
        let pushed = state.add(self.number, now, kind, topic, frame);
        self.update_unread(&mut state);
        unlock_and_wake(state);
        self.enforce_budget();
        self.enforce_retained();
        pushed
    }

    /// Ends a request of the stream without an answer.
    pub fn abandon_answer(&self, id: &RequestId, now: Instant) {
        let mut state = self.lock();
        state.answers.pending.retain(|due| due.id != *id);
        state.log.abandon_answer();
        if state.log.is_complete() {
            state.ended_at.get_or_insert(now);
        }
        state.log_record(self.number);
        unlock_and_wake(state);
    }

    /// Answers the requests that wait for an answer with what `answer` returns. Drops their own
    /// answers.
    pub fn give_up_answers(&self, now: Instant, answer: impl Fn(&RequestId) -> Bytes) {
        let mut state = self.lock();
        for due in std::mem::take(&mut state.answers.pending) {
            let frame = answer(&due.id);
            let _answers_always_fit = state.add(self.number, now, EventKind::Answer, None, frame);
        }
        state.answers.given_up = true;
        self.update_unread(&mut state);
        unlock_and_wake(state);
        self.enforce_budget();
    }

    /// Requests the reader to close its connection. The stream stays resumable.
    pub fn pause(&self) {
        let mut state = self.lock();
        state.pause = true;
        unlock_and_wake(state);
    }

    /// Closes the stream. No reader gets anything any more.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        unlock_and_wake(state);
    }

    pub fn is_connected(&self) -> bool {
        let state = self.lock();
        state.reader.is_connected() && !state.closed && !state.log.was_cut()
    }

    /// Returns how long ago the stream ended.
    pub fn ended_for(&self, now: Instant) -> Option<Duration> {
        self.lock().ended_at.map(|at| now.saturating_duration_since(at))
    }

    pub fn is_empty(&self) -> bool {
        self.lock().log.is_empty()
    }

    /// Returns whether the last awaited answer is there.
    pub fn is_answered(&self) -> bool {
        let state = self.lock();
        state.answers.last_sequence.is_some() && state.log.is_complete()
    }

    /// Returns whether this is a GET stream, which waits for no answers.
    pub fn is_general(&self) -> bool {
        !self.lock().log.is_finite()
    }

    /// Returns whether no connection ever read it, so that no client knows it.
    pub fn is_unknown(&self) -> bool {
        let state = self.lock();
        state.reader.count() == 0 && !state.resumable
    }

    /// Returns the id of the event at `sequence`.
    pub fn event_id(&self, sequence: u64) -> String {
        match &self.request {
            Some(request) if self.lock().answers.is_before_last(sequence) => {
                format!("{}-{sequence}-{}", self.number, encode_request_id(request))
            }
            _ => format!("{}-{sequence}", self.number),
        }
    }

    /// Notes that this request of the stream only waits for a task.
    pub fn record_task_wait(&self, id: &RequestId, task: &TaskId) {
        if let Some(due) = self.lock().answers.pending.iter_mut().find(|due| due.id == *id) {
            due.task = Some(task.clone());
        }
    }

    /// Returns whether messages may stay after they were read.
    pub fn is_retainable(&self) -> bool {
        let state = self.lock();
        state.resumable || state.log.is_outbox()
    }

    /// Returns whether the client has an event id to resume with.
    pub fn is_resumable(&self) -> bool {
        self.lock().resumable
    }

    pub fn expire(&self, now: Instant, age: Duration) {
        let mut state = self.lock();
        let through = state.reader.expirable_through();
        state.log.expire(now, age, through);
        self.update_retained(&mut state);
        state.log_expiry(self.number, now, age);
    }

    pub fn take_dropped_count(&self) -> u64 {
        self.lock().log.take_dropped_count()
    }

    /// Marks the stream as resumable, because the client gets an event id. It is then kept after
    /// its end.
    pub fn mark_resumable(&self) {
        self.lock().resumable = true;
    }

    /// Returns whether no connection reads the stream and its client cannot resume it. An outbox
    /// lasts as long as its session.
    pub fn is_unreachable(&self) -> bool {
        let state = self.lock();
        state.reader.count() > 0
            && !state.reader.is_connected()
            && !state.resumable
            && !state.log.is_outbox()
    }

    fn lock(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock()
    }
}

impl StreamState {
    fn add(
        &mut self,
        number: u64,
        now: Instant,
        kind: EventKind,
        topic: Option<Topic>,
        frame: Bytes,
    ) -> Result<bool, Overflow> {
        if kind == EventKind::Answer && self.answers.given_up {
            return Ok(false);
        }
        let several_due = !self.answers.is_single && !self.answers.pending.is_empty();
        if kind == EventKind::Answer {
            self.answers.remove_answered(&frame);
        }
        let pushed = self.log.push(now, kind, topic, frame.clone());
        if self.log.is_complete() {
            self.ended_at.get_or_insert(now);
        }
        if let (EventKind::Answer, Ok(Some(sequence))) = (kind, pushed) {
            self.answers.last_sequence = Some(sequence);
        }
        if let (Ok(Some(sequence)), Some(sink)) = (pushed, &mut self.sink) {
            sink.event(number, sequence, kind, frame);
            let lost_through = self.log.trimmed_through();
            if lost_through >= sink.trimmed_through + TRIM_LOGGED_EVERY {
                sink.trim(number, lost_through);
            }
        }
        if kind == EventKind::Answer && several_due {
            self.log_record(number);
        }
        pushed.map(|added| added.is_some())
    }

    /// Returns why the reader gets nothing, whatever the stream holds.
    fn interruption(&self, reader: &StreamCursor) -> Option<StreamEnd> {
        if !self.reader.is_latest(reader.generation) {
            return Some(StreamEnd::Displaced);
        }
        // The reader resumed at sent events, and newer events needed their capacity.
        (self.log.trimmed_through() > reader.position).then_some(StreamEnd::Lost)
    }

    /// Returns why no event will come for a reader that has read everything.
    fn end_reason(&self) -> Option<StreamEnd> {
        if self.log.was_cut() {
            return Some(StreamEnd::Slow);
        }
        if self.log.is_complete() {
            return Some(StreamEnd::Complete);
        }
        // A pause comes before the end of a closed stream, so that a drain sends clients their
        // retry time, however fast it is.
        if self.pause {
            return Some(StreamEnd::Paused);
        }
        self.closed.then_some(StreamEnd::Complete)
    }
}

impl StreamAnswers {
    fn remove_answered(&mut self, frame: &Bytes) {
        if self.is_single {
            self.pending.clear();
        } else if let Some(id) = answered_id(frame) {
            self.pending.retain(|due| due.id != id);
        }
    }

    fn is_before_last(&self, sequence: u64) -> bool {
        self.last_sequence.is_none_or(|last| sequence < last)
    }
}

/// Returns the id of the request that a response answers.
pub fn answered_id(frame: &Bytes) -> Option<RequestId> {
    let limits = Limits::with_bytes_max(frame.len());
    Message::decode(frame.clone(), &limits).ok()?.id.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: LogLimits = LogLimits { events: 4, bytes: 1000 };

    fn frame(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    async fn sequence(reader: &mut StreamCursor) -> Option<u64> {
        if let StreamItem::Event(event) = reader.next().await { Some(event.sequence) } else { None }
    }

    #[tokio::test]
    async fn events_of_a_slow_reader_do_not_expire() {
        let stream = EventStream::general(3, LIMITS);
        let mut reader = stream.read_from(0).unwrap();
        let started = Instant::now();
        for text in ["1", "2", "3"] {
            stream.push(started, EventKind::Message, frame(text)).unwrap();
        }
        assert_eq!(sequence(&mut reader).await, Some(1));
        stream.expire(started + Duration::from_secs(60), Duration::ZERO);
        assert_eq!((sequence(&mut reader).await, sequence(&mut reader).await), (Some(2), Some(3)));
        drop(reader);
        stream.expire(started + Duration::from_secs(60), Duration::ZERO);
        assert!(stream.is_empty(), "it has no reader any more");
    }

    #[tokio::test]
    async fn the_refusal_of_an_unreadable_member_of_a_batch_answers_no_other_request() {
        let stream = EventStream::for_answers(4, LIMITS, vec![RequestId::from_u64(7)], 1);
        let mut reader = stream.read_from(0).unwrap();
        let now = Instant::now();
        let refusal = frame(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"m"}}"#);
        stream.push(now, EventKind::Answer, refusal).unwrap();
        stream.give_up_answers(now, |id| {
            assert_eq!(*id, RequestId::from_u64(7));
            frame(r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32603,"message":"m"}}"#)
        });
        assert_eq!((sequence(&mut reader).await, sequence(&mut reader).await), (Some(1), Some(2)));
        assert!(matches!(reader.next().await, StreamItem::Ended(StreamEnd::Complete)));
    }

    #[test]
    fn an_outbox_without_a_reader_is_reachable_and_a_general_stream_is_not() {
        let limits = LogLimits { events: 10, bytes: 1_000 };
        for (stream, lost) in
            [(EventStream::outbox(1, limits, None), false), (EventStream::general(3, limits), true)]
        {
            drop(stream.read_from(0).unwrap());
            assert_eq!(stream.is_unreachable(), lost);
        }
    }

    #[tokio::test]
    async fn a_resumed_reader_ends_with_lost_if_its_events_were_evicted() {
        let stream = EventStream::general(3, LIMITS);
        let mut reader = stream.read_from(0).unwrap();
        for text in ["1", "2", "3", "4"] {
            stream.push(Instant::now(), EventKind::Message, frame(text)).unwrap();
            sequence(&mut reader).await.unwrap();
        }
        let mut again = stream.read_from(1).unwrap();
        for text in ["5", "6"] {
            stream.push(Instant::now(), EventKind::Message, frame(text)).unwrap();
        }
        assert!(
            matches!(again.next().await, StreamItem::Ended(StreamEnd::Lost)),
            "2 made room, and nothing is passed over"
        );
        assert_eq!(
            stream.read_from(1).err(),
            Some(rules::event_log::PositionGone),
            "so a reader that resumes there is told of the gap"
        );
    }

    #[tokio::test]
    async fn an_abandoned_request_of_a_batch_is_not_answered_later() {
        let due = [1, 2, 3].map(RequestId::from_u64);
        let stream = EventStream::for_answers(4, LIMITS, due.to_vec(), 0);
        stream.abandon_answer(&due[1], Instant::now());
        stream.give_up_answers(Instant::now(), |id| Bytes::copy_from_slice(id.raw()));
        let mut reader = stream.read_from(0).unwrap();
        for answered in ["1", "3"] {
            let StreamItem::Event(event) = reader.next().await else { panic!("no answer") };
            assert_eq!(event.frame, answered);
        }
        assert!(matches!(reader.next().await, StreamItem::Ended(StreamEnd::Complete)));
    }

    #[test]
    fn an_event_id_contains_the_request_id_until_it_is_answered() {
        let id = RequestId::from_raw(frame("\"a-b\""));
        let stream = EventStream::for_answers(4, LIMITS, vec![id.clone()], 0);
        let named = parse_event_id(&stream.event_id(1)).unwrap();
        assert_eq!(named, EventId { stream: 4, sequence: 1, request: Some(id) });
        stream.push(Instant::now(), EventKind::Message, frame("{}")).unwrap();
        stream.push(Instant::now(), EventKind::Answer, frame("{}")).unwrap();
        assert_eq!(parse_event_id(&stream.event_id(1)).unwrap(), named, "whenever it is read");
        assert_eq!(stream.event_id(2), "4-2");
        assert_eq!(
            EventStream::for_answers(
                4,
                LIMITS,
                vec![RequestId::from_u64(1), RequestId::from_u64(2)],
                0
            )
            .event_id(1),
            "4-1"
        );
        assert_eq!(EventStream::general(5, LIMITS).event_id(1), "5-1");
    }

    #[test]
    fn ids_of_a_restored_stream_name_the_request_up_to_its_answer() {
        let id = RequestId::from_u64(7);
        let stream = EventStream::for_answers(4, LIMITS, vec![id.clone()], 0);
        let before = stream.event_id(3);
        let held = StreamSnapshot { position: 3, last_sequence: 5, ..StreamSnapshot::default() };
        let restored = EventStream::restored(4, LIMITS, Some(vec![]), Some((id, 5)), held);
        assert_eq!(restored.event_id(3), before, "as the earlier owner wrote it");
        assert_eq!(
            (restored.event_id(4).as_str(), restored.event_id(5).as_str()),
            ("4-4-Nw", "4-5")
        );
    }
}
