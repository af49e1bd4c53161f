//! The catalog of a tenant as one subject may use it.
//!
//! [`PolicyIndex`] holds, for a policy and a catalog, which rule covers which listed object. A
//! view of a subject is then a few operations on bit sets, so a thousand rules and five thousand
//! tools cost microseconds. Subjects that may use the same objects share a view.

use std::{
    collections::{BTreeMap, HashSet},
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use protocol::{ids::BackendId, method::Method};

use super::{
    AccessDecision, Object, Policy, PolicyWarning, RuleEffect, RuleOutcome, Subject, Verdict,
    ceiling::{Ceilings, SubjectCeilings},
    object::{Coverage, JudgedObject, NamePattern, ObjectKind},
};
use crate::{
    catalog::{BackendLists, Catalog, CatalogEntry, ListKind},
    maps::FastMap,
};

/// A set of positions in the list of objects.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct BitSet(Vec<u64>);

impl BitSet {
    fn empty(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)])
    }

    fn insert(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    fn has(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(bits, more)| *bits |= more);
    }

    fn retain(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(bits, kept)| *bits &= kept);
    }
}

/// Which listed objects are under the ceilings of a policy.
#[derive(Debug)]
struct CeilingIndex {
    /// What the endpoint has for everybody.
    endpoint: BitSet,
    /// What each bound ceiling has.
    bound: Vec<BitSet>,
}

impl CeilingIndex {
    fn insert(&mut self, ceilings: &Ceilings, object: &JudgedObject<'_>, at: usize) {
        if ceilings.endpoint_has(object) {
            self.endpoint.insert(at);
        }
        for (index, set) in self.bound.iter_mut().enumerate() {
            if ceilings.bound_has(index, object) {
                set.insert(at);
            }
        }
    }

    /// Returns what is under the ceilings of one subject.
    fn of(&self, ceilings: &SubjectCeilings<'_>) -> BitSet {
        let mut under = self.endpoint.clone();
        if let Some(bound) = ceilings.bound() {
            let mut of_bound = BitSet(vec![0; under.0.len()]);
            bound.iter().for_each(|&index| of_bound.add(&self.bound[index]));
            under.retain(&of_bound);
        }
        under
    }
}

/// Which listed objects the rules of a policy cover.
#[derive(Debug)]
pub struct PolicyIndex {
    policy: Arc<Policy>,
    catalog: Arc<Catalog>,
    /// For each rule, the listed objects that it covers.
    coverage: Vec<BitSet>,
    under_ceilings: CeilingIndex,
    /// Number of objects: the listed ones, and behind them the linked user interfaces.
    objects: usize,
    ui_links: UiLinks,
    hasher: RandomState,
}

/// The user interfaces that tools link (MCP Apps), each with its position among the objects. They
/// need not be listed.
#[derive(Debug, Default)]
struct UiLinks(FastMap<BackendId, FastMap<String, usize>>);

impl UiLinks {
    /// Finds the links. `first` is the position of the first one.
    fn of(catalog: &Catalog, first: usize) -> Self {
        let (mut links, mut next) = (Self::default(), first);
        for (backend, _, entry) in listed(catalog) {
            for uri in entry.ui_links() {
                let known = links.0.entry(backend.clone()).or_default();
                if known.contains_key(&uri) {
                    continue;
                }
                known.insert(uri, next);
                next += 1;
            }
        }
        links
    }

    fn len(&self) -> usize {
        self.0.values().map(FastMap::len).sum()
    }

    /// Returns each user interface as an object, with its position.
    fn objects(&self) -> impl Iterator<Item = (usize, Object<'_>)> {
        self.0.iter().flat_map(|(backend, links)| {
            links.iter().map(move |(uri, at)| (*at, Object::Resource { backend, uri }))
        })
    }

