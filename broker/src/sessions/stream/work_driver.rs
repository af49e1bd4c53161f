//! Reading a stream in the task that also does the work for it, so that neither has to wake the
//! other.

use std::{future::poll_fn, pin::pin};

use super::{StreamCursor, StreamItem};

impl StreamCursor {
    /// Reads as [`StreamCursor::next`] does, and polls the work that the stream waits for.
    pub async fn next_while_driving(&mut self, work: impl Future<Output = ()>) -> StreamItem {
        let (mut work, mut is_over) = (pin!(work), false);
        poll_fn(|context| {
            if !is_over {
                // The reader's waker is cleared during the poll of the work. The read below sees
                // what the work pushes, and a wakeup would only run this task again.
                let mut state = self.stream.lock();
                if state.reader.is_latest(self.generation) {
                    state.wakers.clear_reader();
                }
                drop(state);
                is_over = work.as_mut().poll(context).is_ready();
            }
            self.poll_next(context)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use bytes::Bytes;
    use protocol::ids::RequestId;
    use rules::event_log::{EventKind, LogLimits};
    use tokio::sync::oneshot;

    use super::*;
    use crate::sessions::stream::EventStream;

    #[tokio::test]
    async fn a_reader_gets_the_answer_and_events_pushed_in_the_meantime() {
        let limits = LogLimits { events: 4, bytes: 1000 };
        let stream = EventStream::for_answers(2, limits, vec![RequestId::from_u64(1)], 0);
        let mut reader = stream.read_from(0).unwrap();
        let (proceed, may_proceed) = oneshot::channel::<()>();
        let mut work = pin!(async {
            let _ = may_proceed.await;
            stream.push(Instant::now(), EventKind::Answer, Bytes::from_static(b"{}")).unwrap();
        });
        let other = stream.clone();
        tokio::spawn(async move {
            other.push(Instant::now(), EventKind::Message, Bytes::from_static(b"{}")).unwrap()
        });
        let first = reader.next_while_driving(work.as_mut()).await;
        assert!(matches!(first, StreamItem::Event(event) if event.kind == EventKind::Message));
        tokio::spawn(async move { proceed.send(()).unwrap() });
        let second = reader.next_while_driving(work).await;
        assert!(matches!(second, StreamItem::Event(event) if event.kind == EventKind::Answer));
    }
}
