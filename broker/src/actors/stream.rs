//! An event stream towards a client: an [`EventLog`] that can be waited on.
//!
//! Anything that has something for the client pushes, and never waits; whoever holds the client's connection reads. A
//! stream outlives its connections: a reader that comes later, or comes back, goes on where the client says it stopped.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::sync::Notify;

use super::sync;
use crate::rules::event_log::{Event, EventKind, EventLog, Gone, LogLimits, Overflow};

/// One stream of a session. Event ids are `{stream number}-{sequence}`, unique in the session.
#[derive(Debug)]
pub struct EventStream {
    pub number: u64,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    log: EventLog,
    /// Grows with each reader; only the latest one reads.
    reader: u64,
    /// The latest reader still holds a connection.
    connected: bool,
    /// The connection is to be closed on purpose, the stream goes on.
    pause: bool,
    /// No connection will be served any more (the session ended or the broker drains).
    closed: bool,
    ended_at: Option<Instant>,
    /// The client has seen an event id of this stream and may come back for more.
    resumable: bool,
}

/// What a reader gets.
#[derive(Debug)]
pub enum Next {
    Event(Event),
    /// Everything was read and nothing more will come.
    End,
    /// Close the connection; the client is welcome to resume.
    Pause,
    /// Another connection reads this stream now.
    Displaced,
    /// The client did not keep up.
    Cut,
}

impl EventStream {
    pub fn new(number: u64, limits: LogLimits, answers: Option<usize>) -> Arc<Self> {
        let log = EventLog::new(limits, answers);
        let state = State { log, reader: 0, connected: false, pause: false, closed: false, ended_at: None, resumable: false };
        Arc::new(Self { number, state: Mutex::new(state), changed: Notify::new() })
    }

    pub fn push(&self, now: Instant, kind: EventKind, frame: Bytes) -> Result<(), Overflow> {
        let mut state = self.lock();
        let pushed = state.log.push(now, kind, frame);
        if state.log.complete() {
            state.ended_at.get_or_insert(now);
        }
        drop(state);
        self.changed.notify_waiters();
        pushed
    }

    /// One of the stream's requests ended without an answer.
    pub fn give_up_answer(&self, now: Instant) {
        let mut state = self.lock();
        state.log.give_up_answer();
        if state.log.complete() {
            state.ended_at.get_or_insert(now);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Asks the reader to close its connection; the stream goes on and can be resumed.
    pub fn pause(&self) {
        self.lock().pause = true;
        self.changed.notify_waiters();
    }

    /// No reader gets anything any more.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_waiters();
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

    /// A GET stream: it has no answers to wait for.
    pub fn is_general(&self) -> bool {
        !self.lock().log.has_answers()
    }

    pub fn take_unread(&self) -> Vec<Event> {
        self.lock().log.take_unread()
    }

    /// The id of the event at `sequence`.
    pub fn event_id(&self, sequence: u64) -> String {
        format!("{}-{sequence}", self.number)
    }

    /// Takes over what another stream could not deliver, as far as there is room.
    pub fn adopt(&self, now: Instant, events: Vec<Event>) {
        let mut state = self.lock();
        for event in events {
            if state.log.has_room_for(event.frame.len()) {
                let _fits = state.log.push(now, event.kind, event.frame);
            }
        }
    }

    pub fn expire(&self, now: Instant, age: Duration) {
        self.lock().log.expire(now, age);
    }

    pub fn take_left_out(&self) -> u64 {
        self.lock().log.take_left_out()
    }

    /// The client learns an event id, so the stream is kept for it after its end.
    pub fn mark_resumable(&self) {
        self.lock().resumable = true;
    }

    /// No connection reads the stream, and its client has no event id to come back with.
    pub fn is_lost(&self) -> bool {
        let state = self.lock();
        state.reader > 0 && !state.connected && !state.resumable
    }

    /// A connection takes the stream over, from `position` on (0: from the start).
    pub fn read_from(self: &Arc<Self>, position: u64) -> Result<Reader, Gone> {
        let mut state = self.lock();
        state.log.can_resume(position)?;
        state.reader += 1;
        state.connected = true;
        state.pause = false;
        let generation = state.reader;
        drop(state);
        self.changed.notify_waiters();
        Ok(Reader { stream: self.clone(), generation, position })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }
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
        loop {
            let stream = self.stream.clone();
            let changed = stream.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable(); // before looking, so that no change is missed
            if let Some(next) = self.poll_now() {
                return next;
            }
            changed.await;
        }
    }

    /// The id the client may resume from when it has seen everything up to here.
    pub fn event_id(&self) -> String {
        self.stream.event_id(self.position)
    }

    /// How many events wait for this reader already.
    pub fn behind(&self) -> u64 {
        self.stream.lock().log.count_after(self.position)
    }

    fn poll_now(&mut self) -> Option<Next> {
        let mut state = self.stream.lock();
        if state.reader != self.generation {
            return Some(Next::Displaced);
        }
        if let Some(event) = state.log.next_after(self.position) {
            self.position = event.sequence;
            return Some(Next::Event(event));
        }
        if state.log.was_cut() {
            return Some(Next::Cut);
        }
        if state.log.complete() {
            return Some(Next::End);
        }
        // Before the end of a closed stream, so that a drain tells its clients when to come back, however fast it is.
        if state.pause {
            return Some(Next::Pause);
        }
        state.closed.then_some(Next::End)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.stream.lock();
        if state.reader == self.generation {
            state.connected = false;
        }
    }
}

/// Reads an event id back: stream and sequence.
pub fn parse_event_id(text: &str) -> Option<(u64, u64)> {
    let (stream, sequence) = text.split_once('-')?;
    Some((stream.parse().ok()?, sequence.parse().ok()?))
}
