//! Looks up several names in one object, in one pass over its members.
//!
//! Each lookup of a single name passes over all members of an object, because two of them may have
//! that name. If one peer chooses the names and another peer the members, the broker must not pass
//! over the members once for each name.

use std::{borrow::Cow, collections::HashMap};

use super::{AmbiguousMember, Member, case_folding};

/// The members of one object that readers find under some names.
#[derive(Debug)]
pub struct NamedMembers<'a, V> {
    /// By the name without case. `None`: the object has no such member.
    by_name: HashMap<Vec<u8>, Option<NamedMember<'a, V>>>,
}

/// The first member that some reader finds under a name.
#[derive(Debug)]
struct NamedMember<'a, V> {
    key: Cow<'a, str>,
    value: V,
    /// Whether no further member has the name.
    is_only: bool,
}

impl<'a, V: Copy> NamedMembers<'a, V> {
    /// Finds the members of an object that have one of the names.
    pub fn find<'n>(
        members: impl Iterator<Item = Member<'a, V>>,
        names: impl Iterator<Item = &'n str>,
    ) -> Self {
        let mut by_name: HashMap<Vec<u8>, Option<NamedMember<'a, V>>> =
            names.map(|name| (name.as_bytes().to_ascii_lowercase(), None)).collect();
        for member in members {
            let Some(name) = case_folding::folded(member.key.as_bytes()) else { continue };
            match by_name.get_mut(&name) {
                Some(Some(first)) => first.is_only = false,
                Some(unset) => {
                    let (key, value) = (member.key, member.value);
                    *unset = Some(NamedMember { key, value, is_only: true });
                }
                None => {}
            }
        }
        Self { by_name }
    }

    /// Returns the member that every reader finds under one of the names. Fails if readers differ,
    /// as [`TapeValue::unambiguous`](super::TapeValue::unambiguous) does.
    pub fn unambiguous(&self, name: &str) -> Result<Option<V>, AmbiguousMember> {
        match self.by_name.get(&name.as_bytes().to_ascii_lowercase()) {
            None | Some(None) => Ok(None),
            Some(Some(member)) if member.is_only && member.key == name => Ok(Some(member.value)),
            Some(Some(_)) => Err(AmbiguousMember(name.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::{Document, Limits, Tape};

    const NAMES: [&str; 9] = ["id", "ID", "task", "dir", "", "\u{e9}", "\u{212a}", "k", "absent"];

    #[test]
    fn s01_one_pass_finds_what_a_lookup_of_each_name_finds() {
        for text in [
            "{}",
            "[1]",
            "7",
            r#"{"id":1,"task":2,"dir":{"id":3},"":4}"#,
            r#"{"id":1,"id":2,"task":3}"#,
            r#"{"id":1,"x":0,"Id":2}"#,
            r#"{"ID":1,"dir":[],"\u0064ir":null}"#,
            r#"{"\u0131d":1,"ta\u017f\u212a":2}"#,
            r#"{"\u00e9":1,"\u212a":2,"k":3}"#,
            r#"{"k":1,"\u00c9":2}"#,
        ] {
            let document = Document::parse(text.as_bytes(), &Limits::default()).unwrap();
            let tape = Tape::parse(text.as_bytes(), &Limits::default()).unwrap();
            let walked = NamedMembers::find(document.root().members(), NAMES.into_iter());
            let taped = NamedMembers::find(tape.root().members(), NAMES.into_iter());
            for name in NAMES {
                let single = tape.root().unambiguous(name).map(|found| found.map(|one| one.span()));
                let found = walked.unambiguous(name).map(|found| found.map(|one| one.span()));
                assert_eq!(found, single, "{name} in {text}");
                let found = taped.unambiguous(name).map(|found| found.map(|one| one.span()));
                assert_eq!(found, single, "{name} in {text}");
            }
            assert_eq!(walked.by_name.len(), NAMES.len() - 1, "other members are not kept");
        }
    }
}
