//! A client's request to one backend, which gets exactly one answer.
//!
//! Each call is one future ([`CallFuture`]), polled by the waiter for its answer or by a task of
//! the runtime. It ends only in [`Call::settle`], in one of these ways:
//!
//! - the backend's answer
//! - a refusal
//! - a result that it lacks the approval of a person
//! - a timeout
//! - no answer, after the client's cancellation

mod answer;
mod answer_rules;
mod approval;
mod call_clock;
mod call_future;
mod call_target;
mod interrupt;
mod open_call;
mod requester;
mod result_budget;
mod sent_call;
mod task_handoff;

use std::{
    pin::pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use bytes::Bytes;
use http::HeaderMap;
use parking_lot::Mutex;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    handshake,
    ids::{BackendId, RequestId},
    json::Span,
    method::Method,
};
use rules::{
    approvals::ApprovalNotice,
    event_log::EventKind,
    exposure::ResourceUris,
    retries::{self, AttemptOutcome},
    routing::Plan,
};

use self::{
    answer_rules::AnswerRule,
    approval::{AttemptEnd, CallApproval},
    call_clock::CallClock,
    call_target::CallTarget,
    interrupt::{Interrupt, InterruptReason},
    requester::ClientProgress,
    sent_call::SentCall,
};
pub use self::{
    call_future::CallFuture,
    task_handoff::{OfferedTask, TaskHandoff},
};
use super::{
    approvals::HeldCall,
    deadline_list::{DeadlineStatus, Expirable},
    session::{RequestContext, Session},
    stream::EventStream,
};
use crate::{
    backends::{
        backend::Backend,
        link::{
            connection::requester::{Requester, SentRequest},
            failure::Failure,
            request::BackendRequest,
        },
        policy::ArgumentsCheck,
    },
    telemetry::request::{self, RequestTelemetry},
};

/// One request in flight.
#[derive(Debug)]
pub struct Call {
    /// The id of the client's request.
    client_id: RequestId,
    method: Method,
    session: Arc<Session>,
    /// The stream that gets the answer.
    stream: Arc<EventStream>,
    target: CallTarget,
    /// The request as it was admitted. Present if an access policy decides about it again later.
    admitted: Option<Box<Message>>,
    /// The approval that the call needs, if it needs one.
    approval: Option<Box<CallApproval>>,
    progress: ClientProgress,
    clock: CallClock,
    /// What the backend got of the call so far.
    sent: SentCall,
    interrupt: Interrupt,
    /// Set when the call has ended.
    settled: AtomicBool,
    /// The rule for the answer, if the request has one.
    answer_rule: Option<Box<AnswerRule>>,
    /// The parsed answer, for an exchange that rewrites it.
    parsed_answer: Mutex<Option<Message>>,
    /// Headers of the client's request that the backend gets unchanged. Set before the call runs.
    forwarded_headers: OnceLock<HeaderMap>,
    /// The request as the log, its trace and the audit log record it.
    pub(in crate::sessions) observed: Option<Arc<RequestTelemetry>>,
    /// Handoff to a task. Present if the client accepts a task as the answer.
    pub(in crate::sessions) task_handoff: Option<TaskHandoff>,
}

/// An admitted request that becomes a call.
pub(in crate::sessions) struct NewCall<'a> {
    pub(in crate::sessions) session: &'a Arc<Session>,
    pub(in crate::sessions) message: &'a Message,
    pub(in crate::sessions) request: &'a RequestContext<'a>,
    pub(in crate::sessions) plan: &'a Plan,
    /// The backend that the plan names, if it is registered.
    pub(in crate::sessions) backend: Option<Arc<Backend>>,
    /// Present if a person has to approve the call.
    pub(in crate::sessions) held: Option<HeldCall>,
}

/// Settles the call when its future panics.
struct SettleOnPanic<'a>(&'a Arc<Call>);

