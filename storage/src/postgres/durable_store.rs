//! [`DurableStore`], by subject in the files beside this one.

use std::{sync::atomic::Ordering, time::Duration};

use async_trait::async_trait;
use protocol::ids::{TaskId, TenantId};

use super::PostgresStore;
use crate::{
    DurableStore, FullTask, LeaseRenewal, NodeName, NodeRecord, SessionClaimOutcome,
    SessionIdentity, SessionKey, StoreError, StoredSession, StoredTask, StoredTaskSnapshot,
    SubscriptionCount, TaskAudience, TaskInput, TaskListPosition, TaskStatus, TaskTransition,
    WriteOp, WriteOutcome,
};

#[async_trait]
impl DurableStore for PostgresStore {
    fn engine(&self) -> &'static str {
        "postgres"
    }

    fn is_exclusive(&self) -> bool {
        false
    }

    fn unreadable_rows(&self) -> u64 {
        self.unreadable.load(Ordering::Relaxed)
    }

    async fn write(&self, batch: &[WriteOp]) -> Result<Vec<WriteOutcome>, StoreError> {
        self.write_batch(batch).await
    }

    async fn join(
        &self,
        node: &NodeName,
        address: Option<&str>,
        lease: Duration,
    ) -> Result<(), StoreError> {
        self.join_node(node, address, lease).await
    }

    async fn renew(
        &self,
        node: &NodeName,
        lease: Duration,
        draining: bool,
    ) -> Result<LeaseRenewal, StoreError> {
        self.renew_lease(node, lease, draining).await
    }

    async fn leave(&self, node: &NodeName) -> Result<(), StoreError> {
        self.remove_node(node).await
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>, StoreError> {
        self.live_nodes().await
    }

    async fn claim_session(
        &self,
        key: &SessionKey,
        seat: &SessionIdentity,
        node: &NodeName,
        idle: Duration,
    ) -> Result<SessionClaimOutcome, StoreError> {
        self.take_session(key, seat, node, idle).await
    }

    async fn reclaim_sessions(
        &self,
        from: &NodeName,
        to: &NodeName,
        keys: &[SessionKey],
    ) -> Result<Vec<(SessionKey, i64)>, StoreError> {
        self.move_sessions(from, to, keys).await
    }

    async fn sessions(
        &self,
        tenant: Option<&TenantId>,
        after: Option<&SessionKey>,
        limit: u32,
    ) -> Result<Vec<StoredSession>, StoreError> {
        self.list_sessions(tenant, after, limit).await
    }

    async fn sessions_by_digest(&self, digest: &str) -> Result<Vec<StoredSession>, StoreError> {
        self.find_sessions(digest).await
    }

    async fn sweep_sessions(
        &self,
        idle: Duration,
        limit: u32,
    ) -> Result<Vec<SessionKey>, StoreError> {
        self.sweep(idle, limit).await
    }

    async fn subscription_counts(
        &self,
        tenant: Option<&TenantId>,
    ) -> Result<Vec<SubscriptionCount>, StoreError> {
        self.count_subscriptions(tenant).await
    }

    async fn task(&self, task: &TaskId) -> Result<Option<StoredTask>, StoreError> {
        self.find_task(task).await
    }

    async fn look_at(&self, tasks: &[TaskId]) -> Result<Vec<StoredTaskSnapshot>, StoreError> {
        self.look_at_tasks(tasks).await
    }

    async fn whole_task(&self, task: &TaskId) -> Result<Option<FullTask>, StoreError> {
        self.find_whole_task(task).await
    }

    async fn task_outcome(&self, task: &TaskId) -> Result<Option<Vec<u8>>, StoreError> {
        self.find_outcome(task).await
    }

    async fn tasks_for(
        &self,
        audience: &TaskAudience,
        after: Option<&TaskListPosition>,
        limit: u32,
    ) -> Result<Vec<StoredTask>, StoreError> {
        self.list_tasks_for(audience, after, limit).await
    }

    async fn tasks(
        &self,
        tenant: Option<&TenantId>,
        status: Option<TaskStatus>,
        after: Option<&TaskListPosition>,
        limit: u32,
    ) -> Result<Vec<StoredTask>, StoreError> {
        self.list_tasks(tenant, status, after, limit).await
    }

    async fn claim_tasks(
        &self,
        node: &NodeName,
        limit: u32,
        except: &[TaskId],
    ) -> Result<Vec<FullTask>, StoreError> {
        self.take_tasks(node, limit, except).await
    }

    async fn reclaim_tasks(
        &self,
        from: &NodeName,
        to: &NodeName,
    ) -> Result<Vec<(TaskId, i64)>, StoreError> {
        self.move_tasks(from, to).await
    }

    async fn tasks_of(&self, nodes: &[NodeName]) -> Result<Vec<TaskId>, StoreError> {
        self.tasks_of(nodes).await
    }

    async fn task_inputs(&self, task: &TaskId) -> Result<Vec<TaskInput>, StoreError> {
        self.open_inputs(task).await
    }

    async fn transitions(&self, task: &TaskId) -> Result<Vec<TaskTransition>, StoreError> {
        self.history(task).await
    }

    async fn expire_tasks(&self, limit: u32) -> Result<Vec<TaskId>, StoreError> {
        self.remove_expired_tasks(limit).await
    }

    async fn task_counts(&self) -> Result<Vec<(TaskStatus, u64)>, StoreError> {
        self.count_tasks().await
    }
}
