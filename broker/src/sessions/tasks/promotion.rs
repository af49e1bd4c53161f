//! A call that is on its way becomes a task: it takes long, or its backend has made a task of it (MCP 2026-07-28, Tasks).
//!
//! The record says from the first that the call was sent before there was one (`TaskDetails::sent_before`), so that nobody who
//! finds it begins the call anew unless that is harmless. From then on the run is who waits for the call, and what the
//! backend asks its client goes into the record. Where no task can be made the call goes on as it was.

use std::{pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use protocol::{
    envelope::{Kind, Message},
    error::{ErrorKind, Refusal},
    ids::{RequestId, TaskId},
    method::Method,
};

use super::{
    TaskManager, backend_task,
    creation::{await_commit, call_of, limits_of, note_origin},
    inputs,
    outcome::RunOutcome,
    run::{RunPlan, TaskRun},
};
use crate::{
    limits::TASK_RUN_MAX,
    metrics::PromotionOutcome,
    persistence::{FullTask, StoreError, StoredTask, WriteOp, WriteOutcome, fault_point, refusal},
    rules::{
        event_log::EventKind,
        routing::{self, Decision, TaskTarget},
        tasks,
    },
    sessions::{
        call::{Call, OfferedTask},
        session::{Session, without_own_meta},
        shared::Shared,
        stateless::PendingExchange,
        stream::StreamItem,
    },
};

/// A task whose client does not know of it. Dropped, the task is cancelled: nobody else can ask for what becomes of it.
#[derive(Debug)]
pub(in crate::sessions) struct UnannouncedTask {
    shared: Arc<Shared>,
    task: Option<Box<StoredTask>>,
}

impl UnannouncedTask {
    /// Its client is told.
    pub(in crate::sessions) fn announce(mut self) -> Option<Box<StoredTask>> {
        self.task.take()
    }
}

impl Drop for UnannouncedTask {
    fn drop(&mut self) {
        let Some(task) = self.task.take() else { return };
        let shared = self.shared.clone();
        self.shared.running.spawn(async move {
            if let Err(refusal) = shared.tasks.cancel_stored(&shared, &task).await {
                tracing::debug!(task = super::digest(&task.record.task), %refusal, "a task nobody knows of could not be cancelled");
            }
        });
    }
}

impl TaskManager {
    /// Makes a task of a call, or gives it back as it is. `message`: as the session took it.
    pub(in crate::sessions) async fn promote(
        message: Message,
        under_way: PendingExchange,
        call: Arc<Call>,
    ) -> Result<UnannouncedTask, PendingExchange> {
        let session = under_way.session().clone();
        let shared = session.shared.clone();
        match session.store_promoted(&message, &call).await {
            Ok(stored) => {
                let task = Some(Box::new(stored.clone()));
                session.begin_promoted(stored, under_way, call);
                shared.metrics.promoted(PromotionOutcome::Made);
                Ok(UnannouncedTask { shared, task })
            }
            Err(refusal) => {
                shared.metrics.promoted(PromotionOutcome::Refused);
                tracing::debug!(%refusal, "a call could not become a task, and goes on as it was");
                Err(under_way)
            }
        }
    }
}

impl Session {
    async fn store_promoted(&self, message: &Message, call: &Call) -> Result<StoredTask, Refusal> {
        self.shared.tasks.check_capacity()?;
        let message = without_own_meta(message, |_| false)?;
        let decision = routing::decide(
            &message,
            &self.endpoint,
            &self.advertised,
            self.version,
            &self.tenant.catalog(),
        )?;
        let Decision::Forward(plan) = decision else {
            return Err(Refusal::new(
                ErrorKind::Internal,
                "the call does not go to a backend any more",
            ));
        };
        if plan.backend != call.backend {
            return Err(Refusal::new(
                ErrorKind::Internal,
                "the name stands for another backend by now",
            ));
        }
        let traits = plan.names.tool().map(|tool| tool.traits).unwrap_or_default();
        let tool =
            message.text(message.fields.name).map(|name| name.into_owned()).unwrap_or_default();
        let mut details = self.details(TaskTarget { tool, traits }).sent_before();
        if let Some(request) = &call.observed {
            note_origin(&mut details, request);
        }
        let record = self.record_of(&call_of(&message, &plan)?, plan.backend, &details, None);
        let (owner, limits) = (self.shared.durable.node(), limits_of(self.shared.task_settings()));
        let create =
            WriteOp::CreateTask { record: Box::new(record.clone()), owner: owner.clone(), limits };
        let written = self.shared.durable.commit(create).await;
        if let Err(StoreError::OutcomeUnknown(_)) = written {
            self.shared.running.spawn(cancel_if_committed(
                self.shared.clone(),
                record.task.clone(),
                record.ttl.unwrap_or(TASK_RUN_MAX),
            ));
        }
        match written.map_err(|error| refusal(&error))? {
            // After a change of name nobody knows whether the task is still ours: it is found like any that was left behind.
            WriteOutcome::Created { at_us } if self.shared.durable.node() == owner => {
                fault_point::passed("task.promoted");
                Ok(self.note_created(record, at_us, &owner))
            }
            _ => Err(Refusal::new(
                ErrorKind::TaskLimit,
                "the tenant may have no more tasks, or this replica lost its name",
            )),
        }
    }

    fn begin_promoted(&self, stored: StoredTask, under_way: PendingExchange, call: Arc<Call>) {
        let Some(plan) = RunPlan::read(&stored.record) else { return };
        let left = stored.record.ttl;
        let run = TaskRun::new(FullTask { stored, left }, plan, self.tenant.clone(), &self.shared);
        run.lock().maybe_sent = true;
        // From now on it counts among the tasks.
        self.release_call_slot(&call);
        self.shared
            .tasks
            .start_with(run, |run| async move { await_call(&run, under_way, call).await });
    }
}

/// Nobody knows whether the task was made. The call goes on without one, so that nobody is ever told of it: it is nobody's to
/// carry out.
async fn cancel_if_committed(shared: Arc<Shared>, task: TaskId, ttl: Duration) {
    let _not_a_stray = shared.tasks.begin_recovery(&task);
    while let Some(found) = await_commit(&shared, &task, ttl).await {
        match shared.tasks.cancel_stored(&shared, &found.stored).await {
            Ok(_) => return,
            Err(refusal) => {
                tracing::debug!(task = super::digest(&task), %refusal, "a task nobody knows of could not be cancelled")
            }
        }
    }
}

/// Waits for the call as its client would have.
async fn await_call(
    run: &Arc<TaskRun>,
    mut under_way: PendingExchange,
    call: Arc<Call>,
) -> RunOutcome {
    if let Some(handover) = &call.task_handoff {
        handover.mark_done();
    }
    loop {
        let next = tokio::select! {
            biased;
            next = under_way.next() => next,
            made = backend_made_task(&call) => return follow_backend_task(run, under_way, made).await,
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
                    "the answer can not be read",
                ));
            }
            Some(question) if question.kind == Kind::Request => ask(run, &under_way, &question),
            Some(word) if word.method == Method::Cancelled => withdraw(run, &word),
            // Neither progress nor log messages of a task are told (MCP 2026-07-28, Tasks).
            _ => {}
        }
    }
}

