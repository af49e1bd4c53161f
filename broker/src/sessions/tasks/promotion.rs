//! Promotion of a call in flight to a task (MCP 2026-07-28, Tasks). The call takes long, or its
//! backend has made a task of it.
//!
//! The record notes from the start that the call was sent earlier (`TaskDetails::sent_before`). A
//! process that finds the record therefore does not send the call again, unless that is harmless.
//! After the promotion the run waits for the call, and the backend's questions go into the record.
//! If no task can be made, the call continues unchanged.

use std::{pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use protocol::{
    envelope::{Kind, Message},
    error::{ErrorKind, Refusal},
    ids::{RequestId, TaskId},
    method::Method,
    splice,
};
use records::{FullTask, StoredTask, WriteOp, WriteOutcome};
use rules::{
    event_log::EventKind,
    limits::TASK_RUN_MAX,
    routing::{self, Decision, TaskTarget},
    tasks,
};

use super::{
    TaskManager, backend_task,
    creation::{await_commit, call_of, limits_of, record_origin},
    creator::TaskCreator,
    inputs,
    outcome::RunOutcome,
    reply_route::ReplyRoute,
    run::{RunPlan, TaskRun},
};
use crate::{
    metrics::PromotionOutcome,
    persistence::{StoreError, fault_point, refusal},
    sessions::{
        call::{Call, OfferedTask},
        session::{Session, questions},
        stream::StreamItem,
    },
};

/// A task that its client does not know yet. Dropping it cancels the task, because no client can
/// ask for the outcome.
#[derive(Debug)]
pub(in crate::sessions) struct UnannouncedTask {
    tasks: Arc<TaskManager>,
    task: Option<Box<StoredTask>>,
}

impl UnannouncedTask {
    /// Keeps the task, because its client gets to know it.
    pub(in crate::sessions) fn announce(mut self) -> Option<Box<StoredTask>> {
        self.task.take()
    }
}

impl Drop for UnannouncedTask {
    fn drop(&mut self) {
        let Some(task) = self.task.take() else { return };
        let tasks = self.tasks.clone();
        self.tasks.shared.running.spawn(async move {
            if let Err(refusal) = tasks.cancel_stored(&task).await {
                tracing::debug!(task = super::digest(&task.record.task), %refusal, "a task that no client knows of could not be cancelled");
            }
        });
    }
}

/// Waits for a call on behalf of its client. Dropping it cancels the call.
pub(in crate::sessions) trait PendingCall: Send + 'static {
    fn session(&self) -> &Arc<Session>;

    /// Returns the next event of the call. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = StreamItem> + Send;
}

impl TaskManager {
    /// Makes a task of a call, or returns the pending call unchanged. `message` is the request as
    /// the session received it.
    pub(in crate::sessions) async fn promote<Pending: PendingCall>(
        self: &Arc<Self>,
        message: Message,
        pending_call: Pending,
        call: Arc<Call>,
    ) -> Result<UnannouncedTask, Pending> {
        let session = pending_call.session().clone();
        let metrics = &self.shared.metrics;
        match store(&session, self, &message, &call).await {
            Ok(stored) => {
                let task = Some(Box::new(stored.clone()));
                start(&session, self, stored, pending_call, call);
                metrics.promoted(PromotionOutcome::Made);
                Ok(UnannouncedTask { tasks: self.clone(), task })
            }
            Err(refusal) => {
                metrics.promoted(PromotionOutcome::Refused);
                tracing::debug!(%refusal, "a call could not become a task and continues as a call");
                Err(pending_call)
            }
        }
    }
}

async fn store(
    session: &Session,
    tasks: &Arc<TaskManager>,
    message: &Message,
    call: &Call,
) -> Result<StoredTask, Refusal> {
    tasks.check_capacity()?;
    let message = splice::without_own_meta(message, |_| false)?;
    let decision = routing::decide(
        &message,
        &session.endpoint,
        &session.agreement.advertised,
        session.agreement.version,
        &session.visible_catalog(),
        None, // the call was admitted before
    )?;
    let Decision::Forward(plan) = decision else {
        return Err(Refusal::new(
            ErrorKind::Internal,
            "the call does not go to a backend any more",
        ));
    };
    if plan.backend != *call.backend() {
        return Err(Refusal::new(ErrorKind::Internal, "the name now belongs to another backend"));
    }
    let creator = TaskCreator::new(session);
    let called = plan.target.tool();
    let traits = called.map(|tool| tool.traits).unwrap_or_default();
    let is_repeatable = called.is_some_and(|tool| tool.is_repeatable);
    let native = called.map(|tool| tool.name.clone()).unwrap_or_default();
    let tool = message.text(message.fields.name).map(|name| name.into_owned()).unwrap_or_default();
    let target = TaskTarget { tool, native, traits, is_repeatable };
    let mut details = creator.details(target).sent_before();
    if let Some(request) = &call.observed {
        record_origin(&mut details, request);
    }
    let record = creator.record(&call_of(&message, &plan)?, plan.backend, &details, None);
    let (owner, limits) =
        (session.shared.persistence.node(), limits_of(session.shared.task_settings()));
    let create =
        WriteOp::CreateTask { record: Box::new(record.clone()), owner: owner.clone(), limits };
    let written = session.shared.persistence.commit(create).await;
    if let Err(StoreError::OutcomeUnknown(_)) = written {
        session.shared.running.spawn(cancel_if_committed(
            tasks.clone(),
            record.task.clone(),
            record.ttl.unwrap_or(TASK_RUN_MAX),
        ));
    }
    match written.map_err(|error| refusal(&error))? {
        // After a change of name the task may belong to another process, so that a claim or the
        // orphan sweep finds it.
        WriteOutcome::Created { at_us } if session.shared.persistence.node() == owner => {
            fault_point::hit("task.promoted");
            Ok(creator.record_stored(record, at_us, &owner))
        }
        _ => Err(Refusal::new(
            ErrorKind::TaskLimit,
            "the tenant reached its limit of tasks, or this replica lost its lease",
        )),
    }
}

