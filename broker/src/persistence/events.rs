//! Writer of event streams behind their senders: a sender queues an event and returns, and one task
//! logs batches in order.
//!
//! A sender never waits and never fails. An event is lost if the queue is full or the store refuses
//! it. Lost events are counted and noted. The next entry of the stream is logged behind a mark that
//! everything up to the last lost event is gone. An event that exceeds the bytes of its tenant is
//! lost too: its stream logs the mark in its place. Beyond [`LOST_STREAMS_MAX`] noted gaps, a session
//! with a further gap logs nothing more. A log may thus end early or begin late, but it never has an
//! unmarked hole.
//!
//! The drop of a stream can be lost too. It is noted and repeated, because the next owner of the
//! session would send the events of that stream again. Each session has few notes of drops.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::{Mutex, MutexGuard};
use records::{LogEntry, SessionKey, StreamRecord};
use rules::{
    byte_window::ByteWindow,
    limits::{
        EVENT_BATCH_BYTES_MAX, EVENT_BATCH_MAX, EVENT_QUEUE_BYTES_MAX, EVENT_QUEUE_MAX,
        LOST_STREAMS_MAX, STREAMS_KEPT_MAX,
    },
};
use storage::EventStore;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::availability::Availability;
use crate::metrics::Metrics;

/// The queue of the event log. Clones share it.
#[derive(Clone)]
pub struct EventWriter {
    inner: Arc<EventWriterInner>,
    /// Bytes that the log takes from the tenant of the events.
    tenant_bytes: Option<Arc<Mutex<ByteWindow>>>,
}

struct EventWriterInner {
    queue: mpsc::Sender<EventJob>,
    /// Number of the next entry. The numbers of a stream's entries have their order, also if the
    /// queue did not take them.
    next_number: AtomicU64,
    queued_bytes: Arc<AtomicUsize>,
    lost: Arc<LossTracker>,
}

enum EventJob {
    /// Logs the entry of this number.
    Log(u64, LogEntry),
    /// Forgets a session that is over, with its streams.
    Forget(SessionKey),
    /// Sends back whether everything of the session that was queued before is logged. Losses with
    /// a lower number can be marked now that the rest is logged.
    Flush(u64, SessionKey, oneshot::Sender<bool>),
}

impl EventWriterInner {
    fn take_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::AcqRel)
    }
}

impl std::fmt::Debug for EventWriter {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("EventWriter")
    }
}

impl EventWriter {
    /// Starts the writer. Must be called inside the runtime. The task ends with the last clone.
    pub(super) fn start(
        store: Arc<dyn EventStore>,
        availability: Arc<Availability>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (queue, jobs) = mpsc::channel(EVENT_QUEUE_MAX);
        let queued_bytes = Arc::new(AtomicUsize::new(0));
        let lost = Arc::new(LossTracker { streams: Mutex::default(), metrics: metrics.clone() });
        tokio::spawn(
            EventWorker {
                store,
                availability,
                metrics,
                jobs,
                queued_bytes: queued_bytes.clone(),
                lost: lost.clone(),
            }
            .run(),
        );
        let next_number = AtomicU64::new(0);
        let inner = Arc::new(EventWriterInner { queue, next_number, queued_bytes, lost });
        Self { inner, tenant_bytes: None }
    }

    /// Returns a writer for a tenant's events, which count in this window.
    pub fn for_tenant(&self, bytes: &Arc<Mutex<ByteWindow>>) -> Self {
        Self { inner: self.inner.clone(), tenant_bytes: Some(bytes.clone()) }
    }

    /// Counts an event of the tenant before it is queued. Returns false if the log takes no more
    /// bytes of the tenant now. The event is then lost, and the caller must mark it.
    pub fn admits(&self, bytes: usize) -> bool {
        let now = Instant::now().into_std();
        let window = self.tenant_bytes.as_ref();
        let admitted = window.is_none_or(|window| window.lock().try_add(bytes, now));
        if !admitted {
            self.inner.lost.metrics.events_lost(1);
        }
        admitted
    }

