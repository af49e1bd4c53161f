//! Reader and writer of a session's connection. The reader passes the client's messages to its
//! session, the writer sends the session's messages to the client.
//!
//! Both run in the connection's one task, as do the client's calls. One wake-up reads, starts,
//! advances and answers many messages with few system calls. A message is not copied on its way.
//!
//! The reader pauses while the outbox is half full, which slows down a client that pipelines faster
//! than it reads. The connection of a client that does not read at all is closed.

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
    envelope::{Body, Kind, Message, RefusedMessage, decode_body},
    json,
};
use rules::{
    event_log::EventKind,
    limits::{FRAMES_IN_A_ROW, OUTBOX_BATCH_BYTES, OUTBOX_BATCH_FRAMES, PIPELINE_WAIT_MAX},
};
use tokio::sync::Notify;
use transport::frame::{CloseReason, FrameSink, FrameSource};

use super::{
    read_errors::{close_reason, refusal_of, stateless_unsupported},
    slow_reader::{SendFailure, SlowReaderScope, log_slow_reader, send},
};
use crate::{
    metrics::{Direction, Side},
    sessions::{
        call::CallFuture,
        session::{Session, notifications, questions},
        stream::{Batch, EventStream, StreamCursor, StreamEnd},
        submit,
    },
    telemetry::request,
};

/// Reason why reading ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadOutcome {
    /// The client closed its sending half.
    HalfClosed,
    /// The client violated the rules of the wire.
    Fault(CloseReason),
    Disconnected,
}

/// Running calls of a client, polled by the connection's task. The calls that are left at its drop
/// become tasks of their own.
///
/// The lock exists for the compiler: only the connection's task takes it. It is held while calls
/// are polled, so it comes before all other locks (`sync.rs`). `None` before the first call.
#[derive(Debug, Default)]
pub(super) struct InFlightCalls(Mutex<Option<FuturesUnordered<PolledCall>>>);

