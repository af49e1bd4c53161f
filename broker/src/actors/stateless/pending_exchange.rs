//! A request as it is on its way in a stand-in: what an exchange waits for, leaves here while its client gathers input, and
//! hands to a task.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use protocol::{envelope::Message, ids::RequestId};
use tokio::sync::oneshot;

use super::{session_pool::SessionLease, suspended::answer_frame};
use crate::{
    actors::{
        call::{Call, CallFuture},
        session::Session,
        stream::{EventStream, StreamCursor, StreamItem},
        tasks::{TaskManager, UnannouncedTask},
    },
    limits::PROMOTE_RETRY_INTERVAL,
    rules::{event_log::EventKind, stateless, tasks},
};

/// Dropped, it is cancelled.
#[derive(Debug)]
pub struct PendingExchange {
    lease: SessionLease,
    id: RequestId,
    reader: StreamCursor,
    /// The call, as long as whoever waits for it carries it out.
    carried: Option<CallFuture>,
    /// Its answer has come.
    answered: bool,
}

impl PendingExchange {
    pub(super) fn new(lease: SessionLease, id: RequestId, reader: StreamCursor) -> Self {
        Self { lease, id, reader, carried: None, answered: false }
    }

    /// Its call is carried out by who waits for what comes of it.
    pub(super) fn carry_out(&mut self, call: Option<CallFuture>) {
        self.carried = call;
    }

    /// Nobody may wait for it for a while: its call goes on by itself.
    pub(super) fn let_go(&mut self) {
        self.carried = None;
    }

    /// What was told as its answer, if that is known here.
    pub(super) fn told(&self, frame: &Bytes) -> Option<Message> {
        self.carried.as_ref()?.call()?.take_parsed_answer(frame)
    }

    /// What comes of it next. Cancel-safe.
    pub async fn next(&mut self) -> StreamItem {
        let next = match &mut self.carried {
            Some(call) => self.reader.next_while_driving(call).await,
            None => self.reader.next().await,
        };
        if let StreamItem::Event(event) = &next {
            self.lease.prove();
            self.answered |= event.kind == EventKind::Answer;
        }
        next
    }

    pub(super) fn stream(&self) -> &Arc<EventStream> {
        &self.reader.stream
    }

    /// Its call has not ended meanwhile.
    pub(super) fn is_under_way(&self) -> bool {
        self.session().has_in_flight(&self.id)
    }

    pub fn session(&self) -> &Arc<Session> {
        self.lease.session()
    }

    /// It has a connection to its backend to itself.
    pub(super) fn is_alone(&self) -> bool {
        self.lease.is_alone()
    }

    /// Answers a question of the backend for the client.
    pub(super) fn answer(&self, number: u64, answer: &Bytes) {
        if let Some(message) = tasks::decoded(answer_frame(number, answer)) {
            self.session().handle_answer(&message);
        }
    }

    fn call(&self) -> Option<Arc<Call>> {
        self.session().call(&self.id)
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

/// Whether and when a call becomes a task.
#[derive(Debug)]
pub(super) struct PendingPromotion {
    /// `None`: only where the backend makes a task of it.
    due: Option<Instant>,
    /// Of a call whose client takes a task for an answer.
    call: Option<Arc<Call>>,
    attempt: Option<oneshot::Receiver<PromotionResult>>,
}

/// What came of an attempt.
#[derive(Debug)]
enum PromotionResult {
    Task(UnannouncedTask),
    /// It goes on as it was.
    Unchanged(PendingExchange),
}

impl PendingPromotion {
    /// `may`: its client said so with this request.
    pub(super) fn new(
        under_way: Option<&PendingExchange>,
        may: bool,
        after: Option<Duration>,
    ) -> Self {
        let call = under_way
            .filter(|under_way| under_way.session().accepts_tasks)
            .and_then(PendingExchange::call);
        // It may have been begun by a request that said something else.
        if let Some(handover) = call.as_ref().and_then(|call| call.task_handoff.as_ref()) {
            handover.set_accepting(may);
        }
        let call = call.filter(|_| may);
        Self {
            due: after.filter(|_| call.is_some()).map(|after| Instant::now() + after),
            call,
            attempt: None,
        }
    }

    /// Resolves when it is time to make a task of the call. Cancel-safe.
    pub(super) async fn is_time(&self) {
        let Some(handover) = self.call.as_ref().and_then(|call| call.task_handoff.as_ref()) else {
            return std::future::pending().await;
        };
        match self.due {
            Some(due) => {
                let _sooner = tokio::time::timeout_at(due.into(), handover.wait_for_offer()).await;
            }
            None => handover.wait_for_offer().await,
        }
    }

    /// Begins to make a task of it: whoever goes away meanwhile takes the call, or the task, along.
    pub(super) fn attempt(
        &mut self,
        request: &super::StatelessRequest,
        mut under_way: PendingExchange,
    ) {
        under_way.let_go();
        let (tell, attempt) = oneshot::channel();
        self.attempt = Some(attempt);
        let (call, message) =
            (self.call.clone(), stateless::for_session(&request.message, &under_way.id));
        let running = under_way.session().shared.running.clone();
        running.spawn(async move {
            let promoted = match (call, message) {
                (Some(call), Ok(message)) => {
                    match TaskManager::promote(message, under_way, call).await {
                        Ok(task) => PromotionResult::Task(task),
                        Err(under_way) => PromotionResult::Unchanged(under_way),
                    }
                }
                _ => PromotionResult::Unchanged(under_way),
            };
            drop(tell.send(promoted)); // unheard: it is cancelled
        });
    }

    /// What came of the attempt that is being made. `None`: there is none. Cancel-safe.
    pub(super) async fn outcome(
        &mut self,
    ) -> Option<Result<UnannouncedTask, Option<PendingExchange>>> {
        let outcome = self.attempt.as_mut()?.await;
        self.attempt = None;
        Some(match outcome {
            Ok(PromotionResult::Task(task)) => Ok(task),
            Ok(PromotionResult::Unchanged(under_way)) => {
                // The backend's task is followed by the call itself.
                if let Some(handover) =
                    self.call.as_ref().and_then(|call| call.task_handoff.as_ref())
                {
                    drop(handover.take());
                }
                self.due = self.due.map(|_| Instant::now() + PROMOTE_RETRY_INTERVAL);
                Err(Some(under_way))
            }
            Err(_) => Err(None),
        })
    }
}

const _: () = assert!(PROMOTE_RETRY_INTERVAL.as_millis() >= 1_000); // a store that is away is not asked all the time
