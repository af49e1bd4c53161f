//! The head of a request, held to one reading. No I/O.

use std::mem::MaybeUninit;

use httparse::{Error, Header, Request, Status};
use memchr::memchr2;

use super::{STAND_IN_HEADER, Violation};
use crate::repeated::number;

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
pub(super) struct HeadScan {
    line_start: usize,
    seen: usize,
}

impl HeadScan {
    /// The length of the head that `bytes` begin with, its empty line included; `None` while the end is not there.
    pub(super) fn end(&mut self, bytes: &[u8]) -> Result<Option<usize>, Violation> {
        while let Some(found) = bytes.get(self.seen..).and_then(|rest| memchr2(b'\r', b'\n', rest)) {
            let at = self.seen + found;
            if bytes[at] == b'\n' {
                return Err(Violation::BareLineFeed);
            }
            match bytes.get(at + 1) {
                None => {
                    self.seen = at;
                    return Ok(None);
                }
                Some(b'\n') if at == self.line_start => return Ok(Some(at + 2)),
                Some(b'\n') => (self.line_start, self.seen) = (at + 2, at + 2),
                Some(_) => return Err(Violation::BareCarriageReturn),
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
) -> Result<Option<T>, Violation> {
    match HeadScan::default().end(bytes)? {
        Some(end) => parse(&bytes[..end], |request, framing| take(request, end, framing)).map(Some),
        None => Ok(None),
    }
}

/// Reads a head that is all there, and whose lines end as they should.
pub(super) fn parse<'b, T>(head: &'b [u8], take: impl FnOnce(&Request<'_, 'b>, BodyFraming) -> T) -> Result<T, Violation> {
    let mut room = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut request = Request::new(&mut []);
    match request.parse_with_uninit_headers(head, &mut room) {
        Ok(Status::Complete(end)) if end == head.len() => {}
        Ok(Status::Complete(_) | Status::Partial) => return Err(Violation::RequestLine),
        Err(Error::TooManyHeaders) => return Err(Violation::TooManyHeaders),
        Err(Error::Version) => return Err(Violation::HttpVersion),
        // The library says it of names too.
        Err(Error::HeaderName | Error::HeaderValue | Error::NewLine) if has_folded_line(head) => return Err(Violation::LineFolding),
        Err(Error::HeaderName) => return Err(Violation::HeaderName),
        Err(Error::HeaderValue) => return Err(Violation::HeaderValue),
        Err(_) => return Err(Violation::RequestLine),
    }
    // Some readers cut a fragment off, others take it for a part of the path (RFC 9112, 3.2: a target has none).
    if request.path.is_some_and(|target| target.contains('#')) {
        return Err(Violation::RequestLine);
    }
    let framing = body_framing(request.version == Some(0), request.headers)?;
    Ok(take(&request, framing))
}

fn has_folded_line(head: &[u8]) -> bool {
    head.windows(3).any(|window| matches!(window, b"\r\n " | b"\r\n\t"))
}

/// Where the body ends, in the one way that every reader agrees on (RFC 9112, 6.3).
fn body_framing(is_http10: bool, headers: &[Header<'_>]) -> Result<BodyFraming, Violation> {
    let (mut host, mut length, mut encoding) = (None, None, None);
    for Header { name, value } in headers {
        let (known, repeated) = match name.len() {
            4 if name.eq_ignore_ascii_case("host") => (&mut host, Violation::HostRepeated),
            14 if name.eq_ignore_ascii_case("content-length") => (&mut length, Violation::ContentLengthRepeated),
            17 if name.eq_ignore_ascii_case("transfer-encoding") => (&mut encoding, Violation::TransferEncodingRepeated),
            _ if name.eq_ignore_ascii_case(STAND_IN_HEADER) => return Err(Violation::ReservedHeader),
            _ => continue,
        };
        if known.replace(*value).is_some() {
            return Err(repeated);
        }
    }
    match host {
        None if !is_http10 => return Err(Violation::HostMissing),
        Some(host) if !is_host(host) => return Err(Violation::HostInvalid),
        _ => {}
    }
    match (encoding, length) {
        (None, None) => Ok(BodyFraming::Absent),
        (None, Some(length)) => number(length).map(BodyFraming::Length).ok_or(Violation::ContentLengthInvalid),
        (Some(_), Some(_)) => Err(Violation::TransferEncodingWithContentLength),
        (Some(_), None) if is_http10 => Err(Violation::TransferEncodingInHttp10),
        (Some(b"chunked"), None) => Ok(BodyFraming::Chunked),
        (Some(_), None) => Err(Violation::TransferEncodingUnsupported),
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
