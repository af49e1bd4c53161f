//! Sending of a task's call, and its repetition where that is harmless.
//!
//! Invariants:
//!
//! - The store has the step [`TaskStep::Sent`] before the call is sent.
//! - A call that needs an approval is sent after the approval was marked as used.
//! - A call whose answer is lost is sent again only if its tool declares that harmless.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    json::Span,
    method::Method,
};
use records::TaskStep;
use rules::{
    catalog::TaskSupport,
    limits::{BACKOFF_FIRST, TASK_PERMIT_HOLD_FIRST, TASK_RESENDS_MAX},
    retries::AttemptOutcome,
    tasks::{self, BackendTask},
};

use super::{
    approval::TaskApproval,
    backend_task,
    outcome::RunOutcome,
    retry::{RetryTimer, connect},
    run::{StopReason, TaskRun},
};
use crate::{
    backends::{
        backend_admission::Permit,
        link::{
            Link,
            connection::{Connection, requester::Requester},
            failure::Failure,
            request::BackendRequest,
        },
    },
    persistence::fault_point,
};

/// A connection that may carry the call, with the permit for it.
struct AdmittedConnection {
    link: Arc<Link>,
    connection: Arc<Connection>,
    permit: Permit,
}

/// The form of a call to a backend with sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallForm {
    Plain,
    /// With the member `task`: the answer is a task of the backend.
    Task,
}

/// Repetitions of one call.
struct CallRetries {
    timer: RetryTimer,
    /// Number of repetitions after a lost answer.
    resent: u32,
    /// Time for which the call keeps its permit while the store is away.
    permit_hold: Duration,
}

/// Sends the call until it has an outcome. `Err` is an outcome too: that of a call that ended
/// before its answer.
pub(super) async fn send_call(run: &Arc<TaskRun>) -> Result<RunOutcome, RunOutcome> {
    let message = stored_call(run)?;
    let approval = TaskApproval::awaited(run).await?;
    let mut retries = CallRetries::new(run);
    loop {
        let admitted = admit(run, &mut retries.timer).await?;
        let Some(admitted) = retries.commit_sent(run, approval.as_ref(), admitted).await? else {
            continue;
        };
        let form = call_form(run, &admitted.connection, &message);
        record_maybe_sent(run, form).map_err(RunOutcome::Stopped)?;
        let answer = exchange(run, &admitted, &message, form).await;
        let AdmittedConnection { link, connection, permit } = admitted;
        drop(permit);
        run.lock().creating = false;
        match answer {
            Ok(answer) => return Ok(read_answer(run, &link, &connection, answer, form).await),
            Err(failure) => retries.wait_after(run, &link, &failure).await?,
        }
    }
}

fn stored_call(run: &TaskRun) -> Result<Message, RunOutcome> {
    tasks::decoded(Bytes::copy_from_slice(&run.record.request)).ok_or_else(|| {
        RunOutcome::Refused(Refusal::new(
            ErrorKind::Internal,
            "the broker cannot read the stored call",
        ))
    })
}

/// Waits for a connection to the backend, and for a permit of it.
async fn admit(
    run: &Arc<TaskRun>,
    timer: &mut RetryTimer,
) -> Result<AdmittedConnection, RunOutcome> {
    loop {
        let (link, connection) = connect(run, timer).await.map_err(RunOutcome::Refused)?;
        connection.permits(Method::ToolsCall).map_err(RunOutcome::Refused)?;
        match link.backend.acquire_permit(run.caller(), run.deadline).await {
            Ok(permit) => return Ok(AdmittedConnection { link, connection, permit }),
            Err(refusal) if timer.wait(refusal.retry_after).await => {}
            Err(refusal) => return Err(RunOutcome::Refused(refusal)),
        }
    }
}

/// Stores what the store must have before the call is sent.
async fn commit_sent(
    run: &Arc<TaskRun>,
    approval: Option<&TaskApproval>,
) -> Result<(), RunOutcome> {
    if let Some(approval) = approval {
        approval.used(run).await?;
    }
    run.commit_step(TaskStep::Sent).await.map_err(RunOutcome::Stopped)?;
    fault_point::hit("task.sent.committed");
    Ok(())
}

/// Sends the call once and waits for its answer.
async fn exchange(
    run: &Arc<TaskRun>,
    AdmittedConnection { link, connection, .. }: &AdmittedConnection,
    message: &Message,
    form: CallForm,
) -> Result<Message, Failure> {
    let requester: Arc<dyn Requester> = run.clone();
    let edits = match form {
        CallForm::Plain => Vec::new(),
        CallForm::Task => vec![task_member(run, message)],
    };
    let sent_at = Instant::now();
    let request = BackendRequest { message, edits: &edits, requester: &requester, sent_at };
    let answer = connection.exchange(link, request).await;
    link.backend.record_result(connection, &answer, sent_at.elapsed(), Instant::now());
    answer
}

