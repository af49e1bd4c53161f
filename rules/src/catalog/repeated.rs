//! Entries whose name or URI an earlier entry of the same list has.
//!
//! The first entry counts in every part of the broker: lists, traits, schemas, routes and pins. The
//! reader of a list removes the other ones, unless the pins of the backend hold objects. Such pins
//! compare every entry with the approved definitions. The catalog removes what they leave.

use std::collections::HashSet;

use super::{BackendLists, CatalogEntry, ListKind, SkippedEntry};
use crate::{maps::FastHasher, pins::PinDefinition};

const REPEATED: &str = "an earlier entry of the list has its name or URI";

/// Returns whether each entry is the first one with its name or URI.
fn firsts(entries: &[CatalogEntry]) -> Vec<bool> {
    let mut keys: HashSet<&str, FastHasher> = HashSet::default();
    entries.iter().map(|entry| keys.insert(entry.key.as_str())).collect()
}

/// Returns the entries that clients do not see because of an earlier entry.
pub fn repeated_entries(entries: &[CatalogEntry]) -> Vec<SkippedEntry> {
    let repeated = entries.iter().zip(firsts(entries)).filter(|(_, is_first)| !*is_first);
    repeated.map(|(entry, _)| SkippedEntry::of(&entry.key, REPEATED)).collect()
}

/// Removes the entries that clients do not see because of an earlier entry, with their definitions.
/// There is one definition for each entry, or none at all.
pub fn remove_repeated(entries: &mut Vec<CatalogEntry>, definitions: &mut Vec<PinDefinition>) {
    let firsts = firsts(entries);
    let mut of_definitions = firsts.iter();
    definitions.retain(|_| of_definitions.next().is_none_or(|is_first| *is_first));
    let mut of_entries = firsts.iter();
    entries.retain(|_| of_entries.next().is_none_or(|is_first| *is_first));
}

impl BackendLists {
    /// Returns the lists without repeated entries. `None`: they have none.
    pub(super) fn without_repeated(&self) -> Option<Self> {
        let mut unique: Option<Self> = None;
        for kind in ListKind::ALL {
            if firsts(self.entries(kind)).contains(&false) {
                let lists = unique.get_or_insert_with(|| self.clone());
                remove_repeated(lists.entries_mut(kind), &mut Vec::new());
            }
        }
        unique
    }
}

#[cfg(test)]
mod tests {
    use protocol::ids::BackendId;

    use super::*;
    use crate::{
        catalog::{ListAllowance, TaskHost, read_page_pinned},
        pins::IgnoredMembers,
    };

    #[test]
    fn later_entries_with_a_known_name_are_removed_with_their_definitions() {
        let tool = |name: &str, text: &str| {
            format!(r#"{{"name":"{name}","description":"{text}","inputSchema":{{}}}}"#)
        };
        let tools =
            [tool("a", "1"), tool("b", "2"), tool("a", "3"), tool("A", "4"), tool("a", "1")];
        let page = format!(r#"{{"tools":[{}]}}"#, tools.join(","));
        let (id, ignored) = (BackendId::parse("b").unwrap(), IgnoredMembers::default());
        let read = |pinned: Option<&IgnoredMembers>| {
            let (host, all) = (TaskHost::Backend, ListAllowance::WHOLE);
            read_page_pinned(ListKind::Tools, &id, host, page.as_bytes(), pinned, all).unwrap()
        };
        let mut page = read(Some(&ignored));
        let skipped = repeated_entries(&page.entries);
        let keys: Vec<&str> = skipped.iter().map(|one| one.key.as_str()).collect();
        assert_eq!((keys, skipped[0].reason), (vec!["a", "a"], REPEATED));
        let first = page.entries[0].definition;
        remove_repeated(&mut page.entries, &mut page.definitions);
        let kept: Vec<&str> = page.entries.iter().map(|entry| entry.key.as_str()).collect();
        assert_eq!(kept, ["a", "b", "A"]);
        assert_eq!(page.entries[0].definition, first);
        let pinned: Vec<&str> = page.definitions.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(pinned, kept);
        assert!(page.definitions[0].text.contains(r#""1""#), "{}", page.definitions[0].text);
        assert!(repeated_entries(&page.entries).is_empty());
        let mut page = read(None);
        remove_repeated(&mut page.entries, &mut page.definitions);
        assert_eq!((page.entries.len(), page.definitions.len()), (3, 0));
    }
}
