//! Recognises repeated heads of HTTP/1.1 messages. Peers often repeat a head byte for byte, except
//! for the length of the body.
//!
//! Used for the requests of clients and the responses of servers. A parsed head counts for all
//! messages that repeat it.

use std::ops::Range;

/// The bytes of a head that may repeat.
#[derive(Debug)]
pub(crate) struct HeadPattern {
    text: Box<[u8]>,
    /// Position of the body length in `text`.
    digits: Range<usize>,
}

/// Lengths of a message whose head repeats the pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeadMatch {
    pub(crate) head_bytes: usize,
    pub(crate) body_bytes: usize,
}

impl HeadPattern {
    /// Stores a head. `length` is the value of its only `Content-Length` and a slice of `text`.
    pub(crate) fn new(text: &[u8], length: &[u8]) -> Self {
        let start = length.as_ptr() as usize - text.as_ptr() as usize;
        Self { text: text.into(), digits: start..start + length.len() }
    }

    /// Returns the lengths of the message at the start of `bytes` if it repeats this head, with any
    /// body length.
    pub(crate) fn match_prefix(&self, bytes: &[u8]) -> Option<HeadMatch> {
        let (before, behind) = (&self.text[..self.digits.start], &self.text[self.digits.end..]);
        let rest = bytes.strip_prefix(before)?;
        let (digits, rest) =
            rest.split_at(rest.iter().take_while(|byte| byte.is_ascii_digit()).count());
        let body_bytes = number(digits)?;
        let head_bytes = before.len() + digits.len() + behind.len();
        rest.starts_with(behind).then_some(HeadMatch { head_bytes, body_bytes })
    }
}

/// Parses a length that consists of digits only.
pub(crate) fn number(digits: &[u8]) -> Option<usize> {
    let add =
        |number: usize, digit: &u8| number.checked_mul(10)?.checked_add(usize::from(*digit - b'0'));
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    if is_number { digits.iter().try_fold(0, add) } else { None }
}
