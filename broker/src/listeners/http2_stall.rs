//! Stalled answers of one HTTP/2 connection.
//!
//! With HTTP/2 a client can close its window and keep the connection alive with pings, so the
//! socket shows no stall. Each answer is sent in pieces, with the time of the last piece that the
//! client took. The stream of an answer that stalls for too long is reset. The other streams of the
//! connection continue, because the clients of a gateway share its connection.
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
};

use bytes::Bytes;
use hyper::{
    body::{Body, Frame, SizeHint},
    rt::Executor,
};
use parking_lot::{Mutex, MutexGuard};
use rules::limits::{CLIENT_WRITE_STALL_MAX, HTTP2_PIECE_BYTES};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

tokio::task_local! {
    /// Resets the stream that the current task serves.
    static STREAM_RESET: CancellationToken;
}

/// Executor of the streams of an HTTP/2 connection. Each stream can be reset alone.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamExecutor;

impl<S> Executor<S> for StreamExecutor
where
    S: Future<Output: Send + 'static> + Send + 'static,
{
    fn execute(&self, stream: S) {
        let reset = CancellationToken::new();
        // The library resets a stream whose task ends early, and discards what it still holds of
        // the answer.
        let serving = reset.clone().run_until_cancelled_owned(stream);
        tokio::spawn(STREAM_RESET.scope(reset, serving));
    }
}

#[derive(Debug, Default)]
pub(super) struct Http2StallTracker {
    state: Mutex<TrackedResponses>,
    /// Signals the first answer to track.
    added: Notify,
}

#[derive(Debug, Default)]
struct TrackedResponses {
    next: u64,
    /// Answers of which the client has not taken all.
    unsent: HashMap<u64, UnsentResponse>,
}

#[derive(Debug)]
struct UnsentResponse {
    /// Time of the last progress.
    moved: Instant,
    /// Resets the stream of the answer.
    reset: CancellationToken,
}

impl Http2StallTracker {
    /// Tracks an answer until the client has taken all of it.
    pub(super) fn track(self: &Arc<Self>, answer: Bytes) -> TrackedBody<WholeBody> {
        self.watch(WholeBody { rest: answer })
    }

    /// Tracks what a body yields until the client has taken it. The body may rest.
    pub(super) fn watch<B>(self: &Arc<Self>, body: B) -> TrackedBody<B> {
        TrackedBody { body, tracker: self.clone(), entry: None }
    }

    /// Called by the task of the answer's stream.
    fn register(self: &Arc<Self>) -> StallEntry {
        let reset = STREAM_RESET.try_with(CancellationToken::clone).unwrap_or_default();
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.unsent.insert(number, UnsentResponse { moved: Instant::now(), reset });
        drop(state);
        self.added.notify_one();
        StallEntry { tracker: self.clone(), number }
    }

    /// Waits until answers have stalled for too long, and resets their streams. Returns the number
    /// of them. An idle connection needs no timer.
    pub(super) async fn reset_stalled(&self) -> usize {
        loop {
            if self.lock().unsent.is_empty() {
                self.added.notified().await;
            }
            tokio::time::sleep(CLIENT_WRITE_STALL_MAX / 4).await;
            let stalled = self.reset_stalled_at(Instant::now());
            if stalled > 0 {
                return stalled;
            }
        }
    }

    fn reset_stalled_at(&self, now: Instant) -> usize {
        let mut stalled = 0;
        for response in self.lock().unsent.values() {
            if now.saturating_duration_since(response.moved) > CLIENT_WRITE_STALL_MAX {
                response.reset.cancel();
                stalled += 1;
            }
        }
        stalled
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

#[derive(Debug)]
struct StallEntry {
    tracker: Arc<Http2StallTracker>,
    number: u64,
}

impl StallEntry {
    fn mark_progress(&self) {
        if let Some(response) = self.tracker.lock().unsent.get_mut(&self.number) {
            response.moved = Instant::now();
        }
    }
}

impl Drop for StallEntry {
    fn drop(&mut self) {
        self.tracker.lock().unsent.remove(&self.number);
    }
}

/// Body of an answer that is complete, in pieces.
#[derive(Debug)]
pub(super) struct WholeBody {
    rest: Bytes,
}

impl Body for WholeBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Ok(Frame::data(take_piece(&mut self.rest)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

/// Body that the library takes in parts. It asks for a part when the client has a window for the
/// part before.
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
        let first = tracked.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first.len(), HTTP2_PIECE_BYTES);
        let later = Instant::now() + CLIENT_WRITE_STALL_MAX * 2;
        assert_eq!(unsent.reset_stalled_at(later), 1);
        assert!(!tracked.is_end_stream());
        assert_eq!(tracked.collect().await.unwrap().to_bytes().len(), SEND_BUFFER_BYTES);
        assert_eq!(unsent.reset_stalled_at(later), 0, "nothing is left of it");
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
        assert_eq!(unsent.reset_stalled_at(later), 0, "nothing was yielded");
        events.send(Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"event")))).await.unwrap();
        assert!(tracked.frame().await.is_some());
        assert_eq!(unsent.reset_stalled_at(later), 1, "the client has no window");
        assert!(tracked.frame().now_or_never().is_none());
        assert_eq!(unsent.reset_stalled_at(later), 0, "the client has taken it");
    }
}
