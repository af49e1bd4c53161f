//! Warnings about stored settings without an effect.
//!
//! At the start they wait until the files of `include.folder` are in force. Before, the tenants and
//! backends of these files are not known.

use std::sync::atomic::Ordering;

use protocol::ids::{BackendId, TenantId};
use rules::{
    access::{Policy, PolicyDocument},
    toolsets::ToolsetDocument,
};

use super::{
    Control,
    catalog_documents::compiled,
    policies::fault_text,
    registry::{DECLARED, EntryOrigin, Registry},
};

impl Control {
    /// Logs all settings without an effect. Later changes log theirs.
    pub async fn warn_of_unused_settings(&self) {
        self.warns_of_unused.store(true, Ordering::Release);
        let registry = self.registry.load_full();
        // Without an answer of the store, this warning is missing.
        for record in self.store().tenants().await.unwrap_or_default() {
            let entry = registry.tenants.get(&record.tenant);
            let is_declared = entry.is_none_or(|entry| entry.origin == EntryOrigin::Declared);
            if record.settings == DECLARED && !is_declared {
                tracing::warn!(tenant = %record.tenant, "the configuration file does not declare this tenant now: the broker keeps the tenant disabled");
            }
        }
        self.warn_of_unused_scopes(&registry);
        for (tenant, entry) in &registry.policies {
            self.warn_of_unused_rules(tenant, &entry.spec, &registry);
        }
        for ((tenant, name), entry) in &registry.toolsets {
            self.warn_of_unused_selectors(tenant, name, &entry.spec, &registry);
        }
    }

    /// Logs the tenants and backends of operators of the configuration file that do not exist.
    pub(super) fn warn_of_unused_scopes(&self, registry: &Registry) {
        let has_tenant = |tenant: &TenantId| registry.tenants.contains_key(tenant);
        let has_backend = |tenant: &TenantId, backend: &BackendId| {
            registry.backends.contains_key(&(tenant.clone(), backend.clone()))
        };
        for (path, scope) in registry.auth.operator_scopes() {
            for missing in scope.missing(has_tenant, has_backend) {
                tracing::warn!(path, missing, "an operator is limited to what does not exist");
            }
        }
    }

    /// Logs the rules of a policy that cannot have an effect.
    pub(super) fn warn_of_unused_rules(
        &self,
        tenant: &TenantId,
        policy: &PolicyDocument,
        registry: &Registry,
    ) {
        if !self.warns_of_unused.load(Ordering::Acquire) {
            return;
        }
        let known = registry.selectable_backends(tenant);
        let faults = Policy::compile(policy, Some(&known)).err();
        for fault in faults.iter().flatten().map(fault_text) {
            tracing::warn!(%tenant, fault, "a rule of the policy cannot have an effect");
        }
    }

    /// Logs the selectors of a toolset that cannot have an effect.
    pub(super) fn warn_of_unused_selectors(
        &self,
        tenant: &TenantId,
        name: &str,
        toolset: &ToolsetDocument,
        registry: &Registry,
    ) {
        if !self.warns_of_unused.load(Ordering::Acquire) {
            return;
        }
        let known = registry.selectable_backends(tenant);
        for fault in compiled(name, toolset, Some(&known)).err().into_iter().flatten() {
            let (path, problem) = (fault.path, fault.problem);
            tracing::warn!(%tenant, name, path, problem, "a selector of the toolset cannot have an effect");
        }
    }
}
