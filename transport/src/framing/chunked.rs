//! Scans a chunked body (RFC 9112, 7.1): tells data from framing, and finds the end. No I/O.
//!
//! Used for requests by [`super::FramingGuard`], and for responses of backends by the client of
//! `http1_client`.

use memchr::memchr;

/// Size limit of the line before a chunk, extensions included. The limit below it is for all
/// trailers together.
const LINE_BYTES_MAX: usize = 4096;
const TRAILER_BYTES_MAX: usize = 16 * 1024;

/// Rule for white space between the size of a chunk and the end of its line. Some servers pad their
/// sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Padding {
    Refused,
    Allowed,
}

/// Position of the reader in a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkScanner {
    padding: Padding,
    state: ChunkState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkState {
    /// Before the line with the size of a chunk.
    Size,
    /// In a chunk, with the number of bytes left.
    Data(u64),
    /// After the data of a chunk.
    DataEnd,
    /// After the last chunk, with the number of trailer bytes skipped so far.
    Trailers(usize),
    Over,
}

/// Kind of the next bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChunkStep {
    /// Number of framing bytes.
    Overhead(usize),
    /// Number of data bytes.
    Data(usize),
    /// The caller has to read more.
    More,
    Over,
}

impl ChunkScanner {
    pub(crate) fn new(padding: Padding) -> Self {
        Self { padding, state: ChunkState::Size }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state == ChunkState::Over
    }

    /// Returns the number of bytes left in the current chunk, or `None` outside a chunk.
    pub(crate) fn announced(&self) -> Option<u64> {
        match self.state {
            ChunkState::Data(remaining) => Some(remaining),
            _ => None,
        }
    }

    /// Classifies the start of `bytes` and counts it as consumed.
    pub(crate) fn next(&mut self, bytes: &[u8]) -> Result<ChunkStep, &'static str> {
        match self.state {
            ChunkState::Size => {
                let Some(line) =
                    line(bytes, LINE_BYTES_MAX, "the line before a chunk is too long")?
                else {
                    return Ok(ChunkStep::More);
                };
                self.state = match size(line, self.padding)? {
                    0 => ChunkState::Trailers(0),
                    size => ChunkState::Data(size),
                };
                Ok(ChunkStep::Overhead(line.len() + 2))
            }
            ChunkState::Data(_) if bytes.is_empty() => Ok(ChunkStep::More),
            ChunkState::Data(remaining) => {
                let here = usize::try_from(remaining).unwrap_or(usize::MAX).min(bytes.len());
                self.state = if here as u64 == remaining {
                    ChunkState::DataEnd
                } else {
                    ChunkState::Data(remaining - here as u64)
                };
                Ok(ChunkStep::Data(here))
            }
            ChunkState::DataEnd => match bytes.get(..2) {
                Some(b"\r\n") => {
                    self.state = ChunkState::Size;
                    Ok(ChunkStep::Overhead(2))
                }
                Some(_) => Err("a chunk is longer than its stated size"),
                None => Ok(ChunkStep::More),
            },
            ChunkState::Trailers(passed) => {
                let remaining = TRAILER_BYTES_MAX.saturating_sub(passed);
                let Some(line) = line(bytes, remaining, "the trailers are too long")? else {
                    return Ok(ChunkStep::More);
                };
                if !line.is_empty() && !is_field(line) {
                    return Err("a trailer is not a name, a colon and a value");
                }
                self.state = if line.is_empty() {
                    ChunkState::Over
                } else {
                    ChunkState::Trailers(passed + line.len() + 2)
                };
                Ok(ChunkStep::Overhead(line.len() + 2))
            }
            ChunkState::Over => Ok(ChunkStep::Over),
        }
    }
}

/// Returns the next line without its end, or `None` while the line is incomplete.
fn line<'b>(
    bytes: &'b [u8],
    bytes_max: usize,
    too_long: &'static str,
) -> Result<Option<&'b [u8]>, &'static str> {
    let end = memchr(b'\n', &bytes[..bytes.len().min(bytes_max + 2)]);
    let Some(end) = end else {
        return if bytes.len() > bytes_max + 1 { Err(too_long) } else { Ok(None) };
    };
    // Some readers accept a bare newline as a line end and others do not.
    match bytes[..end].strip_suffix(b"\r") {
        Some(line) if memchr(b'\r', line).is_none() => Ok(Some(line)),
        _ => Err("a line of a chunked body does not end with CR LF"),
    }
}

/// Parses the hexadecimal size. Ignores chunk extensions.
fn size(line: &[u8], padding: Padding) -> Result<u64, &'static str> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
    let digits = if padding == Padding::Allowed { digits.trim_ascii_end() } else { digits };
    let is_number =
        !digits.is_empty() && digits.len() <= 16 && digits.iter().all(u8::is_ascii_hexdigit);
    let is_text = line.iter().all(|byte| *byte == b'\t' || !byte.is_ascii_control());
    let text = std::str::from_utf8(digits).ok().filter(|_| is_number && is_text);
    text.and_then(|text| u64::from_str_radix(text, 16).ok())
        .ok_or("the size of a chunk is not a hexadecimal number")
}

fn is_field(line: &[u8]) -> bool {
    let Some(colon) = memchr(b':', line) else { return false };
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let is_value = |byte: &u8| *byte == b'\t' || !byte.is_ascii_control();
    colon > 0 && line[..colon].iter().all(is_token) && line[colon + 1..].iter().all(is_value)
}
