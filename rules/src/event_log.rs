//! Events of one stream towards a client: those still to be sent, and those that can be sent again.
//!
//! One log is the queue, the replay buffer and the memory of a stream. A reader is only a position
//! in it. The log has limits of count, bytes and age. To free capacity, it drops delivered events
//! first, then progress. If that is not enough, the stream is cut, because a client that does not
//! read must not hold memory. A change notification is queued once per topic. A client decides the
//! number of topics, so their events need no limit and cut no stream. A backend decides the number
//! of parts of a resource, so these have the usual limits.

mod event;

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use bytes::Bytes;

pub use self::event::{Event, EventKind, Topic};

/// Limits of one stream's log.
#[derive(Debug, Clone, Copy)]
pub struct LogLimits {
    pub events: usize,
    pub bytes: usize,
}

/// The state of a stream that an earlier owner stored.
#[derive(Debug, Default)]
pub struct StreamSnapshot {
    /// Sequence of the last trimmed event.
    pub trimmed_through: u64,
    /// Position of the client.
    pub position: u64,
    /// Retained events, in order.
    pub events: Vec<Event>,
    /// Sequence of the last event. New events follow it.
    pub last_sequence: u64,
}

/// Error: the stream was cut, because the client does not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overflow;

/// Error: the log cannot continue from the position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PositionGone;

#[derive(Debug)]
pub struct EventLog {
    limits: LogLimits,
    events: VecDeque<Event>,
    /// Sequence of the last retained event of each topic.
    last_of_topic: HashMap<Topic, u64>,
    bytes: usize,
    next_sequence: u64,
    /// Sequence of the last event that a connection has taken.
    handed: u64,
    /// Sequence of the last dropped event. Events that were left out before they were read do not
    /// count.
    lost_through: u64,
    /// Answers still to come. The stream ends with the last of them. `None`: a stream without an
    /// end.
    answers_due: Option<usize>,
    cut: bool,
    left_out: u64,
    /// Set for an outbox, in which answers must fit too.
    strict: bool,
    /// Number of delivered events, each counted once, plus the messages before the first event.
    handed_count: u64,
    /// Bytes of delivered events that are still retained.
    handed_bytes: usize,
    /// Set while an event that no connection had taken is gone, unless its client can do without
    /// it.
    lost_unread: bool,
}

/// More events than any client has received.
const COUNT_UNKNOWN: u64 = u64::MAX / 2;

impl EventLog {
    /// Creates a stream that ends after `answers`, or (`None`) only with its session.
    pub fn new(limits: LogLimits, answers: Option<usize>) -> Self {
        Self {
            limits,
            events: VecDeque::new(),
            last_of_topic: HashMap::new(),
            bytes: 0,
            next_sequence: 1,
            handed: 0,
            lost_through: 0,
            answers_due: answers,
            cut: false,
            left_out: 0,
            strict: false,
            handed_count: 0,
            handed_bytes: 0,
            lost_unread: false,
        }
    }

    /// Creates a stream that carries all messages of a session. Answers count against its limits
    /// too, because no other limit bounds the queue of a client that does not read.
    ///
    /// `received_count`: number of messages that the client has received before. `None` if it is
    /// unknown, so that the client's count cannot be used.
    pub fn outbox(limits: LogLimits, received_count: Option<u64>) -> Self {
        Self {
            strict: true,
            handed_count: received_count.unwrap_or(COUNT_UNKNOWN),
            ..Self::new(limits, None)
        }
    }

    /// Creates a stream that continues where an earlier owner left it.
    pub fn restored(limits: LogLimits, answers: Option<usize>, held: StreamSnapshot) -> Self {
        let bytes = held.events.iter().map(|event| event.frame.len()).sum();
        let handed_bytes = handed_bytes(&held);
        let topics = held.events.iter().map(|event| Some((event.topic.clone()?, event.sequence)));
        Self {
            last_of_topic: topics.flatten().collect(),
            events: held.events.into(),
            bytes,
            next_sequence: held.last_sequence + 1,
            handed: held.position,
            handed_bytes,
            lost_through: held.trimmed_through,
            ..Self::new(limits, answers)
        }
    }

