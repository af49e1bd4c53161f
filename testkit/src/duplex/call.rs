//! A request in flight on a duplex connection.

use std::time::Duration;

use serde_json::Value;
use tokio::sync::oneshot;

use crate::deadline::{DEADLINE, within, within_at_most};

#[derive(Debug)]
pub struct DuplexCall {
    pub id: u64,
    pub(super) answer: oneshot::Receiver<(Value, String)>,
}

impl DuplexCall {
    /// Returns the response; panics when the connection ends before it.
    pub async fn response(self) -> Value {
        self.response_and_text().await.0
    }

    /// Returns the response, and the text it came as.
    pub async fn response_and_text(self) -> (Value, String) {
        self.answered_within(DEADLINE).await
    }

    async fn answered_within(self, deadline: Duration) -> (Value, String) {
        let answer = within_at_most(deadline, "a response", self.answer).await;
        answer.unwrap_or_else(|_| {
            panic!("the connection ended before the response to request {}", self.id)
        })
    }

    /// Returns the response, or `None` when the connection ended before it.
    pub async fn response_or_end(self) -> Option<Value> {
        within("a response", self.answer).await.ok().map(|(response, _)| response)
    }

    /// Returns the result; panics on an error.
    pub async fn result(self) -> Value {
        self.result_within(DEADLINE).await
    }

    /// Returns the result of a call that may take this long.
    pub async fn result_within(self, deadline: Duration) -> Value {
        let (response, _) = self.answered_within(deadline).await;
        response.get("result").cloned().unwrap_or_else(|| panic!("the request failed: {response}"))
    }

    /// Returns the error; panics on a result.
    pub async fn error(self) -> Value {
        let response = self.response().await;
        response
            .get("error")
            .cloned()
            .unwrap_or_else(|| panic!("the request did not fail: {response}"))
    }

    /// Returns whether an answer has come already.
    pub fn is_answered(&mut self) -> bool {
        !matches!(self.answer.try_recv(), Err(oneshot::error::TryRecvError::Empty))
    }
}
