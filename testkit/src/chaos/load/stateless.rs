//! Calls of clients of 2026-07-28: each request may meet another replica, also the answer to a
//! question, and each call may become a task.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::{ANSWER_WITHIN, Load, PATIENCE, PAUSE, Seed, outcome_of, text_of, told};
use crate::{
    client::{AttemptOutcome, TestClient},
    history::{OUTCOME_UNKNOWN, Observation, Outcome},
    stateless_request::TASKS_EXTENSION,
};

/// One call without a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct StatelessCall {
    tool: &'static str,
    /// Time that the backend takes. Half of it is before the question of `ask`.
    millis: u64,
    /// Time until the client answers a question.
    answers_after: Duration,
}

impl StatelessCall {
    pub(super) fn of(seed: &mut Seed) -> Self {
        let tool = if seed.chance(50) { "ask" } else { "write" };
        let millis = if seed.chance(50) { seed.below(0..100) } else { seed.below(500..2_500) };
        Self { tool, millis, answers_after: seed.millis(0..1_500) }
    }

    fn params(self, key: &str) -> Value {
        let arguments = json!({"key": key, "millis": self.millis, "steps": 1});
        json!({"name": format!("b__{}", self.tool), "arguments": arguments})
    }
}

impl Load {
    /// Makes a call, answers its questions, and follows the task that it may become.
    pub(super) async fn stateless(&self, client: &TestClient, key: &str, call: StatelessCall) {
        let (began, mut params) = (Instant::now(), call.params(key));
        let answer = loop {
            let answer = attempt(client, "tools/call", params.clone()).await;
            match &answer {
                AttemptOutcome::Result(result) if result["resultType"] == "input_required" => {
                    tokio::time::sleep(call.answers_after).await;
                    params["requestState"] = result["requestState"].clone();
                    params["inputResponses"] = responses(result);
                }
                // The call waits for its answers, so the same request may follow.
                AttemptOutcome::Error { .. }
                    if params.get("requestState").is_some()
                        && !answer.is_final()
                        && answer.kind() != OUTCOME_UNKNOWN
                        && began.elapsed() < PATIENCE =>
                {
                    tokio::time::sleep(PAUSE).await;
                }
                _ => break answer,
            }
        };
        if let AttemptOutcome::Result(result) = &answer
            && result["resultType"] == "task"
        {
            let task = result["taskId"].as_str().unwrap_or_default().to_owned();
            let created = Observation::Created { key: key.to_owned(), task: task.clone() };
            self.history.record(began, created);
            return self.follow_stateless(client, &task, call.answers_after).await;
        }
        let outcome = outcome_of(&answer);
        self.history.record(began, Observation::Called { key: key.to_owned(), outcome });
    }

    /// Reads a task until it has ended, and sends the inputs that it needs.
    async fn follow_stateless(&self, client: &TestClient, task: &str, answers_after: Duration) {
        let first = Instant::now();
        while first.elapsed() < PATIENCE {
            let began = Instant::now();
            let answer = attempt(client, "tasks/get", json!({"taskId": task})).await;
            let status = self.record_status(task, began, &answer);
            let AttemptOutcome::Result(seen) = answer else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let outcome = match status.as_deref() {
                Some("input_required") => {
                    tokio::time::sleep(answers_after).await;
                    let inputs = json!({"taskId": task, "inputResponses": responses(&seen)});
                    let _refused_or_lost = attempt(client, "tasks/update", inputs).await;
                    None
                }
                Some("completed") => Some(Outcome::Completed(text_of(&seen["result"]))),
                Some("failed") => {
                    let kind = seen["error"]["data"]["kind"].as_str().unwrap_or("none");
                    Some(Outcome::Failed(kind.to_owned()))
                }
                Some("cancelled") => Some(Outcome::Cancelled),
                _ => None,
            };
            if let Some(outcome) = outcome {
                let ended = Observation::Ended { task: task.to_owned(), outcome };
                return self.history.record(began, ended);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn attempt(client: &TestClient, method: &str, params: Value) -> AttemptOutcome {
    let capabilities = json!({"elicitation": {}, "extensions": {TASKS_EXTENSION: {}}});
    client.attempt_stateless(method, params, &capabilities, ANSWER_WITHIN).await
}

/// Returns the answer to each request of `inputRequests`.
fn responses(asked: &Value) -> Value {
    let requests = asked["inputRequests"].as_object();
    let answers = requests.into_iter().flatten().map(|(key, _)| (key.clone(), told()));
    Value::Object(Map::from_iter(answers))
}