    /// Adds an event and returns its sequence. `None` if an event about the same topic is unread.
    pub fn push(
        &mut self,
        now: Instant,
        kind: EventKind,
        topic: Option<Topic>,
        frame: Bytes,
    ) -> Result<Option<u64>, Overflow> {
        if kind == EventKind::Answer {
            self.answers_due = self.answers_due.map(|due| due.saturating_sub(1));
        }
        if self.cut {
            self.lost_unread |= kind != EventKind::Droppable;
            return Err(Overflow);
        }
        let sequence = self.next_sequence;
        if let Some(topic) = &topic {
            if self.last_of_topic.get(topic).is_some_and(|last| *last > self.handed) {
                return Ok(None);
            }
            self.last_of_topic.insert(topic.clone(), sequence);
        }
        let may_exceed = (kind == EventKind::Answer && !self.strict)
            || topic.as_ref().is_some_and(Topic::may_exceed);
        self.bytes += frame.len();
        self.events.push_back(Event { sequence, kind, topic, frame, at: now });
        self.next_sequence += 1;
        self.evict();
        if kind == EventKind::Droppable {
            return Ok(Some(sequence)); // it is within the limits, or left out already
        }
        // One event alone is never too much: it is within the limit of a message.
        if self.over_limit() && !may_exceed && self.events.len() > 1 {
            (self.cut, self.lost_unread) = (true, true);
            if let Some(event) = self.events.pop_back() {
                self.bytes -= event.frame.len(); // the next owner of the unread events must have capacity for them
                forget_topic(&mut self.last_of_topic, &event);
            }
            return Err(Overflow);
        }
        Ok(Some(sequence))
    }

    /// Counts an answer that will not come, because its request was cancelled.
    pub fn abandon_answer(&mut self) {
        self.answers_due = self.answers_due.map(|due| due.saturating_sub(1));
    }

    /// Returns the first event after `position` and marks it as delivered.
    pub fn next_after(&mut self, position: u64) -> Option<Event> {
        let event = self.events.get(self.first_after(position))?.clone();
        if event.sequence > self.handed {
            self.handed = event.sequence;
            self.handed_count += 1;
            self.handed_bytes += event.frame.len();
        }
        Some(event)
    }

    /// Takes the events after `position` within these limits, but at least one. Returns the
    /// position after them.
    pub fn take_after(
        &mut self,
        position: u64,
        count_max: usize,
        bytes_max: usize,
        frames: &mut Vec<Bytes>,
    ) -> u64 {
        let (first, mut bytes, mut position) = (self.first_after(position), 0, position);
        for event in self.events.range(first..).take(count_max) {
            if bytes > 0 && bytes + event.frame.len() > bytes_max {
                break;
            }
            bytes += event.frame.len();
            position = event.sequence;
            if position > self.handed {
                self.handed = position;
                self.handed_count += 1;
                self.handed_bytes += event.frame.len();
            }
            frames.push(event.frame.clone());
        }
        position
    }

    /// Drops delivered events up to `position`, because no client will request them again.
    pub fn discard_through(&mut self, position: u64) {
        while self.events.front().is_some_and(|event| event.sequence <= position.min(self.handed)) {
            self.drop_front();
        }
    }

    /// Returns the sequence of the last delivered event.
    pub fn sent_through(&self) -> u64 {
        self.handed
    }

    /// Drops delivered events up to `position`, except those that fit into `kept`.
    pub fn trim_sent(&mut self, position: u64, kept: LogLimits) {
        while self.first_after(self.handed) > kept.events || self.handed_bytes > kept.bytes {
            match self.events.front() {
                Some(event) if event.sequence <= position.min(self.handed) => self.drop_front(),
                _ => return,
            }
        }
    }

    /// Returns whether [`EventLog::outbox`] created the log.
    pub fn is_outbox(&self) -> bool {
        self.strict
    }

