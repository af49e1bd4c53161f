//! Strict parser for the head of a request. No I/O.

use std::mem::MaybeUninit;

use httparse::{Error, Header, Request, Status};
use memchr::memchr2;

use super::{FramingViolation, VIOLATION_HEADER};
use crate::head_cache::number;

/// Number of headers that the HTTP library accepts.
const HEADERS_MAX: usize = 100;

/// Framing of a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyFraming {
    /// The request has no body and no header about one.
    Absent,
    Length(usize),
    Chunked,
}

/// Searches for the end of a head that arrives in pieces. The scanner looks at each byte once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct HeadScanner {
    line_start: usize,
    seen: usize,
}

impl HeadScanner {
    /// Returns the length of the head at the start of `bytes`, including the empty line. Returns
    /// `None` while the end is missing.
    pub(super) fn end(&mut self, bytes: &[u8]) -> Result<Option<usize>, FramingViolation> {
        while let Some(found) = bytes.get(self.seen..).and_then(|rest| memchr2(b'\r', b'\n', rest))
        {
            let at = self.seen + found;
            if bytes[at] == b'\n' {
                return Err(FramingViolation::BareLineFeed);
            }
            match bytes.get(at + 1) {
                None => {
                    self.seen = at;
                    return Ok(None);
                }
                Some(b'\n') if at == self.line_start => return Ok(Some(at + 2)),
                Some(b'\n') => (self.line_start, self.seen) = (at + 2, at + 2),
                Some(_) => return Err(FramingViolation::BareCarriageReturn),
            }
        }
        self.seen = bytes.len();
        Ok(None)
    }
}

/// Parses the head at the start of `bytes` and passes it to `take` with its length and the framing
/// of its body. Returns `None` while the head is incomplete.
pub(crate) fn read_head<'b, T>(
    bytes: &'b [u8],
    take: impl FnOnce(&Request<'_, 'b>, usize, BodyFraming) -> T,
) -> Result<Option<T>, FramingViolation> {
    match HeadScanner::default().end(bytes)? {
        Some(end) => parse(&bytes[..end], |request, framing| take(request, end, framing)).map(Some),
        None => Ok(None),
    }
}

/// Parses a complete head whose line ends are already checked.
pub(super) fn parse<'b, T>(
    head: &'b [u8],
    take: impl FnOnce(&Request<'_, 'b>, BodyFraming) -> T,
) -> Result<T, FramingViolation> {
    let mut headers = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut request = Request::new(&mut []);
    match request.parse_with_uninit_headers(head, &mut headers) {
        Ok(Status::Complete(end)) if end == head.len() => {}
        Ok(Status::Complete(_) | Status::Partial) => return Err(FramingViolation::RequestLine),
        Err(Error::TooManyHeaders) => return Err(FramingViolation::TooManyHeaders),
        Err(Error::Version) => return Err(FramingViolation::HttpVersion),
        // The library returns this error for header names too.
        Err(Error::HeaderName | Error::HeaderValue | Error::NewLine) if has_folded_line(head) => {
            return Err(FramingViolation::LineFolding);
        }
        Err(Error::HeaderName) => return Err(FramingViolation::HeaderName),
        Err(Error::HeaderValue) => return Err(FramingViolation::HeaderValue),
        Err(_) => return Err(FramingViolation::RequestLine),
    }
    // Some readers cut a fragment off, others treat it as part of the path (RFC 9112, 3.2: a target
    // has none).
    if request.path.is_some_and(|target| target.contains('#')) {
        return Err(FramingViolation::RequestLine);
    }
    let framing = body_framing(request.version == Some(0), request.headers)?;
    Ok(take(&request, framing))
}

fn has_folded_line(head: &[u8]) -> bool {
    head.windows(3).any(|window| matches!(window, b"\r\n " | b"\r\n\t"))
}

/// Returns the framing of the body, and refuses all framings that two readers could interpret
/// differently (RFC 9112, 6.3).
fn body_framing(is_http10: bool, headers: &[Header<'_>]) -> Result<BodyFraming, FramingViolation> {
    let (mut host, mut length, mut encoding) = (None, None, None);
    for Header { name, value } in headers {
        let (known, repeated) = match name.len() {
            4 if name.eq_ignore_ascii_case("host") => (&mut host, FramingViolation::HostRepeated),
            14 if name.eq_ignore_ascii_case("content-length") => {
                (&mut length, FramingViolation::ContentLengthRepeated)
            }
            17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                (&mut encoding, FramingViolation::TransferEncodingRepeated)
            }
            _ if name.eq_ignore_ascii_case(VIOLATION_HEADER) => {
                return Err(FramingViolation::ReservedHeader);
            }
            _ => continue,
        };
        if known.replace(*value).is_some() {
            return Err(repeated);
        }
    }
    match host {
        None if !is_http10 => return Err(FramingViolation::HostMissing),
        Some(host) if !is_host(host) => return Err(FramingViolation::HostInvalid),
        _ => {}
    }
    match (encoding, length) {
        (None, None) => Ok(BodyFraming::Absent),
        (None, Some(length)) => {
            number(length).map(BodyFraming::Length).ok_or(FramingViolation::ContentLengthInvalid)
        }
        (Some(_), Some(_)) => Err(FramingViolation::TransferEncodingWithContentLength),
        (Some(_), None) if is_http10 => Err(FramingViolation::TransferEncodingInHttp10),
        (Some(b"chunked"), None) => Ok(BodyFraming::Chunked),
        (Some(_), None) => Err(FramingViolation::TransferEncodingUnsupported),
    }
}

/// Returns whether all characters may occur in a host and port (RFC 3986, 3.2.2), without user
/// information. An empty Host header is valid.
fn is_host(host: &[u8]) -> bool {
    host.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=:[]".contains(byte))
}

/// Returns whether a request asks for a WebSocket. After such a request no further request is read
/// on its connection.
pub fn is_websocket_upgrade<'v>(upgrade: impl IntoIterator<Item = &'v [u8]>) -> bool {
    let mut protocols = upgrade.into_iter().flat_map(|value| value.split(|byte| *byte == b','));
    protocols.any(|protocol| protocol.trim_ascii().eq_ignore_ascii_case(b"websocket"))
}
