//! Submission of a client's request: its checks, the routing decision, and the start of the work.
//!
//! The file stands above sessions, calls and tasks.
//!
//! The checks of a request have this order: overload, phase and id, rates, the decision of
//! [`routing`], the policy and the rate of the backend, and the number of requests in flight. An
//! `Err` is the answer, and nothing was started. Work that was started answers exactly once, on the
//! stream of the request:
//!
//! - a call to a backend is a [`CallFuture`], polled by its holder or by a task of the runtime
//!   ([`Call::run`]);
//! - a call that is to become a task is stored first, and runs by itself;
//! - a request that the broker answers itself is at most a local request of the session;
//! - the calls of a batch are submitted like requests of the client.
//!
//! A name that nothing offers may belong to a backend whose first connection attempt is not over.
//! Such a request waits for the attempt, as a local request, and is then decided again.

mod batch;
mod unknown_name;

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    handshake,
    ids::{PrincipalId, RequestId, TaskId},
    json,
    method::Method,
    splice::{self, Splice},
};
use rules::{
    access::{AccessCheck, ObjectKind},
    catalog::{Catalog, ListKind, VIA},
    event_log::EventKind,
    routing::{self, Decision, Plan, TaskOperation},
    tasks::IDEMPOTENCY_KEY,
};
use tokio::sync::oneshot;

use super::{
    access_checks, access_log,
    approvals::HeldCall,
    call::{Call, CallFuture, NewCall},
    connect_tool, kept_results, loop_guard,
    session::{
        CancelScope, InFlight, RequestContext, ResumedStream, Session, StreamResumption,
        count_refused,
        local_requests::{set_level, spawn_local_request},
        observation, release, subscriptions,
    },
    stream::{EventStream, PendingAnswer},
    task_host::NewTask,
    tasks::{list_tasks, named_task, task_state},
    tenant_access::prepare_search,
};
use crate::{
    backends::{
        backend::Backend,
        policy::{ArgumentsCheck, SchemaView},
    },
    boxed::box_pin_with,
    metrics::RequestOutcome,
    telemetry::request,
};

/// Submits a request, whose call runs by itself. The answer comes on `stream`. An `Err` is the
/// answer itself, and nothing was started.
pub fn submit_detached(
    session: &Arc<Session>,
    message: Message,
    stream: &Arc<EventStream>,
) -> Result<(), Refusal> {
    submit_request(session, message, stream).map(drop) // a dropped call continues by itself
}

/// Submits a request as [`submit_detached`] does. The caller polls the returned call while it waits
/// for the answer. A call that starts only after a wait runs by itself.
pub fn submit_request(
    session: &Arc<Session>,
    message: Message,
    stream: &Arc<EventStream>,
) -> Result<Option<CallFuture>, Refusal> {
    submit_observed(session, message, stream, None)
}

/// Submits a request as [`submit_request`] does, and waits until its call starts.
pub async fn submit_and_wait_for_start(
    session: &Arc<Session>,
    message: Message,
    stream: &Arc<EventStream>,
) -> Result<Option<CallFuture>, Refusal> {
    let mut deferred = None;
    let permit = session.tenant.wait_for_call().await;
    let call = submit_observed(session, message, stream, Some(&mut deferred))?;
    drop(permit);
    match deferred {
        None => Ok(call),
        // Without a call the request has its answer.
        Some(deferred) => Ok(deferred.await.ok().flatten()),
    }
}

/// Submits a request, and observes it for traces, metrics and the audit log.
fn submit_observed(
    session: &Arc<Session>,
    message: Message,
    stream: &Arc<EventStream>,
    deferred: Option<&mut DeferredCall>,
) -> Result<Option<CallFuture>, Refusal> {
    let started_at = Instant::now();
    let request = observation::start(session, &message, started_at);
    request::enter(request, || {
        let method = message.method;
        let result = check_and_start(session, message, stream, started_at, deferred);
        match &result {
            Ok(_) => {}
            // The session's next owner gets the request, observes it and counts it.
            Err(refusal) if refusal.kind == ErrorKind::SessionElsewhere => observation::discard(),
            Err(refusal) => {
                request::with_current(|request| request.refuse(refusal.kind));
                session.request_finished(method, RequestOutcome::Refused, started_at.elapsed());
            }
        }
        result
    })
}

