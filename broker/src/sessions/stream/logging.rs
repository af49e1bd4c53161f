//! A stream's entry in the event log.
//!
//! The log expires entries that are not renewed, also during an outage. Each record of a stream is
//! therefore followed by a mark of the events that are gone, because it may begin a new entry.

use std::time::{Duration, Instant};

use bytes::Bytes;
use records::{LogEntry, LoggedEvent, SessionKey, StreamRecord};
use rules::{event_log::EventKind, limits::QUIET_LOGGED_EVERY_MIN};

use super::{EventStream, StreamState, event_ids::encode_pending};
use crate::persistence::EventWriter;

/// A stream's entry in the event log.
#[derive(Debug)]
pub(super) struct EventLogSink {
    writer: EventWriter,
    session: SessionKey,
    pub(super) was_read: bool,
    /// The log has no events up to this one.
    pub(super) trimmed_through: u64,
    /// Time of the last record that kept the stream in the log.
    touched: Instant,
}

impl EventStream {
    /// Logs the stream from now on, with everything it holds.
    pub fn start_logging(&self, writer: &EventWriter, session: SessionKey) {
        let mut state = self.lock();
        if state.sink.is_none() {
            let was_read = state.reader.count() > 0;
            state.log_whole(self.number, writer, session, was_read);
        }
    }

    /// Continues the stream's entry in the log. The entry may have expired since it was read.
    pub fn resume_logging(&self, writer: &EventWriter, session: SessionKey) {
        self.lock().log_whole(self.number, writer, session, true);
    }

    /// Removes the stream from the log, because no client will resume it.
    pub fn drop_from_log(&self) {
        if let Some(sink) = self.lock().sink.take() {
            sink.writer.log(LogEntry::Drop { session: sink.session, stream: self.number });
        }
    }

    /// Stops logging, because another process owns the session and its log now.
    pub fn stop_logging(&self) {
        self.lock().sink = None;
    }
}

impl StreamState {
    /// Logs everything that the stream holds, and what it adds from now on.
    fn log_whole(
        &mut self,
        number: u64,
        writer: &EventWriter,
        session: SessionKey,
        was_read: bool,
    ) {
        let trimmed_through = self.log.trimmed_through();
        self.sink = Some(EventLogSink {
            writer: writer.clone(),
            session,
            was_read,
            trimmed_through,
            touched: Instant::now(),
        });
        self.log_record(number);
        let Self { log, sink: Some(sink), .. } = self else { return };
        log.events()
            .for_each(|event| sink.event(number, event.sequence, event.kind, event.frame.clone()));
    }

    /// Logs which events have expired, and from time to time that the stream exists.
    pub(super) fn log_expiry(&mut self, number: u64, now: Instant, age: Duration) {
        self.log_trimmed(number);
        let Some(sink) = &mut self.sink else { return };
        // The log expires a stream without new entries. This stream exists and is merely quiet.
        if now.saturating_duration_since(sink.touched) > (age / 3).max(QUIET_LOGGED_EVERY_MIN) {
            sink.touched = now;
            self.log_record(number);
        }
    }

    /// Logs which events are gone.
    pub(super) fn log_trimmed(&mut self, number: u64) {
        let lost_through = self.log.trimmed_through();
        if let Some(sink) = &mut self.sink
            && lost_through > sink.trimmed_through
        {
            sink.trim(number, lost_through);
        }
    }

    pub(super) fn log_record(&mut self, number: u64) {
        let Some(sink) = &mut self.sink else { return };
        let record = StreamRecord {
            number,
            standalone: !self.log.is_finite(),
            pending_answers: encode_pending(&self.answers.pending),
            was_read: sink.was_read,
        };
        sink.writer.log(LogEntry::Stream { session: sink.session, record });
        let trimmed_through = self.log.trimmed_through().max(sink.trimmed_through);
        if trimmed_through > 0 {
            sink.trim(number, trimmed_through);
        }
    }
}

