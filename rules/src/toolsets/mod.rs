//! Toolsets: bundles of a tenant's tools, prompts and resources, each with an endpoint of its own.
//!
//! A toolset makes other lists of the backends' lists: fewer entries, under other names, with other
//! texts. Its endpoint is a property of the URL, never of a connection. The access policy is asked
//! afterwards, and by the backends' own names. At the endpoint it also denies what the toolset does
//! not hold ([`Toolsets::policy`]), so a listed object is callable and the reverse.

mod compile;
mod document;
mod entry;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use protocol::ids::{BackendId, ToolsetId};

pub use self::document::{
    AnnotationOverride, ArgumentOverride, DescriptionLength, EntryOverride, NameStyle,
    ToolsetDocument,
};
use self::entry::{EntryShape, Trim};
use crate::{
    access::{Ceiling, Object, Policy, PolicyFault, PolicyWarning, Selection},
    catalog::{BackendLists, Catalog, CatalogEntry, ListKind},
    exposed_names::{self, EXPOSED_NAME_BYTES_MAX},
};

/// A toolset in force.
#[derive(Debug)]
pub struct Toolset {
    pub id: ToolsetId,
    pub description: Option<String>,
    selection: Arc<Selection>,
    /// The ceiling of the callers that it is bound to, if it is enforced.
    ceiling: Option<Arc<Ceiling>>,
    aliases: BTreeMap<(BackendId, String), String>,
    shapes: BTreeMap<(BackendId, String), EntryShape>,
    names: NameStyle,
    trim: Trim,
    is_searched: bool,
}

/// An entry that a toolset holds, and its backend.
type Held<'a> = (&'a BackendId, &'a CatalogEntry);

impl Toolset {
    /// Compiles a document. `backends` are the names that it may mention; `None`: any name.
    pub fn compile(
        id: ToolsetId,
        document: &ToolsetDocument,
        backends: Option<&[BackendId]>,
    ) -> Result<Self, Vec<PolicyFault>> {
        compile::compile(id, document, backends)
    }

    /// Returns whether the toolset can hold anything of a backend.
    pub fn may_have(&self, backend: &BackendId) -> bool {
        self.selection.may_have(backend)
    }

    /// Builds the snapshot of the toolset from that of its tenant.
    pub fn catalog(&self, full: &Catalog) -> Catalog {
        full.of_toolset(self.id.clone(), self.is_searched, self.lists(full))
    }

    /// Returns the names that stand for several entries at present. Such a toolset cannot be
    /// published if it shows names without prefixes.
    pub fn ambiguities(&self, full: &Catalog) -> Vec<PolicyFault> {
        if self.names != NameStyle::Never {
            return Vec::new();
        }
        let mut faults = Vec::new();
        for kind in [ListKind::Tools, ListKind::Prompts] {
            for (name, claims) in self.claims(&self.held(full, kind)) {
                if claims.len() < 2 {
                    continue;
                }
                let claims: Vec<String> =
                    claims.iter().map(|(backend, own)| format!("{backend}/{own}")).collect();
                faults.push(PolicyFault {
                    path: "names".to_owned(),
                    problem: format!(
                        "is never, but {name} is the name of {}; give all but one an alias",
                        claims.join(" and ")
                    ),
                    is_failed_test: true,
                });
            }
        }
        faults
    }

    /// Returns the included patterns, aliases and overrides that match nothing at present.
    pub fn unused_members(&self, full: &Catalog) -> Vec<PolicyWarning> {
        let is_listed = |(backend, name): &(BackendId, String)| {
            [ListKind::Tools, ListKind::Prompts].into_iter().any(|kind| {
                let lists = full.backends.get(backend);
                lists.is_some_and(|lists| lists.entries(kind).iter().any(|one| one.key == *name))
            })
        };
        let aliases = self.aliases.keys().map(|key| ("aliases", key));
        let overrides = self.shapes.keys().map(|key| ("overrides", key));
        let unused = aliases.chain(overrides).filter(|(_, key)| !is_listed(key));
        let unused = unused.map(|(member, (backend, name))| {
            PolicyWarning::unused(format!("{member}.{backend}/{name}"))
        });
        self.selection.unused_patterns(full).into_iter().chain(unused).collect()
    }

