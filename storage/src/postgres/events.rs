//! [`EventStore`] on PostgreSQL: the log of event streams, for deployments without Redis.
//!
//! A run of entries is reduced to its net effect before it is sent. An event that is trimmed or
//! dropped in the same run never reaches the server.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use records::{LogEntry, LoggedEvent, SessionKey, StoredStream, StreamRecord};
use sqlx::{
    postgres::{PgArguments, PgRow, Postgres},
    query::Query,
};

use super::{PostgresStore, config, micros, rows::get};
use crate::{EventStore, StoreError};

#[async_trait]
impl EventStore for PostgresStore {
    fn engine(&self) -> &'static str {
        "postgres"
    }

    async fn append(&self, entries: &[LogEntry]) -> Result<(), StoreError> {
        if entries.is_empty() {
            return Ok(());
        }
        let effect = LogEffect::of(entries);
        self.rows(|_| effect.query()).await?;
        Ok(())
    }

    async fn streams(&self, session: &SessionKey) -> Result<Vec<StreamRecord>, StoreError> {
        let select = |_| {
            sqlx::query("SELECT number, general, due, was_read FROM event_streams WHERE session = $1 ORDER BY number")
                .bind(session.as_bytes().as_slice())
        };
        let rows = self.rows(select).await?;
        Ok(self.readable(&rows, stream_record, |_| {
            format!("a stream of session {}", session.digest())
        }))
    }

    async fn stream(
        &self,
        session: &SessionKey,
        number: u64,
        position: u64,
    ) -> Result<Option<StoredStream>, StoreError> {
        let Ok(number) = i64::try_from(number) else { return Ok(None) };
        // One statement reads both, so that the trim and the events are consistent.
        let select = |_| {
            sqlx::query(
                "SELECT s.number, s.general, s.due, s.was_read, s.trimmed_through, s.last_sequence, e.sequences, e.kinds, e.frames
                 FROM event_streams AS s, LATERAL (
                     SELECT array_agg(sequence ORDER BY sequence) AS sequences, array_agg(kind ORDER BY sequence) AS kinds,
                            array_agg(frame ORDER BY sequence) AS frames
                     FROM stream_events AS e WHERE e.session = s.session AND e.number = s.number AND e.sequence > $3) AS e
                 WHERE s.session = $1 AND s.number = $2",
            )
            .bind(session.as_bytes().as_slice())
            .bind(number)
            .bind(signed(position))
        };
        self.rows(select).await?.first().map(stored_stream).transpose()
    }

    async fn forget_session(&self, session: &SessionKey) -> Result<(), StoreError> {
        self.rows(|_| {
            sqlx::query("DELETE FROM event_streams WHERE session = $1")
                .bind(session.as_bytes().as_slice())
        })
        .await?;
        Ok(())
    }

    async fn expire_events(&self, age: Duration, limit: u32) -> Result<u64, StoreError> {
        let expire = |_| {
            sqlx::query("SELECT expire_events($1, $2) AS gone")
                .bind(micros(age))
                .bind(i32::try_from(limit).unwrap_or(i32::MAX))
        };
        let rows = self.rows(expire).await?;
        Ok(unsigned(get(config::only(&rows)?, "gone")?))
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Converts a number of the tables, which is never negative.
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn stream_record(row: &PgRow) -> Result<StreamRecord, StoreError> {
    Ok(StreamRecord {
        number: unsigned(get(row, "number")?),
        standalone: get(row, "general")?,
        pending_answers: get(row, "due")?,
        was_read: get(row, "was_read")?,
    })
}

fn stored_stream(row: &PgRow) -> Result<StoredStream, StoreError> {
    let sequences: Option<Vec<i64>> = get(row, "sequences")?;
    let kinds: Option<Vec<i16>> = get(row, "kinds")?;
    let frames: Option<Vec<Vec<u8>>> = get(row, "frames")?;
    let events = sequences
        .unwrap_or_default()
        .into_iter()
        .zip(kinds.unwrap_or_default())
        .zip(frames.unwrap_or_default());
    let event = |((sequence, kind), frame)| LoggedEvent {
        sequence: unsigned(sequence),
        kind: u8::try_from(kind).unwrap_or(u8::MAX),
        frame: Bytes::from(frame),
    };
    let (trimmed_through, last_sequence) =
        (unsigned(get(row, "trimmed_through")?), unsigned(get(row, "last_sequence")?));
    Ok(StoredStream {
        record: stream_record(row)?,
        trimmed_through,
        // After a loss the log may contain the trim alone.
        last_sequence: last_sequence.max(trimmed_through),
        events: events.map(event).collect(),
    })
}

/// Net effect of a run of entries on one stream.
#[derive(Default)]
struct StreamEffect<'e> {
    /// Set when the logged data of the stream is dropped first.
    dropped: bool,
    /// Last record of the stream in the run.
    record: Option<&'e StreamRecord>,
    events: Vec<&'e LoggedEvent>,
    trimmed_through: u64,
    last_sequence: u64,
}

