//! A stateless request in its pooled session. An exchange waits for it, suspends it while its
//! client gathers input, or hands it to a task.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use protocol::{
    envelope::Message,
    error::Refusal,
    handshake,
    ids::{ApprovalId, RequestId},
};
use rules::{
    access::Subject, approvals::ApprovalNotice, event_log::EventKind,
    limits::PROMOTE_RETRY_INTERVAL, log_level::LogLevel, stateless, tasks,
};
use tokio::sync::oneshot;

use super::session_pool::SessionLease;
use crate::sessions::{
    call::{Call, CallFuture},
    session::{Session, TaskAcceptance, questions},
    stream::{EventStream, StreamCursor, StreamItem},
    tasks::{PendingCall, TaskManager, UnannouncedTask},
};

/// A request in a pooled session. Dropping it cancels the request.
#[derive(Debug)]
pub struct PendingExchange {
    lease: SessionLease,
    id: RequestId,
    reader: StreamCursor,
    /// The call, while the waiter polls it.
    call_future: Option<CallFuture>,
    /// The call, also while it runs by itself.
    call: Option<Arc<Call>>,
    /// Set when the answer has come.
    answered: bool,
}

impl PendingExchange {
    pub(super) fn new(lease: SessionLease, id: RequestId, reader: StreamCursor) -> Self {
        Self { lease, id, reader, call_future: None, call: None, answered: false }
    }

    /// Takes the call, which the waiter polls from now on.
    pub(super) fn set_call_future(&mut self, call: Option<CallFuture>) {
        self.call = call.as_ref().and_then(CallFuture::call).cloned();
        self.call_future = call;
    }

    /// Makes a call that waits for an approval end at once, unless its client was notified before
    /// and comes back for the approval. Called before the call runs.
    pub(super) fn limit_approval_wait(&self, returned_for: Option<ApprovalId>) {
        let Some(call) = &self.call else { return };
        match returned_for {
            Some(approval) => call.return_for(approval),
            None => call.answer_at_once(),
        }
    }

    /// Lets the call run by itself, because no waiter may poll it for a while.
    pub(super) fn detach(&mut self) {
        self.call_future = None;
    }

    /// Returns the parsed answer of the call, if the call kept it.
    pub(super) fn parsed_answer(&self, frame: &Bytes) -> Option<Message> {
        self.call_future.as_ref()?.call()?.take_parsed_answer(frame)
    }

    /// Continues with a further request of the client about the call, which has a log level and
    /// progress of its own.
    pub(super) fn continue_with(&self, log_level: Option<LogLevel>) {
        self.stream().set_log_level(log_level);
        if let Some(call) = &self.call {
            call.restart_progress();
        }
    }

    /// Returns the next event. Cancel-safe.
    pub async fn next(&mut self) -> StreamItem {
        let next = match &mut self.call_future {
            Some(call) => self.reader.next_while_driving(call).await,
            None => self.reader.next().await,
        };
        if let StreamItem::Event(event) = &next {
            self.lease.prove();
            self.answered |= event.kind == EventKind::Answer;
        }
        next
    }

    /// Refuses to continue, if a new request like this one would be refused.
    pub(super) fn recheck_access(
        &self,
        subject: &Subject,
        request: &Message,
    ) -> Result<(), Refusal> {
        let message = stateless::to_session_request(request, &self.id)?;
        self.session().recheck_access(subject, &message, "retries")
    }

    pub(super) fn stream(&self) -> &Arc<EventStream> {
        &self.reader.stream
    }

    /// Returns whether the call is still in flight.
    pub(super) fn is_under_way(&self) -> bool {
        self.session().has_in_flight(&self.id)
    }

    pub fn session(&self) -> &Arc<Session> {
        self.lease.session()
    }

    /// Returns whether the request has its pooled session to itself.
    pub(super) fn is_alone(&self) -> bool {
        self.lease.is_alone()
    }

    /// Answers a question of the backend for the client.
    pub(super) fn answer(&self, number: u64, answer: &Bytes) {
        if let Some(message) =
            tasks::decoded(handshake::success(&RequestId::from_u64(number), answer))
        {
            questions::handle_answer(self.session(), &message);
        }
    }

    /// Refuses a question of the backend that the client's request does not permit.
    pub(super) fn refuse_question(&self, number: u64, refusal: &Refusal) {
        questions::refuse(self.session(), number, refusal);
    }

    /// Returns whether the call needs the approval of a person.
    pub(super) fn is_held(&self) -> bool {
        self.call.as_ref().is_some_and(|call| call.is_held())
    }

