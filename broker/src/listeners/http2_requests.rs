//! Requests of one HTTP/2 connection, and the end of a connection that has none.
//!
//! Invariants, whatever pings a client answers:
//! - A client has a connection only as long as it has requests and takes the answer of one of them.
//! - An answer that the client does not take ends without the other requests.

use std::{
    error::Error,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use rules::limits::CLIENT_WRITE_STALL_MAX;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::http2_stall::Http2StallTracker;

/// Serves a connection to its end, or until it has had no request for `unused_max`, or until the
/// client takes none of its answers. After `stop`, it finishes the requests in flight.
pub(super) async fn drive<C>(
    connection: C,
    finish: fn(Pin<&mut C>),
    requests: &RunningRequests,
    unused_max: Duration,
    stop: &CancellationToken,
) -> Result<(), Box<dyn Error + Send + Sync>>
where
    C: Future<Output = hyper::Result<()>>,
{
    let mut connection = pin!(connection);
    let mut unused = pin!(requests.unused_for(unused_max));
    let mut is_ending = false;
    loop {
        tokio::select! {
            biased; // what was read already is served
            ended = connection.as_mut() => return Ok(ended?),
            takes_others = requests.reset_stalled() => {
                if takes_others || is_ending {
                    continue;
                }
            }
            () = unused.as_mut() => {
                if is_ending {
                    return Err("the client does not end the connection".into());
                }
            }
            () = stop.cancelled(), if !is_ending => {}
        }
        is_ending = true;
        // The rest of the last answer may still be on its way.
        unused.set(requests.unused_for(CLIENT_WRITE_STALL_MAX));
        finish(connection.as_mut());
    }
}

/// Requests of one connection whose answers are not over.
#[derive(Debug, Default)]
pub(super) struct RunningRequests {
    count: watch::Sender<usize>,
    pub(super) stalls: Arc<Http2StallTracker>,
}

impl RunningRequests {
    pub(super) fn begin(self: &Arc<Self>) -> RunningRequest {
        self.count.send_modify(|count| *count += 1);
        RunningRequest(self.clone())
    }

    /// Waits until answers have stalled for too long, and resets their streams. Returns whether
    /// there are other requests.
    async fn reset_stalled(&self) -> bool {
        let stalled = self.stalls.reset_stalled().await;
        stalled < *self.count.borrow()
    }

    /// Resolves when no request has run for this time.
    async fn unused_for(&self, time: Duration) {
        let mut count = self.count.subscribe();
        loop {
            drop(count.wait_for(|count| *count == 0).await);
            let another = count.wait_for(|count| *count > 0);
            if tokio::time::timeout(time, another).await.is_err() {
                return;
            }
        }
    }
}

/// One request. A drop ends it.
#[derive(Debug)]
pub(super) struct RunningRequest(Arc<RunningRequests>);

impl RunningRequest {
    /// Returns the connection of the request.
    pub(super) fn connection(&self) -> &RunningRequests {
        &self.0
    }

    /// Ends the request with the body of its answer.
    pub(super) fn end_with<B>(self, body: B) -> CountedBody<B> {
        CountedBody { body, _running: self }
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.0.count.send_modify(|count| *count -= 1);
    }
}

/// Body of the answer to a request that runs until the library drops the body.
#[derive(Debug)]
pub(super) struct CountedBody<B> {
    body: B,
    _running: RunningRequest,
}

impl<B: Body<Data = Bytes> + Unpin> Body for CountedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
