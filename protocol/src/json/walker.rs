//! A cursor over JSON text that checks what it passes over.
//!
//! `scan` uses it for every message, and `Document` for its values. It makes one pass: values are
//! read on the way or passed over, and both are checked against RFC 8259 and the limits. An error
//! ends the walk: the cursor stays at the end from then on, and [`Walker::finish`] returns the
//! error. The walk does not recurse, however deep the text is nested.

use std::borrow::Cow;

use super::{JsonError, Limits, Span, VALUES_MAX, ValueKind, case_folding, strings, unquote};

/// Key of a member that was passed: both its quotes are there and its escapes are whole.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key<'a> {
    text: &'a [u8],
    span: Span,
    /// True if the key has escapes, so that its value differs from its bytes.
    has_escapes: bool,
}

impl<'a> Key<'a> {
    /// Returns the span of the key, quotes included.
    pub(crate) fn span(self) -> Span {
        self.span
    }

    /// Returns the key without quotes and with escapes resolved. A caller that only compares needs
    /// no text.
    #[inline]
    pub(crate) fn bytes(self) -> Cow<'a, [u8]> {
        if self.has_escapes {
            return self.unescaped();
        }
        Cow::Borrowed(&self.text[self.span.start as usize + 1..self.span.end as usize - 1])
    }

    #[cold]
    fn unescaped(self) -> Cow<'a, [u8]> {
        Cow::Owned(self.text().into_owned().into_bytes())
    }

    /// Returns the key as text, with escapes resolved.
    pub(crate) fn text(self) -> Cow<'a, str> {
        // The key was passed: a string that does not decode cannot get here.
        unquote(self.span.of(self.text)).unwrap_or_default()
    }
}

/// Cursor on the first byte of a value, or inside an object or array before its next member or
/// element.
#[derive(Clone, Copy)]
pub(crate) struct Walker<'a> {
    text: &'a [u8],
    at: usize,
    /// Levels that may still be entered.
    remaining_levels: usize,
    /// Members and elements that may still come after a comma.
    remaining_values: usize,
    /// Index behind the bracket that was passed last.
    end: usize,
    /// True until something of the current object or array was passed.
    is_first: bool,
    broken: Option<JsonError>,
    levels_max: usize,
    has_uri_key: bool,
}

impl<'a> Walker<'a> {
    /// Creates a walker on the outermost value of a text in UTF-8.
    pub(super) fn new(text: &'a [u8], limits: &Limits) -> Self {
        let (levels_max, remaining_values) = (limits.depth_max, VALUES_MAX - 1);
        let (is_first, broken, has_uri_key) = (false, None, false);
        let mut walker = Self {
            text,
            at: 0,
            remaining_levels: levels_max,
            remaining_values,
            end: 0,
            is_first,
            broken,
            levels_max,
            has_uri_key,
        };
        walker.pass_blank();
        walker
    }

