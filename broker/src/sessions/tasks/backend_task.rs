//! Tasks that a backend makes for calls of the broker. The run polls such a task and fetches its
//! outcome.
//!
//! The backend's task id never reaches a client. The record holds it, so that the next owner of the
//! task can poll on. The run polls no more often than the backend allows (`pollInterval`), unless
//! the backend sends a notification about the task.

use std::{sync::Arc, time::Instant};

use protocol::{
    envelope::{Kind, Message},
    error::{ErrorKind, Refusal},
    json,
    method::Method,
    version::Version,
};
use records::{TaskStatus, TaskStep};
use rules::{
    link_sharing::LinkScope,
    task_polls::PolledTask,
    tasks::{self, BackendTask},
};
use serde::{Deserialize, Serialize};

use super::{
    outcome::RunOutcome,
    retry::RetryTimer,
    run::{TaskRun, TrackedBackendTask},
};
use crate::{
    auth::SealError,
    backends::link::{
        BackendSession, Link,
        connection::{Connection, requester::Requester},
        failure::Failure,
    },
    persistence::fault_point,
};

/// Address of the backend's session, which lets another process reach it again. The record holds it
/// sealed.
#[derive(Serialize, Deserialize)]
struct SealedBackendSession {
    url: String,
    /// `Mcp-Session-Id` of the backend.
    session: String,
    version: String,
    /// True if the session at the backend belongs to the task alone, and ends with it.
    own: bool,
}

impl SealedBackendSession {
    fn of(link: &Link, connection: &Connection) -> Option<Self> {
        let BackendSession { url, id, version } = link.backend_session(connection)?;
        Some(Self {
            url,
            session: id,
            version: version.as_str().to_owned(),
            own: matches!(link.scope, LinkScope::Task(_)),
        })
    }

    /// Makes a task's own link resume the session. The link of a client's session resumes by
    /// itself.
    fn resume_on(self, link: &Link) {
        if !matches!(link.scope, LinkScope::Task(_)) || link.live().is_some() {
            return;
        }
        let Some(version) = Version::parse(&self.version) else { return };
        link.resume_with(
            BackendSession { url: self.url, id: self.session, version },
            first_wire_id(),
        );
        if !self.own {
            link.keep_backend_session();
        }
    }
}

/// Returns the first request id of a resumed session. Request ids must not repeat within a session
/// of the backend. The client's own link and other tasks may use that session at the same time. The
/// range is random, above all ids that those use, and below the largest integer of a double.
fn first_wire_id() -> u64 {
    (1 << 52) | (u64::from(rand::random_range(0..1_u32 << 20)) << 32)
}

fn seal_context(run: &TaskRun) -> String {
    format!("task {}", run.id)
}

impl TaskRun {
    /// Notes that the backend made a task of its own. The connection calls this before it delivers
    /// the answer, because the backend's next message may be about the task.
    pub(super) fn track_backend_task(
        &self,
        link: &Arc<Link>,
        connection: &Connection,
        backend_task: &str,
    ) {
        let unstored = step(self, link, connection, backend_task)
            .inspect_err(|error| tracing::error!(task = %self.digest(), tenant = %self.tenant.id, backend = %self.record.backend, %error, "the location of a backend's task cannot be stored"))
            .ok();
        {
            let mut state = self.lock();
            if !state.creating {
                return;
            }
            state.backend_task = Some(TrackedBackendTask {
                id: backend_task.to_owned(),
                link: link.clone(),
                unstored,
            });
            state.creating = false;
        }
        self.tasks.record_backend_task(self, link, backend_task);
        self.changed.notify_waiters();
    }

    /// Notes a task that the backend made without a request for one.
    pub(super) fn track_unrequested_task(
        &self,
        link: &Arc<Link>,
        connection: &Connection,
        backend_task: &str,
    ) {
        self.lock().creating = true;
        self.track_backend_task(link, connection, backend_task);
    }
}

