//! Requests that may end in any way, for tests in which the broker dies meanwhile. No call here
//! panics.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Call, LATEST, ReceivedMessage, TestClient, call::CallEvent};
use crate::{
    history::OUTCOME_UNKNOWN,
    stateless_request::{add_request_meta, request_headers},
};

/// Tries to send `notifications/initialized` until one is accepted.
const NOTE_TRIES: usize = 3;

/// Result of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum AttemptOutcome {
    Result(Value),
    /// The error object, or null if the answer did not come from the broker.
    Error {
        status: u16,
        error: Value,
    },
    /// The reason of a missing answer.
    NoAnswer(String),
}

impl AttemptOutcome {
    /// Returns whether the error marks a retry as useless. An error of unknown outcome does not.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Error { error, .. } if error["data"]["retryable"] == false && self.kind() != OUTCOME_UNKNOWN)
    }

    /// Returns `error.data.kind`, or the status of an answer without one.
    pub fn kind(&self) -> String {
        match self {
            Self::Result(_) => "result".to_owned(),
            Self::Error { status, error } => error["data"]["kind"]
                .as_str()
                .map_or_else(|| format!("status {status}"), str::to_owned),
            Self::NoAnswer(_) => "nothing".to_owned(),
        }
    }
}

impl TestClient {
    /// Opens a session of the newest version where that may fail. Returns nothing, or the failure.
    pub async fn try_connect(
        &self,
        capabilities: Value,
        deadline: Duration,
    ) -> Result<(), AttemptOutcome> {
        let params = json!({"protocolVersion": LATEST, "capabilities": capabilities, "clientInfo": {"name": "testkit", "version": "1"}});
        let body = json!({"jsonrpc": "2.0", "id": self.take_id(), "method": "initialize", "params": params}).to_string();
        let opened = async {
            let answer =
                self.fresh().try_send("POST", &self.fresh().usual_headers(), body.into()).await?;
            let (status, session) =
                (answer.status, answer.header("mcp-session-id").map(str::to_owned));
            Ok((status, session, answer.try_bytes().await?))
        };
        let opened = tokio::time::timeout(deadline, opened)
            .await
            .unwrap_or_else(|_| Err(format!("no session within {deadline:?}")));
        let (status, session, body) = opened.map_err(AttemptOutcome::NoAnswer)?;
        let message: Value = serde_json::from_slice(&body).unwrap_or_default();
        if session.is_none() || message.get("result").is_none() {
            return Err(AttemptOutcome::Error { status, error: message["error"].clone() });
        }
        self.set_session(session.as_deref());
        self.set_version(Some(LATEST));
        let note = json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string();
        for _ in 0..NOTE_TRIES {
            let headers = self.usual_headers();
            let sent = self.try_send("POST", &headers, note.clone().into());
            if let Ok(Ok(answer)) = tokio::time::timeout(deadline, sent).await
                && answer.status == 202
            {
                break;
            }
        }
        Ok(())
    }

    /// Sends a request that may end in any way.
    pub async fn attempt(&self, method: &str, params: Value, deadline: Duration) -> AttemptOutcome {
        self.start_request(method, params).attempt(deadline).await
    }

    /// Works as [`TestClient::attempt`] for a request of 2026-07-28, from a client with these
    /// capabilities.
    pub async fn attempt_stateless(
        &self,
        method: &str,
        mut params: Value,
        capabilities: &Value,
        deadline: Duration,
    ) -> AttemptOutcome {
        add_request_meta(&mut params, "testkit", capabilities);
        let headers = self.fresh().headers_with(&request_headers(method, &params));
        let id = json!(self.take_id());
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.start_with_headers(id, headers, body.to_string()).attempt(deadline).await
    }

    /// Answers a server's request with a result, which may be refused or lost. Returns whether the
    /// answer was accepted.
    pub async fn try_respond(&self, id: &Value, result: &Value, deadline: Duration) -> bool {
        let body = json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
        let headers = self.usual_headers();
        let sent = tokio::time::timeout(deadline, self.try_send("POST", &headers, body.into()));
        matches!(sent.await, Ok(Ok(answer)) if answer.status == 202)
    }
}

impl Call {
    /// Returns the response if it comes within `deadline`, whatever happens.
    pub async fn attempt(mut self, deadline: Duration) -> AttemptOutcome {
        let read = async {
            loop {
                match self.try_next().await? {
                    message if message.is_response() => return Ok(message.value),
                    _ if self.status.is_some_and(|(_, stream)| !stream) => return Ok(Value::Null),
                    message => self.before.push(message),
                }
            }
        };
        let read = tokio::time::timeout(deadline, read)
            .await
            .unwrap_or_else(|_| Err(format!("no response within {deadline:?}")));
        self.outcome_of(read)
    }

    /// Returns the next message, or the reason why no other comes.
    pub async fn try_next(&mut self) -> Result<ReceivedMessage, String> {
        while let Some(item) = self.messages.recv().await {
            match item {
                CallEvent::Head { status, stream } => self.status = Some((status, stream)),
                CallEvent::Message(message) => return Ok(message),
                CallEvent::Bare(_) => {}
                CallEvent::Broken(reason) => return Err(reason),
            }
        }
        Err("the answer ended before the response".to_owned())
    }

    /// Returns the outcome with this response, or without one for this reason.
    pub fn outcome_of(&self, response: Result<Value, String>) -> AttemptOutcome {
        match response {
            Ok(mut message) if message.get("result").is_some() => {
                AttemptOutcome::Result(message["result"].take())
            }
            Ok(mut message) => {
                let status = self.status.map_or(0, |(status, _)| status);
                AttemptOutcome::Error {
                    status,
                    error: message.get_mut("error").map_or(Value::Null, Value::take),
                }
            }
            Err(reason) => AttemptOutcome::NoAnswer(reason),
        }
    }
}