    pub(super) fn text(&self) -> &'a [u8] {
        self.text
    }

    /// Returns the error of the walk, or `Malformed` if a part of the text was not passed over.
    pub(super) fn finish(mut self) -> Result<(), JsonError> {
        self.pass_blank();
        match self.broken {
            Some(error) => Err(error),
            None if self.at < self.text.len() => Err(JsonError::Malformed),
            None => Ok(()),
        }
    }

    /// Returns the index of the byte under the cursor.
    pub(crate) fn start(&self) -> u32 {
        self.at as u32
    }

    /// Returns the kind of the value under the cursor, which its first byte decides.
    pub(crate) fn kind(&self) -> ValueKind {
        ValueKind::of(self.byte())
    }

    /// Passes over the value under the cursor and returns where it was.
    pub(crate) fn skip(&mut self) -> Span {
        let start = self.at;
        let passed = self.pass_value();
        self.record(passed);
        self.span_from(start)
    }

    /// Steps into the object or array under the cursor.
    #[inline]
    pub(crate) fn enter(&mut self) {
        match self.remaining_levels.checked_sub(1) {
            Some(remaining) => {
                (self.remaining_levels, self.at, self.is_first) = (remaining, self.at + 1, true)
            }
            None => self.record(Err(self.too_deep())),
        }
    }

    /// Moves to the next member's value and returns its key. `None`: the object has been left.
    pub(crate) fn next_key(&mut self) -> Option<Key<'a>> {
        if !self.next_in(b'}') {
            return None;
        }
        self.take_key().map_err(|error| self.record(Err(error))).ok()
    }

    /// Moves to the next element of the array the cursor is in. False: the array has been left.
    pub(crate) fn next_item(&mut self) -> bool {
        self.next_in(b']')
    }

    /// Returns the index after the bracket that was passed last.
    pub(crate) fn end(&self) -> u32 {
        self.end as u32
    }

    #[inline]
    fn next_in(&mut self, close: u8) -> bool {
        self.pass_blank();
        let is_first = std::mem::replace(&mut self.is_first, false);
        if self.byte() == close {
            (self.at, self.end, self.remaining_levels) =
                (self.at + 1, self.at + 1, self.remaining_levels + 1);
            return false;
        }
        if !is_first {
            let passed = self.pass_comma();
            self.record(passed);
        }
        self.broken.is_none()
    }

    #[inline]
    fn record(&mut self, passed: Result<(), JsonError>) {
        if let Err(error) = passed {
            self.stop(error);
        }
    }

    #[cold]
    fn stop(&mut self, error: JsonError) {
        self.broken.get_or_insert(error);
        self.at = self.text.len();
        self.end = self.at;
    }

    fn too_deep(&self) -> JsonError {
        JsonError::TooDeep { max: self.levels_max }
    }

    fn span_from(&self, start: usize) -> Span {
        Span { start: start as u32, end: self.at as u32 }
    }

    /// Returns the byte under the cursor. At the end of the text it is one that no value begins
    /// with.
    #[inline]
    fn byte(&self) -> u8 {
        self.text.get(self.at).copied().unwrap_or(0)
    }

    #[inline]
    fn pass_blank(&mut self) {
        while matches!(self.byte(), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
    }

    fn pass_value(&mut self) -> Result<(), JsonError> {
        let mut around = Nesting::default();
        loop {
            match self.byte() {
                b'"' => drop(self.pass_string()?),
                b'{' => {
                    if !self.opens(&mut around, b'}')? {
                        around.push(true);
                        self.pass_key()?;
                        continue;
                    }
                }
                b'[' => {
                    if !self.opens(&mut around, b']')? {
                        around.push(false);
                        continue;
                    }
                }
                b't' => self.pass_literal(b"true")?,
                b'f' => self.pass_literal(b"false")?,
                b'n' => self.pass_literal(b"null")?,
                _ => self.pass_number()?,
            }
            if !self.next_value(&mut around)? {
                return Ok(());
            }
        }
    }

    /// Passes the opening bracket. True: its closing bracket follows at once.
    fn opens(&mut self, around: &mut Nesting, close: u8) -> Result<bool, JsonError> {
        if around.depth >= self.remaining_levels {
            return Err(self.too_deep());
        }
        self.at += 1;
        self.pass_blank();
        let is_empty = self.byte() == close;
        self.at += usize::from(is_empty);
        Ok(is_empty)
    }

    /// Moves from the end of a value to the next one. False: the outermost value has ended.
    fn next_value(&mut self, around: &mut Nesting) -> Result<bool, JsonError> {
        while let Some(in_object) = around.innermost() {
            self.pass_blank();
            match self.byte() {
                b',' => {
                    self.pass_comma()?;
                    if in_object {
                        self.pass_key()?;
                    }
                    return Ok(true);
                }
                b'}' if in_object => {}
                b']' if !in_object => {}
                _ => return Err(JsonError::Malformed),
            }
            self.at += 1;
            around.pop();
        }
        Ok(false)
    }

    #[inline]
    fn pass_comma(&mut self) -> Result<(), JsonError> {
        if self.byte() != b',' {
            return Err(JsonError::Malformed);
        }
        self.remaining_values = self
            .remaining_values
            .checked_sub(1)
            .ok_or(JsonError::TooManyValues { max: VALUES_MAX })?;
        self.at += 1;
        self.pass_blank();
        Ok(())
    }

    #[inline]
    fn take_key(&mut self) -> Result<Key<'a>, JsonError> {
        let start = self.at;
        let has_escapes = self.pass_string()?;
        let span = self.span_from(start);
        self.pass_colon()?;
        Ok(Key { text: self.text, span, has_escapes })
    }

    #[inline]
    fn pass_key(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        let has_escapes = self.pass_string()?;
        // With its quotes `"uri"` takes five bytes, and six with an `i` beyond ASCII. No letter beyond ASCII folds to `u`.
        let may_be_uri =
            || matches!(self.at - start, 5 | 6) && self.text[start + 1].eq_ignore_ascii_case(&b'u');
        if has_escapes || may_be_uri() {
            self.record_uri_key(start, has_escapes);
        }
        self.pass_colon()
    }

    fn record_uri_key(&mut self, start: usize, has_escapes: bool) {
        let key = Key { text: self.text, span: self.span_from(start), has_escapes };
        self.has_uri_key |= case_folding::matches_ignoring_case(&key.bytes(), "uri");
    }

    /// Returns whether a value that was passed over holds a member that some reader takes for
    /// `uri`.
    pub(crate) fn has_uri_key(&self) -> bool {
        self.has_uri_key
    }

    #[inline]
    fn pass_colon(&mut self) -> Result<(), JsonError> {
        self.pass_blank();
        if self.byte() != b':' {
            return Err(JsonError::Malformed);
        }
        self.at += 1;
        self.pass_blank();
        Ok(())
    }

    /// Passes over a string and returns whether it has escapes.
    #[inline]
    fn pass_string(&mut self) -> Result<bool, JsonError> {
        self.try_string().ok_or(JsonError::Malformed)
    }

    // An `Option<bool>` is returned in a register, a `Result` with an error in memory.
    fn try_string(&mut self) -> Option<bool> {
        if self.byte() != b'"' {
            return None;
        }
        let end = strings::find_end(self.text, self.at + 1)?;
        self.at = end.at;
        Some(end.has_escapes)
    }

    fn pass_literal(&mut self, literal: &[u8]) -> Result<(), JsonError> {
        if !self.text[self.at..].starts_with(literal) {
            return Err(JsonError::Malformed);
        }
        self.at += literal.len();
        Ok(())
    }

    /// Passes over a number of any precision (RFC 8259, 6). A number beyond every 64-bit float is
    /// refused, as nearly all readers do: a number that passes here must be readable by every peer.
    fn pass_number(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        self.at += usize::from(self.byte() == b'-');
        match self.byte() {
            b'0' => self.at += 1,
            _ => self.pass_digits()?,
        }
        if self.byte() == b'.' {
            self.at += 1;
            self.pass_digits()?;
        }
        if matches!(self.byte(), b'e' | b'E') {
            self.at += 1;
            self.at += usize::from(matches!(self.byte(), b'+' | b'-'));
            self.pass_digits()?;
            return self.finite_from(start);
        }
        if self.at - start > f64::MAX_10_EXP as usize { self.finite_from(start) } else { Ok(()) }
    }

    fn finite_from(&self, start: usize) -> Result<(), JsonError> {
        let text = std::str::from_utf8(&self.text[start..self.at]).unwrap_or_default();
        if text.parse().is_ok_and(f64::is_finite) { Ok(()) } else { Err(JsonError::Malformed) }
    }

    /// Passes over one or more digits.
    fn pass_digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while self.byte().is_ascii_digit() {
            self.at += 1;
        }
        if self.at == start { Err(JsonError::Malformed) } else { Ok(()) }
    }
}

/// The objects and arrays around a position, with a bit for each that is set for objects. Nearly
/// always one word has space for them.
#[derive(Default)]
struct Nesting {
    depth: usize,
    /// The innermost 64; the lowest bit is the innermost.
    bits: u64,
    outer: Vec<u64>,
}

impl Nesting {
    fn push(&mut self, is_object: bool) {
        if self.depth > 0 && self.depth.is_multiple_of(64) {
            self.outer.push(self.bits);
        }
        self.bits = self.bits << 1 | u64::from(is_object);
        self.depth += 1;
    }

    fn pop(&mut self) {
        self.depth -= 1;
        self.bits >>= 1;
        if self.depth.is_multiple_of(64) {
            self.bits = self.outer.pop().unwrap_or_default();
        }
    }

    fn innermost(&self) -> Option<bool> {
        (self.depth > 0).then_some(self.bits & 1 == 1)
    }
}
