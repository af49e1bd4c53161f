//! What a store of tasks does.

use async_trait::async_trait;
use protocol::ids::{PrincipalId, TaskId, TenantId};
use records::{
    FullTask, NodeName, StoredTask, StoredTaskSnapshot, TaskAudience, TaskClaimScope, TaskInput,
    TaskListPosition, TaskStatus, TaskTransition,
};

use crate::StoreError;

/// Claims and reads tasks. Their owners change them by [`DurableStore::write`](crate::DurableStore::write).
#[async_trait]
pub trait TaskStore: Send + Sync {
    /// Returns the state of a task, without what its owner needs to carry it out.
    async fn task(&self, task: &TaskId) -> Result<Option<StoredTask>, StoreError>;

    /// Returns the states of many tasks, in no order. Tasks that do not exist are left out.
    async fn task_snapshots(&self, tasks: &[TaskId])
    -> Result<Vec<StoredTaskSnapshot>, StoreError>;

    /// Returns everything about a task except for its outcome.
    async fn full_task(&self, task: &TaskId) -> Result<Option<FullTask>, StoreError>;

    /// Returns the task of a principal that was created with this idempotency key.
    async fn task_of_key(
        &self,
        tenant: &TenantId,
        principal: &PrincipalId,
        key: &[u8],
    ) -> Result<Option<TaskId>, StoreError>;

    /// Returns the outcome of a task, or `None` while it runs.
    async fn task_outcome(&self, task: &TaskId) -> Result<Option<Vec<u8>>, StoreError>;

    /// Returns a page of the tasks that this audience may see, oldest first.
    async fn tasks_visible_to(
        &self,
        audience: &TaskAudience,
        after: Option<&TaskListPosition>,
        limit: u32,
    ) -> Result<Vec<StoredTask>, StoreError>;

    /// Returns a page of tasks for operators, oldest first.
    async fn list_tasks(
        &self,
        tenant: Option<&TenantId>,
        status: Option<TaskStatus>,
        after: Option<&TaskListPosition>,
        limit: u32,
    ) -> Result<Vec<StoredTask>, StoreError>;

    /// Makes `node` the owner of up to `limit` unfinished tasks of this scope, and returns them, oldest
    /// first.
    ///
    /// It never returns tasks that `node` owns already: they run there, even if its lease has lapsed. It
    /// never returns any of `except`, which `node` cannot carry out. If the answer to a call is lost, the
    /// first call after its commit returns its tasks.
    async fn claim_tasks(
        &self,
        node: &NodeName,
        scope: TaskClaimScope,
        limit: u32,
        except: &[TaskId],
    ) -> Result<Vec<FullTask>, StoreError>;

    /// Returns the unfinished tasks that any of these nodes owns.
    async fn unfinished_tasks_of(&self, nodes: &[NodeName]) -> Result<Vec<TaskId>, StoreError>;

    /// Returns the inputs of a task that are not closed, by number. The task waits for them, or has
    /// not taken them yet.
    async fn open_task_inputs(&self, task: &TaskId) -> Result<Vec<TaskInput>, StoreError>;

    /// Returns the transitions of a task, oldest first.
    async fn task_transitions(&self, task: &TaskId) -> Result<Vec<TaskTransition>, StoreError>;

    /// Deletes up to `limit` expired tasks of any status, and returns their ids.
    async fn expire_tasks(&self, limit: u32) -> Result<Vec<TaskId>, StoreError>;

    /// Counts the tasks in each status, in the order of [`TaskStatus::ALL`].
    async fn task_counts(&self) -> Result<Vec<(TaskStatus, u64)>, StoreError>;
}
