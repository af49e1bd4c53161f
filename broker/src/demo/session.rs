//! State of the demo backend's one client, and the queue of messages to it. Shared by the reader
//! and by running calls. The lock is never held across an await.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// RFC 5424 severities, least severe first.
const LEVELS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// Error of a JSON-RPC answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RpcError {
    code: i64,
    message: String,
    data: Option<Value>,
}

impl RpcError {
    pub(super) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(-32602, message)
    }

    /// Returns the error for an unknown resource (MCP 2025-11-25, Resources, Error Handling).
    pub(super) fn unknown_resource(uri: &str) -> Self {
        Self { data: Some(json!({ "uri": uri })), ..Self::new(-32002, "resource not found") }
    }

    fn to_json(&self) -> Value {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(data) = &self.data {
            error["data"] = data.clone();
        }
        error
    }
}

pub(super) struct DemoSession {
    outbox: mpsc::Sender<Value>,
    state: Mutex<DemoState>,
}

#[derive(Default)]
pub(super) struct DemoState {
    /// Value of `demo://counter`.
    pub(super) count: u64,
    pub(super) subscriptions: HashSet<String>,
    /// True if the client can show a form to its user.
    pub(super) supports_forms: bool,
    /// Index into [`LEVELS`] of the least severe message to send.
    level: usize,
    /// Running calls, by the JSON text of their ids: `1` is not `"1"`.
    running: HashMap<String, CancellationToken>,
    /// Own requests that wait for the client.
    pending: HashMap<String, oneshot::Sender<Value>>,
    request_count: u64,
}

impl DemoSession {
    pub(super) fn new(outbox: mpsc::Sender<Value>) -> Self {
        Self { outbox, state: Mutex::default() }
    }

    /// Sends a message. Drops it if the client has disconnected.
    pub(super) async fn send(&self, message: Value) {
        let _ = self.outbox.send(message).await;
    }

    pub(super) async fn answer(&self, id: Value, answer: Result<Value, RpcError>) {
        self.send(match answer {
            Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
            Err(fault) => json!({ "jsonrpc": "2.0", "id": id, "error": fault.to_json() }),
        })
        .await;
    }

    pub(super) async fn notify(&self, method: &str, params: Value) {
        self.send(json!({ "jsonrpc": "2.0", "method": method, "params": params })).await;
    }

    pub(super) async fn log(&self, level: &str, text: String) {
        let severity = LEVELS.iter().position(|known| *known == level).unwrap_or(0);
        if severity >= self.locked(|state| state.level) {
            self.notify(
                "notifications/message",
                json!({ "level": level, "logger": "demo", "data": text }),
            )
            .await;
        }
    }

    pub(super) fn set_level(&self, level: &str) -> Result<Value, RpcError> {
        let known = LEVELS.iter().position(|known| *known == level);
        let index = known.ok_or_else(|| {
            RpcError::invalid(format!("level must be one of {}", LEVELS.join(", ")))
        })?;
        self.locked(|state| state.level = index);
        Ok(json!({}))
    }

    /// Sends a request to the client and waits for its answer. Returns `None` when the client has
    /// disconnected.
    pub(super) async fn request(&self, method: &str, params: Value) -> Option<Value> {
        let (reply, answer) = oneshot::channel();
        let id = self.locked(|state| {
            state.request_count += 1;
            let id = json!(format!("ask-{}", state.request_count));
            state.pending.insert(id.to_string(), reply);
            id
        });
        // Also removes the entry when this call is cancelled while it waits.
        let _forget = PendingRequestGuard { session: self, id: id.to_string() };
        self.send(json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await;
        answer.await.ok()
    }

    /// Completes an own request with the client's answer. Ignores an answer without a request.
    pub(super) fn answered(&self, id: &Value, message: &Value) {
        if let Some(reply) = self.locked(|state| state.pending.remove(&id.to_string())) {
            let _ = reply.send(message.clone());
        }
    }

    pub(super) fn start(&self, id: &Value) -> CancellationToken {
        let token = CancellationToken::new();
        self.locked(|state| state.running.insert(id.to_string(), token.clone()));
        token
    }

    pub(super) fn end(&self, id: &Value) {
        self.locked(|state| state.running.remove(&id.to_string()));
    }

    pub(super) fn cancel(&self, id: &Value) {
        if let Some(token) = self.locked(|state| state.running.get(&id.to_string()).cloned()) {
            token.cancel();
        }
    }

    pub(super) fn cancel_all(&self) {
        self.locked(|state| state.running.values().for_each(CancellationToken::cancel));
    }

    pub(super) fn locked<T>(&self, use_state: impl FnOnce(&mut DemoState) -> T) -> T {
        // A panic under the lock cannot leave the state half changed: no step panics between two
        // changes.
        use_state(&mut self.state.lock())
    }
}

struct PendingRequestGuard<'a> {
    session: &'a DemoSession,
    id: String,
}

impl Drop for PendingRequestGuard<'_> {
    fn drop(&mut self) {
        self.session.locked(|state| state.pending.remove(&self.id));
    }
}
