//! One stateless request to a backend, and its answer.
//!
//! It ends in one of three ways:
//!
//! - its answer
//! - an answer that requests input, after which the exchange is suspended
//! - a drop, because its client hung up; the backend then gets a cancellation

mod input_requests;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use protocol::{
    envelope::{Kind, Message},
    error::{ErrorKind, Refusal},
    handshake,
    ids::{ApprovalId, RequestId},
    json,
    method::Method,
    splice::Splice,
    stateless::{inputs::InputResponses, is_cacheable, results::CacheHint},
};
use rules::{
    approvals::ApprovalNotice,
    endpoint_info::EndpointInfo,
    event_log::EventKind,
    limits::INPUT_GATHER_WAIT,
    log_level::{self, LogLevel},
    stateless, stateless_tasks,
};

use super::{
    StatelessClient, StatelessRequest, SuspensionId,
    pending_exchange::{PendingExchange, PendingPromotion},
    suspended::RequestedInput,
};
use crate::sessions::{
    call::CallFuture,
    session::{TaskAcceptance, local_requests::ensure_log_level},
    stream::{EventStream, StreamItem},
    submit,
    tasks::UnannouncedTask,
};

/// Next event of an exchange for its client.
#[derive(Debug)]
pub enum ExchangeEvent {
    /// A message about the request.
    Frame(Bytes),
    /// The last message, and its `error.code` if it is an error.
    Answer(Bytes, Option<i64>),
    /// The exchange ended without an answer.
    Ended,
}

/// One request in progress.
#[derive(Debug)]
pub struct Exchange {
    client: StatelessClient,
    request: Box<StatelessRequest>,
    server_info: Bytes,
    cache: Option<CacheHint>,
    round: u32,
    waiting: Option<PendingExchange>,
    /// Set when the call was to become a task from its start.
    as_task: bool,
    promoting: PendingPromotion,
    ready: VecDeque<Bytes>,
    /// Questions that the client left unanswered.
    missing: Vec<RequestedInput>,
    /// Answers that came before their questions, under the backend's keys.
    early_answers: Vec<(String, Bytes)>,
    /// Questions that have just come, and the time until which others are awaited.
    pending_questions: Option<(Vec<Message>, tokio::time::Instant)>,
}

/// The refusal of a request that was not started.
#[derive(Debug)]
pub struct RequestRefusal {
    pub refusal: Refusal,
    /// Whether the metrics have the request already.
    pub is_counted: bool,
}

impl From<Refusal> for RequestRefusal {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, is_counted: false }
    }
}

impl StatelessClient {
    /// Begins a request. A call that needs an approval waits for it, if its client was notified of
    /// that before (`returned_for` is the approval). An `Err` is the answer, and nothing was started.
    pub async fn start(
        &self,
        request: Box<StatelessRequest>,
        offer: &EndpointInfo,
        returned_for: Option<ApprovalId>,
    ) -> Result<Box<Exchange>, RequestRefusal> {
        let early_answers = InputResponses::parse(&request.message)?.answers;
        let as_task = self.shall_be_a_task(&request, offer)?;
        let waiting = self.submit(&request, offer, as_task).await?;
        waiting.limit_approval_wait(returned_for);
        let mut exchange = self.exchange(request, offer, 0, Some(waiting));
        (exchange.early_answers, exchange.as_task) = (early_answers, as_task);
        Ok(exchange)
    }

    /// Resumes a suspended request of this process.
    pub async fn resume(
        &self,
        request: Box<StatelessRequest>,
        suspension: &SuspensionId,
        offer: &EndpointInfo,
    ) -> Result<Box<Exchange>, RequestRefusal> {
        let responses = InputResponses::parse(&request.message)?;
        let mut suspended = self
            .take_suspended(suspension, &responses)
            .map_err(super::RequestStateError::refusal)??;
        let Some(waiting) = suspended.waiting.take() else {
            // The backend refused the first attempt before it did anything, so the request is sent
            // again.
            let round = suspended.round();
            return match self.submit(&request, offer, false).await {
                Ok(waiting) => Ok(self.exchange(request, offer, round, Some(waiting))),
                Err(refused) => {
                    self.suspend_again(suspension, suspended);
                    Err(refused)
                }
            };
        };
        let (mut missing, mut answered) = (Vec::new(), Vec::new());
        for input in std::mem::take(&mut suspended.questions) {
            match responses.answers.iter().find(|(key, _)| *key == input.request.key) {
                Some((_, answer)) => answered.push((input, answer)),
                None => missing.push(input),
            }
        }
        // After a refusal the drop of the exchange cancels the request at the backend.
        waiting.recheck_access(&self.caller.subject, &request.message)?;
        waiting.continue_with(request.log_level);
        answered
            .iter()
            .filter_map(|(input, answer)| Some((input.number?, *answer)))
            .for_each(|(number, answer)| waiting.answer(number, answer));
        let mut exchange = self.exchange(request, offer, suspended.round(), Some(waiting));
        exchange.missing = missing;
        Ok(exchange)
    }

