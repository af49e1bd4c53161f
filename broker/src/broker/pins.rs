//! Pins of the running backends.

use protocol::ids::{BackendId, TenantId};
use storage::StoreError;

use super::Broker;

impl Broker {
    /// Applies the stored decisions about the pins of a backend here, to all lists of it.
    pub async fn reload_pins(&self, tenant: &TenantId, id: &BackendId) -> Result<(), StoreError> {
        let Some(tenant) = self.tenant(tenant) else { return Ok(()) };
        let Some(backend) = tenant.backend(id) else { return Ok(()) };
        backend.pins.load().await?;
        backend.pins.publish_again(&backend.lists);
        backend.links().iter().for_each(|link| link.remark_own_lists());
        tenant.publish_catalog();
        tenant.remark_principal_lists(&backend);
        Ok(())
    }

    /// Returns the number of decisions about the pins of a backend that are in force here. `None`:
    /// no such backend runs.
    pub fn pin_decisions(&self, tenant: &TenantId, id: &BackendId) -> Option<i64> {
        Some(self.tenant(tenant)?.backend(id)?.pins.decisions())
    }
}