/// Submits a request of a connection, which cannot go to another replica. The request waits while
/// the session may leave. If the session is elsewhere then, the client gets that refusal, and the
/// request is counted here.
pub async fn submit_after_quiesce(
    session: &Arc<Session>,
    message: Message,
    stream: &Arc<EventStream>,
) -> Result<Option<CallFuture>, Refusal> {
    let _permit = session.tenant.wait_for_call().await;
    let (method, started_at) = (message.method, Instant::now());
    let counted = |taken: Result<Option<CallFuture>, Refusal>| {
        taken.inspect_err(|refusal| {
            if refusal.kind == ErrorKind::SessionElsewhere {
                count_refused(session, method, started_at.elapsed());
            }
        })
    };
    if !session.shared.shutdown.is_draining() {
        return counted(submit_request(session, message, stream));
    }
    loop {
        release::wait_while_quiescing(session).await;
        match submit_request(session, message.clone(), stream) {
            // Another attempt to release the session has started.
            Err(refusal)
                if refusal.kind == ErrorKind::SessionElsewhere && !session.is_leaving() => {}
            taken => return counted(taken),
        }
    }
}

/// Makes the checks that do not depend on the backend, and starts the request.
fn check_and_start(
    session: &Arc<Session>,
    mut message: Message,
    stream: &Arc<EventStream>,
    started_at: Instant,
    deferred: Option<&mut DeferredCall>,
) -> Result<Option<CallFuture>, Refusal> {
    let id = message
        .id
        .clone()
        .ok_or_else(|| Refusal::new(ErrorKind::InvalidRequest, "a request must have an id"))?;
    // This check precedes any work, because it only compares a few numbers. A ping must work under
    // overload.
    if message.method != Method::Ping {
        session.shared.limiters.overload.admits()?;
    }
    session.check_phase_and_id(&message, &id)?;
    session.tenant.take_budget(&session.caller.principal)?;
    if message.fields.meta_has_own {
        // The idempotency key of a task stays, and leaves the call together with `task`.
        let is_task = message.fields.task.is_some();
        let is_list = ListKind::of_method(message.method).is_some();
        message = splice::without_own_meta(&message, |key| {
            is_task && key == IDEMPOTENCY_KEY || is_list && key == VIA
        })?;
    }
    let request = RequestContext { id, method: message.method, stream, started_at };
    decide_and_start(session, message, request, UnlistedName::Waits(deferred))
}

/// Treatment of a request for an unlisted name while a backend makes its first attempt to connect.
enum UnlistedName<'a> {
    /// The request waits for the attempt. The slot gets the receiver of its call, if the caller
    /// wants to poll the call.
    Waits(Option<&'a mut DeferredCall>),
    IsRefused,
}

/// The receiver of a call that starts after a wait. `None` if the request does not wait.
type DeferredCall = Option<oneshot::Receiver<Option<CallFuture>>>;

/// Decides where the request goes, checks it by the policy and the rates of its backend, and starts
/// it.
fn decide_and_start(
    session: &Arc<Session>,
    mut message: Message,
    request: RequestContext<'_>,
    unlisted: UnlistedName<'_>,
) -> Result<Option<CallFuture>, Refusal> {
    let subject = session.subject();
    // One snapshot: a policy that changes meanwhile is for the next request.
    let snapshot = session.catalog();
    let is_disabled = access_checks::is_disabled(message.method.name());
    let view = snapshot.view(&subject).filter(|_| !is_disabled);
    let catalog = view.as_ref().map_or(&snapshot.full, |view| &view.catalog);
    let listed = ListKind::of_method(message.method).map(|_| {
        session.tenant.read_lists_of(&session.endpoint, &session.caller.principal);
        catalog.offered_to(session.question_kinds)
    });
    let catalog = listed.as_ref().unwrap_or(catalog);
    prepare_search(catalog, message.method);
    let decide = |message: &Message, access: Option<&AccessCheck<'_>>| {
        let (endpoint, advertised) = (&session.endpoint, &session.agreement.advertised);
        routing::decide(message, endpoint, advertised, session.agreement.version, catalog, access)
    };
    let access = view.as_ref().map(|view| AccessCheck::new(view, &subject));
    let decided = decide(&message, access.as_ref());
    if let Some(access) = access.filter(|_| names_object(message.method)) {
        access_log::record(&session.tenant, &subject, access);
    }
    let mut decision = match decided {
        Ok(decision) => decision,
        Err(refusal) => {
            return unknown_name::refuse_or_wait(session, message, request, refusal, unlisted)
                .map(|()| None);
        }
    };
    if let Decision::Forward(plan) = &mut decision
        && plan.drop_task
    {
        let approval = plan.approval.take();
        message = splice::without_own_meta(&without_task(message)?, |_| false)?;
        decision = decide(&message, None)?; // the edits are spans of the bytes that changed
        decision.set_approval(approval);
    }
    if listed.is_some()
        && let Decision::Answer(list) = &mut decision
    {
        let behind = || catalog.marks(&session.endpoint);
        *list = loop_guard::with_marks(&session.tenant, &message, std::mem::take(list), behind);
    }
    // The policy, rates and permits are those of this backend, even if another of that name
    // replaces it meanwhile.
    let backend = decision.goes_to().and_then(|backend| session.tenant.backend(backend));
    let mut arguments_check = None;
    if let Some(backend) = &backend {
        if connect_tool::is_unlisted(backend, catalog, decision.tool()) {
            return connect_tool::answer(session, request, backend.clone()).map(|()| None);
        }
        let (principal, full) = (&session.caller.principal, &snapshot.full);
        arguments_check = check_policy(backend, principal, full, &message, &decision)?;
        session.tenant.take_backend_budget(backend, decision.tool())?;
    }
    start(session, message, request, decision, CheckedBackend { backend, arguments_check })
}

