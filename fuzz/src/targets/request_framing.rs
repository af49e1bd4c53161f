//! The strict framing of requests: what passes is read alike by hyper and by models of tolerant
//! proxies, in pieces of any size.

use bytes::Bytes;
use tokio::io::AsyncReadExt as _;
use transport::framing::FramingGuard;

use super::{
    HTTP_TOKENS, block_on,
    http_reader::{ReadRequest, TOLERANT_READERS, read_by_hyper},
};
use crate::{
    Outcome, Target,
    pieces::{Pieces, Sent},
};

pub(super) const TARGET: Target =
    Target { name: "request_framing", tokens: HTTP_TOKENS, bytes_max: 2048, check };

const HEAD_BYTES_MAX: usize = 512;
const CHUNKS_BYTES_MAX: usize = 600;
/// Start of the request that replaces a refused one.
const REPLACEMENT: &[u8] =
    b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-mcp-broker-framing-violation: ";
const HEAD_TOO_LONG: &[u8] = b"head-too-long";

fn check(input: &[u8]) -> Outcome {
    let whole = passed(input, input.len().max(1));
    for at_once in [1, 5] {
        let in_pieces = passed(input, at_once);
        // Which fault of a head is noticed first depends on the pieces.
        let is_long = |(bytes, _): &(Vec<u8>, bool)| {
            bytes.windows(HEAD_TOO_LONG.len()).any(|window| window == HEAD_TOO_LONG)
        };
        match is_long(&in_pieces) == is_long(&whole) {
            true => assert_eq!(in_pieces, whole, "pieces of {at_once} bytes"),
            false => assert_eq!(
                before_refusal(&in_pieces.0),
                before_refusal(&whole.0),
                "pieces of {at_once} bytes"
            ),
        }
    }
    let (bytes, is_error) = whole;
    let requests = before_refusal(&bytes);
    let refused = (requests.len() < bytes.len()).then_some(requests.len());
    let ends: Vec<Vec<usize>> =
        TOLERANT_READERS.iter().map(|reader| reader.ends(requests)).collect();
    for (reader, found) in TOLERANT_READERS.iter().zip(&ends) {
        assert_eq!(*found, ends[0], "{reader:?} splits the requests in another way");
    }
    let read = by_hyper(requests);
    assert!(
        read.len() <= ends[0].len(),
        "hyper reads {} requests, others {}",
        read.len(),
        ends[0].len()
    );
    for (request, end) in read.iter().zip(&ends[0]) {
        assert_ends_with(&requests[..*end], request);
    }
    let code =
        refused.map(|at| String::from_utf8_lossy(&bytes[at + REPLACEMENT.len()..]).into_owned());
    Outcome::of(&(code, is_error, ends[0].len().min(4), read.len().min(4)))
}

/// Returns the requests that passed before one was refused.
fn before_refusal(bytes: &[u8]) -> &[u8] {
    let refused = bytes.windows(REPLACEMENT.len()).position(|window| window == REPLACEMENT);
    &bytes[..refused.unwrap_or(bytes.len())]
}

/// Checks that a body without chunks is the end of what belongs to the request.
fn assert_ends_with(bytes: &[u8], request: &ReadRequest) {
    let is_chunked = request.headers.iter().any(|(name, _)| name == "transfer-encoding");
    assert!(is_chunked || bytes.ends_with(&request.body), "the body of {request:?}");
}

fn by_hyper(bytes: &[u8]) -> Vec<ReadRequest> {
    block_on(read_by_hyper(Sent(Bytes::copy_from_slice(bytes))))
}

/// Returns the bytes that pass, and whether reading ended with an error.
fn passed(input: &[u8], at_once: usize) -> (Vec<u8>, bool) {
    let (first, rest) = input.split_at(at_once.min(input.len()));
    let mut guard = FramingGuard::new(
        Pieces::new(rest, at_once),
        Bytes::copy_from_slice(first),
        HEAD_BYTES_MAX,
        CHUNKS_BYTES_MAX,
    );
    let (mut passed, mut buffer) = (Vec::new(), [0; 300]);
    loop {
        // After a refusal no byte arrives, and no end of the stream either.
        let read = block_on(async {
            tokio::select! { biased; read = guard.read(&mut buffer) => Some(read), () = std::future::ready(()) => None }
        });
        match read {
            Some(Ok(count @ 1..)) => passed.extend_from_slice(&buffer[..count]),
            Some(Ok(0)) | None => return (passed, false),
            Some(Err(_)) => return (passed, true),
        }
    }
}
