//! A body in chunks (RFC 9112, 7.1), taken apart. No I/O.

use bytes::{Buf as _, Bytes, BytesMut};

/// Of the line before a chunk, extensions included, and of all trailers together.
const LINE_BYTES_MAX: usize = 4096;
const TRAILER_BYTES_MAX: usize = 16 * 1024;

/// Where in the body the reader is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chunks {
    /// Before the line that tells a chunk's size.
    Size,
    /// In a chunk of which so much is left.
    Data(u64),
    /// Behind it.
    DataEnd,
    /// Behind the last one: so many bytes of trailers were passed over.
    Trailers(usize),
    Over,
}

/// What the next bytes are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Data(Bytes),
    /// More has to be read.
    More,
    Over,
}

impl Chunks {
    /// Takes what is next off `buffer`.
    pub(super) fn next(&mut self, buffer: &mut BytesMut) -> Result<Piece, &'static str> {
        loop {
            match *self {
                Self::Size => {
                    let Some(line) = take_line(buffer, LINE_BYTES_MAX, "the line before a chunk is too long")? else {
                        return Ok(Piece::More);
                    };
                    *self = match size(&line)? {
                        0 => Self::Trailers(0),
                        size => Self::Data(size),
                    };
                }
                Self::Data(0) => *self = Self::DataEnd,
                Self::Data(_) if buffer.is_empty() => return Ok(Piece::More),
                Self::Data(left) => {
                    let here = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
                    *self = Self::Data(left - here as u64);
                    return Ok(Piece::Data(buffer.split_to(here).freeze()));
                }
                Self::DataEnd => match buffer.get(..2) {
                    Some(b"\r\n") => {
                        buffer.advance(2);
                        *self = Self::Size;
                    }
                    Some(_) => return Err("a chunk is longer than was said"),
                    None => return Ok(Piece::More),
                },
                Self::Trailers(passed) => {
                    let left = TRAILER_BYTES_MAX.saturating_sub(passed);
                    let Some(line) = take_line(buffer, left, "the trailers are too long")? else { return Ok(Piece::More) };
                    *self = if line.is_empty() { Self::Over } else { Self::Trailers(passed + line.len() + 2) };
                }
                Self::Over => return Ok(Piece::Over),
            }
        }
    }
}

/// A line without its end; `None` while the end is not there.
fn take_line(buffer: &mut BytesMut, bytes_max: usize, too_long: &'static str) -> Result<Option<BytesMut>, &'static str> {
    let end = memchr::memchr(b'\n', &buffer[..buffer.len().min(bytes_max + 2)]);
    let Some(end) = end else { return if buffer.len() > bytes_max { Err(too_long) } else { Ok(None) } };
    // A bare newline is an end to some and none to others.
    if end == 0 || buffer[end - 1] != b'\r' {
        return Err("a line of a chunked body ends in half a line end");
    }
    let mut line = buffer.split_to(end + 1);
    line.truncate(end - 1);
    Ok(Some(line))
}

/// Hexadecimal, with extensions behind it that nobody here knows.
fn size(line: &[u8]) -> Result<u64, &'static str> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii_end();
    let is_number = !digits.is_empty() && digits.len() <= 16 && digits.iter().all(u8::is_ascii_hexdigit);
    let text = std::str::from_utf8(digits).ok().filter(|_| is_number);
    text.and_then(|text| u64::from_str_radix(text, 16).ok()).ok_or("a chunk's size is no number")
}
