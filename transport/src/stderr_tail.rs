//! The last bytes a child process wrote to its standard error, kept for error messages and the log.
//!
//! Filled by the drain task of `child_process`, read by whoever explains a failed child. Memory is bounded however much
//! the child writes, and what is handed out holds no control characters, so a child cannot write to a terminal or forge
//! log lines through us.

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
    /// Whether earlier bytes were dropped, so that the first character may be cut.
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

    /// The kept bytes as clean text.
    pub(crate) fn text(&self) -> String {
        let (bytes, cut) = {
            let ring = self.ring.lock();
            (ring.bytes.iter().copied().collect::<Vec<u8>>(), ring.cut)
        };
        // A cut may have gone through a character: its continuation bytes say nothing.
        let start = if cut {
            bytes.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count()
        } else {
            0
        };
        clean(&String::from_utf8_lossy(&bytes[start..]))
    }
}

/// Terminal colour and cursor sequences and CR vanish, line ends and tabs stay, other control characters become U+FFFD.
fn clean(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\n' | '\t' => cleaned.push(character),
            '\r' => {}
            '\u{1b}' if characters.peek() == Some(&'[') => {
                characters.next();
                // Parameters first, then one final character; anything else is not part of the sequence.
                while characters.next_if(|c| matches!(c, ' '..='?')).is_some() {}
                characters.next_if(|c| matches!(c, '@'..='~'));
            }
            other if other.is_control() => cleaned.push(char::REPLACEMENT_CHARACTER),
            other => cleaned.push(other),
        }
    }
    cleaned
}