impl EventLogSink {
    /// Logs an event. If the log takes no more bytes of the tenant, it loses the stream's events up
    /// to this one, and has a mark of it.
    pub(super) fn event(&mut self, stream: u64, sequence: u64, kind: EventKind, frame: Bytes) {
        if !self.writer.admits(frame.len()) {
            return self.trim(stream, sequence);
        }
        let event = LoggedEvent { sequence, kind: kind.code(), frame };
        self.writer.log(LogEntry::Event { session: self.session, stream, event });
    }

    pub(super) fn trim(&mut self, stream: u64, through: u64) {
        self.trimmed_through = through;
        self.writer.log(LogEntry::Trim { session: self.session, stream, through });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use protocol::ids::RequestId;
    use records::NodeName;
    use rules::event_log::{Event, LogLimits, StreamSnapshot};
    use storage::{EventStore, SqliteStore, hot::MemoryHotStore};

    use super::*;
    use crate::{
        auth::Keys,
        metrics::Metrics,
        persistence::{Persistence, Stores},
    };

    const KEY: SessionKey = SessionKey::new([7; 32]);
    const LIMITS: LogLimits = LogLimits { events: 4, bytes: 1000 };

    /// Returns stores with a log of events.
    async fn logged() -> Arc<Persistence> {
        let store = Arc::new(SqliteStore::in_memory().await.unwrap());
        let events: Option<Arc<dyn EventStore>> = Some(store.clone());
        let hot = Arc::new(MemoryHotStore::new());
        let stores = Stores { durable: store, events, hot };
        let (seal, metrics) = (Keys::from_root(b"root").seal, Arc::new(Metrics::new(false)));
        Persistence::new(stores, NodeName::new("test/0"), seal, metrics)
    }

    #[tokio::test]
    async fn a_resumed_stream_is_whole_in_the_log_if_its_entry_has_expired() {
        let persistence = logged().await;
        let event = |sequence, text: &'static str| {
            let frame = Bytes::from_static(text.as_bytes());
            Event::from_stored(Instant::now(), sequence, EventKind::Message, None, frame)
        };
        let held = StreamSnapshot {
            trimmed_through: 3,
            position: 3,
            events: vec![event(4, "four"), event(5, "five")],
            last_sequence: 8,
        };
        let due = Some(vec![RequestId::from_u64(1).into()]);
        let stream = EventStream::restored(6, LIMITS, due, None, held);
        let writer = persistence.event_log.clone().unwrap();
        stream.resume_logging(&writer, KEY);
        stream.push(Instant::now(), EventKind::Message, Bytes::from_static(b"nine")).unwrap();
        assert!(writer.flushed(KEY).await);
        let logged =
            persistence.logged_stream(&KEY, 6, 0).await.unwrap().expect("the entry is back");
        let events: Vec<_> =
            logged.events.iter().map(|event| (event.sequence, &event.frame[..])).collect();
        assert_eq!(events, [(4, &b"four"[..]), (5, b"five"), (9, b"nine")]);
        assert_eq!((logged.trimmed_through, logged.record.was_read), (3, true));
    }

    #[tokio::test]
    async fn a_quiet_stream_marks_its_lost_events_with_each_record() {
        let persistence = logged().await;
        let writer = persistence.event_log.clone().unwrap();
        let (stream, started) = (EventStream::general(3, LIMITS), Instant::now());
        stream.start_logging(&writer, KEY);
        stream.push(started, EventKind::Message, Bytes::from_static(b"one")).unwrap();
        stream.expire(started + Duration::from_secs(60), Duration::ZERO);
        assert!(writer.flushed(KEY).await);
        let events = persistence.events.clone().unwrap();
        events.forget_session(&KEY).await.unwrap();
        stream.expire(started + Duration::from_secs(120), Duration::ZERO);
        assert!(writer.flushed(KEY).await);
        let logged =
            persistence.logged_stream(&KEY, 3, 0).await.unwrap().expect("the entry is back");
        assert_eq!(logged.trimmed_through, 1);
    }
}
