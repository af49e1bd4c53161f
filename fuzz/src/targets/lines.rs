//! The reader of lines, which frames messages on pipes, TCP and QUIC streams, against a slow reading
//! of the whole stream.
//!
//! The first byte is the limit for a line.

use bytes::Bytes;
use transport::{FrameSource, LineReader, ReadError};

use super::block_on;
use crate::{Outcome, Target, pieces::Pieces};

pub(super) const TARGET: Target = Target {
    name: "lines",
    tokens: &["\n", "\r\n", "\r", "\n\n", "{}", "\0"],
    bytes_max: 1024,
    check,
};

/// Lines, whether the last one had no end, and whether a line was too long.
type Read = (Vec<Bytes>, bool, bool);

fn check(input: &[u8]) -> Outcome {
    let [limit, stream @ ..] = input else { return Outcome::of(&"short") };
    let limit = usize::from(*limit);
    let slow = slowly(stream, limit);
    for piece_bytes in [1, 3, 64, stream.len().max(1)] {
        assert_eq!(read(stream, piece_bytes, limit), slow, "pieces of {piece_bytes} bytes");
    }
    let (lines, is_unterminated, is_too_long) = slow;
    Outcome::of(&(lines.len().min(8), is_unterminated, is_too_long))
}

fn read(stream: &[u8], piece_bytes: usize, limit: usize) -> Read {
    block_on(async {
        let mut reader = LineReader::new(Pieces::new(stream, piece_bytes), limit);
        let mut lines = Vec::new();
        loop {
            match reader.next().await {
                Ok(Some(line)) => lines.push(line),
                Ok(None) => return (lines, reader.is_unterminated(), false),
                Err(ReadError::TooLong { limit: told }) => {
                    assert_eq!(told, limit, "the limit that was exceeded");
                    assert!(matches!(reader.next().await, Ok(None)), "an error is the last");
                    return (lines, false, true);
                }
                Err(error) => panic!("the stream has no other fault: {error}"),
            }
        }
    })
}

fn slowly(stream: &[u8], limit: usize) -> Read {
    let mut lines = Vec::new();
    let mut is_unterminated = false;
    for line in stream.split_inclusive(|byte| *byte == b'\n') {
        is_unterminated = !line.ends_with(b"\n");
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.len() > limit {
            return (lines, false, true);
        }
        if !line.is_empty() {
            lines.push(Bytes::copy_from_slice(line));
        }
    }
    (lines, is_unterminated, false)
}
