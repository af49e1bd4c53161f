//! Encodes heads of responses and the framing of bodies of unknown length (RFC 9112). No I/O.

use std::{
    cell::Cell,
    io::Write as _,
    time::{SystemTime, UNIX_EPOCH},
};

use http::{
    StatusCode,
    header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING},
    response::Parts,
};

/// Framing of a response's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResponseFraming {
    Exactly(u64),
    Chunked,
    /// The response has no body and no length header (RFC 9110, 8.6).
    Absent,
}

impl ResponseFraming {
    pub(super) fn of(status: StatusCode, exact_bytes: Option<u64>) -> Self {
        match exact_bytes {
            _ if matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) => {
                Self::Absent
            }
            Some(bytes) => Self::Exactly(bytes),
            None => Self::Chunked,
        }
    }
}

pub(super) const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Appends the head of a response.
pub(super) fn head(out: &mut Vec<u8>, parts: &Parts, framing: ResponseFraming, keeps_open: bool) {
    match parts.status {
        // Nearly every answer has this status, so it skips the lookup of the reason phrase.
        StatusCode::OK => out.extend_from_slice(b"HTTP/1.1 200 OK\r\n"),
        status => {
            let _into_memory = write!(
                out,
                "HTTP/1.1 {} {}\r\n",
                status.as_str(),
                status.canonical_reason().unwrap_or_default()
            );
        }
    }
    for (name, value) in &parts.headers {
        // These headers describe the framing, which this server sets itself.
        if ![CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION, DATE].contains(name) {
            out.extend_from_slice(name.as_str().as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
    end(out, framing, keeps_open);
}

/// Appends the framing headers of the answer and the end of its head.
pub(super) fn end(out: &mut Vec<u8>, framing: ResponseFraming, keeps_open: bool) {
    match framing {
        ResponseFraming::Absent => {}
        ResponseFraming::Exactly(bytes) => {
            out.extend_from_slice(b"content-length: ");
            out.extend_from_slice(itoa::Buffer::new().format(bytes).as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        ResponseFraming::Chunked => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
    }
    if !keeps_open {
        out.extend_from_slice(b"connection: close\r\n");
    }
    out.extend_from_slice(b"date: ");
    out.extend_from_slice(&date());
    out.extend_from_slice(b"\r\n\r\n");
}

/// Appends the size line before a chunk of this many bytes.
pub(super) fn start_chunk(out: &mut Vec<u8>, bytes: usize) {
    let _into_memory = write!(out, "{bytes:x}\r\n");
}

/// Returns the current date in HTTP form (RFC 9110, 6.6.1). Each thread formats it once a second.
fn date() -> [u8; 29] {
    thread_local! {
        static WRITTEN: Cell<(u64, [u8; 29])> = const { Cell::new((u64::MAX, [0; 29])) };
    }
    let now = SystemTime::now();
    let second = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (written, text) = WRITTEN.get();
    if written == second {
        return text;
    }
    let mut fresh = [b' '; 29];
    let _fits = write!(&mut fresh[..], "{}", httpdate::HttpDate::from(now));
    WRITTEN.set((second, fresh));
    fresh
}