    /// Returns the entry as a subject sees it: without links to what the subject may not read.
    fn visible_entry(
        &self,
        backend: &BackendId,
        entry: &CatalogEntry,
        visible: &BitSet,
    ) -> CatalogEntry {
        let is_visible = |uri: String| {
            self.0.get(backend).and_then(|links| links.get(&uri)).is_some_and(|at| visible.has(*at))
        };
        if entry.ui_links().into_iter().all(is_visible) {
            entry.clone()
        } else {
            entry.without_ui_links()
        }
    }
}

/// What one subject may use.
#[derive(Debug)]
pub struct AccessView {
    policy: Arc<Policy>,
    /// The full catalog of the tenant.
    full: Arc<Catalog>,
    /// The part that the subject sees.
    pub catalog: Arc<Catalog>,
    /// Listed tools and prompts that a challenge, an approval or a rule in shadow mode is about.
    special: FastMap<BackendId, SpecialNames>,
    /// Number of listed objects that the policy hides.
    pub hidden: usize,
}

/// Own names at one backend.
#[derive(Debug, Default)]
struct SpecialNames {
    tools: HashSet<String>,
    prompts: HashSet<String>,
}

impl SpecialNames {
    /// Returns the names of a kind. Resources need none: every use of one is checked by the rules.
    fn of(&mut self, kind: ListKind) -> Option<&mut HashSet<String>> {
        match kind {
            ListKind::Tools => Some(&mut self.tools),
            ListKind::Prompts => Some(&mut self.prompts),
            ListKind::Resources | ListKind::ResourceTemplates => None,
        }
    }
}

/// The listed objects that a subject may use, as sets.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Verdicts {
    visible: BitSet,
    /// A challenge, an approval or a rule in shadow mode makes these differ from a plain allow.
    special: BitSet,
    backends: Vec<bool>,
}

/// What a fingerprint of [`Verdicts`] is used for: subjects with equal ones share a view.
pub type ViewKey = u64;

impl PolicyIndex {
    pub fn new(policy: Arc<Policy>, catalog: Arc<Catalog>) -> Self {
        let listed_objects = listed(&catalog).count();
        let ui_links = UiLinks::of(&catalog, listed_objects);
        let objects = listed_objects + ui_links.len();
        let mut coverage: Vec<BitSet> =
            policy.rules.iter().map(|_| BitSet::empty(objects)).collect();
        let entries = listed(&catalog).map(|(of, kind, entry)| Object::listed(of, kind, entry));
        let bound = policy.ceilings.bound.iter().map(|_| BitSet::empty(objects)).collect();
        let mut under_ceilings = CeilingIndex { endpoint: BitSet::empty(objects), bound };
        for (at, object) in entries.enumerate().chain(ui_links.objects()) {
            let judged = JudgedObject::new(object);
            under_ceilings.insert(&policy.ceilings, &judged, at);
            for (rule, set) in policy.rules.iter().zip(&mut coverage) {
                if rule.covers(object.listing_method(), &judged) {
                    set.insert(at);
                }
            }
        }
        let hasher = RandomState::new();
        Self { policy, catalog, coverage, under_ceilings, objects, ui_links, hasher }
    }

    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    pub fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// Returns what a subject may use, and a number that subjects with equal rights share.
    pub fn verdicts(&self, subject: &Subject) -> (ViewKey, SubjectVerdicts) {
        let verdicts = self.judge(subject);
        (self.hasher.hash_one(&verdicts), SubjectVerdicts(verdicts))
    }

