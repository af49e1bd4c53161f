//! Heads of requests (RFC 9112): whether one is of a plain POST. No I/O.

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version,
    header::{CONNECTION, CONTENT_LENGTH, EXPECT, UPGRADE},
    request::Parts,
};

use crate::{
    framing::{BodyFraming, read_head},
    head_cache::{HeadMatch, HeadPattern},
};

/// A longer head is read anew each time: it would have to be kept for as long as the connection lives.
const REPEATED_BYTES_MAX: usize = 8 * 1024;

/// The head of a plain POST.
#[derive(Debug)]
pub(super) struct RequestHead {
    pub(super) parts: Parts,
    /// Another request may follow on the connection.
    pub(super) keeps: bool,
    repeated: Option<HeadPattern>,
    /// As the headers say it.
    body_bytes: usize,
}

/// How long a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestLengths {
    pub(super) head: usize,
    pub(super) body: usize,
}

/// What bytes begin with.
#[derive(Debug)]
pub(super) enum ParsedHead {
    Post(Box<RequestHead>, RequestLengths),
    /// It is not all there yet.
    Incomplete,
    /// Anything else, and what is no HTTP/1.1 at all.
    Other,
}

impl RequestHead {
    /// Whether it is worth to be kept.
    pub(super) fn may_be_repeated(&self) -> bool {
        self.repeated.is_some()
    }

    /// The lengths of the request that `bytes` begin with, where its head says the same as this one.
    pub(super) fn again(&mut self, bytes: &[u8]) -> Option<RequestLengths> {
        let HeadMatch { head_bytes, body_bytes } = self.repeated.as_ref()?.again(bytes)?;
        if body_bytes != self.body_bytes {
            // Whoever looks at the headers finds this request's.
            self.parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(body_bytes));
            self.body_bytes = body_bytes;
        }
        Some(RequestLengths { head: head_bytes, body: body_bytes })
    }
}

/// Reads the head that `bytes` begin with. One that is refused is for the HTTP library's side to answer, as all that is not plain.
pub(super) fn read(bytes: &[u8]) -> ParsedHead {
    let plain = read_head(bytes, |request, head, framing| {
        let is_post = request.method == Some("POST") && request.version == Some(1);
        let path = request.path.filter(|path| is_post && path.starts_with('/'))?;
        let BodyFraming::Length(body) = framing else { return None };
        let (parts, keeps, length) = plain(path, request.headers)?;
        let repeated =
            (head <= REPEATED_BYTES_MAX).then(|| HeadPattern::new(&bytes[..head], length));
        Some(ParsedHead::Post(
            Box::new(RequestHead { parts, keeps, repeated, body_bytes: body }),
            RequestLengths { head, body },
        ))
    });
    match plain {
        Ok(Some(Some(post))) => post,
        Ok(None) => ParsedHead::Incomplete,
        Ok(Some(None)) | Err(_) => ParsedHead::Other,
    }
}

/// Its parts, whether it keeps the connection, and the length of its body as it is said. `None`: something of it is not for us.
fn plain<'a>(path: &str, raw: &[httparse::Header<'a>]) -> Option<(Parts, bool, &'a [u8])> {
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
    (parts.method, parts.version, parts.headers) = (Method::POST, Version::HTTP_11, headers);
    parts.uri = Uri::try_from(path).ok()?;
    Some((parts, keeps, length?))
}
