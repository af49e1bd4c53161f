//! Access policies of the running broker.

use std::{sync::Arc, time::Duration};

use protocol::ids::{BackendId, TenantId};
use rules::{
    access::{DecisionRow, Policy, PolicyTest, PolicyWarning, Subject},
    catalog::ToolTraits,
    endpoint::Endpoint,
};

use super::Broker;

impl Broker {
    /// Puts a policy into force. `None` removes it, so that everything is allowed.
    pub fn set_policy(&self, tenant: &TenantId, policy: Option<Arc<Policy>>) {
        match &policy {
            Some(policy) => drop(self.policies.insert(tenant.clone(), policy.clone())),
            None => drop(self.policies.remove(tenant)),
        }
        if let Some(tenant) = self.tenant(tenant) {
            tenant.set_policy(policy);
        }
    }

    pub fn policy(&self, tenant: &TenantId) -> Option<Arc<Policy>> {
        self.policies.get(tenant).map(|policy| policy.clone())
    }

    /// Returns the patterns and tests of a policy that do not fit the lists of the tenant's
    /// backends.
    pub fn policy_warnings(
        &self,
        tenant: &TenantId,
        policy: &Policy,
        tests: &[PolicyTest],
    ) -> Vec<PolicyWarning> {
        let Some(tenant) = self.tenant(tenant) else { return Vec::new() };
        let catalog = tenant.full_catalog();
        let mut warnings = policy.unused_patterns(&catalog);
        warnings.extend(policy.tests_of_other_tools(tests, &catalog));
        warnings
    }

    /// Returns the number of listed objects that the policy hides from a subject.
    pub fn hidden_objects(&self, tenant: &TenantId, subject: &Subject) -> usize {
        let tenant = self.tenant(tenant);
        let view = tenant.and_then(|tenant| tenant.access(&Endpoint::Aggregated, subject));
        view.map_or(0, |view| view.hidden)
    }

    /// Returns the decisions of a tenant's policy since a time.
    pub fn decisions(&self, tenant: &TenantId, since: Duration) -> Vec<DecisionRow> {
        self.tenant(tenant).map_or_else(Vec::new, |tenant| tenant.decisions(since))
    }

    /// Returns the traits of a tool that its backend lists.
    pub fn tool_traits(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
        tool: &str,
    ) -> Option<ToolTraits> {
        self.tenant(tenant)?.full_catalog().traits(backend, tool)
    }
}
