//! Stands in for the parts of the embedded store that are being written.
use super::SqliteStore;
use crate::*;
use async_trait::async_trait;
use protocol::ids::{TaskId, TenantId};
use std::time::Duration;

#[async_trait]
impl DurableStore for SqliteStore {
    fn engine(&self) -> &'static str {
        "sqlite"
    }
    async fn write(&self, _batch: &[Write]) -> Result<Vec<Written>, StoreError> {
        unimplemented!()
    }
    async fn join(&self, _node: &NodeName, _address: Option<&str>, _lease: Duration) -> Result<(), StoreError> {
        unimplemented!()
    }
    async fn renew(&self, _node: &NodeName, _lease: Duration, _draining: bool) -> Result<Renewal, StoreError> {
        unimplemented!()
    }
    async fn leave(&self, _node: &NodeName) -> Result<(), StoreError> {
        unimplemented!()
    }
    async fn nodes(&self) -> Result<Vec<NodeRecord>, StoreError> {
        unimplemented!()
    }
    async fn claim_session(&self, _key: &SessionKey, _seat: &SessionSeat, _node: &NodeName) -> Result<Claim, StoreError> {
        unimplemented!()
    }
    async fn reclaim_sessions(&self, _from: &NodeName, _to: &NodeName) -> Result<Vec<(SessionKey, i64)>, StoreError> {
        unimplemented!()
    }
    async fn sessions(
        &self,
        _tenant: Option<&TenantId>,
        _after: Option<&SessionKey>,
        _limit: u32,
    ) -> Result<Vec<StoredSession>, StoreError> {
        unimplemented!()
    }
    async fn sessions_by_digest(&self, _digest: &str) -> Result<Vec<StoredSession>, StoreError> {
        unimplemented!()
    }
    async fn ask_session_end(&self, _key: &SessionKey) -> Result<bool, StoreError> {
        unimplemented!()
    }
    async fn sweep_sessions(&self, _idle: Duration, _limit: u32) -> Result<Vec<SessionKey>, StoreError> {
        unimplemented!()
    }
    async fn subscription_counts(&self, _tenant: Option<&TenantId>) -> Result<Vec<SubscriptionCount>, StoreError> {
        unimplemented!()
    }
    async fn task(&self, _task: &TaskId) -> Result<Option<StoredTask>, StoreError> {
        unimplemented!()
    }
    async fn task_outcome(&self, _task: &TaskId) -> Result<Option<Vec<u8>>, StoreError> {
        unimplemented!()
    }
    async fn tasks_for(&self, _audience: &TaskAudience, _after: Option<&TaskPlace>, _limit: u32) -> Result<Vec<StoredTask>, StoreError> {
        unimplemented!()
    }
    async fn tasks(
        &self,
        _tenant: Option<&TenantId>,
        _status: Option<TaskStatus>,
        _after: Option<&TaskPlace>,
        _limit: u32,
    ) -> Result<Vec<StoredTask>, StoreError> {
        unimplemented!()
    }
    async fn claim_tasks(&self, _node: &NodeName, _limit: u32) -> Result<Vec<StoredTask>, StoreError> {
        unimplemented!()
    }
    async fn reclaim_tasks(&self, _from: &NodeName, _to: &NodeName) -> Result<Vec<(TaskId, i64)>, StoreError> {
        unimplemented!()
    }
    async fn task_inputs(&self, _task: &TaskId) -> Result<Vec<TaskInput>, StoreError> {
        unimplemented!()
    }
    async fn transitions(&self, _task: &TaskId) -> Result<Vec<Transition>, StoreError> {
        unimplemented!()
    }
    async fn expire_tasks(&self, _limit: u32) -> Result<Vec<TaskId>, StoreError> {
        unimplemented!()
    }
    async fn task_counts(&self) -> Result<Vec<(TaskStatus, u64)>, StoreError> {
        unimplemented!()
    }
}
