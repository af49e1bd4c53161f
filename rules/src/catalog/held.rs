//! What pins keep from clients, in the lists of one backend and in the catalog.
//!
//! Held entries stay in the lists of their backend, marked. The catalog neither lists nor resolves
//! them, and keeps them only to refuse their use.

use std::{collections::HashSet, sync::Arc};

use protocol::ids::BackendId;
use records::PinKind;

use super::{BackendLists, CatalogEntry, ListKind};
use crate::{
    maps::FastMap,
    pins::{EntryPin, PinBook, PinMode},
    resource_uri::{Readings, plainest},
};

/// Parts of a backend besides its entries that are kept from clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeldParts {
    /// Tools and prompts that no list shows.
    pub unlisted: bool,
    pub instructions: bool,
}

impl BackendLists {
    /// Marks everything that is kept from clients. `instructions` is the pin of the server's
    /// instructions.
    pub fn mark_held(&mut self, book: &PinBook, mode: PinMode, instructions: EntryPin) {
        for kind in ListKind::ALL {
            mark_held(book, mode, kind, self.entries_mut(kind));
        }
        let kind = PinKind::Instructions;
        self.held = HeldParts {
            unlisted: mode.holds_unknown(),
            instructions: self.server.instructions.is_some()
                && book.holds(mode, kind, kind.name(), instructions),
        };
    }

    /// Returns the number of entries that are kept from clients.
    pub fn held_count(&self) -> usize {
        let entries = ListKind::ALL.into_iter().flat_map(|kind| self.entries(kind));
        entries.filter(|entry| entry.pin.is_held).count()
    }

    /// Returns the entries of a list that clients may see.
    pub fn listed(&self, kind: ListKind) -> impl Iterator<Item = &CatalogEntry> {
        self.entries(kind).iter().filter(|entry| !entry.pin.is_held)
    }

    /// Returns whether clients may see a resource with this URI in the list.
    fn lists_resource(&self, uri: &str) -> bool {
        self.listed(ListKind::Resources).any(|entry| entry.key == uri)
    }

    /// Returns whether a listed resource or template has this URI.
    fn shows_resource(&self, uri: &str) -> bool {
        self.lists_resource(uri)
            || self.listed(ListKind::ResourceTemplates).any(|entry| makes(&entry.key, uri))
    }

    /// Returns the instructions of the server, unless they are held.
    pub fn instructions(&self) -> Option<&str> {
        self.server.instructions.as_deref().filter(|_| !self.held.instructions)
    }
}

/// Marks the entries of one list that are kept from clients.
pub fn mark_held(book: &PinBook, mode: PinMode, kind: ListKind, entries: &mut [CatalogEntry]) {
    let mut held = HashSet::new();
    for entry in &mut *entries {
        entry.pin.is_held = book.holds(mode, kind.pin_kind(), &entry.key, entry.pin);
        if entry.pin.is_held {
            held.insert(entry.key.clone());
        }
    }
    if !held.is_empty() {
        // Of several entries with one name, none replaces a held one.
        entries.iter_mut().for_each(|entry| entry.pin.is_held |= held.contains(&entry.key));
    }
}

/// Names of held entries, by list.
type HeldNames = [HashSet<String>; ListKind::ALL.len()];

/// The held entries of all backends.
#[derive(Debug, Default)]
pub(super) struct HeldEntries {
    /// By the backend's own names.
    own: FastMap<BackendId, HeldNames>,
    /// URIs of held resources and templates as most readers take them, where that is another
    /// spelling.
    plain: FastMap<BackendId, HeldNames>,
    /// By the names on the aggregated endpoint.
    exposed: HeldNames,
}

impl HeldEntries {
    pub(super) fn of<'a>(
        backends: impl IntoIterator<Item = (&'a BackendId, &'a Arc<BackendLists>)>,
    ) -> Self {
        let mut held = Self::default();
        for (backend, lists) in backends {
            for kind in ListKind::ALL {
                for entry in lists.entries(kind).iter().filter(|entry| entry.pin.is_held) {
                    let own = held.own.entry(backend.clone()).or_default();
                    own[kind as usize].insert(entry.key.clone());
                    if matches!(kind, ListKind::Resources | ListKind::ResourceTemplates) {
                        let plain = held.plain.entry(backend.clone()).or_default();
                        plain[kind as usize].extend(plainest(&entry.key));
                    }
                    held.exposed[kind as usize].insert(entry.exposed_key.clone());
                }
            }
        }
        held
    }

    pub(super) fn is_any(&self) -> bool {
        !self.own.is_empty()
    }

    pub(super) fn has(&self, backend: &BackendId, kind: ListKind, name: &str) -> bool {
        !self.own.is_empty()
            && self.own.get(backend).is_some_and(|names| names[kind as usize].contains(name))
    }

    pub(super) fn has_exposed(&self, kind: ListKind, name: &str) -> bool {
        self.exposed[kind as usize].contains(name)
    }

    /// Returns whether a resource is held under one of the spellings of its URI. `lists` are those
    /// of its backend. A resource that no list shows is held if only held templates can have made
    /// its URI.
    pub(super) fn has_resource(
        &self,
        backend: &BackendId,
        lists: Option<&BackendLists>,
        uri: &str,
    ) -> bool {
        let Some(names) = self.own.get(backend) else { return false };
        let resources = &names[ListKind::Resources as usize];
        if resources.contains(uri) {
            return true;
        }
        if lists.is_some_and(|lists| lists.lists_resource(uri)) {
            return false; // it has a pin of its own
        }
        let plain = self.plain.get(backend);
        let names_of = |kind: ListKind| {
            names[kind as usize]
                .iter()
                .chain(plain.iter().flat_map(move |plain| &plain[kind as usize]))
        };
        let is_spelling = |form: &str| {
            resources.contains(form)
                || plain.is_some_and(|plain| plain[ListKind::Resources as usize].contains(form))
        };
        let readings = Readings::of(uri);
        if readings.is_cut && names_of_resources(names) {
            return true;
        }
        readings.with(uri).any(|form| {
            is_spelling(form)
                || (names_of(ListKind::ResourceTemplates).any(|template| fits(template, form))
                    && !lists.is_some_and(|lists| lists.shows_resource(form)))
        })
    }
}

