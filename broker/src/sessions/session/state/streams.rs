//! The event streams of one session (MCP 2025-11-25, Transports): one per request that needs one,
//! and the GET streams.
//!
//! Each message goes to exactly one stream. A message that belongs to no request goes to the newest
//! GET stream with a connection. Without one it waits for the next GET stream. The number of a
//! stream holds the epoch of its owner, so that two owners never use the same number. It also holds
//! the kind of the stream, which stays known after the stream is gone.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use protocol::ids::RequestId;
use records::SessionKey;
use rules::{
    event_log::{Event, EventKind, LogLimits, Topic},
    limits::{STREAMS_KEPT_MAX, streams::STREAM_OPENINGS_FREE_PER_MINUTE},
    local_rate_limit::{LocalRateLimiter, per_minute},
};

use crate::{
    admission::outbox_budget::UnreadOwner,
    persistence::EventWriter,
    sessions::stream::{EventStream, LeftOut, TenantRetained, UnreadBudget},
};

/// Lowest bit of the epoch in a stream's number.
const EPOCH_SHIFT: u32 = 32;

#[derive(Debug)]
pub(in crate::sessions) struct SessionStreams {
    pub(in crate::sessions) limits: LogLimits,
    epoch: u64,
    /// Numbers of POST streams and GET streams that this owner has opened, under any epoch.
    opened_counts: [u64; 2],
    /// Streams that the client may resume, by number.
    retained: BTreeMap<u64, Arc<EventStream>>,
    /// GET streams, the latest last.
    general: Vec<Arc<EventStream>>,
    log: Option<(EventWriter, SessionKey)>,
    /// Set while an earlier owner's unread streams may still be in the log.
    pub(in crate::sessions) may_inherit: bool,
    /// Set while messages of a forgotten GET stream are lost, and the client does not know.
    lost_unread: bool,
    /// Budget that counts the unread bytes of these streams, and their owner.
    unread_budget: Option<(Arc<UnreadBudget>, UnreadOwner)>,
    /// Budget that counts the delivered bytes of resumable streams.
    retained_budget: Option<Arc<TenantRetained>>,
    /// Openings of streams by GETs that take nothing from a rate.
    free_openings: LocalRateLimiter,
}

impl SessionStreams {
    pub(in crate::sessions) fn new(
        limits: LogLimits,
        epoch: i64,
        log: Option<(EventWriter, SessionKey)>,
    ) -> Self {
        let mut streams = Self {
            limits,
            epoch: 0,
            opened_counts: [0; 2],
            retained: BTreeMap::new(),
            general: Vec::new(),
            log,
            may_inherit: false,
            lost_unread: false,
            unread_budget: None,
            retained_budget: None,
            free_openings: LocalRateLimiter::new(per_minute(STREAM_OPENINGS_FREE_PER_MINUTE)),
        };
        streams.set_epoch(epoch);
        streams
    }

    /// Counts the unread bytes of new streams against `waiting`, for their owner.
    pub(in crate::sessions) fn with_unread_budget(
        mut self,
        waiting: &Arc<UnreadBudget>,
        owner: UnreadOwner,
    ) -> Self {
        self.unread_budget = Some((waiting.clone(), owner));
        self
    }

    pub(in crate::sessions) fn track_unread(&self, stream: Arc<EventStream>) -> Arc<EventStream> {
        if let Some((waiting, owner)) = &self.unread_budget {
            stream.attach_budget(waiting, Some(owner.clone()));
        }
        stream
    }

    /// Counts the delivered bytes of resumable streams against `budget`.
    pub(in crate::sessions) fn with_retained_budget(
        mut self,
        budget: &Arc<TenantRetained>,
    ) -> Self {
        self.retained_budget = Some(budget.clone());
        self
    }

    /// Counts the delivered bytes of a stream that its client can resume.
    pub(in crate::sessions) fn track_retained(&self, stream: &Arc<EventStream>) {
        if let Some(budget) = &self.retained_budget {
            stream.attach_retained(budget);
        }
    }

