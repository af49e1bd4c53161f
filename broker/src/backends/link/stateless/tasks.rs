//! Tasks that a stateless backend creates for calls (extension `io.modelcontextprotocol/tasks`).
//! The backend alone decides.
//!
//! The broker follows the task of a plain call to its end, and answers the call then. A task of the
//! broker stores the backend's task and polls it as with backends of 2025-11-25
//! (`sessions::tasks::backend_task`). Therefore the answers here have the form of that revision.
//! The client gets each input request of the task once, by its key. Each answer goes to the backend
//! as soon as it is there. A request that is gone from the task is withdrawn. If it comes back
//! without an answer, the client gets it again.

use std::{collections::HashSet, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{
    StreamExt,
    future::{BoxFuture, select_all},
    stream::FuturesUnordered,
};
use protocol::{
    envelope::{Kind, Message},
    json::{self, Document, ValueKind},
    method::Method,
    splice,
    stateless::inputs::{InputRequest, InputRequired},
};
use records::TaskStatus;
use rules::{
    limits::{BACKOFF_FIRST, BACKOFF_MAX, inputs::BACKEND_TASK_INPUTS_MAX},
    task_polls::PolledTask,
    tasks::{BackendTask, decoded},
};

use super::{
    inputs,
    requests::{self, for_the_requester},
};
use crate::backends::link::{
    Link,
    connection::{
        Connection,
        requester::{Requester, TaskFollower},
    },
    failure::Failure,
};

/// Handles a result that announces a task for a call.
pub(super) async fn created(
    connection: &Arc<Connection>,
    link: &Arc<Link>,
    requester: &Arc<dyn Requester>,
    answer: &Message,
) -> Result<Message, Failure> {
    let result = answer.bytes(answer.result).unwrap_or_default();
    let task = BackendTask::read(result)
        .ok_or_else(|| Failure::Protocol("the backend's task cannot be read".to_owned()))?;
    let mut unfinished = TaskCancelGuard { link, id: Some(task.id.clone()) };
    match requester.created_task(connection, &task).await {
        TaskFollower::Link => {
            let _counted = link.tasks.hold();
            let outcome = follow(link, requester, task).await?;
            unfinished.id = None;
            Ok(outcome)
        }
        TaskFollower::TakenOver => {
            unfinished.id = None;
            Ok(answer.clone()) // the call itself has no waiter any more
        }
        TaskFollower::Requester => {
            unfinished.id = None;
            let frame =
                [b"{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{\"task\":", result, b"}}"].concat();
            decoded(Bytes::from(frame))
                .ok_or_else(|| Failure::Protocol("the task cannot be read".to_owned()))
        }
    }
}

/// Returns the outcome of a task, as the answer to the call that created it.
pub(super) async fn result(
    link: &Arc<Link>,
    requester: &Arc<dyn Requester>,
    params: &[u8],
) -> Result<Message, Failure> {
    let id = task_id(params).ok_or_else(|| Failure::Protocol("the task has no id".to_owned()))?;
    let now = BackendTask {
        id,
        status: TaskStatus::Working,
        message: None,
        poll_interval: Some(Duration::ZERO),
    };
    follow(link, requester, now).await
}

fn task_id(params: &[u8]) -> Option<String> {
    let document = Document::parse(params, &json::Limits::with_bytes_max(params.len())).ok()?;
    Some(document.root().get("taskId")?.as_str()?.into_owned())
}

async fn follow(
    link: &Arc<Link>,
    requester: &Arc<dyn Requester>,
    mut task: BackendTask,
) -> Result<Message, Failure> {
    let mut inputs = TaskInputs::new(link, requester, &task.id);
    loop {
        let interval =
            task.poll_interval.unwrap_or(link.backend.context.task_settings().poll_interval);
        let polled = async {
            tokio::time::sleep(interval).await;
            state(link, requester, &task.id).await
        };
        let state = match inputs.attend_until(polled).await? {
            Ok(state) => state?,
            Err(refusal) => {
                // The task waits for an answer that will not come.
                drop(TaskCancelGuard { link, id: Some(task.id) });
                return Ok(*refusal);
            }
        };
        let now = match PolledTask::read(&state, &task.id) {
            PolledTask::Known(now) => now,
            // The error shows nothing of the task or of its inputs.
            PolledTask::NotShown => {
                task.poll_interval = None;
                continue;
            }
            PolledTask::Unknown => return for_the_requester(&state, Method::TasksGet, requester),
            PolledTask::Unreadable => {
                return Err(Failure::Protocol("the state of a task cannot be read".to_owned()));
            }
        };
        match now.status {
            TaskStatus::Working => inputs.withdraw(|_| true),
            TaskStatus::InputRequired => inputs.update(&state)?,
            TaskStatus::Completed => return outcome(&state, "result", requester),
            TaskStatus::Failed => return outcome(&state, "error", requester),
            TaskStatus::Cancelled => {
                let frame = br#"{"jsonrpc":"2.0","id":0,"error":{"code":-32603,"message":"the backend cancelled its task"}}"#;
                return decoded(Bytes::from_static(frame)).ok_or_else(|| {
                    Failure::Protocol(
                        "the broker could not build the answer for a cancelled task".to_owned(),
                    )
                });
            }
        }
        task = now;
    }
}

/// The inputs of one task. Dropping it withdraws those that the client has not answered.
struct TaskInputs<'a> {
    link: &'a Arc<Link>,
    requester: &'a Arc<dyn Requester>,
    task: String,
    /// Keys of inputs that the client has answered, or has to answer. A task never uses a key twice.
    known: HashSet<String>,
    /// Number of requests to the client.
    requested: usize,
    asked: Vec<AskedInput<'a>>,
    /// Answers on their way to the backend.
    updates: FuturesUnordered<BoxFuture<'a, Result<Message, Failure>>>,
}

