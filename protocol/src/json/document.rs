//! Validated JSON that is read member by member: small texts, and those of which one part is read
//! (capabilities, `_meta`).
//!
//! A [`Document`] is checked once, as a whole; its values are cursors into its text and own
//! nothing. Each value walks from its own start. A [`Tape`](super::Tape) fits a whole text of which
//! many parts are read.

use std::borrow::Cow;

use super::{
    JsonError, Limits, MemberFault, NameIndex, Seen, Span, ValueKind, Walker, case_folding, scan,
    unquote,
};

/// A validated JSON text whose parts can be read.
#[derive(Debug)]
pub struct Document<'a> {
    root: Value<'a>,
}

impl<'a> Document<'a> {
    /// Validates `text`.
    pub fn parse(text: &'a [u8], limits: &Limits) -> Result<Self, JsonError> {
        scan(text, limits, |walker| {
            let root = Value { walker: *walker };
            walker.skip();
            Self { root }
        })
    }

    /// Returns the outermost value.
    pub fn root(&self) -> Value<'a> {
        self.root
    }
}

/// One value of a [`Document`].
#[derive(Clone, Copy)]
pub struct Value<'a> {
    walker: Walker<'a>,
}

/// A member that readers of JSON find at different positions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("member `{0}` occurs twice, or together with a name that differs from it in case only")]
pub struct AmbiguousMember(pub(super) Box<str>);

/// One member of an object.
#[derive(Debug, Clone)]
pub struct Member<'a, V = Value<'a>> {
    /// The key, escapes resolved.
    pub key: Cow<'a, str>,
    /// Span of the key, quotes included.
    pub key_span: Span,
    /// The member's value.
    pub value: V,
}

/// Returns the only member that some reader finds under `key`. Each item holds whether its key is
/// written exactly as `key`, and its value.
pub(super) fn only<V>(
    mut named: impl Iterator<Item = (bool, V)>,
    key: &str,
) -> Result<Option<V>, AmbiguousMember> {
    match (named.next(), named.next()) {
        (None, _) => Ok(None),
        (Some((true, value)), None) => Ok(Some(value)),
        _ => Err(AmbiguousMember(key.into())),
    }
}

impl<'a> Value<'a> {
    /// Returns the span of the value.
    pub fn span(&self) -> Span {
        let mut walker = self.walker;
        walker.skip()
    }

    /// Returns the kind of the value.
    pub fn kind(&self) -> ValueKind {
        self.walker.kind()
    }

    /// Returns its JSON text.
    pub fn raw(&self) -> &'a [u8] {
        self.span().of(self.walker.text())
    }

    /// Returns the text of a string, escapes resolved.
    pub fn as_str(&self) -> Option<Cow<'a, str>> {
        unquote(self.raw())
    }

    /// Returns the value of a non-negative integer without fraction or exponent.
    pub fn as_u64(&self) -> Option<u64> {
        self.number()?.parse().ok()
    }

    /// Returns the value of an integer without fraction or exponent.
    pub fn as_i64(&self) -> Option<i64> {
        self.number()?.parse().ok()
    }

    /// Returns the value of any number, as near as 64 bits get.
    pub fn as_f64(&self) -> Option<f64> {
        self.number()?.parse().ok()
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

    fn number(&self) -> Option<&'a str> {
        if self.kind() != ValueKind::Number {
            return None;
        }
        std::str::from_utf8(self.raw()).ok()
    }

    /// Returns the first member with this key; `None` for anything but an object.
    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        self.members().find(|member| member.key == key).map(|member| member.value)
    }

    /// Returns the member that every reader finds under this key. Fails if readers differ: the key
    /// occurs twice, or another key equals it but for case.
    pub fn unambiguous(&self, key: &str) -> Result<Option<Value<'a>>, AmbiguousMember> {
        let named = self
            .members()
            .filter(|member| case_folding::matches_ignoring_case(member.key.as_bytes(), key));
        only(named.map(|member| (member.key == key, member.value)), key)
    }

    /// Applies `unambiguous` to each key in turn.
    pub fn unambiguous_path(&self, keys: &[&str]) -> Result<Option<Value<'a>>, AmbiguousMember> {
        let mut value = *self;
        for key in keys {
            match value.unambiguous(key)? {
                Some(inner) => value = inner,
                None => return Ok(None),
            }
        }
        Ok(Some(value))
    }

    /// Refuses an object in which readers find different members under a name of the table: it
    /// occurs twice, or another member equals it but for case. Other values hold no members and
    /// pass.
    pub fn check_names(&self, known: &NameIndex) -> Result<(), MemberFault> {
        let mut seen = Seen::default();
        self.members().try_for_each(|member| known.admit(member.key.as_bytes(), &mut seen))
    }

    /// Applies `get` to each key in turn.
    pub fn path(&self, keys: &[&str]) -> Option<Value<'a>> {
        keys.iter().try_fold(*self, |value, key| value.get(key))
    }

    /// Returns an object's members in order; nothing for other values.
    pub fn members(&self) -> Members<'a> {
        Members { walker: inside(self.walker, ValueKind::Object) }
    }

    /// Returns an array's elements in order; nothing for other values.
    pub fn elements(&self) -> Elements<'a> {
        Elements { walker: inside(self.walker, ValueKind::Array) }
    }
}

impl std::fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.raw()))
    }
}

fn inside(mut walker: Walker<'_>, kind: ValueKind) -> Option<Walker<'_>> {
    if walker.kind() != kind {
        return None;
    }
    walker.enter();
    Some(walker)
}

/// Iterator over an object's members.
pub struct Members<'a> {
    walker: Option<Walker<'a>>,
}

impl<'a> Iterator for Members<'a> {
    type Item = Member<'a>;

    fn next(&mut self) -> Option<Member<'a>> {
        let walker = self.walker.as_mut()?;
        let Some(key) = walker.next_key() else {
            self.walker = None;
            return None;
        };
        let member =
            Member { key: key.text(), key_span: key.span(), value: Value { walker: *walker } };
        walker.skip();
        Some(member)
    }
}

/// Iterator over an array's elements.
pub struct Elements<'a> {
    walker: Option<Walker<'a>>,
}

impl<'a> Iterator for Elements<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        let walker = self.walker.as_mut()?;
        if !walker.next_item() {
            self.walker = None;
            return None;
        }
        let value = Value { walker: *walker };
        walker.skip();
        Some(value)
    }
}
