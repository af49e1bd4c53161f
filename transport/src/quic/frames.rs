//! The two halves of a stream as a source and a sink of messages.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use quinn::{Connection, ConnectionError, RecvStream, SendStream, StoppedError, VarInt};
use tokio::{sync::Semaphore, time::timeout};

use super::CODE_CANCELLED;
use crate::{
    frame::{CLOSE_TIMEOUT, CloseReason, FrameSink, FrameSource, ReadError, WriteError},
    lines::{LineReader, one_line},
};

/// Messages handed to the connection together, each followed by its line end.
const FRAMES_PER_WRITE: usize = 64;

/// Receives the messages of a stream.
#[derive(Debug)]
pub struct QuicSource {
    lines: LineReader<RecvStream>,
    silence_max: Duration,
}

impl QuicSource {
    pub(super) fn new(stream: RecvStream, message_bytes_max: usize, silence_max: Duration) -> Self {
        Self { lines: LineReader::new(stream, message_bytes_max), silence_max }
    }

    /// Shares the room for messages that are not whole yet with other streams.
    pub(super) fn share(&mut self, room: Arc<Semaphore>) {
        self.lines.share(room);
    }

    /// Takes nothing more.
    pub fn stop(&mut self, goodbye: CloseReason) {
        // An error says that it has ended anyway.
        let _ = self.stream_mut().stop(VarInt::from_u32(goodbye.quic_code()));
    }

    pub(super) fn stream_mut(&mut self) -> &mut RecvStream {
        self.lines.get_mut()
    }

    /// What an error of the stream means. The end of the connection by agreement is an end and no error.
    fn judge(&self, error: io::Error) -> Result<Option<Bytes>, ReadError> {
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<quinn::ReadError>());
        match cause {
            Some(quinn::ReadError::Reset(_)) => Err(ReadError::Cancelled),
            Some(quinn::ReadError::ConnectionLost(lost)) => match lost {
                ConnectionError::ApplicationClosed(closed) if is_orderly(closed.error_code) => {
                    Ok(None)
                }
                ConnectionError::ApplicationClosed(closed) => {
                    let reason = String::from_utf8_lossy(&closed.reason).into_owned();
                    Err(ReadError::Closed { code: closed.error_code.into_inner(), reason })
                }
                ConnectionError::LocallyClosed => Ok(None),
                ConnectionError::TimedOut => {
                    Err(ReadError::IdleTimeout { limit: self.silence_max })
                }
                // The outer error only says that the connection is lost.
                lost => Err(io::Error::new(error.kind(), printable(lost)).into()),
            },
            _ => Err(error.into()),
        }
    }
}

/// What ended a connection, some of it in its peer's words: these go to logs, and must not look like lines of them.
pub(super) fn printable(why: &(impl std::fmt::Display + ?Sized)) -> String {
    why.to_string()
        .chars()
        .map(|char| if char.is_control() { char::REPLACEMENT_CHARACTER } else { char })
        .collect()
}

fn is_orderly(code: VarInt) -> bool {
    [CloseReason::Done, CloseReason::GoingAway]
        .iter()
        .any(|goodbye| code == VarInt::from_u32(goodbye.quic_code()))
}

impl FrameSource for QuicSource {
    async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        match self.lines.next().await {
            Err(ReadError::Io(error)) => self.judge(error),
            other => other,
        }
    }

    fn is_unended(&self) -> bool {
        self.lines.is_unended()
    }

    fn allow(&mut self, message_bytes_max: usize, room: Option<&Arc<Semaphore>>) {
        self.lines.allow(message_bytes_max, room);
    }

    async fn drain(&mut self) {
        self.lines.drain().await;
    }
}

/// What ends when the sink is closed.
#[derive(Debug)]
pub(super) enum CloseScope {
    /// The control stream: the connection with everything on it.
    Connection(Connection),
    /// The stream alone.
    Stream,
}

/// Sends messages on a stream.
#[derive(Debug)]
pub struct QuicSink {
    stream: SendStream,
    scope: CloseScope,
    stall_max: Duration,
    /// A call that was dropped, or failed, has left half a message on the stream.
    is_cut: bool,
    /// It was said that nothing more comes.
    is_finished: bool,
}

