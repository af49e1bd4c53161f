//! The event streams of one session (MCP 2025-11-25, Transports): one per request that needs one, and the GET streams.
//!
//! Each message goes to exactly one stream. What belongs to no request goes to the GET stream opened last that still has a
//! connection; when there is none it waits for the next one. Numbers hold the epoch of the owner that made the stream, so
//! owners never make the same, and say whether it is a GET stream, so that this is known of streams nobody has any more.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use protocol::{ids::RequestId, phase::SessionPhase};

use super::Session;
use crate::{
    limits::STREAMS_KEPT_MAX,
    persistence::{EventWriter, SessionKey},
    rules::event_log::{Event, EventKind, LogLimits, Overflow, Topic},
    sessions::stream::{EventStream, StreamCursor, UnreadBudget},
};

/// Where the epoch begins in a stream's number.
const EPOCH_SHIFT: u32 = 32;

#[derive(Debug)]
pub(super) struct SessionStreams {
    pub(super) limits: LogLimits,
    epoch: u64,
    /// How many POST streams and GET streams were made under any epoch of ours.
    opened_counts: [u64; 2],
    /// Every stream the client may resume, by number.
    retained: BTreeMap<u64, Arc<EventStream>>,
    /// GET streams, the latest last.
    general: Vec<Arc<EventStream>>,
    log: Option<(EventWriter, SessionKey)>,
    /// An earlier owner may have left streams that nobody read yet.
    pub(super) may_inherit: bool,
    /// Among which what these streams hold is counted.
    unread_budget: Option<Arc<UnreadBudget>>,
}

impl SessionStreams {
    pub(super) fn new(
        limits: LogLimits,
        epoch: i64,
        log: Option<(EventWriter, SessionKey)>,
    ) -> Self {
        let (made, kept, general) = ([0; 2], BTreeMap::new(), Vec::new());
        let mut streams = Self {
            limits,
            epoch: 0,
            opened_counts: made,
            retained: kept,
            general,
            log,
            may_inherit: false,
            unread_budget: None,
        };
        streams.set_epoch(epoch);
        streams
    }

    /// What the streams made from now on hold is counted there.
    pub(super) fn with_unread_budget(mut self, waiting: &Arc<UnreadBudget>) -> Self {
        self.unread_budget = Some(waiting.clone());
        self
    }

    pub(super) fn track_unread(&self, stream: Arc<EventStream>) -> Arc<EventStream> {
        if let Some(waiting) = &self.unread_budget {
            stream.attach_budget(waiting);
        }
        stream
    }

    /// No stream is logged.
    pub(super) fn disable_log(&mut self) {
        self.log = None;
    }

    /// Streams are numbered under this epoch from now on.
    pub(super) fn set_epoch(&mut self, epoch: i64) {
        self.epoch = u64::try_from(epoch).unwrap_or_default();
    }

    pub(super) fn next_number(&mut self, general: bool) -> u64 {
        let made = &mut self.opened_counts[usize::from(general)];
        *made += 1;
        self.epoch << EPOCH_SHIFT | *made << 1 | u64::from(general)
    }

    pub(super) fn open_answer_stream(
        &mut self,
        due: Vec<RequestId>,
        unnamed: usize,
    ) -> Arc<EventStream> {
        let stream = EventStream::for_answers(self.next_number(false), self.limits, due, unnamed);
        self.track_unread(stream)
    }

    /// A new GET stream. It tells `first`, then what an earlier owner left untold, then what streams without a connection
    /// still hold.
    pub(super) fn open_general(
        &mut self,
        first: Vec<(Topic, Bytes)>,
        inherited: Vec<Event>,
    ) -> OpenedStream {
        let stream = EventStream::general(self.next_number(true), self.limits);
        let stream = self.track_unread(stream);
        let now = Instant::now();
        for (topic, frame) in first {
            let _never_cut = stream.push_coalesced(now, EventKind::Message, Some(topic), frame);
        }
        let mut left_out = stream.adopt(now, inherited);
        if let Some((writer, session)) = &self.log {
            stream.start_logging(writer, *session);
        }
        left_out += self.adopt_unread(&stream);
        self.retain_general(&stream);
        self.forget_unknown(stream.number);
        OpenedStream { stream, left_out }
    }

    /// What streams without a connection still hold is told on this one.
    pub(super) fn adopt_unread(&self, stream: &EventStream) -> usize {
        let (now, without) =
            (Instant::now(), self.general.iter().filter(|other| !other.is_connected()));
        without.map(|other| stream.adopt(now, other.take_unread())).sum()
    }

    /// A GET stream of an earlier owner goes on here.
    pub(super) fn continue_general(
        &mut self,
        stream: &Arc<EventStream>,
        inherited: Vec<Event>,
    ) -> usize {
        if let Some((writer, session)) = &self.log {
            stream.resume_logging(writer, *session);
        }
        let left_out = stream.adopt(Instant::now(), inherited) + self.adopt_unknown(stream);
        self.retain_general(stream);
        self.forget_unknown(stream.number);
        left_out
    }

