//! An event stream towards a client: an [`EventLog`] that can be waited on.
//!
//! Anything that has something for the client pushes, and never waits; whoever holds the client's connection reads. A
//! stream outlives its connections: a reader that comes later, or comes back, goes on where the client says it stopped.
//! Once its client can come back to it, it is logged too, in the order things happen to it, and outlives the process.

mod batch;
mod beside;
mod places;
mod waiting;
mod waits;

use std::{
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, OnceLock, atomic::AtomicBool},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use protocol::{
    envelope::Message,
    ids::{RequestId, TaskId},
    json::Limits,
};

pub use self::batch::Batch;
pub use self::places::{Due, EventId, decode_due, parse_event_id};
pub use self::waiting::AllWaiting;
use self::{
    places::{encode_due, is_nameable, request_name},
    waiting::Counted,
    waits::{Waits, let_go, let_know},
};
use super::sync;
use crate::{
    durable::{EventWriter, LogEntry, LoggedEvent, SessionKey, StreamRecord},
    limits::{QUIET_LOGGED_EVERY_MIN, TRIM_LOGGED_EVERY},
    rules::event_log::{Event, EventKind, EventLog, Gone, Held, LogLimits, Overflow, Topic},
};

/// One stream of a session. Event ids are `{stream number}-{sequence}`, unique in the session. As long as the one request of
/// a POST stream is not answered they name it, too (`-{id in base64url}`): a client that comes back with one to a process
/// that knows nothing of the stream can then be told what became of that request.
#[derive(Debug)]
pub struct EventStream {
    pub number: u64,
    /// The request, as event ids name it.
    request: Option<RequestId>,
    state: Mutex<State>,
    counted: OnceLock<Counted>,
    /// It holds more than others were asked to make room for.
    grown: AtomicBool,
}

#[derive(Debug)]
struct State {
    log: EventLog,
    /// Grows with each reader; only the latest one reads.
    reader: u64,
    /// The latest reader still holds a connection.
    connected: bool,
    /// How far it has come.
    read_through: u64,
    /// The connection is to be closed on purpose, the stream goes on.
    pause: bool,
    /// No connection will be served any more (the session ended or the broker drains).
    closed: bool,
    ended_at: Option<Instant>,
    /// The client has seen an event id of this stream and may come back for more.
    resumable: bool,
    /// The requests that are to be answered on it.
    due: Vec<Due>,
    /// Where the last answer is.
    answered_at: Option<u64>,
    /// Where it is logged.
    sink: Option<Sink>,
    /// What it holds unread, as all streams together count it.
    steps: usize,
    waits: Waits,
}

/// A stream's place in the event log.
#[derive(Debug)]
struct Sink {
    writer: EventWriter,
    session: SessionKey,
    was_read: bool,
    trimmed_through: u64,
    /// When the log last heard that the stream is still there.
    touched: Instant,
}

/// What a reader gets.
#[derive(Debug)]
pub enum Next {
    Event(Event),
    Ended(Ended),
}

/// Why nothing more comes for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Everything was read and nothing more will come.
    Over,
    /// Close the connection; the client is welcome to come back, here or elsewhere.
    Paused,
    /// Another connection reads this stream now.
    Displaced,
    /// The client did not keep up.
    Slow,
    /// What comes next is not held any more. A client that comes back with its place is told so.
    Lost,
}

impl EventStream {
    /// A stream that ends with the answers to these requests and to `unnamed` more, whose ids could not be read.
    pub fn for_answers(number: u64, limits: LogLimits, due: Vec<RequestId>, unnamed: usize) -> Arc<Self> {
        let log = EventLog::new(limits, Some(due.len() + unnamed));
        Self::over(number, log, due.into_iter().map(Due::from).collect())
    }

    /// A GET stream, which ends only with its session.
    pub fn general(number: u64, limits: LogLimits) -> Arc<Self> {
        Self::over(number, EventLog::new(limits, None), Vec::new())
    }

    /// A stream that carries everything of its session, for a client whose connection is its session.
    pub fn outbox(number: u64, limits: LogLimits, said: Option<u64>) -> Arc<Self> {
        Self::over(number, EventLog::outbox(limits, said), Vec::new())
    }

    /// A stream that an earlier owner of the session began. `due`: the requests to be answered; `None` for a GET stream.
    pub fn restored(number: u64, limits: LogLimits, due: Option<Vec<Due>>, held: Held) -> Arc<Self> {
        let log = EventLog::restored(limits, due.as_ref().map(Vec::len), held);
        let stream = Self::over(number, log, due.unwrap_or_default());
        let mut state = stream.lock();
        state.resumable = true;
        if state.log.complete() {
            state.ended_at = Some(Instant::now());
        }
        drop(state);
        stream
    }

