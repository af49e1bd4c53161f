//! Delays the first write after a read, so that data on other connections is read first.
//!
//! Used by the HTTP listener round its connections, by `http1_server` and by the client of
//! `http1_client`. A write to a sleeping peer has to wake it, which costs more than the write
//! itself. If many connections are ready, alternating reads and writes wakes a peer for each
//! message. If the process first reads all data and then writes, the peer is awake for all writes
//! except the first. Without other ready connections the delay costs one poll of the sockets.

use std::{
    io,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::yield_now,
};

/// Larger writes cost more than waking the peer, and the peer can start earlier without a delay.
const WAITING_BYTES_MAX: usize = 16 * 1024;

/// Yields to other ready tasks once, unless the write has more than [`WAITING_BYTES_MAX`] bytes.
pub(crate) async fn yield_before_write(bytes: usize) {
    if bytes <= WAITING_BYTES_MAX {
        yield_now().await;
    }
}

/// Wraps a connection. The first write after a read yields to all ready tasks.
#[derive(Debug)]
pub struct WriteBatching<S> {
    inner: S,
    turn: YieldState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum YieldState {
    Ready,
    /// Data was read and not answered yet, so the next write yields first.
    YieldFirst,
    /// The yield is done. The next write happens even if more data is read meanwhile.
    Yielded,
}

impl<S> WriteBatching<S> {
    pub fn new(inner: S) -> Self {
        Self { inner, turn: YieldState::Ready }
    }

    pub fn into_inner(self) -> S {
        self.inner
    }

    /// Returns ready after other ready tasks had their turn.
    fn poll_yield(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.turn == YieldState::YieldFirst {
            self.turn = YieldState::Yielded;
            // One poll is enough: it schedules this task again behind the tasks that are ready by
            // then.
            return pin!(yield_now()).poll(context);
        }
        self.turn = YieldState::Ready;
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteBatching<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        if read.is_ready() && self.turn == YieldState::Ready {
            self.turn = YieldState::YieldFirst;
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteBatching<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_yield(context));
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_yield(context));
        Pin::new(&mut self.inner).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, sync::Arc};

    use parking_lot::Mutex;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
        task::JoinSet,
    };

    use super::*;

    #[tokio::test]
    async fn a_write_waits_only_once_for_reads() {
        let (ours, mut theirs) = duplex(64);
        let mut connection = WriteBatching::new(ours);
        let (mut byte, mut pending) = ([0], 0);
        theirs.write_all(b"ab").await.unwrap();
        connection.read_exact(&mut byte).await.unwrap();
        poll_fn(|context| {
            pending +=
                usize::from(Pin::new(&mut connection).poll_write(context, b"c").is_pending());
            Poll::Ready(())
        })
        .await;
        connection.read_exact(&mut byte).await.unwrap();
        let written =
            poll_fn(|context| Poll::Ready(Pin::new(&mut connection).poll_write(context, b"c")))
                .await;
        assert!(pending == 1 && matches!(written, Poll::Ready(Ok(1))));
    }

    #[tokio::test]
    async fn all_available_data_is_read_before_the_first_answer_is_written() {
        let events = Arc::<Mutex<Vec<&str>>>::default();
        let (mut serving, mut peers) = (JoinSet::new(), Vec::new());
        for _ in 0..3 {
            let (ours, mut theirs) = duplex(64);
            theirs.write_all(b"ask").await.unwrap();
            let (events, mut connection) = (events.clone(), WriteBatching::new(ours));
            serving.spawn(async move {
                let mut requests = [0; 3];
                for _ in 0..2 {
                    connection.read_exact(&mut requests).await.unwrap();
                    events.lock().push("read");
                    connection.write_all(&requests).await.unwrap();
                    events.lock().push("written");
                }
            });
            peers.push(theirs);
        }
        let mut answer = [0; 3];
        for peer in &mut peers {
            peer.read_exact(&mut answer).await.unwrap();
        }
        assert_eq!(*events.lock(), ["read", "read", "read", "written", "written", "written"]);
        for peer in &mut peers {
            peer.write_all(b"ask").await.unwrap();
            peer.read_exact(&mut answer).await.unwrap();
        }
        serving.join_all().await;
    }
}
