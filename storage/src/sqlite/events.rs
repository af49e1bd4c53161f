//! [`EventStore`] on SQLite. Writes use the connection that may lag behind the disk. The log
//! survives the end of the process. After a loss of power its newest part may be missing, and
//! clients see a gap.

use std::{
    collections::{HashMap, hash_map::Entry},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use records::{LogEntry, LoggedEvent, SessionKey, StoredStream, StreamRecord};
use sqlx::{
    Row,
    sqlite::{SqliteConnection, SqliteRow},
};

use super::{
    SqliteStore,
    error_mapping::map_error,
    micros, now_us,
    rows::{UnreadableColumn, count, get},
    with_deadline,
};
use crate::{EventStore, StoreError, fault_point};

#[async_trait]
impl EventStore for SqliteStore {
    fn engine(&self) -> &'static str {
        "sqlite"
    }

    async fn append(&self, entries: &[LogEntry]) -> Result<(), StoreError> {
        if entries.is_empty() {
            return Ok(());
        }
        with_deadline("logging events", append(self, entries)).await
    }

    async fn streams(&self, session: &SessionKey) -> Result<Vec<StreamRecord>, StoreError> {
        with_deadline("reading streams", async {
            let select = sqlx::query("SELECT number, general, due, was_read FROM streams WHERE session = ? ORDER BY number");
            let rows = select.bind(session.as_bytes().as_slice()).fetch_all(&self.readers).await.map_err(map_error)?;
            Ok(self.readable(&rows, stream_name, stream_record))
        })
        .await
    }

    async fn stream(
        &self,
        session: &SessionKey,
        number: u64,
        position: u64,
    ) -> Result<Option<StoredStream>, StoreError> {
        with_deadline("reading a stream", stream(self, session, number, position)).await
    }

    async fn forget_session(&self, session: &SessionKey) -> Result<(), StoreError> {
        with_deadline("forgetting streams", async {
            let mut writing = self.begin_log().await?;
            let delete = sqlx::query("DELETE FROM streams WHERE session = ?")
                .bind(session.as_bytes().as_slice());
            delete.execute(writing.connection()).await.map_err(map_error)?;
            writing.commit().await
        })
        .await
    }

    async fn expire_events(&self, age: Duration, limit: u32) -> Result<u64, StoreError> {
        with_deadline("deleting events", expire(self, now_us().saturating_sub(micros(age)), limit))
            .await
    }
}

fn stream_name(row: &SqliteRow) -> String {
    format!("stream {}", get::<i64>(row, "number").unwrap_or_default())
}

fn stream_record(row: &SqliteRow) -> Result<StreamRecord, UnreadableColumn> {
    Ok(StreamRecord {
        number: count(row, "number")?,
        standalone: get(row, "general")?,
        pending_answers: get(row, "due")?,
        was_read: get(row, "was_read")?,
    })
}

