//! The one writer of a connection. The sink writes data frames. The source writes pings, pongs and
//! the answer to a close frame, and must not wait until the sink sends a message.
//!
//! The owner of the lock holds it for one poll. While the sink is writing, it writes control frames
//! between its batches. Otherwise the source writes them itself. Invariants:
//! - Control frames stand between frames, never inside one.
//! - At most [`PONGS_MAX`] answers wait.
//! - A close frame is the last frame written.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use parking_lot::{Mutex, MutexGuard};
use tokio::{io::AsyncWrite, time::Instant};

use super::codec::{self, Mask, Opcode, REASON_BYTES_MAX, Role};
use crate::frame::WriteError;

/// Answers kept for a peer that pings faster than it reads. Above the limit the oldest are dropped,
/// which RFC 6455 (5.5.3) allows.
const PONGS_MAX: usize = 16;

#[derive(Debug)]
pub(super) struct SharedWriter<W> {
    role: Role,
    state: Mutex<WriterState<W>>,
}

#[derive(Debug)]
struct WriterState<W> {
    writer: W,
    pongs: VecDeque<Bytes>,
    ping_due: bool,
    closing: CloseState,
    /// Encoded control frames, possibly written in part.
    encoded: BytesMut,
    needs_flush: bool,
    /// Set while the sink writes a batch. The sink writes control frames at the end of the batch.
    sink_is_writing: bool,
    /// Set while data of the sink waits for the peer to read.
    is_waiting: bool,
    /// Time at which the peer last took data that had waited for it.
    taken_at: Option<Instant>,
    /// Waker of the source while it waits for the sink.
    source: Option<Waker>,
}

#[derive(Debug, PartialEq, Eq)]
enum CloseState {
    Open,
    /// The payload of the close frame that has to be written.
    Pending(Bytes),
    /// The writer has the close frame. No frame may follow.
    Sent,
}

impl<W: AsyncWrite + Unpin> SharedWriter<W> {
    pub(super) fn new(writer: W, role: Role) -> Self {
        let state = WriterState {
            writer,
            pongs: VecDeque::new(),
            ping_due: false,
            closing: CloseState::Open,
            encoded: BytesMut::new(),
            needs_flush: false,
            sink_is_writing: false,
            is_waiting: false,
            taken_at: None,
            source: None,
        };
        Self { role, state: Mutex::new(state) }
    }

    pub(super) fn queue_pong(&self, payload: &[u8]) {
        // Copied, because a waiting answer must not keep the read buffer.
        let payload = Bytes::copy_from_slice(payload);
        let mut state = self.lock();
        if state.pongs.len() == PONGS_MAX {
            state.pongs.pop_front();
        }
        state.pongs.push_back(payload);
    }

    pub(super) fn queue_ping(&self) {
        self.lock().ping_due = true;
    }

    /// Queues a close frame after the current frame. Only the first close frame counts.
    pub(super) fn queue_close(&self, code: Option<u16>, reason: &str) {
        let mut state = self.lock();
        if state.closing == CloseState::Open {
            let mut payload = BytesMut::new();
            if let Some(code) = code {
                payload.extend_from_slice(&code.to_be_bytes());
                payload.extend_from_slice(
                    &reason.as_bytes()[..reason.floor_char_boundary(REASON_BYTES_MAX)],
                );
            }
            state.closing = CloseState::Pending(payload.freeze());
        }
    }

    /// Returns whether this side has queued or sent a close frame. The peer's next close frame is
    /// then the answer to it.
    pub(super) fn is_closing(&self) -> bool {
        self.lock().closing != CloseState::Open
    }

    /// Returns the time at which the peer last took data that had waited for it.
    pub(super) fn taken_at(&self) -> Option<Instant> {
        self.lock().taken_at
    }

    /// Writes the pending control frames for the source. Also returns ready when the sink will
    /// write them.
    pub(super) fn poll_control(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.lock();
        if state.sink_is_writing {
            Poll::Ready(Ok(()))
        } else {
            state.poll_control(self.role, context)
        }
    }

    /// Writes the pending control frames, and also waits for the sink.
    pub(super) fn poll_all_control(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.lock();
        if state.sink_is_writing {
            state.source = Some(context.waker().clone());
            return Poll::Pending;
        }
        state.poll_control(self.role, context)
    }

