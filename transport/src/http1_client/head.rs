//! Encodes heads of requests, decodes heads of responses (RFC 9112), and finds the length of each
//! response body. No I/O.
//!
//! The decoder refuses ambiguous heads: the end of a body decides where the next response starts.

use std::{mem::MaybeUninit, sync::Arc};

use bytes::{Buf as _, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri, Version,
    header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING},
    request::Parts,
    response,
};

use crate::{
    head_cache::{HeadMatch, HeadPattern, number},
    vectored_body::COPIED_BYTES_MAX,
};

/// Number of headers that a response may have.
const HEADERS_MAX: usize = 100;

/// Bytes of `content-length: ` with the longest possible number, and the ends of its line and of
/// the head.
const LENGTH_LINE_BYTES_MAX: usize = 40;

/// End of a response's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyLength {
    Exactly(u64),
    Chunked,
    /// The body ends with the connection.
    UntilClosed,
}

/// A response before its body.
#[derive(Debug, Clone)]
pub(super) struct ResponseHead {
    pub(super) parts: Arc<response::Parts>,
    pub(super) length: BodyLength,
    /// True if another request may follow on the connection.
    pub(super) keep_alive: bool,
}

/// Encodes the head of a request. The body needs no encoding.
pub(super) fn encode(head: &Parts, body_bytes: usize) -> Vec<u8> {
    let mut out = encode_open(head);
    if body_bytes > 0 || head.method == Method::POST {
        end_with_length(&mut out, body_bytes);
    } else {
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// Completes the head of a POST from [`encode_open`] with the length of its body. The result has
/// space for a body that is copied behind it.
pub(super) fn complete_head(open: &[u8], body_bytes: usize) -> Vec<u8> {
    let copied_bytes = if body_bytes <= COPIED_BYTES_MAX { body_bytes } else { 0 };
    let mut out = Vec::with_capacity(open.len() + LENGTH_LINE_BYTES_MAX + copied_bytes);
    out.extend_from_slice(open);
    end_with_length(&mut out, body_bytes);
    out
}

/// Encodes a head up to the header with the length of the body.
pub(super) fn encode_open(head: &Parts) -> Vec<u8> {
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut out = Vec::with_capacity(512);
    out.extend_from_slice(head.method.as_str().as_bytes());
    out.push(b' ');
    // `http://host?query` has an empty path.
    if !path.starts_with('/') {
        out.push(b'/');
    }
    out.extend_from_slice(path.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    if !head.headers.contains_key(HOST) {
        line(&mut out, "host", host(&head.uri).as_bytes());
    }
    for (name, value) in &head.headers {
        // These headers describe the framing, which this client sets itself.
        if ![CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION].contains(name) {
            line(&mut out, name.as_str(), value.as_bytes());
        }
    }
    out
}

fn end_with_length(out: &mut Vec<u8>, body_bytes: usize) {
    out.extend_from_slice(b"content-length: ");
    out.extend_from_slice(itoa::Buffer::new().format(body_bytes).as_bytes());
    out.extend_from_slice(b"\r\n\r\n");
}

fn line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Returns the value of the `Host` header, without the default port (RFC 9110, 7.2).
fn host(uri: &Uri) -> &str {
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    match uri.port_u16() {
        Some(80) => uri.host().unwrap_or(authority),
        _ => authority,
    }
}

/// A response head that the server may repeat.
#[derive(Debug)]
pub(super) struct CachedHead {
    head: ResponseHead,
    repeated: HeadPattern,
}

impl CachedHead {
    /// Removes the head at the start of `buffer` if it repeats this one.
    fn match_head(&self, buffer: &mut BytesMut) -> Option<ResponseHead> {
        let HeadMatch { head_bytes, body_bytes } = self.repeated.match_prefix(buffer)?;
        buffer.advance(head_bytes);
        Some(ResponseHead { length: BodyLength::Exactly(body_bytes as u64), ..self.head.clone() })
    }
}

/// Removes the next response's head from `buffer`. Returns `None` while the head is incomplete.
/// Skips informational responses (1xx). `known` is the previous head, which this one replaces.
pub(super) fn decode(
    buffer: &mut BytesMut,
    known: &mut Option<Box<CachedHead>>,
) -> Result<Option<ResponseHead>, &'static str> {
    if let Some(head) = known.as_ref().and_then(|known| known.match_head(buffer)) {
        return Ok(Some(head));
    }
    loop {
        // Uninitialised: a response has a handful of the hundred headers it may have.
        let mut headers = [const { MaybeUninit::uninit() }; HEADERS_MAX];
        let mut parsed = httparse::Response::new(&mut []);
        let read = httparse::ParserConfig::default().parse_response_with_uninit_headers(
            &mut parsed,
            buffer,
            &mut headers,
        );
        let bytes = match read.map_err(|_| "the response is not HTTP/1")? {
            httparse::Status::Complete(bytes) => bytes,
            httparse::Status::Partial => return Ok(None),
        };
        let status = parsed
            .code
            .and_then(|code| StatusCode::from_u16(code).ok())
            .ok_or("the response has no status")?;
        if status == StatusCode::SWITCHING_PROTOCOLS {
            return Err(
                "the server switches to another protocol, which the request did not ask for",
            );
        }
        if !status.is_informational() {
            let head = check_head(status, parsed.version == Some(1), parsed.headers)?;
            *known = repeated(&buffer[..bytes], parsed.headers, &head);
            buffer.advance(bytes);
            return Ok(Some(head));
        }
        buffer.advance(bytes);
    }
}

/// Returns a pattern for the head if it is worth keeping: a response whose body has one announced
/// length.
fn repeated(
    text: &[u8],
    raw: &[httparse::Header<'_>],
    head: &ResponseHead,
) -> Option<Box<CachedHead>> {
    let mut lengths =
        raw.iter().filter(|header| header.name.eq_ignore_ascii_case(CONTENT_LENGTH.as_str()));
    let length = lengths.next().filter(|_| lengths.next().is_none())?.value;
    let is_whole = matches!(head.length, BodyLength::Exactly(bytes) if number(length).is_some_and(|stated| stated as u64 == bytes));
    let is_usual = is_whole && head.keep_alive && head.parts.status == StatusCode::OK;
    is_usual.then(|| {
        Box::new(CachedHead { head: head.clone(), repeated: HeadPattern::new(text, length) })
    })
}

fn check_head(
    status: StatusCode,
    is_1_1: bool,
    raw: &[httparse::Header<'_>],
) -> Result<ResponseHead, &'static str> {
    let mut headers = HeaderMap::with_capacity(raw.len());
    for header in raw {
        let name = HeaderName::from_bytes(header.name.as_bytes())
            .map_err(|_| "a header has an invalid name")?;
        headers.append(
            name,
            HeaderValue::from_bytes(header.value).map_err(|_| "a header has an invalid value")?,
        );
    }
    let announced = content_length(&headers)?;
    let codings = headers.contains_key(TRANSFER_ENCODING);
    let length = match announced {
        _ if matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) => {
            BodyLength::Exactly(0)
        }
        // RFC 9112, 6.1: HTTP/1.0 has no transfer codings.
        _ if codings && !is_1_1 => return Err("the response has a transfer coding in HTTP/1.0"),
        _ if codings => coding(&headers)?,
        Some(length) => BodyLength::Exactly(length),
        None => BodyLength::UntilClosed,
    };
    let has_option = |option: &str| {
        let listed = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
        listed
            .flat_map(|text| text.split(','))
            .any(|token| token.trim().eq_ignore_ascii_case(option))
    };
    // RFC 9112, 6.3: a length together with a coding is ignored, and may smuggle a second response.
    let is_clear = length != BodyLength::UntilClosed && !(codings && announced.is_some());
    let keeps = is_clear && if is_1_1 { !has_option("close") } else { has_option("keep-alive") };
    // Responses that share a head differ only in this header.
    headers.remove(CONTENT_LENGTH);
    let (mut parts, ()) = Response::new(()).into_parts();
    (parts.status, parts.headers) = (status, headers);
    parts.version = if is_1_1 { Version::HTTP_11 } else { Version::HTTP_10 };
    Ok(ResponseHead { parts: Arc::new(parts), length, keep_alive: keeps })
}

fn content_length(headers: &HeaderMap) -> Result<Option<u64>, &'static str> {
    let mut length = None;
    for value in headers.get_all(CONTENT_LENGTH) {
        let text = value.to_str().unwrap_or_default();
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let stated = text
            .parse::<u64>()
            .ok()
            .filter(|_| digits)
            .ok_or("the Content-Length is not a number")?;
        if length.replace(stated).is_some_and(|before| before != stated) {
            return Err("the response has two different Content-Length values");
        }
    }
    Ok(length)
}

/// Accepts the chunked coding only, because the client requests no other.
fn coding(headers: &HeaderMap) -> Result<BodyLength, &'static str> {
    let mut listed = headers.get_all(TRANSFER_ENCODING).iter();
    match (listed.next(), listed.next()) {
        (Some(one), None) if one.as_bytes().eq_ignore_ascii_case(b"chunked") => {
            Ok(BodyLength::Chunked)
        }
        _ => Err("the response has an unsupported transfer coding"),
    }
}

#[cfg(test)]
mod tests {
    use bytes::BufMut as _;

    use super::*;

    #[test]
    fn a_repeated_head_sent_byte_by_byte_is_complete_at_its_last_byte() {
        let early =
            "HTTP/1.1 103 Early Hints\r\nContent-Length: 5\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n";
        let (mut known, mut buffer) = (None, BytesMut::new());
        for (before, length) in
            [("", 5), ("", 5), ("", 123), (early, 123), (early, 12), ("", 1), (early, 0)]
        {
            let text = format!(
                "{before}HTTP/1.1 200 OK\r\nX: 1\r\nContent-Length: {length}\r\nY: 1\r\n\r\n"
            );
            let mut decoded = None;
            for byte in text.bytes() {
                assert!(decoded.is_none(), "{text}");
                buffer.put_u8(byte);
                decoded = decode(&mut buffer, &mut known).unwrap();
            }
            let head = decoded.unwrap_or_else(|| panic!("{text}"));
            assert_eq!(
                (head.parts.status, head.length),
                (StatusCode::OK, BodyLength::Exactly(length)),
                "{text}"
            );
            assert!(buffer.is_empty() && known.is_some(), "{text}");
        }
    }
}