    /// Builds the view of all subjects with these verdicts.
    pub fn view(&self, verdicts: &SubjectVerdicts) -> AccessView {
        let verdicts = &verdicts.0;
        let mut special: FastMap<BackendId, SpecialNames> = FastMap::default();
        let mut hidden = 0;
        let mut kept: BTreeMap<BackendId, Arc<BackendLists>> = self
            .catalog
            .backends
            .iter()
            .zip(&verdicts.backends)
            .filter(|(_, may_use)| **may_use)
            .map(|((id, lists), _)| (id.clone(), Arc::new(lists.without_entries())))
            .collect();
        for (at, (backend, kind, entry)) in listed(&self.catalog).enumerate() {
            if verdicts.special.has(at)
                && let Some(names) = special.entry(backend.clone()).or_default().of(kind)
            {
                names.insert(entry.key.clone());
            }
            if !verdicts.visible.has(at) {
                hidden += 1;
            } else if let Some(lists) = kept.get_mut(backend).and_then(Arc::get_mut) {
                let shown = self.ui_links.visible_entry(backend, entry, &verdicts.visible);
                lists.entries_mut(kind).push(shown);
            }
        }
        AccessView {
            policy: self.policy.clone(),
            full: self.catalog.clone(),
            catalog: Arc::new(self.catalog.seen(kept)),
            special,
            hidden,
        }
    }

    fn judge(&self, subject: &Subject) -> Verdicts {
        let empty = || BitSet::empty(self.objects);
        let mut enforced = [empty(), empty(), empty(), empty()];
        let mut all = [empty(), empty(), empty(), empty()];
        let [deny, allow, challenge, approve] = [0, 1, 2, 3];
        let under_ceilings = self.under_ceilings.of(&self.policy.ceilings.of(subject));
        for (rule, covered) in self.policy.rules.iter().zip(&self.coverage) {
            if rule.outcome_for(subject) != RuleOutcome::Applied {
                continue;
            }
            let set = match rule.source.effect {
                RuleEffect::Allow => allow,
                RuleEffect::Deny if rule.source.required_scopes.is_empty() => deny,
                RuleEffect::Deny => challenge,
                RuleEffect::Approve => approve,
            };
            let grants = rule.source.effect == RuleEffect::Approve && rule.grants(subject);
            for set in [Some(set), grants.then_some(allow)].into_iter().flatten() {
                all[set].add(covered);
                if rule.is_enforced {
                    enforced[set].add(covered);
                }
            }
        }
        let (mut visible, mut special) = (empty(), empty());
        let verdict = |sets: &[BitSet; 4], at: usize| {
            if sets[deny].has(at) || (self.policy.default_deny && !sets[allow].has(at)) {
                Verdict::Deny
            } else if sets[challenge].has(at) {
                Verdict::Challenge
            } else if sets[approve].has(at) {
                Verdict::Approve
            } else {
                Verdict::Allow
            }
        };
        for at in (0..self.objects).filter(|at| under_ceilings.has(*at)) {
            let would = verdict(&all, at);
            let is = if self.policy.is_shadow { Verdict::Allow } else { verdict(&enforced, at) };
            if is != Verdict::Deny {
                visible.insert(at);
            }
            if matches!(is, Verdict::Challenge | Verdict::Approve) || is != would {
                special.insert(at);
            }
        }
        let backends = self
            .catalog
            .backends
            .keys()
            .map(|backend| self.policy.may_use_backend(subject, backend))
            .collect();
        Verdicts { visible, special, backends }
    }
}

/// What a subject may use, for [`PolicyIndex::view`].
#[derive(Debug)]
pub struct SubjectVerdicts(Verdicts);