    /// A POST stream of an earlier owner is kept for its client.
    pub(super) fn continue_answers(&mut self, stream: &Arc<EventStream>) {
        if let Some((writer, session)) = &self.log {
            stream.resume_logging(writer, *session);
        }
        self.evict_oldest();
        self.retained.insert(stream.number, stream.clone());
    }

    /// What waits on streams no client knows of is told on this one.
    pub(super) fn adopt_unknown(&mut self, stream: &Arc<EventStream>) -> usize {
        let (now, mut left_out) = (Instant::now(), 0);
        for other in
            self.general.iter().filter(|other| other.number != stream.number && other.is_unknown())
        {
            left_out += stream.adopt(now, other.take_unread());
        }
        left_out
    }

    /// What no client knows of has been told elsewhere. The log must not take it for something that was lost untold.
    fn forget_unknown(&mut self, told_on: u64) {
        let unknown = self
            .general
            .iter()
            .filter(|other| other.number != told_on && other.is_unknown() && other.is_empty());
        let unknown: Vec<u64> = unknown.map(|other| other.number).collect();
        unknown.into_iter().for_each(|number| self.forget(number));
    }

    pub(super) fn retain_general(&mut self, stream: &Arc<EventStream>) {
        self.evict_oldest();
        self.general.push(stream.clone());
        self.retained.insert(stream.number, stream.clone());
    }

    fn general(&mut self) -> Arc<EventStream> {
        let connected = self.general.iter().rev().find(|stream| stream.is_connected());
        match connected.or(self.general.last()) {
            Some(stream) => stream.clone(),
            None => self.open_general(Vec::new(), Vec::new()).stream,
        }
    }

    /// Remembers a POST stream for resumption.
    pub(super) fn retain(&mut self, stream: &Arc<EventStream>) {
        self.evict_oldest();
        self.retained.insert(stream.number, stream.clone());
        if let Some((writer, session)) = &self.log {
            stream.start_logging(writer, *session);
        }
    }

    /// The oldest stream that has ended makes room for another.
    fn evict_oldest(&mut self) {
        if self.retained.len() < STREAMS_KEPT_MAX {
            return;
        }
        let now = Instant::now();
        let ended = self.retained.values().find(|stream| stream.ended_for(now).is_some());
        // A stream that is being read is never given up: calls in flight bound how many there are.
        let victim = ended
            .or_else(|| self.retained.values().find(|stream| !stream.is_connected()))
            .map(|stream| stream.number);
        if let Some(victim) = victim {
            self.forget(victim);
        }
    }

    /// Nobody can come back for this stream any more.
    pub(super) fn forget(&mut self, number: u64) {
        if let Some(stream) = self.retained.remove(&number) {
            stream.drop_from_log();
        }
        self.general.retain(|stream| stream.number != number);
    }

    pub(super) fn get(&self, number: u64) -> Option<Arc<EventStream>> {
        self.retained.get(&number).cloned()
    }

    /// Whether a stream of this number was ever made, as far as can be said.
    pub(super) fn may_have_existed(&self, number: u64) -> bool {
        let (epoch, made) = (number >> EPOCH_SHIFT, (number & ((1 << EPOCH_SHIFT) - 1)) >> 1);
        epoch > 0
            && made > 0
            && (epoch < self.epoch
                || (epoch == self.epoch
                    && made <= self.opened_counts[usize::from(is_general(number))]))
    }

    /// Whether an earlier owner made the stream.
    pub(super) fn is_inherited(&self, number: u64) -> bool {
        number >> EPOCH_SHIFT < self.epoch
    }

    pub(super) fn expire(&mut self, now: Instant, age: Duration) {
        self.retained.values().for_each(|stream| stream.expire(now, age));
        // A GET stream that lost its connection ends once nothing in it can be resumed any more.
        let latest = self.general.last().map(|stream| stream.number);
        let over = |stream: &Arc<EventStream>| match stream.is_general() {
            true => !stream.is_connected() && stream.is_empty() && Some(stream.number) != latest,
            false => stream.ended_for(now).is_some_and(|since| since >= age),
        };
        let over: Vec<u64> = self
            .retained
            .values()
            .filter(|stream| over(stream))
            .map(|stream| stream.number)
            .collect();
        over.into_iter().for_each(|number| self.forget(number));
    }

    pub(super) fn any_connected(&self) -> bool {
        self.retained.values().any(|stream| stream.is_connected())
    }

    pub(super) fn connected(&self) -> usize {
        self.retained.values().filter(|stream| stream.is_connected()).count()
    }

