//! The catalog of a tenant as its subjects see it, under the access policy in force.
//!
//! Invariants: a snapshot of catalog, policy and toolsets is immutable. Subjects with equal rights
//! share a view. A tenant without a policy has no views and costs nothing. The snapshot of a toolset
//! is built at its first use, or before the tenant's snapshot is published if sessions use it.

use std::{
    collections::{BTreeMap, HashSet, hash_map::RandomState},
    convert::Infallible,
    sync::{Arc, OnceLock, Weak},
};

use protocol::{
    ids::{BackendId, PrincipalId, ToolsetId},
    method::Method,
};
use quick_cache::{Weighter, sync::Cache};
use rules::{
    access::{AccessView, Policy, PolicyIndex, Subject, ViewKey},
    catalog::{BackendLists, Catalog},
    endpoint::Endpoint,
    limits::{
        CATALOG_BYTES_AT_ONCE_MAX,
        access::{ACCESS_SUBJECTS_MAX, ACCESS_VIEW_ENTRY_BYTES, ACCESS_VIEWS_BYTES_MAX},
        own_lists::{SESSION_CATALOG_COUNTED_BYTES_MAX, SESSION_CATALOGS_BYTES_MAX},
    },
    toolsets::{Toolset, Toolsets},
};

use crate::{
    backends::{backend::Backend, link_lists::OwnLists},
    long_work::run_long_work,
};

/// Expected number of snapshots with own lists, and of views, for the size of their tables.
const SNAPSHOTS_EXPECTED: usize = 16;

/// A catalog, and the policy that restricts it.
#[derive(Debug)]
pub struct TenantCatalog {
    /// The whole catalog. Only for what no client sees.
    pub full: Arc<Catalog>,
    access: Option<PolicyViews>,
    /// The policy of the tenant. The one in force is under the ceilings of toolsets.
    policy: Option<Arc<Policy>>,
    own: SessionCatalogs,
    /// Backends that show lists of its own to each principal.
    of_principals: Vec<Arc<Backend>>,
    /// Backends for whose lists a tool stands.
    without_user: Vec<Arc<Backend>>,
    toolsets: Arc<Toolsets>,
    /// The snapshots of the toolsets' endpoints.
    at_toolsets: BTreeMap<ToolsetId, OnceLock<Arc<TenantCatalog>>>,
    /// The snapshot of an endpoint that does not exist.
    nothing: OnceLock<Arc<TenantCatalog>>,
}

/// Snapshots with own lists of sessions, by the numbers of these lists.
struct SessionCatalogs(Cache<Vec<u64>, Arc<TenantCatalog>, CatalogWeight>);

/// Weighs snapshots by their bytes. A large one counts less, because the cache would refuse it: each
/// request would then build it again.
#[derive(Clone)]
struct CatalogWeight;

impl Weighter<Vec<u64>, Arc<TenantCatalog>> for CatalogWeight {
    fn weight(&self, _numbers: &Vec<u64>, catalog: &Arc<TenantCatalog>) -> u64 {
        (catalog.full.bytes() as u64).clamp(1, SESSION_CATALOG_COUNTED_BYTES_MAX)
    }
}

/// Views under one policy.
struct PolicyViews {
    index: PolicyIndex,
    hasher: RandomState,
    /// Keeps no view: the subjects of a tenant may have thousands of different ones.
    by_subject: Cache<u64, Weak<AccessView>>,
    by_rights: Cache<ViewKey, Arc<AccessView>, ViewWeight>,
}

/// Weighs views by their entries. A small one also needs tables, and a large one counts less, because
/// the cache would refuse it.
#[derive(Clone)]
struct ViewWeight;

impl Weighter<ViewKey, Arc<AccessView>> for ViewWeight {
    fn weight(&self, _rights: &ViewKey, view: &Arc<AccessView>) -> u64 {
        let bytes = view.catalog.entry_count() as u64 * ACCESS_VIEW_ENTRY_BYTES;
        bytes.clamp(16 * ACCESS_VIEW_ENTRY_BYTES, ACCESS_VIEWS_BYTES_MAX / 8)
    }
}

