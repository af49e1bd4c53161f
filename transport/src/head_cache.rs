//! Heads of HTTP/1.1 messages that say the same: peers repeat themselves byte for byte, but for the length of a body.
//!
//! Used for the requests of a client and for the responses of a server. What was read of a head counts for all that repeat it.

use std::ops::Range;

/// A head as it came.
#[derive(Debug)]
pub(crate) struct HeadPattern {
    text: Box<[u8]>,
    /// Where it says how long its body is.
    digits: Range<usize>,
}

/// A head that was said again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeadMatch {
    pub(crate) head_bytes: usize,
    pub(crate) body_bytes: usize,
}

impl HeadPattern {
    /// A head with the value of its one `Content-Length`, which is a part of it.
    pub(crate) fn new(text: &[u8], length: &[u8]) -> Self {
        let start = length.as_ptr() as usize - text.as_ptr() as usize;
        Self { text: text.into(), digits: start..start + length.len() }
    }

    /// What `bytes` begin with, where it is this head with whatever length.
    pub(crate) fn again(&self, bytes: &[u8]) -> Option<HeadMatch> {
        let (before, behind) = (&self.text[..self.digits.start], &self.text[self.digits.end..]);
        let rest = bytes.strip_prefix(before)?;
        let (digits, rest) =
            rest.split_at(rest.iter().take_while(|byte| byte.is_ascii_digit()).count());
        let body_bytes = number(digits)?;
        let head_bytes = before.len() + digits.len() + behind.len();
        rest.starts_with(behind).then_some(HeadMatch { head_bytes, body_bytes })
    }
}

/// A length: digits and nothing else.
pub(crate) fn number(digits: &[u8]) -> Option<usize> {
    let add =
        |number: usize, digit: &u8| number.checked_mul(10)?.checked_add(usize::from(*digit - b'0'));
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    if is_number { digits.iter().try_fold(0, add) } else { None }
}