/// The backend of a request that its policy and its rate admitted.
struct CheckedBackend {
    /// `None` for a request that the broker answers itself, and if the backend is not registered
    /// any more.
    backend: Option<Arc<Backend>>,
    /// The validation of the arguments, if it is too expensive for this thread.
    arguments_check: Option<ArgumentsCheck>,
}

/// Starts what was decided.
fn start(
    session: &Arc<Session>,
    message: Message,
    request: RequestContext<'_>,
    decision: Decision,
    checked: CheckedBackend,
) -> Result<Option<CallFuture>, Refusal> {
    match decision {
        Decision::Forward(plan) => {
            return start_call(session, message, request, plan, checked).map(Some);
        }
        Decision::Answer(result) => {
            push_answer(session, &request, &result);
            Ok(())
        }
        Decision::KeptResult(page) => {
            spawn_local_request(session, request, CancelScope::Wait, |session| {
                kept_results::read(session, page)
            })
        }
        Decision::Batch(calls) => batch::start(session, request, *calls, &message),
        Decision::CreateTask(plan, target) => {
            let task = NewTask { message, id: request.id.clone(), plan, target };
            create_task(session, request, task, checked.arguments_check)
        }
        Decision::Task(operation) => {
            let task = named_task(&message)?;
            start_task_operation(session, request, operation, task)
        }
        Decision::ListTasks => {
            let cursor = message.text(message.fields.cursor).map(|cursor| cursor.into_owned());
            spawn_local_request(session, request, CancelScope::Wait, |session| {
                list_tasks(session, cursor)
            })
        }
        Decision::SetLevel(level) => {
            spawn_local_request(session, request, CancelScope::Wait, |session| {
                set_level(session, level)
            })
        }
        Decision::Subscribe(target) => {
            spawn_local_request(session, request, CancelScope::Wait, |session| {
                subscriptions::subscribe(session, target)
            })
        }
        Decision::Unsubscribe(target) => {
            spawn_local_request(session, request, CancelScope::Wait, |session| {
                subscriptions::unsubscribe(session, target)
            })
        }
    }?;
    Ok(None)
}

fn start_call(
    session: &Arc<Session>,
    message: Message,
    request: RequestContext<'_>,
    plan: Plan,
    checked: CheckedBackend,
) -> Result<CallFuture, Refusal> {
    let held = HeldCall::of_plan(session, &message, &plan)?;
    let tool = plan.target.tool();
    observation::record_backend(session, &plan.backend, tool.map(|tool| tool.name.as_str()));
    let CheckedBackend { backend, arguments_check } = checked;
    let call = Call::new(NewCall {
        session,
        message: &message,
        request: &request,
        plan: &plan,
        backend,
        held,
    });
    let Plan { edits, .. } = plan;
    session.open_request(request.id, InFlight::Call(call.clone()))?;
    let work = box_pin_with(|| call.clone().run(message, edits, arguments_check.map(Box::new)));
    Ok(CallFuture::new(work, &session.shared.running).with_call(call))
}

/// Answers a request at once with this result.
fn push_answer(session: &Session, request: &RequestContext<'_>, result: &Bytes) {
    let translated = session.client_dialect().result(request.method, result).map(Bytes::from);
    let answer = handshake::success(&request.id, translated.as_ref().unwrap_or(result));
    let _cut = request.stream.push(Instant::now(), EventKind::Answer, answer);
    let duration = request.started_at.elapsed();
    session.request_finished(request.method, RequestOutcome::Ok, duration);
}

/// Stores a call as a task, and answers with the task.
fn create_task(
    session: &Arc<Session>,
    request: RequestContext<'_>,
    task: NewTask,
    arguments_check: Option<ArgumentsCheck>,
) -> Result<(), Refusal> {
    let tool = task.plan.target.tool().map(|tool| tool.name.as_str());
    observation::record_backend(session, &task.plan.backend, tool);
    let host = session.shared.task_host()?;
    spawn_local_request(session, request, CancelScope::Nothing, |session| async move {
        if let Some(check) = arguments_check {
            check.run().await?;
        }
        host.create(session, task).await
    })
}

