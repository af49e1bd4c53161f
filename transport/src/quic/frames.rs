//! The two halves of a QUIC stream as a source and a sink of messages.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use quinn::{Connection, ConnectionError, RecvStream, SendStream, StoppedError, VarInt};
use tokio::{sync::Semaphore, time::timeout};

use super::CODE_CANCELLED;
use crate::{
    frame::{CLOSE_TIMEOUT, CloseReason, FrameSink, FrameSource, ReadError, WriteError},
    lines::{LineReader, one_line},
    message_bound::MessageBound,
};

/// Messages passed to the connection together, each followed by its line end.
const FRAMES_PER_WRITE: usize = 64;
/// Chunks beyond this are written as copies.
const LARGE_CHUNK_BYTES: usize = 256 * 1024;
/// Longest copy that is written at once.
const COPIED_PIECE_BYTES: usize = 64 * 1024;

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

    /// Shares the memory budget for incomplete messages with other streams.
    pub(super) fn share(&mut self, byte_budget: Arc<Semaphore>) {
        self.lines.share(byte_budget);
    }

    /// Returns the memory of the last message.
    pub(super) fn next_message(&mut self) {
        self.lines.next_message();
    }

    /// Returns whether the incomplete message waits for memory of its bound.
    pub fn waits_for_memory(&self) -> bool {
        self.lines.waits_for_memory()
    }

    /// Stops the peer from sending more on this stream.
    pub fn stop(&mut self, close_reason: CloseReason) {
        // An error means that the stream has already ended.
        let _ = self.stream_mut().stop(VarInt::from_u32(close_reason.quic_code()));
    }

    pub(super) fn stream_mut(&mut self) -> &mut RecvStream {
        self.lines.get_mut()
    }

    /// Converts an error of the stream. An orderly end of the connection is the end of the stream,
    /// not an error.
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
                // The outer error only reports that the connection is lost.
                lost => Err(io::Error::new(error.kind(), printable(lost)).into()),
            },
            _ => Err(error.into()),
        }
    }
}

/// Formats the reason for the end of a connection. The peer wrote part of the text, so control
/// characters are replaced: the text must not look like several log lines.
pub(super) fn printable(why: &(impl std::fmt::Display + ?Sized)) -> String {
    why.to_string()
        .chars()
        .map(|char| if char.is_control() { char::REPLACEMENT_CHARACTER } else { char })
        .collect()
}

fn is_orderly(code: VarInt) -> bool {
    [CloseReason::Done, CloseReason::GoingAway]
        .iter()
        .any(|close_reason| code == VarInt::from_u32(close_reason.quic_code()))
}

impl FrameSource for QuicSource {
    async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        match self.lines.next().await {
            Err(ReadError::Io(error)) => self.judge(error),
            other => other,
        }
    }

    fn is_unterminated(&self) -> bool {
        self.lines.is_unterminated()
    }

    fn set_message_limit(
        &mut self,
        message_bytes_max: usize,
        byte_budget: Option<&Arc<Semaphore>>,
    ) {
        self.lines.set_message_limit(message_bytes_max, byte_budget);
    }

    fn bound_messages(&mut self, bound: MessageBound) {
        self.lines.bound_messages(bound);
    }

    async fn drain(&mut self) {
        self.lines.drain().await;
    }
}

/// Scope of a close of the sink.
#[derive(Debug)]
pub(super) enum CloseScope {
    /// Closes the whole connection. For the control stream.
    Connection(Connection),
    /// Closes this stream only.
    Stream,
}

/// Sends messages on a stream.
#[derive(Debug)]
pub struct QuicSink {
    stream: SendStream,
    scope: CloseScope,
    stall_max: Duration,
    /// Set while a message may be on the stream in part, after a dropped or failed call.
    is_cut: bool,
    /// Set once the sink has announced its end.
    is_finished: bool,
}

impl QuicSink {
    pub(super) fn new(stream: SendStream, scope: CloseScope, stall_max: Duration) -> Self {
        Self { stream, scope, stall_max, is_cut: false, is_finished: false }
    }

    /// Announces the end of the stream. Data already sent still arrives. A stream that ends inside
    /// a message is reset instead.
    pub fn finish(&mut self) {
        self.is_finished = true;
        // An error means that the stream is already finished or reset.
        let _ = if self.is_cut { self.stream.reset(CODE_CANCELLED) } else { self.stream.finish() };
    }

