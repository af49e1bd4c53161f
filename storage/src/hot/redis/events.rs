//! The log of event streams in Redis. Each session has a hash of streams, and each stream a Redis
//! stream of events, whose entry ids are the sequence numbers. One script call adds a batch,
//! another reads a stream. For a cluster, one call adds the part of a batch with one hash tag.
//!
//! Invariant: no event is missing between `trimmed_through` and the returned events. After a loss
//! (flushed, evicted, expired, or not replicated before a failover), `trimmed_through` is past the
//! lost events.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::join_all;
use parking_lot::MutexGuard;
use records::{LogEntry, SessionKey, StoredStream, StreamRecord};
use redis::{Cmd, Script, from_redis_value};

use super::{
    RedisStore,
    codec::{events_key, streams_key, tag_of},
    milliseconds,
    server::{RedisConnectionError, Request},
};
use crate::{EventStore, StoreError, hot::recency_cache::RecencyCache};

/// Sessions whose streams are kept, so that this process can repeat them when Redis has lost them.
const LOGGED_SESSIONS_MAX: usize = 65_536;

/// Streams that this process has logged.
pub(super) type LoggedStreams = RecencyCache<SessionKey, BTreeMap<u64, LoggedStream>>;

#[derive(Debug, Clone)]
pub(super) struct LoggedStream {
    record: StreamRecord,
    /// The last event this process added.
    last: Option<u64>,
}

pub(super) fn no_logged_streams() -> LoggedStreams {
    RecencyCache::new(LOGGED_SESSIONS_MAX)
}

pub(super) struct Scripts {
    append: Script,
    read: Script,
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            append: Script::new(include_str!("append.lua")),
            read: Script::new(include_str!("read.lua")),
        }
    }
}

/// Reply of `read.lua`.
type ReadReply = (
    u64,
    Option<Vec<u8>>,
    Option<Vec<u8>>,
    Option<Vec<u8>>,
    Vec<(String, Vec<(Vec<u8>, Vec<u8>)>)>,
);

#[async_trait]
impl EventStore for RedisStore {
    fn engine(&self) -> &'static str {
        "redis"
    }

    async fn append(&self, entries: &[LogEntry]) -> Result<(), StoreError> {
        self.append_each(entries).await.map_err(|(error, _)| error)
    }

    async fn append_each(&self, entries: &[LogEntry]) -> Result<(), (StoreError, Vec<usize>)> {
        if entries.is_empty() {
            return Ok(());
        }
        let parts = self.parts(entries);
        let appended = join_all(parts.iter().map(|part| {
            let entries: Vec<&LogEntry> = part.iter().map(|index| &entries[*index]).collect();
            async move { self.append_part(&entries).await }
        }));
        let mut refused = None;
        for (appended, part) in appended.await.into_iter().zip(&parts) {
            if let Err(error) = appended {
                let (_, indexes) = refused.get_or_insert_with(|| (error, Vec::new()));
                indexes.extend(part);
            }
        }
        match refused {
            None => Ok(()),
            // Redis as a whole is not away.
            Some((error, lost)) if lost.len() < entries.len() => {
                Err((StoreError::Busy { detail: error.to_string() }, lost))
            }
            Some(all) => Err(all),
        }
    }

    async fn streams(&self, session: &SessionKey) -> Result<Vec<StreamRecord>, StoreError> {
        let mut all = Cmd::new();
        let key = streams_key(session);
        all.arg("HGETALL").arg(&key);
        let answer = self.link.execute(Some(&key), Request::Command(&all)).await;
        let fields: Vec<(Vec<u8>, Vec<u8>)> = match answer {
            Ok(fields) => from_redis_value(fields).map_err(unreadable)?,
            Err(RedisConnectionError::Redis(error)) if error.code() == Some("WRONGTYPE") => {
                Vec::new()
            }
            Err(error) => return Err(error.into()),
        };
        let mut streams = Vec::new();
        for (field, value) in fields {
            let Some(number) =
                std::str::from_utf8(&field).ok().and_then(|field| field.parse().ok())
            else {
                continue;
            };
            match self.codec.read_stream(session, number, &value) {
                Some(record) => streams.push(record),
                None => {
                    self.link.record_errors(1, &"a stream record in Redis is not from this broker")
                }
            }
        }
        streams.sort_by_key(|record| record.number);
        Ok(streams)
    }

    async fn stream(
        &self,
        session: &SessionKey,
        number: u64,
        position: u64,
    ) -> Result<Option<StoredStream>, StoreError> {
        let key = streams_key(session);
        let mut script = self.scripts.read.prepare_invoke();
        script.key(&key).key(events_key(session, number)).arg(number).arg(format!("({position}-0"));
        let answer = self.link.execute(Some(&key), Request::Script(&script)).await?;
        let (foreign, record, floor, last, held): ReadReply =
            from_redis_value(answer).map_err(unreadable)?;
        if foreign > 0 {
            self.link.record_errors(foreign, &"keys of this broker in Redis hold foreign values");
        }
        let Some(record) = record else { return Ok(None) };
        let Some(record) = self.codec.read_stream(session, number, &record) else {
            self.link.record_errors(1, &"a stream record in Redis is not from this broker");
            return Ok(None);
        };
        let (floor, last) = (decimal(floor), decimal(last));
        let mut stored = StoredStream {
            record,
            trimmed_through: floor,
            last_sequence: last.max(floor),
            events: Vec::new(),
        };
        for (id, fields) in held {
            self.take_event(session, &id, fields, &mut stored);
        }
        // Only events after the loss are returned.
        stored.events.retain(|event| event.sequence > floor);
        if stored.events.last().map_or(position, |event| event.sequence) < last {
            stored.events.clear();
            stored.trimmed_through = stored.trimmed_through.max(last);
        }
        Ok(Some(stored))
    }

    async fn forget_session(&self, session: &SessionKey) -> Result<(), StoreError> {
        self.logged().remove(session);
        let streams = self.streams(session).await?;
        let key = streams_key(session);
        let mut forget = Cmd::new();
        forget.arg("UNLINK").arg(&key);
        for stream in streams {
            forget.arg(events_key(session, stream.number));
        }
        self.link.execute(Some(&key), Request::Command(&forget)).await?;
        Ok(())
    }

    /// Does nothing, because every key expires one retention period after its last change.
    async fn expire_events(&self, _: Duration, _: u32) -> Result<u64, StoreError> {
        Ok(0)
    }
}

