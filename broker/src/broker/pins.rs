//! Pins of the running backends.

use protocol::ids::{BackendId, TenantId};
use storage::StoreError;

use super::Broker;

impl Broker {
    /// Applies the stored decisions about the pins of a backend here. Own lists of links are read
    /// again.
    pub async fn reload_pins(&self, tenant: &TenantId, id: &BackendId) -> Result<(), StoreError> {
        let Some(tenant) = self.tenant(tenant) else { return Ok(()) };
        let Some(backend) = tenant.backend(id) else { return Ok(()) };
        backend.pins.load().await?;
        backend.pins.publish_again(&backend.lists);
        tenant.publish_catalog();
        tenant.remark_principal_lists(&backend);
        for link in backend.links() {
            if let Some(own) = link.lists.own() {
                link.read_own_lists(&own.difference.kinds().collect::<Vec<_>>());
            }
        }
        Ok(())
    }

    /// Returns the number of decisions about the pins of a backend that are in force here. `None`:
    /// no such backend runs.
    pub fn pin_decisions(&self, tenant: &TenantId, id: &BackendId) -> Option<i64> {
        Some(self.tenant(tenant)?.backend(id)?.pins.decisions())
    }
}
