//! The lists of a backend as one link sees them, kept as the difference from the shared lists.
//!
//! Some servers change their lists for one session: a tool that registers further tools, or a
//! resource that a call makes. [`ListDifference`] holds the lists that differ. Entries that are
//! equal share their bytes with the shared lists.

use std::{collections::HashMap, sync::Arc};

use super::{BackendLists, CatalogEntry, ListKind};

/// The own lists of a link, by kind. `None`: the shared list applies.
#[derive(Debug, Clone, Default)]
pub struct ListDifference {
    lists: [Option<Arc<Vec<CatalogEntry>>>; ListKind::ALL.len()],
}

impl ListDifference {
    /// Returns whether every list is the shared one.
    pub fn is_empty(&self) -> bool {
        self.lists.iter().all(Option::is_none)
    }

    /// Returns the kinds of lists that differ.
    pub fn kinds(&self) -> impl Iterator<Item = ListKind> {
        ListKind::ALL.into_iter().filter(|kind| self.lists[*kind as usize].is_some())
    }

    /// Returns the difference with another list of one kind, as the link has just read it.
    pub fn with(&self, kind: ListKind, entries: Vec<CatalogEntry>, shared: &BackendLists) -> Self {
        let mut next = self.clone();
        let known: HashMap<&str, &CatalogEntry> =
            shared.entries(kind).iter().map(|entry| (entry.key.as_str(), entry)).collect();
        let entries: Vec<CatalogEntry> = entries
            .into_iter()
            .map(|entry| match known.get(entry.key.as_str()) {
                Some(shared) if is_same(shared, &entry) => (*shared).clone(),
                _ => entry,
            })
            .collect();
        let differs = !are_same(&entries, shared.entries(kind));
        next.lists[kind as usize] = differs.then(|| Arc::new(entries));
        next
    }

    /// Returns the lists of the backend with this difference. `None`: they are the shared ones.
    pub fn apply(&self, shared: &BackendLists) -> Option<BackendLists> {
        let mut own = None;
        for (kind, entries) in ListKind::ALL.into_iter().zip(&self.lists) {
            let Some(entries) = entries else { continue };
            if !are_same(entries, shared.entries(kind)) {
                let own = own.get_or_insert_with(|| shared.clone());
                *own.entries_mut(kind) = entries.to_vec();
            }
        }
        own
    }

    /// Returns the difference once `mark` has marked what is held in its lists. `None`: it marks
    /// nothing else than before.
    pub fn marked(&self, mark: impl Fn(ListKind, &mut [CatalogEntry])) -> Option<Self> {
        let mut next = self.clone();
        let mut is_changed = false;
        for (kind, list) in ListKind::ALL.into_iter().zip(&mut next.lists) {
            let Some(entries) = list else { continue };
            let mut marked = entries.to_vec();
            mark(kind, &mut marked);
            if !are_same(entries, &marked) {
                *list = Some(Arc::new(marked));
                is_changed = true;
            }
        }
        is_changed.then_some(next)
    }

    /// Returns the bytes that are held for this difference alone, at most.
    pub fn bytes(&self) -> usize {
        let entries = self.lists.iter().flatten().flat_map(|entries| entries.iter());
        entries.map(|entry| size_of::<CatalogEntry>() + entry.native.len()).sum()
    }
}

fn is_same(one: &CatalogEntry, other: &CatalogEntry) -> bool {
    one.key == other.key
        && one.definition == other.definition
        && one.traits == other.traits
        && one.pin == other.pin
}

fn are_same(one: &[CatalogEntry], other: &[CatalogEntry]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same(one, other))
}

#[cfg(test)]
mod tests {
    use protocol::ids::BackendId;

    use super::*;
    use crate::catalog::{TaskHost, read_page};

    fn tools(names: &[&str]) -> Vec<CatalogEntry> {
        let body: Vec<String> = names
            .iter()
            .map(|name| format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}}}}"#))
            .collect();
        let page = format!(r#"{{"tools":[{}]}}"#, body.join(","));
        let backend = BackendId::parse("b").unwrap();
        read_page(ListKind::Tools, &backend, TaskHost::Backend, page.as_bytes()).unwrap().entries
    }

    fn shared(names: &[&str]) -> BackendLists {
        BackendLists { tools: tools(names), ..BackendLists::declaring(br#"{"tools":{}}"#).unwrap() }
    }

    #[test]
    fn a_list_that_equals_the_shared_one_has_no_difference() {
        let shared = shared(&["a", "b"]);
        let same = ListDifference::default().with(ListKind::Tools, tools(&["a", "b"]), &shared);
        assert!(same.is_empty() && same.apply(&shared).is_none());
        let other = same.with(ListKind::Tools, tools(&["a", "b", "c"]), &shared);
        assert_eq!(other.kinds().collect::<Vec<_>>(), [ListKind::Tools]);
        assert_eq!(other.apply(&shared).unwrap().tools.len(), 3);
        assert!(other.with(ListKind::Tools, tools(&["a", "b"]), &shared).is_empty());
    }

    #[test]
    fn a_difference_ends_when_the_shared_list_catches_up() {
        let before = shared(&["a"]);
        let own = ListDifference::default().with(ListKind::Tools, tools(&["a", "b"]), &before);
        assert!(own.apply(&before).is_some());
        assert!(own.apply(&shared(&["a", "b"])).is_none());
    }

    #[test]
    fn a_difference_is_marked_by_later_pins() {
        let shared = shared(&["a"]);
        let own = ListDifference::default().with(ListKind::Tools, tools(&["a", "b"]), &shared);
        let hold = |held: &'static str| {
            move |_, entries: &mut [CatalogEntry]| {
                entries.iter_mut().for_each(|entry| entry.pin.is_held = entry.key == held);
            }
        };
        let marked = own.marked(hold("a")).unwrap();
        let held = |lists: &BackendLists| -> Vec<bool> {
            lists.tools.iter().map(|tool| tool.pin.is_held).collect()
        };
        assert_eq!(held(&marked.apply(&shared).unwrap()), [true, false]);
        assert!(marked.marked(hold("a")).is_none(), "nothing else is held");
        assert_eq!(held(&marked.marked(hold("b")).unwrap().apply(&shared).unwrap()), [false, true]);
    }

    #[test]
    fn equal_entries_share_their_bytes() {
        let shared = shared(&["a"]);
        let own = ListDifference::default().with(ListKind::Tools, tools(&["a", "b"]), &shared);
        let own = own.apply(&shared).unwrap();
        assert_eq!(own.tools[0].native.as_ptr(), shared.tools[0].native.as_ptr());
    }
}