impl Drop for SettleOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.settle(CallOutcome::Refused(Refusal::new(
                ErrorKind::Internal,
                "the call failed inside the broker",
            )));
        }
    }
}

/// Outcome of a call.
#[derive(Debug)]
pub enum CallOutcome {
    Answered(Message, ResourceUris),
    /// The call was not sent.
    NotApproved(ApprovalNotice),
    Refused(Refusal),
    Cancelled,
    TimedOut,
}

impl Call {
    pub(in crate::sessions) fn new(new: NewCall<'_>) -> Arc<Self> {
        let NewCall { session, message, request, plan, backend, held } = new;
        let method = message.method;
        let tool_name = plan.target.tool().map(|tool| tool.name.as_str());
        let deadline = session.tenant.deadline(backend.as_deref(), method, tool_name);
        let has_policy = session.tenant.has_policy(&session.endpoint);
        let accepts_task = session.kind.accepts_tasks() && method == Method::ToolsCall;
        Arc::new(Self {
            client_id: request.id.clone(),
            method,
            session: session.clone(),
            stream: request.stream.clone(),
            admitted: has_policy.then(|| Box::new(message.clone())),
            approval: held.map(|held| Box::new(CallApproval::new(held))),
            progress: ClientProgress::of(message),
            clock: CallClock::new(request.started_at, deadline),
            sent: SentCall::default(),
            interrupt: Interrupt::default(),
            settled: AtomicBool::new(false),
            answer_rule: AnswerRule::of(plan, backend.as_deref()).map(Box::new),
            target: CallTarget::new(method, plan, backend),
            parsed_answer: Mutex::new(None),
            forwarded_headers: OnceLock::new(),
            observed: request::current(),
            task_handoff: accepts_task.then(TaskHandoff::default),
        })
    }

    /// Returns the name of the backend that gets the call.
    pub(in crate::sessions) fn backend(&self) -> &BackendId {
        &self.target.backend
    }

    /// Runs the call to its end. The session holds it in its table already.
    pub async fn run(
        self: Arc<Self>,
        message: Message,
        edits: Vec<(Span, Vec<u8>)>,
        check: Option<Box<ArgumentsCheck>>,
    ) {
        let _answered = SettleOnPanic(&self);
        if self.interrupt.is_cancelled() {
            return self.settle(CallOutcome::Cancelled);
        }
        let _on_list =
            self.session.shared.deadlines.register(self.clone(), self.clock.first_deadline());
        let ending = {
            // The future is pinned where it is made: it is large, and the macro would move it.
            let mut relaying = pin!(self.relay(&message, &edits, check));
            // The answer comes first: if it is there, no other branch is polled.
            tokio::select! {
                biased;
                ending = &mut relaying => ending.unwrap_or_else(CallOutcome::Refused),
                cut = self.interrupt.interrupted() => match cut {
                    InterruptReason::Cancelled => CallOutcome::Cancelled,
                    InterruptReason::Expired => CallOutcome::TimedOut,
                },
            }
        };
        // A cancelled call gets no answer, even if the answer came with the same wakeup.
        self.settle(if self.interrupt.is_cancelled() { CallOutcome::Cancelled } else { ending });
    }

    /// Sets the headers that the backend gets unchanged. Called before the call runs.
    pub fn set_forwarded_headers(&self, headers: HeaderMap) {
        let _set_once = self.forwarded_headers.set(headers);
    }

    /// Returns the parsed answer of `frame`, so that it need not be parsed again.
    pub fn take_parsed_answer(&self, frame: &Bytes) -> Option<Message> {
        self.parsed_answer.lock().take().filter(|answer| {
            answer.frame.as_ptr() == frame.as_ptr() && answer.frame.len() == frame.len()
        })
    }

