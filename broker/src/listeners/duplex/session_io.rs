//! The two halves of a session's connection: what the client sends goes to its session, what is for the client goes out.
//!
//! Both run in the connection's one task, and so do the calls of the client: what came together is read, begun, gone on with
//! and answered together, with one wake-up and one system call for many. A message is not copied on its way. A client is read
//! from only while there is room for what it asks, so that one that pipelines faster than it reads is slowed down; one that
//! does not read at all is cut.

#[cfg(test)]
mod tests;

use std::{
    convert::Infallible,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::{Stream, StreamExt as _, stream::FuturesUnordered};
use parking_lot::{Mutex, MutexGuard};
use protocol::{
    envelope::{Body, Kind, Message, Rejection, decode_body},
    json,
};
use tokio::sync::Notify;
use transport::frame::{CloseReason, FrameSink, FrameSource};

use super::{
    read_errors::{close_reason, refusal_of, stateless_unsupported},
    slow_reader::{SendFailure, SlowReaderScope, log_slow_reader, send},
};
use crate::{
    limits::{FRAMES_IN_A_ROW, OUTBOX_BATCH_BYTES, OUTBOX_BATCH_FRAMES, PIPELINE_WAIT_MAX},
    metrics::{Direction, Side},
    rules::event_log::EventKind,
    sessions::{
        call::CallFuture,
        session::Session,
        stream::{Batch, EventStream, StreamCursor, StreamEnd},
    },
    telemetry::request,
};

/// Why nothing more comes from a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadOutcome {
    /// It has said all it has to say.
    HalfClosed,
    /// It broke the rules of the wire.
    Fault(CloseReason),
    Disconnected,
}

/// A client's calls on their way, which are no tasks of their own. Those that are left when it is dropped become such.
///
/// The lock is for the compiler: the connection's task alone takes it. It is held while calls are gone on with, and so is taken
/// before all others (`sync.rs`). None where there never was a call.
#[derive(Debug, Default)]
pub(super) struct InFlightCalls(Mutex<Option<FuturesUnordered<PolledCall>>>);

#[derive(Debug)]
enum PolledCall {
    Call(CallFuture),
    /// Never over: a set that has polled all it holds wakes its task once more, and with this one it never has.
    Sentinel,
}

impl Future for PolledCall {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match &mut *self {
            Self::Call(call) => Pin::new(call).poll(context),
            Self::Sentinel => Poll::Pending,
        }
    }
}

impl InFlightCalls {
    /// Goes on with them, and begins those that were added, for as long as there is room for their answers: then those are
    /// written first. To be polled after whoever adds some.
    pub(super) async fn carried_out(&self, outbox: &EventStream) -> Infallible {
        poll_fn(|context| {
            if let Some(calls) = &mut *self.lock() {
                go_on(calls, outbox, context);
            }
            Poll::Pending
        })
        .await
    }

    fn add(&self, call: CallFuture) {
        self.lock()
            .get_or_insert_with(|| FuturesUnordered::from_iter([PolledCall::Sentinel]))
            .push(PolledCall::Call(call));
    }

    fn lock(&self) -> MutexGuard<'_, Option<FuturesUnordered<PolledCall>>> {
        self.0.lock()
    }
}

/// One turn of `calls`.
fn go_on(
    calls: &mut (impl Stream<Item = ()> + Unpin),
    outbox: &EventStream,
    context: &mut Context<'_>,
) {
    let mut in_a_row = 0;
    while let Poll::Ready(Some(())) = calls.poll_next_unpin(context) {
        in_a_row += 1;
        if in_a_row == FRAMES_IN_A_ROW || outbox.is_half_full() {
            return context.waker().wake_by_ref();
        }
    }
}

/// Takes what the client sends until nothing more comes; its requests become `calls`. Lets others go on after so many frames, and
/// after as many bytes as are written in one go.
pub(super) async fn read(
    session: &Arc<Session>,
    outbox: &Arc<EventStream>,
    source: &mut impl FrameSource,
    room: &Notify,
    calls: &InFlightCalls,
) -> ReadOutcome {
    let ear = ClientReader { session, outbox, room, calls };
    let limits = json::Limits { bytes_max: session.message_bytes(), ..json::Limits::default() };
    source.allow(limits.bytes_max, None);
    let (mut in_a_row, mut bytes_in_a_row) = (0, 0);
    loop {
        let frame = match source.next().await {
            Ok(Some(frame)) => frame,
            Ok(None) => {
                tracing::debug!(session = %session.digest, "the client has said all it has to say");
                return ReadOutcome::HalfClosed;
            }
            Err(error) => {
                tracing::debug!(session = %session.digest, %error, "the connection can not be read any more");
                if let Some(refusal) = refusal_of(&error) {
                    ear.refuse(&Rejection::new(refusal, None)).await;
                }
                return close_reason(&error).map_or(ReadOutcome::Disconnected, ReadOutcome::Fault);
            }
        };
        session.touch();
        session.shared.metrics.bytes(Direction::In, Side::Client, frame.len());
        (in_a_row, bytes_in_a_row) = (in_a_row + 1, bytes_in_a_row + frame.len());
        match decode_body(frame, &limits, session.version.batches()) {
            Ok(Body::One(message)) => request::arriving(None, None, ear.take(message)).await,
            // Each is answered by itself: a receiver of a batch's answers knows them by their ids.
            Ok(Body::Batch(messages)) => {
                for message in messages {
                    match message {
                        Ok(message) => request::arriving(None, None, ear.take(message)).await,
                        Err(rejected) => ear.refuse(&rejected).await,
                    }
                }
            }
            Err(rejected) => ear.refuse(&rejected).await,
        }
        if in_a_row >= FRAMES_IN_A_ROW || bytes_in_a_row >= OUTBOX_BATCH_BYTES {
            (in_a_row, bytes_in_a_row) = (0, 0);
            tokio::task::yield_now().await;
        }
    }
}

