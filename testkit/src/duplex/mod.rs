//! A raw client of the listeners where a connection is a session: TCP, and any other transport of
//! whole messages in both directions.
//!
//! A wire is two channels of texts ([`Wire`]), made by a task that owns the socket.
//! [`DuplexClient`] is cheap to clone. It answers the server's requests by itself, gives each
//! response to its waiting request, and keeps everything else in order.

mod call;
mod over_http;
mod wire;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use http::HeaderMap;
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tokio::{
    net::TcpStream,
    sync::{mpsc, oneshot, watch},
    task::AbortHandle,
};

pub(crate) use self::wire::QUEUE;
pub use self::{call::DuplexCall, wire::Wire};
use crate::{
    abort_on_drop::AbortOnDrop,
    client::{Answers, LATEST},
    deadline::within,
    judge::{Judge, JudgedExchange, Recipient, Revision},
};

/// Messages and waiting requests of a client.
#[derive(Default)]
struct DuplexState {
    waiting: HashMap<String, oneshot::Sender<(Value, String)>>,
    /// Notifications, and responses without a waiting request.
    unread: Vec<Value>,
    /// Reason why the connection ended.
    ended: Option<String>,
}

struct DuplexShared {
    state: Mutex<DuplexState>,
    changed: watch::Sender<u64>,
    out: mpsc::Sender<String>,
    answers: Option<Answers>,
    hearing: Option<JudgedExchange>,
    next_id: AtomicU64,
    /// Number of messages that came, of any kind.
    received: AtomicU64,
}

impl DuplexShared {
    fn lock(&self) -> MutexGuard<'_, DuplexState> {
        self.state.lock()
    }

    fn touch(&self) {
        self.changed.send_modify(|count| *count += 1);
    }
}

/// A connection to the broker.
#[derive(Clone)]
pub struct DuplexClient {
    shared: Arc<DuplexShared>,
    tasks: Arc<[AbortHandle]>,
    _reader: Arc<AbortOnDrop>,
}

/// Settings of a client.
#[derive(Clone, Default)]
pub struct DuplexBuilder {
    answers: Option<Answers>,
    judge: Option<Judge>,
    speaks: Option<Revision>,
}

impl DuplexBuilder {
    /// Answers the server's requests.
    pub fn answers(
        mut self,
        answers: impl Fn(&str, &Value) -> Result<Value, Value> + Send + Sync + 'static,
    ) -> Self {
        self.answers = Some(Arc::new(answers));
        self
    }

    pub fn judged_by(mut self, judge: &Judge) -> Self {
        self.judge = Some(judge.clone());
        self
    }

    /// Sets the revision by which messages to it are judged, unless a handshake settles another.
    pub fn speaking(mut self, revision: Revision) -> Self {
        self.speaks = Some(revision);
        self
    }

    /// Opens a TCP connection with a message per line.
    pub async fn tcp(self, address: SocketAddr) -> DuplexClient {
        self.over(Wire::lines(socket(address).await))
    }

    /// Uses any wire.
    pub fn over(self, wire: Wire) -> DuplexClient {
        let Wire { out, incoming, tasks } = wire;
        let hearing = self.judge.map(|judge| {
            let mut hearing = JudgedExchange::new(&judge, Recipient::Client);
            hearing.session =
                Some(format!("duplex-{}", NEXT_CLIENT.fetch_add(1, Ordering::Relaxed)));
            hearing.new_session = hearing.session.clone();
            hearing.named = self.speaks;
            hearing
        });
        let shared = Arc::new(DuplexShared {
            state: Mutex::default(),
            changed: watch::Sender::new(0),
            out,
            answers: self.answers,
            hearing,
            next_id: AtomicU64::new(1),
            received: AtomicU64::new(0),
        });
        let reader = tokio::spawn(read(shared.clone(), incoming));
        DuplexClient { shared, tasks: tasks.into(), _reader: Arc::new(AbortOnDrop(reader)) }
    }

    /// Opens a WebSocket to the HTTP listener. `Err`: the status, if it is not 101.
    pub async fn websocket(
        self,
        address: SocketAddr,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<(DuplexClient, HeaderMap), u16> {
        let opened = within(
            "the upgrade",
            Wire::websocket(socket(address).await, &address.to_string(), path, headers),
        )
        .await;
        opened.map(|(wire, headers)| (self.over(wire), headers))
    }
}

/// Opens a connection without delayed writes (`TCP_NODELAY`).
pub async fn socket(address: SocketAddr) -> TcpStream {
    let socket =
        within("a connection", TcpStream::connect(address)).await.expect("the listener accepts");
    socket.set_nodelay(true).expect("a socket has this option");
    socket
}

/// Number that distinguishes the sessions of clients for the judge.
static NEXT_CLIENT: AtomicU64 = AtomicU64::new(1);

async fn read(shared: Arc<DuplexShared>, mut incoming: mpsc::Receiver<Result<String, String>>) {
    while let Some(Ok(text)) =
        incoming.recv().await.map(|item| item.map_err(|why| shared.lock().ended = Some(why)))
    {
        if let Some(hearing) = &shared.hearing {
            hearing.check_broker_message(text.as_bytes());
        }
        shared.received.fetch_add(1, Ordering::SeqCst);
        let message: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        match (message["method"].as_str(), message.get("id")) {
            (Some(method), Some(id)) => {
                let Some(answers) = &shared.answers else {
                    shared.lock().unread.push(message);
                    shared.touch();
                    continue;
                };
                let answer = match answers(method, &message["params"]) {
                    Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
                    Err(error) => json!({"jsonrpc": "2.0", "id": id, "error": error}),
                };
                let _gone = shared.out.send(answer.to_string()).await;
            }
            (None, Some(id)) => {
                let waiting = shared.lock().waiting.remove(&id.to_string());
                match waiting {
                    Some(waiting) => drop(waiting.send((message, text))),
                    None => shared.lock().unread.push(message),
                }
            }
            _ => shared.lock().unread.push(message),
        }
        shared.touch();
    }
    let mut state = shared.lock();
    state.ended.get_or_insert_with(|| "the end".to_owned());
    state.waiting.clear();
    drop(state);
    shared.touch();
}

impl DuplexClient {
    pub fn builder() -> DuplexBuilder {
        DuplexBuilder::default()
    }

