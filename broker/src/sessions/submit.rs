//! The journey of a client's request: its checks, the decision where it goes, and the start of the work.
//!
//! The file stands above sessions, calls and tasks.
//!
//! A request is admitted in this order: overload, phase and id, rates, the decision of [`routing`], the policy and the rate of the
//! backend, and the number of requests in flight. An `Err` is the answer, and nothing was begun. What was begun answers on the
//! stream that came with the request, exactly once:
//!
//! - a call to a backend is a [`CallFuture`], carried out by its holder or by itself ([`Call::run`]);
//! - a call that is to be a task is stored first, and runs by itself;
//! - what the broker answers itself is at most a local request of the session.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    handshake,
    ids::{RequestId, TaskId},
    json,
    method::Method,
    splice::Splice,
};

use super::{
    call::{Call, CallFuture},
    session::{CancelScope, InFlight, RequestContext, ResumedStream, Session, without_own_meta},
    stream::{EventStream, PendingAnswer},
    task_host::NewTask,
    tasks::named_task,
};
use crate::{
    backends::{backend::Backend, policy::ArgumentsCheck},
    boxed::in_place,
    metrics::RequestOutcome,
    rules::{
        event_log::EventKind,
        routing::{self, Decision, Plan, TaskQuestion},
        tasks::IDEMPOTENCY_KEY,
    },
    telemetry::request,
};

impl Session {
    /// Takes a request. The answer comes on `stream`. An `Err` is the answer itself, and nothing was begun.
    pub fn admit(
        self: &Arc<Self>,
        message: Message,
        stream: &Arc<EventStream>,
    ) -> Result<(), Refusal> {
        self.handle_request(message, stream).map(drop) // what is dropped goes on by itself
    }

    /// Takes a request as [`Session::admit`] does. The caller carries the call out while it waits for the answer.
    pub fn handle_request(
        self: &Arc<Self>,
        message: Message,
        stream: &Arc<EventStream>,
    ) -> Result<Option<CallFuture>, Refusal> {
        let request = self.begin_observation(&message);
        request::within(request, || {
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
        })
    }

    /// Takes a request of a connection, which cannot be led elsewhere. The request waits while the session may leave.
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
        match decision {
            Decision::Forward(plan) => {
                return self.start_call(message, request, plan, (home, check)).map(Some);
            }
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
            Decision::CreateTask(plan, target) => {
                self.note_backend(&plan.backend, Some(&target.tool));
                let (host, task) =
                    (self.shared.task_host()?, NewTask { message, id, plan, target });
                self.spawn_local_request(request, CancelScope::Nothing, |session| async move {
                    if let Some(check) = check {
                        check.run().await?;
                    }
                    host.create(session, task).await
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
                        let host = self.shared.task_host()?;
                        self.spawn_local_request(request, CancelScope::Wait, |session| {
                            host.cancel(session, task)
                        })
                    }
                    TaskQuestion::Result => self.await_task(request, task),
                }
            }
            Decision::ListTasks => {
                let cursor = message.text(message.fields.cursor).map(|cursor| cursor.into_owned());
                self.spawn_local_request(request, CancelScope::Wait, |session| {
                    session.list_tasks(cursor)
                })
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
        }?;
        Ok(None)
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

    /// Answers a request with the outcome of a task, here or wherever the session is by then.
    fn await_task(
        self: &Arc<Self>,
        request: RequestContext<'_>,
        task: TaskId,
    ) -> Result<(), Refusal> {
        let (id, stream) = (request.id.clone(), request.stream.clone());
        stream.note_task_wait(&id, &task);
        let host = self.shared.task_host()?;
        self.spawn_local_request(request, CancelScope::Work, |session| {
            host.outcome(session, task, id, stream)
        })
    }

    /// Opens the stream that a GET names in `Last-Event-ID`. Requests on it that an earlier owner left without an answer get one.
    pub async fn resume(self: &Arc<Self>, last_event_id: &str) -> Result<ResumedStream, Refusal> {
        self.open_stream_again(last_event_id, |due, stream| self.answer_lost_request(due, stream))
            .await
    }

    /// Answers a request of an earlier owner: with the outcome of its task, or with the word that the answer is lost.
    fn answer_lost_request(self: &Arc<Self>, due: PendingAnswer, stream: &Arc<EventStream>) {
        let PendingAnswer { id, task } = due;
        let answer = match task {
            None => self.answer_lost_frame(&id),
            Some(task) => {
                let request = RequestContext {
                    id: id.clone(),
                    method: Method::TasksResult,
                    stream,
                    started_at: Instant::now(),
                };
                let Err(refusal) = self.await_task(request, task) else { return };
                self.refusal_frame(&refusal, Some(&id))
            }
        };
        let _answers_always_fit = stream.push(Instant::now(), EventKind::Answer, answer);
    }

    /// Returns the answer to a call that ended with the process that carried it.
    fn answer_lost_frame(&self, id: &RequestId) -> Bytes {
        let text = "the broker that carried the request ended before the answer; the backend may have acted";
        self.refusal_frame(&Refusal::new(ErrorKind::OutcomeUnknown, text), Some(id))
    }
}

/// Holds a request to the policy of the backend that it goes to.
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

/// The request without its `task`, which was not offered to the client (MCP 2025-11-25, TaskManager: such a call runs normally).
fn without_task(message: Message) -> Result<Message, Refusal> {
    let Some(params) = message.params else { return Ok(message) };
    let frame = Splice::new(&message.frame).remove_member(params, "task").finish();
    let limits = json::Limits { bytes_max: message.frame.len(), ..json::Limits::default() };
    Message::decode(frame, &limits).map_err(|rejected| rejected.refusal)
}