/// An input that the client has not answered yet.
struct AskedInput<'a> {
    key: String,
    answer: BoxFuture<'a, Result<InputAnswer, Failure>>,
}

/// The object `inputResponses` with one input, or the error of a client that refuses.
type InputAnswer = Result<Vec<u8>, Box<Message>>;

impl<'a> TaskInputs<'a> {
    fn new(link: &'a Arc<Link>, requester: &'a Arc<dyn Requester>, task: &str) -> Self {
        Self {
            link,
            requester,
            task: task.to_owned(),
            known: HashSet::new(),
            requested: 0,
            asked: Vec::new(),
            updates: FuturesUnordered::new(),
        }
    }

    /// Requests the inputs that are new in the state of the task. Withdraws those that are gone.
    fn update(&mut self, state: &Message) -> Result<(), Failure> {
        let needed = needed_inputs(state)?;
        self.withdraw(|key| needed.iter().all(|request| request.key != key));
        for request in needed {
            if self.known.insert(request.key.clone()) {
                self.requested += 1;
                if self.requested > BACKEND_TASK_INPUTS_MAX {
                    return Err(Failure::Protocol(format!(
                        "the backend asked for more than {BACKEND_TASK_INPUTS_MAX} inputs in one task"
                    )));
                }
                let (key, link, requester) = (request.key.clone(), self.link, self.requester);
                let answer = Box::pin(answer_to(link, requester, request));
                self.asked.push(AskedInput { key, answer });
            }
        }
        Ok(())
    }

    /// Withdraws inputs that the client has not answered. The backend may request them again: it may
    /// work on another answer meanwhile.
    fn withdraw(&mut self, is_gone: impl Fn(&str) -> bool) {
        let Self { known, asked, .. } = self;
        asked.retain(|one| {
            let is_kept = !is_gone(&one.key);
            if !is_kept {
                known.remove(&one.key);
            }
            is_kept
        });
    }

    /// Sends answers to the backend until `work` is done. Returns its outcome, or the error of a
    /// client that refuses.
    async fn attend_until<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<Result<T, Box<Message>>, Failure> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                answer = next_answer(&mut self.asked) => match answer? {
                    Ok(responses) => self.send(&responses),
                    Err(refusal) => return Ok(Err(refusal)),
                },
                // The next state of the task reports a refusal of the backend.
                Some(updated) = self.updates.next() => drop(updated?),
                done = &mut work => return Ok(Ok(done)),
            }
        }
    }

    /// Sends an answer in the background. The backend may get the answers one by one (extension
    /// `io.modelcontextprotocol/tasks`, `tasks/update`).
    fn send(&mut self, responses: &[u8]) {
        let params = [
            b"{\"taskId\":",
            json::quote(&self.task).as_bytes(),
            b",\"inputResponses\":",
            responses,
            b"}",
        ]
        .concat();
        let (link, requester) = (self.link, self.requester);
        self.updates.push(Box::pin(async move {
            persistently(link, requester, Method::TasksUpdate, &params).await
        }));
    }
}

/// Returns the next answer of the client, and removes its input. Cancel-safe.
async fn next_answer(asked: &mut Vec<AskedInput<'_>>) -> Result<InputAnswer, Failure> {
    if asked.is_empty() {
        return std::future::pending().await;
    }
    let (answer, at, _) = select_all(asked.iter_mut().map(|one| &mut one.answer)).await;
    asked.remove(at);
    answer
}

/// Gets one input from the client. The task outlives a connection, so the client is asked again
/// after a lost one, once there is another one. The caller sets the deadline.
async fn answer_to(
    link: &Arc<Link>,
    requester: &Arc<dyn Requester>,
    request: InputRequest,
) -> Result<InputAnswer, Failure> {
    let mut pause = BACKOFF_FIRST;
    loop {
        if let Ok(connection) = link.connection().await {
            let gathered =
                inputs::gather(&connection, link, requester, std::slice::from_ref(&request)).await;
            match gathered {
                Err(failure) if failure.is_lost() && !link.is_closed() => {}
                gathered => return gathered,
            }
            pause = BACKOFF_FIRST;
        } else if link.is_closed() {
            return Err(gone(link));
        } else {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(BACKOFF_MAX);
        }
    }
}