    /// Queues an entry. The caller must queue entries of a stream in their order.
    pub fn log(&self, entry: LogEntry) {
        let inner = &self.inner;
        let (number, bytes) = (inner.take_number(), weight(&entry));
        if inner.queued_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= EVENT_QUEUE_BYTES_MAX
            && let Ok(slot) = inner.queue.try_reserve()
        {
            slot.send(EventJob::Log(number, entry));
            return;
        }
        inner.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        inner.lost.record([(number, &entry)]);
    }

    /// Removes a session that is over from the log. If the queue is full, its entries age out of
    /// the store.
    pub fn forget(&self, session: SessionKey) {
        if self.inner.queue.try_send(EventJob::Forget(session)).is_err() {
            self.forget_losses(&session);
        }
    }

    /// Forgets which events of a session are missing in the log. Called when this process logs no
    /// more events of it.
    pub fn forget_losses(&self, session: &SessionKey) {
        self.inner.lost.forget(session);
    }

    /// Waits until the events queued so far are logged, or marked as missing. Returns false if
    /// neither was possible.
    ///
    /// A mark is as good as the event to the caller, which then stores the lists that were
    /// announced to the client. A client that received the event has them. A client that missed
    /// it resumes from a position before the mark, or opens a stream that it never read. Both are a
    /// gap, and after a gap the client gets notifications of all lists. The log must not end before
    /// the event without a mark, because the loss would be invisible.
    pub async fn flushed(&self, session: SessionKey) -> bool {
        let (done, flushed) = oneshot::channel();
        let number = self.inner.take_number();
        self.inner.queue.send(EventJob::Flush(number, session, done)).await.is_ok()
            && flushed.await.unwrap_or(false)
    }
}

fn weight(entry: &LogEntry) -> usize {
    match entry {
        LogEntry::Event { event, .. } => event.frame.len(),
        LogEntry::Stream { record, .. } => record.pending_answers.len(),
        LogEntry::Trim { .. } | LogEntry::Drop { .. } => 0,
    }
}

/// Entries for one append, with their numbers. A mark has the number of the newest loss in its gap.
#[derive(Default)]
struct EventBatch {
    numbers: Vec<u64>,
    entries: Vec<LogEntry>,
}

impl EventBatch {
    fn push(&mut self, number: u64, entry: LogEntry) {
        self.numbers.push(number);
        self.entries.push(entry);
    }
}

struct EventWorker {
    store: Arc<dyn EventStore>,
    availability: Arc<Availability>,
    metrics: Arc<Metrics>,
    jobs: mpsc::Receiver<EventJob>,
    queued_bytes: Arc<AtomicUsize>,
    lost: Arc<LossTracker>,
}

impl EventWorker {
    async fn run(mut self) {
        let mut batch = EventBatch::default();
        while let Some(first) = self.jobs.recv().await {
            let mut next = Some(first);
            let mut bytes = 0;
            while let Some(job) = next.take() {
                match job {
                    EventJob::Log(number, entry) => {
                        let weight = weight(&entry);
                        self.queued_bytes.fetch_sub(weight, Ordering::Relaxed);
                        bytes += weight;
                        if self.lost.admits(&entry) {
                            self.lost.mend(number, &entry, &mut batch);
                            batch.push(number, entry);
                        }
                    }
                    EventJob::Forget(session) => {
                        self.append(&mut batch).await;
                        self.forget(&session).await;
                    }
                    EventJob::Flush(number, session, done) => {
                        self.lost.mend_all(number, session, &mut batch);
                        self.append(&mut batch).await;
                        let _gave_up = done.send(!self.lost.any_of(&session));
                    }
                }
                if batch.entries.len() < EVENT_BATCH_MAX && bytes < EVENT_BATCH_BYTES_MAX {
                    next = self.jobs.try_recv().ok();
                }
            }
            self.append(&mut batch).await;
        }
    }

    async fn append(&self, batch: &mut EventBatch) {
        let EventBatch { numbers, entries } = std::mem::take(batch);
        if entries.is_empty() {
            return;
        }
        let started_at = Instant::now();
        let outcome = self.store.append_each(&entries).await;
        self.metrics.store(
            "append_events",
            self.store.engine(),
            started_at.elapsed(),
            outcome.is_err(),
        );
        let error = outcome.as_ref().err().map(|(error, _)| error);
        self.availability.record("append_events", started_at, error);
        if let Err((error, lost)) = outcome {
            tracing::debug!(entries = lost.len(), store = self.store.engine(), %error, "events were not logged");
            self.lost.record(
                lost.into_iter()
                    .filter_map(|index| Some((*numbers.get(index)?, entries.get(index)?))),
            );
        }
    }

