//! What the broker asks of the database that is the record of sessions and tasks. PostgreSQL for several replicas, SQLite
//! for one. A write that returned is on disk, whatever happens next.

use std::time::Duration;

use async_trait::async_trait;
use protocol::ids::{TaskId, TenantId};

use crate::{
    AdminChange, AuditStore, ConfigStore, FullTask, LeaseRenewal, NodeName, NodeRecord,
    SessionClaimOutcome, SessionIdentity, SessionKey, StoreError, StoredSession, StoredTask,
    StoredTaskSnapshot, SubscriptionCount, TaskAudience, TaskInput, TaskListPosition, TaskStatus,
    TaskTransition, WriteOp, WriteOutcome,
};

/// Nodes, sessions, subscriptions and tasks, beside the configuration. A row that can not be read is left out of what is
/// returned, counted and named in the log by its key: it must not keep the others from being served.
#[async_trait]
pub trait DurableStore: ConfigStore + AuditStore {
    /// `sqlite` or `postgres`: a metric's label.
    fn engine(&self) -> &'static str;

    /// One process has it to itself: there are no other nodes, and one writer.
    fn is_exclusive(&self) -> bool;

    /// How many rows were left out because they could not be read, since the store was opened: a metric.
    fn unreadable_rows(&self) -> u64 {
        0
    }

    /// Carries out a batch in one transaction: all of it is on disk when this returns, or none of it. The outcomes are in
    /// the order of the writes.
    async fn write(&self, batch: &[WriteOp]) -> Result<Vec<WriteOutcome>, StoreError>;

    // Nodes.

    /// A new node with a lease of this length.
    async fn join(
        &self,
        node: &NodeName,
        address: Option<&str>,
        lease: Duration,
    ) -> Result<(), StoreError>;

    /// Extends the lease, if it has not lapsed.
    async fn renew(
        &self,
        node: &NodeName,
        lease: Duration,
        draining: bool,
    ) -> Result<LeaseRenewal, StoreError>;

    /// The node is gone; what it still owns is anybody's.
    async fn leave(&self, node: &NodeName) -> Result<(), StoreError>;

    /// Nodes whose lease runs, by name.
    async fn nodes(&self) -> Result<Vec<NodeRecord>, StoreError>;

    // Sessions.

    /// Makes `node` the owner, if the session exists for this seat, was not asked to end, was heard of within `idle`, and its
    /// owner's lease has lapsed (or it is `node` already, or nobody). Counts as hearing from its client.
    async fn claim_session(
        &self,
        key: &SessionKey,
        seat: &SessionIdentity,
        node: &NodeName,
        idle: Duration,
    ) -> Result<SessionClaimOutcome, StoreError>;

    /// After a lapse: moves those of these sessions that still belong to `from` to `to`, under new epochs. Returns all of them
    /// that `to` has then, with their epochs: what a call moved whose answer was lost is told by the next one.
    async fn reclaim_sessions(
        &self,
        from: &NodeName,
        to: &NodeName,
        keys: &[SessionKey],
    ) -> Result<Vec<(SessionKey, i64)>, StoreError>;

    /// In the order of creation. `after`: the last key of the page before; nothing comes after one that is gone meanwhile.
    async fn sessions(
        &self,
        tenant: Option<&TenantId>,
        after: Option<&SessionKey>,
        limit: u32,
    ) -> Result<Vec<StoredSession>, StoreError>;

    /// The sessions whose [`SessionKey::digest`] this is: one, but for an unheard-of coincidence.
    async fn sessions_by_digest(&self, digest: &str) -> Result<Vec<StoredSession>, StoreError>;

    /// Asks its owner to end a session; one without a live owner ends here. False: there is none.
    async fn ask_session_end(&self, key: &SessionKey) -> Result<bool, StoreError> {
        self.change(AdminChange::EndSession(key), None).await
    }

    /// Removes up to `limit` sessions that nobody owns and that were not heard of for `idle`, or were asked to end.
    async fn sweep_sessions(
        &self,
        idle: Duration,
        limit: u32,
    ) -> Result<Vec<SessionKey>, StoreError>;

    /// Who listens to what, by tenant, backend and URI.
    async fn subscription_counts(
        &self,
        tenant: Option<&TenantId>,
    ) -> Result<Vec<SubscriptionCount>, StoreError>;

    // Tasks.

    /// How a task stands, without what it takes to carry it out.
    async fn task(&self, task: &TaskId) -> Result<Option<StoredTask>, StoreError>;

    /// The same of many at once, in no order; what is not there is left out.
    async fn look_at(&self, tasks: &[TaskId]) -> Result<Vec<StoredTaskSnapshot>, StoreError>;

    /// All of it but its outcome.
    async fn whole_task(&self, task: &TaskId) -> Result<Option<FullTask>, StoreError>;

    /// How a task ended; `None` as long as it has not.
    async fn task_outcome(&self, task: &TaskId) -> Result<Option<Vec<u8>>, StoreError>;

    /// Tasks this audience may see as they stand, oldest first, after a place in the list.
    async fn tasks_for(
        &self,
        audience: &TaskAudience,
        after: Option<&TaskListPosition>,
        limit: u32,
    ) -> Result<Vec<StoredTask>, StoreError>;

    /// Tasks as operators see them, oldest first.
    async fn tasks(
        &self,
        tenant: Option<&TenantId>,
        status: Option<TaskStatus>,
        after: Option<&TaskListPosition>,
        limit: u32,
    ) -> Result<Vec<StoredTask>, StoreError>;

    /// Makes `node` the owner of up to `limit` unfinished tasks whose owners' leases have lapsed, and returns them, oldest
    /// first. Never its own: those run there, whatever became of its lease; and none of `except`, which `node` can not carry
    /// out. What a call took whose answer was lost is returned by the first one after its commit.
    async fn claim_tasks(
        &self,
        node: &NodeName,
        limit: u32,
        except: &[TaskId],
    ) -> Result<Vec<FullTask>, StoreError>;

    /// As [`DurableStore::reclaim_sessions`], for all unfinished tasks.
    async fn reclaim_tasks(
        &self,
        from: &NodeName,
        to: &NodeName,
    ) -> Result<Vec<(TaskId, i64)>, StoreError>;

    /// Unfinished tasks that any of these nodes owns.
    async fn tasks_of(&self, nodes: &[NodeName]) -> Result<Vec<TaskId>, StoreError>;

    /// What the task waits for, or waited for and did not take yet: inputs that are not closed, by number.
    async fn task_inputs(&self, task: &TaskId) -> Result<Vec<TaskInput>, StoreError>;

    /// A task's history, oldest first.
    async fn transitions(&self, task: &TaskId) -> Result<Vec<TaskTransition>, StoreError>;

    /// Deletes up to `limit` tasks whose time is over, whatever their status. Returns which.
    async fn expire_tasks(&self, limit: u32) -> Result<Vec<TaskId>, StoreError>;

    /// How many tasks there are in each status, in the order of [`TaskStatus::ALL`].
    async fn task_counts(&self) -> Result<Vec<(TaskStatus, u64)>, StoreError>;
}
