//! Newline framing for byte streams: one message per line (MCP 2025-11-25, Transports, stdio).
//!
//! Called by the stdio link for the two pipes of a child process. Only LF ends a line; CR LF is tolerated. Reading is
//! cancel-safe: a dropped `next` loses no bytes. A written frame is exactly one line, whatever its whitespace was.

use std::io::{self, IoSlice};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Room asked for at each read; a pipe hands over at most 64 KiB at once.
const READ_BYTES_MIN: usize = 16 * 1024;
/// Frames put into one vectored write: two slices each, well below the system's IOV_MAX of 1024.
const FRAMES_PER_WRITE: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("a line is longer than the {max} bytes allowed")]
    TooLong { max: usize },
    #[error("reading failed")]
    Io(#[from] io::Error),
}

/// Splits a byte stream into lines.
#[derive(Debug)]
pub struct LineReader<R> {
    reader: R,
    buffer: BytesMut,
    /// Bytes at the front of `buffer` already known to hold no LF.
    scanned: usize,
    line_bytes_max: usize,
    at_end: bool,
    too_long: bool,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    /// `line_bytes_max` counts a line without its line end. Memory held is at most about twice that.
    pub fn new(reader: R, line_bytes_max: usize) -> Self {
        Self { reader, buffer: BytesMut::new(), scanned: 0, line_bytes_max, at_end: false, too_long: false }
    }

    /// The next non-empty line without its line end, `None` at the end of the stream; an unterminated last line counts.
    ///
    /// Cancel-safe. After `TooLong` the place of the next frame is unknown, so every later call answers the same.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        loop {
            if self.too_long {
                return Err(ReadError::TooLong { max: self.line_bytes_max });
            }
            if let Some(line) = self.take_line() {
                if line.len() > self.line_bytes_max {
                    self.give_up();
                } else if !line.is_empty() {
                    return Ok(Some(line));
                }
                continue;
            }
            if self.at_end {
                return Ok(None);
            }
            // One byte more than the limit may still be a CR before the LF.
            if self.buffer.len() > self.line_bytes_max.saturating_add(1) {
                self.give_up();
                continue;
            }
            // Doubling keeps the copies of a long line linear; the room is capped because the limit is.
            let room = self.buffer.len().min(self.line_bytes_max).max(READ_BYTES_MIN);
            self.buffer.reserve(room);
            self.at_end = self.reader.read_buf(&mut self.buffer).await? == 0;
        }
    }

    /// A line that is complete in the buffer, or the unterminated rest once the stream has ended.
    fn take_line(&mut self) -> Option<Bytes> {
        let mut line = match memchr::memchr(b'\n', &self.buffer[self.scanned..]) {
            Some(at) => {
                let line = self.buffer.split_to(self.scanned + at);
                self.buffer.advance(1);
                line
            }
            None if self.at_end && !self.buffer.is_empty() => self.buffer.split(),
            None => {
                self.scanned = self.buffer.len();
                return None;
            }
        };
        self.scanned = 0;
        if line.ends_with(b"\r") {
            line.truncate(line.len() - 1);
        }
        Some(line.freeze())
    }

    fn give_up(&mut self) {
        self.too_long = true;
        self.buffer = BytesMut::new();
    }
}

/// Writes frames as lines.
#[derive(Debug)]
pub struct LineWriter<W> {
    writer: W,
}

impl<W: AsyncWrite + Unpin> LineWriter<W> {
    pub fn new(writer: W) -> Self {
        Self { writer }
    }

    /// Writes every frame followed by LF, in order, flushes, and leaves `frames` empty (after an error too).
    ///
    /// Not cancel-safe: a dropped call may have written part of a frame, after which only dropping the writer is right.
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
        for batch in lines.chunks(FRAMES_PER_WRITE) {
            let mut slices: Vec<IoSlice<'_>> = batch.iter().flat_map(|line| [IoSlice::new(line), IoSlice::new(b"\n")]).collect();
            let mut left = slices.as_mut_slice();
            while !left.is_empty() {
                let count = self.writer.write_vectored(left).await?;
                if count == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                IoSlice::advance_slices(&mut left, count);
            }
        }
        self.writer.flush().await
    }
}

/// The frame with its line breaks turned into spaces, or `None` when it has none (the usual case).
///
/// A JSON string cannot contain a raw line break, so every one found is whitespace between tokens. CR is replaced as
/// well: peers that read text with universal newlines would end the line there.
fn one_line(frame: &Bytes) -> Option<Bytes> {
    memchr::memchr2(b'\n', b'\r', frame)?;
    let mut line = frame.to_vec();
    for byte in &mut line {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    Some(line.into())
}
