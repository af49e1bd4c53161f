//! Behaviours of every [`EventStore`]. Streams and events need no session in any database, because
//! the log may be in another one.

use std::time::Duration;

use bytes::Bytes;
use records::{
    AdminChange, LogEntry, LoggedEvent, SessionKey, StoredStream, StreamRecord, WriteOp,
    WriteOutcome,
};

use super::{LONG, Outcome, open, session, session_record, write};
use crate::{DurableStore, EventStore};

pub async fn an_empty_log_has_no_streams(log: &dyn EventStore) -> Outcome {
    assert_eq!(log.streams(&session(1)).await?, []);
    assert_eq!(log.stream(&session(1), 1, 0).await?, None);
    log.append(&[]).await?;
    assert_eq!(log.streams(&session(1)).await?, []);
    Ok(())
}

pub async fn a_stream_is_read_as_it_was_written(log: &dyn EventStore) -> Outcome {
    let record = StreamRecord {
        number: 1,
        standalone: true,
        pending_answers: b"[1,\"a\"]\0\xff".to_vec(),
        was_read: true,
    };
    log.append(&[begin(1, record.clone())]).await?;
    let empty = StoredStream { record, trimmed_through: 0, last_sequence: 0, events: Vec::new() };
    assert_eq!(log.stream(&session(1), 1, 0).await?, Some(empty));
    Ok(())
}

pub async fn streams_are_listed_by_number_over_all_owners(log: &dyn EventStore) -> Outcome {
    // An owner's epoch is in the upper half, so these numbers belong to the owners 1, 2 and 2^30.
    let numbers = [(1 << 32) | 1, (1 << 32) | 2, (2 << 32) | 1, (1 << 62) | 7];
    for number in [numbers[2], numbers[0], numbers[3], numbers[1]] {
        log.append(&[begin(1, record(number)), event(1, number, 1, "x")]).await?;
    }
    let listed = log.streams(&session(1)).await?;
    assert_eq!(listed, numbers.map(record));
    for number in numbers {
        assert_eq!(held(log, 1, number, 0).await?, ["x"]);
    }
    Ok(())
}

pub async fn events_after_a_position_are_returned(log: &dyn EventStore) -> Outcome {
    log.append(&[begin(1, record(1)), event(1, 1, 1, "a"), event(1, 1, 2, "b")]).await?;
    log.append(&[event(1, 1, 3, "c"), event(1, 1, 5, "e")]).await?;
    assert_eq!(held(log, 1, 1, 0).await?, ["a", "b", "c", "e"]);
    assert_eq!(held(log, 1, 1, 2).await?, ["c", "e"]);
    assert_eq!(held(log, 1, 1, 4).await?, ["e"], "a hole is no loss");
    let whole = log.stream(&session(1), 1, 0).await?.expect("told before");
    let sequences: Vec<u64> = whole.events.iter().map(|event| event.sequence).collect();
    assert_eq!(
        (sequences.as_slice(), whole.trimmed_through, whole.last_sequence),
        (&[1, 2, 3, 5][..], 0, 5)
    );
    Ok(())
}

pub async fn a_position_ahead_of_the_log_is_detected(log: &dyn EventStore) -> Outcome {
    log.append(&[begin(1, record(1)), event(1, 1, 1, "a"), event(1, 1, 2, "b")]).await?;
    for position in [2, 3, 9, u64::MAX] {
        let stream = log.stream(&session(1), 1, position).await?.expect("told before");
        assert_eq!(
            (stream.events.as_slice(), stream.last_sequence),
            (&[][..], 2),
            "after {position}"
        );
    }
    // A client may send any number.
    assert_eq!(log.stream(&session(1), u64::MAX, 0).await?, None);
    assert_eq!(log.stream(&session(1), u64::MAX, u64::MAX).await?, None);
    Ok(())
}