impl TenantCatalog {
    /// Returns a snapshot. With a policy this can take a tenth of a second, in which the runtime's
    /// other tasks run on other threads.
    pub fn new(full: Arc<Catalog>, policy: Option<Arc<Policy>>, toolsets: Arc<Toolsets>) -> Self {
        let in_force = toolsets.policy(policy.as_ref(), None);
        let at_toolsets = toolsets.published().map(|toolset| (toolset.id.clone(), OnceLock::new()));
        let at_toolsets = at_toolsets.collect();
        Self { at_toolsets, ..Self::with_policy(full, in_force, policy, toolsets) }
    }

    /// Returns the snapshot of one endpoint, under the policy in force there.
    fn with_policy(
        full: Arc<Catalog>,
        in_force: Option<Arc<Policy>>,
        policy: Option<Arc<Policy>>,
        toolsets: Arc<Toolsets>,
    ) -> Self {
        let access = in_force.map(|policy| PolicyViews {
            index: run_long_work(|| PolicyIndex::new(policy, full.clone())),
            hasher: RandomState::new(),
            by_subject: Cache::new(ACCESS_SUBJECTS_MAX),
            by_rights: Cache::with_weighter(SNAPSHOTS_EXPECTED, ACCESS_VIEWS_BYTES_MAX, ViewWeight),
        });
        let own = SessionCatalogs(Cache::with_weighter(
            SNAPSHOTS_EXPECTED,
            SESSION_CATALOGS_BYTES_MAX,
            CatalogWeight,
        ));
        let (at_toolsets, nothing) = (BTreeMap::new(), OnceLock::new());
        let (of_principals, without_user) = (Vec::new(), Vec::new());
        Self {
            full,
            access,
            policy,
            own,
            of_principals,
            without_user,
            toolsets,
            at_toolsets,
            nothing,
        }
    }

    /// Returns the snapshot for a tenant with these backends.
    pub fn for_backends(self, backends: &[Arc<Backend>]) -> Self {
        let of_principals = backends.iter().filter(|one| one.principal_lists.is_on()).cloned();
        let without_user = backends.iter().filter(|one| one.placeholder.is_shown()).cloned();
        Self {
            of_principals: of_principals.collect(),
            without_user: without_user.collect(),
            ..self
        }
    }

    /// Returns the backends for whose lists a tool stands.
    pub fn without_user(&self) -> &[Arc<Backend>] {
        &self.without_user
    }

    /// Returns whether each principal has a snapshot of its own.
    pub fn varies_by_principal(&self) -> bool {
        !self.of_principals.is_empty()
    }

    /// Returns the numbers of the lists that a principal sees alone.
    pub fn numbers_of(&self, principal: &PrincipalId) -> Vec<u64> {
        let views = self.of_principals.iter().filter_map(|one| one.principal_lists.of(principal));
        views.map(|view| view.number).collect()
    }

    /// Returns the snapshot as a principal sees it.
    pub fn of(self: &Arc<Self>, principal: &PrincipalId) -> Arc<Self> {
        if self.of_principals.is_empty() {
            return self.clone();
        }
        let seen = |one: &Arc<Backend>| {
            let view = one.principal_lists.of(principal)?;
            self.full.backends.contains_key(&one.id).then(|| (one.id.clone(), view))
        };
        let views: Vec<_> = self.of_principals.iter().filter_map(seen).collect();
        self.with_lists(views.iter().map(|(_, view)| view.number).collect(), || {
            views.iter().map(|(id, view)| (id.clone(), view.lists.clone())).collect()
        })
    }

    /// Returns the snapshot of an endpoint. That of a toolset which is not published is empty.
    pub fn at(self: &Arc<Self>, endpoint: &Endpoint) -> Arc<Self> {
        let Endpoint::Toolset(id) = endpoint else { return self.clone() };
        match self.at_toolsets.get(id).zip(self.toolsets.get(id)) {
            Some((made, toolset)) => match made.get() {
                Some(made) => made.clone(),
                // Also for a caller that waits until another thread has made it.
                None => build(&self.full, || made.get_or_init(|| self.of_toolset(toolset)).clone()),
            },
            None => self.nothing.get_or_init(|| self.of_nothing()).clone(),
        }
    }

