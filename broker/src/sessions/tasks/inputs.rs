//! Input that a task's backend needs from the client (MCP 2025-11-25, Tasks: `input_required`):
//! elicitation, sampling, roots.
//!
//! The owner writes the request into the record. Every replica where a client waits for the task
//! reads it there, and the owner reads the answer there. Every request of the backend gets one of
//! four answers:
//!
//! - the client's answer
//! - an error, after the time that clients have
//! - an error, when the task is over
//! - an error, if the tenant's tasks have too many bytes
//!
//! There is one exception: the backend's own task continues with another process. An error would
//! make that task fail.

use std::{collections::BTreeSet, convert::Infallible, sync::Arc, time::Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    json,
    method::Method,
    splice::Splice,
};
use records::{TaskStatus, WriteOp, WriteOutcome};
use rules::{
    limits::{TASK_INPUTS_MAX, TASK_POLLER_INTERVAL, inputs::BACKEND_TASK_INPUTS_MAX},
    tasks,
};

use super::{
    reply_route::ReplyRoute,
    run::{OpenInput, RunState, StopReason, TaskRun},
};
use crate::{
    backends::link::connection::{Connection, pending::QuestionOwner},
    persistence::fault_point,
    sessions::task_limits::task_limit_refusal,
    telemetry::child_span::ChildSpan,
};

/// Numbers that one owner can give out. The next owner's numbers begin above them, because no
/// number is used twice.
const NUMBERS_PER_EPOCH: i64 = 1 << 20;

/// Accepts a backend's request for the client of a task.
pub(super) fn accept_question(
    run: &Arc<TaskRun>,
    connection: &Arc<Connection>,
    message: &Message,
) -> Result<(), Refusal> {
    let id = message
        .id
        .clone()
        .ok_or_else(|| Refusal::new(ErrorKind::InvalidRequest, "a request must have an id"))?;
    accept_question_via(run, ReplyRoute::Backend { connection: connection.clone(), id }, message)
}

/// Accepts a request for the client of a task. The answer takes `reply_route`.
pub(super) fn accept_question_via(
    run: &Arc<TaskRun>,
    reply_route: ReplyRoute,
    message: &Message,
) -> Result<(), Refusal> {
    run.client.permits(message, run.version)?;
    let span = ChildSpan::question(run.request.get(), message);
    let traced = span.as_ref().and_then(|span| with_context(span, message));
    let message = traced.as_ref().unwrap_or(message);
    let number = {
        let mut state = run.lock();
        if state.keeps_backend_task() {
            return Ok(());
        }
        if run.is_stopped() {
            return Err(Refusal::new(ErrorKind::InvalidRequest, "the task has ended"));
        }
        check_input_limits(&state)?;
        state.inputs_opened += 1;
        let number = run.epoch() * NUMBERS_PER_EPOCH + state.inputs_opened;
        let span = span.map(|span| Arc::new(Mutex::new(Some(span))));
        state.inputs.insert(
            number,
            OpenInput {
                reply_route: reply_route.clone(),
                requested_at: Instant::now(),
                stored: false,
                span,
            },
        );
        number
    };
    if let ReplyRoute::Backend { connection, id } = reply_route {
        connection.pending().record_question(
            id,
            QuestionOwner { inbound: run.this.clone(), number: number.cast_unsigned() },
        );
        if connection.is_closed() {
            // The thread that closed the connection may have looked for questions before this one
            // was noted.
            run.withdraw_input(number);
            return Ok(());
        }
    }
    let request = tasks::input_request(message, &run.id).to_vec();
    run.lock().inputs_storing += 1;
    let storing = StoringInput(run.clone());
    run.shared.running.spawn(store(storing, number, request));
    Ok(())
}