pub async fn frames_are_kept_byte_for_byte(log: &dyn EventStore) -> Outcome {
    let frames = [
        Bytes::new(),
        Bytes::from_static(b"\0\n\r\n\xff"),
        (0..=255).cycle().take(300_000).collect(),
    ];
    let events: Vec<LoggedEvent> = (1..)
        .zip([0, 1, 255])
        .zip(&frames)
        .map(|((sequence, kind), frame)| LoggedEvent { sequence, kind, frame: frame.clone() })
        .collect();
    let entries = events.iter().map(|event| LogEntry::Event {
        session: session(1),
        stream: 1,
        event: event.clone(),
    });
    log.append(&std::iter::once(begin(1, record(1))).chain(entries).collect::<Vec<_>>()).await?;
    assert_eq!(log.stream(&session(1), 1, 0).await?.expect("told before").events, events);
    Ok(())
}

pub async fn events_are_kept_when_their_stream_is_written_again(log: &dyn EventStore) -> Outcome {
    log.append(&[begin(1, record(1)), event(1, 1, 1, "a"), event(1, 1, 2, "b"), trim(1, 1, 1)])
        .await?;
    let changed = StreamRecord { pending_answers: b"less".to_vec(), was_read: true, ..record(1) };
    log.append(&[begin(1, changed.clone())]).await?;
    let stream = log.stream(&session(1), 1, 0).await?.expect("told before");
    assert_eq!((stream.record, stream.trimmed_through, stream.last_sequence), (changed, 1, 2));
    assert_eq!(held(log, 1, 1, 0).await?, ["b"]);
    Ok(())
}

pub async fn a_repeated_append_is_stored_once(log: &dyn EventStore) -> Outcome {
    // A caller repeats an append like this when its outcome is unknown.
    let entries = [begin(1, record(1)), event(1, 1, 1, "a"), event(1, 1, 2, "b")];
    log.append(&entries).await?;
    log.append(&entries).await?;
    log.append(&[entries[1].clone(), event(1, 1, 3, "c")]).await?;
    assert_eq!(held(log, 1, 1, 0).await?, ["a", "b", "c"]);
    assert_eq!(log.streams(&session(1)).await?, [record(1)]);
    Ok(())
}

pub async fn trimmed_events_are_removed(log: &dyn EventStore) -> Outcome {
    let mut entries = vec![begin(1, record(1))];
    entries.extend((1..=9).map(|sequence| event(1, 1, sequence, &sequence.to_string())));
    entries.push(trim(1, 1, 4));
    log.append(&entries).await?;
    let stream = log.stream(&session(1), 1, 0).await?.expect("told before");
    assert_eq!((stream.trimmed_through, stream.last_sequence), (4, 9));
    assert_eq!(held(log, 1, 1, 0).await?, ["5", "6", "7", "8", "9"]);
    log.append(&[trim(1, 1, 2)]).await?;
    assert_eq!(
        log.stream(&session(1), 1, 0).await?.expect("told before").trimmed_through,
        4,
        "nothing comes back"
    );
    log.append(&[trim(1, 1, 9)]).await?;
    let stream = log.stream(&session(1), 1, 0).await?.expect("an emptied stream is still one");
    assert_eq!(
        (stream.events.as_slice(), stream.trimmed_through, stream.last_sequence),
        (&[][..], 9, 9)
    );
    // All events were lost. A client whose position is the trim has missed none.
    log.append(&[begin(1, record(2)), trim(1, 2, 7)]).await?;
    let stream = log.stream(&session(1), 2, 7).await?.expect("told before");
    assert_eq!(
        (stream.events.as_slice(), stream.trimmed_through, stream.last_sequence),
        (&[][..], 7, 7)
    );
    Ok(())
}

pub async fn entries_are_applied_in_order(log: &dyn EventStore) -> Outcome {
    log.append(&[begin(1, record(1)), event(1, 1, 1, "a"), trim(1, 1, 1), event(1, 1, 2, "b")])
        .await?;
    assert_eq!(held(log, 1, 1, 0).await?, ["b"]);
    log.append(&[begin(1, record(2)), event(1, 2, 1, "a"), drop_of(1, 2), event(1, 2, 2, "late")])
        .await?;
    assert_eq!(log.stream(&session(1), 2, 0).await?, None);
    Ok(())
}

