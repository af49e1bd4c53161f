//! The head of a request, held to one reading. No I/O.

use std::mem::MaybeUninit;

use httparse::{Error, Header, Request, Status};
use memchr::memchr2;

use super::{FramingViolation, VIOLATION_HEADER};
use crate::head_cache::number;

/// As many headers as the HTTP library takes.
const HEADERS_MAX: usize = 100;

/// Where the body of a request ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyFraming {
    /// The request has no body, and says nothing of one.
    Absent,
    Length(usize),
    Chunked,
}

/// Looks for the end of a head as its pieces come. Bytes that were looked at are not looked at again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct HeadScanner {
    line_start: usize,
    seen: usize,
}

impl HeadScanner {
    /// The length of the head that `bytes` begin with, its empty line included; `None` while the end is not there.
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

/// Reads the head that `bytes` begin with, and hands it to `take` with its length and the framing of its body. `None`: the head is
/// not all there.
pub(crate) fn read_head<'b, T>(
    bytes: &'b [u8],
    take: impl FnOnce(&Request<'_, 'b>, usize, BodyFraming) -> T,
) -> Result<Option<T>, FramingViolation> {
    match HeadScanner::default().end(bytes)? {
        Some(end) => parse(&bytes[..end], |request, framing| take(request, end, framing)).map(Some),
        None => Ok(None),
    }
}

/// Reads a head that is all there, and whose lines end as they should.
pub(super) fn parse<'b, T>(
    head: &'b [u8],
    take: impl FnOnce(&Request<'_, 'b>, BodyFraming) -> T,
) -> Result<T, FramingViolation> {
    let mut room = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut request = Request::new(&mut []);
    match request.parse_with_uninit_headers(head, &mut room) {
        Ok(Status::Complete(end)) if end == head.len() => {}
        Ok(Status::Complete(_) | Status::Partial) => return Err(FramingViolation::RequestLine),
        Err(Error::TooManyHeaders) => return Err(FramingViolation::TooManyHeaders),
        Err(Error::Version) => return Err(FramingViolation::HttpVersion),
        // The library says it of names too.
        Err(Error::HeaderName | Error::HeaderValue | Error::NewLine) if has_folded_line(head) => {
            return Err(FramingViolation::LineFolding);
        }
        Err(Error::HeaderName) => return Err(FramingViolation::HeaderName),
        Err(Error::HeaderValue) => return Err(FramingViolation::HeaderValue),
        Err(_) => return Err(FramingViolation::RequestLine),
    }
    // Some readers cut a fragment off, others take it for a part of the path (RFC 9112, 3.2: a target has none).
    if request.path.is_some_and(|target| target.contains('#')) {
        return Err(FramingViolation::RequestLine);
    }
    let framing = body_framing(request.version == Some(0), request.headers)?;
    Ok(take(&request, framing))
}

fn has_folded_line(head: &[u8]) -> bool {
    head.windows(3).any(|window| matches!(window, b"\r\n " | b"\r\n\t"))
}

/// Where the body ends, in the one way that every reader agrees on (RFC 9112, 6.3).
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

/// The characters of a host and port (RFC 3986, 3.2.2), without user information. An empty Host is one that names nothing.
fn is_host(host: &[u8]) -> bool {
    host.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=:[]".contains(byte))
}

/// Whether a request asks for a WebSocket. Behind such a request no further one is read on its connection.
pub fn is_websocket_upgrade<'v>(upgrade: impl IntoIterator<Item = &'v [u8]>) -> bool {
    let mut protocols = upgrade.into_iter().flat_map(|value| value.split(|byte| *byte == b','));
    protocols.any(|protocol| protocol.trim_ascii().eq_ignore_ascii_case(b"websocket"))
}
