//! Wakers of a stream: those of its latest reader, and of connections that write messages they have
//! read.
//!
//! They are registered under the stream's lock, so that no change is missed. They go with the
//! reader, because a waker keeps its task alive.

use std::task::{Context, Waker};

use parking_lot::MutexGuard;

use super::StreamState;

#[derive(Debug, Default)]
pub(super) struct Wakers {
    /// Woken by any change.
    reader: Option<Waker>,
    /// Woken if the stream is cut. There is mostly one. A displaced connection may still be writing
    /// what it took before.
    writers: Vec<Waker>,
}

impl Wakers {
    /// Registers the reader, which any change wakes.
    pub(super) fn register_reader(&mut self, context: &Context<'_>) {
        match &mut self.reader {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
    }

    /// Removes the reader's waker, because the reader polls anyway.
    pub(super) fn clear_reader(&mut self) {
        self.reader = None;
    }

    /// Registers a writer, which a cut of the stream wakes.
    pub(super) fn register_writer(&mut self, context: &Context<'_>) {
        if !self.writers.iter().any(|waker| waker.will_wake(context.waker())) {
            self.writers.push(context.waker().clone());
        }
    }
}

/// Releases the lock and wakes the reader, and the writers if the stream was cut.
pub(super) fn unlock_and_wake(mut state: MutexGuard<'_, StreamState>) {
    let reader = state.wakers.reader.take();
    let writers =
        if state.log.was_cut() { std::mem::take(&mut state.wakers.writers) } else { Vec::new() };
    drop(state);
    reader.into_iter().chain(writers).for_each(Waker::wake);
}

/// Releases the lock and wakes all, because the reader changes. Those that still wait register
/// again.
pub(super) fn unlock_and_wake_all(mut state: MutexGuard<'_, StreamState>) {
    let Wakers { reader, writers } = std::mem::take(&mut state.wakers);
    drop(state);
    reader.into_iter().chain(writers).for_each(Waker::wake);
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, sync::Arc, time::Instant};

    use bytes::Bytes;
    use rules::event_log::{EventKind, LogLimits};

    use super::*;
    use crate::sessions::stream::EventStream;

    const LIMITS: LogLimits = LogLimits { events: 2, bytes: 1000 };

    #[tokio::test]
    async fn a_displaced_connection_that_still_writes_is_notified_of_a_cut_too() {
        let stream = EventStream::outbox(1, LIMITS, None);
        let writing = |stream: &Arc<EventStream>| {
            let stream = stream.clone();
            tokio::spawn(async move { stream.wait_until_cut().await })
        };
        let mut writers = Vec::new();
        let mut readers = Vec::new();
        for _ in 0..2 {
            readers.push(stream.read_from(0).unwrap());
            writers.push(writing(&stream));
            tokio::task::yield_now().await;
        }
        while stream.push(Instant::now(), EventKind::Message, Bytes::from_static(b"{}")).is_ok() {}
        for writer in writers {
            tokio::time::timeout(std::time::Duration::from_secs(10), writer)
                .await
                .unwrap()
                .unwrap();
        }
    }

    #[test]
    fn wakers_of_a_dropped_reader_are_removed() {
        let stream = EventStream::general(1, LIMITS);
        let mut reader = stream.read_from(0).unwrap();
        let mut context = Context::from_waker(Waker::noop());
        assert!(
            pin!(reader.next()).poll(&mut context).is_pending()
                && pin!(stream.wait_until_cut()).poll(&mut context).is_pending()
        );
        assert!(stream.lock().wakers.reader.is_some() && !stream.lock().wakers.writers.is_empty());
        drop(reader);
        assert!(stream.lock().wakers.reader.is_none() && stream.lock().wakers.writers.is_empty());
    }
}
