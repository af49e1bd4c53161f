//! JSON as byte spans of the sender's text. The only file that names a SIMD JSON library.
//!
//! `envelope` walks messages with `scan` and `Walker`; colder code uses [`Document`] and [`Value`]. Invariants:
//! the text is fully validated (syntax, UTF-8, escapes, depth) before anything is read from it, the library only ever
//! sees a scratch copy because it writes into its input, and every span points into the original bytes.

mod document;

use std::borrow::Cow;
use std::cell::Cell;

use bytes::Bytes;
use simd_json::{Buffers, ErrorType, INPUT_PADDING, Tape};

pub use document::{Document, Elements, Member, Members, Value};

/// Largest JSON text accepted unless configured otherwise.
pub const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Deepest nesting of arrays and objects accepted unless configured otherwise.
pub const DEPTH_MAX: usize = 128;
/// Most members and elements in one text. Validation needs some 64 bytes for each, so that a text of nothing but `1,1,1`
/// would otherwise cost forty times its size.
pub const VALUES_MAX: usize = 1024 * 1024;
/// A thread keeps its scratch buffers unless a message made them larger than this.
const SCRATCH_BYTES_KEPT_MAX: usize = 1024 * 1024;
/// Structural indexes kept in the scratch buffers: their tape costs about 24 bytes each.
const SCRATCH_VALUES_KEPT_MAX: usize = SCRATCH_BYTES_KEPT_MAX / 8;
/// Spans are 32 bits wide; this leaves room for the padding.
const SPAN_BYTES_MAX: usize = u32::MAX as usize - 1024;

/// A range of bytes in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// Index of the first byte.
    pub start: u32,
    /// Index after the last byte.
    pub end: u32,
}

impl Span {
    /// The bytes of this span within the text it was made from.
    pub fn of<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        &text[self.start as usize..self.end as usize]
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Whether it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The same bytes, shared instead of copied.
    pub fn slice(&self, text: &Bytes) -> Bytes {
        text.slice(self.start as usize..self.end as usize)
    }

    /// The same range when the text it was found in begins at `offset` of a larger one.
    pub fn shifted(&self, offset: u32) -> Self {
        Self { start: self.start + offset, end: self.end + offset }
    }
}

/// What a JSON text may cost.
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

/// Why a text is not JSON we accept.
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

/// Buffers one thread reuses from message to message.
struct Scratch {
    depth_max: usize,
    copy: Vec<u8>,
    buffers: Buffers,
    tape: Tape<'static>,
}

