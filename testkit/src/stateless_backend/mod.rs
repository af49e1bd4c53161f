//! A scriptable MCP server of 2026-07-28, over HTTP or a pipe (lines over TCP): the backend that
//! tests put behind the broker.
//!
//! By default it answers `server/discover`, the lists, `tools/call` with an echo, and keeps streams
//! of notifications. It is strict: it refuses a request without its `_meta`, or with headers that
//! disagree with its body, as MCP requires. Everything else is a handler, which gets a
//! [`StatelessCall`] and returns a [`StatelessReply`].

mod answers;
mod wires;

use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
};

use http::HeaderMap;
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::AbortHandle,
};
use tokio_util::sync::CancellationToken;

use crate::{
    RecordedRequest,
    abort_on_drop::AbortOnDrop,
    deadline::within,
    judge::{Judge, JudgeGuard},
    stateless_request::STATELESS,
};

/// `_meta` of everything on a stream of notifications.
pub(crate) const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
pub(crate) const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
pub(crate) const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
/// The only revision it supports.
pub const VERSION: &str = STATELESS;

type Handler = Arc<
    dyn Fn(StatelessCall) -> Pin<Box<dyn Future<Output = StatelessReply> + Send>> + Send + Sync,
>;

/// Answer of a handler.
#[derive(Debug, Clone)]
pub enum StatelessReply {
    /// A result; `resultType` is added if it is absent.
    Result(Value),
    /// A result without changes.
    Exactly(Value),
    /// The text of a result, without changes.
    ResultText(String),
    /// The text of an error object, without changes; over HTTP with this status.
    ErrorText(u16, String),
    /// An error object, over HTTP with this status.
    Error(u16, Value),
    /// An error object without the id of the request, over HTTP with this status. A server sends it if
    /// it refuses a request before it reads the body.
    ErrorWithoutId(u16, Value),
    /// A status with a text that is not JSON-RPC, as a proxy in front of the server sends it.
    Refused(u16),
    /// No answer: the stream ends.
    End,
    /// No answer for as long as the caller waits.
    Hang,
}

impl StatelessReply {
    pub fn text(text: &str) -> Self {
        Self::Result(crate::backend::text(text))
    }

    pub fn error(code: i64, message: &str) -> Self {
        Self::Error(
            if code == -32601 { 404 } else { 400 },
            json!({"code": code, "message": message}),
        )
    }

    /// Returns an `input_required` result with these requests; `state` is to come back.
    pub fn needs(requests: Value, state: Option<&str>) -> Self {
        let mut result = json!({"resultType": "input_required"});
        if !requests.is_null() {
            result["inputRequests"] = requests;
        }
        if let Some(state) = state {
            result["requestState"] = json!(state);
        }
        Self::Exactly(result)
    }
}

/// Message to a caller.
#[derive(Debug)]
pub(crate) enum ResponsePart {
    Event(Value),
    /// The answer, over HTTP with this status.
    Answer(u16, String),
}

/// A request that is being answered.
#[derive(Debug, Clone)]
pub struct StatelessCall {
    pub message: Value,
    pub headers: HeaderMap,
    pub(crate) out: mpsc::Sender<ResponsePart>,
    pub(crate) cancelled: CancellationToken,
}

impl StatelessCall {
    pub fn params(&self) -> &Value {
        &self.message["params"]
    }

    pub fn arguments(&self) -> &Value {
        &self.message["params"]["arguments"]
    }

    pub fn meta(&self, key: &str) -> &Value {
        &self.message["params"]["_meta"][key]
    }

    /// Returns the client's answer under this key.
    pub fn input(&self, key: &str) -> &Value {
        &self.message["params"]["inputResponses"][key]
    }

    /// Returns the state that came back.
    pub fn state(&self) -> Option<&str> {
        self.message["params"]["requestState"].as_str()
    }

    pub async fn send(&self, message: Value) -> bool {
        self.out.send(ResponsePart::Event(message)).await.is_ok()
    }

    pub async fn notify(&self, method: &str, params: Value) -> bool {
        self.send(json!({"jsonrpc": "2.0", "method": method, "params": params})).await
    }

    pub async fn progress(&self, progress: f64) -> bool {
        self.notify(
            "notifications/progress",
            json!({"progressToken": self.meta("progressToken"), "progress": progress}),
        )
        .await
    }

    /// Waits until no caller waits for the answer any more.
    pub async fn client_disconnected(&self) {
        tokio::select! { () = self.cancelled.cancelled() => {}, () = self.out.closed() => {} }
    }
}

/// An open stream of notifications.
pub(crate) struct ListenStream {
    id: Value,
    filter: Value,
    out: mpsc::Sender<ResponsePart>,
    stop: CancellationToken,
}

pub(crate) struct StatelessState {
    capabilities: Value,
    lists: BTreeMap<&'static str, Vec<Value>>,
    ttl_ms: u64,
    page_size: usize,
    refused_uris: Vec<String>,
    handlers: HashMap<String, Handler>,
    tools: HashMap<String, Handler>,
    listens: Vec<ListenStream>,
    seen: Vec<RecordedRequest>,
    /// Ids of requests whose caller disconnected before the answer; streams of notifications always
    /// end so.
    given_up: Vec<Value>,
    /// Set when it supports 2025-11-25 only.
    legacy: bool,
    /// Set to answer `initialize` and to refuse `notifications/initialized`.
    breaks_off_sessions: bool,
    strict: bool,
    connections: Vec<AbortHandle>,
}

