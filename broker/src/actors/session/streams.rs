//! The event streams of one session (MCP 2025-11-25, Transports): one per request that needs one, and the GET streams.
//!
//! Each message goes to exactly one stream. What belongs to no request goes to the GET stream opened last that still has a
//! connection; when there is none it waits for the next one.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use protocol::{
    error::{ErrorKind, Refusal},
    phase::SessionPhase,
};

use super::{Session, session_over};
use crate::{
    actors::stream::{EventStream, Reader, parse_event_id},
    limits::STREAMS_KEPT_MAX,
    rules::event_log::{EventKind, LogLimits},
};

#[derive(Debug)]
pub(super) struct Streams {
    limits: LogLimits,
    next_number: u64,
    /// Every stream the client may resume, by number.
    kept: BTreeMap<u64, Arc<EventStream>>,
    /// GET streams, the latest last.
    general: Vec<Arc<EventStream>>,
}

impl Streams {
    pub(super) fn new(limits: LogLimits) -> Self {
        Self { limits, next_number: 1, kept: BTreeMap::new(), general: Vec::new() }
    }

    fn make(&mut self, answers: Option<usize>) -> Arc<EventStream> {
        let stream = EventStream::new(self.next_number, self.limits, answers);
        self.next_number += 1;
        stream
    }

    /// A new GET stream takes over what the ones without a connection still hold.
    fn open_general(&mut self) -> Arc<EventStream> {
        let stream = self.make(None);
        let now = Instant::now();
        for other in self.general.iter().filter(|other| !other.is_connected()) {
            stream.adopt(now, other.take_unread());
        }
        self.general.push(stream.clone());
        self.keep(&stream);
        stream
    }

    fn general(&mut self) -> Arc<EventStream> {
        let connected = self.general.iter().rev().find(|stream| stream.is_connected());
        match connected.or(self.general.last()) {
            Some(stream) => stream.clone(),
            None => self.open_general(),
        }
    }

    /// Remembers a stream for resumption; the oldest that has ended makes room.
    pub(super) fn keep(&mut self, stream: &Arc<EventStream>) {
        if self.kept.len() >= STREAMS_KEPT_MAX {
            let now = Instant::now();
            let ended = self.kept.values().find(|stream| stream.ended_for(now).is_some());
            // A stream that is being read is never given up: calls in flight bound how many there are.
            let victim = ended.or_else(|| self.kept.values().find(|stream| !stream.is_connected())).map(|stream| stream.number);
            if let Some(victim) = victim {
                self.kept.remove(&victim);
                self.general.retain(|stream| stream.number != victim);
            }
        }
        self.kept.insert(stream.number, stream.clone());
    }

    pub(super) fn expire(&mut self, now: Instant, age: Duration) {
        self.kept.values().for_each(|stream| stream.expire(now, age));
        self.kept.retain(|_, stream| stream.ended_for(now).is_none_or(|since| since < age));
        // A GET stream that lost its connection ends once nothing in it can be resumed any more.
        let latest = self.general.last().map(|stream| stream.number);
        self.general.retain(|stream| stream.is_connected() || !stream.is_empty() || Some(stream.number) == latest);
        let general: Vec<u64> = self.general.iter().map(|stream| stream.number).collect();
        self.kept.retain(|number, stream| !stream.is_general() || general.contains(number));
    }

    pub(super) fn any_connected(&self) -> bool {
        self.kept.values().any(|stream| stream.is_connected())
    }

    pub(super) fn connected(&self) -> usize {
        self.kept.values().filter(|stream| stream.is_connected()).count()
    }

    pub(super) fn take_all(&mut self) -> Vec<Arc<EventStream>> {
        self.general.clear();
        std::mem::take(&mut self.kept).into_values().collect()
    }

    fn all_general(&self) -> &[Arc<EventStream>] {
        &self.general
    }
}

impl Session {
    /// The stream for one POST with this many requests in it.
    pub fn open_stream(&self, answers: usize) -> Arc<EventStream> {
        self.lock().streams.make(Some(answers))
    }

    /// The client is told event ids of this stream: it may come back for it.
    pub fn keep_stream(&self, stream: &Arc<EventStream>) {
        self.lock().streams.keep(stream);
    }

    /// A GET without `Last-Event-ID`.
    pub fn open_general_stream(&self) -> Result<Reader, Refusal> {
        let stream = {
            let mut state = self.lock();
            if state.phase == SessionPhase::Closed {
                return Err(session_over());
            }
            state.streams.open_general()
        };
        stream.read_from(0).map_err(|_| cannot_resume())
    }

    /// A GET with `Last-Event-ID`: the stream named there, and only that.
    pub fn resume(&self, last_event_id: &str) -> Result<Reader, Refusal> {
        let (number, position) = parse_event_id(last_event_id).ok_or_else(cannot_resume)?;
        let stream = self.lock().streams.kept.get(&number).cloned().ok_or_else(cannot_resume)?;
        stream.read_from(position).map_err(|_| cannot_resume())
    }

    /// Sends what belongs to no request.
    pub fn deliver(&self, kind: EventKind, frame: Bytes) {
        let stream = self.lock().streams.general();
        if stream.push(Instant::now(), kind, frame).is_err() {
            self.shared.metrics.dropped_notification("slow_client");
        }
    }

    /// Sends something on one stream of the session; what it has no room for is counted.
    pub fn push_to(&self, stream: &EventStream, kind: EventKind, frame: Bytes) {
        let _cut = stream.push(Instant::now(), kind, frame);
        let dropped = stream.take_left_out();
        (0..dropped).for_each(|_| self.shared.metrics.dropped_notification("slow_client"));
    }

    /// The broker goes away: GET streams are closed with a word on when to come back, calls finish on theirs.
    pub fn say_goodbye(&self) {
        let general: Vec<_> = self.lock().streams.all_general().to_vec();
        general.iter().for_each(|stream| stream.pause());
    }
}

fn cannot_resume() -> Refusal {
    Refusal::new(ErrorKind::InvalidRequest, "Last-Event-ID names nothing this session can be resumed from; open a stream without it")
}