struct LogEffect<'e>(BTreeMap<(&'e [u8], i64), StreamEffect<'e>>);

impl<'e> LogEffect<'e> {
    fn of(entries: &'e [LogEntry]) -> Self {
        let mut streams: BTreeMap<_, StreamEffect<'e>> = BTreeMap::new();
        for entry in entries {
            let (session, number) = match entry {
                LogEntry::Stream { session, record } => (session, record.number),
                LogEntry::Event { session, stream, .. }
                | LogEntry::Trim { session, stream, .. }
                | LogEntry::Drop { session, stream } => (session, *stream),
            };
            streams.entry((session.as_bytes().as_slice(), signed(number))).or_default().add(entry);
        }
        Self(streams)
    }

    fn query(&self) -> Query<'_, Postgres, PgArguments> {
        let dropped =
            || self.0.iter().filter(|(_, effect)| effect.dropped).map(|(stream, _)| *stream);
        let records =
            || self.0.iter().filter_map(|(stream, effect)| Some((*stream, effect.record?)));
        let touched = || self.0.iter().filter(|(_, effect)| effect.changes_what_is_there());
        let events = || {
            self.0
                .iter()
                .flat_map(|(stream, effect)| effect.events.iter().map(|event| (*stream, *event)))
        };
        sqlx::query("SELECT append_to_log($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)")
            .bind(dropped().map(|(session, _)| session).collect::<Vec<_>>())
            .bind(dropped().map(|(_, number)| number).collect::<Vec<_>>())
            .bind(records().map(|((session, _), _)| session).collect::<Vec<_>>())
            .bind(records().map(|((_, number), _)| number).collect::<Vec<_>>())
            .bind(records().map(|(_, record)| record.standalone).collect::<Vec<_>>())
            .bind(records().map(|(_, record)| record.pending_answers.as_slice()).collect::<Vec<_>>())
            .bind(records().map(|(_, record)| record.was_read).collect::<Vec<_>>())
            .bind(touched().map(|((session, _), _)| *session).collect::<Vec<_>>())
            .bind(touched().map(|((_, number), _)| *number).collect::<Vec<_>>())
            .bind(touched().map(|(_, effect)| signed(effect.trimmed_through)).collect::<Vec<_>>())
            .bind(touched().map(|(_, effect)| signed(effect.last_sequence)).collect::<Vec<_>>())
            .bind(events().map(|((session, _), _)| session).collect::<Vec<_>>())
            .bind(events().map(|((_, number), _)| number).collect::<Vec<_>>())
            .bind(events().map(|(_, event)| signed(event.sequence)).collect::<Vec<_>>())
            .bind(events().map(|(_, event)| i16::from(event.kind)).collect::<Vec<_>>())
            .bind(events().map(|(_, event)| &event.frame[..]).collect::<Vec<_>>())
    }
}

impl<'e> StreamEffect<'e> {
    fn add(&mut self, entry: &'e LogEntry) {
        match entry {
            LogEntry::Stream { record, .. } => self.record = Some(record),
            LogEntry::Drop { .. } => *self = Self { dropped: true, ..Self::default() },
            // A dropped stream has no data to change until a new record begins it.
            LogEntry::Event { .. } | LogEntry::Trim { .. }
                if self.dropped && self.record.is_none() => {}
            LogEntry::Event { event, .. } => {
                self.last_sequence = self.last_sequence.max(event.sequence);
                if event.sequence > self.trimmed_through {
                    self.events.push(event);
                }
            }
            LogEntry::Trim { through, .. } => {
                self.trimmed_through = self.trimmed_through.max(*through);
                self.events.retain(|event| event.sequence > self.trimmed_through);
            }
        }
    }

    fn changes_what_is_there(&self) -> bool {
        self.last_sequence > 0 || self.trimmed_through > 0
    }
}