pub(crate) struct StatelessShared {
    state: Mutex<StatelessState>,
    changed: watch::Sender<u64>,
    judge: Judge,
}

impl StatelessShared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, StatelessState> {
        self.state.lock()
    }

    fn touch(&self) {
        self.changed.send_modify(|count| *count += 1);
    }
}

/// A backend on 127.0.0.1; gone when dropped.
pub struct StatelessBackend {
    shared: Arc<StatelessShared>,
    address: SocketAddr,
    pipe: bool,
    _server: AbortOnDrop,
    _verdict: JudgeGuard,
}

impl StatelessBackend {
    /// Starts a backend over Streamable HTTP.
    pub async fn http() -> Self {
        Self::start(false).await
    }

    /// Starts a backend with a message per line over TCP.
    pub async fn pipe() -> Self {
        Self::start(true).await
    }

    async fn start(pipe: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port on loopback");
        let address = listener.local_addr().expect("a bound listener has an address");
        let capabilities = json!({
            "tools": {"listChanged": true}, "prompts": {"listChanged": true}, "logging": {}, "completions": {},
            "resources": {"listChanged": true, "subscribe": true}, "extensions": {"io.modelcontextprotocol/tasks": {}},
        });
        let state = StatelessState {
            capabilities,
            lists: BTreeMap::new(),
            ttl_ms: 60_000,
            page_size: usize::MAX,
            refused_uris: Vec::new(),
            handlers: HashMap::new(),
            tools: HashMap::new(),
            listens: Vec::new(),
            seen: Vec::new(),
            given_up: Vec::new(),
            legacy: false,
            breaks_off_sessions: false,
            strict: true,
            connections: Vec::new(),
        };
        let judge = Judge::default();
        let shared = Arc::new(StatelessShared {
            state: Mutex::new(state),
            changed: watch::Sender::new(0),
            judge: judge.clone(),
        });
        let serving = shared.clone();
        let server = tokio::spawn(async move {
            if pipe {
                wires::serve_pipe(serving, listener).await
            } else {
                wires::serve_http(serving, listener).await
            }
        });
        Self { shared, address, pipe, _server: AbortOnDrop(server), _verdict: JudgeGuard(judge) }
    }

    /// Returns the admin API's body for this backend.
    pub fn spec(&self) -> Value {
        match self.pipe {
            true => json!({"transport": {"type": "tcp", "address": self.address.to_string()}}),
            false => {
                json!({"transport": {"type": "http", "url": format!("http://{}/mcp", self.address)}})
            }
        }
    }

    // ---- behaviour ----

    pub fn capabilities(&self, capabilities: Value) -> &Self {
        self.shared.lock().capabilities = capabilities;
        self
    }

    pub fn list(&self, member: &'static str, items: Vec<Value>) -> &Self {
        self.shared.lock().lists.insert(member, items);
        self
    }

    /// Sets the time in milliseconds for which its lists may be kept.
    pub fn ttl_ms(&self, ttl_ms: u64) -> &Self {
        self.shared.lock().ttl_ms = ttl_ms;
        self
    }

    /// Splits lists into pages of this size.
    pub fn page_size(&self, size: usize) -> &Self {
        self.shared.lock().page_size = size;
        self
    }

    /// Refuses to send updates of this resource.
    pub fn refuses_updates_of(&self, uri: &str) -> &Self {
        self.shared.lock().refused_uris.push(uri.to_owned());
        self
    }

    /// Adds a tool to the list and answers its calls.
    pub fn tool<F, R>(&self, name: &str, handler: F) -> &Self
    where
        F: Fn(StatelessCall) -> R + Send + Sync + 'static,
        R: Future<Output = StatelessReply> + Send + 'static,
    {
        let mut state = self.shared.lock();
        state.lists.entry("tools").or_default().push(crate::backend::tool(name));
        state.tools.insert(name.to_owned(), Arc::new(move |call| Box::pin(handler(call))));
        drop(state);
        self
    }

    /// Answers a method; also replaces the built-in answers.
    pub fn on<F, R>(&self, method: &str, handler: F) -> &Self
    where
        F: Fn(StatelessCall) -> R + Send + Sync + 'static,
        R: Future<Output = StatelessReply> + Send + 'static,
    {
        self.shared
            .lock()
            .handlers
            .insert(method.to_owned(), Arc::new(move |call| Box::pin(handler(call))));
        self
    }

    /// Makes it support 2025-11-25 and refuse 2026-07-28 from now on, or the other way round.
    pub fn accepts_sessions(&self, legacy: bool) -> &Self {
        self.shared.lock().legacy = legacy;
        self
    }

    /// Ends every open connection.
    pub fn cut_connections(&self) {
        let mut state = self.shared.lock();
        state.listens.clear();
        state.connections.drain(..).for_each(|connection| connection.abort());
    }

