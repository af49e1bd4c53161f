//! JSON as byte spans of the sender's text.
//!
//! `envelope` walks messages with `scan` and `Walker`. Code that runs less often reads one part
//! with a [`Document`], and many parts with a [`Tape`].
//!
//! Invariants:
//!
//! - The whole text is checked (syntax, UTF-8, escapes, depth) before any part of it is used.
//! - Nothing is written to the text.
//! - Every span points into the text.

mod case_folding;
mod document;
mod duplicates;
mod named_members;
mod strings;
mod tape;
mod walker;

use std::borrow::Cow;

use bytes::Bytes;

pub(crate) use self::{case_folding::Seen, walker::Walker};
pub use self::{
    case_folding::{MemberFault, NameIndex},
    document::{AmbiguousMember, Document, Elements, Member, Members, Value},
    duplicates::duplicate_member,
    named_members::NamedMembers,
    tape::{Tape, TapeValue},
};

/// Largest JSON text accepted unless configured otherwise.
pub const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Deepest nesting of arrays and objects accepted unless configured otherwise.
pub const DEPTH_MAX: usize = 128;
/// Most members and elements in one text. Code that reads them one by one pays for each.
pub const VALUES_MAX: usize = 1024 * 1024;
/// Largest text whose spans fit into 32 bits.
const SPAN_BYTES_MAX: usize = u32::MAX as usize;

/// A range of bytes in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// Index of the first byte.
    pub start: u32,
    /// Index after the last byte.
    pub end: u32,
}

impl Span {
    /// Returns the bytes of this span within the text it was made from.
    pub fn of<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        &text[self.start as usize..self.end as usize]
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Returns whether the span holds no byte.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Returns the bytes of this span, shared instead of copied.
    pub fn slice(&self, text: &Bytes) -> Bytes {
        text.slice(self.start as usize..self.end as usize)
    }

    /// Returns this range as a range of a larger text, in which its own text begins at `offset`.
    pub fn shifted(&self, offset: u32) -> Self {
        Self { start: self.start + offset, end: self.end + offset }
    }
}

/// Limits of one JSON text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest text in bytes.
    pub bytes_max: usize,
    /// Deepest nesting of arrays and objects.
    pub depth_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes_max: MESSAGE_BYTES_MAX, depth_max: DEPTH_MAX }
    }
}

impl Limits {
    /// Returns the usual depth with this largest text. With the length of a text, the limits fit a
    /// text that was accepted before, whatever the configured limit of messages was.
    pub fn with_bytes_max(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }
}

/// Reason why a text is not JSON that the broker accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// More bytes than the limit.
    #[error("message of {size} bytes is larger than the limit of {max} bytes")]
    TooLarge {
        /// Bytes seen.
        size: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// Nested deeper than the limit.
    #[error("arrays and objects are nested deeper than the limit of {max}")]
    TooDeep {
        /// Levels allowed.
        max: usize,
    },
    /// More members and elements than [`VALUES_MAX`].
    #[error("message has more than {max} members and elements")]
    TooManyValues {
        /// Values allowed.
        max: usize,
    },
    /// Not JSON.
    #[error("message is not valid JSON")]
    Malformed,
}

/// The six kinds of JSON value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// `{}`
    Object,
    /// `[]`
    Array,
    /// `""`
    String,
    /// `0`
    Number,
    /// `true` or `false`
    Bool,
    /// `null`
    Null,
}

impl ValueKind {
    /// Returns the kind of a value that begins with this byte.
    #[inline]
    fn of(first: u8) -> Self {
        match first {
            b'{' => Self::Object,
            b'[' => Self::Array,
            b'"' => Self::String,
            b't' | b'f' => Self::Bool,
            b'n' => Self::Null,
            _ => Self::Number,
        }
    }
}

/// Passes a walker on the outermost value of `text` to `read`, which must pass over all of it. The
/// result of `read` is dropped if the text is not JSON. Allocates nothing unless arrays and objects
/// are more than 64 levels deep.
pub(crate) fn scan<'a, R>(
    text: &'a [u8],
    limits: &Limits,
    read: impl FnOnce(&mut Walker<'a>) -> R,
) -> Result<R, JsonError> {
    let max = limits.bytes_max.min(SPAN_BYTES_MAX);
    if text.len() > max {
        return Err(JsonError::TooLarge { size: text.len(), max });
    }
    if simdutf8::basic::from_utf8(text).is_err() {
        return Err(JsonError::Malformed);
    }
    let mut walker = Walker::new(text, limits);
    let found = read(&mut walker);
    walker.finish().map(|()| found)
}

/// Returns the text of a JSON string literal; `None` when `raw` is not one.
pub fn unquote(raw: &[u8]) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if memchr::memchr(b'\\', inner).is_none() {
        return std::str::from_utf8(inner).ok().map(Cow::Borrowed);
    }
    serde_json::from_slice(raw).ok().map(Cow::Owned)
}

/// Appends `text` as a JSON string literal.
pub fn quote_into(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("writing a string to memory cannot fail");
}

/// Returns `text` as a JSON string literal.
pub fn quote(text: &str) -> String {
    serde_json::to_string(text).expect("writing a string to memory cannot fail")
}
