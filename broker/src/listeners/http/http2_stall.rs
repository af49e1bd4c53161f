//! Stalled answers of one HTTP/2 connection.
//!
//! With HTTP/2 a client can close its window and keep the connection alive with pings, so the
//! socket shows no stall. Each answer is sent in pieces, with the time of the last piece that the
//! client took. A connection with an answer that stalls for too long is closed.

use std::{
    collections::HashMap,
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::{Mutex, MutexGuard};
use rules::limits::{CLIENT_WRITE_STALL_MAX, HTTP2_PIECE_BYTES};
use tokio::sync::Notify;

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

    /// Tracks an answer from elsewhere, with a known size.
    pub(super) fn watch<B>(self: &Arc<Self>, answer: B) -> TrackedBody<B> {
        TrackedBody { answer, entry: self.register() }
    }

    /// Tracks each event of a stream until the client has taken it. The stream may rest.
    pub(super) fn watch_events<B>(self: &Arc<Self>, events: B) -> TrackedEvents<B> {
        TrackedEvents { events, tracker: self.clone(), entry: None }
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

    /// Called when the client has capacity for all pieces before the last one.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let length = self.rest.len().min(HTTP2_PIECE_BYTES);
        let piece = self.rest.split_to(length);
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

/// Body of an answer from elsewhere that is being sent.
#[derive(Debug)]
pub(super) struct TrackedBody<B> {
    answer: B,
    entry: StallEntry,
}

impl<B: Body<Data = Bytes> + Unpin> Body for TrackedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.entry.mark_progress();
        Pin::new(&mut self.answer).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.answer.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.answer.size_hint()
    }
}

/// Body of an event stream.
#[derive(Debug)]
pub(super) struct TrackedEvents<B> {
    events: B,
    tracker: Arc<Http2StallTracker>,
    /// Set while the client has not taken all pieces.
    entry: Option<StallEntry>,
}

impl<B: Body<Data = Bytes> + Unpin> Body for TrackedEvents<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = Pin::new(&mut self.events).poll_frame(context);
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
        self.events.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.events.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn an_answer_is_tracked_until_it_is_fully_sent() {
        let unsent = Arc::new(Http2StallTracker::default());
        let answer = Bytes::from(vec![7; HTTP2_PIECE_BYTES + 1]);
        let mut tracked = unsent.track(answer.clone());
        let later = Instant::now() + CLIENT_WRITE_STALL_MAX * 2;
        assert!(unsent.longest_wait(later) > CLIENT_WRITE_STALL_MAX);
        let first = tracked.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first.len(), HTTP2_PIECE_BYTES);
        assert!(!tracked.is_end_stream());
        assert_eq!(tracked.collect().await.unwrap().to_bytes().len(), 1);
        assert_eq!(unsent.longest_wait(later), Duration::ZERO, "nothing is left of it");
    }
}
