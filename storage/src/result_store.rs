//! Interface to the store of results that were too long for their clients.

use std::time::Duration;

use async_trait::async_trait;
use records::{KeptResult, ResultKey, ResultLimits};

use crate::StoreError;

/// Results. They end with their time, with their tenant and with their stored backend.
#[async_trait]
pub trait ResultStore: Send + Sync {
    /// Stores a result for a time. The oldest results of the principal free capacity. Returns false
    /// if the tenant has no capacity for it.
    async fn put_result(
        &self,
        result: &KeptResult,
        life: Duration,
        limits: ResultLimits,
    ) -> Result<bool, StoreError>;

    /// Returns a result that has not expired, to its principal.
    async fn result(&self, key: &ResultKey) -> Result<Option<KeptResult>, StoreError>;

    /// Removes expired results. Returns how many it removed, at most `limit`.
    async fn remove_results(&self, limit: u32) -> Result<u64, StoreError>;
}