/// Refuses one more question to the client of a task that has reached a limit.
fn check_input_limits(state: &RunState) -> Result<(), Refusal> {
    let opened = usize::try_from(state.inputs_opened).unwrap_or(usize::MAX);
    if opened >= BACKEND_TASK_INPUTS_MAX {
        return Err(Refusal::new(
            ErrorKind::Overloaded,
            format!(
                "the backend has made {BACKEND_TASK_INPUTS_MAX} requests to the client of this task, which is the limit"
            ),
        ));
    }
    if state.inputs.len().max(state.inputs_storing) >= TASK_INPUTS_MAX {
        return Err(Refusal::new(
            ErrorKind::Overloaded,
            "too many requests of the backend wait for the client of this task",
        ));
    }
    Ok(())
}

/// A request that is being stored. It counts until the store has it, also if the backend withdraws
/// it, because its message stays in memory.
struct StoringInput(Arc<TaskRun>);

impl Drop for StoringInput {
    fn drop(&mut self) {
        self.0.lock().inputs_storing -= 1;
    }
}

/// Returns the question with the trace context of `span`, which the answer continues.
fn with_context(span: &ChildSpan, message: &Message) -> Option<Message> {
    let mut splice = Splice::new(&message.frame);
    span.put_into_meta(&mut splice, message);
    tasks::decoded(splice.finish())
}

async fn store(storing: StoringInput, number: i64, request: Vec<u8>) {
    let run = &storing.0;
    if !run.lock().inputs.contains_key(&number) {
        return; // withdrawn meanwhile
    }
    let settings = run.shared.task_settings();
    let change = |epoch| WriteOp::RequestInput {
        task: run.id.clone(),
        epoch,
        number,
        request: request.clone(),
        bytes_max: settings.bytes_per_tenant as u64,
    };
    match run.try_commit(change, u32::MAX).await {
        Ok(Some(WriteOutcome::LimitReached(limit))) => {
            if let Some(input) = take(run, number) {
                let refusal = task_limit_refusal(limit, settings);
                let tenant = Some(run.tenant.id.as_str());
                let request_id = run.shared.record_refusal(&refusal, None, tenant);
                refuse_with_id(&input, &refusal, &request_id);
            }
            return;
        }
        Ok(_) => {}
        Err(_) => {
            if let Some(input) = take(run, number) {
                refuse_as_over(run, &input);
            }
            return;
        }
    }
    fault_point::hit("task.input.asked");
    let waiting = run.lock().inputs.get_mut(&number).map(|input| input.stored = true).is_some();
    if waiting {
        run.count_transition(TaskStatus::InputRequired);
        run.announce();
        run.changed.notify_waiters();
    } else {
        close(run, number).await; // withdrawn meanwhile
    }
}

impl TaskRun {
    /// Withdraws a question whose answer the backend no longer needs, or can no longer get.
    pub fn withdraw_input(self: &Arc<Self>, number: i64) {
        if take(self, number).is_some_and(|input| input.stored) {
            let run = self.clone();
            self.shared.running.spawn(async move { close(&run, number).await });
        }
    }
}

fn take(run: &TaskRun, number: i64) -> Option<OpenInput> {
    let input = run.lock().inputs.remove(&number)?;
    if let ReplyRoute::Backend { connection, id } = &input.reply_route {
        connection.pending().forget_question(id);
    }
    Some(input)
}

fn refuse(input: &OpenInput, refusal: &Refusal) {
    refuse_with_id(input, refusal, &crate::request_id());
}

fn refuse_with_id(input: &OpenInput, refusal: &Refusal, request_id: &str) {
    input.reply_route.send(refusal.to_response(Some(&input.reply_route.id()), request_id));
}

/// Removes the question from the record.
async fn close(run: &TaskRun, number: i64) {
    if run.commit(|epoch| WriteOp::CloseInput { task: run.id.clone(), epoch, number }).await.is_ok()
    {
        if run.lock().inputs.is_empty() {
            run.count_transition(TaskStatus::Working);
        }
        run.announce();
    }
}

/// Answers every open question with an error, because the run is over. A question gets no answer if
/// another process continues the backend's task.
pub(super) fn refuse_all(run: &TaskRun) {
    let numbers: Vec<i64> = run.lock().inputs.keys().copied().collect();
    for input in numbers.into_iter().filter_map(|number| take(run, number)) {
        refuse_as_over(run, &input);
    }
}

