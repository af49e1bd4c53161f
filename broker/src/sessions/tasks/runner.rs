//! Runner of a task, from its start to its end. Each task that this process owns has one.
//!
//! The runner sends the call ([`send_call`]), or follows the task that the backend made of it
//! ([`backend_task`]). It stores the outcome.
//!
//! Invariant: the backend's answer and the end of the task are one commit. With the invariants of
//! [`send_call`], the record shows after a crash what may have happened.

use std::{
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::Arc,
};

use futures_util::FutureExt;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    handshake,
    ids::TaskId,
    method::Method,
    splice::Splice,
};
use records::{TaskStatus, TaskStep, WriteOp};
use rules::{
    exposure::ResourceUris,
    limits::{TASK_OUTCOME_SUSPECT_BYTES, TASK_OUTCOME_TRIES},
    tasks::{self, BackendTask, TaskOutcome},
};

use super::{
    backend_task, handoff, inputs, observability,
    outcome::RunOutcome,
    run::{StopReason, TaskRun, TrackedBackendTask},
    send_call,
};
use crate::{
    backends::link::{connection::requester::SentRequest, failure::Failure},
    persistence::{StoreRetry, fault_point},
    sessions::shared::Shared,
    telemetry::request,
};

impl super::TaskManager {
    /// Runs a task in the background, from this step on.
    pub(super) fn start(&self, run: Arc<TaskRun>, from: TaskStep) {
        self.start_with(run, |run| async move { work(&run, from).await });
    }

    /// Runs a task in the background with the given work.
    pub(super) fn start_with<W>(&self, run: Arc<TaskRun>, work: impl FnOnce(Arc<TaskRun>) -> W)
    where
        W: Future<Output = RunOutcome> + Send + 'static,
    {
        if self.register(&run) {
            let running = run.shared.running.clone();
            let request = observability::request_of_run(&run);
            let work = work(run.clone());
            running.spawn(request::scope(request, run_until_stopped(run, work)));
        }
    }
}

async fn run_until_stopped(run: Arc<TaskRun>, work: impl Future<Output = RunOutcome>) {
    let failed = |_| {
        RunOutcome::Refused(Refusal::new(ErrorKind::Internal, "the task failed inside the broker"))
    };
    let ending =
        AssertUnwindSafe(run_to_end(&run, work)).catch_unwind().await.unwrap_or_else(failed);
    if AssertUnwindSafe(store_outcome(&run, ending)).catch_unwind().await.is_err() {
        tracing::error!(task = %run.digest(), "an internal fault interrupted the end of a task");
    }
    observability::end_span(&run);
    run.tasks.unregister(&run);
    inputs::refuse_all(&run);
    // This comes last: dropping the hold closes a link that has no other user.
    let (hold, keeps_backend_task) = {
        let mut state = run.lock();
        (state.link_hold.take(), state.keeps_backend_task())
    };
    if let Some(hold) = hold.as_ref().filter(|_| keeps_backend_task) {
        hold.link.keep_backend_session(); // its next owner asks for the task in this session
    }
    drop(hold);
}

async fn run_to_end(run: &Arc<TaskRun>, work: impl Future<Output = RunOutcome>) -> RunOutcome {
    first_end(run, pin!(work)).await
}

/// Returns the first end of the run. An answer that is there counts before any reason to stop.
pub(super) async fn first_end(
    run: &Arc<TaskRun>,
    mut work: Pin<&mut impl Future<Output = RunOutcome>>,
) -> RunOutcome {
    let attending = pin!(inputs::poll_inputs(run));
    let ending = tokio::select! {
        biased;
        ending = &mut work => return ending,
        why = run.stopped() => RunOutcome::Stopped(why),
        () = tokio::time::sleep(run.remaining_time()) => RunOutcome::TimedOut,
        never = attending => match never {},
    };
    // The backend is just creating a task, and a cancellation needs that task's id.
    tokio::select! {
        biased;
        () = wait_until_stored(run) => ending,
        answered = &mut work => answered,
        () = tokio::time::sleep(run.timeouts().control) => ending,
    }
}

async fn wait_until_stored(run: &TaskRun) {
    loop {
        let changed = run.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        if !run.lock().creating {
            return;
        }
        changed.await;
    }
}

async fn work(run: &Arc<TaskRun>, from: TaskStep) -> RunOutcome {
    match from {
        TaskStep::Delegated { backend_task, link } => {
            backend_task::resume(run, backend_task, &link).await
        }
        TaskStep::Queued | TaskStep::Sent => match send_call::send_call(run).await {
            Ok(outcome) | Err(outcome) => outcome,
        },
    }
}

/// Stores the end of a run. Every run ends here.
async fn store_outcome(run: &Arc<TaskRun>, ending: RunOutcome) {
    run.notifications.close();
    match ending {
        RunOutcome::Answered(answer, backend_status) => {
            let ended = to_client_answer(run, &answer).and_then(|answer| {
                TaskOutcome::from_answer(&answer, run.shared.task_settings().result_bytes)
            });
            match ended {
                Ok(ended) => end(run, merge_backend_status(ended, backend_status)).await,
                Err(refusal) => refused(run, &refusal).await,
            }
        }
        RunOutcome::Translated(answer) => {
            match TaskOutcome::from_answer(&answer, run.shared.task_settings().result_bytes) {
                Ok(ended) => end(run, ended).await,
                Err(refusal) => refused(run, &refusal).await,
            }
        }
        RunOutcome::Refused(refusal) => refused(run, &refusal).await,
        RunOutcome::NotApproved(notice) => end(run, notice.task_outcome()).await,
        RunOutcome::CancelledByBackend => {
            end(run, TaskOutcome::cancelled(&crate::request_id())).await
        }
        RunOutcome::TimedOut => {
            cancel_at_backend(run, StopReason::Cancelled).await;
            refused(
                run,
                &Refusal::new(ErrorKind::Timeout, "the task did not end within its time limit"),
            )
            .await;
        }
        RunOutcome::Stopped(StopReason::Released) => {
            handoff::release(run).await;
            cancel_at_backend(run, StopReason::Released).await;
        }
        RunOutcome::Stopped(why) => cancel_at_backend(run, why).await,
    }
}