    fn over(number: u64, log: EventLog, due: Vec<Due>) -> Arc<Self> {
        let request = match &due[..] {
            // Copied: it would keep all of the request.
            [one] => is_nameable(&one.id).then(|| RequestId::from_raw(Bytes::copy_from_slice(one.id.raw()))),
            _ => None,
        };
        let state = State {
            log,
            reader: 0,
            connected: false,
            read_through: 0,
            pause: false,
            closed: false,
            ended_at: None,
            resumable: false,
            due,
            answered_at: None,
            sink: None,
            steps: 0,
            waits: Waits::default(),
        };
        let (counted, grown) = (OnceLock::new(), AtomicBool::new(false));
        Arc::new(Self { number, request, state: Mutex::new(state), counted, grown })
    }

    pub fn push(&self, now: Instant, kind: EventKind, frame: Bytes) -> Result<(), Overflow> {
        self.push_about(now, kind, None, frame).map(|_| ())
    }

    /// [`EventStream::push`] of something that need not wait twice. `false`: it waits already.
    pub fn push_about(&self, now: Instant, kind: EventKind, topic: Option<Topic>, frame: Bytes) -> Result<bool, Overflow> {
        let mut state = self.lock();
        let pushed = state.add(self.number, now, kind, topic, frame);
        self.settle(&mut state);
        let_know(state);
        self.make_room_for_it();
        pushed
    }

    /// One of the stream's requests ended without an answer.
    pub fn give_up_answer(&self, now: Instant) {
        let mut state = self.lock();
        state.log.give_up_answer();
        if state.log.complete() {
            state.ended_at.get_or_insert(now);
            state.due.clear();
            state.log_record(self.number);
        }
        let_know(state);
    }

    /// Logs the stream from now on, with all it holds.
    pub fn log_to(&self, writer: &EventWriter, session: SessionKey) {
        let mut state = self.lock();
        if state.sink.is_some() {
            return;
        }
        let (was_read, trimmed_through) = (state.reader > 0, state.log.lost_through());
        state.sink = Some(Sink { writer: writer.clone(), session, was_read, trimmed_through, touched: Instant::now() });
        state.log_record(self.number);
        let State { log, sink: Some(sink), .. } = &mut *state else { return };
        if trimmed_through > 0 {
            sink.trim(self.number, trimmed_through);
        }
        log.events().for_each(|event| sink.event(self.number, event.sequence, event.kind, event.frame.clone()));
    }

    /// Goes on with what the log has of the stream.
    pub fn log_on_to(&self, writer: &EventWriter, session: SessionKey) {
        let mut state = self.lock();
        let trimmed_through = state.log.lost_through();
        state.sink = Some(Sink { writer: writer.clone(), session, was_read: true, trimmed_through, touched: Instant::now() });
    }

    /// Nobody will come back for the stream: the log may forget it.
    pub fn drop_from_log(&self) {
        if let Some(sink) = self.lock().sink.take() {
            sink.writer.log(LogEntry::Drop { session: sink.session, stream: self.number });
        }
    }

    /// The session is another's now, and so is what is logged of it.
    pub fn stop_logging(&self) {
        self.lock().sink = None;
    }

    /// Asks the reader to close its connection; the stream goes on and can be resumed.
    pub fn pause(&self) {
        let mut state = self.lock();
        state.pause = true;
        let_know(state);
    }