    fn exchange(
        &self,
        request: Box<StatelessRequest>,
        offer: &EndpointInfo,
        round: u32,
        waiting: Option<PendingExchange>,
    ) -> Box<Exchange> {
        let cache = is_cacheable(request.message.method).then_some(CacheHint::NONE);
        // A call that waits for an approval was not sent. The record of a task would show that.
        let is_held = waiting.as_ref().is_some_and(PendingExchange::is_held);
        let may_become_task = request.meta.tasks && offer.capabilities.tasks_tools_call && !is_held;
        Box::new(Exchange {
            promoting: PendingPromotion::new(
                waiting.as_ref(),
                TaskAcceptance::of(may_become_task),
                self.shared.task_settings().promotion_delay(),
            ),
            client: self.clone(),
            request,
            server_info: offer.server_info.clone(),
            cache,
            round,
            waiting,
            as_task: false,
            ready: VecDeque::new(),
            missing: Vec::new(),
            early_answers: Vec::new(),
            pending_questions: None,
        })
    }

    async fn submit(
        &self,
        request: &StatelessRequest,
        offer: &EndpointInfo,
        as_task: bool,
    ) -> Result<PendingExchange, RequestRefusal> {
        let lease = self.stateless.session_pools.lease(self, request, offer).await?;
        let (id, session) = (lease.next_id(), lease.session().clone());
        if let Some(level) = request.log_level.filter(|_| offer.capabilities.logging) {
            // Boxed, because it is rare and would enlarge the future of every call.
            Box::pin(ensure_log_level(&session, level)).await;
        }
        let mut message = stateless::to_session_request(&request.message, &id)?;
        if as_task {
            message = stateless_tasks::to_task_request(&message)?;
        }
        let stream = session.open_stream(vec![id.clone()], 0);
        stream.set_log_level(request.log_level);
        let reader = stream.read_from(0).map_err(|_| {
            Refusal::new(
                ErrorKind::Internal,
                "the broker cannot read the event stream of the request",
            )
        })?;
        let mut waiting = PendingExchange::new(lease, id, reader);
        let call_future = submit::submit_and_wait_for_start(&session, message, &stream)
            .await
            .map_err(|refusal| RequestRefusal { refusal, is_counted: true })?;
        if let Some(call) = call_future.as_ref().and_then(CallFuture::call)
            && !request.passed.is_empty()
        {
            call.set_forwarded_headers(request.passed.clone());
        }
        waiting.set_call_future(call_future);
        Ok(waiting)
    }
}

impl Exchange {
    pub fn id(&self) -> &RequestId {
        &self.request.id
    }

    pub fn shared(&self) -> &Arc<crate::sessions::shared::Shared> {
        &self.client.shared
    }

    /// Lets the call run by itself. The caller reads on only when its client has read, so no waiter
    /// polls the call.
    pub fn detach(&mut self) {
        if let Some(waiting) = &mut self.waiting {
            waiting.detach();
        }
    }

    /// Returns the stream that the exchange reads.
    pub fn stream(&self) -> Option<&Arc<EventStream>> {
        self.waiting.as_ref().map(PendingExchange::stream)
    }

