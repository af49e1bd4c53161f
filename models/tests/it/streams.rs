//! Event streams with their readers: each event is read once and in order, no reader waits for an
//! event that is there, and the log has what the stream had.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
    time::Instant,
};

use bytes::Bytes;
use models::{
    metrics::Metrics,
    persistence::EventWriter,
    sessions::stream::{Batch, EventStream, StreamEnd, StreamItem, UnreadBudget},
};
use records::{LogEntry, SessionKey};
use rules::{
    event_log::{EventKind, LogLimits},
    limits::OUTBOX_STEP_BYTES,
};
use shuttle::{future::block_on, thread};

use crate::in_every_order;

const LIMITS: LogLimits = LogLimits { events: 100, bytes: 1 << 20 };

fn push(stream: &EventStream, text: String) -> bool {
    stream.push(Instant::now(), EventKind::Message, text.into()).is_ok()
}

/// Reads until the stream ends. Returns the texts and the reason.
fn read_all(stream: &Arc<EventStream>, position: u64) -> (Vec<Bytes>, StreamEnd) {
    let mut cursor = stream.read_from(position).expect("nothing is gone");
    let mut texts = Vec::new();
    loop {
        match block_on(cursor.next()) {
            StreamItem::Event(event) => texts.push(event.frame),
            StreamItem::Ended(end) => return (texts, end),
        }
    }
}

#[test]
fn a_reader_gets_every_event_once_and_in_the_order_of_each_sender() {
    in_every_order(|| {
        let stream = EventStream::general(1, LIMITS);
        let senders: Vec<_> = ["a", "b"]
            .into_iter()
            .map(|sender| {
                let stream = stream.clone();
                thread::spawn(move || {
                    (0..3).for_each(|number| assert!(push(&stream, format!("{sender}{number}"))))
                })
            })
            .collect();
        let reader = {
            let stream = stream.clone();
            thread::spawn(move || read_all(&stream, 0))
        };
        senders.into_iter().for_each(|sender| sender.join().expect("it ends"));
        stream.close();
        let (texts, end) = reader.join().expect("no event is missed");
        assert_eq!(end, StreamEnd::Complete);
        for sender in ["a", "b"] {
            let of_sender: Vec<_> =
                texts.iter().filter(|text| text.starts_with(sender.as_bytes())).collect();
            let sent: Vec<_> = (0..3).map(|number| format!("{sender}{number}")).collect();
            assert_eq!(of_sender, sent.iter().collect::<Vec<_>>());
        }
        assert_eq!(texts.len(), 6);
    });
}

#[test]
fn only_the_later_of_two_readers_reads_and_the_other_is_notified() {
    in_every_order(|| {
        let stream = EventStream::general(1, LIMITS);
        stream.mark_resumable();
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let stream = stream.clone();
                thread::spawn(move || read_all(&stream, 0))
            })
            .collect();
        let sender = {
            let stream = stream.clone();
            thread::spawn(move || {
                (0..3).for_each(|number| assert!(push(&stream, number.to_string())));
                stream.close();
            })
        };
        sender.join().expect("it ends");
        let ends: Vec<_> =
            readers.into_iter().map(|reader| reader.join().expect("it ends")).collect();
        let complete = ends.iter().filter(|(_, end)| *end == StreamEnd::Complete);
        assert!(complete.clone().count() >= 1, "{ends:?}");
        for (texts, _) in complete {
            assert_eq!(texts, &["0", "1", "2"], "from the start");
        }
        assert!(
            ends.iter().all(|(_, end)| matches!(end, StreamEnd::Complete | StreamEnd::Displaced)),
            "{ends:?}"
        );
    });
}

#[test]
fn a_cut_is_seen_by_the_reader_and_by_a_connection_that_still_writes() {
    in_every_order(|| {
        let stream = EventStream::outbox(1, LogLimits { events: 2, bytes: 1000 }, None);
        let mut cursor = stream.read_from(0).expect("it is new");
        let writing = {
            let stream = stream.clone();
            thread::spawn(move || block_on(stream.wait_until_cut()))
        };
        let reading = {
            let stream = stream.clone();
            thread::spawn(move || {
                // It takes one message, marks none as sent, and then only waits.
                let taken = block_on(cursor.next_batch(1, 1000, &mut Vec::new()));
                assert!(
                    matches!(taken, Batch::Frames(1) | Batch::End(StreamEnd::Slow)),
                    "{taken:?}"
                );
                block_on(stream.wait_until_cut());
                block_on(cursor.next_batch(1, 1000, &mut Vec::new()))
            })
        };
        while stream.push(Instant::now(), EventKind::Answer, Bytes::from_static(b"{}")).is_ok() {}
        writing.join().expect("it learns of the cut");
        let last = reading.join().expect("it learns of the cut");
        assert!(matches!(last, Batch::Frames(_) | Batch::End(StreamEnd::Slow)), "{last:?}");
    });
}

#[test]
fn the_log_has_the_events_of_the_stream_in_their_order() {
    in_every_order(|| {
        let (stream, writer) = (EventStream::general(1, LIMITS), EventWriter::default());
        let senders: Vec<_> = ["a", "b"]
            .into_iter()
            .map(|sender| {
                let stream = stream.clone();
                thread::spawn(move || {
                    (0..2).for_each(|number| assert!(push(&stream, format!("{sender}{number}"))))
                })
            })
            .collect();
        let logging = {
            let (stream, writer) = (stream.clone(), writer.clone());
            thread::spawn(move || stream.start_logging(&writer, SessionKey::new([7; 32])))
        };
        senders.into_iter().for_each(|sender| sender.join().expect("it ends"));
        logging.join().expect("it ends");
        stream.close();
        let (texts, _) = read_all(&stream, 0);
        let logged = writer.entries().into_iter().filter_map(|entry| match entry {
            LogEntry::Event { event, .. } => Some((event.sequence, event.frame)),
            _ => None,
        });
        let logged: Vec<_> = logged.collect();
        let expected: Vec<_> = (1..).zip(texts).collect();
        assert_eq!(logged, expected);
    });
}

#[test]
fn unread_bytes_of_all_clients_stay_within_the_budget() {
    const STEP: usize = OUTBOX_STEP_BYTES;
    in_every_order(|| {
        let metrics = Arc::new(Metrics::default());
        let budget = UnreadBudget::new(2 * STEP, metrics.clone());
        let limits = LogLimits { events: 100, bytes: 100 * STEP };
        let clients: Vec<_> = (1..=2)
            .map(|number| {
                let (stream, metrics) =
                    (EventStream::outbox(number, limits, Some(0)), metrics.clone());
                stream.attach_budget(&budget, None);
                thread::spawn(move || {
                    let frame = Bytes::from(vec![b' '; STEP]);
                    for _ in 0..2 {
                        let _may_be_cut =
                            stream.push(Instant::now(), EventKind::Answer, frame.clone());
                    }
                    drop(metrics);
                    stream
                })
            })
            .collect();
        let streams: Vec<_> =
            clients.into_iter().map(|client| client.join().expect("it ends")).collect();
        let shown = metrics.limits.shown_outbox_bytes();
        assert!(shown <= 2 * STEP as i64, "{shown} bytes wait");
        assert_eq!(metrics.cuts(), streams.iter().filter(|stream| is_cut(stream)).count() as u64);
        drop(streams);
        assert_eq!(metrics.limits.shown_outbox_bytes(), 0, "dropped streams hold nothing");
    });
}

fn is_cut(stream: &Arc<EventStream>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    pin!(stream.wait_until_cut()).poll(&mut context).is_ready()
}