    /// No reader gets anything any more.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let_know(state);
    }

    pub fn is_connected(&self) -> bool {
        let state = self.lock();
        state.connected && !state.closed && !state.log.was_cut()
    }

    /// The stream ended this long ago.
    pub fn ended_for(&self, now: Instant) -> Option<Duration> {
        self.lock().ended_at.map(|at| now.saturating_duration_since(at))
    }

    pub fn is_empty(&self) -> bool {
        self.lock().log.is_empty()
    }

    /// The last answer that was awaited on it is there.
    pub fn is_answered(&self) -> bool {
        let state = self.lock();
        state.answered_at.is_some() && state.log.complete()
    }

    /// A GET stream: it has no answers to wait for.
    pub fn is_general(&self) -> bool {
        !self.lock().log.has_answers()
    }

    /// No connection ever read it, so no client knows of it.
    pub fn is_unknown(&self) -> bool {
        let state = self.lock();
        state.reader == 0 && !state.resumable
    }

    /// The id of the event at `sequence`.
    pub fn event_id(&self, sequence: u64) -> String {
        match &self.request {
            Some(request) if self.lock().answered_at.is_none_or(|answer| sequence < answer) => {
                format!("{}-{sequence}-{}", self.number, request_name(request))
            }
            _ => format!("{}-{sequence}", self.number),
        }
    }

    /// All that this request of the stream does is wait for a task.
    pub fn waits_for(&self, id: &RequestId, task: &TaskId) {
        if let Some(due) = self.lock().due.iter_mut().find(|due| due.id == *id) {
            due.task = Some(task.clone());
        }
    }

    /// What is on it may stay when it was read.
    pub fn may_be_kept(&self) -> bool {
        let state = self.lock();
        state.resumable || state.log.is_outbox()
    }

    /// Its client has an event id to come back with.
    pub fn is_resumable(&self) -> bool {
        self.lock().resumable
    }

    pub fn expire(&self, now: Instant, age: Duration) {
        let mut state = self.lock();
        let through = if state.connected { state.read_through } else { u64::MAX };
        state.log.expire(now, age, through);
        let lost_through = state.log.lost_through();
        let Some(sink) = &mut state.sink else { return };
        if lost_through > sink.trimmed_through {
            sink.trim(self.number, lost_through);
        }
        // The log forgets a stream that it hears nothing of; this one is there and merely quiet.
        if now.saturating_duration_since(sink.touched) > (age / 3).max(QUIET_LOGGED_EVERY_MIN) {
            sink.touched = now;
            state.log_record(self.number);
        }
    }

    pub fn take_left_out(&self) -> u64 {
        self.lock().log.take_left_out()
    }

    /// The client learns an event id, so the stream is kept for it after its end.
    pub fn mark_resumable(&self) {
        self.lock().resumable = true;
    }

    /// No connection reads the stream, and its client has no event id to come back with. An outbox lasts as long as its session.
    pub fn is_lost(&self) -> bool {
        let state = self.lock();
        state.reader > 0 && !state.connected && !state.resumable && !state.log.is_outbox()
    }

    /// A connection takes the stream over, from `position` on (0: from the start).
    pub fn read_from(self: &Arc<Self>, position: u64) -> Result<Reader, Gone> {
        let mut state = self.lock();
        state.log.can_resume(position)?;
        state.reader += 1;
        state.connected = true;
        state.read_through = position;
        state.pause = false;
        if state.sink.as_mut().is_some_and(|sink| !std::mem::replace(&mut sink.was_read, true)) {
            state.log_record(self.number);
        }
        let generation = state.reader;
        let_go(state);
        Ok(Reader { stream: self.clone(), generation, position })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }
}

impl State {
    fn add(&mut self, number: u64, now: Instant, kind: EventKind, topic: Option<Topic>, frame: Bytes) -> Result<bool, Overflow> {
        let several_due = self.due.len() > 1;
        if kind == EventKind::Answer {
            self.answered(&frame);
        }
        let pushed = self.log.push(now, kind, topic, frame.clone());
        if self.log.complete() {
            self.ended_at.get_or_insert(now);
        }
        if let (EventKind::Answer, Ok(Some(sequence))) = (kind, pushed) {
            self.answered_at = Some(sequence);
        }
        if let (Ok(Some(sequence)), Some(sink)) = (pushed, &mut self.sink) {
            sink.event(number, sequence, kind, frame);
            let lost_through = self.log.lost_through();
            if lost_through >= sink.trimmed_through + TRIM_LOGGED_EVERY {
                sink.trim(number, lost_through);
            }
        }
        if kind == EventKind::Answer && several_due {
            self.log_record(number);
        }
        pushed.map(|added| added.is_some())
    }

    /// Notes which request was answered. Of a single one there is no doubt.
    fn answered(&mut self, frame: &Bytes) {
        if self.due.len() <= 1 {
            self.due.clear();
        } else if let Some(id) = answered_id(frame) {
            self.due.retain(|due| due.id != id);
        }
    }

    /// Why the reader gets nothing, whatever there is.
    fn is_barred(&self, reader: &Reader) -> Option<Ended> {
        if self.reader != reader.generation {
            return Some(Ended::Displaced);
        }
        // It came back for what was sent before, and newer events needed the room.
        (self.log.lost_through() > reader.position).then_some(Ended::Lost)
    }

    /// Why there will be nothing for a reader who has read all there is.
    fn is_read(&self) -> Option<Ended> {
        if self.log.was_cut() {
            return Some(Ended::Slow);
        }
        if self.log.complete() {
            return Some(Ended::Over);
        }
        // Before the end of a closed stream, so that a drain tells its clients when to come back, however fast it is.
        if self.pause {
            return Some(Ended::Paused);
        }
        self.closed.then_some(Ended::Over)
    }

    fn log_record(&self, number: u64) {
        if let Some(sink) = &self.sink {
            let record = StreamRecord { number, general: !self.log.has_answers(), due: encode_due(&self.due), was_read: sink.was_read };
            sink.writer.log(LogEntry::Stream { session: sink.session, record });
        }
    }
}

