//! Reading a stream in batches: by a connection that writes many messages with one system call.
//!
//! Called by duplex listeners. What was taken is given up only once it is said to have been sent, so that a connection that
//! breaks leaves behind what it did not send.

use std::{
    future::poll_fn,
    task::{Context, Poll},
};

use bytes::Bytes;

use super::{EventStream, StreamCursor, StreamEnd};
use crate::rules::event_log::{LogLimits, PositionGone};

/// What a connection finds when it looks for something to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batch {
    /// These many frames were added.
    Frames(usize),
    /// Why there is nothing more.
    End(StreamEnd),
}

impl StreamCursor {
    /// Waits for something to send and takes as much of it as fits. Cancel-safe: a dropped call loses nothing.
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

    /// What [`StreamCursor::next_batch`] would return without waiting.
    pub fn try_next_batch(
        &mut self,
        count_max: usize,
        bytes_max: usize,
        frames: &mut Vec<Bytes>,
    ) -> Option<Batch> {
        self.poll_batch(count_max, bytes_max, frames, None)
    }

    /// Takes what there is. Where nothing is, whoever is `waiting` is woken when there may be something.
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
        state.read_through = self.position;
        self.stream.update_unread(&mut state);
        let found = match frames.len() - before {
            0 => state.end_reason().map(Batch::End),
            taken => Some(Batch::Frames(taken)),
        };
        if let (None, Some(context)) = (found, waiting) {
            state.wakers.register_reader(context);
        }
        found
    }

    /// What was taken is sent. What fits into `kept` may be asked for again.
    pub fn mark_sent(&self, kept: Option<LogLimits>) {
        let log = &mut self.stream.lock().log;
        match kept {
            None => log.forget_through(self.position),
            Some(kept) => log.forget_all_but(self.position, kept),
        }
    }
}

impl EventStream {
    /// Where a client goes on that has received this many messages on the stream; without a number, after the last that was
    /// taken by a connection.
    pub fn position_of(&self, received: Option<u64>) -> Result<u64, PositionGone> {
        let state = self.lock();
        match received {
            Some(received) => state.log.position_of(received),
            None => Ok(state.log.handed()),
        }
    }

    /// Whether it carries everything of its session.
    pub fn is_outbox(&self) -> bool {
        self.lock().log.is_outbox()
    }

    /// How many connections have read it, one after the other.
    pub fn reader_count(&self) -> u64 {
        self.lock().reader
    }

    /// Whether what waits to be taken has used up half of the room there is.
    pub fn is_half_full(&self) -> bool {
        self.lock().log.is_half_full()
    }

    /// Resolves when the stream is given up because its client does not read.
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
