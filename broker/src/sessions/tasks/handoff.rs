//! Which running tasks another process can go on with at no loss, when this one goes away, and how they are given to it.

use super::{
    TaskManager,
    run::{RunState, StopReason, TaskRun},
};
use crate::{
    config::spec::TransportSpec,
    limits::{STORE_RETRY_FIRST, STORE_RETRY_MAX, TASK_RELEASE_TRIES},
    persistence::{TaskStep, WriteOp, WriteOutcome},
};

impl TaskManager {
    /// Gives away what loses nothing by that: calls that were not sent, backends' own tasks that can be watched from anywhere,
    /// and with `again` calls that are harmless to send again. Any other call stays until its answer, which only this
    /// process can get.
    pub fn hand_off(&self, again: bool) {
        for run in self.all_runs() {
            run.stop_if(StopReason::Released, |state| run.is_transferable(state, again));
        }
    }
}

impl TaskRun {
    fn is_transferable(&self, state: &RunState, again: bool) -> bool {
        if state.is_unsent() {
            return true;
        }
        match &state.backend_task {
            // Only this process can give the backend the answer.
            Some(_) if !state.inputs.is_empty() => false,
            // A child process, and its task with it, ends with this one.
            Some(mirrored) => {
                matches!(mirrored.link.backend.spec.transport, TransportSpec::Http { .. })
            }
            None => again && !state.creating && self.details.is_repeatable(),
        }
    }
}

/// Another process may go on, once the record says from where: what was certainly not sent can begin anew there, and what the
/// backend made a task of can be watched. With less in the record it stays ours: the lease ends with the process, and the
/// task is found then.
pub(super) async fn release(run: &TaskRun) {
    let step = {
        let state = run.lock();
        if let Some(mirrored) = &state.backend_task {
            mirrored.link.keep_backend_session(); // or the backend would forget the task with the session
        }
        let unstored = state.backend_task.as_ref().and_then(|mirrored| mirrored.unstored.clone());
        unstored.or_else(|| state.is_unsent().then_some(TaskStep::Queued))
    };
    if let Some(step) = step
        && !store_with_retries(run, |epoch| WriteOp::AdvanceTask {
            task: run.id.clone(),
            epoch,
            step: step.clone(),
        })
        .await
    {
        return;
    }
    if store_with_retries(run, |epoch| WriteOp::ReleaseTask { task: run.id.clone(), epoch }).await {
        run.announce();
    }
}

/// Stores what this run has to say last, if that can be done soon.
async fn store_with_retries(run: &TaskRun, change: impl Fn(i64) -> WriteOp) -> bool {
    let (mut wait, mut tries) = (STORE_RETRY_FIRST, 1);
    loop {
        match run.shared.durable.write(change(run.epoch())).await {
            Ok(stored) => return stored == WriteOutcome::Done,
            Err(refusal) if tries == TASK_RELEASE_TRIES => {
                tracing::warn!(task = %run.digest(), %refusal, "a task could not be given away");
                return false;
            }
            Err(_) => tokio::time::sleep(wait).await,
        }
        (wait, tries) = ((wait * 2).min(STORE_RETRY_MAX), tries + 1);
    }
}