    /// Returns whether the undelivered events exceed half of a limit.
    pub fn is_half_full(&self) -> bool {
        let waiting = self.events.len() - self.first_after(self.handed);
        waiting > self.limits.events / 2 || self.bytes - self.handed_bytes > self.limits.bytes / 2
    }

    /// Returns the bytes of retained events that a connection has taken.
    pub fn delivered_bytes(&self) -> usize {
        self.handed_bytes
    }

    /// Returns the bytes of events that no connection has taken yet.
    pub fn unread_bytes(&self) -> usize {
        self.bytes.saturating_sub(self.handed_bytes)
    }

    /// Returns the position of a client that has received this many events of the stream.
    pub fn position_of(&self, received: u64) -> Result<u64, PositionGone> {
        let missing = self.handed_count.checked_sub(received).ok_or(PositionGone)?;
        let handed_here = self.first_after(self.handed);
        let missing = usize::try_from(missing).map_err(|_| PositionGone)?;
        match handed_here.checked_sub(missing) {
            None => Err(PositionGone),
            Some(_) if missing == 0 => Ok(self.handed),
            Some(at) => Ok(self.events[at].sequence - 1),
        }
    }

    /// Returns the number of events after `position`.
    pub fn count_after(&self, position: u64) -> u64 {
        (self.events.len() - self.first_after(position)) as u64
    }

    /// Returns the index of the first event after `position`. A binary search, because a log holds
    /// many events that were read already.
    fn first_after(&self, position: u64) -> usize {
        self.events.partition_point(|event| event.sequence <= position)
    }

    /// Returns an error unless all events after `position` are retained.
    pub fn can_resume(&self, position: u64) -> Result<(), PositionGone> {
        // Events that were left out unread (progress, log messages) leave gaps that do not matter.
        let gone = self.cut || position >= self.next_sequence || position < self.lost_through;
        if gone { Err(PositionGone) } else { Ok(()) }
    }

    /// Returns whether an event of this size fits without dropping another one.
    pub fn has_capacity_for(&self, bytes: usize) -> bool {
        self.events.is_empty()
            || (self.events.len() < self.limits.events && self.bytes + bytes <= self.limits.bytes)
    }

    /// Removes and returns the events that no connection has taken yet.
    pub fn take_unread(&mut self) -> Vec<Event> {
        let handed = self.handed;
        let (unread, kept): (Vec<_>, Vec<_>) =
            self.events.drain(..).partition(|event| event.sequence > handed);
        self.events = kept.into();
        unread.iter().for_each(|event| forget_topic(&mut self.last_of_topic, event));
        self.bytes = self.events.iter().map(|event| event.frame.len()).sum();
        unread
    }

    /// Returns the topics of the events after `position`, one for each event.
    pub fn topics_after(&self, position: u64) -> impl Iterator<Item = &Topic> {
        let after = self.events.iter().filter(move |event| event.sequence > position);
        after.filter_map(|event| event.topic.as_ref())
    }

    /// Removes events after `position` whose topic is meant, because their client may not have them
    /// any more. The client must not have received them. Returns their number.
    pub fn withdraw_after(&mut self, position: u64, is_meant: impl Fn(&Topic) -> bool) -> usize {
        let before = self.events.len();
        self.events.retain(|event| {
            let is_kept =
                event.sequence <= position || !event.topic.as_ref().is_some_and(&is_meant);
            if !is_kept {
                forget_topic(&mut self.last_of_topic, event);
                self.bytes -= event.frame.len();
                if event.sequence <= self.handed {
                    self.handed_count -= 1;
                    self.handed_bytes -= event.frame.len();
                }
            }
            is_kept
        });
        before - self.events.len()
    }

    /// Drops events older than `age`, up to `through`, which is the last one that the current
    /// reader has taken. A slow reader meets the limits of the log, which cut its stream instead.
    pub fn expire(&mut self, now: Instant, age: Duration, through: u64) {
        let over = |event: &Event| {
            event.sequence <= through && now.saturating_duration_since(event.at) > age
        };
        while self.events.front().is_some_and(over) {
            self.drop_front();
        }
    }

