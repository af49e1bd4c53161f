//! Newline framing for byte streams: one message per line (MCP 2025-11-25, Transports, stdio).
//!
//! Used for the pipes of child processes, for TCP and for QUIC streams. Only LF ends a line, and CR
//! LF is tolerated. Reading is cancel-safe: a dropped `next` loses no bytes. A written frame is
//! exactly one line, with any whitespace. A reader that waits between two lines holds no buffer.

use std::{
    future::poll_fn,
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
};

use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    sync::Semaphore,
    time::timeout,
};

pub use crate::frame::ReadError;
use crate::{
    frame::{CLOSE_TIMEOUT, CloseReason, FrameSink, FrameSource, WriteError},
    message_bound::MessageBound,
    read_buffer::ReadBuffer,
    read_turns::ReadTurns,
};

/// Frames in one vectored write: two slices each, well below the system's IOV_MAX of 1024.
const FRAMES_PER_WRITE: usize = 64;

/// Splits a byte stream into lines.
#[derive(Debug)]
pub struct LineReader<R> {
    reader: R,
    buffer: ReadBuffer,
    turns: ReadTurns,
    /// Number of bytes at the front of `buffer` that contain no LF.
    scanned: usize,
    line_bytes_max: usize,
    at_end: bool,
    /// Set when the last line had no LF.
    is_unterminated: bool,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    /// `line_bytes_max` counts a line without its line end. The reader holds at most about twice
    /// that in memory.
    pub fn new(reader: R, line_bytes_max: usize) -> Self {
        Self {
            reader,
            buffer: ReadBuffer::new(Bytes::new()),
            turns: ReadTurns::new(),
            scanned: 0,
            line_bytes_max,
            at_end: false,
            is_unterminated: false,
        }
    }

    /// Returns the next non-empty line without its line end, or `None` at the end of the stream. An
    /// unterminated last line counts as a line ([`FrameSource::is_unterminated`]).
    ///
    /// Cancel-safe. After an error the start of the next line is unknown, so the reader returns the
    /// error once and then the end of the stream.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        loop {
            self.next_message();
            poll_fn(|context| self.turns.poll_step(context)).await;
            if let Some(line) = self.take_line() {
                if line.len() > self.line_bytes_max {
                    return Err(self.give_up(ReadError::TooLong { limit: self.line_bytes_max }));
                }
                if !line.is_empty() {
                    return Ok(Some(line));
                }
                continue;
            }
            if self.at_end {
                return Ok(None);
            }
            // The one byte over the limit may be a CR before the LF.
            if self.scanned > self.line_bytes_max.saturating_add(1) {
                return Err(self.give_up(ReadError::TooLong { limit: self.line_bytes_max }));
            }
            let (buffer, reader, limit) = (&mut self.buffer, &mut self.reader, self.line_bytes_max);
            match poll_fn(|context| buffer.poll_fill_bounded(reader, context, limit, None)).await {
                Ok(count) => self.at_end = count == 0,
                Err(error) => return Err(self.give_up(error)),
            }
        }
    }

    /// Shares the memory budget for incomplete lines with other readers.
    pub(crate) fn share(&mut self, byte_budget: Arc<Semaphore>) {
        self.buffer.share(byte_budget);
    }

    /// Returns the memory of the last message. [`LineReader::next`] does it too.
    pub(crate) fn next_message(&mut self) {
        self.buffer.next_message();
    }

    /// Returns whether the incomplete message waits for memory of its bound.
    pub(crate) fn waits_for_memory(&self) -> bool {
        self.buffer.waits_for_memory()
    }

    /// Returns the byte stream, for operations other than reading.
    pub(crate) fn get_mut(&mut self) -> &mut R {
        &mut self.reader
    }

    /// Returns a complete line from the buffer. Returns the unterminated rest if the stream has
    /// ended.
    fn take_line(&mut self) -> Option<Bytes> {
        let bytes = self.buffer.bytes();
        let (line_bytes, end_bytes) = match memchr::memchr(b'\n', &bytes[self.scanned..]) {
            Some(at) => (self.scanned + at, 1),
            None if self.at_end && !bytes.is_empty() => (bytes.len(), 0),
            None => {
                self.scanned = bytes.len();
                return None;
            }
        };
        let kept = line_bytes - usize::from(bytes[..line_bytes].ends_with(b"\r"));
        self.scanned = 0;
        self.is_unterminated = end_bytes == 0;
        self.buffer.complete_message(line_bytes);
        Some(self.buffer.take(line_bytes + end_bytes, kept))
    }

    fn give_up(&mut self, error: ReadError) -> ReadError {
        self.at_end = true;
        self.scanned = 0;
        self.buffer.set_bound(None);
        self.buffer.discard();
        error
    }
}

