//! Readers of HTTP/1.1 requests that share no code with the broker's framing: hyper, and models of
//! tolerant proxies. Used by the targets of requests.

use std::{cell::RefCell, convert::Infallible, rc::Rc};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

/// A complete request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReadRequest {
    pub(super) method: String,
    pub(super) target: String,
    /// Names and values as hyper's order has them.
    pub(super) headers: Vec<(String, Vec<u8>)>,
    pub(super) body: Bytes,
}

/// Returns the complete requests that hyper reads from a connection.
pub(super) async fn read_by_hyper(
    io: impl AsyncRead + AsyncWrite + Unpin + 'static,
) -> Vec<ReadRequest> {
    let requests = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&requests);
    let service = service_fn(move |request: Request<Incoming>| {
        let seen = Rc::clone(&seen);
        async move {
            let (head, body) = request.into_parts();
            if let Ok(body) = body.collect().await {
                seen.borrow_mut().push(ReadRequest {
                    method: head.method.to_string(),
                    target: head.uri.to_string(),
                    headers: head
                        .headers
                        .iter()
                        .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
                        .collect(),
                    body: body.to_bytes(),
                });
            }
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    // The peer has sent everything and still reads. A fault ends the connection; the requests before
    // it count.
    let _ =
        http1::Builder::new().half_close(true).serve_connection(TokioIo::new(io), service).await;
    requests.take()
}

/// A reader that takes more than RFC 9112 allows, as some proxies do.
#[derive(Debug, Clone, Copy)]
pub(super) struct TolerantReader {
    /// A line may end with LF alone.
    bare_line_feeds: bool,
    /// The first of several headers counts, not the last.
    takes_first: bool,
    /// A length counts even if the body is chunked.
    prefers_length: bool,
    /// A CR alone ends a line.
    bare_carriage_returns: bool,
}

pub(super) const TOLERANT_READERS: [TolerantReader; 5] = [
    TolerantReader {
        bare_line_feeds: false,
        takes_first: true,
        prefers_length: false,
        bare_carriage_returns: false,
    },
    TolerantReader {
        bare_line_feeds: true,
        takes_first: false,
        prefers_length: false,
        bare_carriage_returns: false,
    },
    TolerantReader {
        bare_line_feeds: true,
        takes_first: true,
        prefers_length: true,
        bare_carriage_returns: false,
    },
    TolerantReader {
        bare_line_feeds: false,
        takes_first: false,
        prefers_length: true,
        bare_carriage_returns: false,
    },
    TolerantReader {
        bare_line_feeds: true,
        takes_first: true,
        prefers_length: false,
        bare_carriage_returns: true,
    },
];

impl TolerantReader {
    /// Returns the index after each complete request.
    pub(super) fn ends(self, bytes: &[u8]) -> Vec<usize> {
        let (mut ends, mut at) = (Vec::new(), 0);
        while let Some(end) = self.request(bytes, at) {
            ends.push(end);
            at = end;
        }
        ends
    }

    fn request(self, bytes: &[u8], start: usize) -> Option<usize> {
        let (mut at, mut headers) = (start, Vec::<(String, String)>::new());
        let (line, next) = self.line(bytes, at)?;
        let is_http10 = line.ends_with(b"HTTP/1.0");
        at = next;
        loop {
            let (line, next) = self.line(bytes, at)?;
            at = next;
            if line.is_empty() {
                break;
            }
            let text = String::from_utf8_lossy(line).into_owned();
            match (text.starts_with([' ', '\t']), headers.last_mut()) {
                (true, Some((_, value))) => value.push_str(&text),
                _ => {
                    let (name, value) = text.split_once(':').unwrap_or((&text, ""));
                    headers.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
                }
            }
        }
        let find = |name: &str| {
            let mut found =
                headers.iter().filter(|(known, _)| known == name).map(|(_, value)| value);
            if self.takes_first { found.next() } else { found.next_back() }
        };
        let length = find("content-length").map(|value| number(value));
        let is_chunked = !is_http10
            && find("transfer-encoding")
                .is_some_and(|value| value.to_ascii_lowercase().contains("chunked"));
        match length {
            Some(length) if self.prefers_length || !is_chunked => {
                Some(at.checked_add(length?)?).filter(|end| *end <= bytes.len())
            }
            _ if is_chunked => self.chunks(bytes, at),
            _ => Some(at),
        }
    }

    fn chunks(self, bytes: &[u8], mut at: usize) -> Option<usize> {
        loop {
            let (line, next) = self.line(bytes, at)?;
            let digits = String::from_utf8_lossy(line).split(';').next()?.trim().to_owned();
            let size = usize::from_str_radix(digits.trim_start_matches("0x"), 16).ok()?;
            at = next;
            if size == 0 {
                break;
            }
            at = at.checked_add(size).filter(|end| *end <= bytes.len())?;
            at = self.line(bytes, at)?.1;
        }
        loop {
            let (line, next) = self.line(bytes, at)?;
            at = next;
            if line.is_empty() {
                return Some(at);
            }
        }
    }

    /// Returns the line at `start` and the index after its end.
    fn line(self, bytes: &[u8], start: usize) -> Option<(&[u8], usize)> {
        let rest = bytes.get(start..)?;
        for (at, byte) in rest.iter().enumerate() {
            match byte {
                b'\n' if at > 0 && rest[at - 1] == b'\r' => {
                    return Some((&rest[..at - 1], start + at + 1));
                }
                b'\n' if self.bare_line_feeds => return Some((&rest[..at], start + at + 1)),
                b'\r'
                    if self.bare_carriage_returns
                        && rest.get(at + 1).is_some_and(|next| *next != b'\n') =>
                {
                    return Some((&rest[..at], start + at + 1));
                }
                _ => {}
            }
        }
        None
    }
}

/// Reads a length as `strtol` does: blanks, a sign and what follows the digits are ignored.
fn number(text: &str) -> Option<usize> {
    let text = text.trim().trim_start_matches('+');
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}