/// Converts a number for a column. No stream or event has a larger number, but clients may send
/// one.
fn column(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

async fn stream(
    store: &SqliteStore,
    session: &SessionKey,
    number: u64,
    position: u64,
) -> Result<Option<StoredStream>, StoreError> {
    // One transaction gives both statements the same view.
    let mut reading = store.readers.begin().await.map_err(map_error)?;
    let select = sqlx::query(
        "SELECT id, number, general, due, was_read, trimmed_through, last_sequence FROM streams WHERE session = ? AND number = ?",
    );
    let select = select.bind(session.as_bytes().as_slice()).bind(column(number));
    let Some(row) = select.fetch_optional(&mut *reading).await.map_err(map_error)? else {
        return Ok(None);
    };
    let read = stream_record(&row).and_then(|record| {
        let (trimmed_through, last_sequence) =
            (count(&row, "trimmed_through")?, count(&row, "last_sequence")?);
        Ok((
            get::<i64>(&row, "id")?,
            StoredStream { record, trimmed_through, last_sequence, events: Vec::new() },
        ))
    });
    let Some((id, mut found)) = store.report(read, || stream_name(&row)) else { return Ok(None) };
    let select = sqlx::query(
        "SELECT sequence, kind, frame FROM stream_events WHERE stream = ? AND sequence > ? ORDER BY sequence",
    );
    let rows =
        select.bind(id).bind(column(position)).fetch_all(&mut *reading).await.map_err(map_error)?;
    for row in &rows {
        match store.report(logged_event(row), || "an event".into()) {
            Some(event) => found.events.push(event),
            None => {
                // Its reader hears of the loss, as of a trim.
                let lost = count(row, "sequence").unwrap_or(found.last_sequence);
                found.trimmed_through = found.trimmed_through.max(lost);
                found.events.clear();
            }
        }
    }
    Ok(Some(found))
}

fn logged_event(row: &SqliteRow) -> Result<LoggedEvent, UnreadableColumn> {
    let kind = u8::try_from(get::<i64>(row, "kind")?).map_err(|_| UnreadableColumn("kind"))?;
    let frame = Bytes::from(get::<Vec<u8>>(row, "frame")?);
    Ok(LoggedEvent { sequence: count(row, "sequence")?, kind, frame })
}

/// State of a stream while entries are added.
#[derive(Clone, Copy)]
struct StreamRow {
    id: i64,
    trimmed_through: i64,
    last_sequence: i64,
}

/// The streams of the entries so far. `None` means that the stream does not exist.
type StreamRows = HashMap<(SessionKey, u64), Option<StreamRow>>;

async fn append(store: &SqliteStore, entries: &[LogEntry]) -> Result<(), StoreError> {
    let mut writing = store.begin_log().await?;
    let now = now_us();
    let mut streams = StreamRows::new();
    for entry in entries {
        add(writing.connection(), &mut streams, entry, now).await?;
    }
    for known in streams.into_values().flatten() {
        let update = sqlx::query(
            "UPDATE streams SET trimmed_through = ?, last_sequence = ?, touched_at_us = ? WHERE id = ?",
        );
        let update =
            update.bind(known.trimmed_through).bind(known.last_sequence).bind(now).bind(known.id);
        update.execute(writing.connection()).await.map_err(map_error)?;
    }
    fault_point::hit("events.executed");
    writing.commit().await?;
    fault_point::hit("events.committed");
    Ok(())
}

async fn add(
    connection: &mut SqliteConnection,
    streams: &mut StreamRows,
    entry: &LogEntry,
    now: i64,
) -> Result<(), StoreError> {
    match entry {
        LogEntry::Stream { session, record } => {
            let stored = upsert_stream(connection, session, record, now).await?;
            let known = streams.entry((*session, record.number)).or_default();
            // The row does not contain the earlier additions of this batch yet.
            known.get_or_insert(stored);
        }
        LogEntry::Event { session, stream, event } => {
            let Some(known) = find(connection, streams, session, *stream).await? else {
                return Ok(());
            };
            let sequence = column(event.sequence);
            if sequence > known.trimmed_through {
                let insert = sqlx::query(
                    "INSERT INTO stream_events (stream, sequence, kind, frame) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                );
                let insert =
                    insert.bind(known.id).bind(sequence).bind(event.kind).bind(&event.frame[..]);
                insert.execute(connection).await.map_err(map_error)?;
            }
            known.last_sequence = known.last_sequence.max(sequence);
        }
        LogEntry::Trim { session, stream, through } => {
            let Some(known) = find(connection, streams, session, *stream).await? else {
                return Ok(());
            };
            known.trimmed_through = known.trimmed_through.max(column(*through));
            known.last_sequence = known.last_sequence.max(known.trimmed_through);
            let delete =
                sqlx::query("DELETE FROM stream_events WHERE stream = ? AND sequence <= ?");
            delete
                .bind(known.id)
                .bind(known.trimmed_through)
                .execute(connection)
                .await
                .map_err(map_error)?;
        }
        LogEntry::Drop { session, stream } => {
            let delete = sqlx::query("DELETE FROM streams WHERE session = ? AND number = ?");
            delete
                .bind(session.as_bytes().as_slice())
                .bind(column(*stream))
                .execute(connection)
                .await
                .map_err(map_error)?;
            streams.insert((*session, *stream), None);
        }
    }
    Ok(())
}

async fn upsert_stream(
    connection: &mut SqliteConnection,
    session: &SessionKey,
    record: &StreamRecord,
    now: i64,
) -> Result<StreamRow, StoreError> {
    let upsert = sqlx::query(
        "INSERT INTO streams (session, number, general, due, was_read, touched_at_us) VALUES (?, ?, ?, ?, ?, ?)
         ON CONFLICT (session, number) DO UPDATE SET general = excluded.general, due = excluded.due, was_read = excluded.was_read,
                                                     touched_at_us = excluded.touched_at_us
         RETURNING id, trimmed_through, last_sequence",
    )
    .bind(session.as_bytes().as_slice())
    .bind(column(record.number))
    .bind(record.standalone)
    .bind(record.pending_answers.as_slice())
    .bind(record.was_read)
    .bind(now);
    known(&upsert.fetch_one(connection).await.map_err(map_error)?)
}

async fn find<'s>(
    connection: &mut SqliteConnection,
    streams: &'s mut StreamRows,
    session: &SessionKey,
    number: u64,
) -> Result<Option<&'s mut StreamRow>, StoreError> {
    match streams.entry((*session, number)) {
        Entry::Occupied(entry) => Ok(entry.into_mut().as_mut()),
        Entry::Vacant(entry) => {
            let select = sqlx::query(
                "SELECT id, trimmed_through, last_sequence FROM streams WHERE session = ? AND number = ?",
            );
            let select = select.bind(session.as_bytes().as_slice()).bind(column(number));
            let row = select.fetch_optional(connection).await.map_err(map_error)?;
            Ok(entry.insert(row.as_ref().map(known).transpose()?).as_mut())
        }
    }
}

