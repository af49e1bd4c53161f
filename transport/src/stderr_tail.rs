//! The last bytes that a child process wrote to its standard error, kept for error messages and the
//! log.
//!
//! The drain task of `child_process` fills it, and error reports about a failed child read it.
//! Memory is bounded however much the child writes. The text contains no control characters, so a
//! child cannot write to a terminal or forge log lines through the broker.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

#[derive(Debug, Clone)]
pub(crate) struct StderrTail {
    ring: Arc<Mutex<Ring>>,
}

#[derive(Debug)]
struct Ring {
    bytes: VecDeque<u8>,
    bytes_max: usize,
    /// Set when earlier bytes were dropped, so that the first character may be incomplete.
    cut: bool,
}

impl StderrTail {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { ring: Arc::new(Mutex::new(Ring { bytes: VecDeque::new(), bytes_max, cut: false })) }
    }

    pub(crate) fn push(&self, chunk: &[u8]) {
        let mut ring = self.ring.lock();
        let kept = &chunk[chunk.len().saturating_sub(ring.bytes_max)..];
        let surplus = (ring.bytes.len() + kept.len()).saturating_sub(ring.bytes_max);
        ring.cut |= surplus > 0 || kept.len() < chunk.len();
        ring.bytes.drain(..surplus);
        ring.bytes.extend(kept);
    }

    /// Returns the kept bytes as clean text.
    pub(crate) fn text(&self) -> String {
        let (bytes, cut) = {
            let ring = self.ring.lock();
            (ring.bytes.iter().copied().collect::<Vec<u8>>(), ring.cut)
        };
        // A cut may split a character. Its continuation bytes are skipped.
        let start = if cut {
            bytes.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count()
        } else {
            0
        };
        clean(&String::from_utf8_lossy(&bytes[start..]))
    }
}

/// Removes terminal colour and cursor sequences and CR. Keeps line ends and tabs. Replaces other
/// control characters with U+FFFD.
fn clean(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\n' | '\t' => cleaned.push(character),
            '\r' => {}
            '\u{1b}' if characters.peek() == Some(&'[') => {
                characters.next();
                // A sequence has parameters, then one final character. Any other character is not
                // part of it.
                while characters.next_if(|c| matches!(c, ' '..='?')).is_some() {}
                characters.next_if(|c| matches!(c, '@'..='~'));
            }
            other if other.is_control() => cleaned.push(char::REPLACEMENT_CHARACTER),
            other => cleaned.push(other),
        }
    }
    cleaned
}
