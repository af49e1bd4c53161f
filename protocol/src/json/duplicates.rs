//! Finds a member that an object holds twice.
//!
//! Readers differ in which of two equal members they use, so a text with one has two meanings. The
//! search is one pass with the [`Walker`], without a tree and without recursion. Each open object
//! keeps the digests of its keys, escapes resolved. Two keys with the same digest count as equal.
//! The hasher must be keyed, so that no sender can choose keys with equal digests.

use std::{
    collections::HashSet,
    hash::{BuildHasher, Hasher},
};

use super::{JsonError, Limits, ValueKind, Walker, scan, walker::Key};

/// Number of keys up to which they are compared one by one, which costs less than a table.
const KEYS_IN_LINE: usize = 16;

/// Returns the path (RFC 6901) of the first member of `text` whose key its object already holds,
/// cut after `chars_max` characters. `None`: no object holds a key twice.
pub fn duplicate_member(
    text: &[u8],
    limits: &Limits,
    hasher: &impl BuildHasher,
    chars_max: usize,
) -> Result<Option<String>, JsonError> {
    scan(text, limits, |walker| first(walker, hasher, chars_max))
}

/// An array or object whose end the walk has not reached.
enum OpenContainer<'a> {
    Array { passed: usize },
    Object { keys: KeySet, last: Option<Key<'a>> },
}

/// The digests of the keys of one object.
enum KeySet {
    Few(Vec<u64>),
    Many(HashSet<u64, DigestHasher>),
}

impl KeySet {
    /// Inserts the digest and returns whether it is new.
    fn insert(&mut self, digest: u64) -> bool {
        match self {
            Self::Few(keys) if keys.contains(&digest) => false,
            Self::Few(keys) if keys.len() < KEYS_IN_LINE => {
                keys.push(digest);
                true
            }
            Self::Few(keys) => {
                let mut many: HashSet<u64, DigestHasher> = keys.drain(..).collect();
                let is_new = many.insert(digest);
                *self = Self::Many(many);
                is_new
            }
            Self::Many(keys) => keys.insert(digest),
        }
    }
}

/// Hasher that keeps digests as they are: they need no second hashing.
#[derive(Default)]
struct DigestHasher(u64);

impl BuildHasher for DigestHasher {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Self::default()
    }
}

impl Hasher for DigestHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, digest: u64) {
        self.0 = digest;
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
}

/// Passes over the whole value under the cursor: a find counts only if the text is JSON to its end.
fn first<'a>(
    walker: &mut Walker<'a>,
    hasher: &impl BuildHasher,
    chars_max: usize,
) -> Option<String> {
    let mut around: Vec<OpenContainer<'a>> = Vec::new();
    let mut found = None;
    loop {
        match walker.kind() {
            ValueKind::Array => {
                walker.enter();
                around.push(OpenContainer::Array { passed: 0 });
            }
            ValueKind::Object => {
                walker.enter();
                around.push(OpenContainer::Object { keys: KeySet::Few(Vec::new()), last: None });
            }
            _ => drop(walker.skip()),
        }
        // Moves to the next value, and out of every array and object that ends here.
        loop {
            let Some(innermost) = around.last_mut() else { return found };
            let is_there = match innermost {
                OpenContainer::Array { passed } => {
                    *passed += 1;
                    walker.next_item()
                }
                OpenContainer::Object { keys, last } => match walker.next_key() {
                    Some(key) => {
                        *last = Some(key);
                        if found.is_none() && !keys.insert(hasher.hash_one(&*key.bytes())) {
                            found = Some(pointer(&around, chars_max));
                        }
                        true
                    }
                    None => false,
                },
            };
            if is_there {
                break;
            }
            around.pop();
        }
    }
}