fn known(row: &SqliteRow) -> Result<StreamRow, StoreError> {
    let at = |column: usize| row.try_get(column).map_err(map_error);
    Ok(StreamRow { id: at(0)?, trimmed_through: at(1)?, last_sequence: at(2)? })
}

/// Deletes from streams without additions since `until`, the oldest first.
async fn expire(store: &SqliteStore, until: i64, limit: u32) -> Result<u64, StoreError> {
    let mut writing = store.begin_log().await?;
    let delete = sqlx::query(
        "DELETE FROM stream_events WHERE number IN (
             SELECT e.number FROM streams s CROSS JOIN stream_events e ON e.stream = s.id WHERE s.touched_at_us <= ?
             ORDER BY s.touched_at_us, s.id, e.sequence LIMIT ?)
         RETURNING stream, sequence",
    );
    let gone =
        delete.bind(until).bind(limit).fetch_all(writing.connection()).await.map_err(map_error)?;
    let mut last_gone: HashMap<i64, i64> = HashMap::new();
    for row in &gone {
        let (stream, sequence) =
            (row.try_get(0).map_err(map_error)?, row.try_get(1).map_err(map_error)?);
        let last = last_gone.entry(stream).or_insert(sequence);
        *last = sequence.max(*last);
    }
    for (stream, sequence) in last_gone {
        let update = sqlx::query(
            "UPDATE streams SET trimmed_through = max(trimmed_through, ?) WHERE id = ?",
        );
        update
            .bind(sequence)
            .bind(stream)
            .execute(writing.connection())
            .await
            .map_err(map_error)?;
    }
    let delete = sqlx::query(
        "DELETE FROM streams WHERE id IN (SELECT id FROM streams s WHERE touched_at_us <= ?
             AND NOT EXISTS (SELECT 1 FROM stream_events WHERE stream = s.id) ORDER BY touched_at_us LIMIT ?)",
    );
    delete.bind(until).bind(limit).execute(writing.connection()).await.map_err(map_error)?;
    writing.commit().await?;
    Ok(gone.len() as u64)
}