fn needed_inputs(state: &Message) -> Result<Vec<InputRequest>, Failure> {
    InputRequired::parse(state.bytes(state.result).unwrap_or_default())
        .map(|needed| needed.requests)
        .map_err(|why| Failure::Protocol(why.to_owned()))
}

async fn state(
    link: &Arc<Link>,
    requester: &Arc<dyn Requester>,
    id: &str,
) -> Result<Message, Failure> {
    let params = format!("{{\"taskId\":{}}}", json::quote(id));
    let state = persistently(link, requester, Method::TasksGet, params.as_bytes()).await?;
    if requests::is_result(&state) {
        requester.touch(); // the backend works on it
    }
    Ok(state)
}

/// Sends a request about a task until it is answered, over several connections if needed. A
/// repetition does no harm. The caller sets the deadline.
async fn persistently(
    link: &Arc<Link>,
    requester: &Arc<dyn Requester>,
    method: Method,
    params: &[u8],
) -> Result<Message, Failure> {
    let limit = link.backend.timeouts().control;
    let mut pause = BACKOFF_FIRST;
    loop {
        if let Ok(connection) = link.connection().await {
            let exchange =
                requests::send_of_broker(&connection, link, method, Some(params), Some(requester));
            match tokio::time::timeout(limit, exchange).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(failure @ (Failure::Protocol(_) | Failure::TooLarge { .. }))) => {
                    return Err(failure);
                }
                Ok(Err(failure)) => {
                    tracing::debug!(tenant = %link.backend.tenant, backend = %link.backend.id, %failure, "a request about a task failed: the broker sends it again")
                }
                Err(_) => {
                    tracing::debug!(tenant = %link.backend.tenant, backend = %link.backend.id, "the backend did not answer a request about a task in time")
                }
            }
        }
        if link.is_closed() {
            return Err(gone(link));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(BACKOFF_MAX);
    }
}

fn gone(link: &Link) -> Failure {
    Failure::Lost(format!("the link to backend {} was closed while its task ran", link.backend.id))
}

/// Returns the inlined outcome of a task that is over, in the form for its requester.
fn outcome(
    state: &Message,
    member: &'static str,
    requester: &Arc<dyn Requester>,
) -> Result<Message, Failure> {
    for_the_requester(&inlined(state, member)?, Method::ToolsCall, requester)
}

fn inlined(state: &Message, member: &'static str) -> Result<Message, Failure> {
    let result = state.bytes(state.result).unwrap_or_default();
    let document = Document::parse(result, &json::Limits::with_bytes_max(result.len()));
    let inlined = document
        .as_ref()
        .ok()
        .and_then(|document| document.root().get(member))
        .filter(|one| one.kind() == ValueKind::Object);
    let inlined =
        inlined.ok_or_else(|| Failure::Protocol(format!("a finished task has no {member}")))?;
    let frame =
        [b"{\"jsonrpc\":\"2.0\",\"id\":0,\"", member.as_bytes(), b"\":", inlined.raw(), b"}"]
            .concat();
    decoded(Bytes::from(frame))
        .and_then(|answer| splice::without_own_meta(&answer, |_| false).ok())
        .ok_or_else(|| Failure::Protocol(format!("the {member} of a task cannot be read")))
}

/// Cancels the backend's task when its call is dropped.
struct TaskCancelGuard<'a> {
    link: &'a Arc<Link>,
    id: Option<String>,
}

impl Drop for TaskCancelGuard<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let link = self.link.clone();
        self.link.backend.context.running.spawn(async move {
            match link.cancel_task(&id).await {
                Ok(answer) if answer.kind != Kind::Error => {}
                _ => tracing::debug!(tenant = %link.backend.tenant, backend = %link.backend.id, "the backend did not cancel its task"),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(result: &str) -> Message {
        decoded(Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#))).unwrap()
    }

    #[test]
    fn nb_task_01_the_outcome_of_a_task_becomes_the_answer() {
        let done = state(
            r#"{"taskId":"t","status":"completed","result":{"resultType":"complete","content":[],"_meta":{"dev.mcp-broker/x":1}}}"#,
        );
        let answer = inlined(&done, "result").unwrap();
        assert_eq!(
            answer.bytes(answer.result),
            Some(&br#"{"resultType":"complete","content":[],"_meta":{}}"#[..])
        );
        let failed =
            state(r#"{"taskId":"t","status":"failed","error":{"code":-32000,"message":"m"}}"#);
        assert_eq!(inlined(&failed, "error").unwrap().kind, Kind::Error);
        assert!(matches!(inlined(&failed, "result"), Err(Failure::Protocol(_))));
    }
}
