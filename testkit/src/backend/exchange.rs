//! One request at the fake backend: messages that its handler sends before the answer, and the
//! answer.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::BackendShared;
use crate::{deadline::within, judge::Judge};

/// Answer of a handler.
#[derive(Debug, Clone)]
pub enum Reply {
    /// A JSON-RPC result.
    Result(Value),
    /// A JSON-RPC result given as text, relayed byte for byte.
    ResultText(String),
    /// A JSON-RPC error object.
    Error(Value),
    /// A whole message, right or wrong, as text.
    Message(String),
    /// A whole HTTP answer; only as long as nothing was sent on the stream.
    Http { status: u16, headers: Vec<(String, String)>, body: Bytes },
    /// No answer: the stream ends in an orderly way.
    End,
    /// No answer: the connection is cut.
    Cut,
    /// No answer for as long as the caller waits.
    Hang,
}

impl Reply {
    /// Returns a tool result with one text item.
    pub fn text(text: &str) -> Self {
        Self::Result(super::text(text))
    }

    pub fn error(code: i64, message: &str) -> Self {
        Self::Error(json!({"code": code, "message": message}))
    }

    pub fn status(status: u16) -> Self {
        Self::Http { status, headers: Vec::new(), body: Bytes::new() }
    }
}

/// Message from a handler to the HTTP side.
#[derive(Debug)]
pub(super) enum ReplyPart {
    Event(String),
    Answer(String),
    Http { status: u16, headers: Vec<(String, String)>, body: Bytes },
    Cut,
}

pub(super) fn event_text(id: Option<&str>, message: &str) -> String {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    format!("{id}event: message\ndata: {message}\n\n")
}

/// A request that is being answered.
pub struct BackendCall {
    pub message: Value,
    pub body: Bytes,
    pub headers: HeaderMap,
    pub session: Option<String>,
    pub(super) shared: Arc<BackendShared>,
    pub(super) line: ReplyStream,
}

/// Channel back to the caller, which changes when a stream is resumed. Shared with the task that
/// sends the reply.
#[derive(Debug, Clone, Default)]
pub(super) struct ReplyStream {
    way: Arc<Mutex<ReplyStreamState>>,
    judge: Judge,
}

#[derive(Debug, Default)]
struct ReplyStreamState {
    out: Option<mpsc::Sender<ReplyPart>>,
    /// True once something was sent, so that the answer is an event stream.
    started: bool,
}

impl ReplyStream {
    pub(super) fn new(out: mpsc::Sender<ReplyPart>, judge: &Judge) -> Self {
        Self {
            way: Arc::new(Mutex::new(ReplyStreamState { out: Some(out), started: false })),
            judge: judge.clone(),
        }
    }

    fn way(&self) -> parking_lot::MutexGuard<'_, ReplyStreamState> {
        self.way.lock()
    }

    fn current(&self) -> Option<mpsc::Sender<ReplyPart>> {
        self.way().out.clone()
    }

    fn replace(&self, out: Option<mpsc::Sender<ReplyPart>>) {
        self.way().out = out;
    }

    async fn put(&self, out: ReplyPart) -> bool {
        self.way().started = true;
        match &out {
            ReplyPart::Event(text) | ReplyPart::Answer(text) => {
                self.judge.record_peer_message(None, text.as_bytes())
            }
            ReplyPart::Http { body, .. } => self.judge.record_peer_message(None, body),
            ReplyPart::Cut => {}
        }
        match self.current() {
            Some(to) => to.send(out).await.is_ok(),
            None => false,
        }
    }

    /// Sends what the handler returned.
    pub(super) async fn finish(&self, id: &Value, reply: Reply) {
        let out = match reply {
            Reply::Result(result) => {
                ReplyPart::Answer(json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string())
            }
            Reply::ResultText(result) => {
                ReplyPart::Answer(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#))
            }
            Reply::Error(error) => {
                ReplyPart::Answer(json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string())
            }
            Reply::Message(text) => ReplyPart::Answer(text),
            Reply::Http { status, headers, body } => ReplyPart::Http { status, headers, body },
            Reply::End => {
                if !self.way().started {
                    self.put(ReplyPart::Event(": nothing more\n\n".to_owned())).await;
                }
                self.replace(None);
                return;
            }
            Reply::Cut => ReplyPart::Cut,
            Reply::Hang => {
                if let Some(out) = self.current() {
                    out.closed().await;
                }
                return;
            }
        };
        self.put(out).await;
        self.replace(None);
    }
}

