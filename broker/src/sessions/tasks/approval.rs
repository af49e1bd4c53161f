//! A task whose call needs the approval of a person. The record of the task names the approval, so
//! the wait continues after a crash and on another replica. The record of a call that passes by a
//! window has the tool for which the window was open.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use protocol::{
    error::{ErrorKind, Refusal},
    ids::ApprovalId,
};
use records::StoredApproval;
use rules::{
    catalog::{Catalog, ListKind, ToolIdentity},
    endpoint::Endpoint,
    limits::STORE_RETRY_MAX,
    routing,
    used_window::UsedWindow,
};

use super::{outcome::RunOutcome, run::TaskRun};
use crate::sessions::approvals::{
    DrainMode, await_decision, is_kept, removed, tool_changed, use_approval,
};

/// Interval at which a task looks for the tools of a backend that was not read so far.
const CATALOG_LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// What lets the call of a task pass.
pub(super) enum TaskApproval {
    Approval(Box<StoredApproval>),
    Window(UsedWindow),
}

impl TaskApproval {
    /// Waits for the decision about the call of a task. `None`: the task needs none. An error ends
    /// the task.
    pub(super) async fn awaited(run: &Arc<TaskRun>) -> Result<Option<Self>, RunOutcome> {
        if let Some(window) = &run.details.window {
            return Ok(Some(Self::Window(window.clone())));
        }
        let Some(id) = run.details.approval.as_deref().map(ApprovalId::new) else {
            return Ok(None);
        };
        let found = await_decision(&run.shared, &id, run.deadline, DrainMode::KeepWaiting).await;
        let found = found.map_err(RunOutcome::Refused)?;
        let found = found.ok_or_else(|| RunOutcome::Refused(removed()))?;
        Ok(Some(Self::Approval(Box::new(found))))
    }

    /// Uses the approval for the task. The same task may use it again, after a crash. An error ends
    /// the task.
    pub(super) async fn used(&self, run: &Arc<TaskRun>) -> Result<(), RunOutcome> {
        match self {
            Self::Approval(found) => {
                let tool = tool_of(run, &found.record.binding.tool).await?;
                use_decided(run, found, tool).await
            }
            Self::Window(window) => {
                let name = run.details.native.as_deref().unwrap_or_default();
                let tool = tool_of(run, name).await?;
                check_kept(run, &window.approval()).await?;
                match window.is_for(tool) {
                    true => Ok(()),
                    false => Err(closed(run, &window.approval()).await),
                }
            }
        }
    }
}

async fn use_decided(
    run: &TaskRun,
    found: &StoredApproval,
    tool: Option<ToolIdentity>,
) -> Result<(), RunOutcome> {
    let user = format!("task {}", super::digest(&run.id));
    loop {
        match use_approval(&run.shared, found, &user, tool).await {
            Ok(used) => return used.map_err(RunOutcome::NotApproved),
            Err(refusal) if run.remaining_time().is_zero() => {
                return Err(RunOutcome::Refused(refusal));
            }
            // The store is away, and may have noted the use. A second use changes nothing.
            Err(_) => tokio::time::sleep(STORE_RETRY_MAX).await,
        }
    }
}

/// Ends a task whose window was removed with its backend. A later backend of the name can list an
/// equal tool.
async fn check_kept(run: &TaskRun, id: &ApprovalId) -> Result<(), RunOutcome> {
    loop {
        match is_kept(&run.shared, id).await {
            Ok(true) => return Ok(()),
            Ok(false) => return Err(RunOutcome::Refused(removed())),
            Err(refusal) if run.remaining_time().is_zero() => {
                return Err(RunOutcome::Refused(refusal));
            }
            Err(_) => tokio::time::sleep(STORE_RETRY_MAX).await, // the store is away
        }
    }
}

/// Returns the end of a task whose tool is not the one for which the window was open.
async fn closed(run: &TaskRun, id: &ApprovalId) -> RunOutcome {
    loop {
        match tool_changed(&run.shared, id).await {
            Ok(notice) => return RunOutcome::NotApproved(notice),
            Err(refusal)
                if refusal.kind == ErrorKind::PermissionDenied
                    || run.remaining_time().is_zero() =>
            {
                return RunOutcome::Refused(refusal);
            }
            Err(_) => tokio::time::sleep(STORE_RETRY_MAX).await, // the store is away
        }
    }
}

/// Returns what the tool is now, or `None` if it is gone. After a start, the lists of the backend or
/// those of the principal may not be read yet.
async fn tool_of(run: &TaskRun, name: &str) -> Result<Option<ToolIdentity>, RunOutcome> {
    let backend = &run.record.backend;
    let give_up = Instant::now() + run.timeouts().initialize;
    loop {
        read_lists(run, give_up).await;
        if let Some(catalog) = catalog_of(run).filter(|known| known.backends.contains_key(backend))
        {
            // The tool may be the approved one again, once an operator has decided about its pin.
            return match catalog.is_held(backend, ListKind::Tools, name) {
                true => Err(RunOutcome::Refused(routing::held())),
                false => Ok(catalog.tool_identity(backend, name)),
            };
        }
        if Instant::now() >= give_up {
            let text =
                "the broker does not know the tools of the backend, so it did not send the call";
            return Err(RunOutcome::Refused(Refusal::new(ErrorKind::BackendUnavailable, text)));
        }
        tokio::time::sleep(CATALOG_LOOK_INTERVAL).await;
    }
}

/// Reads the lists that the backend shows to the principal, where they are due. The client may have
/// no session here that reads them.
async fn read_lists(run: &TaskRun, until: Instant) {
    let endpoint = Endpoint::Single(run.record.backend.clone());
    let within = until.saturating_duration_since(Instant::now());
    run.tenant.wait_for_lists_of(&endpoint, &run.record.principal, within).await;
}

/// Returns the catalog of the client that created the task. `None` while a placeholder stands for the
/// lists of the backend.
fn catalog_of(run: &TaskRun) -> Option<Arc<Catalog>> {
    let (id, principal) = (&run.record.backend, &run.record.principal);
    let snapshot = run.tenant.catalog();
    let backend = run.tenant.backend(id);
    let lists = backend.as_ref().map(|known| &known.principal_lists);
    // Checked before the catalog is taken: lists that come in between are in the catalog.
    let is_unread = snapshot.without_user().iter().any(|one| one.id == *id)
        || lists.is_some_and(|lists| lists.is_on() && lists.of(principal).is_none());
    let catalog = || match run.creator() {
        Some(session) => session.catalog().full.clone(),
        None => run.tenant.catalog_of(principal),
    };
    (!is_unread).then(catalog)
}