    /// Waits for a permit, then sends the call. The call is sent again where that is harmless and
    /// the backend's retry budget allows it.
    async fn relay(
        self: &Arc<Self>,
        message: &Message,
        edits: &[(Span, Vec<u8>)],
        check: Option<Box<ArgumentsCheck>>,
    ) -> Result<CallOutcome, Refusal> {
        if let Some(check) = check {
            // The check is rare and on the heap, because it would make every call's future larger.
            Box::pin(check.run()).await?;
        }
        if self.is_held()
            && let Some(notice) = Box::pin(self.await_approval()).await?
        {
            return Ok(CallOutcome::NotApproved(notice));
        }
        let backend = self
            .target
            .registered
            .as_ref()
            .ok_or_else(|| self.session.backend_gone(self.backend()))?;
        backend.check_breaker()?;
        backend.earn_retry();
        let (principal, session) = (&self.session.caller.principal, &self.session.key);
        let caller = self.session.tenant.call_owner(principal, session);
        let _permit = backend.acquire_permit(caller, self.permit_due()).await?;
        let mut retries = 0;
        loop {
            let (attempt, refusal) = match self.attempt(message, edits).await {
                Ok((answer, uris)) if self.is_ruled(&answer) => {
                    let (answer, uris) = Box::pin(self.apply_rule(answer, uris)).await?;
                    return Ok(CallOutcome::Answered(answer, uris));
                }
                Ok((answer, uris)) => return Ok(CallOutcome::Answered(answer, uris)),
                Err(AttemptEnd::NotApproved(notice)) => {
                    return Ok(CallOutcome::NotApproved(notice));
                }
                Err(AttemptEnd::Failed(attempt, refusal)) => (attempt, refusal),
            };
            let may_retry = retries::may_retry(attempt, self.target.is_repeatable, retries);
            if !may_retry || !backend.spend_retry() {
                return Err(refusal);
            }
            tokio::time::sleep(retries::backoff(retries, rand::random())).await;
            retries += 1;
        }
    }

    async fn attempt(
        self: &Arc<Self>,
        message: &Message,
        edits: &[(Span, Vec<u8>)],
    ) -> Result<(Message, ResourceUris), AttemptEnd> {
        let requester: Arc<dyn Requester> = self.clone();
        let over = |refusal| AttemptEnd::Failed(AttemptOutcome::Final, refusal);
        // A backend that forgot its session did not process the call. The call is sent once more
        // over a new session.
        for attempt in 0..2 {
            let link = self.session.link_to(self.backend()).map_err(over)?;
            link.backend.check_breaker().map_err(over)?;
            let connection = link.connection().await.map_err(unconnected)?;
            connection.permits(self.method).map_err(over)?;
            if self.is_held() {
                Box::pin(self.use_approval()).await?;
            }
            self.sent.set_link(link.clone());
            let sent_at = Instant::now();
            let answer = connection
                .exchange(&link, BackendRequest { message, edits, requester: &requester, sent_at })
                .await;
            let (answer, uris) = self.with_uris(answer);
            let over_at = Instant::now();
            let took = over_at - sent_at;
            link.backend.record_result(&connection, &answer, took, over_at);
            // A backend of 2026-07-28 may have received several requests, and each request is timed
            // there.
            if connection.stateless().is_none() {
                link.backend.record_latency(took);
            }
            // Calls that became tasks do not count.
            if !self.task_handoff.as_ref().is_some_and(TaskHandoff::is_done) {
                link.backend.record_call_duration(self.target.kind, &answer, took);
            }
            match answer {
                Ok(answer) => return Ok((answer, uris)),
                Err(Failure::SessionGone) if attempt == 0 => self.sent.forget(), // the connection has ended itself, the link opens another
                Err(failure) => {
                    if failure.was_not_seen() {
                        self.sent.forget();
                    }
                    return Err(AttemptEnd::Failed(
                        failure.attempt(),
                        link.backend.report_failure(&failure),
                    ));
                }
            }
        }
        Err(over(Failure::SessionGone.refusal(self.backend())))
    }

