//! Pins of the running backends.

use std::sync::Arc;

use protocol::ids::{BackendId, TenantId};
use rules::pins::PinMode;
use storage::StoreError;

use super::Broker;
use crate::backends::backend::Backend;

impl Broker {
    /// Applies the stored decisions about the pins of a backend here, to all lists of it.
    pub async fn reload_pins(&self, tenant: &TenantId, id: &BackendId) -> Result<(), StoreError> {
        let Some(tenant) = self.tenant(tenant) else { return Ok(()) };
        let Some(backend) = tenant.backend(id) else { return Ok(()) };
        if backend.pins.load().await? {
            backend.refresh();
        }
        backend.pins.publish_again(&backend.lists);
        backend.links.all().iter().for_each(|link| link.remark_own_lists());
        tenant.publish_catalog();
        tenant.remark_principal_lists(&backend);
        Ok(())
    }

    /// Returns the number of decisions in force here about the pins of each running backend.
    pub fn pin_decisions(&self) -> Vec<(TenantId, BackendId, i64)> {
        let tenants: Vec<_> = self.tenants.iter().map(|entry| entry.value().clone()).collect();
        let backends = tenants.iter().flat_map(|tenant| tenant.backends());
        let pinned = backends.filter(|backend| backend.pins.mode != PinMode::Off);
        let decisions = |backend: Arc<Backend>| {
            (backend.tenant.clone(), backend.id.clone(), backend.pins.decisions())
        };
        pinned.map(decisions).collect()
    }
}
