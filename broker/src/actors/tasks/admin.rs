//! Tasks as operators see and end them, and the one way in which a task is cancelled from outside its run.

use std::sync::Arc;

use protocol::{
    error::{ErrorKind, Refusal},
    ids::{TaskId, TenantId},
};

use super::Tasks;
use crate::{
    actors::shared::Shared,
    durable::{StoredTask, TaskPlace, TaskStatus, Wake, Write, Written},
    rules::tasks::{self, Ended},
    views::TaskView,
};

/// Rows read at once for operators.
const ROWS: u32 = 500;
/// Tasks shown to operators at most.
const SHOWN_MAX: usize = 20_000;

fn view(task: &StoredTask) -> TaskView {
    TaskView {
        id: task.record.task.to_string(),
        tenant: task.record.tenant.to_string(),
        principal: task.record.principal.to_string(),
        backend: task.record.backend.to_string(),
        status: task.status.name().to_owned(),
        created_at: tasks::iso(task.created_at_us),
    }
}

impl Tasks {
    pub async fn views(&self, shared: &Shared, tenant: Option<&TenantId>, status: Option<TaskStatus>) -> Result<Vec<TaskView>, Refusal> {
        let (durable, mut views, mut after) = (&shared.durable, Vec::new(), None);
        loop {
            let page = durable.timed("tasks", durable.store.tasks(tenant, status, after.as_ref(), ROWS)).await?;
            views.extend(page.iter().map(view));
            match page.last().filter(|_| page.len() == ROWS as usize && views.len() < SHOWN_MAX) {
                Some(last) => after = Some(TaskPlace { created_at_us: last.created_at_us, task: last.record.task.clone() }),
                None => return Ok(views),
            }
        }
    }

    pub async fn view(&self, shared: &Shared, id: &str) -> Result<Option<TaskView>, Refusal> {
        let durable = &shared.durable;
        Ok(durable.timed("task", durable.store.task(&TaskId::new(id))).await?.as_ref().map(view))
    }

    /// Cancels a task, for an operator.
    pub async fn cancel(&self, shared: &Arc<Shared>, id: &str) -> Result<TaskView, Refusal> {
        let unknown = || Refusal::new(ErrorKind::TaskNotFound, "no such task");
        let task = TaskId::new(id);
        let durable = &shared.durable;
        let known = durable.timed("task", durable.store.task(&task)).await?.ok_or_else(unknown)?;
        self.cancel_stored(shared, &known).await?;
        self.view(shared, id).await?.ok_or_else(unknown)
    }

    /// Commits that a task is cancelled, and tells whoever carries it out. Nothing of it is left to be done after this.
    pub(super) async fn cancel_stored(&self, shared: &Arc<Shared>, known: &StoredTask) -> Result<(), Refusal> {
        let Ended { status, message, outcome } = Ended::cancelled(&crate::request_id());
        let task = known.record.task.clone();
        let change = Write::EndTask { task: task.clone(), epoch: None, status, message, outcome: Some(outcome) };
        match shared.durable.write(change).await? {
            Written::Done => {}
            Written::Over => return Err(Refusal::new(ErrorKind::InvalidParams, "the task is over already")),
            _ => return Err(Refusal::new(ErrorKind::TaskNotFound, "no such task")),
        }
        shared.metrics.task_transition(status.name());
        tracing::info!(task = super::digest(&task), tenant = %known.record.tenant, "task cancelled");
        if let Some(run) = self.run(&task) {
            run.stop(super::Stop::Cancelled);
        }
        shared.durable.hot.wake(Wake::Task { task, session: known.record.session });
        Ok(())
    }
}