/// Returns whether any of the names is that of a resource or a template.
fn names_of_resources(names: &HeldNames) -> bool {
    let kinds = [ListKind::Resources, ListKind::ResourceTemplates];
    kinds.iter().any(|kind| !names[*kind as usize].is_empty())
}

/// Returns whether values for its variables make a template (RFC 6570) this URI. Only expressions
/// with `+`, `#` or `/` have values with a slash. Of several of them, the last one takes the most.
fn makes(template: &str, uri: &str) -> bool {
    let (first, rest) = template.split_once('{').unwrap_or((template, ""));
    let Some(mut uri) = uri.strip_prefix(first) else { return false };
    if first.len() == template.len() {
        return uri.is_empty();
    }
    let parts: Vec<(&str, &str)> =
        rest.split('{').map(|part| part.split_once('}').unwrap_or((part, ""))).collect();
    let has_slashes = |variables: &str| variables.starts_with(['+', '#', '/']);
    let is_value = |variables: &str, value: &str| !value.contains('/') || has_slashes(variables);
    // This expression takes what the parts before and behind it leave.
    let widest = parts.iter().rposition(|(variables, _)| has_slashes(variables));
    let widest = widest.unwrap_or(parts.len() - 1);
    for at in (widest..parts.len()).rev() {
        let literal = parts[at].1;
        let next = parts.get(at + 1);
        let end = match next {
            Some(_) => uri.rfind(literal),
            None => uri.strip_suffix(literal).map(str::len),
        };
        let Some(end) = end else { return false };
        if next.is_some_and(|(variables, _)| !is_value(variables, &uri[end + literal.len()..])) {
            return false;
        }
        uri = &uri[..end];
    }
    for &(variables, literal) in &parts[..widest] {
        let Some(end) = uri.find(literal) else { return false };
        if !is_value(variables, &uri[..end]) {
            return false;
        }
        uri = &uri[end + literal.len()..];
    }
    is_value(parts[widest].0, uri)
}

/// Returns whether a URI has the literal parts of a template (RFC 6570) in their order.
fn fits(template: &str, uri: &str) -> bool {
    let (first, rest) = template.split_once('{').unwrap_or((template, ""));
    let Some(mut uri) = uri.strip_prefix(first) else { return false };
    if first.len() == template.len() {
        return uri.is_empty();
    }
    for expression in rest.split('{') {
        let literal = expression.split_once('}').map_or("", |(_, literal)| literal);
        match uri.find(literal) {
            Some(at) => uri = &uri[at + literal.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_makes_a_uri_with_slashes_only_in_some_expressions() {
        for (template, yes, no) in [
            ("file:///{name}", &["file:///", "file:///a"][..], &["file:///a/b", "file://"][..]),
            ("file:///{+path}", &["file:///a", "file:///a/b"], &["http:///a"]),
            ("file://{/path*}", &["file:///a/b"], &["file:/a"]),
            ("file:///{+path}{?rev}", &["file:///a/b", "file:///a/b?rev=1"], &["http:///a"]),
            ("f:/{t}{/path*}", &["f:/a", "f:/a/b/c"], &["g:/a"]),
            ("f:/{t}/raw/{+path}", &["f:/a/raw/b/raw/c"], &["f:/a/b/raw/c", "f:/a/raw"]),
            ("f:/{+path}/raw/{id}", &["f:/a/raw/b/raw/1"], &["f:/a/raw/1/2", "f:/raw/1"]),
            ("db://{t}/rows/{id}", &["db://a/rows/1"], &["db://a/b/rows/1", "db://a/rows/1/2"]),
            ("a:{x}z", &["a:z", "a:bz"], &["a:b", "a:bzc"]),
            ("a:b", &["a:b"], &["a:bc"]),
        ] {
            yes.iter().for_each(|uri| assert!(makes(template, uri), "{template} {uri}"));
            no.iter().for_each(|uri| assert!(!makes(template, uri), "{template} {uri}"));
        }
    }

    #[test]
    fn a_uri_fits_the_literal_parts_of_a_template() {
        for (template, yes, no) in [
            ("file:///{path}", &["file:///", "file:///a/b"][..], &["file://a", "http:///a"][..]),
            ("db://{table}/rows/{id}", &["db://a/rows/1"], &["db://a/columns/1"]),
            ("a:{+x}z", &["a:z", "a:bz"], &["a:b"]),
            ("a:b", &["a:b"], &["a:bc"]),
            ("a:{unclosed", &["a:b"], &["b:"]),
        ] {
            yes.iter().for_each(|uri| assert!(fits(template, uri), "{template} {uri}"));
            no.iter().for_each(|uri| assert!(!fits(template, uri), "{template} {uri}"));
        }
    }
}