    /// Returns the next event. Cancel-safe: a dropped future loses nothing.
    pub async fn next(&mut self) -> ExchangeEvent {
        let missing = std::mem::take(&mut self.missing);
        if let Some(step) = self.request_inputs(missing) {
            return step;
        }
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return ExchangeEvent::Frame(frame);
            }
            match self.promoting.outcome().await {
                Some(Ok(task)) => return self.became(task),
                Some(Err(waiting)) => self.waiting = waiting,
                None => {}
            }
            let Some(waiting) = &mut self.waiting else { return ExchangeEvent::Ended };
            let next = match &self.pending_questions {
                None => tokio::select! {
                    biased;
                    next = waiting.next() => Some(next),
                    () = self.promoting.due() => None,
                },
                Some((_, until)) => match tokio::time::timeout_at(*until, waiting.next()).await {
                    Ok(next) => Some(next),
                    Err(_) => match self.require_input() {
                        Some(step) => return step,
                        None => continue,
                    },
                },
            };
            let event = match next {
                Some(StreamItem::Event(event)) => event,
                None => {
                    if let Some(waiting) = self.waiting.take() {
                        self.promoting.attempt(&self.client.tasks, &self.request, waiting);
                    }
                    continue;
                }
                Some(StreamItem::Ended(_)) => {
                    self.waiting = None;
                    return ExchangeEvent::Ended;
                }
            };
            if event.kind == EventKind::Answer {
                return self.answer(&event.frame); // it did not wait for requested input
            }
            if let Some(message) = read(event.frame) {
                self.handle_message(message);
            }
        }
    }

    /// Handles a message that comes before the answer.
    fn handle_message(&mut self, message: Message) {
        if message.kind == Kind::Request {
            let (questions, _) = self.pending_questions.get_or_insert_with(|| {
                (Vec::new(), tokio::time::Instant::now() + INPUT_GATHER_WAIT)
            });
            questions.push(message);
        } else if let Some(withdrawn) = withdrawn(&message) {
            if let Some((questions, _)) = &mut self.pending_questions {
                questions.retain(|question| question.id.as_ref() != Some(&withdrawn));
            }
            self.pending_questions.take_if(|(questions, _)| questions.is_empty());
        } else if let Some(frame) = self.passing(&message) {
            self.ready.push_back(frame);
        }
    }

    /// Returns the answer for an exchange that ended without one, because its pooled session ended.
    pub fn given_up(&self) -> Bytes {
        let text = "the broker gave up the request: the backend may or may not have carried it out";
        let refusal = Refusal::new(ErrorKind::OutcomeUnknown, text);
        let request_id =
            self.shared().record_refusal(&refusal, None, Some(self.client.tenant.id.as_str()));
        stateless::refusal_response(&refusal, Some(&self.request.id), &request_id)
    }

    /// Returns the answer that a task was created.
    fn became(&self, task: UnannouncedTask) -> ExchangeEvent {
        let Some(task) = task.announce() else { return ExchangeEvent::Ended };
        let created =
            stateless_tasks::created_result(&task, self.shared().task_settings().poll_interval);
        let frame = handshake::success(&self.request.id, &created);
        ExchangeEvent::Answer(
            stateless_tasks::creation_response(&frame, &self.request.id, &self.server_info)
                .unwrap_or(frame),
            None,
        )
    }

    fn answer(&mut self, frame: &Bytes) -> ExchangeEvent {
        let waiting = self.waiting.take();
        if let Some(notice) = waiting.as_ref().and_then(PendingExchange::awaited_approval) {
            return self.wait_for_approval(&notice);
        }
        let parsed = waiting.and_then(|waiting| waiting.parsed_answer(frame));
        let Some(answer) = parsed.or_else(|| read(frame.clone())) else {
            return self.refuse(&Refusal::new(
                ErrorKind::BackendProtocolError,
                "the backend's answer cannot be read",
            ));
        };
        if self.as_task
            && answer.kind == Kind::Result
            && let Some(created) =
                stateless_tasks::creation_response(frame, &self.request.id, &self.server_info)
        {
            return ExchangeEvent::Answer(created, None);
        }
        if let Some(step) = self.urls_first(&answer) {
            return step;
        }
        let answer =
            stateless::to_client_response(&answer, &self.request.id, self.cache, &self.server_info);
        ExchangeEvent::Answer(answer.frame, answer.code)
    }

    /// Answers with the state by which the client comes back while the call waits for a person.
    fn wait_for_approval(&mut self, notice: &ApprovalNotice) -> ExchangeEvent {
        match self.client.approval_required(&self.request, notice, &self.server_info) {
            Ok(answer) => ExchangeEvent::Answer(answer, None),
            Err(refusal) => self.refuse(&refusal),
        }
    }

    fn refuse(&mut self, refusal: &Refusal) -> ExchangeEvent {
        self.waiting = None;
        let request_id =
            self.shared().record_refusal(refusal, None, Some(self.client.tenant.id.as_str()));
        ExchangeEvent::Answer(
            stateless::refusal_response(refusal, Some(&self.request.id), &request_id),
            Some(refusal.kind.code()),
        )
    }

    /// Returns a notification about the request, if its client wants it.
    fn passing(&self, message: &Message) -> Option<Bytes> {
        match message.method {
            Method::Progress => {
                let token =
                    self.request.message.bytes(self.request.message.fields.meta_progress_token)?;
                Some(
                    Splice::new(&message.frame)
                        .replace(message.fields.progress_token?, token.to_vec())
                        .finish(),
                )
            }
            Method::LogMessage => {
                let wanted = self.request.log_level?;
                let level =
                    message.text(message.fields.level).and_then(|level| LogLevel::parse(&level));
                log_level::passes(level, Some(wanted)).then(|| message.frame.clone())
            }
            // A completed elicitation shows when the request continues. Other notifications have no
            // place here.
            _ => None,
        }
    }
}

fn read(frame: Bytes) -> Option<Message> {
    let limits = json::Limits::with_bytes_max(frame.len());
    Message::decode(frame, &limits).ok()
}

/// Returns the id of a question that the backend withdraws.
fn withdrawn(message: &Message) -> Option<RequestId> {
    let span = message.fields.request_id.filter(|_| message.method == Method::Cancelled)?;
    Some(RequestId::from_raw(span.slice(&message.frame)))
}

const _: () = assert!(INPUT_GATHER_WAIT.as_millis() < Duration::from_secs(1).as_millis());