    /// Turns the log off for new streams.
    pub(in crate::sessions) fn disable_log(&mut self) {
        self.log = None;
    }

    /// Sets the epoch in the numbers of new streams.
    pub(in crate::sessions) fn set_epoch(&mut self, epoch: i64) {
        self.epoch = u64::try_from(epoch).unwrap_or_default();
    }

    pub(in crate::sessions) fn next_number(&mut self, general: bool) -> u64 {
        let opened = &mut self.opened_counts[usize::from(general)];
        *opened += 1;
        self.epoch << EPOCH_SHIFT | *opened << 1 | u64::from(general)
    }

    pub(in crate::sessions) fn open_answer_stream(
        &mut self,
        due: Vec<RequestId>,
        unnamed: usize,
    ) -> Arc<EventStream> {
        let stream = EventStream::for_answers(self.next_number(false), self.limits, due, unnamed);
        self.track_unread(stream)
    }

    /// Counts the opening of a stream by a GET. Returns false if it is not free.
    pub(in crate::sessions) fn admits_free_opening(&mut self, now: Duration) -> bool {
        self.free_openings.check(now).is_ok()
    }

    /// Opens a GET stream. It sends `first`, then the unread events of an earlier owner, then those
    /// of streams without a connection.
    pub(in crate::sessions) fn open_general(
        &mut self,
        first: Vec<(Topic, Bytes)>,
        inherited: Vec<Event>,
    ) -> OpenedStream {
        let stream = EventStream::general(self.next_number(true), self.limits);
        let stream = self.track_unread(stream);
        self.track_retained(&stream);
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

    /// Moves the unread events of streams without a connection to this one. Returns those that it
    /// does not have.
    pub(in crate::sessions) fn adopt_unread(&mut self, stream: &EventStream) -> LeftOut {
        self.adopt_from(stream, |other| !other.is_connected())
    }

    fn adopt_from(
        &mut self,
        stream: &EventStream,
        is_meant: impl Fn(&EventStream) -> bool,
    ) -> LeftOut {
        let now = Instant::now();
        let is_gap = std::mem::take(&mut self.lost_unread);
        let mut left_out = LeftOut { count: 0, is_gap };
        for other in self.general.iter().filter(|other| is_meant(other)) {
            left_out.is_gap |= other.take_lost_unread();
            left_out += stream.adopt(now, other.take_unread());
        }
        left_out
    }

    /// Continues a GET stream of an earlier owner.
    pub(in crate::sessions) fn continue_general(
        &mut self,
        stream: &Arc<EventStream>,
        inherited: Vec<Event>,
    ) -> LeftOut {
        if let Some((writer, session)) = &self.log {
            stream.resume_logging(writer, *session);
        }
        let mut left_out = stream.adopt(Instant::now(), inherited);
        left_out += self.adopt_unknown(stream);
        self.track_retained(stream);
        self.retain_general(stream);
        self.forget_unknown(stream.number);
        left_out
    }

    /// Keeps a POST stream of an earlier owner for its client.
    pub(in crate::sessions) fn continue_answers(&mut self, stream: &Arc<EventStream>) {
        if let Some((writer, session)) = &self.log {
            stream.resume_logging(writer, *session);
        }
        self.evict_oldest();
        self.track_retained(stream);
        self.retained.insert(stream.number, stream.clone());
    }

    /// Moves the events of streams that no client knows to this one. Returns those that it does not
    /// have.
    pub(in crate::sessions) fn adopt_unknown(&mut self, stream: &Arc<EventStream>) -> LeftOut {
        let number = stream.number;
        self.adopt_from(stream, |other| other.number != number && other.is_unknown())
    }

    /// Forgets streams that no client knows and whose events were moved. The log must not count
    /// them as lost.
    fn forget_unknown(&mut self, excepted: u64) {
        let unknown = self
            .general
            .iter()
            .filter(|other| other.number != excepted && other.is_unknown() && other.is_empty());
        let unknown: Vec<u64> = unknown.map(|other| other.number).collect();
        unknown.into_iter().for_each(|number| self.forget(number));
    }

    pub(in crate::sessions) fn retain_general(&mut self, stream: &Arc<EventStream>) {
        self.evict_oldest();
        self.general.push(stream.clone());
        self.retained.insert(stream.number, stream.clone());
    }

    /// Returns the stream for a message that belongs to no request.
    pub(in crate::sessions) fn general(&mut self) -> Arc<EventStream> {
        let connected = self.general.iter().rev().find(|stream| stream.is_connected());
        match connected.or(self.general.last()) {
            Some(stream) => stream.clone(),
            None => self.open_general(Vec::new(), Vec::new()).stream,
        }
    }

    /// Keeps a POST stream for resumption.
    pub(in crate::sessions) fn retain(&mut self, stream: &Arc<EventStream>) {
        self.evict_oldest();
        self.track_retained(stream);
        self.retained.insert(stream.number, stream.clone());
        if let Some((writer, session)) = &self.log {
            stream.start_logging(writer, *session);
        }
    }

    /// Frees capacity for another stream: forgets one that has ended, or else one without a
    /// connection.
    fn evict_oldest(&mut self) {
        if self.retained.len() < STREAMS_KEPT_MAX {
            return;
        }
        let now = Instant::now();
        let ended = self.retained.values().find(|stream| stream.ended_for(now).is_some());
        // A stream that is being read is never forgotten. The limit of calls in flight bounds their
        // number.
        let victim = ended
            .or_else(|| self.retained.values().find(|stream| !stream.is_connected()))
            .map(|stream| stream.number);
        if let Some(victim) = victim {
            self.forget(victim);
        }
    }

    /// Forgets a stream. No client can resume it any more.
    pub(in crate::sessions) fn forget(&mut self, number: u64) {
        if let Some(stream) = self.retained.remove(&number) {
            self.lost_unread |= stream.is_general() && stream.is_missed();
            stream.drop_from_log();
        }
        self.general.retain(|stream| stream.number != number);
    }

    pub(in crate::sessions) fn get(&self, number: u64) -> Option<Arc<EventStream>> {
        self.retained.get(&number).cloned()
    }

    /// Returns whether a stream of this number may have existed.
    pub(in crate::sessions) fn may_have_existed(&self, number: u64) -> bool {
        let (epoch, count) = (number >> EPOCH_SHIFT, (number & ((1 << EPOCH_SHIFT) - 1)) >> 1);
        epoch > 0
            && count > 0
            && (epoch < self.epoch
                || (epoch == self.epoch
                    && count <= self.opened_counts[usize::from(is_general(number))]))
    }

    /// Returns whether an earlier owner made the stream.
    pub(in crate::sessions) fn is_inherited(&self, number: u64) -> bool {
        number >> EPOCH_SHIFT < self.epoch
    }

    pub(in crate::sessions) fn expire(&mut self, now: Instant, age: Duration) {
        self.retained.values().for_each(|stream| stream.expire(now, age));
        // A GET stream without a connection ends once it holds nothing that can be resumed.
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

    pub(in crate::sessions) fn any_connected(&self) -> bool {
        self.retained.values().any(|stream| stream.is_connected())
    }

    pub(in crate::sessions) fn connected(&self) -> usize {
        self.retained.values().filter(|stream| stream.is_connected()).count()
    }

    pub(in crate::sessions) fn take_all(&mut self) -> Vec<Arc<EventStream>> {
        self.general.clear();
        std::mem::take(&mut self.retained).into_values().collect()
    }

    pub(in crate::sessions) fn all(&self) -> impl Iterator<Item = &Arc<EventStream>> {
        self.retained.values()
    }

    pub(in crate::sessions) fn all_general(&self) -> &[Arc<EventStream>] {
        &self.general
    }
}

/// A new GET stream, and the waiting events that it does not have.
pub(in crate::sessions) struct OpenedStream {
    pub(in crate::sessions) stream: Arc<EventStream>,
    pub(in crate::sessions) left_out: LeftOut,
}

/// Returns whether the number is that of a GET stream.
pub(in crate::sessions) fn is_general(number: u64) -> bool {
    number & 1 == 1
}

/// Returns the lowest sequence that an owner of this epoch gives to events of an inherited stream.
/// An earlier owner that does not know of the loss yet cannot give the same.
pub(in crate::sessions) fn first_sequence(epoch: i64) -> u64 {
    u64::try_from(epoch).unwrap_or_default() << EPOCH_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_number_contains_its_epoch_and_kind() {
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
    fn a_stream_of_an_earlier_owner_takes_the_unsent_messages() {
        let mut streams = SessionStreams::new(LogLimits { events: 10, bytes: 1000 }, 2, None);
        let waiting = streams.general();
        waiting.push(Instant::now(), EventKind::Message, Bytes::from_static(b"untold")).unwrap();
        let held = rules::event_log::StreamSnapshot {
            last_sequence: first_sequence(2),
            ..Default::default()
        };
        let old = EventStream::restored(1 << EPOCH_SHIFT | 3, streams.limits, None, None, held);
        streams.continue_general(&old, Vec::new());
        let reader = old.read_from(0).unwrap();
        assert_eq!((reader.backlog(), waiting.is_empty()), (1, true));
        assert_eq!(streams.general().number, old.number, "it is the session's general stream");
    }

    /// Returns whether the next GET stream tells its client of a loss, and whether the one after it
    /// does.
    fn tells_of_loss(streams: &mut SessionStreams) -> [bool; 2] {
        [(); 2].map(|()| streams.open_general(Vec::new(), Vec::new()).left_out.is_gap)
    }

    fn notify(streams: &mut SessionStreams) {
        let frame = Bytes::from_static(b"{}");
        let _may_be_cut = streams.general().push(Instant::now(), EventKind::Message, frame);
    }

    #[test]
    fn the_next_get_stream_tells_of_each_loss_of_waiting_messages() {
        let limits = LogLimits { events: 2, bytes: 1000 };
        let new = || SessionStreams::new(limits, 1, None);
        let age = |streams: &mut SessionStreams| {
            streams.expire(Instant::now() + Duration::from_secs(60), Duration::ZERO);
        };

        let mut waiting = new();
        notify(&mut waiting);
        assert_eq!(tells_of_loss(&mut waiting), [false; 2], "nothing is lost");

        let mut expired = new();
        notify(&mut expired);
        age(&mut expired);
        assert_eq!(tells_of_loss(&mut expired), [true, false]);

        let mut cut = new();
        (0..=limits.events).for_each(|_| notify(&mut cut));
        assert_eq!(tells_of_loss(&mut cut), [true, false]);

        let mut left_out = new();
        notify(&mut left_out);
        let inherited = left_out.general().take_unread();
        (0..limits.events).for_each(|_| notify(&mut left_out));
        assert!(left_out.open_general(Vec::new(), inherited).left_out.is_gap);

        let mut forgotten = new();
        notify(&mut forgotten);
        let number = forgotten.general().number;
        forgotten.forget(number);
        assert_eq!(tells_of_loss(&mut forgotten), [true, false]);

        let mut resumed = new();
        let known = resumed.open_general(Vec::new(), Vec::new()).stream;
        drop(known.read_from(0).unwrap());
        let unknown = resumed.open_general(Vec::new(), Vec::new()).stream;
        unknown.push(Instant::now(), EventKind::Message, Bytes::from_static(b"{}")).unwrap();
        age(&mut resumed);
        assert!(resumed.adopt_unknown(&known).is_gap);
        assert!(!resumed.adopt_unknown(&known).is_gap);
    }
}