fn pointer(around: &[OpenContainer<'_>], chars_max: usize) -> String {
    let mut pointer = String::new();
    for open in around {
        pointer.push('/');
        match open {
            OpenContainer::Array { passed } => pointer.push_str(&(passed - 1).to_string()),
            OpenContainer::Object { last, .. } => {
                let key = last.map(Key::text).unwrap_or_default();
                pointer.extend(key.chars().take(chars_max).flat_map(escaped));
            }
        }
        if pointer.len() > 4 * chars_max {
            break;
        }
    }
    pointer.chars().take(chars_max).collect()
}

fn escaped(symbol: char) -> impl Iterator<Item = char> {
    let (first, second) = match symbol {
        '~' => ('~', Some('0')),
        '/' => ('~', Some('1')),
        other => (other, None),
    };
    std::iter::once(first).chain(second)
}

#[cfg(test)]
mod tests {
    use std::{
        collections::{HashSet, hash_map::RandomState},
        hash::{BuildHasherDefault, DefaultHasher},
    };

    use proptest::prelude::*;

    use super::*;

    fn found(text: &str) -> Option<String> {
        duplicate_member(text.as_bytes(), &Limits::default(), &RandomState::new(), 200).unwrap()
    }

    #[test]
    fn s07_a_duplicate_member_is_found_at_every_depth() {
        for (text, path) in [
            (r#"{"a":1,"a":2}"#, "/a"),
            (r#"{"a":1,"b":{"c":[0,{"d":1,"e":2,"d":3}]}}"#, "/b/c/1/d"),
            (r#"{"":1,"":2}"#, "/"),
            (r#"[[],[{}],{"x/y~z":1,"x/y~z":2}]"#, "/2/x~1y~0z"),
            (r#"{"path":1,"\u0070ath":2}"#, "/path"),
            (r#"{"\u00e9":1,"é":2}"#, "/é"),
            (r#"{"\ud83d\ude00":1,"😀":2}"#, "/😀"),
            (r#"{"a":{"x":1},"a":{"y":1}}"#, "/a"),
        ] {
            assert_eq!(found(text).as_deref(), Some(path), "{text}");
        }
    }

    #[test]
    fn s07_members_that_only_look_alike_are_not_duplicates() {
        for text in [
            "{}",
            "1",
            r#"{"a":1,"A":2,"à":3,"a\u0300":4}"#,
            r#"{"a":{"a":{"a":1}},"b":[{"a":1},{"a":1}]}"#,
            r#"["a","a",{"b":"a","a":"b"}]"#,
            "{\"k\":1,\"\u{212a}\":2}",
        ] {
            assert_eq!(found(text), None, "{text}");
        }
    }

    #[test]
    fn s07_the_path_is_bounded_and_invalid_json_is_an_error() {
        let deep =
            format!("{}{}{}", r#"{"kkkkkkkkkk":"#.repeat(100), r#"{"a":1,"a":2}"#, "}".repeat(100));
        assert_eq!(found(&deep).unwrap().chars().count(), 200);
        let long = "x".repeat(1_000_000);
        assert_eq!(found(&format!("{{\"{long}\":1,\"{long}\":2}}")).unwrap().len(), 200);
        for text in ["{", r#"{"a":1,}"#, r#"{"a":1} {"a":1}"#, r#"{"a":nul}"#] {
            assert!(
                duplicate_member(text.as_bytes(), &Limits::default(), &RandomState::new(), 200)
                    .is_err(),
                "{text}"
            );
        }
        let limits = Limits { depth_max: 3, ..Limits::default() };
        assert!(duplicate_member(b"[[[[]]]]", &limits, &RandomState::new(), 200).is_err());
    }

    #[test]
    fn s07_many_distinct_members_are_not_duplicates() {
        let members: Vec<String> = (0..20_000).map(|n| format!("\"k{n}\":{n}")).collect();
        assert_eq!(found(&format!("{{{}}}", members.join(","))), None);
        assert_eq!(found(&format!("{{{},\"k77\":0}}", members.join(","))).as_deref(), Some("/k77"));
    }

    /// JSON text whose objects may hold a member twice.
    fn texts() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            Just("1".to_owned()),
            Just("\"a\"".to_owned()),
            Just("null".to_owned()),
            Just("{}".to_owned())
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            let key = prop_oneof![
                Just("a"),
                Just("\\u0061"),
                Just("b"),
                Just("c/d"),
                Just(""),
                Just("A")
            ];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4)
                    .prop_map(|items| format!("[{}]", items.join(" , "))),
                prop::collection::vec((key, inner), 0..4).prop_map(|members| {
                    let members: Vec<String> = members
                        .into_iter()
                        .map(|(key, value)| format!("\"{key}\" : {value}"))
                        .collect();
                    format!("{{{}}}", members.join(","))
                }),
            ]
        })
    }

    /// Returns whether an object holds a member twice, found slowly by a reader that keeps all
    /// members.
    fn has_duplicate(text: &str) -> bool {
        struct Seen(bool);
        impl<'de> serde::de::Deserialize<'de> for Seen {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl<'de> serde::de::Visitor<'de> for Visitor {
                    type Value = Seen;
                    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        out.write_str("JSON")
                    }
                    fn visit_unit<E>(self) -> Result<Seen, E> {
                        Ok(Seen(false))
                    }
                    fn visit_u64<E>(self, _: u64) -> Result<Seen, E> {
                        Ok(Seen(false))
                    }
                    fn visit_str<E>(self, _: &str) -> Result<Seen, E> {
                        Ok(Seen(false))
                    }
                    fn visit_seq<A: serde::de::SeqAccess<'de>>(
                        self,
                        mut items: A,
                    ) -> Result<Seen, A::Error> {
                        let mut any = false;
                        while let Some(Seen(seen)) = items.next_element()? {
                            any |= seen;
                        }
                        Ok(Seen(any))
                    }
                    fn visit_map<A: serde::de::MapAccess<'de>>(
                        self,
                        mut members: A,
                    ) -> Result<Seen, A::Error> {
                        let (mut any, mut keys) = (false, HashSet::new());
                        while let Some((key, Seen(seen))) = members.next_entry::<String, Seen>()? {
                            any |= seen | !keys.insert(key);
                        }
                        Ok(Seen(any))
                    }
                }
                from.deserialize_any(Visitor)
            }
        }
        serde_json::from_str::<Seen>(text).unwrap().0
    }

    proptest! {
        #[test]
        fn s07_the_search_equals_that_of_a_reader_of_all_members(text in texts()) {
            let hasher = BuildHasherDefault::<DefaultHasher>::default();
            let found = duplicate_member(text.as_bytes(), &Limits::default(), &hasher, 1_000).unwrap();
            prop_assert_eq!(found.is_some(), has_duplicate(&text), "{}", text);
        }
    }
}
