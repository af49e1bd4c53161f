//! Handoff of running tasks to another process when this one drains, where that loses nothing.

use records::{TaskStep, WriteOp, WriteOutcome};
use rules::limits::TASK_RELEASE_TRIES;

use super::{
    TaskManager,
    run::{RunState, StopReason, TaskRun},
};
use crate::persistence::StoreRetry;

impl TaskManager {
    /// Releases the runs that lose nothing by it:
    ///
    /// - calls that were not sent;
    /// - tasks of backends that any process can watch;
    /// - with `again`, calls that are harmless to send again.
    ///
    /// Any other call stays until its answer, which only this process can get.
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
            // A child process and its task end with this process, and HTTP+SSE with its stream.
            Some(tracked) => tracked.link.is_resumable_elsewhere(),
            None => again && !state.creating && self.details.is_repeatable(),
        }
    }
}

/// Releases a task to other processes, once the record holds the step they start from. A call that
/// was certainly not sent can start again there, and a task of the backend can be watched there. If
/// that step cannot be stored, this process keeps the task. Its lease ends with the process, and
/// another process claims the task then.
pub(super) async fn release(run: &TaskRun) {
    let step = {
        let state = run.lock();
        if let Some(tracked) = &state.backend_task {
            tracked.link.keep_backend_session(); // or the backend would forget the task with the session
        }
        let unstored = state.backend_task.as_ref().and_then(|tracked| tracked.unstored.clone());
        // A run that has not reached the backend's task leaves the record as it found it.
        let is_unsent = state.is_unsent() && !run.was_delegated;
        unstored.or_else(|| is_unsent.then_some(TaskStep::Queued))
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

/// Stores the last change of this run, with few retries. Returns whether it was stored.
async fn store_with_retries(run: &TaskRun, change: impl Fn(i64) -> WriteOp) -> bool {
    let (mut retry, mut tries) = (StoreRetry::default(), 1);
    loop {
        match run.shared.persistence.write(change(run.epoch())).await {
            Ok(stored) => return stored == WriteOutcome::Done,
            Err(refusal) if tries == TASK_RELEASE_TRIES => {
                tracing::warn!(task = %run.digest(), %refusal, "the broker could not release a task for another replica");
                return false;
            }
            Err(_) => retry.pause().await,
        }
        tries += 1;
    }
}