    /// Returns the state of an approval that the call still waits for.
    pub(super) fn awaited_approval(&self) -> Option<ApprovalNotice> {
        let notice = self.call.as_ref()?.approval_notice()?;
        notice.is_waiting().then(|| notice.clone())
    }

    fn call(&self) -> Option<Arc<Call>> {
        self.call.clone().filter(|_| self.is_under_way())
    }
}

impl PendingCall for PendingExchange {
    fn session(&self) -> &Arc<Session> {
        self.lease.session()
    }

    fn next(&mut self) -> impl Future<Output = StreamItem> + Send {
        self.next()
    }
}

impl Drop for PendingExchange {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        if self.is_under_way() {
            self.lease.retire();
        }
        self.session().cancel_request(&self.id);
    }
}

/// Promotion of a call to a task, and its time.
#[derive(Debug)]
pub(super) struct PendingPromotion {
    /// The time of the promotion. `None`: the broker promotes the call only if its backend makes a
    /// task of it.
    due: Option<Instant>,
    /// The call, if its client accepts a task as the answer.
    call: Option<Arc<Call>>,
    attempt: Option<oneshot::Receiver<PromotionResult>>,
}

/// Result of an attempt.
#[derive(Debug)]
enum PromotionResult {
    Task(UnannouncedTask),
    /// The exchange, which continues unchanged.
    Unchanged(PendingExchange),
}

impl PendingPromotion {
    /// Prepares the promotion of a call `after` this time. `None`: the broker promotes a call only
    /// if its backend makes a task of it.
    pub(super) fn new(
        pending_call: Option<&PendingExchange>,
        acceptance: TaskAcceptance,
        after: Option<Duration>,
    ) -> Self {
        let is_accepted = acceptance == TaskAcceptance::Accepted;
        let call = pending_call
            .filter(|pending_call| pending_call.session().kind.accepts_tasks())
            .and_then(PendingExchange::call);
        // An earlier request with another capability may have started the call.
        if let Some(handoff) = call.as_ref().and_then(|call| call.task_handoff.as_ref()) {
            handoff.set_accepting(is_accepted);
        }
        let call = call.filter(|_| is_accepted);
        Self {
            due: after.filter(|_| call.is_some()).map(|after| Instant::now() + after),
            call,
            attempt: None,
        }
    }

    /// Resolves when it is time to make a task of the call. Cancel-safe.
    pub(super) async fn due(&self) {
        let Some(handoff) = self.call.as_ref().and_then(|call| call.task_handoff.as_ref()) else {
            return std::future::pending().await;
        };
        match self.due {
            Some(due) => {
                let _sooner = tokio::time::timeout_at(due.into(), handoff.wait_for_offer()).await;
            }
            None => handoff.wait_for_offer().await,
        }
    }

    /// Begins to make a task of the call. If the exchange is dropped meanwhile, the call or the
    /// task is cancelled.
    pub(super) fn attempt(
        &mut self,
        tasks: &Arc<TaskManager>,
        request: &super::StatelessRequest,
        mut pending_call: PendingExchange,
    ) {
        pending_call.detach();
        let (promoted_tx, attempt) = oneshot::channel();
        self.attempt = Some(attempt);
        let (call, message) =
            (self.call.clone(), stateless::to_session_request(&request.message, &pending_call.id));
        let (tasks, running) = (tasks.clone(), pending_call.session().shared.running.clone());
        running.spawn(async move {
            let promoted = match (call, message) {
                (Some(call), Ok(message)) => match tasks.promote(message, pending_call, call).await
                {
                    Ok(task) => PromotionResult::Task(task),
                    Err(pending_call) => PromotionResult::Unchanged(pending_call),
                },
                _ => PromotionResult::Unchanged(pending_call),
            };
            drop(promoted_tx.send(promoted)); // without a receiver it is cancelled
        });
    }

    /// Returns the result of the attempt in progress. `None` without one. Cancel-safe.
    pub(super) async fn outcome(
        &mut self,
    ) -> Option<Result<UnannouncedTask, Option<PendingExchange>>> {
        let outcome = self.attempt.as_mut()?.await;
        self.attempt = None;
        Some(match outcome {
            Ok(PromotionResult::Task(task)) => Ok(task),
            Ok(PromotionResult::Unchanged(pending_call)) => {
                // The call itself follows the backend's task.
                if let Some(handoff) =
                    self.call.as_ref().and_then(|call| call.task_handoff.as_ref())
                {
                    drop(handoff.take());
                }
                self.due = self.due.map(|_| Instant::now() + PROMOTE_RETRY_INTERVAL);
                Err(Some(pending_call))
            }
            Err(_) => Err(None),
        })
    }
}

const _: () = assert!(PROMOTE_RETRY_INTERVAL.as_millis() >= 1_000); // a store that is away is not queried all the time
