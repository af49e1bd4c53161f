//! Who waits for something on a stream: its latest reader, and connections that write what was read. Noted under the stream's lock, so
//! that nothing is missed in between, and gone with the reader, as it keeps the task that is to be woken.

use std::task::{Context, Waker};

use parking_lot::MutexGuard;

use super::StreamState;

#[derive(Debug, Default)]
pub(super) struct Wakers {
    /// Woken by anything.
    reader: Option<Waker>,
    /// Woken if the stream is cut meanwhile. Mostly one: a connection that was displaced may still be at what it took before.
    writers: Vec<Waker>,
}

impl Wakers {
    /// The reader is woken by whatever changes.
    pub(super) fn register_reader(&mut self, context: &Context<'_>) {
        match &mut self.reader {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
    }

    /// The reader sees what changes without being told.
    pub(super) fn clear_reader(&mut self) {
        self.reader = None;
    }

    /// Who writes is woken if the stream is cut.
    pub(super) fn register_writer(&mut self, context: &Context<'_>) {
        if !self.writers.iter().any(|waker| waker.will_wake(context.waker())) {
            self.writers.push(context.waker().clone());
        }
    }
}

/// Something has changed: lets go of the lock, and wakes whom it concerns.
pub(super) fn unlock_and_wake(mut state: MutexGuard<'_, StreamState>) {
    let reader = state.wakers.reader.take();
    let writers =
        if state.log.was_cut() { std::mem::take(&mut state.wakers.writers) } else { Vec::new() };
    drop(state);
    reader.into_iter().chain(writers).for_each(Waker::wake);
}

/// The reader changes: lets go of the lock, and of whoever waited so far. Those who still do say so again.
pub(super) fn unlock_and_wake_all(mut state: MutexGuard<'_, StreamState>) {
    let Wakers { reader, writers } = std::mem::take(&mut state.wakers);
    drop(state);
    reader.into_iter().chain(writers).for_each(Waker::wake);
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, sync::Arc, time::Instant};

    use bytes::Bytes;

    use super::*;
    use crate::{
        rules::event_log::{EventKind, LogLimits},
        sessions::stream::EventStream,
    };

    const LIMITS: LogLimits = LogLimits { events: 2, bytes: 1000 };

    #[tokio::test]
    async fn a_displaced_connection_that_still_writes_learns_of_the_cut_as_its_successor_does() {
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
    fn nobody_is_remembered_who_reads_no_more() {
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
