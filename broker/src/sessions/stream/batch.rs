//! Reading a stream in batches, for a connection that writes many messages with one system call.
//!
//! Duplex listeners call this. A stream keeps the messages that were taken until the connection
//! marks them as sent. A connection that breaks thus leaves its unsent messages behind.

use std::{
    future::poll_fn,
    task::{Context, Poll},
};

use bytes::Bytes;
use rules::event_log::{LogLimits, PositionGone};

use super::{EventStream, StreamCursor, StreamEnd};

/// Result of a read for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batch {
    /// Number of frames that were added.
    Frames(usize),
    /// Reason of the end.
    End(StreamEnd),
}

impl StreamCursor {
    /// Waits for messages and takes as many as fit. Cancel-safe: a dropped future loses nothing.
    pub async fn next_batch(
        &mut self,
        count_max: usize,
        bytes_max: usize,
        frames: &mut Vec<Bytes>,
    ) -> Batch {
        poll_fn(|context| {
            self.poll_batch(count_max, bytes_max, frames, Some(context))
                .map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Returns what [`StreamCursor::next_batch`] would return without a wait, if anything.
    pub fn try_next_batch(
        &mut self,
        count_max: usize,
        bytes_max: usize,
        frames: &mut Vec<Bytes>,
    ) -> Option<Batch> {
        self.poll_batch(count_max, bytes_max, frames, None)
    }

    /// Takes the messages that are there. If there are none, registers the waker of `waiting`.
    fn poll_batch(
        &mut self,
        count_max: usize,
        bytes_max: usize,
        frames: &mut Vec<Bytes>,
        waiting: Option<&Context<'_>>,
    ) -> Option<Batch> {
        let before = frames.len();
        let mut state = self.stream.lock();
        if let Some(ended) = state.interruption(self) {
            return Some(Batch::End(ended));
        }
        self.position = state.log.take_after(self.position, count_max, bytes_max, frames);
        state.reader.advance(self.position);
        self.stream.update_unread(&mut state);
        let found = match frames.len() - before {
            0 => state.end_reason().map(Batch::End),
            taken => Some(Batch::Frames(taken)),
        };
        if let (None, Some(context)) = (found, waiting) {
            state.wakers.register_reader(context);
        }
        drop(state);
        self.stream.enforce_retained();
        found
    }

    /// Marks the taken messages as sent. As many as fit into `kept` stay for a repeated read.
    pub fn mark_sent(&self, kept: Option<LogLimits>) {
        let mut state = self.stream.lock();
        match kept {
            None => state.log.discard_through(self.position),
            Some(kept) => state.log.trim_sent(self.position, kept),
        }
        self.stream.update_retained(&mut state);
    }
}

impl EventStream {
    /// Returns the position of a client that has received this many messages on the stream. Without
    /// a number, returns the position after the last message that a connection took.
    pub fn position_of(&self, received: Option<u64>) -> Result<u64, PositionGone> {
        let state = self.lock();
        match received {
            Some(received) => state.log.position_of(received),
            None => Ok(state.log.sent_through()),
        }
    }

    /// Returns whether the stream carries everything of its session.
    pub fn is_outbox(&self) -> bool {
        self.lock().log.is_outbox()
    }

    /// Returns how many connections have read the stream, one after the other.
    pub fn reader_count(&self) -> u64 {
        self.lock().reader.count()
    }

    /// Returns whether the unread messages use at least half of the stream's capacity.
    pub fn is_half_full(&self) -> bool {
        self.lock().log.is_half_full()
    }

    /// Resolves when the stream is cut because its client does not read.
    pub async fn wait_until_cut(&self) {
        poll_fn(|context| {
            let mut state = self.lock();
            if state.log.was_cut() {
                return Poll::Ready(());
            }
            state.wakers.register_writer(context);
            Poll::Pending
        })
        .await;
    }
}
