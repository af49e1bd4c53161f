//! What a client sends, once its session is known: requests, notifications, answers.

use std::{
    borrow::Cow,
    collections::hash_map::Entry,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use protocol::{
    envelope::{Message, OWN_META},
    error::{ErrorKind, Refusal},
    handshake,
    ids::{RequestId, TaskId},
    json,
    method::Method,
    phase::SessionPhase,
    splice::Splice,
};
use tokio_util::sync::CancellationToken;

use super::{
    Session,
    local_requests::{CancelScope, RequestContext},
};
use crate::{
    actors::{
        backend::Backend,
        call::{Call, CallFuture, TaskHandoff},
        policy::ArgumentsCheck,
        stream::EventStream,
        tasks::named_task,
    },
    boxed::in_place,
    metrics::RequestOutcome,
    rules::{
        endpoint::Endpoint,
        event_log::EventKind,
        routing::{self, Decision, Plan, ResourceTarget, TaskQuestion},
        tasks::IDEMPOTENCY_KEY,
    },
    telemetry::request,
};

/// A request that is not answered yet.
#[derive(Debug, Clone)]
pub(super) enum InFlight {
    /// On its way to a backend.
    Call(Arc<Call>),
    /// Worked on by the broker itself.
    Local(CancellationToken),
    /// The same, and all it does is wait for something stored, which the next owner of the session can do as well.
    Transferable { cancelled: CancellationToken, moved: CancellationToken },
    /// The same, and nothing cancels it.
    Uncancellable,
}

impl InFlight {
    /// Whoever owns the session next goes on with it.
    pub(super) fn hand_off(&self) {
        if let InFlight::Transferable { moved, .. } = self {
            moved.cancel();
        }
    }

    /// Nothing of it is lost when it goes on elsewhere.
    pub(super) fn is_transferable(&self) -> bool {
        matches!(self, InFlight::Transferable { .. })
    }

    /// It was not cancelled before.
    fn can_be_cancelled(&self) -> bool {
        match self {
            InFlight::Call(call) => !call.is_cancelled(),
            InFlight::Local(cancelled) | InFlight::Transferable { cancelled, .. } => {
                !cancelled.is_cancelled()
            }
            InFlight::Uncancellable => false,
        }
    }

    pub(super) fn cancel(&self, reason: Option<Bytes>) {
        match self {
            InFlight::Call(call) => call.cancel(reason),
            InFlight::Local(cancelled) | InFlight::Transferable { cancelled, .. } => {
                cancelled.cancel()
            }
            InFlight::Uncancellable => {}
        }
    }
}

/// An answer on its way into its stream.
pub struct AnswerDelivery(Arc<Session>);

impl Drop for AnswerDelivery {
    fn drop(&mut self) {
        self.0.answers_in_delivery.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Session {
    /// Takes a request. Its answer comes on `stream`; an `Err` is the answer, and nothing was begun.
    pub fn admit(
        self: &Arc<Self>,
        message: Message,
        stream: &Arc<EventStream>,
    ) -> Result<(), Refusal> {
        self.handle_request(message, stream).map(drop) // what is dropped goes on by itself
    }

    /// [`Session::admit`] for who waits for the answer and can carry out meanwhile what has to be done for it.
    pub fn handle_request(
        self: &Arc<Self>,
        message: Message,
        stream: &Arc<EventStream>,
    ) -> Result<Option<CallFuture>, Refusal> {
        let request = self.begin_observation(&message);
        request::within(request, || self.handle_observed(message, stream))
    }

    fn handle_observed(
        self: &Arc<Self>,
        message: Message,
        stream: &Arc<EventStream>,
    ) -> Result<Option<CallFuture>, Refusal> {
        let begun = Instant::now();
        let method = message.method;
        let result = self.dispatch(message, stream, begun);
        if let Err(refusal) = &result {
            match refusal.kind {
                ErrorKind::SessionElsewhere => self.discard_observation(),
                kind => {
                    request::with_current(|request| request.refuse(kind));
                }
            }
            self.request_finished(method, RequestOutcome::Refused, begun.elapsed());
        }
        result
    }

    /// [`Session::handle_request`] for a connection, whose requests can not be led elsewhere: it waits for as long as it is open
    /// whether the session leaves.
    pub async fn handle_request_after_quiesce(
        self: &Arc<Self>,
        message: Message,
        stream: &Arc<EventStream>,
    ) -> Result<Option<CallFuture>, Refusal> {
        if !self.shared.draining.is_cancelled() {
            return self.handle_request(message, stream);
        }
        loop {
            self.wait_while_quiescing().await;
            match self.handle_request(message.clone(), stream) {
                // Another attempt to give it away has begun.
                Err(refusal)
                    if refusal.kind == ErrorKind::SessionElsewhere && !self.is_leaving() => {}
                taken => return taken,
            }
        }
    }

    fn dispatch(
        self: &Arc<Self>,
        mut message: Message,
        stream: &Arc<EventStream>,
        begun: Instant,
    ) -> Result<Option<CallFuture>, Refusal> {
        let id = message
            .id
            .clone()
            .ok_or_else(|| Refusal::new(ErrorKind::InvalidRequest, "a request has an id"))?;
        // Before any work: nothing of this looks further than a few numbers. A ping only asks whether somebody is there.
        if message.method != Method::Ping {
            self.shared.overload.admits()?;
        }
        self.check_phase_and_id(&message, &id)?;
        self.tenant.take_budget(&self.caller.principal)?;
        if message.fields.meta_has_own {
            // What makes the same call the same task is taken out with the task.
            let is_task = message.fields.task.is_some();
            message = without_own_meta(&message, |key| is_task && key == IDEMPOTENCY_KEY)?;
        }
        let catalog = self.tenant.catalog();
        let decide = |message: &Message| {
            routing::decide(message, &self.endpoint, &self.advertised, self.version, &catalog)
        };
        let mut decision =
            decide(&message).map_err(|refusal| self.unavailable_if_unlisted(refusal))?;
        if matches!(&decision, Decision::Forward(plan) if plan.drop_task) {
            message = without_own_meta(&without_task(message)?, |_| false)?;
            decision = decide(&message)?; // the edits are places in the bytes that changed
        }
        // Its policy, rates and room are this one's, even if another of that name takes its place meanwhile.
        let home = decision.goes_to().and_then(|backend| self.tenant.backend(backend));
        let mut check = None;
        if let Some(home) = &home {
            check = check_policy(home, &message, &decision)?;
            self.tenant.take_backend_budget(home, decision.tool())?;
        }
        let method = message.method;
        let request = RequestContext { id: id.clone(), method, stream, started_at: begun };
        let begun = match decision {
            Decision::Answer(result) => {
                let result =
                    self.client_dialect().result(method, &result).map_or(result, Bytes::from);
                let _cut = stream.push(
                    Instant::now(),
                    EventKind::Answer,
                    handshake::success(&id, &result),
                );
                self.request_finished(method, RequestOutcome::Ok, begun.elapsed());
                Ok(())
            }
            Decision::Forward(plan) => {
                return self.start_call(message, request, plan, (home, check)).map(Some);
            }
            Decision::CreateTask(plan, target) => {
                self.note_backend(&plan.backend, Some(&target.tool));
                self.spawn_local_request(request, CancelScope::Nothing, |session| async move {
                    if let Some(check) = check {
                        check.run().await?;
                    }
                    session.create_task(message, id, plan, target).await
                })
            }
            Decision::Task(question) => {
                let task = named_task(&message)?;
                match question {
                    TaskQuestion::State => {
                        self.spawn_local_request(request, CancelScope::Wait, |session| {
                            session.task_state(task)
                        })
                    }
                    TaskQuestion::Cancel => {
                        self.spawn_local_request(request, CancelScope::Wait, |session| {
                            session.cancel_task(task)
                        })
                    }
                    TaskQuestion::Result => self.await_task(request, task),
                }
            }
            Decision::SetLevel(level) => {
                self.spawn_local_request(request, CancelScope::Wait, |session| {
                    session.set_level(level)
                })
            }
            Decision::Subscribe(target) => {
                self.spawn_local_request(request, CancelScope::Wait, |session| {
                    session.subscribe(target)
                })
            }
            Decision::Unsubscribe(target) => {
                self.spawn_local_request(request, CancelScope::Wait, |session| {
                    session.unsubscribe(target)
                })
            }
            Decision::ListTasks => {
                let cursor = message.text(message.fields.cursor).map(|cursor| cursor.into_owned());
                self.spawn_local_request(request, CancelScope::Wait, |session| {
                    session.list_tasks(cursor)
                })
            }
        };
        begun.map(|()| None)
    }

    /// A resource of a stream of notifications is held to what a subscription is held to.
    pub(super) fn check_listen(&self, target: &ResourceTarget) -> Result<(), Refusal> {
        let Some(backend) = self.tenant.backend(&target.backend) else { return Ok(()) };
        self.tenant.take_backend_budget(&backend, None)?;
        backend.policy.admits_resource(&target.uri)
    }

    /// Answers a request with the outcome of a task, here or wherever the session is by then.
    pub(super) fn await_task(
        self: &Arc<Self>,
        request: RequestContext<'_>,
        task: TaskId,
    ) -> Result<(), Refusal> {
        let (id, stream) = (request.id.clone(), request.stream.clone());
        stream.note_task_wait(&id, &task);
        self.spawn_local_request(request, CancelScope::Work, |session| {
            session.task_result(task, id, stream)
        })
    }

    /// What a backend offers that this process has not reached once yet, nobody knows: a session from before a restart may
    /// well name some of it.
    fn unavailable_if_unlisted(&self, refusal: Refusal) -> Refusal {
        let missing = [
            ErrorKind::ToolNotFound,
            ErrorKind::PromptNotFound,
            ErrorKind::ResourceNotFound,
            ErrorKind::ReferenceNotFound,
        ];
        let aggregated = self.endpoint == Endpoint::Aggregated;
        if aggregated
            && missing.contains(&refusal.kind)
            && self.tenant.backends().iter().any(|backend| backend.is_never_reached())
        {
            let text = "this is known of no backend, and not every backend could be reached so far";
            return Refusal::new(ErrorKind::BackendUnavailable, text);
        }
        refusal
    }

    /// The phase allows the request, and no call in flight has its id.
    fn check_phase_and_id(&self, message: &Message, id: &RequestId) -> Result<(), Refusal> {
        let state = self.lock();
        state.check_accepting()?;
        state.phase.admits(message.method)?;
        if state.in_flight.contains_key(id) { Err(id_in_flight()) } else { Ok(()) }
    }

    fn start_call(
        self: &Arc<Self>,
        message: Message,
        request: RequestContext<'_>,
        plan: Plan,
        (home, check): (Option<Arc<Backend>>, Option<ArgumentsCheck>),
    ) -> Result<CallFuture, Refusal> {
        let Plan { backend, edits, names, .. } = plan;
        let RequestContext { id, stream, started_at: begun, .. } = request;
        self.note_backend(&backend, names.tool().map(|tool| tool.name.as_str()));
        let call =
            Call::new(&message, id.clone(), self, stream, (backend, home), names.tool(), begun);
        self.open_request(id, InFlight::Call(call.clone()))?;
        // On the heap first: what is around it would be moved with it, several times.
        let run = in_place(|| call.clone().run(message, edits, check.map(Box::new)));
        Ok(CallFuture::new(in_place(|| request::carried(run)), &self.shared.running)
            .with_call(call))
    }

    /// Counts a request in, if there is room for it and its id is free. [`Session::close_request`] counts it out.
    pub(super) fn open_request(&self, id: RequestId, in_flight: InFlight) -> Result<(), Refusal> {
        self.tenant.open_call()?;
        if let Err(refusal) = self.insert_in_flight(id, in_flight) {
            self.tenant.close_call();
            return Err(refusal);
        }
        self.shared.metrics.requests_pending(1);
        self.shared.overload.count_pending(true);
        Ok(())
    }

    fn insert_in_flight(&self, id: RequestId, in_flight: InFlight) -> Result<(), Refusal> {
        // Without a client of its own it serves many, each within the limit of the tenant.
        let max = if self.has_client {
            self.shared.config.limits.calls_in_flight_per_session
        } else {
            usize::MAX
        };
        let mut state = self.lock();
        state.check_accepting()?;
        if state.in_flight.len() >= max {
            self.shared.metrics.rate_limited("calls_in_flight_per_session");
            return Err(Refusal::new(
                ErrorKind::TooManyCalls,
                format!("the session has {max} calls in flight, which is its limit"),
            ));
        }
        match state.in_flight.entry(id) {
            Entry::Occupied(_) => Err(id_in_flight()),
            Entry::Vacant(free) => {
                free.insert(in_flight);
                Ok(())
            }
        }
    }

    /// The request with this id is over and its id free again. Its answer is being handed over for as long as the returned
    /// guard lives: a drain waits for that.
    pub fn close_request(self: &Arc<Self>, id: &RequestId) -> Option<AnswerDelivery> {
        let mut state = self.lock();
        let left = state.in_flight.remove(id)?;
        self.answers_in_delivery.fetch_add(1, Ordering::Relaxed);
        drop(state);
        match left {
            InFlight::Call(call) => self.release_call_slot(&call),
            _ => self.decrement_pending(),
        }
        Some(AnswerDelivery(self.clone()))
    }

    /// Nobody waits for an answer to this call any more, though its backend may be at it: its client has one, or a task. The
    /// place it has at its backend is another, which it keeps until that is done.
    pub(in crate::actors) fn release_call_slot(&self, call: &Call) {
        if call.task_handoff.as_ref().is_none_or(TaskHandoff::take_slot_release) {
            self.decrement_pending();
        }
    }

    fn decrement_pending(&self) {
        self.tenant.close_call();
        self.shared.metrics.requests_pending(-1);
        self.shared.overload.count_pending(false);
    }

    /// Counts a request of this client that is over.
    pub fn request_finished(&self, method: Method, outcome: RequestOutcome, took: Duration) {
        self.shared.metrics.request_finished(method, outcome, self.transport, took.as_secs_f64());
        self.shared.metrics.tenant_request_finished(&self.tenant.id, outcome);
        self.end_observation(outcome);
    }

    /// Takes a notification. It has no answer, whatever is wrong with it; an `Err` says that it was dropped and counted, as a
    /// rate is used up.
    pub fn handle_notification(self: &Arc<Self>, message: &Message) -> Result<(), Refusal> {
        if !self.is_rate_exempt(message) {
            self.tenant.take_notification_budget(&self.caller.principal)?;
        }
        let Some(message) = without_private_meta(message) else { return Ok(()) };
        let message = &*message;
        match message.method {
            Method::Initialized => self.initialized(),
            Method::Cancelled => self.cancelled(message),
            Method::Progress => self.question_progress(message),
            Method::RootsListChanged => self.roots_changed(message),
            Method::TasksStatus => self.client_task_status(message),
            _ => self.shared.metrics.dropped_notification("unknown"),
        }
        Ok(())
    }

    /// What frees something is heard however much was asked: once for each session, and once for each request, which was paid
    /// for.
    fn is_rate_exempt(&self, message: &Message) -> bool {
        match message.method {
            Method::Initialized => self.lock().phase == SessionPhase::AwaitingInitialized,
            Method::Cancelled => {
                let named = message
                    .fields
                    .request_id
                    .map(|span| RequestId::from_raw(span.slice(&message.frame)));
                named.is_some_and(|id| {
                    self.lock().in_flight.get(&id).is_some_and(InFlight::can_be_cancelled)
                })
            }
            _ => false,
        }
    }

    fn initialized(&self) {
        let held = {
            let mut state = self.lock();
            let Ok(phase) = state.phase.advance(SessionPhase::Ready) else { return };
            self.shared.metrics.phase(state.phase.name(), phase.name());
            state.phase = phase;
            std::mem::take(&mut state.held_changes)
        };
        held.into_iter().for_each(|method| self.send_list_changed(method));
    }

    /// The call with this id, for as long as it is on its way.
    pub(in crate::actors) fn call(&self, id: &RequestId) -> Option<Arc<Call>> {
        match self.lock().in_flight.get(id) {
            Some(InFlight::Call(call)) => Some(call.clone()),
            _ => None,
        }
    }

    /// Its client does not wait for the answer to this request any more, and the wire says so.
    pub fn cancel_request(&self, id: &RequestId) {
        let in_flight = self.lock().in_flight.get(id).cloned();
        if let Some(in_flight) = in_flight {
            in_flight.cancel(None);
        }
    }

    /// MCP 2025-11-25, Cancellation: unknown, finished and malformed ones are ignored.
    fn cancelled(&self, message: &Message) {
        let Some(span) = message.fields.request_id else { return };
        let in_flight =
            self.lock().in_flight.get(&RequestId::from_raw(span.slice(&message.frame))).cloned();
        // A task has a cancellation of its own (same section), which is why what makes one can not be cancelled.
        if let Some(in_flight) = in_flight {
            in_flight.cancel(reason(message));
        }
    }

    /// Relayed to the backends that were told this client has roots.
    fn roots_changed(&self, message: &Message) {
        if !self.client.roots_list_changed {
            return;
        }
        let links: Vec<_> = self.lock().links.values().cloned().collect();
        for connection in links
            .iter()
            .filter(|link| link.declared.roots_list_changed)
            .filter_map(|link| link.live())
        {
            connection.roots_changed(message.frame.clone());
        }
    }
}

/// A message without what is between its client and the broker, a key of that client among it. `None`: it can not be made.
pub(super) fn without_private_meta(message: &Message) -> Option<Cow<'_, Message>> {
    if !message.fields.meta_has_own {
        return Some(Cow::Borrowed(message));
    }
    without_own_meta(message, |_| false).ok().map(Cow::Owned)
}

pub(in crate::actors) fn without_own_meta(
    message: &Message,
    is_kept: impl Fn(&str) -> bool,
) -> Result<Message, Refusal> {
    let Some(meta) = message.fields.meta.filter(|_| message.fields.meta_has_own) else {
        return Ok(message.clone());
    };
    let frame = Splice::new(&message.frame)
        .retain_members(meta, |key| !key.starts_with(OWN_META) || is_kept(key))
        .finish();
    let limits = json::Limits { bytes_max: frame.len(), ..json::Limits::default() };
    Message::decode(frame, &limits).map_err(|rejected| rejected.refusal)
}

/// The request without its `task`, which was not offered to the client (MCP 2025-11-25, Tasks: such a call runs normally).
fn without_task(message: Message) -> Result<Message, Refusal> {
    let Some(params) = message.params else { return Ok(message) };
    let frame = Splice::new(&message.frame).remove_member(params, "task").finish();
    let limits = json::Limits { bytes_max: message.frame.len(), ..json::Limits::default() };
    Message::decode(frame, &limits).map_err(|rejected| rejected.refusal)
}

/// What the operator asks of requests to the backend it goes to.
fn check_policy(
    backend: &Backend,
    message: &Message,
    decision: &Decision,
) -> Result<Option<ArgumentsCheck>, Refusal> {
    let names = match decision {
        Decision::Forward(plan) | Decision::CreateTask(plan, _) => &plan.names,
        Decision::Subscribe(target) => {
            return backend.policy.admits_resource(&target.uri).map(|()| None);
        }
        _ => return Ok(None),
    };
    backend.policy.admits(names, message, || backend.lists.load_full())
}

fn id_in_flight() -> Refusal {
    Refusal::new(ErrorKind::InvalidRequest, "a request with this id is in flight already")
}

/// The `reason` of a cancellation as JSON text, if it is a string.
fn reason(message: &Message) -> Option<Bytes> {
    let params = message.params?.slice(&message.frame);
    let document = json::Document::parse(&params, &json::Limits::default()).ok()?;
    let reason =
        document.root().get("reason").filter(|value| value.kind() == json::ValueKind::String)?;
    Some(params.slice_ref(reason.raw()))
}
