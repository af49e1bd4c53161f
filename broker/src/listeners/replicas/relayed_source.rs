//! The body of another replica whose reader may be slow: an answer for a client, or the bytes of a
//! tunnel.
//!
//! Invariant: a cut frees its memory and its part of the connection's window at once, also while
//! no client reads it.

use std::{
    error::Error,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio_util::task::task_tracker::TaskTrackerToken;
use transport::PeerBody;

use crate::{
    admission::outbox_budget::UnreadOwner,
    sessions::{
        relayed_streams::{RelayedStream, RelayedStreamGuard},
        shared::Shared,
    },
};

/// Reason why a body of another replica has no further bytes.
#[derive(Debug, thiserror::Error)]
pub(super) enum BrokenSource {
    #[error("its reader takes nothing, and others need the memory or the broker ends")]
    Cut,
    #[error("{0}")]
    Lost(Box<dyn Error + Send + Sync>),
}

/// The body of another replica, which a slow client may lose at any time. `None`: it was cut.
#[derive(Debug)]
pub(super) struct RelayedSource(Mutex<Option<UncutSource>>);

#[derive(Debug)]
struct UncutSource {
    body: PeerBody,
    pieces_taken: usize,
    /// Set while a drain waits for the body.
    _in_flight: Option<TaskTrackerToken>,
}

impl RelayedSource {
    /// Returns the body, watched for this client until the guard is dropped.
    pub(super) fn watched(
        shared: &Shared,
        owner: UnreadOwner,
        body: PeerBody,
        in_flight: Option<TaskTrackerToken>,
    ) -> (Arc<Self>, RelayedStreamGuard) {
        let uncut = UncutSource { body, pieces_taken: 0, _in_flight: in_flight };
        let source = Arc::new(Self(Mutex::new(Some(uncut))));
        let handle = Arc::downgrade(&source);
        let guard = shared.relayed_streams.watch(owner, handle);
        (source, guard)
    }

    pub(super) fn poll_frame(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenSource>>> {
        let mut source = self.0.lock();
        let Some(uncut) = source.as_mut() else {
            return Poll::Ready(Some(Err(BrokenSource::Cut)));
        };
        let frame = ready!(Pin::new(&mut uncut.body).poll_frame(context));
        uncut.pieces_taken += 1;
        Poll::Ready(frame.map(|frame| frame.map_err(|error| BrokenSource::Lost(error.into()))))
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.0.lock().as_ref().is_some_and(|uncut| uncut.body.is_end_stream())
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.0.lock().as_ref().map_or_else(SizeHint::default, |uncut| uncut.body.size_hint())
    }
}

impl RelayedStream for RelayedSource {
    fn merge_unread(&self) -> usize {
        self.0.lock().as_mut().map_or(0, |uncut| {
            uncut.body.merge_unread();
            uncut.body.unread_bytes()
        })
    }

    fn waiting_position(&self) -> Option<usize> {
        let mut source = self.0.lock();
        let UncutSource { body, pieces_taken, .. } = source.as_mut()?;
        let waits = body.unread_bytes() > 0 || body.is_end_stream();
        waits.then_some(*pieces_taken)
    }

    /// A drop of the body frees the window of its connection. It also ends the stream at the other
    /// replica, unless this replica still answers it.
    fn cut(&self) {
        let uncut = self.0.lock().take();
        drop(uncut);
    }
}

/// The bytes that come from another replica through a tunnel.
#[derive(Debug)]
pub(super) struct TunnelBytes {
    source: Arc<RelayedSource>,
    _guard: RelayedStreamGuard,
}

impl TunnelBytes {
    pub(super) fn new(shared: &Shared, owner: UnreadOwner, body: PeerBody) -> Self {
        let (source, guard) = RelayedSource::watched(shared, owner, body, None);
        Self { source, _guard: guard }
    }
}

impl Body for TunnelBytes {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.source.poll_frame(context).map_err(io::Error::other)
    }
}