    /// Writes whole frames for the sink, then the pending control frames, and flushes.
    pub(super) async fn write_frames(&self, frames: &mut [IoSlice<'_>]) -> Result<(), WriteError> {
        if self.is_closing() {
            return Err(WriteError::Closed);
        }
        self.write(frames).await
    }

    /// Writes the remaining control frames, including the close frame.
    pub(super) async fn finish(&self) -> Result<(), WriteError> {
        self.write(&mut []).await
    }

    async fn write(&self, mut frames: &mut [IoSlice<'_>]) -> Result<(), WriteError> {
        if std::mem::replace(&mut self.lock().sink_is_writing, true) {
            // An earlier call was dropped inside a frame, so the peer could not parse any further
            // bytes.
            return Err(WriteError::Closed);
        }
        let mut is_between_frames = true;
        let written: io::Result<()> = poll_fn(|context| {
            let mut state = self.lock();
            if is_between_frames {
                ready!(state.poll_encoded(context))?;
                is_between_frames = false;
            }
            while !frames.is_empty() {
                let count = ready!(state.poll_data(context, frames))?;
                if count == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                IoSlice::advance_slices(&mut frames, count);
            }
            state.needs_flush = true;
            state.poll_control(self.role, context)
        })
        .await;
        let mut state = self.lock();
        state.sink_is_writing = false;
        if written.is_err() {
            state.closing = CloseState::Sent;
        }
        if let Some(source) = state.source.take() {
            source.wake();
        }
        Ok(written?)
    }

    /// Ends the writing half of the connection below.
    pub(super) async fn shut_down(&self) -> io::Result<()> {
        poll_fn(|context| Pin::new(&mut self.lock().writer).poll_shutdown(context)).await
    }

    fn lock(&self) -> MutexGuard<'_, WriterState<W>> {
        self.state.lock()
    }
}

impl<W: AsyncWrite + Unpin> WriterState<W> {
    /// Writes data of the sink.
    fn poll_data(
        &mut self,
        context: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.writer).poll_write_vectored(context, data);
        if std::mem::replace(&mut self.is_waiting, written.is_pending()) && written.is_ready() {
            self.taken_at = Some(Instant::now());
        }
        written
    }

    /// Writes and flushes the pending control frames.
    fn poll_control(&mut self, role: Role, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Frames that came up while the socket was full stay unencoded until then. An encoded pong
        // could no longer be dropped.
        ready!(self.poll_encoded(context))?;
        self.encode(role);
        ready!(self.poll_encoded(context))?;
        if self.needs_flush {
            ready!(Pin::new(&mut self.writer).poll_flush(context))?;
            self.needs_flush = false;
        }
        Poll::Ready(Ok(()))
    }

    fn encode(&mut self, role: Role) {
        if self.closing == CloseState::Sent {
            return;
        }
        for pong in self.pongs.drain(..) {
            codec::put_frame(&mut self.encoded, Opcode::Pong, &pong, mask_for(role));
        }
        if std::mem::take(&mut self.ping_due) {
            codec::put_frame(&mut self.encoded, Opcode::Ping, b"", mask_for(role));
        }
        if let CloseState::Pending(payload) = &self.closing {
            codec::put_frame(&mut self.encoded, Opcode::Close, payload, mask_for(role));
            self.closing = CloseState::Sent;
        }
    }

    fn poll_encoded(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.encoded.is_empty() {
            let count = ready!(Pin::new(&mut self.writer).poll_write(context, &self.encoded))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.encoded.advance(count);
            self.needs_flush = true;
        }
        self.encoded = BytesMut::new();
        Poll::Ready(Ok(()))
    }
}

fn mask_for(role: Role) -> Option<Mask> {
    match role {
        Role::Server => None,
        Role::Client => {
            let mut mask = Mask::default();
            fill_random(&mut mask);
            Some(mask)
        }
    }
}

/// Fills the bytes with random data. The author of the text must not be able to predict masks (RFC
/// 6455, 10.3).
pub(super) fn fill_random(bytes: &mut [u8]) {
    aws_lc_rs::rand::fill(bytes).expect("the system's random generator works");
}