fn start(
    session: &Session,
    tasks: &Arc<TaskManager>,
    stored: StoredTask,
    pending_call: impl PendingCall,
    call: Arc<Call>,
) {
    let Some(plan) = RunPlan::read(&stored.record) else { return };
    let remaining_ttl = stored.record.ttl;
    let run = TaskRun::new(FullTask { stored, remaining_ttl }, plan, session.tenant.clone(), tasks);
    run.lock().maybe_sent = true;
    // From now on the call counts among the tasks.
    session.release_call_slot(&*call);
    tasks.start_with(run, |run| async move { await_call(&run, pending_call, call).await });
}

/// Cancels a task whose creation had an unknown outcome. The call continues without a task, so no
/// client ever learns its id and no process may carry it out.
async fn cancel_if_committed(tasks: Arc<TaskManager>, task: TaskId, ttl: Duration) {
    let _no_orphan = tasks.start_recovery(&task);
    while let Some(found) = await_commit(&tasks, &task, ttl).await {
        match tasks.cancel_stored(&found.stored).await {
            Ok(_) => return,
            Err(refusal) => {
                tracing::debug!(task = super::digest(&task), %refusal, "a task that no client knows of could not be cancelled")
            }
        }
    }
}

/// Waits for the call instead of its client.
async fn await_call(
    run: &Arc<TaskRun>,
    mut pending_call: impl PendingCall,
    call: Arc<Call>,
) -> RunOutcome {
    if let Some(handoff) = &call.task_handoff {
        handoff.mark_done();
    }
    loop {
        let next = tokio::select! {
            biased;
            next = pending_call.next() => next,
            offered = offered_task(&call) => return follow_backend_task(run, pending_call, offered).await,
        };
        let event = match next {
            StreamItem::Event(event) => event,
            StreamItem::Ended(_) => {
                let text = "the call was given up: it may or may not have been carried out";
                return RunOutcome::Refused(Refusal::new(ErrorKind::OutcomeUnknown, text));
            }
        };
        let answers = event.kind == EventKind::Answer;
        match tasks::decoded(event.frame) {
            Some(answer) if answers => return RunOutcome::Translated(answer),
            None if answers => {
                return RunOutcome::Refused(Refusal::new(
                    ErrorKind::BackendProtocolError,
                    "the answer cannot be read",
                ));
            }
            Some(question) if question.kind == Kind::Request => {
                accept_question(run, &pending_call, &question)
            }
            Some(notification) if notification.method == Method::Cancelled => {
                withdraw(run, &notification)
            }
            // A client gets neither progress nor log messages of a task (MCP 2026-07-28, Tasks).
            _ => {}
        }
    }
}

async fn offered_task(call: &Call) -> OfferedTask {
    let Some(handoff) = &call.task_handoff else { return std::future::pending().await };
    loop {
        handoff.wait_for_offer().await;
        if let Some(offered) = handoff.take() {
            return offered;
        }
    }
}

/// Watches the task that the backend made for the call. After this process another one can watch it
/// too.
async fn follow_backend_task(
    run: &Arc<TaskRun>,
    mut pending_call: impl PendingCall,
    offered: OfferedTask,
) -> RunOutcome {
    let OfferedTask { link, connection, task, taken } = offered;
    run.track_unrequested_task(&link, &connection, &task.id);
    run.hold_link(&link); // a closed link fails the first request
    let followed = async {
        // The call must end by itself. If the run dropped it earlier, the broker would cancel it.
        if taken.send(true).is_ok() {
            while let StreamItem::Event(event) = pending_call.next().await {
                if event.kind == EventKind::Answer {
                    break;
                }
            }
        }
        drop(pending_call);
        backend_task::follow(run, &link, &connection, task).await
    };
    pin!(followed).await
}

fn accept_question(run: &Arc<TaskRun>, pending_call: &impl PendingCall, question: &Message) {
    let Some(number) = question.id.as_ref().and_then(RequestId::as_u64) else { return };
    if let Err(refusal) = inputs::accept_question_via(
        run,
        ReplyRoute::Session { session: pending_call.session().clone(), number },
        question,
    ) {
        let frame: Bytes = refusal.to_response(question.id.as_ref(), &crate::request_id());
        if let Some(answer) = tasks::decoded(frame) {
            questions::handle_answer(pending_call.session(), &answer);
        }
    }
}

/// Withdraws a question whose answer the backend no longer needs.
fn withdraw(run: &Arc<TaskRun>, notification: &Message) {
    let number = notification
        .fields
        .request_id
        .map(|span| RequestId::from_raw(span.slice(&notification.frame)))
        .and_then(|id| id.as_u64());
    let Some(number) = number else { return };
    let input_number = run
        .lock()
        .inputs
        .iter()
        .find(|(_, input)| input.reply_route.is_question(number))
        .map(|(input_number, _)| *input_number);
    if let Some(input_number) = input_number {
        run.withdraw_input(input_number);
    }
}
