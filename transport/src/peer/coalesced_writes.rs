//! Collects the frames of many requests, and writes them to the other replica together.
//!
//! Both sides of each connection between replicas use it. The HTTP/2 library flushes after each
//! frame. A separate write costs a TLS record, a system call and a wake-up of the peer. Together
//! they cost more than the frame itself.

use std::{
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker, ready},
};

use futures_util::task::AtomicWaker;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::yield_now,
};

/// Bytes that are collected before a flush. A flush of as many bytes does not yield.
const COLLECTED_BYTES_MAX: usize = 16 * 1024;

/// Wraps a connection. A flush yields to all ready tasks once, so that their frames go along.
#[derive(Debug)]
pub(super) struct CoalescedWrites<S> {
    inner: S,
    collected: Vec<u8>,
    /// Number of collected bytes that `inner` has taken.
    written: usize,
    /// True after the turn of the current flush.
    has_yielded: bool,
    turn: ReadyTasksTurn,
}

/// A yield to the tasks that are ready, which ends only when they have run. Other wake-ups of this
/// task do not end it: each request of another task is one.
#[derive(Debug, Default)]
struct ReadyTasksTurn {
    is_running: bool,
    end: Arc<TurnEnd>,
}

#[derive(Debug, Default)]
struct TurnEnd {
    is_over: AtomicBool,
    task: AtomicWaker,
}

impl Wake for TurnEnd {
    fn wake(self: Arc<Self>) {
        self.is_over.store(true, Ordering::Release);
        self.task.wake();
    }
}

impl ReadyTasksTurn {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.end.task.register(context.waker());
        if !self.is_running {
            self.is_running = true;
            self.end.is_over.store(false, Ordering::Relaxed);
            let end = Waker::from(self.end.clone());
            // One poll is enough: the runtime wakes the turn's end behind the ready tasks.
            let _pending = pin!(yield_now()).poll(&mut Context::from_waker(&end));
        }
        if !self.end.is_over.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        self.is_running = false;
        Poll::Ready(())
    }
}

impl<S> CoalescedWrites<S> {
    pub(super) fn new(inner: S) -> Self {
        Self {
            inner,
            collected: Vec::new(),
            written: 0,
            has_yielded: false,
            turn: ReadyTasksTurn::default(),
        }
    }
}

impl<S: AsyncWrite + Unpin> CoalescedWrites<S> {
    /// Passes all collected bytes to the connection.
    fn poll_write_collected(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.collected.len() {
            let rest = &self.collected[self.written..];
            match ready!(Pin::new(&mut self.inner).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                bytes => self.written += bytes,
            }
        }
        self.collected.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CoalescedWrites<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CoalescedWrites<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.collected.len() >= COLLECTED_BYTES_MAX {
            ready!(self.poll_write_collected(context))?;
        }
        if self.collected.is_empty() && bytes.len() >= COLLECTED_BYTES_MAX {
            return Pin::new(&mut self.inner).poll_write(context, bytes);
        }
        let taken = bytes.len().min(COLLECTED_BYTES_MAX - self.collected.len());
        self.collected.extend_from_slice(&bytes[..taken]);
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let may_yield = (1..COLLECTED_BYTES_MAX).contains(&self.collected.len());
        if may_yield && !self.has_yielded {
            ready!(self.turn.poll(context));
            self.has_yielded = true;
        }
        ready!(self.poll_write_collected(context))?;
        self.has_yielded = false;
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write_collected(context))?;
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    /// Counts the writes that reach the connection.
    struct CountedWrites<S> {
        inner: S,
        writes: usize,
    }

    impl<S: AsyncWrite + Unpin> AsyncWrite for CountedWrites<S> {
        fn poll_write(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let written = ready!(Pin::new(&mut self.inner).poll_write(context, bytes));
            self.writes += 1;
            Poll::Ready(written)
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.inner).poll_flush(context)
        }

        fn poll_shutdown(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.inner).poll_shutdown(context)
        }
    }

    #[tokio::test]
    async fn frames_of_ready_tasks_go_along_with_a_flush() {
        let (ours, mut theirs) = duplex(1024);
        let mut connection = CoalescedWrites::new(CountedWrites { inner: ours, writes: 0 });
        let mut pending = 0;
        for frame in [b"one ", b"two "] {
            connection.write_all(frame).await.unwrap();
            // A wake-up for another frame polls the flush again.
            poll_fn(|context| {
                pending += usize::from(Pin::new(&mut connection).poll_flush(context).is_pending());
                Poll::Ready(())
            })
            .await;
        }
        connection.write_all(b"end").await.unwrap();
        assert_eq!((pending, connection.inner.writes), (2, 0));
        connection.flush().await.unwrap();
        assert_eq!(connection.inner.writes, 1);
        let mut all = [0; 11];
        theirs.read_exact(&mut all).await.unwrap();
        assert_eq!(&all, b"one two end");
    }

    #[tokio::test]
    async fn bytes_of_any_number_arrive_in_order_at_a_slow_peer() {
        let (ours, mut theirs) = duplex(100);
        let sent: Vec<u8> = (0..3 * COLLECTED_BYTES_MAX).map(|index| (index % 251) as u8).collect();
        let expected = sent.clone();
        let reader = tokio::spawn(async move {
            let mut received = Vec::new();
            theirs.read_to_end(&mut received).await.unwrap();
            received
        });
        let mut connection = CoalescedWrites::new(ours);
        for piece in
            [&sent[..10], &sent[10..COLLECTED_BYTES_MAX + 5], &sent[COLLECTED_BYTES_MAX + 5..]]
        {
            connection.write_all(piece).await.unwrap();
        }
        connection.flush().await.unwrap();
        connection.shutdown().await.unwrap();
        assert!(reader.await.unwrap() == expected);
    }

    #[tokio::test]
    async fn a_shutdown_writes_what_was_collected() {
        let (ours, mut theirs) = duplex(64);
        let mut connection = CoalescedWrites::new(ours);
        connection.write_all(b"last").await.unwrap();
        connection.shutdown().await.unwrap();
        let mut received = Vec::new();
        theirs.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"last");
    }
}