/// Returns the outcome of an answered call. If the answer is a task of the backend, the run follows
/// that task to its end.
async fn read_answer(
    run: &Arc<TaskRun>,
    link: &Arc<Link>,
    connection: &Arc<Connection>,
    answer: Message,
    form: CallForm,
) -> RunOutcome {
    fault_point::hit("task.answered");
    if !is_backend_task(run, &answer, form) {
        return RunOutcome::Answered(answer, None);
    }
    match answer.bytes(answer.result).and_then(BackendTask::read) {
        Some(task) => backend_task::follow(run, link, connection, task).await,
        None => backend_task::unreadable(run, link).await,
    }
}

impl CallRetries {
    fn new(run: &TaskRun) -> Self {
        let timer = RetryTimer::new(run.timeouts().call);
        Self { timer, resent: 0, permit_hold: TASK_PERMIT_HOLD_FIRST }
    }

    /// Stores that the call may have been sent, before it is sent. `None`: the store took so long
    /// that the call gave its permit to other calls. It needs another one, and has more time then.
    async fn commit_sent(
        &mut self,
        run: &Arc<TaskRun>,
        approval: Option<&TaskApproval>,
        admitted: AdmittedConnection,
    ) -> Result<Option<AdmittedConnection>, RunOutcome> {
        let mut committed = pin!(commit_sent(run, approval));
        if let Ok(committed) = tokio::time::timeout(self.permit_hold, &mut committed).await {
            return committed.map(|()| Some(admitted));
        }
        drop(admitted);
        self.permit_hold *= 2;
        committed.await?;
        self.commit_unsent(run).await.map_err(RunOutcome::Stopped)?;
        Ok(None)
    }

    /// Waits until the call may be sent again after this failure. An error ends the task.
    async fn wait_after(
        &mut self,
        run: &TaskRun,
        link: &Link,
        failure: &Failure,
    ) -> Result<(), RunOutcome> {
        let refusal = link.backend.report_failure(failure);
        if failure.was_not_seen() {
            self.commit_unsent(run).await.map_err(RunOutcome::Stopped)?;
            if !self.timer.wait(refusal.retry_after).await {
                return Err(RunOutcome::Refused(refusal));
            }
        } else if failure.attempt() == AttemptOutcome::MaybeProcessed
            && run.details.is_repeatable()
            && self.resent < TASK_RESENDS_MAX
        {
            self.resent += 1;
            tracing::info!(task = %run.digest(), tenant = %run.tenant.id, backend = %run.record.backend, "the answer is lost and the call is safe to repeat: the broker sends it again");
            tokio::time::sleep(BACKOFF_FIRST).await;
        } else {
            return Err(RunOutcome::Refused(refusal));
        }
        Ok(())
    }

    /// Notes that the backend did not process the call. The record must show this after a crash. If
    /// an earlier answer was lost, the step stays `Sent`.
    async fn commit_unsent(&self, run: &TaskRun) -> Result<(), StopReason> {
        run.lock().maybe_sent = false;
        if self.resent == 0 {
            run.commit_step(TaskStep::Queued).await?;
        }
        Ok(())
    }
}

/// Returns whether the answer is a task that the backend made of the call.
fn is_backend_task(run: &TaskRun, answer: &Message, form: CallForm) -> bool {
    let is_expected = form == CallForm::Task || run.lock().backend_task.is_some();
    is_expected && answer.fields.task_task_id.is_some()
}

/// Notes that the call may have been sent. Fails for a run that was stopped meanwhile: its call is
/// still unsent, so another process can send it.
fn record_maybe_sent(run: &TaskRun, form: CallForm) -> Result<(), StopReason> {
    let as_task = form == CallForm::Task;
    let mut state = run.lock();
    if let Some(stop) = state.stop_reason {
        return Err(stop);
    }
    (state.maybe_sent, state.as_task, state.creating) = (true, as_task, as_task);
    Ok(())
}

/// Returns the form in which the broker sends the call. MCP 2025-11-25, Tasks: the backend and the
/// tool must both support tasks.
fn call_form(run: &TaskRun, connection: &Connection, message: &Message) -> CallForm {
    let has_tasks = connection
        .negotiated()
        .is_some_and(|agreed| agreed.capabilities.tasks_tools_call && agreed.version.tasks());
    let tool = message.text(message.fields.name).unwrap_or_default();
    let support = run
        .tenant
        .catalog_of(&run.record.principal)
        .traits(&run.record.backend, &tool)
        .map(|traits| traits.task_support);
    match has_tasks && support != Some(TaskSupport::Forbidden) {
        true => CallForm::Task,
        false => CallForm::Plain,
    }
}

/// Returns the edit that adds `task` to the call.
fn task_member(run: &TaskRun, message: &Message) -> (Span, Vec<u8>) {
    let ttl = run.record.ttl.map_or_else(
        || "{}".to_owned(),
        |_| format!("{{\"ttl\":{}}}", run.remaining_time().as_millis().max(1)),
    );
    let at = message.params.map_or(0, |params| params.start + 1);
    (Span { start: at, end: at }, format!("\"task\":{ttl},").into_bytes())
}