    /// Makes what sessions at these endpoints need. Until then, their requests use the earlier
    /// snapshot and do not wait.
    pub fn prepare<'a>(self: &Arc<Self>, endpoints: impl Iterator<Item = &'a Endpoint>) {
        if self.varies_by_principal() {
            return;
        }
        let endpoints: HashSet<&Endpoint> = endpoints.collect();
        for endpoint in endpoints {
            let snapshot = self.at(endpoint);
            if !snapshot.has_policy() {
                let _made = snapshot.full.digests(endpoint);
            }
        }
    }

    fn of_toolset(&self, toolset: &Toolset) -> Arc<Self> {
        let full = Arc::new(toolset.catalog(&self.full));
        let in_force = self.toolsets.policy(self.policy.as_ref(), Some(toolset));
        Self::with_policy(full, in_force, self.policy.clone(), self.toolsets.clone()).into()
    }

    fn of_nothing(&self) -> Arc<Self> {
        let full = Arc::new(self.full.rebuilt(BTreeMap::new()));
        let closed = Some(Arc::new(Policy::deny_all()));
        Self::with_policy(full, closed, self.policy.clone(), self.toolsets.clone()).into()
    }

    /// Returns whether anything restricts what subjects can use here.
    pub fn has_policy(&self) -> bool {
        self.access.is_some()
    }

    /// Returns whether the policy lets a subject use any object of a backend.
    pub fn may_use_backend(&self, subject: &Subject, backend: &BackendId) -> bool {
        let Some(access) = &self.access else { return true };
        if self.full.backends.contains_key(backend) {
            // Views are cached. The policy itself would evaluate each of its rules.
            return access.view(subject).catalog.backends.contains_key(backend);
        }
        access.index.policy().may_use_backend(subject, backend)
    }

    /// Returns the snapshot in which these lists replace those of their backends.
    pub fn with_own_lists(self: &Arc<Self>, own: &[(BackendId, Arc<OwnLists>)]) -> Arc<Self> {
        self.with_lists(own.iter().map(|(_, lists)| lists.number).collect(), || {
            own.iter()
                .filter_map(|(backend, own)| {
                    let lists = own.difference.apply(self.full.backends.get(backend)?)?;
                    Some((backend.clone(), Arc::new(lists)))
                })
                .collect()
        })
    }

    /// Returns the snapshot with other lists, which the numbers name.
    fn with_lists(
        self: &Arc<Self>,
        mut numbers: Vec<u64>,
        lists: impl FnOnce() -> BTreeMap<BackendId, Arc<BackendLists>>,
    ) -> Arc<Self> {
        numbers.sort_unstable();
        if let Some(known) = self.own.0.get(&numbers) {
            return known;
        }
        let replaced = lists();
        if replaced.is_empty() {
            return self.clone(); // the shared lists have caught up, or there are no others
        }
        let make = || {
            let mut backends = self.full.backends.clone();
            backends.extend(replaced);
            let full = Arc::new(self.full.rebuilt(backends));
            let made = Self::new(full, self.policy.clone(), self.toolsets.clone());
            Ok::<_, Infallible>(Arc::new(made))
        };
        // One caller makes it, and the others wait.
        let Ok(made) = build(&self.full, || self.own.0.get_or_insert_with(&numbers, make));
        made
    }

    /// Returns the view of a subject. `None`: the tenant has no policy, so the subject sees all.
    pub fn view(&self, subject: &Subject) -> Option<Arc<AccessView>> {
        self.access.as_ref().map(|access| access.view(subject))
    }

    /// Returns the catalog that a subject sees.
    pub fn visible(&self, subject: &Subject) -> Arc<Catalog> {
        match self.view(subject) {
            Some(view) => view.catalog.clone(),
            None => self.full.clone(),
        }
    }
}

/// Builds a part of a snapshot of this catalog. If that can take long, other threads run the tasks of
/// this one meanwhile.
fn build<R>(of: &Catalog, work: impl FnOnce() -> R) -> R {
    match of.entry_bytes() > CATALOG_BYTES_AT_ONCE_MAX {
        true => run_long_work(work),
        false => work(),
    }
}

