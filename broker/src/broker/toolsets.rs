//! Toolsets and hosted prompts of the running broker.

use std::sync::Arc;

use protocol::ids::{TenantId, ToolsetId};
use rules::{
    catalog::{Catalog, HostedPrompts, ListKind},
    endpoint::Endpoint,
    toolsets::Toolsets,
};

use super::Broker;

impl Broker {
    /// Puts the toolsets of a tenant into force. The sessions of one that is not published any more
    /// end.
    pub fn set_toolsets(self: &Arc<Self>, id: &TenantId, toolsets: Arc<Toolsets>) {
        self.toolsets.insert(id.clone(), toolsets.clone());
        let Some(tenant) = self.tenant(id) else { return };
        let before = tenant.toolsets();
        tenant.set_toolsets(toolsets.clone());
        let gone: Vec<&ToolsetId> = before
            .published()
            .map(|toolset| &toolset.id)
            .filter(|toolset| toolsets.get(toolset).is_none())
            .collect();
        for toolset in gone {
            let endpoint = Endpoint::Toolset(toolset.clone());
            self.stateless.end_at(id, &endpoint);
            for session in tenant.sessions().iter().filter(|one| one.endpoint == endpoint) {
                self.close_session(session, "its toolset is not published any more");
            }
        }
    }

    pub fn toolsets(&self, id: &TenantId) -> Arc<Toolsets> {
        self.toolsets.get(id).map(|toolsets| toolsets.clone()).unwrap_or_default()
    }

    /// Puts the prompts that the broker hosts for a tenant into force.
    pub fn set_hosted_prompts(&self, id: &TenantId, prompts: Arc<HostedPrompts>) {
        self.hosted_prompts.insert(id.clone(), prompts.clone());
        if let Some(tenant) = self.tenant(id) {
            tenant.set_hosted_prompts(prompts);
        }
    }

    pub fn hosted_prompts(&self, id: &TenantId) -> Arc<HostedPrompts> {
        self.hosted_prompts.get(id).map(|prompts| prompts.clone()).unwrap_or_default()
    }

    /// Returns the whole catalog of a tenant.
    pub fn full_catalog(&self, id: &TenantId) -> Option<Arc<Catalog>> {
        Some(self.tenant(id)?.full_catalog())
    }

    /// Returns the catalog of a published toolset, before the access policy.
    pub fn toolset_catalog(&self, id: &TenantId, toolset: &ToolsetId) -> Option<Arc<Catalog>> {
        let tenant = self.tenant(id)?;
        let endpoint = Endpoint::Toolset(toolset.clone());
        tenant.toolsets().get(toolset)?;
        Some(tenant.catalog().at(&endpoint).full.clone())
    }
}

/// Returns a text that changes with what the endpoint of a toolset lists. Replicas with equal lists
/// have equal texts.
pub fn catalog_version(catalog: &Catalog, toolset: &ToolsetId) -> String {
    let digests = catalog.digests(&Endpoint::Toolset(toolset.clone()));
    let digests = ListKind::ALL.iter().zip(digests);
    let all = digests.fold(0_u128, |all, (_, digest)| all.rotate_left(31) ^ digest);
    format!("{all:032x}")
}
