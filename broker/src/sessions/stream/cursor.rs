//! A connection's position in a stream.

use std::{
    collections::HashSet,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
};

use rules::event_log::{PositionGone, Topic};

use super::{EventStream, StreamItem};
use crate::sessions::stream::wakers::unlock_and_wake_all;

/// A connection's position in a stream.
#[derive(Debug)]
pub struct StreamCursor {
    pub stream: Arc<EventStream>,
    pub(super) generation: u64,
    pub(super) position: u64,
}

impl EventStream {
    /// Returns the topics of the events after `position`.
    pub fn topics_after(&self, position: u64) -> HashSet<Topic> {
        self.lock().log.topics_after(position).cloned().collect()
    }

    /// Removes events after `position` about one of `topics`. Returns their number.
    pub fn withdraw_after(&self, position: u64, topics: &HashSet<Topic>) -> usize {
        let mut state = self.lock();
        let withdrawn = state.log.withdraw_after(position, |topic| topics.contains(topic));
        if withdrawn > 0 {
            self.update_unread(&mut state);
        }
        withdrawn
    }

    /// Connects a new reader, from `position` on (0: from the start).
    pub fn read_from(self: &Arc<Self>, position: u64) -> Result<StreamCursor, PositionGone> {
        let mut state = self.lock();
        state.log.can_resume(position)?;
        let generation = state.reader.connect(position);
        state.pause = false;
        self.update_retained(&mut state);
        if state.sink.as_mut().is_some_and(|sink| !std::mem::replace(&mut sink.was_read, true)) {
            state.log_record(self.number);
        }
        unlock_and_wake_all(state);
        Ok(StreamCursor { stream: self.clone(), generation, position })
    }
}

impl StreamCursor {
    /// Returns the next item. Cancel-safe: a dropped future loses nothing.
    pub async fn next(&mut self) -> StreamItem {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Returns the number of this reader among those of the stream.
    pub fn generation(&self) -> u64 {
        self.generation
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
            drop(state);
            self.stream.enforce_retained();
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
            self.stream.update_retained(&mut state);
            unlock_and_wake_all(state);
            self.stream.enforce_retained();
        }
    }
}
