//! What a backend offers only to clients that can answer its questions: roots, sampling,
//! elicitation.
//!
//! A set of kinds of questions has a number from 0 to 7. An [`Offer`] holds one bit for each set of
//! kinds: whether clients that can answer exactly these are offered an entry.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use protocol::capabilities::ClientCapabilities;

use super::{BackendLists, Catalog, CatalogEntry, ListKind};

/// Kinds of questions that a client can answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuestionKinds(u8);

impl QuestionKinds {
    pub const ALL: Self = Self(SETS as u8 - 1);
    /// Each kind alone, with the capability that declares it.
    pub const EACH: [(Self, &'static str); 3] =
        [(Self(1), "roots"), (Self(2), "sampling"), (Self(4), "elicitation")];

    pub fn of(client: &ClientCapabilities) -> Self {
        let declared = [client.roots, client.sampling, client.elicitation()];
        let kinds = Self::EACH.iter().zip(declared).filter(|(_, declared)| *declared);
        Self(kinds.fold(0, |all, ((kind, _), _)| all | kind.0))
    }

    /// Returns the sets of so many kinds.
    pub fn sets_of(count: u32) -> impl Iterator<Item = Self> {
        (0..SETS as u8).filter(move |set| set.count_ones() == count).map(Self)
    }

    pub fn includes(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the bit of each set of kinds that includes these.
    fn and_more(self) -> u8 {
        (0..SETS as u8).filter(|set| Self(*set).includes(self)).fold(0, |bits, set| bits | 1 << set)
    }
}

/// Number of sets of kinds.
const SETS: usize = 8;

/// The clients that a backend offers an entry to, by the questions that they can answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer(u8);

impl Offer {
    /// The offer to every client.
    pub const ALL: Self = Self(u8::MAX);

    pub fn includes(self, client: QuestionKinds) -> bool {
        self.0 >> client.0 & 1 == 1
    }

    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// The offers of a backend, by list and key, as probes found them.
#[derive(Debug, Default)]
pub struct OfferTable(HashMap<(ListKind, String), Offer>);

impl OfferTable {
    /// Returns the offers of all entries, given what the backend lists to clients that can answer
    /// everything.
    pub fn of(listed: &BackendLists) -> Self {
        let mut table = Self::default();
        table.add(QuestionKinds::ALL, listed);
        table
    }

    /// Adds what the backend lists to clients that can answer these questions alone.
    pub fn add(&mut self, kinds: QuestionKinds, lists: &BackendLists) {
        for kind in ListKind::ALL {
            for entry in lists.entries(kind) {
                let offer = self.0.entry((kind, entry.key.clone())).or_insert(Offer(0));
                offer.0 |= kinds.and_more();
            }
        }
    }

    /// Returns whether each entry is in an added list.
    pub fn is_complete(&self) -> bool {
        let in_none = QuestionKinds::ALL.and_more();
        self.0.values().all(|offer| offer.0 != in_none)
    }

    /// Returns whether a probe has seen every tool and prompt of these lists.
    pub fn covers(&self, lists: &BackendLists) -> bool {
        [ListKind::Tools, ListKind::Prompts].into_iter().all(|kind| {
            lists.entries(kind).iter().all(|entry| self.0.contains_key(&(kind, entry.key.clone())))
        })
    }

    /// Sets the offer of each entry. Entries that no probe has seen are for all.
    pub fn apply(&self, lists: &mut BackendLists) {
        for kind in ListKind::ALL {
            for entry in lists.entries_mut(kind) {
                let key = (kind, std::mem::take(&mut entry.key));
                entry.offer = self.0.get(&key).copied().unwrap_or(Offer::ALL);
                entry.key = key.1;
            }
        }
    }
}

/// The catalog as clients see it that can answer some kinds of questions alone. Each is built when it
/// is first wanted.
#[derive(Debug)]
pub(super) struct LimitedCatalogs {
    /// The clients that are offered every entry.
    common: Offer,
    by_kinds: [OnceLock<Arc<Catalog>>; SETS],
}

impl LimitedCatalogs {
    pub(super) fn of<'a>(entries: impl Iterator<Item = &'a CatalogEntry>) -> Self {
        let common = entries.fold(Offer::ALL, |common, entry| common.and(entry.offer));
        Self { common, by_kinds: Default::default() }
    }
}

impl Catalog {
    /// Returns the catalog without what its backends offer only to other clients. For lists alone: a
    /// client that uses another name may call it, and gets the answer of the backend.
    pub fn offered_to(self: &Arc<Self>, client: QuestionKinds) -> Arc<Self> {
        if self.limited.common.includes(client) {
            return self.clone(); // as nearly everywhere
        }
        let build = || {
            let offered = |lists: &Arc<BackendLists>| {
                let mut kept = lists.without_entries();
                for kind in ListKind::ALL {
                    let entries = lists.entries(kind).iter();
                    *kept.entries_mut(kind) =
                        entries.filter(|entry| entry.offer.includes(client)).cloned().collect();
                }
                Arc::new(kept)
            };
            let lists = self.backends.iter().map(|(id, lists)| (id.clone(), offered(lists)));
            Arc::new(self.rebuilt(lists.collect()))
        };
        self.limited.by_kinds[usize::from(client.0)].get_or_init(build).clone()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use aws_lc_rs::hmac;
    use protocol::ids::{BackendId, TenantId};

    use super::*;
    use crate::{
        catalog::{TaskHost, read_page},
        endpoint::Endpoint,
    };

    const NONE: QuestionKinds = QuestionKinds(0);
    const ROOTS: QuestionKinds = QuestionKinds(1);
    const SAMPLING: QuestionKinds = QuestionKinds(2);
    const ELICITATION: QuestionKinds = QuestionKinds(4);

    fn lists(tools: &[&str]) -> BackendLists {
        let body: Vec<String> = tools
            .iter()
            .map(|name| format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}}}}"#))
            .collect();
        let page = format!(r#"{{"tools":[{}]}}"#, body.join(","));
        let backend = BackendId::parse("b").unwrap();
        let page =
            read_page(ListKind::Tools, &backend, TaskHost::Backend, page.as_bytes()).unwrap();
        BackendLists { tools: page.entries, ..BackendLists::declaring(br#"{"tools":{}}"#).unwrap() }
    }

    fn listed(catalog: &Arc<Catalog>, client: QuestionKinds) -> Vec<String> {
        let page =
            catalog.offered_to(client).list(&Endpoint::Aggregated, ListKind::Tools, None).unwrap();
        let page: serde_json::Value = serde_json::from_slice(&page).unwrap();
        let names = page["tools"].as_array().unwrap().iter();
        names.map(|tool| tool["name"].as_str().unwrap()[3..].to_owned()).collect()
    }

    fn catalog(lists: BackendLists) -> Arc<Catalog> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &[1; 32]);
        let backends = BTreeMap::from([(BackendId::parse("b").unwrap(), Arc::new(lists))]);
        Arc::new(Catalog::build(TenantId::parse("acme").unwrap(), key, backends))
    }

    #[test]
    fn each_client_gets_only_tools_that_it_supports() {
        let mut all = lists(&["plain", "roots", "ask", "either", "both"]);
        let probed = [
            (NONE, lists(&["plain"])),
            (ROOTS, lists(&["plain", "roots", "either"])),
            (SAMPLING, lists(&["plain", "either"])),
            (ELICITATION, lists(&["plain", "ask"])),
        ];
        let mut table = OfferTable::of(&all);
        probed.iter().for_each(|(kinds, lists)| table.add(*kinds, lists));
        assert!(!table.is_complete(), "no probe has seen what needs two kinds");
        assert!(table.covers(&all) && !table.covers(&lists(&["new"])));
        table.apply(&mut all);
        let catalog = catalog(all);
        assert_eq!(listed(&catalog, NONE), ["plain"]);
        assert_eq!(listed(&catalog, ROOTS), ["plain", "roots", "either"]);
        assert_eq!(listed(&catalog, SAMPLING), ["plain", "either"]);
        let two = QuestionKinds(ROOTS.0 | ELICITATION.0);
        assert_eq!(listed(&catalog, two), ["plain", "roots", "ask", "either"]);
        assert_eq!(
            listed(&catalog, QuestionKinds::ALL),
            ["plain", "roots", "ask", "either", "both"]
        );
        // Lists alone differ: the name still leads to its backend.
        assert!(catalog.tool("b__both").is_some());
    }

    #[test]
    fn a_backend_with_one_list_for_all_clients_needs_no_table() {
        let mut all = lists(&["a", "b"]);
        let mut table = OfferTable::of(&all);
        table.add(NONE, &lists(&["a", "b"]));
        assert!(table.is_complete());
        table.apply(&mut all);
        let catalog = catalog(all);
        assert!(Arc::ptr_eq(&catalog, &catalog.offered_to(NONE)));
    }

    #[test]
    fn the_declared_capabilities_are_the_question_kinds_of_a_client() {
        let of =
            |text: &str| QuestionKinds::of(&ClientCapabilities::parse(text.as_bytes()).unwrap());
        assert_eq!(of("{}"), NONE);
        assert_eq!(of(r#"{"elicitation":{"url":{}}}"#), ELICITATION);
        assert_eq!(of(r#"{"roots":{},"sampling":{},"elicitation":{}}"#), QuestionKinds::ALL);
    }
}
