//! Validated JSON whose values are all found in one pass by simd-json.
//!
//! It serves whole documents of which many parts are read: lists, handshakes, results that are
//! rewritten for another revision, key sets.
//!
//! simd-json resolves escapes in its input, so it reads a copy. Of its result only the beginning
//! and end of each value in the sender's text are kept. Strings and numbers are read from that
//! text, so that numbers keep any precision and spans point into the forwarded bytes. The same
//! texts are accepted as by [`Document`](super::Document), and the same limits hold. Values are
//! counted after simd-json has built its table: a large text of a stranger is walked first, as
//! every message is. A single member, and a text of a few bytes, cost less to walk
//! (`docs/decisions/0020-two-readers-of-json.md`).

use std::borrow::Cow;

use simd_json::{Buffers, ErrorType, INPUT_PADDING, fill_tape_padded};

use super::{
    AmbiguousMember, JsonError, Limits, Member, MemberFault, NameIndex, SPAN_BYTES_MAX, Seen, Span,
    VALUES_MAX, ValueKind, case_folding, document::only, unquote,
};

/// A validated JSON text and the span of each value in it.
#[derive(Debug)]
pub struct Tape<'a> {
    text: &'a [u8],
    /// Values and keys in the order of the text.
    entries: Vec<TapeEntry>,
}

/// Span of a value or a key.
#[derive(Debug, Clone, Copy)]
struct TapeEntry {
    span: Span,
    /// Index of the first entry that is not inside of this one.
    next: u32,
}

impl<'a> Tape<'a> {
    /// Validates `text` and finds its values.
    pub fn parse(text: &'a [u8], limits: &Limits) -> Result<Self, JsonError> {
        let max = limits.bytes_max.min(SPAN_BYTES_MAX);
        if text.len() > max {
            return Err(JsonError::TooLarge { size: text.len(), max });
        }
        let mut copy = Vec::with_capacity(text.len() + INPUT_PADDING);
        copy.extend_from_slice(text);
        copy.resize(text.len() + INPUT_PADDING, b' ');
        let (mut buffers, mut tape) =
            (Buffers::with_max_depth(0, limits.depth_max), simd_json::Tape::null());
        fill_tape_padded(&mut copy, text.len(), &mut buffers, &mut tape).map_err(|error| {
            match error.error() {
                ErrorType::DepthLimitExceeded => JsonError::TooDeep { max: limits.depth_max },
                _ => JsonError::Malformed,
            }
        })?;
        Self::located(text, buffers.structural_indexes(), tape.0.len())
    }

    /// Finds the spans of `count` values and keys. `starts`: index of each bracket, colon and
    /// comma outside of strings, and of the first byte of everything else.
    fn located(text: &'a [u8], starts: &[u32], count: usize) -> Result<Self, JsonError> {
        let (mut entries, mut around) = (Vec::with_capacity(count), Vec::new());
        let mut remaining_values = VALUES_MAX - 1;
        for (index, &start) in starts.iter().enumerate() {
            let next = entries.len() as u32;
            match text[start as usize] {
                b':' => {}
                b',' => {
                    remaining_values = remaining_values
                        .checked_sub(1)
                        .ok_or(JsonError::TooManyValues { max: VALUES_MAX })?
                }
                b'{' | b'[' => {
                    around.push(entries.len());
                    entries.push(TapeEntry { span: Span { start, end: start }, next });
                }
                b'}' | b']' => {
                    let ended: &mut TapeEntry = around
                        .pop()
                        .and_then(|at| entries.get_mut(at))
                        .ok_or(JsonError::Malformed)?;
                    (ended.span.end, ended.next) = (start + 1, next);
                }
                _ => {
                    let end = starts.get(index + 1).map_or(text.len(), |end| *end as usize);
                    let blanks = text[..end]
                        .iter()
                        .rev()
                        .take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))
                        .count();
                    entries.push(TapeEntry {
                        span: Span { start, end: (end - blanks) as u32 },
                        next: next + 1,
                    });
                }
            }
        }
        // simd-json accepted the text, so there is one entry for each entry of its tape.
        if entries.len() == count && around.is_empty() {
            Ok(Self { text, entries })
        } else {
            Err(JsonError::Malformed)
        }
    }

    /// Returns the outermost value.
    pub fn root(&self) -> TapeValue<'_> {
        TapeValue { tape: self, at: 0 }
    }

    fn entry(&self, at: u32) -> TapeEntry {
        self.entries[at as usize]
    }

    /// Returns a key without quotes and with escapes resolved.
    fn key(&self, at: u32) -> Cow<'_, [u8]> {
        let quoted = self.entry(at).span.of(self.text);
        let key = &quoted[1..quoted.len() - 1];
        match memchr::memchr(b'\\', key) {
            None => Cow::Borrowed(key),
            Some(_) => Cow::Owned(unquote(quoted).unwrap_or_default().into_owned().into_bytes()),
        }
    }
}

/// One value of a [`Tape`].
#[derive(Clone, Copy)]
pub struct TapeValue<'t> {
    tape: &'t Tape<'t>,
    at: u32,
}

impl<'t> TapeValue<'t> {
    /// Returns the span of the value.
    pub fn span(&self) -> Span {
        self.tape.entry(self.at).span
    }

