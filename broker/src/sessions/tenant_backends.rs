//! The backends of a tenant, as the refresh of one of them needs the others.

use std::sync::{Arc, Weak};

use protocol::ids::BackendId;
use rules::catalog::BackendLists;

use super::tenant::Tenant;
use crate::backends::catalog_owner::CatalogOwner;

impl CatalogOwner for Weak<Tenant> {
    fn publish(&self) {
        if let Some(tenant) = self.upgrade() {
            tenant.publish_catalog();
        }
    }

    fn others(&self, than: &BackendId) -> Vec<(BackendId, Arc<BackendLists>)> {
        let backends = self.upgrade().map(|tenant| tenant.backends()).unwrap_or_default();
        let others = backends.into_iter().filter(|backend| backend.id != *than);
        others.filter_map(|other| Some((other.id.clone(), other.lists.load_full()?))).collect()
    }
}