impl<R: AsyncRead + Unpin + Send> FrameSource for LineReader<R> {
    async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        Self::next(self).await
    }

    fn is_unterminated(&self) -> bool {
        self.is_unterminated
    }

    fn set_message_limit(
        &mut self,
        message_bytes_max: usize,
        byte_budget: Option<&Arc<Semaphore>>,
    ) {
        self.line_bytes_max = message_bytes_max;
        self.buffer.set_budget(byte_budget);
    }

    fn bound_messages(&mut self, bound: MessageBound) {
        self.buffer.set_bound(Some(bound));
    }

    async fn drain(&mut self) {
        self.at_end = true;
        self.buffer.set_budget(None);
        self.buffer.set_bound(None);
        self.scanned = 0;
        self.buffer.drain(&mut self.reader).await;
    }
}

/// Writes frames as lines.
#[derive(Debug)]
pub struct LineWriter<W> {
    /// `None` after the close: dropping a pipe ends it.
    writer: Option<W>,
}

impl<W: AsyncWrite + Unpin> LineWriter<W> {
    pub fn new(writer: W) -> Self {
        Self { writer: Some(writer) }
    }

    /// Writes every frame followed by LF, in order, and flushes. Leaves `frames` empty, after an
    /// error too.
    ///
    /// Not cancel-safe: a dropped call may have written part of a frame. The caller must then drop
    /// the writer.
    pub async fn send_all(&mut self, frames: &mut Vec<Bytes>) -> io::Result<()> {
        for frame in frames.iter_mut() {
            if let Some(line) = one_line(frame) {
                *frame = line;
            }
        }
        let written = self.write_lines(frames).await;
        frames.clear();
        written
    }

    async fn write_lines(&mut self, lines: &[Bytes]) -> io::Result<()> {
        let writer = self.writer.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        for batch in lines.chunks(FRAMES_PER_WRITE) {
            let mut slices: Vec<IoSlice<'_>> =
                batch.iter().flat_map(|line| [IoSlice::new(line), IoSlice::new(b"\n")]).collect();
            write_all_vectored(Pin::new(&mut *writer), &mut slices).await?;
        }
        writer.flush().await
    }
}

impl<W: AsyncWrite + Unpin + Send> FrameSink for LineWriter<W> {
    async fn send_all(&mut self, frames: &mut Vec<Bytes>) -> Result<(), WriteError> {
        Ok(Self::send_all(self, frames).await?)
    }

    async fn close(&mut self, _: CloseReason) {
        // Over TLS the shutdown writes, and a peer that reads nothing would block it for ever.
        if let Some(mut writer) = self.writer.take() {
            let _ = timeout(CLOSE_TIMEOUT, writer.shutdown()).await;
        }
    }
}

async fn write_all_vectored<W: AsyncWrite>(
    mut writer: Pin<&mut W>,
    mut slices: &mut [IoSlice<'_>],
) -> io::Result<()> {
    while !slices.is_empty() {
        let count = poll_fn(|context| writer.as_mut().poll_write_vectored(context, slices)).await?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut slices, count);
    }
    Ok(())
}

/// Returns the frame with its line breaks replaced by spaces, or `None` if it has none (the usual
/// case).
///
/// A JSON string cannot contain a raw line break, so every line break is whitespace between tokens.
/// CR is replaced as well, because peers that read text with universal newlines would end the line
/// there.
pub(crate) fn one_line(frame: &Bytes) -> Option<Bytes> {
    memchr::memchr2(b'\n', b'\r', frame)?;
    let mut line = frame.to_vec();
    for byte in &mut line {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    Some(line.into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::message_bound::MessageBudget;

    #[tokio::test]
    async fn a_line_keeps_its_memory_until_the_next_is_requested() {
        let budget = MessageBudget::new(1024 * 1024);
        let (long, short) = ("x".repeat(100_000), "y\n".repeat(1_000_000));
        let text = format!("{long}\n{short}");
        let mut lines = LineReader::new(text.as_bytes(), 200_000);
        lines.bound_messages(MessageBound::new(budget.clone(), Duration::from_secs(1)));
        assert_eq!(lines.next().await.unwrap().unwrap(), long);
        assert!(budget.held_bytes() > 30_000);
        // Later lines in the buffer do not count, so they are few.
        assert!(lines.buffer.bytes().len() <= 64 * 1024, "{}", lines.buffer.bytes().len());
        assert_eq!(lines.next().await.unwrap().unwrap(), "y");
        assert_eq!(budget.held_bytes(), 0);
    }
}