    /// Returns the entries of one kind that the toolset holds, by backend and name.
    fn held<'a>(&self, full: &'a Catalog, kind: ListKind) -> Vec<Held<'a>> {
        let mut held: Vec<Held<'a>> = Vec::new();
        for (backend, lists) in full.backends.iter().filter(|(id, _)| self.may_have(id)) {
            let start = held.len();
            let is_included =
                |entry: &&CatalogEntry| self.selection.has(&Object::listed(backend, kind, entry));
            let included = lists.entries(kind).iter().filter(is_included);
            held.extend(included.map(|entry| (backend, entry)));
            held[start..].sort_by(|(_, one), (_, other)| one.key.cmp(&other.key));
        }
        held
    }

    fn lists(&self, full: &Catalog) -> BTreeMap<BackendId, Arc<BackendLists>> {
        let mut made: BTreeMap<BackendId, BackendLists> = full
            .backends
            .iter()
            .filter(|(backend, _)| self.may_have(backend))
            .map(|(backend, lists)| (backend.clone(), lists.without_entries()))
            .collect();
        for kind in ListKind::ALL {
            let held = self.held(full, kind);
            let is_named = matches!(kind, ListKind::Tools | ListKind::Prompts);
            let claims = if is_named { self.claims(&held) } else { BTreeMap::new() };
            for (backend, entry) in &held {
                let name = match is_named {
                    true => self.name(backend, entry, &claims),
                    false => entry.exposed_key.clone(),
                };
                let shape = is_named.then(|| self.shapes.get(&entry_key(backend, entry))).flatten();
                let shown = entry::shaped(entry, kind, &name, shape, &self.trim);
                if let (Some(shown), Some(lists)) = (shown, made.get_mut(*backend)) {
                    lists.entries_mut(kind).push(shown);
                }
            }
        }
        made.into_iter().map(|(backend, lists)| (backend, Arc::new(lists))).collect()
    }

    /// Returns the entries that claim each name without a prefix.
    fn claims<'a>(
        &'a self,
        held: &[Held<'a>],
    ) -> BTreeMap<&'a str, BTreeSet<(&'a BackendId, &'a str)>> {
        let mut claims: BTreeMap<&str, BTreeSet<_>> = BTreeMap::new();
        for (backend, entry) in held {
            let alias = self.aliases.get(&entry_key(backend, entry)).map(String::as_str);
            if let Some(name) = alias.or_else(|| self.plain(backend, entry)) {
                claims.entry(name).or_default().insert((*backend, entry.key.as_str()));
            }
        }
        claims
    }

    /// Returns the entry's own name, if it may be shown without a prefix. A name with `__` could be
    /// that of another backend's entry.
    fn plain<'a>(&self, backend: &BackendId, entry: &'a CatalogEntry) -> Option<&'a str> {
        let name = entry.key.as_str();
        let is_plain = self.names != NameStyle::Always || *backend == BackendId::hosted();
        let is_usable = name.len() <= EXPOSED_NAME_BYTES_MAX
            && !name.contains("__")
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        (is_plain && is_usable).then_some(name)
    }

    fn name(
        &self,
        backend: &BackendId,
        entry: &CatalogEntry,
        claims: &BTreeMap<&str, BTreeSet<(&BackendId, &str)>>,
    ) -> String {
        if let Some(alias) = self.aliases.get(&entry_key(backend, entry)) {
            return alias.clone();
        }
        let plain = self.plain(backend, entry);
        let is_only = |name: &&str| claims.get(name).is_none_or(|claims| claims.len() == 1);
        match plain.filter(is_only) {
            Some(name) => name.to_owned(),
            None => exposed_names::exposed_name(backend, &entry.key),
        }
    }
}

fn entry_key(backend: &BackendId, entry: &CatalogEntry) -> (BackendId, String) {
    (backend.clone(), entry.key.clone())
}

/// The toolsets of a tenant, as one snapshot.
#[derive(Debug, Default)]
pub struct Toolsets {
    published: BTreeMap<ToolsetId, Arc<Toolset>>,
    /// Ceilings of all enforced toolsets, with the toolset of each. One that is not published
    /// holds too: no caller gets more because an endpoint is closed.
    ceilings: Arc<[Arc<Ceiling>]>,
    enforced: Vec<ToolsetId>,
}

impl Toolsets {
    /// Takes all toolsets of a tenant, and whether each is published.
    pub fn new(all: impl IntoIterator<Item = (Arc<Toolset>, bool)>) -> Self {
        let (mut published, mut ceilings, mut enforced) = (BTreeMap::new(), Vec::new(), Vec::new());
        for (toolset, is_published) in all {
            if let Some(ceiling) = &toolset.ceiling {
                ceilings.push(ceiling.clone());
                enforced.push(toolset.id.clone());
            }
            if is_published {
                published.insert(toolset.id.clone(), toolset);
            }
        }
        Self { published, ceilings: ceilings.into(), enforced }
    }

    pub fn get(&self, id: &ToolsetId) -> Option<&Arc<Toolset>> {
        self.published.get(id)
    }

    /// Returns the published toolsets.
    pub fn published(&self) -> impl Iterator<Item = &Arc<Toolset>> {
        self.published.values()
    }

    /// Returns the policy of a tenant under the ceilings that hold at an endpoint: that of a
    /// toolset, or any other one. `None`: everything is allowed.
    pub fn policy(&self, base: Option<&Arc<Policy>>, at: Option<&Toolset>) -> Option<Arc<Policy>> {
        if at.is_none() && self.ceilings.is_empty() {
            return base.cloned();
        }
        let endpoint = at.map(|toolset| {
            let own = self.enforced.iter().position(|id| *id == toolset.id);
            (toolset.selection.clone(), own)
        });
        let open = Policy::default();
        let base = base.map_or(&open, |base| base);
        Some(Arc::new(base.under(endpoint, self.ceilings.clone())))
    }
}

#[cfg(test)]
mod tests;