    /// Returns all retained events, delivered or not.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.events.iter()
    }

    /// Returns the sequence of the last dropped event.
    pub fn trimmed_through(&self) -> u64 {
        self.lost_through
    }

    /// Returns whether every answer is in the log.
    pub fn is_complete(&self) -> bool {
        self.answers_due == Some(0)
    }

    /// Returns whether the stream has an end.
    pub fn is_finite(&self) -> bool {
        self.answers_due.is_some()
    }

    pub fn was_cut(&self) -> bool {
        self.cut
    }

    /// Cuts the stream. Drops the events that no connection has taken yet.
    pub fn cut(&mut self) {
        self.cut = true;
        self.lost_unread |=
            self.take_unread().iter().any(|event| event.kind != EventKind::Droppable);
    }

    /// Returns whether an event that no connection had taken is lost since the last call. The
    /// position of a client shows this too, but a client that opens another stream has none.
    pub fn take_lost_unread(&mut self) -> bool {
        std::mem::take(&mut self.lost_unread)
    }

    /// Returns whether an event that matters waits for a connection.
    pub fn has_unread(&self) -> bool {
        self.events
            .range(self.first_after(self.handed)..)
            .any(|event| event.kind != EventKind::Droppable)
    }

    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Returns the number of events left out since the last call.
    pub fn take_dropped_count(&mut self) -> u64 {
        std::mem::take(&mut self.left_out)
    }

    fn over_limit(&self) -> bool {
        self.events.len() > self.limits.events || self.bytes > self.limits.bytes
    }

    fn evict(&mut self) {
        while self.over_limit()
            && self.events.front().is_some_and(|event| event.sequence <= self.handed)
        {
            self.drop_front();
        }
        while self.over_limit() {
            let Some(oldest) =
                self.events.iter().position(|event| event.kind == EventKind::Droppable)
            else {
                return;
            };
            if let Some(event) = self.events.remove(oldest) {
                forget_topic(&mut self.last_of_topic, &event);
                self.bytes -= event.frame.len();
                self.left_out += 1;
            }
        }
    }

    fn drop_front(&mut self) {
        if let Some(event) = self.events.pop_front() {
            forget_topic(&mut self.last_of_topic, &event);
            self.bytes -= event.frame.len();
            if event.sequence <= self.handed {
                self.handed_bytes -= event.frame.len();
            } else {
                self.lost_unread |= event.kind != EventKind::Droppable;
            }
            self.lost_through = event.sequence;
        }
    }
}

/// Removes the topic of an event that leaves the log, unless a later event has it.
fn forget_topic(last_of_topic: &mut HashMap<Topic, u64>, event: &Event) {
    if let Some(topic) = &event.topic
        && last_of_topic.get(topic) == Some(&event.sequence)
    {
        last_of_topic.remove(topic);
    }
}

/// Returns the bytes of the retained events that the client of a restored stream has received.
fn handed_bytes(held: &StreamSnapshot) -> usize {
    held.events
        .iter()
        .filter(|event| event.sequence <= held.position)
        .map(|event| event.frame.len())
        .sum()
}

#[cfg(test)]
mod tests {
    use protocol::method::Method;

    use super::*;

    const LIMITS: LogLimits = LogLimits { events: 4, bytes: 100 };

    fn push(log: &mut EventLog, kind: EventKind, text: &str) -> Result<(), Overflow> {
        log.push(Instant::now(), kind, None, Bytes::from(text.to_owned())).map(|_| ())
    }

    fn push_about(log: &mut EventLog, topic: &Topic) -> Result<Option<u64>, Overflow> {
        log.push(
            Instant::now(),
            EventKind::Message,
            Some(topic.clone()),
            Bytes::from_static(b"changed"),
        )
    }