impl AccessView {
    /// Returns the decision about an object, for its use with a method.
    ///
    /// `None`: an allow that needs no evaluation of the rules.
    pub fn decide(
        &self,
        subject: &Subject,
        method: Method,
        object: &Object<'_>,
    ) -> Option<AccessDecision<'_>> {
        // The verdicts of lists hold for the method that lists stand for.
        if method == object.listing_method() && self.is_plain_allow(object) {
            return None;
        }
        Some(self.policy.decide(subject, method, object))
    }

    /// Returns whether the view lists a tool or prompt. Resources need not be listed.
    pub fn is_listed(&self, object: &Object<'_>) -> bool {
        match object {
            Object::Tool { backend, name, .. } => self.catalog.has(backend, ListKind::Tools, name),
            Object::Prompt { backend, name } => self.catalog.has(backend, ListKind::Prompts, name),
            Object::Resource { .. } | Object::Template { .. } => true,
        }
    }

    /// Returns whether the view lists a tool or prompt that every rule allows.
    fn is_plain_allow(&self, object: &Object<'_>) -> bool {
        let is_special = |backend: &BackendId, has: fn(&SpecialNames, &str) -> bool, name: &str| {
            !self.special.is_empty()
                && self.special.get(backend).is_some_and(|names| has(names, name))
        };
        match object {
            Object::Tool { backend, name, .. } => {
                self.catalog.has(backend, ListKind::Tools, name)
                    && !is_special(backend, |names, name| names.tools.contains(name), name)
            }
            Object::Prompt { backend, name } => {
                self.catalog.has(backend, ListKind::Prompts, name)
                    && !is_special(backend, |names, name| names.prompts.contains(name), name)
            }
            Object::Resource { .. } | Object::Template { .. } => false,
        }
    }

    /// Returns the catalog of the tenant, of which [`Self::catalog`] is a part.
    pub fn full(&self) -> &Arc<Catalog> {
        &self.full
    }

    pub fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }
}

impl Policy {
    /// Returns whether a subject may use any object of a backend, listed or not.
    pub fn may_use_backend(&self, subject: &Subject, backend: &BackendId) -> bool {
        if !self.ceilings.is_empty() && !self.ceilings.of(subject).may_have(backend) {
            return false;
        }
        if self.is_shadow {
            return true;
        }
        let applied = || {
            self.rules.iter().filter(|rule| {
                rule.is_enforced
                    && rule.outcome_for(subject) == RuleOutcome::Applied
                    && rule.objects.may_cover(backend)
            })
        };
        let is_kind_denied = |kind: ObjectKind| {
            applied().any(|rule| {
                rule.source.effect == RuleEffect::Deny
                    && rule.source.required_scopes.is_empty()
                    && rule.objects.covers_all_of(kind, backend)
            })
        };
        let is_denied = ObjectKind::ALL.into_iter().all(is_kind_denied);
        let is_allowed =
            || applied().any(|rule| rule.source.effect != RuleEffect::Deny && rule.grants(subject));
        !is_denied && (!self.default_deny || is_allowed())
    }
}

/// Returns all listed objects, always in the same order.
fn listed(catalog: &Catalog) -> impl Iterator<Item = (&BackendId, ListKind, &CatalogEntry)> {
    catalog.backends.iter().flat_map(|(backend, lists)| {
        ListKind::ALL.into_iter().flat_map(move |kind| {
            lists.entries(kind).iter().map(move |entry| (backend, kind, entry))
        })
    })
}

/// Returns the patterns of tools and prompts that match no listed object. `path` is that of the
/// object with their lists, each in the order of the document.
pub(super) fn unused_patterns(
    catalog: &Catalog,
    path: &str,
    names: &[NamePattern],
) -> Vec<PolicyWarning> {
    let unused_of = |kind: ObjectKind| {
        let patterns = names.iter().filter(move |pattern| pattern.kind == kind).enumerate();
        let unused = patterns.filter(|(_, pattern)| !lists_match(catalog, pattern));
        unused.map(move |(position, _)| {
            PolicyWarning::unused(format!("{path}.{}[{position}]", kind.member()))
        })
    };
    [ObjectKind::Tool, ObjectKind::Prompt].into_iter().flat_map(unused_of).collect()
}

/// Returns whether a listed object matches a pattern.
fn lists_match(catalog: &Catalog, pattern: &NamePattern) -> bool {
    listed(catalog).any(|(backend, kind, entry)| {
        let object = JudgedObject::new(Object::listed(backend, kind, entry));
        pattern.matches(backend.as_str(), &object, Coverage::AnySpelling)
    })
}