impl Sink {
    fn event(&self, stream: u64, sequence: u64, kind: EventKind, frame: Bytes) {
        let event = LoggedEvent { sequence, kind: kind.code(), frame };
        self.writer.log(LogEntry::Event { session: self.session, stream, event });
    }

    fn trim(&mut self, stream: u64, through: u64) {
        self.trimmed_through = through;
        self.writer.log(LogEntry::Trim { session: self.session, stream, through });
    }
}

/// The request a response answers.
pub fn answered_id(frame: &Bytes) -> Option<RequestId> {
    Message::decode(frame.clone(), &Limits { bytes_max: frame.len(), ..Limits::default() }).ok()?.id
}

/// A connection's place in a stream.
#[derive(Debug)]
pub struct Reader {
    pub stream: Arc<EventStream>,
    generation: u64,
    position: u64,
}

impl Reader {
    /// Waits for what comes next. Cancel-safe: a dropped call loses nothing.
    pub async fn next(&mut self) -> Next {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// The id the client may resume from when it has seen everything up to here.
    pub fn event_id(&self) -> String {
        self.stream.event_id(self.position)
    }

    /// How many events wait for this reader already.
    pub fn behind(&self) -> u64 {
        self.stream.lock().log.count_after(self.position)
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Next> {
        let mut state = self.stream.lock();
        if let Some(ended) = state.is_barred(self) {
            return Poll::Ready(Next::Ended(ended));
        }
        if let Some(event) = state.log.next_after(self.position) {
            self.position = event.sequence;
            state.read_through = event.sequence;
            self.stream.settle(&mut state);
            return Poll::Ready(Next::Event(event));
        }
        match state.is_read() {
            Some(ended) => Poll::Ready(Next::Ended(ended)),
            None => {
                state.waits.read(context);
                Poll::Pending
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.stream.lock();
        if state.reader == self.generation {
            state.connected = false;
            let_go(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: LogLimits = LogLimits { events: 4, bytes: 1000 };

    fn frame(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    async fn sequence(reader: &mut Reader) -> Option<u64> {
        if let Next::Event(event) = reader.next().await { Some(event.sequence) } else { None }
    }

    #[tokio::test]
    async fn a_slow_reader_loses_nothing_to_age() {
        let stream = EventStream::general(3, LIMITS);
        let mut reader = stream.read_from(0).unwrap();
        let begun = Instant::now();
        for text in ["1", "2", "3"] {
            stream.push(begun, EventKind::Message, frame(text)).unwrap();
        }
        assert_eq!(sequence(&mut reader).await, Some(1));
        stream.expire(begun + Duration::from_secs(60), Duration::ZERO);
        assert_eq!((sequence(&mut reader).await, sequence(&mut reader).await), (Some(2), Some(3)));
        drop(reader);
        stream.expire(begun + Duration::from_secs(60), Duration::ZERO);
        assert!(stream.is_empty(), "nobody reads it any more");
    }

    #[test]
    fn who_may_come_back_to_an_outbox_still_waits_for_what_is_on_it() {
        let limits = LogLimits { events: 10, bytes: 1_000 };
        for (stream, lost) in [(EventStream::outbox(1, limits, None), false), (EventStream::general(3, limits), true)] {
            drop(stream.read_from(0).unwrap());
            assert_eq!(stream.is_lost(), lost);
        }
    }

    #[tokio::test]
    async fn a_reader_that_came_back_for_what_makes_room_is_told_that_it_is_lost() {
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
        assert!(matches!(again.next().await, Next::Ended(Ended::Lost)), "2 made room, and nothing is passed over");
        assert_eq!(stream.read_from(1).err(), Some(Gone), "so whoever comes back with its place hears of the gap");
    }

    #[test]
    fn an_event_id_names_the_request_until_it_is_answered() {
        let id = RequestId::from_raw(frame("\"a-b\""));
        let stream = EventStream::for_answers(4, LIMITS, vec![id.clone()], 0);
        let named = parse_event_id(&stream.event_id(1)).unwrap();
        assert_eq!(named, EventId { stream: 4, sequence: 1, request: Some(id) });
        stream.push(Instant::now(), EventKind::Message, frame("{}")).unwrap();
        stream.push(Instant::now(), EventKind::Answer, frame("{}")).unwrap();
        assert_eq!(parse_event_id(&stream.event_id(1)).unwrap(), named, "whenever it is read");
        assert_eq!(stream.event_id(2), "4-2");
        assert_eq!(EventStream::for_answers(4, LIMITS, vec![RequestId::from_u64(1), RequestId::from_u64(2)], 0).event_id(1), "4-1");
        assert_eq!(EventStream::general(5, LIMITS).event_id(1), "5-1");
    }
}
