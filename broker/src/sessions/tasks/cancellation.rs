//! The one way in which a task is cancelled from outside its run: by its client or an operator, at any replica.

use std::sync::Arc;

use protocol::{
    error::{ErrorKind, Refusal},
    ids::TaskId,
};

use super::TaskManager;
use crate::{
    persistence::{StoredTask, Wakeup, WriteOp, WriteOutcome},
    rules::tasks::TaskOutcome,
    sessions::shared::Shared,
};

impl TaskManager {
    /// Cancels a task, for an operator.
    pub async fn cancel(&self, shared: &Arc<Shared>, id: &str) -> Result<(), Refusal> {
        let unknown = || Refusal::new(ErrorKind::TaskNotFound, "no such task");
        let task = TaskId::new(id);
        let durable = &shared.durable;
        let known = durable.timed("task", durable.store.task(&task)).await?.ok_or_else(unknown)?;
        let over = || Refusal::new(ErrorKind::InvalidParams, "the task is over already");
        if self.cancel_stored(shared, &known).await? { Ok(()) } else { Err(over()) }
    }

    /// Commits that a task is cancelled, and tells whoever carries it out. Nothing of it is left to be done after this. False:
    /// it was over already.
    pub(in crate::sessions) async fn cancel_stored(
        &self,
        shared: &Arc<Shared>,
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
        match shared.durable.write(change).await? {
            WriteOutcome::Done => {}
            WriteOutcome::AlreadyFinished => return Ok(false),
            _ => return Err(Refusal::new(ErrorKind::TaskNotFound, "no such task")),
        }
        shared.metrics.task_transition(status.name());
        tracing::info!(task = super::digest(&task), tenant = %known.record.tenant, "task cancelled");
        if let Some(run) = self.run(&task) {
            run.stop(super::StopReason::Cancelled);
        }
        shared.durable.hot.wake(Wakeup::Task { task, session: known.record.session });
        Ok(true)
    }
}