thread_local! {
    // Taken out while in use, so that a nested scan finds it empty and makes its own.
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

impl Scratch {
    fn new(depth_max: usize) -> Box<Self> {
        Box::new(Self { depth_max, copy: Vec::new(), buffers: Buffers::with_max_depth(0, depth_max), tape: Tape(Vec::new()) })
    }

    fn take(depth_max: usize) -> Box<Self> {
        SCRATCH.take().filter(|scratch| scratch.depth_max == depth_max).unwrap_or_else(|| Self::new(depth_max))
    }

    fn put_back(self: Box<Self>) {
        let small = self.copy.capacity() <= SCRATCH_BYTES_KEPT_MAX && self.tape.0.capacity() <= SCRATCH_VALUES_KEPT_MAX;
        if small {
            SCRATCH.set(Some(self));
        }
    }

    /// Validates `text` and leaves its structural indexes in the buffers.
    fn validate(&mut self, text: &[u8]) -> Result<(), JsonError> {
        self.copy.clear();
        self.copy.reserve(text.len() + INPUT_PADDING);
        self.copy.extend_from_slice(text);
        self.copy.resize(text.len() + INPUT_PADDING, b' ');
        let mut tape = std::mem::replace(&mut self.tape, Tape(Vec::new())).reset();
        let verdict = simd_json::fill_tape_padded(&mut self.copy, text.len(), &mut self.buffers, &mut tape);
        self.tape = tape.reset();
        verdict.map_err(|error| match error.error() {
            ErrorType::DepthLimitExceeded => JsonError::TooDeep { max: self.depth_max },
            _ => JsonError::Malformed,
        })
    }
}

/// Validates `text` and hands a walker at its root to `read`. Allocates nothing once the thread's buffers are warm.
pub(crate) fn scan<R>(text: &[u8], limits: &Limits, read: impl FnOnce(Walker<'_>) -> R) -> Result<R, JsonError> {
    let max = limits.bytes_max.min(SPAN_BYTES_MAX);
    if text.len() > max {
        return Err(JsonError::TooLarge { size: text.len(), max });
    }
    if has_too_many_values(text) {
        return Err(JsonError::TooManyValues { max: VALUES_MAX });
    }
    let mut scratch = Scratch::take(limits.depth_max);
    let verdict = scratch.validate(text);
    let outcome = verdict.map(|()| read(Walker { text, structurals: scratch.buffers.structural_indexes(), at: 0 }));
    scratch.put_back();
    outcome
}

/// Counts commas before anything is spent on the text. Only long texts are looked at, and only those with many commas are
/// looked at again to leave out the ones within strings, such as a CSV file's.
fn has_too_many_values(text: &[u8]) -> bool {
    if text.len() <= VALUES_MAX || memchr::memchr_iter(b',', text).count() < VALUES_MAX {
        return false;
    }
    let (mut commas, mut rest) = (0, text);
    while let Some(open) = memchr::memchr(b'"', rest) {
        commas += memchr::memchr_iter(b',', &rest[..open]).count();
        rest = after_string(&rest[open + 1..]);
    }
    commas + memchr::memchr_iter(b',', rest).count() >= VALUES_MAX
}

/// What follows the closing quote of a string whose opening quote has been passed.
fn after_string(mut text: &[u8]) -> &[u8] {
    while let Some(at) = memchr::memchr2(b'"', b'\\', text) {
        let escaped = text[at] == b'\\';
        text = text.get(at + 1 + usize::from(escaped)..).unwrap_or_default();
        if !escaped {
            return text;
        }
    }
    &[]
}

/// A cursor over validated JSON. `structurals` holds the index of every bracket, colon and comma and of the first byte
/// of every string, number and literal; `at` is the one the cursor stands on.
#[derive(Clone, Copy)]
pub(crate) struct Walker<'a> {
    text: &'a [u8],
    structurals: &'a [u32],
    at: usize,
}

impl<'a> Walker<'a> {
    /// Index of the byte under the cursor.
    pub(crate) fn start(&self) -> u32 {
        self.structurals[self.at]
    }

    fn byte(&self) -> u8 {
        self.text[self.start() as usize]
    }

    /// What the value under the cursor is.
    pub(crate) fn kind(&self) -> ValueKind {
        match self.byte() {
            b'{' => ValueKind::Object,
            b'[' => ValueKind::Array,
            b'"' => ValueKind::String,
            b't' | b'f' => ValueKind::Bool,
            b'n' => ValueKind::Null,
            _ => ValueKind::Number,
        }
    }

    /// Passes over the value under the cursor and returns where it was.
    pub(crate) fn skip(&mut self) -> Span {
        match self.byte() {
            b'{' | b'[' => self.skip_container(),
            _ => self.skip_scalar(),
        }
    }

    // Runs over every structural byte of a message's arguments, hence no branch on what it is. '[' and '{', and ']' and
    // '}', differ in one bit; no other structural byte shares it.
    fn skip_container(&mut self) -> Span {
        let start = self.start();
        let mut depth = 0i32;
        for (passed, &at) in self.structurals[self.at..].iter().enumerate() {
            let byte = self.text[at as usize] | 0x20;
            depth += i32::from(byte == b'{') - i32::from(byte == b'}');
            if depth == 0 {
                self.at += passed + 1;
                return Span { start, end: at + 1 };
            }
        }
        unreachable!("validated text closes what it opens")
    }

    // A scalar ends where the whitespace before the next structural byte begins.
    fn skip_scalar(&mut self) -> Span {
        let start = self.start();
        self.at += 1;
        let limit = self.structurals.get(self.at).map_or(self.text.len(), |&next| next as usize);
        let blank = self.text[..limit].iter().rev().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count();
        Span { start, end: (limit - blank) as u32 }
    }

    /// Steps into the object or array under the cursor.
    pub(crate) fn enter(&mut self) {
        self.at += 1;
    }

    /// Moves to the next member's value and returns the key's span, quotes included. `None` once the object is left.
    pub(crate) fn next_key(&mut self) -> Option<Span> {
        if !self.next_item() {
            return None;
        }
        let key = self.skip_scalar();
        self.at += 1; // the colon
        Some(key)
    }

    /// Moves to the next element of the array the cursor is in. False once the array is left.
    pub(crate) fn next_item(&mut self) -> bool {
        match self.byte() {
            b'}' | b']' => {
                self.at += 1;
                return false;
            }
            b',' => self.at += 1,
            _ => {}
        }
        true
    }

    /// Index after the bracket that was passed last.
    pub(crate) fn end(&self) -> u32 {
        self.structurals[self.at - 1] + 1
    }

    /// A key's bytes, without quotes and with escapes resolved: who only compares needs no text. Keys are short, and a loop over
    /// one is at its end before a search for escapes has begun.
    pub(crate) fn key_bytes(&self, key: Span) -> Cow<'a, [u8]> {
        let raw = key.of(self.text);
        let inner = &raw[1..raw.len() - 1]; // validated text: a key has both its quotes
        if inner.contains(&b'\\') {
            return Cow::Owned(self.key_text(key).into_owned().into_bytes());
        }
        Cow::Borrowed(inner)
    }

    /// A key's text, without quotes and with escapes resolved.
    pub(crate) fn key_text(&self, key: Span) -> Cow<'a, str> {
        // Validated text: a string that does not decode can not get here.
        unquote(key.of(self.text)).unwrap_or_default()
    }
}

/// The text of a JSON string literal; `None` when `raw` is not one.
pub fn unquote(raw: &[u8]) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if memchr::memchr(b'\\', inner).is_none() {
        return std::str::from_utf8(inner).ok().map(Cow::Borrowed);
    }
    serde_json::from_slice(raw).ok().map(Cow::Owned)
}

/// Appends `text` as a JSON string literal.
pub fn quote_into(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("writing a string to memory can not fail");
}

/// `text` as a JSON string literal.
pub fn quote(text: &str) -> String {
    serde_json::to_string(text).expect("writing a string to memory can not fail")
}
