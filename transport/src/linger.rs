//! Closes a connection whose peer may still be sending. Closing it at once could destroy the last
//! answer.
//!
//! Used in the server's role by `http1_server` and [`crate::framing`], after the answer to a
//! request that was not read to its end.

use std::{
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, ReadBuf},
    time::{Instant, Sleep},
};

/// Most bytes read and discarded. Most clients look for the answer only after they have sent
/// everything.
const BYTES_MAX: usize = 64 * 1024 * 1024;
const TIME_MAX: Duration = Duration::from_secs(5);
/// A peer that sends nothing for this long has no more to send.
const SILENCE_MAX: Duration = Duration::from_secs(1);
const PIECE_BYTES: usize = 16 * 1024;

/// Reads and discards data within these bounds.
#[derive(Debug)]
pub(crate) struct Linger {
    remaining: usize,
    end: Instant,
    silence: Pin<Box<Sleep>>,
}

impl Linger {
    pub(crate) fn new() -> Self {
        Self {
            remaining: BYTES_MAX,
            end: Instant::now() + TIME_MAX,
            silence: Box::pin(tokio::time::sleep(SILENCE_MAX)),
        }
    }

    /// Returns ready when the connection may be closed.
    pub(crate) fn poll(
        &mut self,
        reader: &mut (impl AsyncRead + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let mut buffer = [const { MaybeUninit::uninit() }; PIECE_BYTES];
        while self.remaining > 0 {
            let mut piece = ReadBuf::uninit(&mut buffer);
            match Pin::new(&mut *reader).poll_read(context, &mut piece) {
                Poll::Ready(Ok(())) if !piece.filled().is_empty() => {
                    self.remaining = self.remaining.saturating_sub(piece.filled().len());
                    self.silence.as_mut().reset(self.end.min(Instant::now() + SILENCE_MAX));
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return self.silence.as_mut().poll(context),
            }
        }
        Poll::Ready(())
    }
}