/// Starts an operation on a task that exists.
fn start_task_operation(
    session: &Arc<Session>,
    request: RequestContext<'_>,
    operation: TaskOperation,
    task: TaskId,
) -> Result<(), Refusal> {
    match operation {
        TaskOperation::State => {
            spawn_local_request(session, request, CancelScope::Wait, |session| {
                task_state(session, task)
            })
        }
        TaskOperation::Cancel => {
            let host = session.shared.task_host()?;
            spawn_local_request(session, request, CancelScope::Wait, |session| {
                host.cancel(session, task)
            })
        }
        TaskOperation::Result => await_task(session, request, task),
    }
}

/// Answers a request with the outcome of a task, here or at the session's next owner.
fn await_task(
    session: &Arc<Session>,
    request: RequestContext<'_>,
    task: TaskId,
) -> Result<(), Refusal> {
    let (id, stream) = (request.id.clone(), request.stream.clone());
    stream.record_task_wait(&id, &task);
    let host = session.shared.task_host()?;
    spawn_local_request(session, request, CancelScope::Work, |session| {
        host.outcome(session, task, id, stream)
    })
}

/// Resumes the stream that a GET names in `Last-Event-ID`. A request on it that an earlier owner
/// left without an answer gets one.
pub async fn resume(session: &Arc<Session>, last_event_id: &str) -> Result<ResumedStream, Refusal> {
    StreamResumption::new(session)
        .resume(last_event_id, |due, stream| answer_lost_request(session, due, stream))
        .await
}

/// Answers a request of an earlier owner: with the outcome of its task, or with an error that the
/// answer is lost.
fn answer_lost_request(session: &Arc<Session>, due: PendingAnswer, stream: &Arc<EventStream>) {
    let PendingAnswer { id, task } = due;
    let answer = match task {
        None => answer_lost_frame(session, &id),
        Some(task) => {
            let request = RequestContext {
                id: id.clone(),
                method: Method::TasksResult,
                stream,
                started_at: Instant::now(),
            };
            let Err(refusal) = await_task(session, request, task) else { return };
            session.refusal_frame(&refusal, Some(&id))
        }
    };
    let _answers_always_fit = stream.push(Instant::now(), EventKind::Answer, answer);
}

/// Returns the answer to a call that ended with the process that ran it.
fn answer_lost_frame(session: &Session, id: &RequestId) -> Bytes {
    let text = "the broker process that ran the request ended before the answer; the backend may have acted";
    session.refusal_frame(&Refusal::new(ErrorKind::OutcomeUnknown, text), Some(id))
}

/// Returns whether requests with this method use an object that access rules name.
fn names_object(method: Method) -> bool {
    ObjectKind::of_method(method).is_some() || method == Method::CompletionComplete
}

/// Checks a request against the policy of its backend. `full` has the lists that the backend shows
/// to the caller.
fn check_policy(
    backend: &Backend,
    principal: &PrincipalId,
    full: &Catalog,
    message: &Message,
    decision: &Decision,
) -> Result<Option<ArgumentsCheck>, Refusal> {
    backend.pins.admits(backend.is_never_reached())?;
    let plan = match decision {
        Decision::Forward(plan) | Decision::CreateTask(plan, _) => plan,
        Decision::Subscribe(target) => {
            return backend.policy.admits_resource(&target.uri).map(|()| None);
        }
        _ => return Ok(None),
    };
    let own = backend.principal_lists.of(principal);
    let policy = own.as_ref().map_or(&backend.policy, |own| &own.policy);
    let view = || {
        let current = match &own {
            Some(own) => own.lists.clone(),
            None => backend.lists.load_full()?,
        };
        let lists = full.backends.get(&backend.id)?.clone();
        let definition = full.definition(&backend.id, &plan.target.tool()?.name);
        Some(SchemaView { current, lists, definition })
    };
    policy.admits(&plan.target, message, plan.arguments.clone(), view)
}

/// Removes `task`, which was not offered to the client, from a request (MCP 2025-11-25, Tasks: such
/// a call runs normally).
fn without_task(message: Message) -> Result<Message, Refusal> {
    let Some(params) = message.params else { return Ok(message) };
    let frame = Splice::new(&message.frame).remove_member(params, "task").finish();
    let limits = json::Limits::with_bytes_max(message.frame.len());
    Message::decode(frame, &limits).map_err(|rejected| rejected.refusal)
}