impl BackendCall {
    pub fn id(&self) -> &Value {
        &self.message["id"]
    }

    pub fn params(&self) -> &Value {
        &self.message["params"]
    }

    pub fn arguments(&self) -> &Value {
        &self.message["params"]["arguments"]
    }

    pub fn progress_token(&self) -> &Value {
        &self.message["params"]["_meta"]["progressToken"]
    }

    /// Sends text on this call's stream, exactly as given.
    pub async fn raw(&self, text: &str) -> bool {
        self.line.put(ReplyPart::Event(text.to_owned())).await
    }

    /// Sends a message on this call's stream, which makes the answer an event stream.
    pub async fn send(&self, message: Value) -> bool {
        self.raw(&event_text(None, &message.to_string())).await
    }

    /// Sends a message with an event id.
    pub async fn send_with_id(&self, event_id: &str, message: Value) -> bool {
        self.raw(&event_text(Some(event_id), &message.to_string())).await
    }

    /// Returns the answer as a message, to be sent as an event with an id.
    pub fn result_message(&self, result: Value) -> Value {
        json!({"jsonrpc": "2.0", "id": self.id(), "result": result})
    }

    pub async fn notify(&self, method: &str, params: Value) -> bool {
        self.send(json!({"jsonrpc": "2.0", "method": method, "params": params})).await
    }

    /// Sends progress with the token of this call.
    pub async fn progress(&self, progress: f64, total: f64) -> bool {
        self.notify(
            "notifications/progress",
            json!({"progressToken": self.progress_token(), "progress": progress, "total": total}),
        )
        .await
    }

    /// Opens the event stream with a comment.
    pub async fn open_stream(&self) -> bool {
        self.raw(": open\n\n").await
    }

    /// Sends a request to the client on this call's stream; returns the whole response message.
    pub async fn request(&self, method: &str, params: Value) -> Value {
        let (id, answer) = self.start_question(method, params).await;
        within(&format!("the client's answer {id} to {method}"), answer)
            .await
            .expect("the backend lives")
    }

    /// Sends a request without waiting; returns its id and a receiver of the response.
    pub async fn start_question(
        &self,
        method: &str,
        params: Value,
    ) -> (Value, oneshot::Receiver<Value>) {
        let (sender, answer) = oneshot::channel();
        let id = {
            let mut state = self.shared.lock();
            state.requests_sent += 1;
            let id = json!(format!("ask-{}", state.requests_sent));
            state.pending_requests.insert(id.to_string(), sender);
            id
        };
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
        (id, answer)
    }

    /// Ends this stream in an orderly way and waits until a client resumes from `event_id` by GET.
    pub async fn end_until_resumed(&self, event_id: &str) {
        let resumed = self.end_stream(event_id);
        self.line.replace(Some(
            within("a GET that resumes the stream", resumed).await.expect("the backend lives"),
        ));
    }

    /// Cuts this stream's connection and waits until a client resumes from `event_id` by GET.
    pub async fn cut_until_resumed(&self, event_id: &str) {
        self.line.put(ReplyPart::Cut).await;
        let resumed = self.end_stream(event_id);
        self.line.replace(Some(
            within("a GET that resumes the stream", resumed).await.expect("the backend lives"),
        ));
    }

    fn end_stream(&self, event_id: &str) -> oneshot::Receiver<mpsc::Sender<ReplyPart>> {
        let (sender, resumed) = oneshot::channel();
        self.shared.lock().resumes.insert(event_id.to_owned(), sender);
        self.line.replace(None);
        resumed
    }

    /// Waits until the caller's connection for this call is gone.
    pub async fn client_disconnected(&self) {
        if let Some(out) = self.line.current() {
            out.closed().await;
        }
    }
}
