//! Strict framing of HTTP/1.1 requests (RFC 9112): one place decides, in one way, where a request
//! ends.
//!
//! `http1_server` uses it for the requests it serves. [`FramingGuard`] uses it in front of the HTTP
//! library for all other requests. The two cover every listener that speaks HTTP/1.1 to clients and
//! operators.
//!
//! A proxy in front of the broker may interpret a lenient message differently from the broker. A
//! second request can then hide in the first. So the broker refuses every message that two readers
//! could interpret differently: the request gets [`FramingViolation::status`], and the connection
//! closes.

mod chunked;
mod guard;
mod head;

use std::{error::Error, io};

use http::{HeaderMap, StatusCode};

pub(crate) use self::{
    chunked::{ChunkScanner, ChunkStep, Padding},
    head::{BodyFraming, read_head},
};
pub use self::{guard::FramingGuard, head::is_websocket_upgrade};

/// Error for a chunk that makes a body longer than its connection allows. The reader of the body
/// finds it among the sources of its error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the chunks of the body are longer than {bytes_max} bytes")]
pub struct ChunksTooLong {
    pub bytes_max: u64,
}

impl ChunksTooLong {
    /// Returns whether a body ended for this reason.
    pub fn caused(error: &(dyn Error + 'static)) -> bool {
        let mut next = Some(error);
        while let Some(error) = next {
            // An I/O error wraps another error, and its `source` skips that error.
            let held = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            if held.is_some_and(|held| held.is::<Self>()) || error.is::<Self>() {
                return true;
            }
            next = error.source();
        }
        false
    }
}

/// Header that names the violation in the replacement request for a refused request. The guard
/// refuses client requests that have this header.
const VIOLATION_HEADER: &str = "x-mcp-broker-framing-violation";

/// Reason why a request is refused before any work is done for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FramingViolation {
    BareLineFeed,
    BareCarriageReturn,
    RequestLine,
    HttpVersion,
    LineFolding,
    HeaderName,
    HeaderValue,
    HostMissing,
    HostRepeated,
    HostInvalid,
    ContentLengthInvalid,
    ContentLengthRepeated,
    TransferEncodingRepeated,
    TransferEncodingUnsupported,
    TransferEncodingWithContentLength,
    TransferEncodingInHttp10,
    ReservedHeader,
    HeadTooLong,
    TooManyHeaders,
}

impl FramingViolation {
    const ALL: [Self; 19] = [
        Self::BareLineFeed,
        Self::BareCarriageReturn,
        Self::RequestLine,
        Self::HttpVersion,
        Self::LineFolding,
        Self::HeaderName,
        Self::HeaderValue,
        Self::HostMissing,
        Self::HostRepeated,
        Self::HostInvalid,
        Self::ContentLengthInvalid,
        Self::ContentLengthRepeated,
        Self::TransferEncodingRepeated,
        Self::TransferEncodingUnsupported,
        Self::TransferEncodingWithContentLength,
        Self::TransferEncodingInHttp10,
        Self::ReservedHeader,
        Self::HeadTooLong,
        Self::TooManyHeaders,
    ];

    /// Returns the violation that a replacement request names, or `None` for a request of a client.
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let code = headers.get(VIOLATION_HEADER)?.as_bytes();
        Self::ALL.into_iter().find(|violation| violation.code().as_bytes() == code)
    }

    pub fn status(self) -> StatusCode {
        match self {
            Self::HeadTooLong | Self::TooManyHeaders => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            _ => StatusCode::BAD_REQUEST,
        }
    }

    /// Describes the violation and the allowed form.
    pub fn reason(self) -> &'static str {
        match self {
            Self::BareLineFeed => {
                "a line of the request ends with LF alone; a line ends with CR LF"
            }
            Self::BareCarriageReturn => {
                "the head of the request has a CR without LF; a line ends with CR LF"
            }
            Self::RequestLine => {
                "the request line is not a method, a target without a fragment, and HTTP/1.1, with one space between them"
            }
            Self::HttpVersion => {
                "the version is not supported; allowed: HTTP/1.1, HTTP/1.0, and HTTP/2 from the first byte on"
            }
            Self::LineFolding => {
                "a line of the head begins with white space; each header must be on one line"
            }
            Self::HeaderName => {
                "a header is not a name, a colon and a value; white space before the colon is not allowed"
            }
            Self::HeaderValue => "the value of a header has a control character",
            Self::HostMissing => "a request of HTTP/1.1 must have a Host header",
            Self::HostRepeated => "a request must have only one Host header",
            Self::HostInvalid => "Host is not a host name or address with an optional port",
            Self::ContentLengthInvalid => {
                "Content-Length is not a decimal number; allowed: digits alone"
            }
            Self::ContentLengthRepeated => "a request must have only one Content-Length header",
            Self::TransferEncodingRepeated => {
                "a request must have only one Transfer-Encoding header"
            }
            Self::TransferEncodingUnsupported => {
                "Transfer-Encoding is not supported; allowed: chunked, in lower case and alone"
            }
            Self::TransferEncodingWithContentLength => {
                "Transfer-Encoding and Content-Length are in one request; allowed: one of them"
            }
            Self::TransferEncodingInHttp10 => {
                "a request of HTTP/1.0 must not have a Transfer-Encoding"
            }
            Self::ReservedHeader => {
                "the header x-mcp-broker-framing-violation is reserved for the broker"
            }
            Self::HeadTooLong => "the head of the request is too long",
            Self::TooManyHeaders => "the request has too many headers; allowed: 100",
        }
    }

    fn code(self) -> &'static str {
        match self {
            Self::BareLineFeed => "bare-line-feed",
            Self::BareCarriageReturn => "bare-carriage-return",
            Self::RequestLine => "request-line",
            Self::HttpVersion => "http-version",
            Self::LineFolding => "line-folding",
            Self::HeaderName => "header-name",
            Self::HeaderValue => "header-value",
            Self::HostMissing => "host-missing",
            Self::HostRepeated => "host-repeated",
            Self::HostInvalid => "host-invalid",
            Self::ContentLengthInvalid => "content-length-invalid",
            Self::ContentLengthRepeated => "content-length-repeated",
            Self::TransferEncodingRepeated => "transfer-encoding-repeated",
            Self::TransferEncodingUnsupported => "transfer-encoding-unsupported",
            Self::TransferEncodingWithContentLength => "transfer-encoding-with-content-length",
            Self::TransferEncodingInHttp10 => "transfer-encoding-in-http10",
            Self::ReservedHeader => "reserved-header",
            Self::HeadTooLong => "head-too-long",
            Self::TooManyHeaders => "too-many-headers",
        }
    }
}