impl QuicSink {
    pub(super) fn new(stream: SendStream, scope: CloseScope, stall_max: Duration) -> Self {
        Self { stream, scope, stall_max, is_cut: false, is_finished: false }
    }

    /// Nothing more will be sent; what was sent arrives. A stream with half a message on it is reset instead.
    pub fn finish(&mut self) {
        self.is_finished = true;
        // An error says that it is finished or given up already.
        let _ = if self.is_cut { self.stream.reset(CODE_CANCELLED) } else { self.stream.finish() };
    }

    pub(super) fn stream_mut(&mut self) -> &mut SendStream {
        &mut self.stream
    }

    /// Resolves with a code when the peer wants no more of it, with none when it has all of it.
    pub(super) fn stopped(
        &self,
    ) -> impl Future<Output = Result<Option<VarInt>, StoppedError>> + Send + use<> {
        self.stream.stopped()
    }

    async fn write(&mut self, chunks: &mut [Bytes]) -> Result<(), WriteError> {
        let mut left = chunks;
        self.is_cut = true;
        while !left.is_empty() {
            let limit = self.stall_max;
            let written = timeout(limit, self.stream.write_chunks(left))
                .await
                .map_err(|_| WriteError::Stalled { limit })?;
            let written = written.map_err(|error| match error {
                quinn::WriteError::Stopped(_) | quinn::WriteError::ClosedStream => {
                    WriteError::Closed
                }
                quinn::WriteError::ConnectionLost(
                    ConnectionError::ApplicationClosed(_) | ConnectionError::LocallyClosed,
                ) => WriteError::Closed,
                error => WriteError::Io(error.into()),
            })?;
            left = &mut left[written.chunks..];
        }
        self.is_cut = false;
        Ok(())
    }
}

/// The library finishes a stream that is merely dropped, as if all had been said. That of a request which nobody finished was given
/// up, whatever is on it.
impl Drop for QuicSink {
    fn drop(&mut self) {
        let is_given_up = !self.is_finished && matches!(self.scope, CloseScope::Stream);
        if self.is_cut || is_given_up {
            // An error says that it was given up already.
            let _ = self.stream.reset(CODE_CANCELLED);
        }
    }
}

impl FrameSink for QuicSink {
    async fn send_all(&mut self, frames: &mut Vec<Bytes>) -> Result<(), WriteError> {
        let mut written = Ok(());
        let mut chunks = Vec::with_capacity(frames.len().min(FRAMES_PER_WRITE) * 2);
        for batch in frames.chunks(FRAMES_PER_WRITE) {
            for frame in batch {
                // Not copied: the connection keeps them until they are acknowledged.
                chunks.extend([
                    one_line(frame).unwrap_or_else(|| frame.clone()),
                    Bytes::from_static(b"\n"),
                ]);
            }
            written = self.write(&mut chunks).await;
            if written.is_err() {
                break;
            }
            chunks.clear();
        }
        frames.clear();
        written
    }

    async fn close(&mut self, goodbye: CloseReason) {
        let code = VarInt::from_u32(goodbye.quic_code());
        match &self.scope {
            CloseScope::Stream if goodbye == CloseReason::Done => self.finish(),
            CloseScope::Stream => {
                self.is_finished = true;
                let _ = self.stream.reset(code);
            }
            CloseScope::Connection(connection) => {
                let connection = connection.clone();
                self.finish();
                // Closing the connection throws away what has not arrived.
                let _ = timeout(CLOSE_TIMEOUT, self.stream.stopped()).await;
                connection.close(code, goodbye.reason().as_bytes());
            }
        }
    }
}

/// Gives up an exchange in both directions.
pub(super) fn cancel(source: &mut QuicSource, sink: &mut QuicSink) {
    // An error says that this direction has ended anyway.
    sink.is_finished = true;
    let _ = sink.stream_mut().reset(CODE_CANCELLED);
    let _ = source.stream_mut().stop(CODE_CANCELLED);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_38_what_a_peer_says_at_the_end_is_no_line_of_a_log() {
        assert_eq!(
            printable("bye\n2026-01-01 ERROR forged \u{1b}[31m\u{7f}"),
            "bye\u{fffd}2026-01-01 ERROR forged \u{fffd}[31m\u{fffd}"
        );
    }
}
