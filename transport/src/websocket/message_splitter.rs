//! Splits a text frame with several messages, separated by line breaks. The broker tolerates them,
//! because bridges from line-based wires send them.
//!
//! A line break inside a message is whitespace, so only line breaks outside of all brackets and
//! strings separate messages.

use bytes::{Buf, Bytes};

/// The messages of a text frame that have not been returned yet.
#[derive(Debug, Default)]
pub(super) struct MessageSplitter {
    rest: Bytes,
}

impl MessageSplitter {
    pub(super) fn new(text: Bytes) -> Self {
        Self { rest: text }
    }

    /// Returns the next message, trimmed and never empty.
    pub(super) fn take_next(&mut self) -> Option<Bytes> {
        self.rest.advance(self.rest.len() - self.rest.trim_ascii_start().len());
        if self.rest.is_empty() {
            return None;
        }
        // Usually the frame has one message, which is returned as it is.
        let end = match memchr::memchr(b'\n', &self.rest) {
            None => self.rest.len(),
            Some(_) => end_of_message(&self.rest),
        };
        let mut message = self.rest.split_to(end);
        message.truncate(message.trim_ascii_end().len());
        Some(message)
    }
}

/// Returns the length up to and including the first line break between two messages.
fn end_of_message(text: &[u8]) -> usize {
    let (mut depth, mut in_string, mut is_escaped) = (0_usize, false, false);
    for (at, byte) in text.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'\n' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    text.len()
}
