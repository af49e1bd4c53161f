//! The open streams of HTTP+SSE by the name in the address that their clients POST to, and the frame source and sink that a stream
//! and its POSTs are together.

use std::{io, sync::Arc};

use bytes::Bytes;
use dashmap::DashMap;
use protocol::sse;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use transport::frame::{CloseReason, FrameSink, FrameSource, ReadError, WriteError};

use crate::auth::Caller;

/// Where messages go, by the name in their address.
#[derive(Debug, Default)]
pub(super) struct SseStreams(pub(super) DashMap<String, SseInbox>);

#[derive(Debug)]
pub(super) struct SseInbox {
    pub(super) caller: Caller,
    pub(super) messages: mpsc::Sender<QueuedMessage>,
    /// For what waits.
    pub(super) room: Arc<Semaphore>,
}

/// A message that waits for its turn, and its part of the room for them.
pub(super) struct QueuedMessage {
    pub(super) frame: Bytes,
    pub(super) _room: OwnedSemaphorePermit,
}

/// What a client POSTs, for as long as it takes the stream.
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

    fn allow(&mut self, _: usize, _: Option<&Arc<Semaphore>>) {
        // Each is read whole before it comes here, of a client that is known.
    }

    async fn drain(&mut self) {
        // What was POSTed was answered: nothing is lost that its client does not know of.
    }
}

/// The stream, `None` once it has ended.
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
        // The response ends once the other sender is gone too, which is in the source beside this sink.
        self.0 = None;
    }
}

/// What stands around a message in the stream.
const EVENT_EXTRA_BYTES: usize = 24;