async fn backend_made_task(call: &Call) -> OfferedTask {
    let Some(handover) = &call.task_handoff else { return std::future::pending().await };
    loop {
        handover.wait_for_offer().await;
        if let Some(made) = handover.take() {
            return made;
        }
    }
}

/// The backend has a task of its own for the call: that is watched from now on, and can be by others after this process.
async fn follow_backend_task(
    run: &Arc<TaskRun>,
    mut under_way: PendingExchange,
    made: OfferedTask,
) -> RunOutcome {
    let OfferedTask { link, connection, task, taken } = made;
    run.track_unrequested_task(&link, &connection, &task.id);
    let link = run.hold_link(link);
    let followed = async {
        // The call ends by itself: given up before, it would be cancelled.
        if taken.send(true).is_ok() {
            while let StreamItem::Event(event) = under_way.next().await {
                if event.kind == EventKind::Answer {
                    break;
                }
            }
        }
        drop(under_way);
        backend_task::follow(run, &link, &connection, task).await
    };
    pin!(followed).await
}

fn ask(run: &Arc<TaskRun>, under_way: &PendingExchange, question: &Message) {
    let Some(number) = question.id.as_ref().and_then(RequestId::as_u64) else { return };
    if let Err(refusal) = inputs::ask_via(
        run,
        inputs::ReplyRoute::Session { session: under_way.session().clone(), number },
        question,
    ) {
        let frame: Bytes = refusal.to_response(question.id.as_ref(), &crate::request_id());
        if let Some(answer) = tasks::decoded(frame) {
            under_way.session().handle_answer(&answer);
        }
    }
}

/// The backend needs an answer no longer.
fn withdraw(run: &Arc<TaskRun>, word: &Message) {
    let number = word
        .fields
        .request_id
        .map(|span| RequestId::from_raw(span.slice(&word.frame)))
        .and_then(|id| id.as_u64());
    let Some(number) = number else { return };
    let asked = run
        .lock()
        .inputs
        .iter()
        .find(|(_, input)| input.reply_route.is_question(number))
        .map(|(asked, _)| *asked);
    if let Some(asked) = asked {
        run.withdraw_input(asked);
    }
}