/// Resolves when no request waits for an answer any more and all answers are out.
pub(super) async fn at_rest(session: &Arc<Session>, room: &Notify) {
    while session.calls_in_flight() > 0 {
        // Answers make room; what ends without one is found by looking.
        let _looked = tokio::time::timeout(PIPELINE_WAIT_MAX / 10, room.notified()).await;
    }
}

/// What hears the client.
struct ClientReader<'a> {
    session: &'a Arc<Session>,
    outbox: &'a Arc<EventStream>,
    room: &'a Notify,
    calls: &'a InFlightCalls,
}

impl ClientReader<'_> {
    async fn take(&self, message: Message) {
        if message.is_modern() {
            return self.refuse(&Rejection::new(stateless_unsupported(), message.id)).await;
        }
        match message.kind {
            // One that is dropped has been counted; on this wire there is no word for it.
            Kind::Notification => drop(self.session.handle_notification(&message)),
            Kind::Result | Kind::Error => self.session.handle_answer(&message),
            Kind::Request => {
                self.wait_for_room().await;
                self.wait_for_calls().await;
                let id = message.id.clone();
                match self.session.handle_request_after_quiesce(message, self.outbox).await {
                    Ok(call) => call.into_iter().for_each(|call| self.calls.add(call)),
                    Err(refusal) => self.refuse(&Rejection::new(refusal, id)).await,
                }
            }
        }
    }

    /// Nothing is answered faster than it is read.
    async fn wait_for_room(&self) {
        while self.outbox.is_half_full() {
            self.room.notified().await; // the writer ends the connection of a client that takes nothing
        }
    }

    /// A client that pipelines is slowed down before it is refused. Not for long: only the client can make room, by answering
    /// a question, or by a cancellation that comes after this request.
    async fn wait_for_calls(&self) {
        let limits = &self.session.shared.config.limits;
        let is_over = self.session.shared.overload.is_over();
        if self.session.calls_in_flight() >= limits.calls_in_flight_per_session && !is_over {
            let some_ended = async {
                while self.session.calls_in_flight() >= limits.calls_in_flight_per_session {
                    self.room.notified().await;
                }
            };
            let _refused_if_not = tokio::time::timeout(PIPELINE_WAIT_MAX, some_ended).await;
        }
    }

    async fn refuse(&self, rejected: &Rejection) {
        self.wait_for_room().await;
        let frame = self.session.refusal_frame(&rejected.refusal, rejected.id.as_ref());
        self.session.push_to(self.outbox, EventKind::Answer, frame);
    }
}

/// Writes what is for the client until nothing more comes, and says how the connection should end then. `None`: nothing
/// more can be written.
pub(super) async fn write(
    session: &Arc<Session>,
    outbox: &mut StreamCursor,
    sink: &mut impl FrameSink,
    room: &Notify,
) -> Option<CloseReason> {
    let kept = (!session.ends_with_connection()).then(|| session.shared.stream_limits());
    let cut = || {
        log_slow_reader(
            &session.shared,
            Some(session),
            session.transport,
            SlowReaderScope::Connection,
        )
    };
    let mut frames = Vec::new();
    loop {
        let batch =
            match outbox.try_next_batch(OUTBOX_BATCH_FRAMES, OUTBOX_BATCH_BYTES, &mut frames) {
                Some(batch) => batch,
                None => {
                    frames = Vec::new(); // most connections wait most of the time
                    outbox.next_batch(OUTBOX_BATCH_FRAMES, OUTBOX_BATCH_BYTES, &mut frames).await
                }
            };
        match batch {
            Batch::Frames(_) => {
                match send(&session.shared, sink, &mut frames, Some(&*outbox.stream)).await {
                    Ok(()) => {}
                    Err(SendFailure::SlowReader) => {
                        cut();
                        return None;
                    }
                    Err(SendFailure::Write(error)) => {
                        tracing::debug!(session = %session.digest, %error, "the connection can not be written to any more");
                        return None;
                    }
                }
                outbox.mark_sent(kept);
                room.notify_one();
            }
            Batch::End(StreamEnd::Complete) if session.shared.draining.is_cancelled() => {
                return Some(CloseReason::GoingAway);
            }
            Batch::End(StreamEnd::Complete) => return Some(CloseReason::Policy),
            Batch::End(StreamEnd::Paused) => return Some(CloseReason::GoingAway),
            Batch::End(StreamEnd::Displaced) => return Some(CloseReason::Policy),
            Batch::End(StreamEnd::Slow | StreamEnd::Lost) => {
                cut();
                return Some(CloseReason::SlowReader);
            }
        }
    }
}