    async fn forget(&self, session: &SessionKey) {
        let started_at = Instant::now();
        let outcome = self.store.forget_session(session).await;
        self.metrics.store(
            "forget_events",
            self.store.engine(),
            started_at.elapsed(),
            outcome.is_err(),
        );
        if let Err(error) = outcome {
            tracing::debug!(store = self.store.engine(), %error, "the broker could not delete the events of an ended session: they stay until they expire");
        }
        self.lost.forget(session);
    }
}

/// Streams with events that could not be logged, until the log has a mark of it.
struct LossTracker {
    streams: Mutex<StreamGaps>,
    metrics: Arc<Metrics>,
}

/// Gaps by session and stream. No session has an empty map here.
#[derive(Default)]
struct StreamGaps {
    sessions: HashMap<SessionKey, HashMap<u64, Gap>>,
    /// Number of gaps of all sessions.
    count: usize,
    /// Number of the gaps that are dropped streams.
    drops: usize,
    /// Sessions with a gap beyond the limit. No further entry of them is logged, so their logs end
    /// before the gap. They stay here until they end or move.
    unlogged: HashSet<SessionKey>,
}

impl StreamGaps {
    fn get(&self, (session, stream): (SessionKey, u64)) -> Option<&Gap> {
        self.sessions.get(&session)?.get(&stream)
    }

    /// Returns the stream's gap. Adds one if there is capacity. Otherwise the session logs nothing
    /// more, and needs no gaps.
    fn gap(&mut self, (session, stream): (SessionKey, u64)) -> Option<&mut Gap> {
        if self.unlogged.contains(&session) {
            return None;
        }
        if self.get((session, stream)).is_none() {
            if self.count >= LOST_STREAMS_MAX {
                self.forget(&session);
                self.unlogged.insert(session);
                return None;
            }
            self.count += 1;
        }
        Some(self.sessions.entry(session).or_default().entry(stream).or_default())
    }

    /// Notes that the log still has a stream that was dropped. What was lost before the drop needs no
    /// mark, what was lost after it does. Without capacity, the stream ages out of the log. Drops
    /// leave capacity to gaps, because a session with a gap too many logs nothing more. At an outage,
    /// the log has few streams of a session, so the first drops suffice.
    fn record_drop(&mut self, number: u64, stream: (SessionKey, u64)) {
        let newer = self.remove(stream).filter(|gap| gap.newest > number);
        let (session, stream) = stream;
        let gaps = self.sessions.get(&session).into_iter().flat_map(HashMap::values);
        let has_capacity = gaps.filter(|gap| gap.dropped.is_some()).count() < STREAMS_KEPT_MAX
            && self.drops < LOST_STREAMS_MAX / 2
            && self.count < LOST_STREAMS_MAX
            && !self.unlogged.contains(&session);
        if newer.is_none() && !has_capacity {
            return;
        }
        let mut gap = newer.unwrap_or_default();
        if has_capacity {
            gap.newest = gap.newest.max(number);
            gap.dropped = gap.dropped.max(Some(number));
        }
        self.count += 1;
        self.drops += usize::from(gap.dropped.is_some());
        self.sessions.entry(session).or_default().insert(stream, gap);
    }

    /// Takes the gap of a stream if all of it was lost before the entry of this number was queued.
    fn take_before(&mut self, number: u64, stream: (SessionKey, u64)) -> Option<Gap> {
        let is_before = self.get(stream)?.newest < number;
        is_before.then(|| self.remove(stream)).flatten()
    }

    /// Marks those gaps of a session that `is_due` selects.
    fn mark_before(
        &mut self,
        number: u64,
        session: SessionKey,
        batch: &mut EventBatch,
        is_due: impl Fn(u64, &Gap) -> bool,
    ) {
        let gaps = self.sessions.get(&session).into_iter().flatten();
        let due: Vec<u64> =
            gaps.filter(|(stream, gap)| is_due(**stream, gap)).map(|(stream, _)| *stream).collect();
        for stream in due.into_iter().map(|stream| (session, stream)) {
            if let Some(gap) = self.take_before(number, stream) {
                gap.mark(stream, batch);
            }
        }
    }