/// Returns the step to store for a task of the backend, with its session sealed.
fn step(
    run: &TaskRun,
    link: &Link,
    connection: &Connection,
    backend_task: &str,
) -> Result<TaskStep, SealError> {
    let backend_session =
        serde_json::to_vec(&SealedBackendSession::of(link, connection)).unwrap_or_default();
    let link = run.shared.persistence.seal.seal(&seal_context(run), &backend_session)?;
    Ok(TaskStep::Delegated { backend_task: backend_task.to_owned(), link })
}

/// Stores a task that the backend has just made, and watches it.
pub(super) async fn follow(
    run: &Arc<TaskRun>,
    link: &Arc<Link>,
    connection: &Connection,
    task: BackendTask,
) -> RunOutcome {
    let recorded = run.lock().backend_task.as_ref().and_then(|tracked| tracked.unstored.clone());
    let step = match recorded.map_or_else(|| step(run, link, connection, &task.id), Ok) {
        Ok(step) => step,
        Err(error) => {
            return RunOutcome::Refused(Refusal::new(ErrorKind::Internal, error.to_string()));
        }
    };
    if let Err(stop) = run.commit_step(step).await {
        return RunOutcome::Stopped(stop);
    }
    if let Some(tracked) = &mut run.lock().backend_task {
        tracked.unstored = None;
    }
    fault_point::hit("task.delegated.committed");
    watch(run, link, task).await
}

/// Watches a task of the backend that another process left.
pub(super) async fn resume(run: &Arc<TaskRun>, backend_task: String, sealed: &[u8]) -> RunOutcome {
    let opened = run.shared.persistence.seal.open(&seal_context(run), sealed);
    let backend_session: Option<SealedBackendSession> =
        opened.ok().and_then(|text| serde_json::from_slice(&text).ok()).flatten();
    let mut retry_timer = RetryTimer::new(run.timeouts().call);
    let link = loop {
        match run.link() {
            Ok(link) => break link,
            // The backend may not be registered yet, shortly after the start.
            Err(_) if retry_timer.wait(None).await => {}
            Err(_) => return unknown(run, "the backend of the task was removed"),
        }
    };
    if let Some(backend_session) = backend_session {
        backend_session.resume_on(&link);
    }
    run.lock().backend_task =
        Some(TrackedBackendTask { id: backend_task.clone(), link: link.clone(), unstored: None });
    run.tasks.record_backend_task(run, &link, &backend_task);
    let task = BackendTask {
        id: backend_task,
        status: TaskStatus::Working,
        message: None,
        poll_interval: Some(std::time::Duration::ZERO),
    };
    watch(run, &link, task).await
}

fn unknown(run: &TaskRun, why: &str) -> RunOutcome {
    let text =
        format!("the outcome of the task at backend {} is unknown: {why}", run.record.backend);
    RunOutcome::Refused(Refusal::new(ErrorKind::OutcomeUnknown, text))
}

/// Cancels a task that the backend describes in another way than MCP does, or as another task.
/// Returns the end of its run.
pub(super) async fn unreadable(run: &TaskRun, link: &Arc<Link>) -> RunOutcome {
    let tracked = run.lock().backend_task.as_ref().map(|tracked| tracked.id.clone());
    if let Some(id) = tracked {
        cancel(run, link, &id).await;
    }
    let failure = Failure::Protocol("the state of its task cannot be read".to_owned());
    RunOutcome::Refused(link.backend.report_failure(&failure))
}

