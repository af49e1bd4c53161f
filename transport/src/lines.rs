//! Newline framing for byte streams: one message per line (MCP 2025-11-25, Transports, stdio).
//!
//! Used for the pipes of child processes, for TCP and for QUIC streams. Only LF ends a line; CR LF is tolerated. Reading is
//! cancel-safe: a dropped `next` loses no bytes. A written frame is exactly one line, whatever its whitespace was. A reader that
//! waits between two lines holds no buffer.

use std::{
    io::{self, IoSlice},
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

pub use crate::frame::ReadError;
use crate::frame::{CLOSE_TIMEOUT, FrameSink, FrameSource, Goodbye, WriteError};

/// Room asked for at the first read. A read that fills its room doubles the next one, up to the maximum.
const READ_BYTES_MIN: usize = 8 * 1024;
const READ_BYTES_MAX: usize = 64 * 1024;
/// A line that came alone is copied out up to this size: whoever keeps it then does not keep the read buffer, which is used again.
const COPIED_LINE_BYTES_MAX: usize = 4 * 1024;
/// Frames put into one vectored write: two slices each, well below the system's IOV_MAX of 1024.
const FRAMES_PER_WRITE: usize = 64;

/// Splits a byte stream into lines.
#[derive(Debug)]
pub struct LineReader<R> {
    reader: R,
    buffer: BytesMut,
    /// Bytes at the front of `buffer` already known to hold no LF.
    scanned: usize,
    line_bytes_max: usize,
    read_bytes: usize,
    at_end: bool,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    /// `line_bytes_max` counts a line without its line end. Memory held is at most about twice that.
    pub fn new(reader: R, line_bytes_max: usize) -> Self {
        Self { reader, buffer: BytesMut::new(), scanned: 0, line_bytes_max, read_bytes: READ_BYTES_MIN, at_end: false }
    }

    /// The next non-empty line without its line end, `None` at the end of the stream; an unterminated last line counts.
    ///
    /// Cancel-safe. After an error the place of the next line is unknown: it is said once, and the stream has ended.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        loop {
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
            // One byte more than the limit may still be a CR before the LF.
            if self.buffer.len() > self.line_bytes_max.saturating_add(1) {
                return Err(self.give_up(ReadError::TooLong { limit: self.line_bytes_max }));
            }
            match std::future::poll_fn(|context| self.poll_fill(context)).await {
                Ok(count) => self.at_end = count == 0,
                Err(error) => return Err(self.give_up(error.into())),
            }
        }
    }

    /// Where the bytes come from.
    pub fn get_ref(&self) -> &R {
        &self.reader
    }

    /// Reads once. The buffer is given back while there is nothing to keep in it: most connections wait most of the time.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // Doubling keeps the copies of a long line linear; the room is capped because the limit is.
        let room = self.buffer.len().min(self.line_bytes_max).max(self.read_bytes);
        self.buffer.reserve(room);
        let room = self.buffer.capacity() - self.buffer.len();
        let polled = pin!(self.reader.read_buf(&mut self.buffer)).poll(context);
        if polled.is_pending() {
            self.read_bytes = READ_BYTES_MIN;
            if self.buffer.is_empty() {
                self.buffer = BytesMut::new();
            }
        }
        let count = ready!(polled)?;
        if count == room {
            self.read_bytes = (self.read_bytes * 2).min(READ_BYTES_MAX);
        }
        Poll::Ready(Ok(count))
    }

    /// A line that is complete in the buffer, or the unterminated rest once the stream has ended.
    fn take_line(&mut self) -> Option<Bytes> {
        let (line_bytes, end_bytes) = match memchr::memchr(b'\n', &self.buffer[self.scanned..]) {
            Some(at) => (self.scanned + at, 1),
            None if self.at_end && !self.buffer.is_empty() => (self.buffer.len(), 0),
            None => {
                self.scanned = self.buffer.len();
                return None;
            }
        };
        self.scanned = 0;
        let kept = line_bytes - usize::from(self.buffer[..line_bytes].ends_with(b"\r"));
        let came_alone = line_bytes + end_bytes == self.buffer.len();
        if came_alone && kept <= COPIED_LINE_BYTES_MAX {
            let line = Bytes::copy_from_slice(&self.buffer[..kept]);
            self.buffer.clear();
            return Some(line);
        }
        let mut line = self.buffer.split_to(line_bytes);
        self.buffer.advance(end_bytes);
        line.truncate(kept);
        Some(line.freeze())
    }

    fn give_up(&mut self, error: ReadError) -> ReadError {
        self.at_end = true;
        self.scanned = 0;
        self.buffer = BytesMut::new();
        error
    }
}

impl<R: AsyncRead + Unpin + Send> FrameSource for LineReader<R> {
    async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        Self::next(self).await
    }

    async fn drain(&mut self) {
        self.at_end = true;
        self.scanned = 0;
        loop {
            self.buffer.clear();
            match std::future::poll_fn(|context| self.poll_fill(context)).await {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
        }
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
            write_all_vectored(Pin::new(&mut self.writer), &mut slices).await?;
        }
        self.writer.flush().await
    }
}

impl<W: AsyncWrite + Unpin + Send> FrameSink for LineWriter<W> {
    async fn send_all(&mut self, frames: &mut Vec<Bytes>) -> Result<(), WriteError> {
        Ok(Self::send_all(self, frames).await?)
    }

    async fn close(&mut self, _: Goodbye) {
        // Over TLS this writes, and a peer that reads nothing would keep us for ever.
        let _ = timeout(CLOSE_TIMEOUT, self.writer.shutdown()).await;
    }
}

async fn write_all_vectored<W: AsyncWrite>(mut writer: Pin<&mut W>, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    while !slices.is_empty() {
        let count = std::future::poll_fn(|context| writer.as_mut().poll_write_vectored(context, slices)).await?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut slices, count);
    }
    Ok(())
}

/// The frame with its line breaks turned into spaces, or `None` when it has none (the usual case).
///
/// A JSON string cannot contain a raw line break, so every one found is whitespace between tokens. CR is replaced as
/// well: peers that read text with universal newlines would end the line there.
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