    fn remove(&mut self, (session, stream): (SessionKey, u64)) -> Option<Gap> {
        let gaps = self.sessions.get_mut(&session)?;
        let gap = gaps.remove(&stream)?;
        self.count -= 1;
        self.drops -= usize::from(gap.dropped.is_some());
        if gaps.is_empty() {
            self.sessions.remove(&session);
        }
        Some(gap)
    }

    fn forget(&mut self, session: &SessionKey) {
        let gaps = self.sessions.remove(session).unwrap_or_default();
        self.count -= gaps.len();
        self.drops -= gaps.values().filter(|gap| gap.dropped.is_some()).count();
        self.unlogged.remove(session);
    }
}

/// Entries of one stream that are lost. Numbers tell what was queued before and after the loss, also
/// if an append fails late.
#[derive(Default)]
struct Gap {
    /// Number of the newest lost entry.
    newest: u64,
    /// Events up to this sequence are not in the log.
    through: u64,
    /// Record of the stream with its number, if the log does not have it either.
    record: Option<(u64, StreamRecord)>,
    /// Number of the lost drop, if the log still has what it should have dropped before the rest of
    /// the gap.
    dropped: Option<u64>,
}

impl Gap {
    /// Adds a lost entry that is not a drop.
    fn add(&mut self, number: u64, entry: &LogEntry) {
        if self.dropped.is_some_and(|dropped| number < dropped) {
            return; // the drop removes it
        }
        self.newest = self.newest.max(number);
        match entry {
            LogEntry::Stream { record, .. } => {
                if self.record.as_ref().is_none_or(|(known, _)| *known <= number) {
                    self.record = Some((number, record.clone()));
                }
            }
            LogEntry::Event { event, .. } => self.through = self.through.max(event.sequence),
            LogEntry::Trim { through, .. } => self.through = self.through.max(*through),
            LogEntry::Drop { .. } => {}
        }
    }

    /// Adds the entries that mark the gap.
    fn mark(self, (session, stream): (SessionKey, u64), batch: &mut EventBatch) {
        if self.dropped.is_some() {
            batch.push(self.newest, LogEntry::Drop { session, stream });
        }
        if let Some((_, record)) = self.record {
            batch.push(self.newest, LogEntry::Stream { session, record });
        }
        if self.through > 0 {
            batch.push(self.newest, LogEntry::Trim { session, stream, through: self.through });
        }
    }
}

impl LossTracker {
    fn record<'a>(&self, entries: impl IntoIterator<Item = (u64, &'a LogEntry)>) {
        let mut streams = self.lock();
        let mut events = 0;
        for (number, entry) in entries {
            let stream = stream_of(entry);
            if let LogEntry::Drop { .. } = entry {
                streams.record_drop(number, stream);
                continue;
            }
            events += u64::from(matches!(entry, LogEntry::Event { .. }));
            if let Some(gap) = streams.gap(stream) {
                gap.add(number, entry);
            }
        }
        self.metrics.events_lost(events);
    }

    /// Returns whether the log takes an entry. Counts an event that it does not take.
    fn admits(&self, entry: &LogEntry) -> bool {
        let is_unlogged = self.lock().unlogged.contains(&stream_of(entry).0);
        if !is_unlogged || matches!(entry, LogEntry::Drop { .. }) {
            return true;
        }
        self.metrics.events_lost(u64::from(matches!(entry, LogEntry::Event { .. })));
        false
    }

    /// Adds the entries that must precede the entry of this number: the mark of its stream's gap,
    /// and the drops of other streams. Events are too many to look for drops at each.
    fn mend(&self, number: u64, entry: &LogEntry, batch: &mut EventBatch) {
        let (stream, mut streams) = (stream_of(entry), self.lock());
        if let LogEntry::Event { .. } = entry {
            if let Some(gap) = streams.take_before(number, stream) {
                gap.mark(stream, batch);
            }
            return;
        }
        let is_due = |other: u64, gap: &Gap| other == stream.1 || gap.dropped.is_some();
        streams.mark_before(number, stream.0, batch, is_due);
    }

    /// Adds the entries that mark the gaps of a session. Entries that were queued before the losses
    /// are in the batch or in the log already. A stream with newer losses waits for the next call.
    fn mend_all(&self, number: u64, session: SessionKey, batch: &mut EventBatch) {
        self.lock().mark_before(number, session, batch, |_, _| true);
    }

    fn any_of(&self, session: &SessionKey) -> bool {
        let streams = self.lock();
        streams.sessions.contains_key(session) || streams.unlogged.contains(session)
    }

    fn forget(&self, session: &SessionKey) {
        self.lock().forget(session);
    }

    fn lock(&self) -> MutexGuard<'_, StreamGaps> {
        self.streams.lock()
    }
}

