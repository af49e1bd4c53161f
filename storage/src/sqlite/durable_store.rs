//! [`DurableStore`] on SQLite: each call held to the deadline, then on to its subject.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use protocol::ids::{TaskId, TenantId};

use super::{SqliteStore, in_time, nodes, sessions, tasks, write};
use crate::{
    DurableStore, FullTask, LeaseRenewal, NodeName, NodeRecord, SessionClaimOutcome,
    SessionIdentity, SessionKey, StoreError, StoredSession, StoredTask, StoredTaskSnapshot,
    SubscriptionCount, TaskAudience, TaskInput, TaskListPosition, TaskStatus, TaskTransition,
    WriteOp, WriteOutcome,
};

#[async_trait]
impl DurableStore for SqliteStore {
    fn engine(&self) -> &'static str {
        "sqlite"
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    fn unreadable_rows(&self) -> u64 {
        self.unreadable.load(Ordering::Relaxed)
    }

    async fn write(&self, batch: &[WriteOp]) -> Result<Vec<WriteOutcome>, StoreError> {
        let is_open = AtomicBool::new(false);
        let written = in_time("a write", write::write(self, batch, &is_open)).await;
        written.map_err(|error| {
            if is_open.load(Ordering::Acquire) {
                StoreError::OutcomeUnknown(Box::new(error))
            } else {
                error
            }
        })
    }

    async fn join(
        &self,
        node: &NodeName,
        address: Option<&str>,
        lease: Duration,
    ) -> Result<(), StoreError> {
        in_time("joining", nodes::join(self, node, address, lease)).await
    }

    async fn renew(
        &self,
        node: &NodeName,
        lease: Duration,
        draining: bool,
    ) -> Result<LeaseRenewal, StoreError> {
        in_time("renewing the lease", nodes::renew(self, node, lease, draining)).await
    }

    async fn leave(&self, node: &NodeName) -> Result<(), StoreError> {
        in_time("leaving", nodes::leave(self, node)).await
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>, StoreError> {
        in_time("listing nodes", nodes::nodes(self)).await
    }

    async fn claim_session(
        &self,
        key: &SessionKey,
        seat: &SessionIdentity,
        node: &NodeName,
        idle: Duration,
    ) -> Result<SessionClaimOutcome, StoreError> {
        in_time("claiming a session", sessions::claim(self, key, seat, node, idle)).await
    }

    async fn reclaim_sessions(
        &self,
        from: &NodeName,
        to: &NodeName,
        keys: &[SessionKey],
    ) -> Result<Vec<(SessionKey, i64)>, StoreError> {
        in_time("reclaiming sessions", sessions::reclaim(self, from, to, keys)).await
    }

    async fn sessions(
        &self,
        tenant: Option<&TenantId>,
        after: Option<&SessionKey>,
        limit: u32,
    ) -> Result<Vec<StoredSession>, StoreError> {
        in_time("listing sessions", sessions::list(self, tenant, after, limit)).await
    }

    async fn sessions_by_digest(&self, digest: &str) -> Result<Vec<StoredSession>, StoreError> {
        in_time("finding a session", sessions::by_digest(self, digest)).await
    }

    async fn sweep_sessions(
        &self,
        idle: Duration,
        limit: u32,
    ) -> Result<Vec<SessionKey>, StoreError> {
        in_time("sweeping sessions", sessions::sweep(self, idle, limit)).await
    }

    async fn subscription_counts(
        &self,
        tenant: Option<&TenantId>,
    ) -> Result<Vec<SubscriptionCount>, StoreError> {
        in_time("counting subscriptions", sessions::subscription_counts(self, tenant)).await
    }

    async fn task(&self, task: &TaskId) -> Result<Option<StoredTask>, StoreError> {
        in_time("reading a task", tasks::task(self, task)).await
    }

    async fn look_at(&self, tasks: &[TaskId]) -> Result<Vec<StoredTaskSnapshot>, StoreError> {
        in_time("looking at tasks", tasks::look_at(self, tasks)).await
    }

    async fn whole_task(&self, task: &TaskId) -> Result<Option<FullTask>, StoreError> {
        in_time("reading a task", tasks::whole(self, task)).await
    }

    async fn task_outcome(&self, task: &TaskId) -> Result<Option<Vec<u8>>, StoreError> {
        in_time("reading an outcome", tasks::outcome(self, task)).await
    }

    async fn tasks_for(
        &self,
        audience: &TaskAudience,
        after: Option<&TaskListPosition>,
        limit: u32,
    ) -> Result<Vec<StoredTask>, StoreError> {
        in_time("listing tasks", tasks::list_for(self, audience, after, limit)).await
    }

    async fn tasks(
        &self,
        tenant: Option<&TenantId>,
        status: Option<TaskStatus>,
        after: Option<&TaskListPosition>,
        limit: u32,
    ) -> Result<Vec<StoredTask>, StoreError> {
        in_time("listing tasks", tasks::list(self, tenant, status, after, limit)).await
    }

    async fn claim_tasks(
        &self,
        node: &NodeName,
        limit: u32,
        except: &[TaskId],
    ) -> Result<Vec<FullTask>, StoreError> {
        tasks::claim(self, node, limit, except).await
    }

    async fn reclaim_tasks(
        &self,
        from: &NodeName,
        to: &NodeName,
    ) -> Result<Vec<(TaskId, i64)>, StoreError> {
        in_time("reclaiming tasks", tasks::reclaim(self, from, to)).await
    }

    async fn tasks_of(&self, nodes: &[NodeName]) -> Result<Vec<TaskId>, StoreError> {
        in_time("listing tasks of a node", tasks::of(self, nodes)).await
    }

    async fn task_inputs(&self, task: &TaskId) -> Result<Vec<TaskInput>, StoreError> {
        in_time("reading a task's inputs", tasks::inputs(self, task)).await
    }

    async fn transitions(&self, task: &TaskId) -> Result<Vec<TaskTransition>, StoreError> {
        in_time("reading a task's history", tasks::transitions(self, task)).await
    }

    async fn expire_tasks(&self, limit: u32) -> Result<Vec<TaskId>, StoreError> {
        in_time("deleting tasks", tasks::expire(self, limit)).await
    }

    async fn task_counts(&self) -> Result<Vec<(TaskStatus, u64)>, StoreError> {
        in_time("counting tasks", tasks::counts(self)).await
    }
}