impl RedisStore {
    fn logged(&self) -> MutexGuard<'_, LoggedStreams> {
        self.logged.lock()
    }

    /// Returns the positions of entries that one call adds.
    fn parts(&self, entries: &[LogEntry]) -> Vec<Vec<usize>> {
        if !self.link.is_cluster() {
            return vec![(0..entries.len()).collect()];
        }
        let mut parts: BTreeMap<u8, Vec<usize>> = BTreeMap::new();
        for (index, entry) in entries.iter().enumerate() {
            parts.entry(tag_of(stream_of(entry).0)).or_default().push(index);
        }
        parts.into_values().collect()
    }

    async fn append_part(&self, entries: &[&LogEntry]) -> Result<(), StoreError> {
        let orphans = self.run_append(entries).await?;
        // Redis has lost these streams. This process repeats the records that it knows.
        let again = self.adopted(&orphans, entries);
        if !again.is_empty() {
            self.run_append(&again.iter().collect::<Vec<_>>()).await?;
        }
        self.remember(entries);
        Ok(())
    }

    /// Adds entries. Returns the positions of events whose stream Redis does not have.
    async fn run_append(&self, entries: &[&LogEntry]) -> Result<Vec<usize>, StoreError> {
        let mut script = self.scripts.append.prepare_invoke();
        script.arg(milliseconds(self.retention));
        let mut added: HashMap<(SessionKey, u64), Option<u64>> = HashMap::new();
        let last_added =
            |session: &SessionKey, number: u64| self.logged().get(session)?.get(&number)?.last;
        for entry in entries {
            let (session, number) = stream_of(entry);
            script.key(streams_key(session)).key(events_key(session, number));
            match entry {
                LogEntry::Stream { record, .. } => {
                    let last = added.get(&(*session, number)).copied();
                    let last = last.unwrap_or_else(|| last_added(session, number));
                    script
                        .arg("stream")
                        .arg(number)
                        .arg(self.codec.stream(session, record))
                        .arg(last.map(|last| last.to_string()).unwrap_or_default())
                        .arg("");
                }
                LogEntry::Event { event, .. } => {
                    let before = added.insert((*session, number), Some(event.sequence));
                    let before = before.unwrap_or_else(|| last_added(session, number));
                    // A repeated event does not imply which event should precede it.
                    let expected = before
                        .filter(|before| *before < event.sequence)
                        .map(|before| before.to_string());
                    script
                        .arg("event")
                        .arg(number)
                        .arg(event.sequence)
                        .arg(expected.unwrap_or_default());
                    script.arg(self.codec.event(session, number, event));
                }
                LogEntry::Trim { through, .. } => {
                    script
                        .arg("trim")
                        .arg(number)
                        .arg(*through)
                        .arg(through.saturating_add(1))
                        .arg("");
                }
                LogEntry::Drop { .. } => {
                    added.insert((*session, number), None);
                    script.arg("drop").arg(number).arg("").arg("").arg("");
                }
            }
        }
        let key = entries.first().map(|entry| streams_key(stream_of(entry).0));
        let answer = self.link.execute(key.as_deref(), Request::Script(&script)).await?;
        let (foreign, orphans): (u64, Vec<usize>) = from_redis_value(answer).map_err(unreadable)?;
        if foreign > 0 {
            self.link.record_errors(foreign, &"keys of this broker in Redis held foreign values");
        }
        Ok(orphans.into_iter().filter_map(|index| index.checked_sub(1)).collect())
    }

    /// Remembers entries after they were added.
    fn remember(&self, entries: &[&LogEntry]) {
        let mut logged = self.logged();
        for entry in entries {
            let (session, number) = stream_of(entry);
            let mut streams = logged.remove(session).unwrap_or_default();
            match entry {
                LogEntry::Stream { record, .. } => {
                    let last = streams.get(&number).and_then(|before| before.last);
                    streams.insert(number, LoggedStream { record: record.clone(), last });
                }
                LogEntry::Event { event, .. } => {
                    if let Some(stream) = streams.get_mut(&number) {
                        stream.last = stream.last.max(Some(event.sequence));
                    }
                }
                LogEntry::Trim { .. } => {}
                LogEntry::Drop { .. } => {
                    streams.remove(&number);
                }
            }
            if !streams.is_empty() {
                logged.insert(*session, streams);
            }
        }
    }

    /// Returns the entries that were left out, with the record of each stream before its first
    /// entry. Redis has the records of this batch already, and they are later ones. A stream that
    /// this batch drops is not repeated.
    fn adopted(&self, orphans: &[usize], entries: &[&LogEntry]) -> Vec<LogEntry> {
        let logged = self.logged();
        let (mut recorded, mut dropped) = (HashSet::new(), HashSet::new());
        if !orphans.is_empty() {
            for entry in entries {
                match entry {
                    LogEntry::Stream { .. } => {
                        recorded.insert(stream_of(entry));
                    }
                    LogEntry::Drop { .. } => {
                        dropped.insert(stream_of(entry));
                    }
                    LogEntry::Event { .. } | LogEntry::Trim { .. } => {}
                }
            }
        }
        let mut again = Vec::new();
        for entry in orphans.iter().filter_map(|&index| entries.get(index)) {
            let (session, number) = stream_of(entry);
            let Some(stream) = logged.get(session).and_then(|streams| streams.get(&number)) else {
                continue;
            };
            if dropped.contains(&(session, number)) {
                continue;
            }
            if recorded.insert((session, number)) {
                again.push(LogEntry::Stream { session: *session, record: stream.record.clone() });
            }
            again.push(LogEntry::clone(entry));
        }
        again
    }

    fn take_event(
        &self,
        session: &SessionKey,
        id: &str,
        fields: Vec<(Vec<u8>, Vec<u8>)>,
        stored: &mut StoredStream,
    ) {
        let Some(sequence) = id.split('-').next().and_then(|sequence| sequence.parse().ok()) else {
            return;
        };
        let value = fields.into_iter().next().map(|(_, value)| value).unwrap_or_default();
        match self.codec.read_event(session, stored.record.number, sequence, value) {
            Some(event) => stored.events.push(event),
            None => {
                // A foreign event may have replaced one of this broker's events.
                self.link.record_errors(1, &"an event in Redis is not from this broker");
                stored.events.clear();
                stored.trimmed_through = stored.trimmed_through.max(sequence);
            }
        }
    }
}

fn stream_of(entry: &LogEntry) -> (&SessionKey, u64) {
    match entry {
        LogEntry::Stream { session, record } => (session, record.number),
        LogEntry::Event { session, stream, .. }
        | LogEntry::Trim { session, stream, .. }
        | LogEntry::Drop { session, stream } => (session, *stream),
    }
}

fn decimal(value: Option<Vec<u8>>) -> u64 {
    value.and_then(|value| std::str::from_utf8(&value).ok()?.parse().ok()).unwrap_or_default()
}

fn unreadable(why: impl std::fmt::Display) -> StoreError {
    StoreError::Unavailable { detail: format!("an answer of Redis cannot be read: {why}") }
}