    /// Closes the socket without a closing handshake.
    pub fn disconnect(&self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }

    /// Sends a text as it is.
    pub async fn send(&self, text: impl Into<String>) {
        let text = text.into();
        if let Some(hearing) = &self.shared.hearing {
            hearing.judge.record_peer_message(hearing.session.as_deref(), text.as_bytes());
        }
        let _gone = self.shared.out.send(text).await;
    }

    pub async fn notify(&self, method: &str, params: Value) {
        self.send(json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string()).await;
    }

    /// Sends a request.
    pub async fn start_request(&self, method: &str, params: Value) -> DuplexCall {
        self.start_text(method, &params.to_string()).await
    }

    /// Sends a request whose params are this text.
    pub async fn start_text(&self, method: &str, params: &str) -> DuplexCall {
        let id = self.shared.next_id.fetch_add(1, Ordering::SeqCst);
        let (sender, answer) = oneshot::channel();
        self.shared.lock().waiting.insert(id.to_string(), sender);
        self.send(format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#
        ))
        .await;
        DuplexCall { id, answer }
    }

    pub async fn start_call(&self, tool: &str, arguments: Value) -> DuplexCall {
        self.start_request("tools/call", json!({"name": tool, "arguments": arguments})).await
    }

    /// Sends a request; returns the whole response message.
    pub async fn request(&self, method: &str, params: Value) -> Value {
        self.start_request(method, params).await.response().await
    }

    /// Sends a request; returns its result, and panics on an error.
    pub async fn result(&self, method: &str, params: Value) -> Value {
        self.start_request(method, params).await.result().await
    }

    /// Sends a request; returns its error, and panics on a result.
    pub async fn error(&self, method: &str, params: Value) -> Value {
        self.start_request(method, params).await.error().await
    }

    pub async fn call(&self, tool: &str, arguments: Value) -> Value {
        self.result("tools/call", json!({"name": tool, "arguments": arguments})).await
    }

    /// Sends `initialize` with these members in `_meta`; returns the response.
    pub async fn initialize(&self, capabilities: Value, meta: Value) -> Value {
        self.initialize_in(LATEST, capabilities, meta).await
    }

    /// Sends `initialize` of this revision; returns the response.
    pub async fn initialize_in(&self, revision: &str, capabilities: Value, meta: Value) -> Value {
        let client = json!({"name": "testkit", "version": "1"});
        let mut params = json!({"protocolVersion": revision, "capabilities": capabilities, "clientInfo": client});
        if meta.as_object().is_some_and(|meta| !meta.is_empty()) {
            params["_meta"] = meta;
        }
        self.request("initialize", params).await
    }

    /// Makes the whole handshake.
    pub async fn connected(self, capabilities: Value) -> Self {
        self.connected_with(capabilities, json!({})).await
    }

    /// Makes the whole handshake, with these members in the `_meta` of `initialize`.
    pub async fn connected_with(self, capabilities: Value, meta: Value) -> Self {
        let answer = self.initialize(capabilities, meta).await;
        assert_eq!(answer["result"]["protocolVersion"], LATEST, "{answer}");
        self.notify("notifications/initialized", json!({})).await;
        self
    }

    /// Waits for the first message that `wanted` accepts, and takes it out.
    pub async fn wait_for_message(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut changed = self.shared.changed.subscribe();
        let found = async {
            loop {
                {
                    let mut state = self.shared.lock();
                    if let Some(at) = state.unread.iter().position(&wanted) {
                        return state.unread.remove(at);
                    }
                    assert!(
                        state.ended.is_none(),
                        "the connection ended ({:?}) before {what}; said: {:?}",
                        state.ended,
                        state.unread
                    );
                }
                let _gone = changed.changed().await;
            }
        };
        within(what, found).await
    }

    /// Waits for the next notification of this method.
    pub async fn notification(&self, method: &str) -> Value {
        self.wait_for_message(method, |message| message["method"] == method).await
    }

    /// Returns every message so far that was not taken out.
    pub fn unread_messages(&self) -> Vec<Value> {
        self.shared.lock().unread.clone()
    }

    /// Returns how many messages came so far.
    pub fn received(&self) -> u64 {
        self.shared.received.load(Ordering::SeqCst)
    }

    /// Waits for the end of the connection; returns the reason.
    pub async fn wait_for_close(&self) -> String {
        let mut changed = self.shared.changed.subscribe();
        let ended = async {
            loop {
                if let Some(why) = self.shared.lock().ended.clone() {
                    return why;
                }
                let _gone = changed.changed().await;
            }
        };
        within("the end of the connection", ended).await
    }
}

impl std::fmt::Debug for DuplexClient {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("DuplexClient")
    }
}