pub async fn a_dropped_stream_is_removed(log: &dyn EventStore) -> Outcome {
    log.append(&[
        begin(1, record(1)),
        event(1, 1, 1, "a"),
        begin(1, record(2)),
        event(1, 2, 1, "b"),
    ])
    .await?;
    log.append(&[drop_of(1, 1)]).await?;
    assert_eq!(log.stream(&session(1), 1, 0).await?, None);
    assert_eq!(log.streams(&session(1)).await?, [record(2)]);
    log.append(&[event(1, 1, 2, "late"), trim(1, 1, 2), drop_of(1, 1)]).await?;
    assert_eq!(log.stream(&session(1), 1, 0).await?, None, "what comes late brings nothing back");
    assert_eq!(held(log, 1, 2, 0).await?, ["b"]);
    Ok(())
}

pub async fn an_event_of_an_unknown_stream_is_not_stored(log: &dyn EventStore) -> Outcome {
    log.append(&[
        event(1, 1, 1, "a"),
        trim(1, 1, 1),
        drop_of(1, 1),
        begin(1, record(2)),
        event(1, 2, 1, "b"),
    ])
    .await?;
    assert_eq!(log.stream(&session(1), 1, 0).await?, None);
    assert_eq!(held(log, 1, 2, 0).await?, ["b"], "the rest is carried out");
    Ok(())
}

pub async fn keeps_sessions_apart(log: &dyn EventStore) -> Outcome {
    log.append(&[
        begin(1, record(1)),
        begin(2, record(1)),
        event(1, 1, 1, "mine"),
        event(2, 1, 1, "yours"),
    ])
    .await?;
    log.append(&[trim(2, 1, 0), event(2, 1, 2, "more")]).await?;
    assert_eq!(held(log, 1, 1, 0).await?, ["mine"]);
    assert_eq!(held(log, 2, 1, 0).await?, ["yours", "more"]);
    Ok(())
}

pub async fn forgets_a_session(log: &dyn EventStore) -> Outcome {
    for number in [1, 2] {
        log.append(&[begin(number, record(1)), event(number, 1, 1, "a"), begin(number, record(2))])
            .await?;
    }
    log.forget_session(&session(1)).await?;
    log.forget_session(&session(1)).await?;
    log.forget_session(&session(9)).await?;
    assert_eq!(log.streams(&session(1)).await?, []);
    assert_eq!(log.stream(&session(1), 1, 0).await?, None);
    assert_eq!(log.streams(&session(2)).await?, [record(1), record(2)]);
    assert_eq!(held(log, 2, 1, 0).await?, ["a"]);
    Ok(())
}

pub async fn keeps_what_is_young(log: &dyn EventStore) -> Outcome {
    log.append(&[begin(1, record(1)), event(1, 1, 1, "a"), begin(1, record(2))]).await?;
    assert_eq!(log.expire_events(LONG, 100).await?, 0);
    assert_eq!(log.streams(&session(1)).await?, [record(1), record(2)]);
    assert_eq!(held(log, 1, 1, 0).await?, ["a"]);
    Ok(())
}

pub async fn old_events_are_removed_in_small_steps(log: &dyn EventStore) -> Outcome {
    let mut entries = Vec::new();
    for (key, stream) in [(1, 1), (1, 2), (2, 1)] {
        entries.push(begin(key, record(stream)));
        entries.extend((1..=10).map(|sequence| event(key, stream, sequence, "x")));
    }
    entries.push(begin(3, record(1)));
    log.append(&entries).await?;
    let mut gone = 0;
    for _step in 0..30 {
        let step = log.expire_events(Duration::ZERO, 7).await?;
        assert!(step <= 7, "{step} at once");
        gone += step;
        for (key, stream) in [(1, 1), (1, 2), (2, 1)] {
            let Some(remaining) = log.stream(&session(key), stream, 0).await? else { continue };
            let first = remaining
                .events
                .first()
                .map_or(remaining.last_sequence + 1, |event| event.sequence);
            assert_eq!(remaining.trimmed_through + 1, first, "what is gone is told to be gone");
            assert_eq!(
                remaining.events.last().map_or(10, |event| event.sequence),
                10,
                "the oldest go first"
            );
        }
    }
    assert_eq!(gone, 30);
    for key in 1..=3 {
        assert_eq!(log.streams(&session(key)).await?, [], "emptied streams go too");
    }
    Ok(())
}