    #[test]
    fn a_reader_gets_each_event_once_in_order() {
        let mut log = EventLog::new(LIMITS, Some(1));
        push(&mut log, EventKind::Message, "a").unwrap();
        push(&mut log, EventKind::Answer, "b").unwrap();
        let first = log.next_after(0).unwrap();
        let second = log.next_after(first.sequence).unwrap();
        assert_eq!((&first.frame[..], &second.frame[..]), (&b"a"[..], &b"b"[..]));
        assert!(log.next_after(second.sequence).is_none() && log.is_complete());
    }

    #[test]
    fn sse_12_read_events_are_evicted_and_then_cannot_be_resumed() {
        let mut log = EventLog::new(LIMITS, None);
        for text in ["1", "2", "3", "4"] {
            push(&mut log, EventKind::Message, text).unwrap();
        }
        log.next_after(0).unwrap();
        log.next_after(1).unwrap();
        push(&mut log, EventKind::Message, "5").unwrap();
        assert_eq!(log.can_resume(0), Err(PositionGone), "event 1 was trimmed");
        assert_eq!(log.can_resume(1), Ok(()));
        assert_eq!(log.can_resume(5), Ok(()), "nothing missed");
        assert_eq!(log.can_resume(6), Err(PositionGone), "never sent");
    }

    #[test]
    fn progress_is_dropped_first_and_answers_are_never_dropped() {
        let mut log = EventLog::new(LIMITS, Some(1));
        for text in ["p1", "p2", "p3", "p4", "p5", "p6"] {
            push(&mut log, EventKind::Droppable, text).unwrap();
        }
        assert_eq!(log.take_dropped_count(), 2);
        assert_eq!(&log.next_after(0).unwrap().frame[..], b"p3");
        push(&mut log, EventKind::Answer, &"x".repeat(1000)).unwrap();
        assert!(log.is_complete() && !log.was_cut());
    }

    #[test]
    fn a_client_that_does_not_read_loses_the_stream() {
        let mut log = EventLog::new(LIMITS, None);
        for _ in 0..4 {
            push(&mut log, EventKind::Message, "m").unwrap();
        }
        assert_eq!(push(&mut log, EventKind::Message, "m"), Err(Overflow));
        assert!(log.was_cut());
    }

    #[test]
    fn one_large_message_and_the_answer_after_it_are_kept() {
        let mut log = EventLog::new(LIMITS, Some(1));
        push(&mut log, EventKind::Message, &"x".repeat(1000)).unwrap();
        push(&mut log, EventKind::Answer, "answer").unwrap();
        assert!(log.is_complete() && !log.was_cut());
    }

    #[test]
    fn dropped_progress_does_not_prevent_a_resumption() {
        let mut log = EventLog::new(LIMITS, Some(1));
        for text in ["p1", "p2", "p3", "p4", "p5", "p6"] {
            push(&mut log, EventKind::Droppable, text).unwrap();
        }
        assert_eq!(log.can_resume(0), Ok(()));
    }

    #[test]
    fn a_cut_stream_still_counts_its_answers() {
        let mut log = EventLog::new(LIMITS, Some(1));
        log.cut();
        assert_eq!(push(&mut log, EventKind::Answer, "answer"), Err(Overflow));
        assert!(log.is_complete());
    }

    #[test]
    fn unread_events_can_move_to_another_stream() {
        let mut log = EventLog::new(LIMITS, None);
        push(&mut log, EventKind::Message, "read").unwrap();
        log.next_after(0).unwrap();
        push(&mut log, EventKind::Message, "unread").unwrap();
        let moved = log.take_unread();
        assert_eq!(moved.len(), 1);
        assert_eq!(&moved[0].frame[..], b"unread");
    }

    #[test]
    fn old_events_expire() {
        let mut log = EventLog::new(LIMITS, None);
        push(&mut log, EventKind::Message, "old").unwrap();
        log.expire(Instant::now() + Duration::from_secs(10), Duration::from_secs(5), u64::MAX);
        assert!(log.is_empty());
        assert_eq!(log.can_resume(0), Err(PositionGone));
    }

