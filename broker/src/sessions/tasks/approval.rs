//! A task whose call waits for the approval of a person. The record of the task names the approval,
//! so the wait continues after a crash and on another replica.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use protocol::{
    error::{ErrorKind, Refusal},
    ids::ApprovalId,
};
use records::StoredApproval;
use rules::{catalog::ToolIdentity, limits::STORE_RETRY_MAX};

use super::{outcome::RunOutcome, run::TaskRun};
use crate::sessions::approvals::{await_decision, use_approval};

/// Interval at which a task looks for the tools of a backend that was not read so far.
const CATALOG_LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The approval that a task needs.
pub(super) struct TaskApproval(StoredApproval);

impl TaskApproval {
    /// Waits for the decision about the call of a task. `None`: the task needs none. An error ends
    /// the task.
    pub(super) async fn awaited(run: &Arc<TaskRun>) -> Result<Option<Self>, RunOutcome> {
        let Some(id) = run.details.approval.as_deref().map(ApprovalId::new) else {
            return Ok(None);
        };
        let gone = || {
            let text = "the approval that the task waited for was removed";
            RunOutcome::Refused(Refusal::new(ErrorKind::PermissionDenied, text))
        };
        let found = await_decision(&run.shared, &id, run.deadline, false).await;
        found.map_err(RunOutcome::Refused)?.map(Self).map(Some).ok_or_else(gone)
    }

    /// Uses the approval for the task. The same task may use it again, after a crash. An error ends
    /// the task.
    pub(super) async fn used(&self, run: &Arc<TaskRun>) -> Result<(), RunOutcome> {
        let user = format!("task {}", super::digest(&run.id));
        let tool = self.tool(run).await.map_err(RunOutcome::Refused)?;
        loop {
            match use_approval(&run.shared, &self.0, &user, tool).await {
                Ok(used) => return used.map_err(RunOutcome::NotApproved),
                Err(refusal) if run.remaining_time().is_zero() => {
                    return Err(RunOutcome::Refused(refusal));
                }
                // The store is away, and may have noted the use. A second use changes nothing.
                Err(_) => tokio::time::sleep(STORE_RETRY_MAX).await,
            }
        }
    }

    /// Returns what the tool is now, or `None` if it is gone. After a start the list of
    /// the backend may not be read yet.
    async fn tool(&self, run: &TaskRun) -> Result<Option<ToolIdentity>, Refusal> {
        let binding = &self.0.record.binding;
        let give_up = Instant::now() + run.timeouts().initialize;
        loop {
            let catalog = match run.creator() {
                Some(session) => session.catalog().full.clone(),
                None => run.tenant.catalog_of(&run.record.principal),
            };
            if catalog.backends.contains_key(&binding.backend) {
                return Ok(catalog.tool_identity(&binding.backend, &binding.tool));
            }
            if Instant::now() >= give_up {
                let text = "the tools of the backend are not known, so the approval was not used";
                return Err(Refusal::new(ErrorKind::BackendUnavailable, text));
            }
            tokio::time::sleep(CATALOG_LOOK_INTERVAL).await;
        }
    }
}