fn refuse_as_over(run: &TaskRun, input: &OpenInput) {
    if !run.keeps_backend_task() {
        refuse(input, &Refusal::new(ErrorKind::InvalidRequest, "the task has ended"));
    }
}

/// Serves a running task: sends the client's answers to the backend, and stops the run when the
/// task has ended.
pub(super) async fn poll_inputs(run: &Arc<TaskRun>) -> Infallible {
    // Nothing has changed that this process does not know.
    let mut may_have_changed = false;
    loop {
        let changed = run.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable(); // before looking, so that no change is missed
        let open = expire(run);
        if may_have_changed {
            // If the store fails, the next round reads it again.
            may_have_changed = (!open.is_empty() && take_answers(run, &open).await.is_err())
                || stop_if_ended(run).await.is_err();
        }
        // Each change causes a notification, from its author or from `poller`.
        may_have_changed |= tokio::time::timeout(TASK_POLLER_INTERVAL, changed).await.is_ok();
    }
}

/// Returns the numbers of the stored questions that wait. Answers those that waited too long with
/// an error.
fn expire(run: &Arc<TaskRun>) -> BTreeSet<i64> {
    let limit = run.shared.config.timeouts.client_request;
    let (late, open): (Vec<i64>, BTreeSet<i64>) = {
        let state = run.lock();
        let stored = state.inputs.iter().filter(|(_, input)| input.stored);
        let (late, open): (Vec<_>, Vec<_>) =
            stored.partition(|(_, input)| input.requested_at.elapsed() > limit);
        (
            late.into_iter().map(|(number, _)| *number).collect(),
            open.into_iter().map(|(number, _)| *number).collect(),
        )
    };
    for number in late {
        if let Some(input) = take(run, number) {
            refuse(&input, &Refusal::new(ErrorKind::Timeout, "the client did not answer in time"));
            let run = run.clone();
            run.shared.running.clone().spawn(async move { close(&run, number).await });
        }
    }
    open
}

async fn take_answers(run: &Arc<TaskRun>, open: &BTreeSet<i64>) -> Result<(), Refusal> {
    let persistence = &run.shared.persistence;
    let stored =
        persistence.timed("list_task_inputs", persistence.store.open_task_inputs(&run.id)).await?;
    for input in stored.iter().filter(|input| open.contains(&input.number)) {
        let Some(answer) = &input.answer else { continue };
        let Some(waiting) = take(run, input.number) else { continue };
        let answer = tasks::with_id(answer, &waiting.reply_route.id());
        if let (Some(span), Some(answer)) = (waiting.take_span(), tasks::decoded(answer.clone())) {
            span.finish(&answer, Method::Unknown);
        }
        waiting.reply_route.send(to_backend_ids(run, answer));
        close(run, input.number).await;
    }
    Ok(())
}

/// Replaces the broker's task id in the client's answer with the backend's id.
fn to_backend_ids(run: &TaskRun, answer: Bytes) -> Bytes {
    let Some(message) = tasks::decoded(answer.clone()) else { return answer };
    let (Some(related), Some(meta)) = (message.fields.meta_related_task_id, message.fields.meta)
    else {
        return answer;
    };
    let backend_task_id = run.lock().backend_task.as_ref().map(|tracked| tracked.id.clone());
    let mut splice = Splice::new(&message.frame);
    match backend_task_id {
        Some(backend_task_id) => {
            splice.replace(related, json::quote(&backend_task_id).into_bytes())
        }
        None => splice.remove_member(meta, tasks::RELATED_TASK),
    };
    splice.finish()
}

/// Stops the run if another process or a client has ended or deleted the task.
async fn stop_if_ended(run: &TaskRun) -> Result<(), Refusal> {
    let persistence = &run.shared.persistence;
    if persistence
        .timed("get_task", persistence.store.task(&run.id))
        .await?
        .is_none_or(|task| task.status.is_finished())
    {
        run.stop(StopReason::Cancelled);
    }
    Ok(())
}
