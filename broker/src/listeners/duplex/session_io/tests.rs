//! Tests of fairness: the amount of work of one kind before the others of a connection get their
//! turn.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    task::Wake,
    time::Instant,
};

use bytes::Bytes;
use futures_util::stream;
use protocol::{handshake, ids::RequestId, method::Method};
use rules::{client_transport::Transport, endpoint::Endpoint, event_log::LogLimits};
use tokio::sync::Semaphore;
use transport::frame::ReadError;

use super::*;
use crate::{auth::Caller, broker::Broker, persistence::Stores, sessions::session::outbox};

/// Returns calls whose answers are ready, with the given number of bytes each.
fn answered(outbox: &Arc<EventStream>, bytes: usize) -> impl Stream<Item = ()> + Unpin {
    let outbox = outbox.clone();
    stream::repeat_with(move || {
        outbox.push(Instant::now(), EventKind::Answer, Bytes::from(vec![b'x'; bytes])).unwrap()
    })
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the number of answers that one turn puts into an outbox of the given size. Another turn
/// follows.
fn one_turn(outbox_bytes: usize, answer_bytes: usize) -> u64 {
    let outbox = EventStream::outbox(1, LogLimits { events: 10_000, bytes: outbox_bytes }, None);
    let (reader, woken) = (outbox.read_from(0).unwrap(), Arc::new(Woken::default()));
    poll_calls(
        &mut answered(&outbox, answer_bytes),
        &outbox,
        &mut Context::from_waker(&woken.clone().into()),
    );
    assert!(woken.0.load(Ordering::Relaxed));
    reader.backlog()
}

#[test]
fn answers_yield_to_the_writer_once_half_of_the_outbox_is_used() {
    // More answers would cut the connection as that of a slow client, though the client had no time
    // to read.
    assert_eq!(one_turn(100, 10), 6);
    assert_eq!(one_turn(100, 50), 2);
}

#[test]
fn answers_yield_to_the_writer_after_a_fixed_number() {
    assert_eq!(one_turn(1 << 40, 10), u64::from(FRAMES_IN_A_ROW));
}

/// A source of a client that has sent all its messages already.
struct SentMessages {
    frames: std::vec::IntoIter<Bytes>,
    taken: Arc<AtomicUsize>,
}

impl FrameSource for SentMessages {
    async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        let frame = self.frames.next();
        self.taken.fetch_add(frame.iter().len(), Ordering::Relaxed);
        Ok(frame)
    }

    fn set_message_limit(
        &mut self,
        _message_bytes_max: usize,
        _byte_budget: Option<&Arc<Semaphore>>,
    ) {
    }

    async fn drain(&mut self) {}
}

/// Returns how many of 200 messages of the given size one turn reads. In the end all of them are
/// read.
async fn taken_in_one_turn(bytes: usize) -> usize {
    const MESSAGES: usize = 200;
    let broker = Broker::over(Stores::in_memory().await);
    let params = br#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}"#;
    let hello = handshake::request(&RequestId::from_u64(1), Method::Initialize, Some(params));
    let hello = Message::decode(hello, &json::Limits::default()).unwrap();
    let session = broker
        .open_session(Caller::anonymous(), Endpoint::Aggregated, Transport::Tcp, &hello)
        .await
        .unwrap()
        .0;
    let outbox = outbox::open(&session, None).unwrap().stream.clone();
    let (capacity_freed, calls, taken) =
        (Notify::new(), InFlightCalls::default(), Arc::new(AtomicUsize::new(0)));
    let mut message = br#"{"jsonrpc":"2.0","method":"notifications/of_nothing"}"#.to_vec();
    message.resize(bytes, b' ');
    let mut source = SentMessages {
        frames: vec![Bytes::from(message); MESSAGES].into_iter(),
        taken: taken.clone(),
    };
    let mut reading = Box::pin(read(&session, &outbox, &mut source, &capacity_freed, &calls));
    assert!(futures_util::poll!(&mut reading).is_pending());
    let first = taken.load(Ordering::Relaxed);
    assert_eq!(testkit::within("the end of what is said", reading).await, ReadOutcome::HalfClosed);
    assert_eq!(taken.load(Ordering::Relaxed), MESSAGES);
    first
}

#[tokio::test]
async fn reading_yields_after_as_many_bytes_as_one_write_sends() {
    assert_eq!(taken_in_one_turn(60 << 10).await, 5, "which are more than 256 KiB");
}

#[tokio::test]
async fn reading_yields_after_a_fixed_number_of_messages() {
    assert_eq!(taken_in_one_turn(100).await, FRAMES_IN_A_ROW as usize);
}
