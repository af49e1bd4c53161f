//! Heads of requests (RFC 9112): whether one is of a plain POST. No I/O.

use std::mem::MaybeUninit;

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version,
    header::{CONNECTION, CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING, UPGRADE},
    request::Parts,
};

use crate::repeated::{Again, Repeated, number};

/// A longer head is read anew each time: it would have to be kept for as long as the connection lives.
const REPEATED_BYTES_MAX: usize = 8 * 1024;

/// As many headers as the library takes. With more it is for that to refuse them.
const HEADERS_MAX: usize = 100;

/// The head of a plain POST.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) parts: Parts,
    /// Another request may follow on the connection.
    pub(super) keeps: bool,
    repeated: Option<Repeated>,
    /// As the headers say it.
    body_bytes: usize,
}

/// How long a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lengths {
    pub(super) head: usize,
    pub(super) body: usize,
}

/// What bytes begin with.
#[derive(Debug)]
pub(super) enum Read {
    Post(Box<Head>, Lengths),
    /// It is not all there yet.
    Part,
    /// Anything else, and what is no HTTP/1.1 at all.
    Other,
}

impl Head {
    /// Whether it is worth to be kept.
    pub(super) fn may_be_repeated(&self) -> bool {
        self.repeated.is_some()
    }

    /// The lengths of the request that `bytes` begin with, where its head says the same as this one.
    pub(super) fn again(&mut self, bytes: &[u8]) -> Option<Lengths> {
        let Again { head_bytes, body_bytes } = self.repeated.as_ref()?.again(bytes)?;
        if body_bytes != self.body_bytes {
            // Whoever looks at the headers finds this request's.
            self.parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(body_bytes));
            self.body_bytes = body_bytes;
        }
        Some(Lengths { head: head_bytes, body: body_bytes })
    }
}

/// Reads the head that `bytes` begin with.
pub(super) fn read(bytes: &[u8]) -> Read {
    let mut headers = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut []);
    let head = match parsed.parse_with_uninit_headers(bytes, &mut headers) {
        Ok(httparse::Status::Complete(head)) => head,
        Ok(httparse::Status::Partial) => return Read::Part,
        Err(_) => return Read::Other,
    };
    let is_post = parsed.method == Some("POST") && parsed.version == Some(1);
    let path = parsed.path.filter(|path| is_post && path.starts_with('/'));
    match path.and_then(|path| plain(path, parsed.headers)) {
        Some((parts, keeps, length, body)) => {
            let repeated = (head <= REPEATED_BYTES_MAX).then(|| Repeated::new(&bytes[..head], length));
            Read::Post(Box::new(Head { parts, keeps, repeated, body_bytes: body }), Lengths { head, body })
        }
        None => Read::Other,
    }
}

/// Its parts, whether it keeps the connection, and the length of its body, as it is said and as a number. `None`: something of
/// it is not for us, or can be read in two ways.
fn plain<'a>(path: &str, raw: &[httparse::Header<'a>]) -> Option<(Parts, bool, &'a [u8], usize)> {
    let mut headers = HeaderMap::with_capacity(raw.len());
    let (mut keeps, mut length) = (true, None);
    for header in raw {
        let name = HeaderName::from_bytes(header.name.as_bytes()).ok()?;
        match name {
            TRANSFER_ENCODING | EXPECT | UPGRADE => return None,
            CONNECTION if header.value.eq_ignore_ascii_case(b"keep-alive") => {}
            CONNECTION if header.value.eq_ignore_ascii_case(b"close") => keeps = false,
            CONNECTION => return None,
            // A second one, even if it says the same, is not plain.
            CONTENT_LENGTH if length.replace(header.value).is_some() => return None,
            _ => {}
        }
        headers.append(name, HeaderValue::from_bytes(header.value).ok()?);
    }
    let length = length?;
    let (mut parts, ()) = Request::new(()).into_parts();
    (parts.method, parts.version, parts.headers) = (Method::POST, Version::HTTP_11, headers);
    parts.uri = Uri::try_from(path).ok()?;
    Some((parts, keeps, length, number(length)?))
}