    /// Finishes the stream, and waits until the peer has received everything or takes no more. The
    /// end of a connection discards what has not arrived.
    pub async fn finish_delivered(&mut self) {
        self.finish();
        if !self.is_cut {
            // An error means that the connection has ended.
            let _ = self.stream.stopped().await;
        }
    }

    pub(super) fn stream_mut(&mut self) -> &mut SendStream {
        &mut self.stream
    }

    /// Resolves with a code when the peer stops the stream, and with `None` when the peer has
    /// received everything.
    pub(super) fn stopped(
        &self,
    ) -> impl Future<Output = Result<Option<VarInt>, StoppedError>> + Send + use<> {
        self.stream.stopped()
    }

    async fn write(&mut self, chunks: &mut [Bytes]) -> Result<(), WriteError> {
        self.is_cut = true;
        let mut unsent = chunks;
        while let Some(first) = unsent.first_mut() {
            if first.len() > LARGE_CHUNK_BYTES {
                self.write_copied(first).await?;
                unsent = &mut unsent[1..];
                continue;
            }
            let small = unsent.iter().take_while(|chunk| chunk.len() <= LARGE_CHUNK_BYTES).count();
            let written = self.write_some(&mut unsent[..small]).await?;
            unsent = &mut unsent[written..];
        }
        self.is_cut = false;
        Ok(())
    }

    /// Writes a large chunk as copies of its pieces. The library keeps each piece until the peer has
    /// acknowledged it. A slice would keep the whole chunk for as long.
    async fn write_copied(&mut self, chunk: &mut Bytes) -> Result<(), WriteError> {
        while !chunk.is_empty() {
            let piece = chunk.split_to(chunk.len().min(COPIED_PIECE_BYTES));
            let mut copy = [Bytes::copy_from_slice(&piece)];
            while self.write_some(&mut copy).await? == 0 {}
        }
        Ok(())
    }

    /// Writes as much as the peer takes. Returns how many chunks are written completely. The first of
    /// the others has lost what was written of it.
    async fn write_some(&mut self, chunks: &mut [Bytes]) -> Result<usize, WriteError> {
        let limit = self.stall_max;
        let written = timeout(limit, self.stream.write_chunks(chunks))
            .await
            .map_err(|_| WriteError::Stalled { limit })?;
        let written = written.map_err(|error| match error {
            quinn::WriteError::Stopped(_) | quinn::WriteError::ClosedStream => WriteError::Closed,
            quinn::WriteError::ConnectionLost(
                ConnectionError::ApplicationClosed(_) | ConnectionError::LocallyClosed,
            ) => WriteError::Closed,
            error => WriteError::Io(error.into()),
        })?;
        Ok(written.chunks)
    }
}

/// The library finishes a dropped stream as if it were complete. The drop resets an unfinished
/// stream of a request instead, so that the peer sees a cancellation.
impl Drop for QuicSink {
    fn drop(&mut self) {
        let is_given_up = !self.is_finished && matches!(self.scope, CloseScope::Stream);
        if self.is_cut || is_given_up {
            // An error means that the stream is already reset.
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
                // Small ones are not copied: the connection keeps them until they are acknowledged.
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

    async fn close(&mut self, close_reason: CloseReason) {
        let code = VarInt::from_u32(close_reason.quic_code());
        match &self.scope {
            CloseScope::Stream if close_reason == CloseReason::Done => self.finish(),
            CloseScope::Stream => {
                self.is_finished = true;
                let _ = self.stream.reset(code);
            }
            CloseScope::Connection(connection) => {
                let connection = connection.clone();
                self.finish();
                // Closing the connection discards data that has not arrived.
                let _ = timeout(CLOSE_TIMEOUT, self.stream.stopped()).await;
                connection.close(code, close_reason.reason().as_bytes());
            }
        }
    }
}

/// Cancels an exchange in both directions.
pub(super) fn cancel(source: &mut QuicSource, sink: &mut QuicSink) {
    // An error means that this direction has already ended.
    sink.is_finished = true;
    let _ = sink.stream_mut().reset(CODE_CANCELLED);
    let _ = source.stream_mut().stop(CODE_CANCELLED);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_38_a_close_reason_of_a_peer_cannot_add_a_log_line() {
        assert_eq!(
            printable("bye\n2026-01-01 ERROR forged \u{1b}[31m\u{7f}"),
            "bye\u{fffd}2026-01-01 ERROR forged \u{fffd}[31m\u{fffd}"
        );
    }
}