    #[test]
    fn the_loss_of_unread_events_is_known_once() {
        let expired = |log: &mut EventLog| {
            log.expire(Instant::now() + Duration::from_secs(10), Duration::ZERO, u64::MAX);
            log.take_lost_unread()
        };
        let mut log = EventLog::new(LIMITS, None);
        push(&mut log, EventKind::Message, "read").unwrap();
        log.next_after(0).unwrap();
        assert!(!expired(&mut log), "the client has it");
        push(&mut log, EventKind::Droppable, "progress").unwrap();
        assert!(!log.has_unread() && !expired(&mut log), "the client can do without it");
        push(&mut log, EventKind::Message, "unread").unwrap();
        assert!(log.has_unread());
        assert_eq!((expired(&mut log), expired(&mut log), log.has_unread()), (true, false, false));

        for _ in 0..LIMITS.events {
            push(&mut log, EventKind::Message, "m").unwrap();
        }
        assert!(!log.take_lost_unread());
        push(&mut log, EventKind::Message, "m").unwrap_err();
        assert_eq!((log.take_lost_unread(), log.take_lost_unread()), (true, false));
        push(&mut log, EventKind::Message, "m").unwrap_err();
        assert!(log.take_lost_unread(), "the stream is cut");
        log.cut();
        assert!(log.take_lost_unread() && log.is_empty());
        log.cut();
        assert!(!log.take_lost_unread(), "nothing was left to lose");
    }

    #[test]
    fn unread_events_do_not_expire() {
        let mut log = EventLog::new(LIMITS, None);
        for text in ["1", "2", "3"] {
            push(&mut log, EventKind::Message, text).unwrap();
        }
        let read = log.next_after(0).unwrap().sequence;
        log.expire(Instant::now() + Duration::from_secs(10), Duration::ZERO, read);
        assert_eq!(
            (log.can_resume(0), log.can_resume(read), log.count_after(read)),
            (Err(PositionGone), Ok(()), 2)
        );
    }

    #[test]
    fn an_unread_change_is_not_announced_again() {
        let mut log = EventLog::new(LIMITS, None);
        let (list, resource) =
            (Topic::List(Method::ToolsListChanged), Topic::Resource("test://one".to_owned()));
        assert_eq!(push_about(&mut log, &list), Ok(Some(1)));
        assert_eq!(push_about(&mut log, &resource), Ok(Some(2)));
        assert_eq!(
            (push_about(&mut log, &list), push_about(&mut log, &resource)),
            (Ok(None), Ok(None))
        );
        log.next_after(0).unwrap();
        assert_eq!(
            push_about(&mut log, &list),
            Ok(Some(3)),
            "the first one was read, so this is news"
        );
        assert_eq!(push_about(&mut log, &resource), Ok(None), "still unread");
    }

    #[test]
    fn changes_of_many_resources_cut_no_stream() {
        let mut log = EventLog::new(LIMITS, None);
        for number in 0..10 * LIMITS.events {
            push_about(&mut log, &Topic::Resource(number.to_string())).unwrap();
        }
        assert_eq!((log.was_cut(), log.count_after(0)), (false, 10 * LIMITS.events as u64));
    }

    #[test]
    fn changes_of_parts_of_resources_have_the_usual_limits() {
        let mut log = EventLog::new(LIMITS, None);
        let part = |number: usize| Topic::ResourcePart(number.to_string());
        for number in 0..LIMITS.events {
            assert!(matches!(push_about(&mut log, &part(number)), Ok(Some(_))));
            assert_eq!(push_about(&mut log, &part(number)), Ok(None));
        }
        assert_eq!(push_about(&mut log, &part(LIMITS.events)), Err(Overflow));
        assert!(log.was_cut() && log.events.len() == LIMITS.events);
        assert_eq!(log.last_of_topic.len(), LIMITS.events);
    }

