//! Tasks of sessions: requested until one is acknowledged, and followed in one of several ways.

use std::time::Instant;

use serde_json::json;

use super::{ANSWER_WITHIN, Load, PATIENCE, PAUSE, text_of};
use crate::{
    client::{AttemptOutcome, TestClient},
    history::{OUTCOME_UNKNOWN, Observation, Outcome},
};

/// Reads of one task's status before its client disconnects.
const LOOKS: usize = 20;
const TTL_MS: u64 = 3_600_000;

/// Next action of a client whose task is acknowledged.
#[derive(Debug, Clone, Copy)]
pub(super) enum TaskFollowUp {
    Poll,
    Wait,
    Ignore,
    Cancel,
}

impl Load {
    /// Requests a task until it is acknowledged, each time under a new key, then does the
    /// follow-up.
    pub(super) async fn task(
        &self,
        client: &TestClient,
        key: &str,
        tool: &str,
        millis: u64,
        then: TaskFollowUp,
    ) {
        let first = Instant::now();
        for attempt in 0.. {
            let (began, name) = (Instant::now(), key);
            let key = format!("{name}.{attempt}");
            let arguments = json!({"key": key, "millis": millis});
            let params = json!({"name": format!("b__{tool}"), "arguments": arguments, "task": {"ttl": TTL_MS}});
            let answer = client.attempt("tools/call", params, ANSWER_WITHIN).await;
            match &answer {
                AttemptOutcome::Result(result) => match result["task"]["taskId"].as_str() {
                    Some(task) => {
                        self.history
                            .record(began, Observation::Created { key, task: task.to_owned() });
                        return self.follow(client, task, then).await;
                    }
                    None => {
                        return self.history.record(
                            began,
                            Observation::Wrong {
                                what: format!("{key} was answered without a task: {result}"),
                            },
                        );
                    }
                },
                AttemptOutcome::NoAnswer(_) => {
                    self.history.record(began, Observation::Lost { key })
                }
                AttemptOutcome::Error { .. } if answer.kind() == OUTCOME_UNKNOWN => {
                    self.history.record(began, Observation::Lost { key })
                }
                AttemptOutcome::Error { .. } => {
                    self.history.record(began, Observation::Refused { key, kind: answer.kind() })
                }
            }
            self.record_loss(client, &answer).await;
            // A commit in doubt is final for its key only.
            if answer.is_final()
                && !["session_not_found", OUTCOME_UNKNOWN].contains(&answer.kind().as_str())
            {
                return self.history.record(
                    began,
                    Observation::Wrong { what: format!("{name} was refused for good: {answer:?}") },
                );
            }
            if first.elapsed() > PATIENCE {
                let what =
                    format!("{name} was never acknowledged in {PATIENCE:?}; last: {answer:?}");
                return self.history.record(first, Observation::Wrong { what });
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn follow(&self, client: &TestClient, task: &str, then: TaskFollowUp) {
        match then {
            TaskFollowUp::Ignore => {}
            TaskFollowUp::Poll => {
                for _ in 0..LOOKS {
                    if self
                        .look(client, task)
                        .await
                        .is_some_and(|status| !matches!(&*status, "working" | "input_required"))
                    {
                        self.end_of(client, task).await;
                        return;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
            TaskFollowUp::Wait => {
                for _ in 0..LOOKS {
                    if self.end_of(client, task).await.is_some() {
                        return;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
            TaskFollowUp::Cancel => {
                tokio::time::sleep(PAUSE).await;
                let began = Instant::now();
                self.history.record(began, Observation::CancelAsked { task: task.to_owned() });
                let answer =
                    client.attempt("tasks/cancel", json!({"taskId": task}), ANSWER_WITHIN).await;
                self.record_status(task, began, &answer);
                self.record_loss(client, &answer).await;
            }
        }
    }

    pub(super) fn record_status(
        &self,
        task: &str,
        began: Instant,
        answer: &AttemptOutcome,
    ) -> Option<String> {
        match answer {
            AttemptOutcome::Result(view) => {
                let status = view["status"].as_str().unwrap_or("none").to_owned();
                self.history.record(
                    began,
                    Observation::Status { task: task.to_owned(), status: status.clone() },
                );
                Some(status)
            }
            AttemptOutcome::Error { .. } if answer.kind() == "task_not_found" => {
                self.history.record(began, Observation::Absent { task: task.to_owned() });
                None
            }
            _ => None,
        }
    }

    /// Returns the task's status, if an answer came.
    async fn look(&self, client: &TestClient, task: &str) -> Option<String> {
        let began = Instant::now();
        let answer = client.attempt("tasks/get", json!({"taskId": task}), ANSWER_WITHIN).await;
        let status = self.record_status(task, began, &answer);
        self.record_loss(client, &answer).await;
        status
    }

    /// Returns the task's outcome, if an answer came. An error is the task's own only if a broker sent
    /// it and the task's status is final.
    pub(super) async fn end_of(&self, client: &TestClient, task: &str) -> Option<Outcome> {
        let began = Instant::now();
        let answer = client.attempt("tasks/result", json!({"taskId": task}), ANSWER_WITHIN).await;
        self.record_loss(client, &answer).await;
        let outcome = match &answer {
            AttemptOutcome::Result(result) => Outcome::Completed(text_of(result)),
            AttemptOutcome::NoAnswer(_) => return None,
            AttemptOutcome::Error { error, .. } if error.is_null() => return None,
            AttemptOutcome::Error { .. } => match self.look(client, task).await.as_deref() {
                Some("failed") => Outcome::Failed(answer.kind()),
                Some("cancelled") => Outcome::Cancelled,
                _ => return None,
            },
        };
        self.history
            .record(began, Observation::Ended { task: task.to_owned(), outcome: outcome.clone() });
        Some(outcome)
    }
}
