//! The catalog that a tenant publishes, with the policy, toolsets and hosted prompts that apply to
//! it.

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use parking_lot::{Mutex, MutexGuard};
use rules::{
    access::Policy,
    catalog::{Catalog, HostedPrompts},
    toolsets::Toolsets,
};

use super::tenant_access::TenantCatalog;
use crate::backends::backend::Backend;

/// The published catalog of a tenant.
#[derive(Debug)]
pub(super) struct PublishedCatalog {
    snapshot: ArcSwap<TenantCatalog>,
    policy: ArcSwapOption<Policy>,
    toolsets: ArcSwap<Toolsets>,
    hosted_prompts: ArcSwap<HostedPrompts>,
    /// Locked while a new catalog is built, so that an older one never replaces a newer one.
    publishing: Mutex<()>,
}

impl PublishedCatalog {
    pub(super) fn new(catalog: Catalog) -> Self {
        let snapshot = TenantCatalog::new(Arc::new(catalog), None, Arc::default());
        Self {
            snapshot: ArcSwap::from_pointee(snapshot),
            policy: ArcSwapOption::empty(),
            toolsets: ArcSwap::default(),
            hosted_prompts: ArcSwap::default(),
            publishing: Mutex::default(),
        }
    }

    /// Waits for the turn to publish a catalog.
    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        self.publishing.lock()
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

    /// Publishes a catalog under the policy and toolsets in force. Returns the snapshots before and
    /// after. The caller has the turn.
    pub(super) fn publish(
        &self,
        catalog: Arc<Catalog>,
        backends: &[Arc<Backend>],
    ) -> [Arc<TenantCatalog>; 2] {
        let (policy, toolsets) = (self.policy.load_full(), self.toolsets.load_full());
        let next = TenantCatalog::new(catalog, policy, toolsets).for_backends(backends);
        let next = Arc::new(next);
        [self.snapshot.swap(next.clone()), next]
    }
}