    /// Finds the URIs to rewrite in an answer. An answer in which they cannot be found, or in which
    /// two parsers could find different ones, is not MCP.
    fn with_uris(
        &self,
        answer: Result<Message, Failure>,
    ) -> (Result<Message, Failure>, ResourceUris) {
        let answer = answer.map(|answer| self.scanned(answer));
        let endpoint = &self.session.endpoint;
        let found = answer.as_ref().map(|answer| ResourceUris::find(answer, self.method, endpoint));
        match found.unwrap_or_else(|_| Ok(ResourceUris::default())) {
            Ok(uris) => (answer, uris),
            Err(error) => (Err(Failure::Protocol(error.to_string())), ResourceUris::default()),
        }
    }

    /// Ends the call. Every call ends here, once.
    fn settle(self: &Arc<Self>, ending: CallOutcome) {
        if self.settled.swap(true, Ordering::AcqRel) {
            return;
        }
        let now = Instant::now();
        let outcome = self.outcome(&ending);
        if matches!(ending, CallOutcome::Cancelled | CallOutcome::TimedOut) {
            self.send_cancelled();
        }
        match ending {
            CallOutcome::TimedOut => self.report_timeout(),
            CallOutcome::Cancelled => self.report_abandoned(),
            CallOutcome::Answered(..) | CallOutcome::NotApproved(_) | CallOutcome::Refused(_) => {}
        }
        let _settling = self.session.close_request(&self.client_id);
        match self.answer(ending) {
            Some(frame) => {
                let _cut = self.stream.push(now, EventKind::Answer, frame);
            }
            None => self.stream.abandon_answer(&self.client_id, now),
        }
        self.session.request_finished(self.method, outcome, self.clock.elapsed_at(now));
    }

    /// Records a timeout of the backend if the backend had at least half of the time. Otherwise the
    /// queue before it had it.
    fn report_timeout(&self) {
        let had = self.clock.elapsed_since_sent();
        if let Some(link) =
            self.sent.link_of_request().filter(|_| had >= self.clock.idle_timeout() / 2)
        {
            link.backend.record_timeout(had);
        }
    }

    /// Records an abandoned call, if the backend sent nothing at all for it. Otherwise a client
    /// that gives up is not the backend's fault.
    fn report_abandoned(&self) {
        let link = self.sent.link_of_request().filter(|_| self.clock.is_silent_since_sent());
        if let Some(link) = link {
            link.backend.record_abandoned(self.clock.elapsed_since_sent());
        }
    }

    /// Sends the backend a cancellation of the last request, once (MCP 2025-11-25, Cancellation).
    fn send_cancelled(&self) {
        let Some(SentRequest { connection, wire_id }) = self.sent.take_for_cancellation() else {
            return;
        };
        self.session.record_abandoned_call();
        let reason = self.interrupt.take_client_reason();
        let reason =
            reason.map(|reason| format!(",\"reason\":{}", String::from_utf8_lossy(&reason)));
        let params = format!("{{\"requestId\":{wire_id}{}}}", reason.unwrap_or_default());
        connection.send_later(handshake::notification(Method::Cancelled, Some(params.as_bytes())));
    }
}

impl Expirable for Call {
    fn deadline_status(&self, now: Instant) -> DeadlineStatus {
        if self.interrupt.is_expired()
            || self.task_handoff.as_ref().is_some_and(TaskHandoff::is_done)
        {
            return DeadlineStatus::Never;
        }
        self.clock.deadline_status(now)
    }

    fn expire(&self) {
        self.interrupt.expire();
    }
}

/// Returns the end of an attempt without a connection. Another attempt may follow, as no request was
/// sent. A refusal with a wait is final.
fn unconnected(refusal: Refusal) -> AttemptEnd {
    let again = refusal.kind == ErrorKind::BackendUnavailable && refusal.retry_after.is_none();
    let outcome = if again { AttemptOutcome::NotProcessed } else { AttemptOutcome::Final };
    AttemptEnd::Failed(outcome, refusal)
}
