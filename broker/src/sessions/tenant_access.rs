//! The catalog of a tenant as its subjects see it, under the access policy in force.
//!
//! Invariants: a snapshot of catalog and policy is immutable. Subjects with equal rights share a
//! view. A tenant without a policy has no views and costs nothing.

use std::{collections::hash_map::RandomState, sync::Arc};

use quick_cache::sync::Cache;
use rules::{
    access::{AccessView, Policy, PolicyIndex, Subject, ViewKey},
    catalog::Catalog,
    limits::access::{ACCESS_SUBJECTS_MAX, ACCESS_VIEWS_MAX},
};
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task::block_in_place,
};

/// A catalog, and the policy that restricts it.
#[derive(Debug)]
pub struct TenantCatalog {
    /// The whole catalog. Only for what no client sees.
    pub full: Arc<Catalog>,
    access: Option<PolicyViews>,
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
        let access = policy.map(|policy| PolicyViews {
            index: beside_runtime(|| PolicyIndex::new(policy, full.clone())),
            hasher: RandomState::new(),
            by_subject: Cache::new(ACCESS_SUBJECTS_MAX),
            by_rights: Cache::new(ACCESS_VIEWS_MAX),
        });
        Self { full, access }
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
