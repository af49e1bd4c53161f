//! The catalog of a tenant as its subjects see it, under the access policy in force.
//!
//! Invariants: a snapshot of catalog and policy is immutable. Subjects with equal rights share a
//! view. A tenant without a policy has no views and costs nothing.

use std::{
    collections::{BTreeMap, hash_map::RandomState},
    sync::Arc,
};

use protocol::ids::BackendId;
use quick_cache::{Weighter, sync::Cache};
use rules::{
    access::{AccessView, Policy, PolicyIndex, Subject, ViewKey},
    catalog::{BackendLists, Catalog},
    limits::{
        access::{ACCESS_SUBJECTS_MAX, ACCESS_VIEWS_MAX},
        own_lists::SESSION_CATALOGS_BYTES_MAX,
    },
};
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task::block_in_place,
};

use crate::backends::link_lists::OwnLists;

/// Expected number of snapshots with own lists, for the size of their table.
const SESSION_CATALOGS_EXPECTED: usize = 16;

/// A catalog, and the policy that restricts it.
#[derive(Debug)]
pub struct TenantCatalog {
    /// The whole catalog. Only for what no client sees.
    pub full: Arc<Catalog>,
    access: Option<PolicyViews>,
    policy: Option<Arc<Policy>>,
    own: SessionCatalogs,
}

/// Snapshots with own lists of sessions, by the numbers of these lists.
struct SessionCatalogs(Cache<Vec<u64>, Arc<TenantCatalog>, CatalogWeight>);

/// Weighs snapshots by their bytes.
#[derive(Clone)]
struct CatalogWeight;

impl Weighter<Vec<u64>, Arc<TenantCatalog>> for CatalogWeight {
    fn weight(&self, _numbers: &Vec<u64>, catalog: &Arc<TenantCatalog>) -> u64 {
        catalog.full.bytes().max(1) as u64
    }
}

/// Views under one policy.
struct PolicyViews {
    index: PolicyIndex,
    hasher: RandomState,
    by_subject: Cache<u64, Arc<AccessView>>,
    by_rights: Cache<ViewKey, Arc<AccessView>>,
}

impl TenantCatalog {
    /// Returns a snapshot. With a policy this can take a tenth of a second, in which the runtime's
    /// other tasks run on other threads.
    pub fn new(full: Arc<Catalog>, policy: Option<Arc<Policy>>) -> Self {
        let access = policy.clone().map(|policy| PolicyViews {
            index: beside_runtime(|| PolicyIndex::new(policy, full.clone())),
            hasher: RandomState::new(),
            by_subject: Cache::new(ACCESS_SUBJECTS_MAX),
            by_rights: Cache::new(ACCESS_VIEWS_MAX),
        });
        let own = SessionCatalogs(Cache::with_weighter(
            SESSION_CATALOGS_EXPECTED,
            SESSION_CATALOGS_BYTES_MAX,
            CatalogWeight,
        ));
        Self { full, access, policy, own }
    }

    /// Returns the snapshot in which these lists replace those of their backends.
    pub fn with_own_lists(self: &Arc<Self>, own: &[(BackendId, Arc<OwnLists>)]) -> Arc<Self> {
        let mut numbers: Vec<u64> = own.iter().map(|(_, lists)| lists.number).collect();
        numbers.sort_unstable();
        if let Some(known) = self.own.0.get(&numbers) {
            return known;
        }
        let replaced: BTreeMap<BackendId, Arc<BackendLists>> = own
            .iter()
            .filter_map(|(backend, own)| {
                let lists = own.difference.apply(self.full.backends.get(backend)?)?;
                Some((backend.clone(), Arc::new(lists)))
            })
            .collect();
        if replaced.is_empty() {
            return self.clone(); // the shared lists have caught up
        }
        let mut backends = self.full.backends.clone();
        backends.extend(replaced);
        let full = Arc::new(beside_runtime(|| self.full.rebuilt(backends)));
        let made = Arc::new(Self::new(full, self.policy.clone()));
        self.own.0.insert(numbers, made.clone());
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

/// Runs long work, and lets another thread take over the tasks of this one.
fn beside_runtime<R>(work: impl FnOnce() -> R) -> R {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => block_in_place(work),
        _ => work(),
    }
}

impl PolicyViews {
    fn view(&self, subject: &Subject) -> Arc<AccessView> {
        let fingerprint = subject.fingerprint(&self.hasher);
        if let Some(view) = self.by_subject.get(&fingerprint) {
            return view;
        }
        let (rights, verdicts) = self.index.verdicts(subject);
        let view = self.by_rights.get(&rights).unwrap_or_else(|| {
            let view = Arc::new(self.index.view(&verdicts));
            self.by_rights.insert(rights, view.clone());
            view
        });
        self.by_subject.insert(fingerprint, view.clone());
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
