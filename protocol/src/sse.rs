//! Reader and writers of server-sent events.
//!
//! The HTTP listener writes them, the HTTP client reads them. The parser takes bytes in any
//! portions and never holds more than one event's limit beyond the pushed bytes. It differs from
//! the HTML standard in one point: it reports an event with only an id or a retry time too. MCP
//! gives both a meaning.

use bytes::Bytes;

/// U+FEFF in UTF-8, which may stand before the first line.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// An SSE stream whose rest cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// One event is larger than the limit.
    #[error("event is larger than the limit of {max} bytes")]
    TooLarge {
        /// Bytes allowed.
        max: usize,
    },
    /// Not UTF-8.
    #[error("event stream is not valid UTF-8")]
    NotUtf8,
}

/// One event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// `event`, when given.
    pub event: Option<String>,
    /// The `data` lines joined by line feeds; `None` without any.
    pub data: Option<Bytes>,
    /// `id`, when given; may be empty.
    pub id: Option<String>,
    /// `retry` in milliseconds.
    pub retry: Option<u64>,
}

/// An incremental parser.
#[derive(Debug)]
pub struct SseParser {
    event_bytes_max: usize,
    /// Bytes pushed and not yet read; `at` is the first of them that matters.
    buffer: Vec<u8>,
    at: usize,
    /// Index at which the search for the end of the line at `at` continues.
    searched: usize,
    first_line: bool,
    /// The last line ended with CR at the very end of the buffer, so a LF may still belong to it.
    skip_line_feed: bool,
    event: Option<String>,
    data: Option<Vec<u8>>,
    id: Option<String>,
    retry: Option<u64>,
    event_bytes: usize,
    failed: Option<SseError>,
}

impl SseParser {
    /// Creates a parser that refuses events larger than `event_bytes_max`.
    pub fn new(event_bytes_max: usize) -> Self {
        Self {
            event_bytes_max,
            buffer: Vec::new(),
            at: 0,
            searched: 0,
            first_line: true,
            skip_line_feed: false,
            event: None,
            data: None,
            id: None,
            retry: None,
            event_bytes: 0,
            failed: None,
        }
    }

    /// Adds bytes of the stream. The caller takes all events before it pushes more, so that the
    /// buffer stays small.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        if self.at > 0 {
            self.buffer.drain(..self.at);
            self.searched -= self.at;
            self.at = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next complete event. After an error there are no more.
    pub fn next_event(&mut self) -> Result<Option<SseEvent>, SseError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let outcome = self.read_event();
        if let Err(error) = outcome {
            self.failed = Some(error);
            self.buffer = Vec::new();
            (self.at, self.searched) = (0, 0);
        }
        outcome
    }

    fn read_event(&mut self) -> Result<Option<SseEvent>, SseError> {
        while let Some((start, end)) = self.next_line() {
            self.event_bytes += end - start;
            if self.event_bytes > self.event_bytes_max {
                return Err(SseError::TooLarge { max: self.event_bytes_max });
            }
            if start < end {
                self.take_line(start, end)?;
                continue;
            }
            self.event_bytes = 0;
            if let Some(event) = self.dispatch() {
                return Ok(Some(event));
            }
        }
        if self.event_bytes + self.unread_line().len() > self.event_bytes_max {
            return Err(SseError::TooLarge { max: self.event_bytes_max });
        }
        Ok(None)
    }

    /// Returns the bytes of the line that has not ended. A byte order mark, or the start of one, is
    /// not part of the first line.
    fn unread_line(&self) -> &[u8] {
        let unread = &self.buffer[self.at..];
        if !self.first_line {
            return unread;
        }
        unread.strip_prefix(BYTE_ORDER_MARK).unwrap_or(match unread {
            partial if BYTE_ORDER_MARK.starts_with(partial) => &[],
            line => line,
        })
    }

    /// Returns the range of the next whole line, without its end.
    fn next_line(&mut self) -> Option<(usize, usize)> {
        if self.skip_line_feed && self.at < self.buffer.len() {
            self.skip_line_feed = false;
            if self.buffer[self.at] == b'\n' {
                self.at += 1;
            }
        }
        self.searched = self.searched.max(self.at);
        let Some(found) = memchr::memchr2(b'\r', b'\n', &self.buffer[self.searched..]) else {
            self.searched = self.buffer.len();
            return None;
        };
        let end = self.searched + found;
        let mut start = self.at;
        self.at = end + 1;
        if self.buffer[end] == b'\r' {
            match self.buffer.get(self.at) {
                Some(b'\n') => self.at += 1,
                Some(_) => {}
                None => self.skip_line_feed = true,
            }
        }
        self.searched = self.at;
        if std::mem::take(&mut self.first_line)
            && self.buffer[start..end].starts_with(BYTE_ORDER_MARK)
        {
            start += BYTE_ORDER_MARK.len();
        }
        Some((start, end))
    }

    fn take_line(&mut self, start: usize, end: usize) -> Result<(), SseError> {
        let line = std::str::from_utf8(&self.buffer[start..end]).map_err(|_| SseError::NotUtf8)?;
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "event" => self.event = Some(value.into()),
            "data" => match &mut self.data {
                Some(data) => {
                    data.push(b'\n');
                    data.extend_from_slice(value.as_bytes());
                }
                None => self.data = Some(value.as_bytes().to_vec()),
            },
            "id" if !value.contains('\0') => self.id = Some(value.into()),
            "retry" if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) => {
                self.retry = value.parse().ok()
            }
            _ => {} // a comment, or an unknown field
        }
        Ok(())
    }

    fn dispatch(&mut self) -> Option<SseEvent> {
        let event = SseEvent {
            event: self.event.take(),
            data: self.data.take().map(Bytes::from),
            id: self.id.take(),
            retry: self.retry.take(),
        };
        let matters = event.data.is_some() || event.id.is_some() || event.retry.is_some();
        matters.then_some(event)
    }
}

/// Appends a message event. Line ends within `data` become `data` lines of their own.
pub fn write_message(out: &mut Vec<u8>, id: Option<&str>, data: &[u8]) {
    out.extend_from_slice(b"event: message\n");
    if let Some(id) = id {
        write_field(out, b"id", id.as_bytes());
    }
    let mut rest = data;
    loop {
        let Some(end) = memchr::memchr2(b'\r', b'\n', rest) else {
            write_field(out, b"data", rest);
            break;
        };
        write_field(out, b"data", &rest[..end]);
        let line_end = if rest[end..].starts_with(b"\r\n") { 2 } else { 1 };
        rest = &rest[end + line_end..];
    }
    out.push(b'\n');
}

/// Appends the event that lets a client resume a stream from its start.
///
/// MCP 2025-11-25, Transports: a stream begins with an event that has an id and empty data.
pub fn write_priming(out: &mut Vec<u8>, id: &str, retry: Option<u64>) {
    write_field(out, b"id", id.as_bytes());
    if let Some(retry) = retry {
        write_field(out, b"retry", retry.to_string().as_bytes());
    }
    out.extend_from_slice(b"data: \n\n");
}

/// Appends an event with the time in milliseconds to wait before reconnecting.
pub fn write_retry(out: &mut Vec<u8>, ms: u64) {
    write_field(out, b"retry", ms.to_string().as_bytes());
    out.push(b'\n');
}

/// Appends a comment, which keeps a connection alive.
pub fn write_comment(out: &mut Vec<u8>, text: &str) {
    for line in text.split(['\r', '\n']) {
        write_field(out, b"", line.as_bytes());
    }
    out.push(b'\n');
}

fn write_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.push(b'\n');
}