pub async fn many_entries_are_stored_at_once(log: &dyn EventStore) -> Outcome {
    let mut entries: Vec<LogEntry> = (0..10).map(|number| begin(number, record(1))).collect();
    for sequence in 1..=100 {
        entries.extend(
            (0..10).map(|number| event(number, 1, sequence, &format!("{number}/{sequence}"))),
        );
    }
    log.append(&entries).await?;
    for number in 0..10 {
        let expected: Vec<String> =
            (1..=100).map(|sequence| format!("{number}/{sequence}")).collect();
        assert_eq!(held(log, number, 1, 0).await?, expected);
    }
    Ok(())
}

pub async fn concurrent_appends_are_all_stored(log: &dyn EventStore) -> Outcome {
    let [one, two, three] = [1, 2, 3].map(|number| {
        [begin(number, record(1)), event(number, 1, 1, "a"), event(number, 1, 2, "b")]
    });
    let key = session(1);
    let (first, second, third, read) =
        tokio::join!(log.append(&one), log.append(&two), log.append(&three), log.streams(&key));
    first.and(second).and(third)?;
    read?;
    for number in 1..=3 {
        assert_eq!(held(log, number, 1, 0).await?, ["a", "b"]);
    }
    Ok(())
}

/// For a database with both traits: a session's streams are removed with it, however it ends. Not
/// part of the lists.
pub async fn streams_end_with_their_session<S: DurableStore + EventStore>(store: &S) -> Outcome {
    for number in 1..=4 {
        assert_eq!(write(store, open(session_record(number), "a")).await?, WriteOutcome::Done);
        store.append(&[begin(number, record(1)), event(number, 1, 1, "x")]).await?;
    }
    assert_eq!(
        write(store, WriteOp::EndSession { key: session(1), epoch: 1 }).await?,
        WriteOutcome::Done
    );
    // The owner has no lease.
    assert!(store.apply(AdminChange::EndSession(&session(2)), None).await?);
    assert_eq!(held(store, 3, 1, 0).await?, ["x"]);
    assert_eq!(store.sweep_sessions(Duration::ZERO, 10).await?.len(), 2);
    for number in 1..=4 {
        assert_eq!(store.streams(&session(number)).await?, [], "session {number}");
        assert_eq!(store.stream(&session(number), 1, 0).await?, None);
    }
    Ok(())
}

/// Returns the frames that the log holds of a stream after a position.
async fn held(
    log: &dyn EventStore,
    number: u8,
    stream: u64,
    position: u64,
) -> Result<Vec<String>, crate::StoreError> {
    let found = log.stream(&session(number), stream, position).await?.expect("the stream was told");
    Ok(found
        .events
        .iter()
        .map(|event| String::from_utf8_lossy(&event.frame).into_owned())
        .collect())
}

fn record(number: u64) -> StreamRecord {
    StreamRecord {
        number,
        standalone: false,
        pending_answers: format!("due on {number}").into_bytes(),
        was_read: false,
    }
}

fn begin(number: u8, record: StreamRecord) -> LogEntry {
    LogEntry::Stream { session: session(number), record }
}

fn event(number: u8, stream: u64, sequence: u64, frame: &str) -> LogEntry {
    let event = LoggedEvent { sequence, kind: 3, frame: Bytes::copy_from_slice(frame.as_bytes()) };
    LogEntry::Event { session: session(number), stream, event }
}

fn trim(number: u8, stream: u64, through: u64) -> LogEntry {
    LogEntry::Trim { session: session(number), stream, through }
}

fn drop_of(number: u8, stream: u64) -> LogEntry {
    let session: SessionKey = session(number);
    LogEntry::Drop { session, stream }
}
