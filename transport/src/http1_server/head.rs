//! Heads of requests (RFC 9112): recognises the heads of a plain POST and of a plain GET for an
//! event stream. No I/O.

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version,
    header::{ACCEPT, CONNECTION, CONTENT_LENGTH, EXPECT, UPGRADE},
    request::Parts,
};

use crate::{
    framing::{BodyFraming, read_head},
    head_cache::{HeadMatch, HeadPattern},
};

/// A longer head is parsed each time, because a cached head takes memory while the connection
/// lives.
const REPEATED_BYTES_MAX: usize = 8 * 1024;

/// The head of a plain request.
#[derive(Debug)]
pub(super) struct RequestHead {
    pub(super) parts: Parts,
    /// True if another request may follow on the connection.
    pub(super) keep_alive: bool,
    repeated: Option<HeadPattern>,
    /// Body length in the headers of `parts`.
    body_bytes: usize,
}

/// Lengths of the head and the body of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestLengths {
    pub(super) head: usize,
    pub(super) body: usize,
}

/// Kind of the request at the start of the bytes.
#[derive(Debug)]
pub(super) enum ParsedHead {
    Plain(Box<RequestHead>, RequestLengths),
    /// The head is incomplete.
    Incomplete,
    /// Any other request, and bytes that are not HTTP/1.1.
    Other,
}

impl RequestHead {
    /// Returns whether the head is worth keeping for the next request.
    pub(super) fn is_cacheable(&self) -> bool {
        self.repeated.is_some()
    }

    /// Returns the lengths of the request at the start of `bytes` if its head repeats this one.
    pub(super) fn match_prefix(&mut self, bytes: &[u8]) -> Option<RequestLengths> {
        let HeadMatch { head_bytes, body_bytes } = self.repeated.as_ref()?.match_prefix(bytes)?;
        if body_bytes != self.body_bytes {
            // A reader of the headers finds the length of this request.
            self.parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(body_bytes));
            self.body_bytes = body_bytes;
        }
        Some(RequestLengths { head: head_bytes, body: body_bytes })
    }
}

/// Parses the head at the start of `bytes`. A head that is not plain or not valid is
/// [`ParsedHead::Other`], which the HTTP library answers.
pub(super) fn read(bytes: &[u8]) -> ParsedHead {
    let plain = read_head(bytes, |request, head, framing| {
        let is_1_1 = request.version == Some(1);
        let path = request.path.filter(|path| is_1_1 && path.starts_with('/'))?;
        let (method, body) = match (request.method?, framing) {
            ("POST", BodyFraming::Length(body)) => (Method::POST, body),
            ("GET", BodyFraming::Absent | BodyFraming::Length(0)) => (Method::GET, 0),
            _ => return None,
        };
        let (parts, keeps, length) = plain(method, path, request.headers)?;
        let repeats = match parts.method {
            // An event stream lasts, so its head is not kept for another request.
            Method::GET if accepts_event_stream(&parts.headers) => false,
            Method::GET => return None,
            _ => head <= REPEATED_BYTES_MAX,
        };
        let repeated =
            length.filter(|_| repeats).map(|length| HeadPattern::new(&bytes[..head], length));
        Some(ParsedHead::Plain(
            Box::new(RequestHead { parts, keep_alive: keeps, repeated, body_bytes: body }),
            RequestLengths { head, body },
        ))
    });
    match plain {
        Ok(Some(Some(request))) => request,
        Ok(None) => ParsedHead::Incomplete,
        Ok(Some(None)) | Err(_) => ParsedHead::Other,
    }
}

/// Returns whether a client accepts an event stream explicitly.
fn accepts_event_stream(headers: &HeaderMap) -> bool {
    headers
        .get_all(ACCEPT)
        .iter()
        .any(|value| memchr::memmem::find(value.as_bytes(), b"text/event-stream").is_some())
}

/// Returns the parts, the keep-alive flag, and the text of the body length. Returns `None` if this
/// server does not handle the request.
fn plain<'a>(
    method: Method,
    path: &str,
    raw: &[httparse::Header<'a>],
) -> Option<(Parts, bool, Option<&'a [u8]>)> {
    let mut headers = HeaderMap::with_capacity(raw.len());
    let (mut keeps, mut length) = (true, None);
    for header in raw {
        let name = HeaderName::from_bytes(header.name.as_bytes()).ok()?;
        match name {
            EXPECT | UPGRADE => return None,
            CONNECTION if header.value.eq_ignore_ascii_case(b"keep-alive") => {}
            CONNECTION if header.value.eq_ignore_ascii_case(b"close") => keeps = false,
            CONNECTION => return None,
            CONTENT_LENGTH => length = Some(header.value),
            _ => {}
        }
        headers.append(name, HeaderValue::from_bytes(header.value).ok()?);
    }
    let (mut parts, ()) = Request::new(()).into_parts();
    (parts.method, parts.version, parts.headers) = (method, Version::HTTP_11, headers);
    parts.uri = Uri::try_from(path).ok()?;
    Some((parts, keeps, length))
}