    /// Returns its JSON text.
    pub fn raw(&self) -> &'t [u8] {
        self.span().of(self.tape.text)
    }

    /// Returns the kind of the value.
    pub fn kind(&self) -> ValueKind {
        ValueKind::of(self.raw().first().copied().unwrap_or_default())
    }

    /// Returns the text of a string, escapes resolved.
    pub fn as_str(&self) -> Option<Cow<'t, str>> {
        unquote(self.raw())
    }

    /// Returns the value of a non-negative integer without fraction or exponent.
    pub fn as_u64(&self) -> Option<u64> {
        std::str::from_utf8(self.raw()).ok()?.parse().ok()
    }

    /// Returns the value of a boolean.
    pub fn as_bool(&self) -> Option<bool> {
        match self.raw() {
            b"true" => Some(true),
            b"false" => Some(false),
            _ => None,
        }
    }

    /// Returns whether the value is `null`.
    pub fn is_null(&self) -> bool {
        self.kind() == ValueKind::Null
    }

    /// Returns the first member with this key; `None` for anything but an object.
    pub fn get(&self, key: &str) -> Option<TapeValue<'t>> {
        self.keyed()
            .find(|(name, _)| *self.tape.key(*name) == *key.as_bytes())
            .map(|(_, value)| value)
    }

    /// Returns the member that every reader finds under this key. Fails if readers differ: the key
    /// occurs twice, or another key equals it but for case.
    pub fn unambiguous(&self, key: &str) -> Result<Option<TapeValue<'t>>, AmbiguousMember> {
        let named = self.keyed().filter_map(|(name, value)| {
            let name = self.tape.key(name);
            case_folding::matches_ignoring_case(&name, key)
                .then(|| (*name == *key.as_bytes(), value))
        });
        only(named, key)
    }

    /// Applies `unambiguous` to each key in turn.
    pub fn unambiguous_path(
        &self,
        keys: &[&str],
    ) -> Result<Option<TapeValue<'t>>, AmbiguousMember> {
        keys.iter().try_fold(Some(*self), |value, key| {
            value.map_or(Ok(None), |value| value.unambiguous(key))
        })
    }

    /// Refuses an object in which readers find different members under a name of the table. Other
    /// values hold no members and pass.
    pub fn check_names(&self, known: &NameIndex) -> Result<(), MemberFault> {
        let mut seen = Seen::default();
        self.keyed().try_for_each(|(name, _)| known.admit(&self.tape.key(name), &mut seen))
    }

    /// Applies `get` to each key in turn.
    pub fn path(&self, keys: &[&str]) -> Option<TapeValue<'t>> {
        keys.iter().try_fold(*self, |value, key| value.get(key))
    }

    /// Returns an object's members in order; nothing for other values.
    pub fn members(&self) -> impl Iterator<Item = Member<'t, TapeValue<'t>>> + use<'t> {
        let tape = self.tape;
        self.keyed().map(move |(name, value)| {
            let key_span = tape.entry(name).span;
            Member { key: unquote(key_span.of(tape.text)).unwrap_or_default(), key_span, value }
        })
    }

    /// Returns an array's elements in order; nothing for other values.
    pub fn elements(&self) -> impl Iterator<Item = TapeValue<'t>> + use<'t> {
        let (tape, mut inside) = (self.tape, self.inside(ValueKind::Array));
        std::iter::from_fn(move || {
            let at = inside.next()?;
            inside.start = tape.entry(at).next;
            Some(TapeValue { tape, at })
        })
    }

    /// Returns whether more than `max` values are in the value at any depth, itself included. Keys
    /// do not count.
    pub fn has_more_values_than(&self, max: usize) -> bool {
        let entries = self.tape.entry(self.at).next - self.at;
        entries as usize > max && self.count_values() > max
    }

    /// Returns the number of values in the value at any depth, itself included.
    pub fn count_values(&self) -> usize {
        let members = self.keyed().map(|(_, value)| value.count_values()).sum::<usize>();
        let elements = self.elements().map(|value| value.count_values()).sum::<usize>();
        1 + members + elements
    }

    /// Returns the index of each key, and its value.
    fn keyed(&self) -> impl Iterator<Item = (u32, TapeValue<'t>)> + use<'t> {
        let (tape, mut inside) = (self.tape, self.inside(ValueKind::Object));
        std::iter::from_fn(move || {
            let (name, at) = (inside.next()?, inside.next()?);
            inside.start = tape.entry(at).next;
            Some((name, TapeValue { tape, at }))
        })
    }

    fn inside(&self, kind: ValueKind) -> std::ops::Range<u32> {
        if self.kind() == kind { self.at + 1..self.tape.entry(self.at).next } else { 0..0 }
    }
}

impl std::fmt::Debug for TapeValue<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.raw()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_without_their_keys() {
        for (text, count) in [
            ("7", 1),
            ("{}", 1),
            ("[[]]", 2),
            (r#"{"a":1,"b":[2,{"c":"d"},[]]}"#, 7),
            (r#"[{"a":{"a":{"a":null}}},true]"#, 6),
        ] {
            let tape = Tape::parse(text.as_bytes(), &Limits::default()).unwrap();
            assert_eq!(tape.root().count_values(), count, "{text}");
            let exceeds = |max| tape.root().has_more_values_than(max);
            assert_eq!((exceeds(count - 1), exceeds(count)), (true, false), "{text}");
        }
        let text = r#"[{"a":1,"b":2},3]"#;
        let tape = Tape::parse(text.as_bytes(), &Limits::default()).unwrap();
        let inner = tape.root().elements().map(|value| value.count_values());
        assert_eq!(inner.collect::<Vec<_>>(), [3, 1]);
    }
}
