//! Open streams of HTTP+SSE, and the frame source and sink of each. Clients POST to an address that
//! contains the name of the stream.

use std::{io, sync::Arc};

use bytes::Bytes;
use dashmap::DashMap;
use protocol::sse;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use transport::{
    frame::{CloseReason, FrameSink, FrameSource, ReadError, WriteError},
    message_bound::MessageMemory,
};

use crate::{
    admission::outbox_budget::UnreadOwner,
    auth::Caller,
    sessions::{stream::UnreadBudget, unread_answer::UnreadAnswer},
};

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

/// A waiting message, with its part of the tenant's memory and its share of the capacity.
pub(super) struct QueuedMessage {
    pub(super) frame: Bytes,
    pub(super) memory: MessageMemory,
    pub(super) _byte_permit: OwnedSemaphorePermit,
}

/// Messages that a client POSTs, until its stream closes.
pub(super) struct PostSource {
    pub(super) posted: mpsc::Receiver<QueuedMessage>,
    pub(super) stream: mpsc::Sender<SseEvents>,
    /// Memory of the message that was taken last. Its session may wait for a client that does not
    /// read.
    pub(super) held: Option<MessageMemory>,
}

/// Events on their way to the client. They count in the budget of unread bytes until they are
/// dropped.
pub(super) struct SseEvents {
    pub(super) text: Bytes,
    pub(super) unread: Option<Arc<UnreadAnswer>>,
}

impl FrameSource for PostSource {
    async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        self.held = None;
        let message = tokio::select! {
            biased;
            () = self.stream.closed() => return Err(io::Error::from(io::ErrorKind::ConnectionAborted).into()),
            message = self.posted.recv() => message,
        };
        let Some(QueuedMessage { frame, memory, .. }) = message else { return Ok(None) };
        self.held = Some(memory);
        Ok(Some(frame))
    }

    fn set_message_limit(&mut self, _: usize, _: Option<&Arc<Semaphore>>) {
        // Each message is read completely before it comes here, from an authenticated client.
    }

    async fn drain(&mut self) {
        // Each POST already has its response, so the client detects every loss.
    }
}

pub(super) struct SseSink {
    /// `None` after the end of the stream.
    pub(super) stream: Option<mpsc::Sender<SseEvents>>,
    pub(super) budget: Arc<UnreadBudget>,
    pub(super) owner: UnreadOwner,
}

impl FrameSink for SseSink {
    async fn send_all(&mut self, frames: &mut Vec<Bytes>) -> Result<(), WriteError> {
        let stream = self.stream.as_ref().ok_or(WriteError::Closed)?;
        let slot = stream.reserve().await.map_err(|_| WriteError::Closed)?;
        let mut text =
            Vec::with_capacity(frames.iter().map(|frame| frame.len() + EVENT_EXTRA_BYTES).sum());
        frames.drain(..).for_each(|frame| sse::write_message(&mut text, None, &frame));
        let unread = UnreadAnswer::count(&self.budget, text.len(), || self.owner.clone());
        slot.send(SseEvents { text: text.into(), unread });
        Ok(())
    }

    async fn close(&mut self, _: CloseReason) {
        // The response ends when the source drops its sender too.
        self.stream = None;
    }
}

/// Number of bytes around a message in the stream.
const EVENT_EXTRA_BYTES: usize = 24;