fn stream_of(entry: &LogEntry) -> (SessionKey, u64) {
    match entry {
        LogEntry::Stream { session, record } => (*session, record.number),
        LogEntry::Event { session, stream, .. }
        | LogEntry::Trim { session, stream, .. }
        | LogEntry::Drop { session, stream } => (*session, *stream),
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicBool, time::Duration};

    use async_trait::async_trait;
    use bytes::Bytes;
    use records::{LoggedEvent, StoredStream};
    use storage::StoreError;
    use tokio::{
        sync::{MutexGuard as TokioMutexGuard, watch},
        time::timeout,
    };

    use super::*;

    const KEY: SessionKey = SessionKey::new([7; 32]);

    /// Keeps its entries. An append fails if the notebook is set to fail when it begins.
    #[derive(Default)]
    struct Notebook {
        entries: Mutex<Vec<LogEntry>>,
        fails: AtomicBool,
        /// Number of appends that have begun.
        begun: watch::Sender<usize>,
        /// Appends end only while no test holds this.
        held: tokio::sync::Mutex<()>,
    }

    impl Notebook {
        fn of(&self, session: SessionKey) -> Vec<LogEntry> {
            let entries = self.entries.lock();
            entries.iter().filter(|entry| stream_of(entry).0 == session).cloned().collect()
        }
    }

    #[async_trait]
    impl EventStore for Notebook {
        fn engine(&self) -> &'static str {
            "sqlite"
        }

        async fn append(&self, entries: &[LogEntry]) -> Result<(), StoreError> {
            let fails = self.fails.load(Ordering::Relaxed);
            self.begun.send_modify(|begun| *begun += 1);
            let _held = self.held.lock().await;
            if fails {
                return Err(StoreError::Full);
            }
            self.entries.lock().extend_from_slice(entries);
            Ok(())
        }

        async fn streams(&self, _session: &SessionKey) -> Result<Vec<StreamRecord>, StoreError> {
            Ok(Vec::new())
        }

        async fn stream(
            &self,
            _session: &SessionKey,
            _number: u64,
            _position: u64,
        ) -> Result<Option<StoredStream>, StoreError> {
            Ok(None)
        }

        async fn forget_session(&self, _session: &SessionKey) -> Result<(), StoreError> {
            self.entries.lock().clear();
            Ok(())
        }

        async fn expire_events(&self, _age: Duration, _limit: u32) -> Result<u64, StoreError> {
            Ok(0)
        }
    }

    fn event(sequence: u64) -> LogEntry {
        LogEntry::Event {
            session: KEY,
            stream: 1,
            event: LoggedEvent { sequence, kind: 2, frame: Bytes::from_static(b"{}") },
        }
    }

    fn birth() -> LogEntry {
        LogEntry::Stream {
            session: KEY,
            record: StreamRecord {
                number: 1,
                standalone: true,
                pending_answers: Vec::new(),
                was_read: false,
            },
        }
    }

    fn writer() -> (Arc<Notebook>, EventWriter, Arc<Metrics>) {
        let (notebook, metrics) = (Arc::new(Notebook::default()), Arc::new(Metrics::new(false)));
        (
            notebook.clone(),
            EventWriter::start(notebook, Arc::new(Availability::new("test")), metrics.clone()),
            metrics,
        )
    }

    #[tokio::test]
    async fn entries_are_logged_in_their_order() {
        let (notebook, writer, _) = writer();
        let entries: Vec<_> = std::iter::once(birth()).chain((1..=1000).map(event)).collect();
        entries.iter().cloned().for_each(|entry| writer.log(entry));
        assert!(writer.flushed(KEY).await);
        assert_eq!(*notebook.entries.lock(), entries);
    }

    #[tokio::test]
    async fn events_that_were_not_stored_are_marked_before_the_next_event() {
        let (notebook, writer, metrics) = writer();
        notebook.fails.store(true, Ordering::Relaxed);
        [birth(), event(1), event(2)].into_iter().for_each(|entry| writer.log(entry));
        assert!(!writer.flushed(KEY).await, "it is known to be incomplete");
        assert!(
            writer.flushed(SessionKey::new([8; 32])).await,
            "nothing of another session is lost"
        );
        assert!(!writer.flushed(KEY).await, "and stays so as long as the log fails");
        notebook.fails.store(false, Ordering::Relaxed);
        [event(3), event(4)].into_iter().for_each(|entry| writer.log(entry));
        assert!(writer.flushed(KEY).await);
        let trim = LogEntry::Trim { session: KEY, stream: 1, through: 2 };
        assert_eq!(*notebook.entries.lock(), [birth(), trim, event(3), event(4)]);
        assert!(metrics.render().contains("mcp_events_lost_total 2"));
    }

    #[tokio::test]
    async fn lost_events_of_a_quiet_stream_are_marked_with_its_next_record() {
        let (notebook, writer, _) = writer();
        notebook.fails.store(true, Ordering::Relaxed);
        [birth(), event(1)].into_iter().for_each(|entry| writer.log(entry));
        assert!(!writer.flushed(KEY).await);
        notebook.fails.store(false, Ordering::Relaxed);
        writer.log(birth());
        assert!(writer.flushed(SessionKey::new([8; 32])).await, "everything queued is logged");
        let trim = LogEntry::Trim { session: KEY, stream: 1, through: 1 };
        assert_eq!(*notebook.entries.lock(), [birth(), trim, birth()]);
    }

    #[tokio::test]
    async fn lost_events_of_a_quiet_stream_are_marked_at_the_next_flush() {
        let (notebook, writer, _) = writer();
        notebook.fails.store(true, Ordering::Relaxed);
        [birth(), event(1)].into_iter().for_each(|entry| writer.log(entry));
        assert!(!writer.flushed(KEY).await);
        notebook.fails.store(false, Ordering::Relaxed);
        assert!(writer.flushed(KEY).await);
        let trim = LogEntry::Trim { session: KEY, stream: 1, through: 1 };
        assert_eq!(*notebook.entries.lock(), [birth(), trim]);
    }

    /// Returns the record of another stream of the session, and the drop of the first one.
    fn other_birth_and_drop() -> (LogEntry, LogEntry) {
        let record = StreamRecord {
            number: 2,
            standalone: true,
            pending_answers: Vec::new(),
            was_read: true,
        };
        (LogEntry::Stream { session: KEY, record }, LogEntry::Drop { session: KEY, stream: 1 })
    }

    #[tokio::test]
    async fn a_stream_whose_drop_was_not_stored_is_dropped_before_the_next_record() {
        let (notebook, writer, metrics) = writer();
        let (other, dropped) = other_birth_and_drop();
        [birth(), event(1)].into_iter().for_each(|entry| writer.log(entry));
        assert!(writer.flushed(KEY).await);
        notebook.fails.store(true, Ordering::Relaxed);
        [event(2), dropped.clone()].into_iter().for_each(|entry| writer.log(entry));
        assert!(!writer.flushed(KEY).await, "the log still has the stream");
        notebook.fails.store(false, Ordering::Relaxed);
        writer.log(other.clone());
        assert!(writer.flushed(SessionKey::new([8; 32])).await, "everything queued is logged");
        assert_eq!(*notebook.entries.lock(), [birth(), event(1), dropped, other]);
        assert!(writer.flushed(KEY).await);
        assert!(metrics.render().contains("mcp_events_lost_total 1"));
    }

    #[tokio::test]
    async fn a_stream_whose_drop_was_not_stored_is_dropped_at_the_next_flush() {
        let (notebook, writer, _) = writer();
        let (_, dropped) = other_birth_and_drop();
        [birth(), event(1)].into_iter().for_each(|entry| writer.log(entry));
        // The writer's task does not run before this one waits, so the queue fills up.
        (2..=u64::try_from(EVENT_QUEUE_MAX).unwrap() + 1).for_each(|last| writer.log(event(last)));
        writer.log(dropped.clone());
        assert_eq!(writer.inner.lost.lock().drops, 1);
        assert!(writer.flushed(KEY).await);
        assert_eq!(notebook.entries.lock().last(), Some(&dropped), "behind all that found room");
        assert!(writer.inner.lost.lock().sessions.is_empty());
    }

    #[test]
    fn lost_drops_leave_capacity_to_gaps() {
        let mut streams = StreamGaps::default();
        let session = |number: u64| {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.to_be_bytes());
            SessionKey::new(key)
        };
        let per_session = u64::try_from(STREAMS_KEPT_MAX).unwrap();
        (0..=per_session).for_each(|stream| streams.record_drop(0, (session(0), stream)));
        assert_eq!(streams.drops, STREAMS_KEPT_MAX, "each entry of the log carries them");
        assert!(streams.get((session(0), 0)).is_some(), "the log had the first ones");
        (0..u64::try_from(LOST_STREAMS_MAX).unwrap())
            .for_each(|number| streams.record_drop(0, (session(number), 0)));
        assert_eq!((streams.drops, streams.count), (LOST_STREAMS_MAX / 2, LOST_STREAMS_MAX / 2));
        assert!(streams.gap((KEY, 1)).is_some() && streams.unlogged.is_empty());
        streams.record_drop(1, (KEY, 1));
        assert!(!streams.sessions.contains_key(&KEY), "it ages out of the log");
        (0..u64::try_from(LOST_STREAMS_MAX).unwrap())
            .for_each(|number| streams.forget(&session(number)));
        assert_eq!((streams.drops, streams.count), (0, 0));
    }

    #[tokio::test]
    async fn a_stream_that_begins_again_is_logged_behind_its_lost_drop() {
        let (notebook, writer, _) = writer();
        let (_, dropped) = other_birth_and_drop();
        [birth(), event(1)].into_iter().for_each(|entry| writer.log(entry));
        assert!(writer.flushed(KEY).await);
        notebook.fails.store(true, Ordering::Relaxed);
        [dropped.clone(), birth(), event(5)].into_iter().for_each(|entry| writer.log(entry));
        assert!(!writer.flushed(KEY).await);
        notebook.fails.store(false, Ordering::Relaxed);
        writer.log(event(6));
        assert!(writer.flushed(KEY).await);
        let trim = LogEntry::Trim { session: KEY, stream: 1, through: 5 };
        let again = [dropped, birth(), trim, event(6)];
        assert_eq!(notebook.entries.lock()[2..], again);
    }

    /// Logs a stream and its drop. Returns while the append of the drop is in flight. It will fail.
    async fn drop_in_flight<'n>(
        notebook: &'n Notebook,
        writer: &EventWriter,
    ) -> TokioMutexGuard<'n, ()> {
        [birth(), event(1)].into_iter().for_each(|entry| writer.log(entry));
        assert!(writer.flushed(KEY).await);
        let held = notebook.held.lock().await;
        let mut begun = notebook.begun.subscribe();
        notebook.fails.store(true, Ordering::Relaxed);
        writer.log(LogEntry::Drop { session: KEY, stream: 1 });
        timeout(Duration::from_secs(30), begun.changed()).await.unwrap().unwrap();
        notebook.fails.store(false, Ordering::Relaxed);
        held
    }

    #[tokio::test]
    async fn a_drop_that_fails_late_removes_nothing_that_was_queued_after_it() {
        let (notebook, writer, _) = writer();
        let held = drop_in_flight(&notebook, &writer).await;
        [birth(), event(5)].into_iter().for_each(|entry| writer.log(entry));
        drop(held);
        assert!(writer.flushed(KEY).await);
        writer.log(other_birth_and_drop().0);
        assert!(writer.flushed(KEY).await);
        let (other, dropped) = other_birth_and_drop();
        assert_eq!(notebook.of(KEY)[2..], [dropped, birth(), event(5), other]);
    }

    #[tokio::test]
    async fn a_drop_that_fails_late_leaves_the_mark_of_what_was_lost_after_it() {
        let (notebook, writer, _) = writer();
        let held = drop_in_flight(&notebook, &writer).await;
        let other = LogEntry::Trim { session: SessionKey::new([8; 32]), stream: 1, through: 1 };
        (0..EVENT_QUEUE_MAX).for_each(|_| writer.log(other.clone()));
        [birth(), event(5)].into_iter().for_each(|entry| writer.log(entry));
        drop(held);
        assert!(writer.flushed(KEY).await);
        writer.log(event(6));
        assert!(writer.flushed(KEY).await);
        let (_, dropped) = other_birth_and_drop();
        let trim = LogEntry::Trim { session: KEY, stream: 1, through: 5 };
        assert_eq!(notebook.of(KEY)[2..], [dropped, birth(), trim, event(6)]);
    }

    #[test]
    fn a_lost_record_does_not_replace_a_newer_one() {
        let mut gap = Gap::default();
        let record = |was_read| {
            let LogEntry::Stream { record, .. } = birth() else { unreachable!() };
            LogEntry::Stream { session: KEY, record: StreamRecord { was_read, ..record } }
        };
        gap.add(2, &record(true));
        gap.add(1, &record(false));
        assert!(gap.record.is_some_and(|(_, record)| record.was_read));
    }

    #[tokio::test]
    async fn a_lost_record_alone_removes_no_events() {
        let (notebook, writer, _) = writer();
        [birth(), event(1)].into_iter().for_each(|entry| writer.log(entry));
        assert!(writer.flushed(KEY).await);
        notebook.fails.store(true, Ordering::Relaxed);
        writer.log(birth());
        assert!(!writer.flushed(KEY).await);
        notebook.fails.store(false, Ordering::Relaxed);
        writer.log(event(2));
        assert!(writer.flushed(KEY).await);
        assert_eq!(notebook.entries.lock()[2..], [birth(), event(2)]);
    }

    #[tokio::test]
    async fn events_dropped_by_a_full_queue_are_marked_as_a_gap() {
        let (notebook, writer, _) = writer();
        // The writer's task does not run before this one waits, so the queue fills up.
        let last = u64::try_from(EVENT_QUEUE_MAX).unwrap() + 10;
        writer.log(birth());
        (1..=last).for_each(|sequence| writer.log(event(sequence)));
        assert!(writer.flushed(KEY).await, "that something is missing is on record");
        let mark = LogEntry::Trim { session: KEY, stream: 1, through: last };
        let marked = notebook.entries.lock().clone();
        assert_eq!(
            (marked.len(), marked.last()),
            (EVENT_QUEUE_MAX + 1, Some(&mark)),
            "behind all that found room"
        );
        writer.log(event(last + 1));
        assert!(writer.flushed(KEY).await);
        let entries = notebook.entries.lock().clone();
        assert_eq!(entries[entries.len() - 2..], [mark, event(last + 1)]);
        assert_eq!(entries[0], birth());
    }

    #[tokio::test]
    async fn a_session_with_a_gap_beyond_the_limit_logs_nothing_more() {
        let (notebook, writer, metrics) = writer();
        let other = SessionKey::new([8; 32]);
        let streams = 0..u64::try_from(LOST_STREAMS_MAX).unwrap();
        let trims: Vec<LogEntry> =
            streams.map(|stream| LogEntry::Trim { session: other, stream, through: 1 }).collect();
        writer.inner.lost.record(trims.iter().map(|trim| (0, trim)));
        [birth(), event(1)].into_iter().for_each(|entry| writer.log(entry));
        assert!(writer.flushed(KEY).await);
        writer.inner.lost.record([(writer.inner.take_number(), &event(2))]);
        [event(3), birth()].into_iter().for_each(|entry| writer.log(entry));
        assert!(!writer.flushed(KEY).await, "the loss is not marked");
        assert_eq!(*notebook.entries.lock(), [birth(), event(1)], "the log has no hole");
        assert!(metrics.render().contains("mcp_events_lost_total 2"));
        writer.forget_losses(&KEY);
        writer.log(event(4));
        assert!(writer.flushed(KEY).await);
        assert_eq!(notebook.entries.lock().len(), 3);
    }
}
