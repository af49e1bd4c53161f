//! Cancellation of a task from outside its run: by its client or an operator, at any replica.

use std::sync::Arc;

use protocol::{
    error::{ErrorKind, Refusal},
    ids::TaskId,
};
use records::{StoredTask, WriteOp, WriteOutcome};
use rules::tasks::TaskOutcome;

use super::TaskManager;
use crate::persistence::Wakeup;

impl TaskManager {
    /// Cancels a task on behalf of an operator.
    pub async fn cancel(self: &Arc<Self>, id: &str) -> Result<(), Refusal> {
        let unknown = || Refusal::new(ErrorKind::TaskNotFound, "no such task");
        let task = TaskId::new(id);
        let persistence = &self.shared.persistence;
        let known = persistence
            .timed("get_task", persistence.store.task(&task))
            .await?
            .ok_or_else(unknown)?;
        let over = || Refusal::new(ErrorKind::InvalidParams, "the task has already ended");
        if self.cancel_stored(&known).await? { Ok(()) } else { Err(over()) }
    }

    /// Commits the cancellation of a task and notifies the process that runs it. No step of the
    /// task is carried out after this. Returns false if the task was already over.
    pub(in crate::sessions) async fn cancel_stored(
        self: &Arc<Self>,
        known: &StoredTask,
    ) -> Result<bool, Refusal> {
        let TaskOutcome { status, message, outcome } = TaskOutcome::cancelled(&crate::request_id());
        let task = known.record.task.clone();
        let change = WriteOp::EndTask {
            task: task.clone(),
            epoch: None,
            status,
            message,
            outcome: Some(outcome),
        };
        match self.shared.persistence.write(change).await? {
            WriteOutcome::Done => {}
            WriteOutcome::AlreadyFinished => return Ok(false),
            _ => return Err(Refusal::new(ErrorKind::TaskNotFound, "no such task")),
        }
        self.shared.metrics.task_transition(status.name());
        tracing::info!(task = super::digest(&task), tenant = %known.record.tenant, "task cancelled");
        self.audit_cancellation(&task);
        if let Some(run) = self.run(&task) {
            run.stop(super::StopReason::Cancelled);
        }
        self.shared.persistence.hot.publish(Wakeup::Task { task, session: known.record.session });
        Ok(true)
    }
}
