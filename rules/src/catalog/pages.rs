//! The pages of lists. Each is made once for a snapshot, when a client first requests it: most
//! endpoints of a backend have no client.

use std::{collections::HashSet, sync::OnceLock};

use bytes::Bytes;
use protocol::ids::BackendId;

use super::{Catalog, CatalogMarks, ListKind, Target};
use crate::{
    batch, cursor,
    endpoint::Endpoint,
    limits::{PAGE_BYTES_MAX, PAGE_ENTRIES},
};

/// One list of one endpoint, in pages.
#[derive(Debug, Default)]
pub(super) struct Pages {
    pages: Box<[OnceLock<Bytes>]>,
    /// Positions of the first entries of the pages.
    starts: Vec<usize>,
    pub(super) entries: Vec<Bytes>,
    pub(super) keys: Vec<String>,
    /// Text before the `}` of each page: the mark of stale backends.
    suffix: String,
    /// Digest of the entries, computed at its first use.
    pub(super) digest: OnceLock<u128>,
}

impl Pages {
    /// Returns the position after the page that begins at this position.
    fn end_of_page(&self, start: usize) -> usize {
        let mut bytes = 0;
        let fits = |entry: &&Bytes| {
            let is_first = bytes == 0;
            bytes += entry.len();
            is_first || bytes <= PAGE_BYTES_MAX
        };
        start + self.entries[start..].iter().take(PAGE_ENTRIES).take_while(fits).count()
    }

    /// Returns the position after the entry with this name or URI, which usually ends a page. A
    /// client that reads a long list would otherwise compare all names for each page.
    pub(super) fn position_after(&self, key: &str) -> Option<usize> {
        let ends_page = |start: &usize| self.keys[*start - 1] == key;
        let next_page = self.starts.iter().skip(1).copied().find(ends_page);
        next_page.or_else(|| Some(self.keys.iter().position(|known| known == key)? + 1))
    }
}

impl Catalog {
    /// Paginates a list of an endpoint. A list of tools has `execute_batch` at its end, unless it is
    /// empty or has or holds a tool of this name.
    pub(super) fn paginate_with_batch<'a>(
        &mut self,
        endpoint: &Endpoint,
        kind: ListKind,
        entries: Vec<(&'a str, &'a Bytes)>,
        stale: impl Iterator<Item = &'a BackendId>,
    ) -> Pages {
        let calls_max = self.origin.batch_calls_max;
        let is_taken = || {
            entries.iter().any(|(name, _)| *name == batch::BATCH_TOOL)
                || match endpoint {
                    Endpoint::Single(backend) => self.is_held(backend, kind, batch::BATCH_TOOL),
                    _ => self.is_exposed_held(kind, batch::BATCH_TOOL),
                }
        };
        if calls_max == 0 || kind != ListKind::Tools || entries.is_empty() || is_taken() {
            return paginate(entries.into_iter(), stale);
        }
        self.batching.push(endpoint.clone());
        let entry = batch::entry(calls_max);
        let mut all: Vec<(&str, &Bytes)> = entries;
        all.push((batch::BATCH_TOOL, &entry));
        paginate(all.into_iter(), stale)
    }

    /// Returns the number of entries of all backends.
    pub fn entry_count(&self) -> usize {
        let lists = self.backends.values();
        lists.flat_map(|lists| ListKind::ALL.map(|kind| lists.entries(kind).len())).sum()
    }

    /// Returns the bytes of these entries.
    pub fn entry_bytes(&self) -> usize {
        let lists = self.backends.values();
        let entries = lists.flat_map(|lists| ListKind::ALL.map(|kind| lists.entries(kind)));
        entries.flatten().map(|entry| entry.exposed.len()).sum()
    }

    /// Returns the names and entries of what the endpoint of the snapshot lists.
    pub fn listed(&self, kind: ListKind) -> impl Iterator<Item = (&str, &Bytes)> {
        let pages = self.lists.get(&(self.origin.merged.clone(), kind)).into_iter();
        pages.flat_map(|pages| pages.keys.iter().map(String::as_str).zip(&pages.entries))
    }

    /// Returns the tool of a backend that the endpoint of the snapshot lists under a name. `None`:
    /// the broker answers the tool itself.
    pub fn listed_tool(&self, name: &str) -> Option<&Target> {
        let is_batch = name == batch::BATCH_TOOL && self.batching.contains(&self.origin.merged);
        self.tools.get(name).filter(|_| !is_batch && !self.origin.is_searched)
    }

    /// Returns the marks of the catalogs behind the lists of an endpoint. A backend of which the
    /// endpoint shows nothing does not count.
    pub fn marks(&self, endpoint: &Endpoint) -> CatalogMarks {
        let mut marks = CatalogMarks::default();
        for (backend, lists) in &self.backends {
            let is_elsewhere = matches!(endpoint, Endpoint::Single(only) if only != backend);
            if !is_elsewhere && lists.has_entries() {
                marks.extend(&lists.marks);
            }
        }
        marks
    }

    /// Returns the page that begins with this entry of a list.
    pub(super) fn page(
        &self,
        endpoint: &Endpoint,
        kind: ListKind,
        pages: &Pages,
        start: usize,
    ) -> Bytes {
        let made = || self.made_page(endpoint, kind, pages, start);
        match pages.starts.binary_search(&start) {
            Ok(at) => pages.pages[at].get_or_init(made).clone(),
            Err(_) => made(),
        }
    }

    fn made_page(&self, endpoint: &Endpoint, kind: ListKind, pages: &Pages, start: usize) -> Bytes {
        let end = pages.end_of_page(start);
        let mut body = Vec::with_capacity(
            64 + pages.entries[start..end].iter().map(|entry| entry.len() + 1).sum::<usize>(),
        );
        body.extend_from_slice(format!("{{\"{}\":[", kind.member()).as_bytes());
        for (index, entry) in pages.entries[start..end].iter().enumerate() {
            if index > 0 {
                body.push(b',');
            }
            body.extend_from_slice(entry);
        }
        body.push(b']');
        if end < pages.entries.len() {
            let cursor = cursor::seal(
                &self.origin.key,
                self.scope(&endpoint.name(), kind),
                &pages.keys[end - 1],
            );
            body.extend_from_slice(format!(",\"nextCursor\":\"{cursor}\"").as_bytes());
        }
        body.extend_from_slice(pages.suffix.as_bytes());
        body.push(b'}');
        body.into()
    }
}

fn paginate<'a, 'b>(
    entries: impl Iterator<Item = (&'a str, &'a Bytes)>,
    stale: impl Iterator<Item = &'b BackendId>,
) -> Pages {
    let mut pages = Pages { suffix: stale_mark(stale), ..Pages::default() };
    let mut seen = HashSet::new();
    for (key, entry) in entries {
        if seen.insert(key) {
            pages.keys.push(key.to_owned());
            pages.entries.push(entry.clone());
        }
    }
    let mut next = 0;
    while pages.starts.is_empty() || next < pages.entries.len() {
        pages.starts.push(next);
        next = pages.end_of_page(next);
    }
    pages.pages = pages.starts.iter().map(|_| OnceLock::new()).collect();
    pages
}

/// Returns the `_meta` member that names the backends whose lists are stale.
fn stale_mark<'a>(stale: impl Iterator<Item = &'a BackendId>) -> String {
    let names: Vec<String> = stale.map(|backend| format!("\"{backend}\"")).collect();
    if names.is_empty() {
        String::new()
    } else {
        format!(",\"_meta\":{{\"dev.mcp-broker/stale\":[{}]}}", names.join(","))
    }
}