    #[test]
    fn topics_are_forgotten_with_their_events() {
        let mut log = EventLog::new(LIMITS, None);
        let topics = [1, 2, 3].map(|number| Topic::Resource(number.to_string()));
        for topic in &topics {
            push_about(&mut log, topic).unwrap();
        }
        log.next_after(0).unwrap();
        assert_eq!(push_about(&mut log, &topics[0]), Ok(Some(4)));
        log.discard_through(1);
        assert_eq!(push_about(&mut log, &topics[0]), Ok(None), "a later event has the topic");
        log.withdraw_after(1, |topic| *topic == topics[1]);
        assert_eq!(push_about(&mut log, &topics[1]), Ok(Some(5)));
        assert_eq!(log.take_unread().len(), 3);
        assert!(log.last_of_topic.is_empty());
        let events = [Event::from_stored(
            Instant::now(),
            7,
            EventKind::Message,
            Some(topics[2].clone()),
            Bytes::from_static(b"3"),
        )];
        let held = StreamSnapshot { events: events.into(), last_sequence: 7, ..Default::default() };
        let mut restored = EventLog::restored(LIMITS, None, held);
        assert_eq!(push_about(&mut restored, &topics[2]), Ok(None));
    }

    #[test]
    fn progress_at_a_log_over_its_limit_is_left_out_and_cuts_no_stream() {
        let mut log = EventLog::new(LIMITS, None);
        for number in 0..2 * LIMITS.events {
            push_about(&mut log, &Topic::Resource(number.to_string())).unwrap();
        }
        assert_eq!(push(&mut log, EventKind::Droppable, "progress"), Ok(()));
        assert_eq!((log.was_cut(), log.take_dropped_count()), (false, 1));
        assert_eq!(log.count_after(0), 2 * LIMITS.events as u64, "no change is lost");

        let mut log = EventLog::new(LIMITS, Some(3));
        let answers = ["x".repeat(LIMITS.bytes), "y".repeat(LIMITS.bytes)];
        for answer in &answers {
            push(&mut log, EventKind::Answer, answer).unwrap();
        }
        assert_eq!(push(&mut log, EventKind::Droppable, "progress"), Ok(()));
        let kept: Vec<&[u8]> = log.events().map(|event| &event.frame[..]).collect();
        assert_eq!(
            (log.was_cut(), kept),
            (false, vec![answers[0].as_bytes(), answers[1].as_bytes()])
        );
    }

    #[test]
    fn a_restored_log_continues_with_higher_sequence_numbers() {
        let now = Instant::now();
        let events = [4, 5].map(|sequence| {
            Event::from_stored(
                now,
                sequence,
                EventKind::Message,
                None,
                Bytes::from(sequence.to_string()),
            )
        });
        let held = StreamSnapshot {
            trimmed_through: 2,
            position: 3,
            events: events.into(),
            last_sequence: 1 << 33,
        };
        let mut log = EventLog::restored(LIMITS, None, held);
        assert_eq!(log.can_resume(3), Ok(()));
        assert_eq!(log.can_resume(1), Err(PositionGone), "trimmed before");
        push(&mut log, EventKind::Message, "new").unwrap();
        let mut position = 3;
        let mut read = Vec::new();
        while let Some(event) = log.next_after(position) {
            position = event.sequence;
            read.push((event.sequence, event.frame));
        }
        let expected = [(4, "4"), (5, "5"), ((1 << 33) + 1, "new")]
            .map(|(sequence, text)| (sequence, Bytes::from(text)));
        assert_eq!(read, expected);
    }

    #[test]
    fn event_kinds_are_read_as_they_were_stored() {
        for kind in [EventKind::Answer, EventKind::Message, EventKind::Droppable] {
            assert_eq!(EventKind::from_code(kind.code()), kind);
        }
    }

    #[test]
    fn an_outbox_is_half_full_by_events_or_by_bytes_that_wait() {
        let mut log = EventLog::outbox(LogLimits { events: 4, bytes: 100 }, None);
        let push = |log: &mut EventLog, bytes: usize| {
            log.push(Instant::now(), EventKind::Answer, None, vec![b'x'; bytes].into()).unwrap()
        };
        for _ in 0..2 {
            push(&mut log, 1);
        }
        assert!(!log.is_half_full());
        push(&mut log, 1);
        assert!(log.is_half_full(), "3 of 4 events");
        let taken = log.take_after(0, 10, 1_000, &mut Vec::new());
        assert!(!log.is_half_full(), "what was taken does not wait");
        log.discard_through(taken);
        push(&mut log, 51);
        assert!(log.is_half_full(), "51 of 100 bytes");
    }