async fn watch(run: &Arc<TaskRun>, link: &Arc<Link>, mut task: BackendTask) -> RunOutcome {
    loop {
        match task.status {
            TaskStatus::Cancelled => return RunOutcome::CancelledByBackend,
            TaskStatus::Working => {
                let wait = task.poll_interval.unwrap_or(run.shared.task_settings().poll_interval);
                // The next step is the same after the interval and after a notification.
                let _sooner = tokio::time::timeout(wait, run.backend_notified.notified()).await;
            }
            // MCP 2025-11-25, Tasks: the backend sends what it needs on the stream of
            // `tasks/result`.
            TaskStatus::InputRequired | TaskStatus::Completed | TaskStatus::Failed => {
                match request_about_task(run, link, &task.id, Method::TasksResult).await {
                    Err(ending) => return ending,
                    Ok(answer) if !tasks::is_unknown_task(&answer) => {
                        return RunOutcome::Answered(
                            answer,
                            Some(task).filter(|task| task.status.is_finished()),
                        );
                    }
                    // The error can mean an invalid parameter of the call or an unknown task. If
                    // the backend still knows the task, it means the call.
                    Ok(answer) => {
                        return match request_about_task(run, link, &task.id, Method::TasksGet).await
                        {
                            Err(ending) => ending,
                            Ok(known) if known.kind == Kind::Error => {
                                unknown(run, "the backend does not know the task")
                            }
                            Ok(_) => RunOutcome::Answered(answer, None),
                        };
                    }
                }
            }
        }
        task = match request_about_task(run, link, &task.id, Method::TasksGet).await {
            Err(ending) => return ending,
            Ok(answer) => match PolledTask::read(&answer, &task.id) {
                PolledTask::Known(now) => now,
                PolledTask::NotShown => {
                    BackendTask { status: TaskStatus::Working, poll_interval: None, ..task }
                }
                PolledTask::Unknown => return unknown(run, "the backend does not know the task"),
                PolledTask::Unreadable => return unreadable(run, link).await,
            },
        };
    }
}

/// Sends a request about the backend's task, over as many connections as it needs.
async fn request_about_task(
    run: &Arc<TaskRun>,
    link: &Arc<Link>,
    backend_task: &str,
    method: Method,
) -> Result<Message, RunOutcome> {
    let params = format!("{{\"taskId\":{}}}", json::quote(backend_task));
    let requester: Arc<dyn Requester> = run.clone();
    let mut retry_timer = RetryTimer::new(run.timeouts().call);
    loop {
        let hint = match link.connection().await {
            Ok(connection) => {
                let asked = Instant::now();
                let request = connection.request_for(link, method, params.as_bytes(), &requester);
                let answer = match method {
                    Method::TasksResult => request.await,
                    _ => tokio::time::timeout(run.timeouts().control, request)
                        .await
                        .unwrap_or(Err(Failure::TimedOut(method))),
                };
                match answer {
                    Ok(answer) => return Ok(answer),
                    Err(failure) => {
                        // The same answer would come again.
                        if matches!(failure, Failure::TooLarge { .. }) {
                            return Err(RunOutcome::Refused(link.backend.report_failure(&failure)));
                        }
                        // The request may have waited long, so the retry time begins now.
                        let waited = asked.elapsed() > run.timeouts().control;
                        if method == Method::TasksResult && waited && !failure.was_not_seen() {
                            retry_timer.reset();
                        }
                        link.backend.report_failure(&failure).retry_after
                    }
                }
            }
            Err(refusal) => refusal.retry_after,
        };
        if link.is_closed() || !retry_timer.wait(hint).await {
            return Err(unknown(run, "the backend cannot be reached"));
        }
    }
}

/// Cancels the backend's task.
pub(super) async fn cancel(run: &TaskRun, link: &Arc<Link>, backend_task: &str) {
    match link.cancel_task(backend_task).await {
        Ok(answer) if answer.kind == Kind::Error => {
            tracing::debug!(task = %run.digest(), tenant = %run.tenant.id, backend = %run.record.backend, "the backend did not cancel its task")
        }
        Ok(_) => {}
        Err(failure) => {
            tracing::debug!(task = %run.digest(), tenant = %run.tenant.id, backend = %run.record.backend, %failure, "the broker could not send the cancellation of a task to the backend")
        }
    }
}
