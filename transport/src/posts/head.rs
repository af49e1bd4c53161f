//! Heads of requests (RFC 9112): whether one is of a plain POST, and whether it says again what the one before said. No I/O.
//!
//! A client says the same of each of its requests, but for the length of the body: what is the same byte for byte is read once.

use std::{mem::MaybeUninit, ops::Range};

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version,
    header::{CONNECTION, CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING, UPGRADE},
    request::Parts,
};

/// As many headers as the library takes. With more it is for that to refuse them.
const HEADERS_MAX: usize = 100;

/// The head of a plain POST.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) parts: Parts,
    /// Another request may follow on the connection.
    pub(super) keeps: bool,
    /// As it came.
    text: Box<[u8]>,
    /// Where the length of the body is in it.
    digits: Range<usize>,
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
    /// The lengths of the request that `bytes` begin with, where its head says the same as this one but for the length of the
    /// body.
    pub(super) fn again(&mut self, bytes: &[u8]) -> Option<Lengths> {
        let (before, behind) = (&self.text[..self.digits.start], &self.text[self.digits.end..]);
        let rest = bytes.strip_prefix(before)?;
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let body = number(&rest[..digits])?;
        if !rest[digits..].starts_with(behind) {
            return None;
        }
        if self.text[self.digits.clone()] != rest[..digits] {
            // Whoever looks at the headers finds this request's.
            self.parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(body));
        }
        Some(Lengths { head: before.len() + digits + behind.len(), body })
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
    let plain = path.and_then(|path| plain(path, parsed.headers, bytes));
    match plain {
        Some((parts, keeps, digits, body)) => {
            Read::Post(Box::new(Head { parts, keeps, text: bytes[..head].into(), digits }), Lengths { head, body })
        }
        None => Read::Other,
    }
}

/// Its parts, whether it keeps the connection, and the length of its body with the place where that is said. `None`: something
/// of it is not for us, or can be read in two ways.
fn plain(path: &str, raw: &[httparse::Header<'_>], bytes: &[u8]) -> Option<(Parts, bool, Range<usize>, usize)> {
    let mut headers = HeaderMap::with_capacity(raw.len());
    let (mut keeps, mut length) = (true, None);
    for header in raw {
        let name = HeaderName::from_bytes(header.name.as_bytes()).ok()?;
        match name {
            TRANSFER_ENCODING | EXPECT | UPGRADE => return None,
            CONNECTION if header.value.eq_ignore_ascii_case(b"keep-alive") => {}
            CONNECTION if header.value.eq_ignore_ascii_case(b"close") => keeps = false,
            CONNECTION => return None,
            CONTENT_LENGTH => {
                let start = header.value.as_ptr() as usize - bytes.as_ptr() as usize;
                // A second one, even if it says the same, is not.
                if length.replace((start..start + header.value.len(), number(header.value)?)).is_some() {
                    return None;
                }
            }
            _ => {}
        }
        headers.append(name, HeaderValue::from_bytes(header.value).ok()?);
    }
    let (digits, length) = length?;
    let (mut parts, ()) = Request::new(()).into_parts();
    (parts.method, parts.version, parts.headers) = (Method::POST, Version::HTTP_11, headers);
    parts.uri = Uri::try_from(path).ok()?;
    Some((parts, keeps, digits, length))
}

fn number(digits: &[u8]) -> Option<usize> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()
}
