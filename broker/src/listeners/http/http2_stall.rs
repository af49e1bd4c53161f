//! Answers of one HTTP/2 connection that its client does not take.
//!
//! With HTTP/2 a client can close its window and keep the connection alive with pings, so nothing stalls that the socket
//! could show. Each answer is handed over in pieces and notes when its last piece was taken; a connection with an answer
//! that got nowhere for too long is ended.

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
use tokio::sync::Notify;

use crate::limits::{CLIENT_WRITE_STALL_MAX, HTTP2_PIECE_BYTES};

#[derive(Debug, Default)]
pub(super) struct Http2StallTracker {
    state: Mutex<TrackedResponses>,
    /// There is an answer to watch over.
    begun: Notify,
}

#[derive(Debug, Default)]
struct TrackedResponses {
    next: u64,
    /// When something of each answer was last taken.
    moved: HashMap<u64, Instant>,
}

impl Http2StallTracker {
    /// Watches over an answer until the client has taken all of it.
    pub(super) fn track(self: &Arc<Self>, answer: Bytes) -> TrackedBytesBody {
        TrackedBytesBody { rest: answer, place: self.enter() }
    }

    /// The same for an answer that comes from elsewhere, of known size.
    pub(super) fn watch<B>(self: &Arc<Self>, answer: B) -> TrackedBody<B> {
        TrackedBody { answer, place: self.enter() }
    }

    fn enter(self: &Arc<Self>) -> StallEntry {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.moved.insert(number, Instant::now());
        drop(state);
        self.begun.notify_one();
        StallEntry { unsent: self.clone(), number }
    }

    /// Resolves when an answer has got nowhere for too long. Costs an idle connection no timer.
    pub(super) async fn stalled(&self) {
        loop {
            if self.lock().moved.is_empty() {
                self.begun.notified().await;
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

/// One answer on its way out.
#[derive(Debug)]
pub(super) struct TrackedBytesBody {
    rest: Bytes,
    place: StallEntry,
}

#[derive(Debug)]
struct StallEntry {
    unsent: Arc<Http2StallTracker>,
    number: u64,
}

impl StallEntry {
    fn moved(&self) {
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

    /// Asked for only when the client has room for more.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let length = self.rest.len().min(HTTP2_PIECE_BYTES);
        let piece = self.rest.split_to(length);
        self.place.moved();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

/// One answer on its way through.
#[derive(Debug)]
pub(super) struct TrackedBody<B> {
    answer: B,
    place: StallEntry,
}

impl<B: Body<Data = Bytes> + Unpin> Body for TrackedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.place.moved();
        Pin::new(&mut self.answer).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.answer.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.answer.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn an_answer_is_waited_for_until_it_is_taken_whole() {
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