    #[test]
    fn an_outbox_is_bounded_for_every_kind_of_event() {
        let mut log = EventLog::outbox(LIMITS, Some(0));
        for text in ["1", "2", "3", "4"] {
            push(&mut log, EventKind::Answer, text).unwrap();
        }
        assert_eq!(push(&mut log, EventKind::Answer, "5"), Err(Overflow));
        assert!(log.was_cut());
        let mut log = EventLog::outbox(LIMITS, Some(0));
        push(&mut log, EventKind::Answer, &"x".repeat(101)).unwrap();
        assert_eq!(push(&mut log, EventKind::Droppable, "progress"), Ok(()), "left out");
        assert_eq!(log.count_after(0), 1);
    }

    #[test]
    fn a_batch_is_bounded_by_count_and_bytes_and_never_empty() {
        let mut log = EventLog::outbox(LogLimits { events: 100, bytes: 1000 }, Some(0));
        for text in ["aaaa", "bb", "cc", "dd"] {
            push(&mut log, EventKind::Answer, text).unwrap();
        }
        let mut frames = Vec::new();
        assert_eq!(log.take_after(0, 10, 3, &mut frames), 1, "one alone may be larger");
        assert_eq!(log.take_after(1, 10, 4, &mut frames), 3);
        assert_eq!(log.take_after(3, 10, 4, &mut frames), 4);
        assert_eq!(log.take_after(4, 10, 4, &mut frames), 4);
        assert_eq!(frames, ["aaaa", "bb", "cc", "dd"]);
        log.discard_through(3);
        assert_eq!(log.events().count(), 1);
    }

    #[test]
    fn a_client_that_counts_resumes_at_its_position() {
        let mut log = EventLog::outbox(LogLimits { events: 4, bytes: 1000 }, Some(0));
        let mut frames = Vec::new();
        for text in ["p1", "p2", "p3", "p4", "p5"] {
            push(&mut log, EventKind::Droppable, text).unwrap();
        }
        // The first event was left out. The client never received it, and does not count it.
        let position = log.take_after(0, 3, 1000, &mut frames);
        assert_eq!(log.position_of(3), Ok(position));
        let again = log.position_of(1).unwrap();
        frames.clear();
        log.take_after(again, 10, 1000, &mut frames);
        assert_eq!(frames, ["p3", "p4", "p5"]);
        assert_eq!(log.position_of(5), Err(PositionGone), "more than were sent");
        log.discard_through(position);
        assert_eq!(log.position_of(2), Err(PositionGone));
    }

    #[test]
    fn messages_sent_before_the_first_event_are_counted() {
        let limits = LogLimits { events: 4, bytes: 1000 };
        let mut log = EventLog::outbox(limits, Some(2));
        assert_eq!((log.position_of(2), log.position_of(1)), (Ok(0), Err(PositionGone)));
        for text in ["3", "4"] {
            push(&mut log, EventKind::Answer, text).unwrap();
        }
        let position = log.take_after(0, 10, 1000, &mut Vec::new());
        assert_eq!(
            (log.position_of(4), log.position_of(3), log.position_of(2)),
            (Ok(position), Ok(1), Ok(0))
        );
        assert_eq!(
            (log.position_of(5), log.position_of(1)),
            (Err(PositionGone), Err(PositionGone))
        );
        let mut log = EventLog::outbox(limits, None);
        push(&mut log, EventKind::Answer, "1").unwrap();
        log.take_after(0, 10, 1000, &mut Vec::new());
        assert_eq!(
            (log.position_of(0), log.position_of(1), log.position_of(9)),
            (Err(PositionGone), Err(PositionGone), Err(PositionGone))
        );
    }
}
