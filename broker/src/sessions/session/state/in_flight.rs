//! A client's request that has no answer yet, as its session keeps it.

use std::sync::Arc;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use crate::sessions::{session::OpenCall, stream::EventStream};

/// A request that has no answer yet.
#[derive(Debug, Clone)]
pub(in crate::sessions) enum InFlight {
    /// A call that a backend serves.
    Call(Arc<dyn OpenCall>),
    /// A request that the broker serves itself.
    Local { cancelled: CancellationToken, stream: Arc<EventStream> },
    /// A request of the broker that only waits for stored state. The next owner of the session can
    /// wait for it too.
    Transferable {
        cancelled: CancellationToken,
        moved: CancellationToken,
        stream: Arc<EventStream>,
    },
    /// A request of the broker that a client cannot cancel.
    Uncancellable { stream: Arc<EventStream> },
}

impl InFlight {
    /// Returns the stream that the answer goes to.
    pub(in crate::sessions) fn stream(&self) -> &Arc<EventStream> {
        match self {
            InFlight::Call(call) => call.stream(),
            InFlight::Local { stream, .. }
            | InFlight::Transferable { stream, .. }
            | InFlight::Uncancellable { stream } => stream,
        }
    }

    /// Hands the request off to the next owner of the session.
    pub(in crate::sessions) fn hand_off(&self) {
        if let InFlight::Transferable { moved, .. } = self {
            moved.cancel();
        }
    }

    /// Returns whether the next owner of the session can serve the request without loss.
    pub(in crate::sessions) fn is_transferable(&self) -> bool {
        matches!(self, InFlight::Transferable { .. })
    }

    /// Returns whether a cancellation would be the first one.
    pub(in crate::sessions) fn can_be_cancelled(&self) -> bool {
        match self {
            InFlight::Call(call) => !call.is_cancelled(),
            InFlight::Local { cancelled, .. } | InFlight::Transferable { cancelled, .. } => {
                !cancelled.is_cancelled()
            }
            InFlight::Uncancellable { .. } => false,
        }
    }

    pub(in crate::sessions) fn cancel(&self, reason: Option<Bytes>) {
        match self {
            InFlight::Call(call) => call.cancel(reason),
            InFlight::Local { cancelled, .. } | InFlight::Transferable { cancelled, .. } => {
                cancelled.cancel()
            }
            InFlight::Uncancellable { .. } => {}
        }
    }
}
