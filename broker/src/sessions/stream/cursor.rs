//! A connection's position in a stream.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
};

use super::{EventStream, StreamItem};
use crate::sessions::stream::wakers::unlock_and_wake_all;

/// A connection's position in a stream.
#[derive(Debug)]
pub struct StreamCursor {
    pub stream: Arc<EventStream>,
    pub(super) generation: u64,
    pub(super) position: u64,
}

impl StreamCursor {
    /// Returns the next item. Cancel-safe: a dropped future loses nothing.
    pub async fn next(&mut self) -> StreamItem {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Returns the id from which the client may resume after the events up to here.
    pub fn event_id(&self) -> String {
        self.stream.event_id(self.position)
    }

    /// Returns how many events wait for this reader already.
    pub fn backlog(&self) -> u64 {
        self.stream.lock().log.count_after(self.position)
    }

    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<StreamItem> {
        let mut state = self.stream.lock();
        if let Some(ended) = state.interruption(self) {
            return Poll::Ready(StreamItem::Ended(ended));
        }
        if let Some(event) = state.log.next_after(self.position) {
            self.position = event.sequence;
            state.reader.advance(event.sequence);
            self.stream.update_unread(&mut state);
            return Poll::Ready(StreamItem::Event(event));
        }
        match state.end_reason() {
            Some(ended) => Poll::Ready(StreamItem::Ended(ended)),
            None => {
                state.wakers.register_reader(context);
                Poll::Pending
            }
        }
    }
}

impl Drop for StreamCursor {
    fn drop(&mut self) {
        let mut state = self.stream.lock();
        if state.reader.disconnect(self.generation) {
            unlock_and_wake_all(state);
        }
    }
}