async fn refused(run: &TaskRun, refusal: &Refusal) {
    let request_id = run.shared.record_refusal(refusal, None, Some(run.tenant.id.as_str()));
    end(run, TaskOutcome::from_refusal(refusal, &request_id)).await;
}

/// Merges the backend's status of its own task into the outcome. The status cannot undo a failure.
fn merge_backend_status(
    mut ended: TaskOutcome,
    backend_status: Option<BackendTask>,
) -> TaskOutcome {
    if let Some(backend_status) = backend_status {
        if backend_status.status == TaskStatus::Failed {
            ended.status = TaskStatus::Failed;
        }
        ended.message = backend_status.message.or(ended.message);
    }
    ended
}

async fn end(run: &TaskRun, ended: TaskOutcome) {
    let tries = if ended.outcome.len() < TASK_OUTCOME_SUSPECT_BYTES {
        u32::MAX
    } else {
        TASK_OUTCOME_TRIES
    };
    let stored = match store_end(run, &ended, tries).await {
        Ok(true) => Ok(ended.status),
        Ok(false) => {
            let text = format!(
                "the database did not store an answer of {} bytes in time",
                ended.outcome.len()
            );
            let refusal = Refusal::new(ErrorKind::ResultTooLarge, text);
            let ended = TaskOutcome::from_refusal(
                &refusal,
                &run.shared.record_refusal(&refusal, None, Some(run.tenant.id.as_str())),
            );
            store_end(run, &ended, u32::MAX).await.map(|_| ended.status)
        }
        Err(stop) => Err(stop),
    };
    let status = match stored {
        Ok(status) => status,
        // The store may have taken an earlier try whose answer was lost.
        Err(stop) => match ended_under(&run.shared, &run.id, run.epoch()).await {
            Some(status) => status,
            None => {
                return tracing::debug!(task = %run.digest(), ?stop, "the broker discards the outcome of a stopped task");
            }
        },
    };
    fault_point::hit("task.ended.committed");
    run.count_transition(status);
    observability::record_end(&run.shared, &observability::request_of_run(run), status);
    run.announce();
    tracing::info!(task = %run.digest(), tenant = %run.tenant.id, backend = %run.record.backend, status = status.name(), "task ended");
}

/// Returns the status with which the owner under this epoch ended the task. `None` if the task has
/// not ended, or has ended otherwise.
pub(super) async fn ended_under(shared: &Shared, task: &TaskId, epoch: i64) -> Option<TaskStatus> {
    let (persistence, mut retry) = (&shared.persistence, StoreRetry::default());
    let transitions = loop {
        match persistence
            .timed("list_task_transitions", persistence.store.task_transitions(task))
            .await
        {
            Ok(transitions) => break transitions,
            Err(_) => retry.pause().await,
        }
    };
    let last = transitions.last()?;
    (last.to.is_finished() && last.epoch == Some(epoch)).then_some(last.to)
}

async fn store_end(run: &TaskRun, ended: &TaskOutcome, tries: u32) -> Result<bool, StopReason> {
    let change = |epoch| WriteOp::EndTask {
        task: run.id.clone(),
        epoch: Some(epoch),
        status: ended.status,
        message: ended.message.clone(),
        outcome: Some(ended.outcome.clone()),
    };
    Ok(run.try_commit(change, tries).await?.is_some())
}

/// Returns the answer as a plain call would have brought it to this client.
fn to_client_answer(run: &TaskRun, answer: &Message) -> Result<Message, Refusal> {
    let mut splice = Splice::new(&answer.frame);
    let uris = ResourceUris::find(answer, Method::ToolsCall, &run.endpoint)
        .map_err(|error| Failure::Protocol(error.to_string()).refusal(&run.record.backend))?;
    uris.expose(&run.record.backend, &mut splice);
    if answer.fields.meta_related_task_id.is_some() {
        splice.set_meta(answer, tasks::RELATED_TASK, &tasks::related_task_meta(&run.id));
    }
    tasks::decoded(splice.finish())
        .ok_or_else(|| Refusal::new(ErrorKind::Internal, "the answer cannot be read any more"))
}

/// Cancels the call at the backend: the call itself (MCP 2025-11-25, Cancellation), or the
/// backend's own task. The backend's own task is cancelled only with [`StopReason::Cancelled`],
/// because another process may still watch it.
async fn cancel_at_backend(run: &Arc<TaskRun>, why: StopReason) {
    let (backend_task, sent_request, as_task, maybe_sent) = {
        let state = run.lock();
        (state.backend_task.clone(), state.sent_request.clone(), state.as_task, state.maybe_sent)
    };
    match (backend_task, sent_request) {
        (Some(TrackedBackendTask { id, link, .. }), _) if why == StopReason::Cancelled => {
            backend_task::cancel(run, &link, &id).await
        }
        (None, Some(SentRequest { connection, wire_id })) if maybe_sent && !as_task => {
            let params = format!("{{\"requestId\":{wire_id}}}");
            connection
                .send_later(handshake::notification(Method::Cancelled, Some(params.as_bytes())));
        }
        _ => {}
    }
}
