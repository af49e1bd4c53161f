//! The catalog that a tenant publishes, with the policy, toolsets and hosted prompts that apply to
//! it.

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use rules::{
    access::Policy,
    catalog::{Catalog, HostedPrompts},
    toolsets::Toolsets,
};

use super::{catalog_changes::CatalogChanges, tenant_access::TenantCatalog};

/// The published catalog of a tenant.
#[derive(Debug)]
pub(super) struct PublishedCatalog {
    snapshot: ArcSwap<TenantCatalog>,
    policy: ArcSwapOption<Policy>,
    toolsets: ArcSwap<Toolsets>,
    hosted_prompts: ArcSwap<HostedPrompts>,
    pub(super) changes: CatalogChanges,
}

impl PublishedCatalog {
    pub(super) fn new(catalog: Catalog) -> Self {
        let snapshot = TenantCatalog::new(Arc::new(catalog), None, Arc::default());
        Self {
            snapshot: ArcSwap::from_pointee(snapshot),
            policy: ArcSwapOption::empty(),
            toolsets: ArcSwap::default(),
            hosted_prompts: ArcSwap::default(),
            changes: CatalogChanges::default(),
        }
    }

    /// Returns the snapshot for a short look.
    pub(super) fn snapshot(&self) -> Guard<Arc<TenantCatalog>> {
        self.snapshot.load()
    }

    /// Returns the snapshot, which the caller may keep.
    pub(super) fn load_full(&self) -> Arc<TenantCatalog> {
        self.snapshot.load_full()
    }

    pub(super) fn toolsets(&self) -> Arc<Toolsets> {
        self.toolsets.load_full()
    }

    pub(super) fn hosted_prompts(&self) -> Arc<HostedPrompts> {
        self.hosted_prompts.load_full()
    }

    pub(super) fn set_policy(&self, policy: Option<Arc<Policy>>) {
        self.policy.store(policy);
    }

    pub(super) fn set_toolsets(&self, toolsets: Arc<Toolsets>) {
        self.toolsets.store(toolsets);
    }

    pub(super) fn set_hosted_prompts(&self, prompts: Arc<HostedPrompts>) {
        self.hosted_prompts.store(prompts);
    }

    /// Returns the snapshot of a catalog under the policy and toolsets in force.
    pub(super) fn next(&self, catalog: Arc<Catalog>) -> TenantCatalog {
        TenantCatalog::new(catalog, self.policy.load_full(), self.toolsets.load_full())
    }

    /// Replaces the snapshot, and returns the previous one. Must be called in one of the changes.
    pub(super) fn replace(&self, next: Arc<TenantCatalog>) -> Arc<TenantCatalog> {
        self.snapshot.swap(next)
    }
}
