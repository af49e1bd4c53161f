//! Stalled answers of one HTTP/2 connection.
//!
//! With HTTP/2 a client can close its window and keep the connection alive with pings, so the
//! socket shows no stall. Each answer is sent in pieces, with the time of the last piece that the
//! client took. A connection with an answer that stalls for too long is closed.
//!
//! The library takes pieces until its own buffer is full, and drops the body after the last one. It
//! may hold what it took for as long as the client likes. So the end of an answer is a copy, and the
//! buffer is small ([`SEND_BUFFER_BYTES`]).

use std::{
    collections::HashMap,
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::{Mutex, MutexGuard};
use rules::limits::{CLIENT_WRITE_STALL_MAX, HTTP2_PIECE_BYTES};
use tokio::{sync::Notify, time::Instant};

#[derive(Debug, Default)]
pub(super) struct Http2StallTracker {
    state: Mutex<TrackedResponses>,
    /// Signals the first answer to track.
    added: Notify,
}

#[derive(Debug, Default)]
struct TrackedResponses {
    next: u64,
    /// Time of the last progress of each answer.
    moved: HashMap<u64, Instant>,
}

impl Http2StallTracker {
    /// Tracks an answer until the client has taken all of it.
    pub(super) fn track(self: &Arc<Self>, answer: Bytes) -> TrackedBytesBody {
        TrackedBytesBody { rest: answer, entry: self.register() }
    }

    /// Tracks what a body yields until the client has taken it. The body may rest.
    pub(super) fn watch<B>(self: &Arc<Self>, body: B) -> TrackedBody<B> {
        TrackedBody { body, tracker: self.clone(), entry: None }
    }

    fn register(self: &Arc<Self>) -> StallEntry {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.moved.insert(number, Instant::now());
        drop(state);
        self.added.notify_one();
        StallEntry { unsent: self.clone(), number }
    }

    /// Resolves when an answer has stalled for too long. An idle connection needs no timer.
    pub(super) async fn stalled(&self) {
        loop {
            if self.lock().moved.is_empty() {
                self.added.notified().await;
            }
            tokio::time::sleep(CLIENT_WRITE_STALL_MAX / 4).await;
            if self.longest_wait(Instant::now()) > CLIENT_WRITE_STALL_MAX {
                return;
            }
        }
    }

    fn longest_wait(&self, now: Instant) -> Duration {
        self.lock()
            .moved
            .values()
            .map(|moved| now.saturating_duration_since(*moved))
            .max()
            .unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, TrackedResponses> {
        self.state.lock()
    }
}

/// Bytes of one stream that the library takes before the client does.
pub(super) const SEND_BUFFER_BYTES: usize = 64 * 1024;

/// Takes the next piece of an answer. The end is a copy, so it keeps no other byte in memory.
fn take_piece(rest: &mut Bytes) -> Bytes {
    if rest.len() <= SEND_BUFFER_BYTES {
        return Bytes::copy_from_slice(&std::mem::take(rest));
    }
    rest.split_to(HTTP2_PIECE_BYTES.min(rest.len() - SEND_BUFFER_BYTES))
}

/// Body of an answer that is being sent.
#[derive(Debug)]
pub(super) struct TrackedBytesBody {
    rest: Bytes,
    entry: StallEntry,
}

#[derive(Debug)]
struct StallEntry {
    unsent: Arc<Http2StallTracker>,
    number: u64,
}

impl StallEntry {
    fn mark_progress(&self) {
        if let Some(moved) = self.unsent.lock().moved.get_mut(&self.number) {
            *moved = Instant::now();
        }
    }
}

impl Drop for StallEntry {
    fn drop(&mut self) {
        self.unsent.lock().moved.remove(&self.number);
    }
}

impl Body for TrackedBytesBody {
    type Data = Bytes;
    type Error = Infallible;

    /// Called when the client has a window for the piece before.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let piece = take_piece(&mut self.rest);
        self.entry.mark_progress();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

/// Body that comes in parts: an event stream, or an answer of another replica.
#[derive(Debug)]
pub(super) struct TrackedBody<B> {
    body: B,
    tracker: Arc<Http2StallTracker>,
    /// Set while the client has not taken all that the body yielded.
    entry: Option<StallEntry>,
}

impl<B: Body<Data = Bytes> + Unpin> Body for TrackedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        self.entry = match (&polled, self.entry.take()) {
            (Poll::Pending, _) => None,
            (Poll::Ready(_), None) => Some(self.tracker.register()),
            (Poll::Ready(_), Some(entry)) => {
                entry.mark_progress();
                Some(entry)
            }
        };
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, stream::poll_fn};
    use http_body_util::{BodyExt, StreamBody};

    use super::*;

    #[tokio::test]
    async fn an_answer_is_tracked_until_it_is_fully_sent() {
        let unsent = Arc::new(Http2StallTracker::default());
        let answer = Bytes::from(vec![7; HTTP2_PIECE_BYTES + SEND_BUFFER_BYTES]);
        let mut tracked = unsent.track(answer.clone());
        let later = Instant::now() + CLIENT_WRITE_STALL_MAX * 2;
        assert!(unsent.longest_wait(later) > CLIENT_WRITE_STALL_MAX);
        let first = tracked.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first.len(), HTTP2_PIECE_BYTES);
        assert!(!tracked.is_end_stream());
        assert_eq!(tracked.collect().await.unwrap().to_bytes().len(), SEND_BUFFER_BYTES);
        assert_eq!(unsent.longest_wait(later), Duration::ZERO, "nothing is left of it");
    }

    #[tokio::test]
    async fn the_end_of_an_answer_keeps_nothing_else_in_memory() {
        let unsent = Arc::new(Http2StallTracker::default());
        let answer = Bytes::from(vec![7; SEND_BUFFER_BYTES + 999]);
        let mut tracked = unsent.track(answer.clone());
        let mut next = async || tracked.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!((next().await.len(), answer.is_unique()), (999, false));
        let last = next().await;
        assert_eq!(last.len(), SEND_BUFFER_BYTES);
        drop(tracked);
        assert!(answer.is_unique(), "the last piece is a copy");
    }

    #[tokio::test]
    async fn a_body_that_rests_is_not_tracked() {
        let unsent = Arc::new(Http2StallTracker::default());
        let (events, mut sent) = tokio::sync::mpsc::channel(1);
        let mut tracked =
            unsent.watch(StreamBody::new(poll_fn(move |context| sent.poll_recv(context))));
        let later = Instant::now() + CLIENT_WRITE_STALL_MAX * 2;
        assert!(tracked.frame().now_or_never().is_none());
        assert_eq!(unsent.longest_wait(later), Duration::ZERO, "nothing was yielded");
        events.send(Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"event")))).await.unwrap();
        assert!(tracked.frame().await.is_some());
        assert!(unsent.longest_wait(later) > CLIENT_WRITE_STALL_MAX, "the client has no window");
        assert!(tracked.frame().now_or_never().is_none());
        assert_eq!(unsent.longest_wait(later), Duration::ZERO, "the client has taken it");
    }
}