    // ---- messages it sends unasked ----

    /// Notifies every subscriber of this resource; returns how many those were.
    pub async fn updated(&self, uri: &str) -> usize {
        let wants = |filter: &Value| {
            filter["resourceSubscriptions"]
                .as_array()
                .is_some_and(|uris| uris.contains(&json!(uri)))
        };
        self.notify(wants, "notifications/resources/updated", json!({"uri": uri})).await
    }

    /// Notifies subscribers of a changed list. `list`: `tools`, `prompts` or `resources`.
    pub async fn list_changed(&self, list: &str) -> usize {
        let member = format!("{list}ListChanged");
        self.notify(
            |filter| filter[&member] == true,
            &format!("notifications/{list}/list_changed"),
            json!({}),
        )
        .await
    }

    async fn notify(&self, wants: impl Fn(&Value) -> bool, method: &str, params: Value) -> usize {
        let listens: Vec<_> = self
            .shared
            .lock()
            .listens
            .iter()
            .filter(|one| wants(&one.filter))
            .map(|one| (one.id.clone(), one.out.clone()))
            .collect();
        let mut notified = 0;
        for (id, out) in listens {
            let mut params = params.clone();
            params["_meta"] = json!({SUBSCRIPTION_ID: id});
            notified += usize::from(
                out.send(ResponsePart::Event(
                    json!({"jsonrpc": "2.0", "method": method, "params": params}),
                ))
                .await
                .is_ok(),
            );
        }
        notified
    }

    /// Ends the streams of notifications in the orderly way.
    pub async fn end_listens(&self) {
        let listens = std::mem::take(&mut self.shared.lock().listens);
        for one in listens {
            let result = json!({"resultType": "complete", "_meta": {SUBSCRIPTION_ID: one.id}});
            let _gone = one
                .out
                .send(ResponsePart::Answer(
                    200,
                    json!({"jsonrpc": "2.0", "id": one.id, "result": result}).to_string(),
                ))
                .await;
        }
    }

    /// Cuts the streams of notifications.
    pub fn cut_listens(&self) {
        let listens = std::mem::take(&mut self.shared.lock().listens);
        listens.iter().for_each(|one| one.stop.cancel());
    }

    // ---- messages it received ----

    pub fn recorded(&self) -> Vec<RecordedRequest> {
        self.shared.lock().seen.clone()
    }

    pub fn recorded_of(&self, method: &str) -> Vec<RecordedRequest> {
        self.shared.lock().seen.iter().filter(|seen| seen.is(method)).cloned().collect()
    }

    /// Returns the first request that matches, and waits for one if necessary.
    pub async fn wait_for(
        &self,
        what: &str,
        wanted: impl Fn(&RecordedRequest) -> bool,
    ) -> RecordedRequest {
        self.wait_state(what, |state| state.seen.iter().find(|seen| wanted(seen)).cloned()).await
    }

    pub async fn wait_count(
        &self,
        what: &str,
        count: usize,
        wanted: impl Fn(&RecordedRequest) -> bool,
    ) -> Vec<RecordedRequest> {
        self.wait_state(what, |state| {
            let found: Vec<_> = state.seen.iter().filter(|seen| wanted(seen)).cloned().collect();
            (found.len() >= count).then_some(found)
        })
        .await
    }

    /// Waits until a caller gave up the request with this id.
    pub async fn wait_for_cancelled(&self, id: &Value) {
        self.wait_state("a request to be given up", |state| {
            state.given_up.contains(id).then_some(())
        })
        .await;
    }

    /// Returns the ids of requests that were given up.
    pub fn cancelled_requests(&self) -> Vec<Value> {
        self.shared.lock().given_up.clone()
    }

    /// Waits until one stream listens to exactly these resources.
    pub async fn wait_listening_to(&self, uris: &[&str]) {
        self.wait_state("the stream of notifications", |state| {
            state.listens.retain(|one| !one.out.is_closed() && !one.stop.is_cancelled());
            let of = |one: &ListenStream| {
                one.filter["resourceSubscriptions"].as_array().cloned().unwrap_or_default()
            };
            let mut all: Vec<Vec<Value>> =
                state.listens.iter().map(of).filter(|uris| !uris.is_empty()).collect();
            let wanted: Vec<Value> = uris.iter().map(|uri| json!(uri)).collect();
            let only = if all.len() <= 1 { all.pop().unwrap_or_default() } else { return None };
            (only == wanted).then_some(())
        })
        .await;
    }

    async fn wait_state<T>(
        &self,
        what: &str,
        look: impl Fn(&mut StatelessState) -> Option<T>,
    ) -> T {
        let mut changed = self.shared.changed.subscribe();
        within(what, async {
            loop {
                if let Some(found) = look(&mut self.shared.lock()) {
                    return found;
                }
                // Only a look notices streams that their readers closed.
                let _looked =
                    tokio::time::timeout(std::time::Duration::from_millis(50), changed.changed())
                        .await;
            }
        })
        .await
    }
}

impl std::fmt::Debug for StatelessBackend {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "ModernBackend({})", self.address)
    }
}