    pub(super) fn take_all(&mut self) -> Vec<Arc<EventStream>> {
        self.general.clear();
        std::mem::take(&mut self.retained).into_values().collect()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<EventStream>> {
        self.retained.values()
    }

    pub(super) fn all_general(&self) -> &[Arc<EventStream>] {
        &self.general
    }
}

/// A new GET stream, and how many events of others found no room in it.
pub(super) struct OpenedStream {
    pub(super) stream: Arc<EventStream>,
    pub(super) left_out: usize,
}

/// Whether the number is a GET stream's.
pub(super) fn is_general(number: u64) -> bool {
    number & 1 == 1
}

/// The lowest sequence an owner of this epoch gives an event of a stream it took over: an earlier owner that does not know
/// yet cannot give the same.
pub(super) fn first_sequence(epoch: i64) -> u64 {
    u64::try_from(epoch).unwrap_or_default() << EPOCH_SHIFT
}

impl Session {
    /// The stream for one POST with these requests in it, and `unnamed` more whose ids could not be read.
    pub fn open_stream(&self, due: Vec<RequestId>, unnamed: usize) -> Arc<EventStream> {
        self.lock().streams.open_answer_stream(due, unnamed)
    }

    /// Whatever belongs to no request of a session that nobody comes back for is told here.
    pub fn open_notification_stream(&self) -> Option<StreamCursor> {
        self.lock().streams.open_general(Vec::new(), Vec::new()).stream.read_from(0).ok()
    }

    /// The client is told event ids of this stream: it may come back for it.
    pub fn retain_stream(&self, stream: &Arc<EventStream>) {
        let mut state = self.lock();
        if !self.is_leaving() {
            state.streams.retain(stream);
        }
    }

    /// The session leaves, and its next owner goes on with this stream. False: the client has no way to come back to it.
    pub(super) fn retain_for_next_owner(&self, stream: &Arc<EventStream>) -> bool {
        let is_logged = self.shared.durable.event_log.is_some();
        let has_place = stream.is_resumable() || self.version.priming_event();
        // What is on a connection of any other kind is found in this process or not at all.
        let is_bound = stream.is_outbox() || self.ends_with_connection();
        if !is_logged || !has_place || is_bound {
            return false;
        }
        self.lock().streams.retain(stream);
        stream.pause();
        true
    }

    /// Sends what belongs to no request.
    pub fn deliver(&self, kind: EventKind, frame: Bytes) {
        self.deliver_coalesced(kind, None, frame);
    }

    /// [`Session::deliver`] of something that need not wait twice.
    pub fn deliver_coalesced(&self, kind: EventKind, topic: Option<Topic>, frame: Bytes) {
        let mut state = self.lock();
        // Pushed under the lock: once the session begins to leave, nothing is added that its next owner would not see.
        let pushed = match state.phase {
            SessionPhase::Closing | SessionPhase::Closed => Err(Overflow),
            _ if !self.has_client && state.streams.general.is_empty() => {
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

    /// Sends something on one stream of the session; what it has no room for is counted.
    pub fn push_to(&self, stream: &EventStream, kind: EventKind, frame: Bytes) {
        let _cut = stream.push(Instant::now(), kind, frame);
        let dropped = stream.take_dropped_count();
        (0..dropped).for_each(|_| self.shared.metrics.dropped_notification("slow_client"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_tell_their_owner_and_what_the_stream_is() {
        let mut streams = SessionStreams::new(LogLimits { events: 10, bytes: 1000 }, 3, None);
        let (post, get) = (
            streams.open_answer_stream(Vec::new(), 1).number,
            streams.open_general(Vec::new(), Vec::new()).stream.number,
        );
        assert_eq!((is_general(post), is_general(get)), (false, true));
        assert_ne!(post, get);
        assert_eq!((post >> EPOCH_SHIFT, get >> EPOCH_SHIFT), (3, 3));
        assert!(streams.may_have_existed(post) && streams.may_have_existed(get));
        for never in [0, 1, 3 << EPOCH_SHIFT | 8 << 1, 4 << EPOCH_SHIFT | 2] {
            assert!(!streams.may_have_existed(never), "{never}");
        }
        assert!(
            streams.may_have_existed(2 << EPOCH_SHIFT | 77),
            "an earlier owner may have made many"
        );
        assert!(streams.is_inherited(2 << EPOCH_SHIFT | 77) && !streams.is_inherited(get));
    }

    #[test]
    fn a_stream_of_an_earlier_owner_takes_what_nobody_knows_of() {
        let mut streams = SessionStreams::new(LogLimits { events: 10, bytes: 1000 }, 2, None);
        let waiting = streams.general();
        waiting.push(Instant::now(), EventKind::Message, Bytes::from_static(b"untold")).unwrap();
        let held = crate::rules::event_log::StreamSnapshot {
            last_sequence: first_sequence(2),
            ..Default::default()
        };
        let old = EventStream::restored(1 << EPOCH_SHIFT | 3, streams.limits, None, held);
        streams.continue_general(&old, Vec::new());
        let reader = old.read_from(0).unwrap();
        assert_eq!((reader.backlog(), waiting.is_empty()), (1, true));
        assert_eq!(streams.general().number, old.number, "it is the session's general stream");
    }
}
