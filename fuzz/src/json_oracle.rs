//! A slow reader of JSON that shares no code with the broker's: `serde_json`, with the span of each
//! value.

use std::collections::HashSet;

use protocol::Span;
use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Deepest nesting that `serde_json` reads into a tree.
pub(crate) const SERDE_DEPTH_MAX: usize = 127;

/// Returns the members of an object in their order, repeated ones too, with the text of each value.
/// `None` for anything but an object.
pub(crate) fn members(object: &str) -> Option<Vec<(String, &str)>> {
    struct InOrder;
    impl<'de> Visitor<'de> for InOrder {
        type Value = Vec<(String, &'de str)>;

        fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            out.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut all = Vec::new();
            while let Some(member) = map.next_entry::<String, &'de RawValue>()? {
                all.push((member.0, member.1.get()));
            }
            Ok(all)
        }
    }
    serde_json::Deserializer::from_str(object).deserialize_map(InOrder).ok()
}

/// Returns the texts of the elements of an array. `None` for anything but an array.
pub(crate) fn elements(array: &str) -> Option<Vec<&str>> {
    let elements: Vec<&RawValue> = serde_json::from_str(array).ok()?;
    Some(elements.into_iter().map(RawValue::get).collect())
}

/// Returns the outermost value without blanks around it.
pub(crate) fn root(text: &str) -> Option<&str> {
    serde_json::from_str::<&RawValue>(text).ok().map(RawValue::get)
}

/// Returns the span of a part of `text`.
pub(crate) fn span_of(text: &str, part: &str) -> Span {
    let start = part.as_ptr() as usize - text.as_ptr() as usize;
    Span { start: start as u32, end: (start + part.len()) as u32 }
}

/// Returns whether an object, at any depth, holds a member twice.
pub(crate) fn has_duplicate(value: &str) -> bool {
    if let Some(members) = members(value) {
        let mut keys = HashSet::new();
        return members.into_iter().any(|(key, value)| !keys.insert(key) || has_duplicate(value));
    }
    elements(value).is_some_and(|elements| elements.into_iter().any(has_duplicate))
}

/// A peer's way to find a member: exactly or without case, the first or the last of several.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader {
    ignores_case: bool,
    takes_last: bool,
}

pub(crate) const READERS: [Reader; 4] = [
    Reader { ignores_case: false, takes_last: false },
    Reader { ignores_case: false, takes_last: true },
    Reader { ignores_case: true, takes_last: false },
    Reader { ignores_case: true, takes_last: true },
];

impl Reader {
    /// Returns the value that this reader finds along the path.
    pub(crate) fn find<'a>(self, object: &'a str, path: &[&str]) -> Option<&'a str> {
        path.iter().try_fold(object, |object, key| self.get(object, key))
    }

    fn get<'a>(self, object: &'a str, key: &str) -> Option<&'a str> {
        let mut found = members(object)?.into_iter().filter(|(name, _)| {
            if self.ignores_case { simple_fold(name) == simple_fold(key) } else { name == key }
        });
        let one = if self.takes_last { found.next_back() } else { found.next() };
        one.map(|(_, value)| value)
    }
}

/// Folds the characters that can fold to a letter of ASCII (Unicode simple case folding).
fn simple_fold(text: &str) -> String {
    let fold = |letter| match letter {
        'ſ' => 's',
        '\u{212a}' => 'k',
        letter => letter.to_ascii_lowercase(),
    };
    text.chars().map(fold).collect()
}
