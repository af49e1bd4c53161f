//! Open streams of HTTP+SSE, and the frame source and sink of each. Clients POST to an address that
//! contains the name of the stream.

use std::{io, sync::Arc};

use bytes::Bytes;
use dashmap::DashMap;
use protocol::sse;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use transport::frame::{CloseReason, FrameSink, FrameSource, ReadError, WriteError};

use crate::auth::Caller;

/// Inboxes by the name in the address.
#[derive(Debug, Default)]
pub(super) struct SseStreams(pub(super) DashMap<String, SseInbox>);

#[derive(Debug)]
pub(super) struct SseInbox {
    pub(super) caller: Caller,
    pub(super) messages: mpsc::Sender<QueuedMessage>,
    /// Capacity for waiting messages.
    pub(super) byte_budget: Arc<Semaphore>,
}

/// A waiting message, with its share of the capacity.
pub(super) struct QueuedMessage {
    pub(super) frame: Bytes,
    pub(super) _byte_permit: OwnedSemaphorePermit,
}

/// Messages that a client POSTs, until its stream closes.
pub(super) struct PostSource {
    pub(super) posted: mpsc::Receiver<QueuedMessage>,
    pub(super) stream: mpsc::Sender<Bytes>,
}

impl FrameSource for PostSource {
    async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        tokio::select! {
            biased;
            () = self.stream.closed() => Err(io::Error::from(io::ErrorKind::ConnectionAborted).into()),
            waiting = self.posted.recv() => Ok(waiting.map(|waiting| waiting.frame)),
        }
    }

    fn set_message_limit(&mut self, _: usize, _: Option<&Arc<Semaphore>>) {
        // Each message is read completely before it comes here, from an authenticated client.
    }

    async fn drain(&mut self) {
        // Each POST already has its response, so the client detects every loss.
    }
}

/// The stream. `None` after its end.
pub(super) struct SseSink(pub(super) Option<mpsc::Sender<Bytes>>);

impl FrameSink for SseSink {
    async fn send_all(&mut self, frames: &mut Vec<Bytes>) -> Result<(), WriteError> {
        let mut piece =
            Vec::with_capacity(frames.iter().map(|frame| frame.len() + EVENT_EXTRA_BYTES).sum());
        frames.drain(..).for_each(|frame| sse::write_message(&mut piece, None, &frame));
        let stream = self.0.as_ref().ok_or(WriteError::Closed)?;
        stream.send(piece.into()).await.map_err(|_| WriteError::Closed)
    }

    async fn close(&mut self, _: CloseReason) {
        // The response ends when the source drops its sender too.
        self.0 = None;
    }
}

/// Number of bytes around a message in the stream.
const EVENT_EXTRA_BYTES: usize = 24;
