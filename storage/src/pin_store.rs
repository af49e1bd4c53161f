//! Interface to the store of pins. Operators' decisions about pins are changes of the configuration
//! ([`records::AdminChange`]).

use async_trait::async_trait;
use protocol::ids::{BackendId, TenantId};
use records::{PinDefinitions, PinKey, PinSighting, StoredPin};

use crate::StoreError;

/// Pins. They end with their tenant and with their stored backend.
#[async_trait]
pub trait PinStore: Send + Sync {
    /// Stores what a backend shows now, and what it does not list any more. The first hash of a pin
    /// is that of the first replica. A sighting changes no decision of an operator. Each key occurs
    /// once.
    ///
    /// Returns the pins of `seen` as they are stored now. A new pin is left out once its backend has
    /// `pins_max`.
    async fn record_sightings(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
        seen: &[PinSighting],
        gone: &[PinKey],
        pins_max: u32,
    ) -> Result<Vec<StoredPin>, StoreError>;

    /// Returns the pins of a backend, by kind and name.
    async fn pins_of(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
    ) -> Result<Vec<StoredPin>, StoreError>;

    async fn pin_definitions(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
        key: &PinKey,
    ) -> Result<Option<PinDefinitions>, StoreError>;

    /// Returns the number of decisions about the pins of each backend that has any.
    async fn pin_decisions(&self) -> Result<Vec<(TenantId, BackendId, i64)>, StoreError>;
}