/// Makes the search that a call at a searched toolset uses.
pub(super) fn prepare_search(catalog: &Catalog, method: Method) {
    if method == Method::ToolsCall && catalog.lacks_search() {
        build(catalog, || {
            let _made = catalog.search();
        });
    }
}

impl PolicyViews {
    fn view(&self, subject: &Subject) -> Arc<AccessView> {
        let fingerprint = subject.fingerprint(&self.hasher);
        if let Some(view) = self.by_subject.get(&fingerprint).and_then(|view| view.upgrade()) {
            return view;
        }
        let (rights, verdicts) = self.index.verdicts(subject);
        let view = self.by_rights.get(&rights).unwrap_or_else(|| {
            let make = || Ok::<_, Infallible>(Arc::new(self.index.view(&verdicts)));
            // One caller makes it, and the others wait.
            let Ok(view) =
                build(self.index.catalog(), || self.by_rights.get_or_insert_with(&rights, make));
            view
        });
        self.by_subject.insert(fingerprint, Arc::downgrade(&view));
        view
    }
}

impl std::fmt::Debug for PolicyViews {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("PolicyViews").field("subjects", &self.by_subject.len()).finish()
    }
}

impl std::fmt::Debug for SessionCatalogs {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("SessionCatalogs").field(&self.0.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::hmac;
    use protocol::ids::TenantId;
    use rules::toolsets::ToolsetDocument;

    use super::*;
    use crate::{auth::Caller, backends::lists_for_tests::lists_with_tool};

    type Lists = BTreeMap<BackendId, Arc<BackendLists>>;

    fn catalog_of(lists: Lists) -> Arc<Catalog> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &[1; 32]);
        Arc::new(Catalog::build(TenantId::parse("acme").unwrap(), key, lists))
    }

    fn snapshot(lists: Lists, toolsets: Toolsets) -> Arc<TenantCatalog> {
        Arc::new(TenantCatalog::new(catalog_of(lists), None, Arc::new(toolsets)))
    }

    #[test]
    fn a_subject_keeps_no_view_that_its_rights_have_lost() {
        let (policy, subject) = (Arc::new(Policy::deny_all()), Caller::anonymous().subject);
        let catalog = TenantCatalog::new(catalog_of(Lists::new()), Some(policy), Arc::default());
        let views = catalog.access.as_ref().unwrap();
        let made = views.view(&subject);
        assert!(Arc::ptr_eq(&made, &views.view(&subject)));
        let view = Arc::downgrade(&made);
        drop(made);
        assert!(view.upgrade().is_some(), "its rights have it");
        views.by_rights.clear();
        assert!(view.upgrade().is_none());
        assert_eq!(views.view(&subject).hidden, 0, "it is made again");
    }

    #[test]
    fn the_toolset_of_a_session_is_made_before_the_snapshot_is_published() {
        let [used, unused] = ["used", "unused"].map(|name| ToolsetId::parse(name).unwrap());
        let document = ToolsetDocument::default();
        let compiled = |id: &ToolsetId| Toolset::compile(id.clone(), &document, None).unwrap();
        let all = [&used, &unused].map(|id| (Arc::new(compiled(id)), true));
        let next = snapshot(Lists::new(), Toolsets::new(all));
        next.prepare([Endpoint::Toolset(used.clone()), Endpoint::Aggregated].iter());
        assert!(next.at_toolsets[&used].get().is_some());
        assert!(next.at_toolsets[&unused].get().is_none());
    }

    #[test]
    fn a_snapshot_larger_than_the_limit_is_made_once() {
        let id = BackendId::parse("b").unwrap();
        let text = "x".repeat(SESSION_CATALOGS_BYTES_MAX as usize);
        let tool = format!(r#"{{"name":"a","description":"{text}","inputSchema":{{}}}}"#);
        let lists = BTreeMap::from([(id.clone(), Arc::new(lists_with_tool(&id, &tool)))]);
        let catalog = snapshot(lists.clone(), Toolsets::default());
        let with = |number: u64| catalog.with_lists(vec![number], || lists.clone());
        let (one, other) = (with(1), with(2));
        assert!(one.full.bytes() as u64 > SESSION_CATALOGS_BYTES_MAX);
        assert!(Arc::ptr_eq(&one, &with(1)) && Arc::ptr_eq(&other, &with(2)));
    }
}
