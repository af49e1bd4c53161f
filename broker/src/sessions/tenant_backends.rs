//! The backends of a tenant, as the refresh of one of them needs the others.

use std::{
    collections::HashSet,
    sync::{Arc, Weak},
};

use protocol::ids::BackendId;
use rules::catalog::BackendLists;

use super::tenant::Tenant;
use crate::backends::catalog_owner::CatalogOwner;

impl CatalogOwner for Weak<Tenant> {
    async fn publish(&self) {
        if let Some(tenant) = self.upgrade() {
            tenant.published.changes.publish(|| tenant.publish_catalog()).await;
        }
    }

    fn read_own_lists(&self, backend: &BackendId) {
        if let Some(tenant) = self.upgrade() {
            let read = HashSet::from([backend.clone()]);
            for session in tenant.sessions() {
                session.on_catalog_published(&read);
            }
        }
    }

    fn others(&self, than: &BackendId) -> Vec<(BackendId, Arc<BackendLists>)> {
        self.upgrade().map(|tenant| tenant.lists_beside(than)).unwrap_or_default()
    }

    fn read_principal_lists(&self, backend: &BackendId) {
        if let Some(tenant) = self.upgrade() {
            tenant.read_lists_of_all(backend);
        }
    }
}