#[derive(Debug)]
enum PolledCall {
    Call(CallFuture),
    /// Never ready. A set wakes its task once more after it has polled all its members, and with
    /// this member it never has.
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
    /// Polls the calls, and starts added ones, while there is capacity for their answers. The
    /// answers are then written first. Must be polled after the futures that add calls.
    pub(super) async fn drive(&self, outbox: &EventStream) -> Infallible {
        poll_fn(|context| {
            if let Some(calls) = &mut *self.lock() {
                poll_calls(calls, outbox, context);
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

/// Runs one turn of `calls`.
fn poll_calls(
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

/// Reads the client's messages until the end, and adds its requests to `calls`. Yields after a
/// number of frames, and after the number of bytes of one write.
pub(super) async fn read(
    session: &Arc<Session>,
    outbox: &Arc<EventStream>,
    source: &mut impl FrameSource,
    capacity_freed: &Notify,
    calls: &InFlightCalls,
) -> ReadOutcome {
    let reader = ClientReader { session, outbox, capacity_freed, calls };
    let limits = json::Limits::with_bytes_max(session.message_bytes());
    source.set_message_limit(limits.bytes_max, None);
    source.bound_messages(session.tenant.message_bound());
    let (mut in_a_row, mut bytes_in_a_row) = (0, 0);
    loop {
        let frame = match source.next().await {
            Ok(Some(frame)) => frame,
            Ok(None) => {
                tracing::debug!(session = %session.digest, "the client closed its sending side");
                return ReadOutcome::HalfClosed;
            }
            Err(error) => {
                tracing::debug!(session = %session.digest, %error, "the broker cannot read from the connection");
                if let Some(refusal) = refusal_of(&error) {
                    reader.refuse(&RefusedMessage::new(refusal, None)).await;
                }
                return close_reason(&error).map_or(ReadOutcome::Disconnected, ReadOutcome::Fault);
            }
        };
        session.touch();
        session.shared.metrics.bytes(Direction::In, Side::Client, frame.len());
        (in_a_row, bytes_in_a_row) = (in_a_row + 1, bytes_in_a_row + frame.len());
        match decode_body(frame, &limits, session.agreement.version.batches()) {
            Ok(Body::One(message)) => {
                request::with_inbound_context(None, None, reader.handle_message(message)).await
            }
            // Each request of a batch gets an answer of its own: the client recognizes it by its
            // id.
            Ok(Body::Batch(messages)) => {
                for message in messages {
                    match message {
                        Ok(message) => {
                            request::with_inbound_context(
                                None,
                                None,
                                reader.handle_message(message),
                            )
                            .await
                        }
                        Err(rejected) => reader.refuse(&rejected).await,
                    }
                }
            }
            Err(rejected) => reader.refuse(&rejected).await,
        }
        if in_a_row >= FRAMES_IN_A_ROW || bytes_in_a_row >= OUTBOX_BATCH_BYTES {
            (in_a_row, bytes_in_a_row) = (0, 0);
            tokio::task::yield_now().await;
        }
    }
}

/// Resolves when every request is answered and all answers are sent.
pub(super) async fn wait_idle(session: &Arc<Session>, capacity_freed: &Notify) {
    while session.calls_in_flight() > 0 {
        // An answer signals `capacity_freed`. A request that ends without an answer is noticed by
        // the repeated check.
        let _looked = tokio::time::timeout(PIPELINE_WAIT_MAX / 10, capacity_freed.notified()).await;
    }
}

/// Passes the client's messages to its session.
struct ClientReader<'a> {
    session: &'a Arc<Session>,
    outbox: &'a Arc<EventStream>,
    capacity_freed: &'a Notify,
    calls: &'a InFlightCalls,
}

impl ClientReader<'_> {
    async fn handle_message(&self, message: Message) {
        if message.is_stateless() {
            return self
                .refuse(&RefusedMessage::new(stateless_unsupported(), message.id.clone()))
                .await;
        }
        match message.kind {
            // A dropped notification is counted. This wire has no answer for it.
            Kind::Notification => drop(notifications::handle_notification(self.session, &message)),
            Kind::Result | Kind::Error => questions::handle_answer(self.session, &message),
            Kind::Request => {
                self.wait_for_capacity().await;
                self.wait_for_calls().await;
                let id = message.id.clone();
                match submit::submit_after_quiesce(self.session, message, self.outbox).await {
                    Ok(call) => call.into_iter().for_each(|call| self.calls.add(call)),
                    Err(refusal) => self.refuse(&RefusedMessage::new(refusal, id)).await,
                }
            }
        }
    }

    /// Waits for capacity in the outbox, so that answers do not accumulate faster than the client
    /// reads.
    async fn wait_for_capacity(&self) {
        while self.outbox.is_half_full() {
            self.capacity_freed.notified().await; // the writer ends the connection of a client that takes nothing
        }
    }

    /// Slows down a client that pipelines before its requests are refused. The wait is short,
    /// because it may depend on the client itself: on its answer to a question, or on a
    /// cancellation after this request.
    async fn wait_for_calls(&self) {
        let limits = &self.session.shared.config.limits;
        let is_over = self.session.shared.limiters.overload.is_over();
        if self.session.calls_in_flight() >= limits.calls_in_flight_per_session && !is_over {
            let some_ended = async {
                while self.session.calls_in_flight() >= limits.calls_in_flight_per_session {
                    self.capacity_freed.notified().await;
                }
            };
            let _refused_if_not = tokio::time::timeout(PIPELINE_WAIT_MAX, some_ended).await;
        }
    }

    async fn refuse(&self, rejected: &RefusedMessage) {
        questions::handle_malformed_answer(self.session, rejected);
        self.wait_for_capacity().await;
        let frame = self.session.refusal_frame(&rejected.refusal, rejected.id.as_ref());
        self.session.push_to(self.outbox, EventKind::Answer, frame);
    }
}

/// Writes the messages for the client until the stream ends. Returns the close reason, or `None` if
/// the connection is no longer writable.
pub(super) async fn write(
    session: &Arc<Session>,
    outbox: &mut StreamCursor,
    sink: &mut impl FrameSink,
    capacity_freed: &Notify,
) -> Option<CloseReason> {
    let kept = (!session.transport.ends_with_connection()).then(|| session.shared.stream_limits());
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
                        tracing::debug!(session = %session.digest, %error, "the broker cannot write to the connection");
                        return None;
                    }
                }
                outbox.mark_sent(kept);
                capacity_freed.notify_one();
            }
            Batch::End(StreamEnd::Complete) if session.shared.shutdown.is_draining() => {
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
