//! The reader of event streams, against a slow reading of the whole stream.
//!
//! The first byte is the size of the pieces, the second the limit for an event.

use std::str;

use bytes::Bytes;
use protocol::sse::{SseError, SseEvent, SseParser, write_message};

use crate::{Outcome, Target};

pub(super) const TARGET: Target = Target {
    name: "server_sent_events",
    tokens: &[
        "data: ", "data:", "data", "event: ", "id: ", "id", "retry: ", "12", ":", "\0", "\u{feff}",
        "\n", "\r", "\r\n", "\n\n", "é", "🦀",
    ],
    bytes_max: 1024,
    check,
};

type Read = (Vec<SseEvent>, Option<SseError>);

fn check(input: &[u8]) -> Outcome {
    let [piece_bytes, limit, stream @ ..] = input else { return Outcome::of(&"short") };
    // A byte order mark that is not complete does not count as part of an event.
    let limit = if *limit == 0 { 1 << 20 } else { usize::from(*limit).max(3) };
    let whole = read(stream, stream.len().max(1), limit);
    let in_pieces = read(stream, usize::from(*piece_bytes).max(1), limit);
    assert_eq!(in_pieces, whole, "in pieces");
    assert_eq!(read(stream, 1, limit), whole, "byte by byte");
    assert_eq!(whole, slowly(stream, limit), "the slow reading");
    let written = written(stream);
    assert_eq!(whole_data(&written), normalised(stream), "what is written is read");
    let (events, error) = whole;
    let kinds = events.iter().take(6).map(|event| {
        (event.event.is_some(), event.data.is_some(), event.id.is_some(), event.retry.is_some())
    });
    Outcome::of(&(kinds.collect::<Vec<_>>(), error.map(|error| error.to_string())))
}

fn read(stream: &[u8], piece_bytes: usize, limit: usize) -> Read {
    let mut parser = SseParser::new(limit);
    let mut events = Vec::new();
    for piece in stream.chunks(piece_bytes) {
        parser.push(piece);
        loop {
            match parser.next_event() {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(error) => return (events, Some(error)),
            }
        }
    }
    (events, None)
}

/// Runs the algorithm of the HTML standard over the complete stream, line by line.
fn slowly(stream: &[u8], limit: usize) -> Read {
    let (mut events, mut event, mut event_bytes) = (Vec::new(), SseEvent::default(), 0);
    let stream = stream.strip_prefix(b"\xef\xbb\xbf").unwrap_or(stream);
    let (lines, rest) = lines(stream);
    for line in lines {
        event_bytes += line.len();
        if event_bytes > limit {
            return (events, Some(SseError::TooLarge { max: limit }));
        }
        let Ok(line) = str::from_utf8(line) else { return (events, Some(SseError::NotUtf8)) };
        if line.is_empty() {
            event_bytes = 0;
            let done = std::mem::take(&mut event);
            if done.data.is_some() || done.id.is_some() || done.retry.is_some() {
                events.push(done);
            }
            continue;
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "event" => event.event = Some(value.into()),
            "data" => {
                let joined = match event.data {
                    Some(data) => [&data, &b"\n"[..], value.as_bytes()].concat(),
                    None => value.as_bytes().to_vec(),
                };
                event.data = Some(joined.into());
            }
            "id" if !value.contains('\0') => event.id = Some(value.into()),
            "retry" if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) => {
                event.retry = value.parse().ok();
            }
            _ => {}
        }
    }
    let error = (event_bytes + rest.len() > limit).then_some(SseError::TooLarge { max: limit });
    (events, error)
}

/// Returns the complete lines, and the bytes after the last one.
fn lines(mut stream: &[u8]) -> (Vec<&[u8]>, &[u8]) {
    let mut lines = Vec::new();
    while let Some(end) = stream.iter().position(|byte| matches!(byte, b'\r' | b'\n')) {
        lines.push(&stream[..end]);
        let length = if stream[end..].starts_with(b"\r\n") { 2 } else { 1 };
        stream = &stream[end + length..];
    }
    (lines, stream)
}

fn written(data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_message(&mut out, Some("7"), data);
    out
}

/// Returns the data of the one event of a stream, or `None` if it is not text.
fn whole_data(stream: &[u8]) -> Option<Bytes> {
    let (events, error) = read(stream, stream.len(), 1 << 20);
    let [event] = &events[..] else {
        assert_eq!(error, Some(SseError::NotUtf8), "one event was written");
        return None;
    };
    assert_eq!(event.id.as_deref(), Some("7"), "its id");
    event.data.clone()
}

/// Returns the data as it arrives: every line end is LF.
fn normalised(data: &[u8]) -> Option<Bytes> {
    let text = str::from_utf8(data).ok()?;
    Some(text.replace("\r\n", "\n").replace('\r', "\n").into())
}
