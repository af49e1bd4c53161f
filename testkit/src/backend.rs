//! A scriptable MCP server over Streamable HTTP: the backend tests put behind the broker.
//!
//! Out of the box it answers the handshake, ping and the lists, and `tools/call` with an echo. Everything else is a
//! handler: it gets a [`BackendCall`], may speak on the call's own event stream first, and returns a [`Reply`]. Every request is
//! recorded byte for byte ([`RecordedRequest`]).

mod exchange;
mod line_bridge;
mod recorded_request;
mod server;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
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
    sync::{mpsc, oneshot, watch},
    task::AbortHandle,
};

use exchange::ReplyPart;
pub use exchange::{BackendCall, Reply};
use line_bridge::LineBridge;
pub use recorded_request::RecordedRequest;

use crate::{
    abort_on_drop::AbortOnDrop,
    deadline::{Gate, within},
    judge::{Judge, JudgeGuard},
};

type Handler =
    Arc<dyn Fn(BackendCall) -> Pin<Box<dyn Future<Output = Reply> + Send>> + Send + Sync>;

/// Decides about a request before the backend reads it, by path and headers. `None` lets it pass.
pub type RequestGate = Arc<dyn Fn(&str, &HeaderMap) -> Option<GateAnswer> + Send + Sync>;

/// Answer of a [`RequestGate`].
#[derive(Debug, Clone)]
pub struct GateAnswer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Value,
}

struct GetStream {
    session: Option<String>,
    out: mpsc::Sender<ReplyPart>,
}

struct BackendState {
    version: String,
    capabilities: Value,
    server_info: Value,
    instructions: Option<String>,
    issue_sessions: bool,
    get_streams: bool,
    /// Holds the answers to GET back until it is open.
    get_gate: Option<Gate>,
    resumable: bool,
    delete_allowed: bool,
    page_size: usize,
    content_excused: Option<&'static str>,
    gate: Option<RequestGate>,
    lists: BTreeMap<&'static str, Vec<Value>>,
    handlers: HashMap<String, Handler>,
    tools: HashMap<String, Handler>,
    sessions: BTreeSet<String>,
    sessions_issued: usize,
    gets: Vec<GetStream>,
    pending_requests: HashMap<String, oneshot::Sender<Value>>,
    requests_sent: u64,
    resumes: HashMap<String, oneshot::Sender<mpsc::Sender<ReplyPart>>>,
    seen: Vec<RecordedRequest>,
    connections: Vec<AbortHandle>,
}

struct BackendShared {
    state: Mutex<BackendState>,
    changed: watch::Sender<u64>,
    judge: Judge,
}

impl BackendShared {
    fn lock(&self) -> MutexGuard<'_, BackendState> {
        self.state.lock()
    }

    fn touch(&self) {
        self.changed.send_modify(|count| *count += 1);
    }
}

/// A backend on 127.0.0.1; gone when dropped.
pub struct FakeBackend {
    shared: Arc<BackendShared>,
    address: SocketAddr,
    server: AbortOnDrop,
    /// Set when it is reached by lines over TCP.
    piped: Option<LineBridge>,
    verdict: JudgeGuard,
}

impl FakeBackend {
    /// Starts a backend without tools. It declares tools, resources and prompts with `listChanged`
    /// and `subscribe`.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port on loopback");
        Self::on_listener(listener)
    }

    /// Puts the backend behind lines over TCP. Its behaviour stays the same, and each connection is
    /// a session.
    pub async fn behind_lines(mut self) -> Self {
        self.sessions();
        self.piped = Some(LineBridge::to(self.address).await);
        self
    }

    /// Starts a backend with one tool that answers by `handler`.
    pub async fn with_tool<F, R>(name: &str, handler: F) -> Self
    where
        F: Fn(BackendCall) -> R + Send + Sync + 'static,
        R: Future<Output = Reply> + Send + 'static,
    {
        let backend = Self::start().await;
        backend.tool(name, handler);
        backend
    }

    /// Starts a backend with one tool named `echo` that returns its arguments.
    pub async fn echo() -> Self {
        let backend = Self::start().await;
        backend.list("tools", vec![tool("echo")]);
        backend
    }

    pub fn on_listener(listener: TcpListener) -> Self {
        let address = listener.local_addr().expect("a bound listener has an address");
        let capabilities = json!({
            "tools": {"listChanged": true}, "prompts": {"listChanged": true}, "logging": {}, "completions": {},
            "resources": {"listChanged": true, "subscribe": true},
        });
        let state = BackendState {
            version: "2025-11-25".to_owned(),
            capabilities,
            server_info: json!({"name": "fake", "version": "1"}),
            instructions: None,
            issue_sessions: false,
            get_streams: true,
            get_gate: None,
            resumable: true,
            delete_allowed: true,
            page_size: usize::MAX,
            content_excused: None,
            gate: None,
            lists: BTreeMap::new(),
            handlers: HashMap::new(),
            tools: HashMap::new(),
            sessions: BTreeSet::new(),
            sessions_issued: 0,
            gets: Vec::new(),
            pending_requests: HashMap::new(),
            requests_sent: 0,
            resumes: HashMap::new(),
            seen: Vec::new(),
            connections: Vec::new(),
        };
        let judge = Judge::default();
        let shared = Arc::new(BackendShared {
            state: Mutex::new(state),
            changed: watch::Sender::new(0),
            judge: judge.clone(),
        });
        let server = AbortOnDrop(tokio::spawn(server::serve(shared.clone(), listener)));
        Self { shared, address, server, piped: None, verdict: JudgeGuard(judge) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// Returns the admin API's body for this backend.
    pub fn spec(&self) -> Value {
        match &self.piped {
            Some(piped) => {
                json!({"transport": {"type": "tcp", "address": piped.address.to_string()}})
            }
            None => json!({"transport": {"type": "http", "url": self.url()}}),
        }
    }

    // ---- behaviour ----

    /// Sets the version that `initialize` is answered with.
    pub fn version(&self, version: &str) -> &Self {
        self.shared.lock().version = version.to_owned();
        self
    }

    pub fn capabilities(&self, capabilities: Value) -> &Self {
        self.shared.lock().capabilities = capabilities;
        self
    }

    pub fn server_info(&self, info: Value, instructions: Option<&str>) -> &Self {
        let mut state = self.shared.lock();
        state.server_info = info;
        state.instructions = instructions.map(str::to_owned);
        drop(state);
        self
    }

    /// Issues a session id at `initialize` and requires it afterwards.
    pub fn sessions(&self) -> &Self {
        self.shared.lock().issue_sessions = true;
        self
    }

    /// Answers GET with 405.
    pub fn no_get_stream(&self) -> &Self {
        self.shared.lock().get_streams = false;
        self
    }

    /// Answers a GET that resumes from an event id with 400.
    pub fn no_resumption(&self) -> &Self {
        self.shared.lock().resumable = false;
        self
    }

    /// Answers DELETE with 405.
    pub fn no_delete(&self) -> &Self {
        self.shared.lock().delete_allowed = false;
        self
    }

    /// Restricts the judgement of messages to this backend to their envelopes from now on. A client
    /// of this test sends content that no schema allows, and the broker passes it on unchanged.
    /// `why` is for the reader.
    pub fn content_is_invalid_on_purpose(&self, why: &'static str) -> &Self {
        self.shared.lock().content_excused = Some(why);
        self
    }

    /// Answers requests for which the gate returns an answer, before anything else reads them.
    pub fn gate<F>(&self, gate: F) -> &Self
    where
        F: Fn(&str, &HeaderMap) -> Option<GateAnswer> + Send + Sync + 'static,
    {
        self.shared.lock().gate = Some(Arc::new(gate));
        self
    }

    /// Splits lists into pages of this size.
    pub fn page_size(&self, size: usize) -> &Self {
        self.shared.lock().page_size = size;
        self
    }

    /// Sets the items of a list (`tools`, `resources`, `resourceTemplates`, `prompts`).
    pub fn list(&self, member: &'static str, items: Vec<Value>) -> &Self {
        self.shared.lock().lists.insert(member, items);
        self
    }

    /// Adds a tool to the list and answers its calls.
    pub fn tool<F, R>(&self, name: &str, handler: F) -> &Self
    where
        F: Fn(BackendCall) -> R + Send + Sync + 'static,
        R: Future<Output = Reply> + Send + 'static,
    {
        let mut state = self.shared.lock();
        state.lists.entry("tools").or_default().push(tool(name));
        state.tools.insert(name.to_owned(), Arc::new(move |call| Box::pin(handler(call))));
        drop(state);
        self
    }

    /// Answers a method; also replaces the built-in answers.
    pub fn on<F, R>(&self, method: &str, handler: F) -> &Self
    where
        F: Fn(BackendCall) -> R + Send + Sync + 'static,
        R: Future<Output = Reply> + Send + 'static,
    {
        self.shared
            .lock()
            .handlers
            .insert(method.to_owned(), Arc::new(move |call| Box::pin(handler(call))));
        self
    }

    /// Makes every session id issued so far unknown (404).
    pub fn forget_sessions(&self) {
        self.shared.lock().sessions.clear();
    }

    /// Cuts every open connection.
    pub fn cut_connections(&self) {
        let mut state = self.shared.lock();
        state.gets.clear();
        state.connections.drain(..).for_each(|connection| connection.abort());
    }

    /// Stops listening and cuts every connection: the backend is dead. Returns the address for a
    /// successor.
    pub async fn die(self) -> SocketAddr {
        let Self { shared, address, server, verdict: _verdict, piped: _piped } = self;
        let mut server = server;
        server.0.abort();
        let _ = (&mut server.0).await;
        let mut state = shared.lock();
        state.gets.clear();
        state.connections.drain(..).for_each(|connection| connection.abort());
        address
    }

    // ---- messages it sends unasked ----

    /// Sends a message on every open GET stream; returns how many there were.
    pub async fn push(&self, message: Value) -> usize {
        self.push_where(|_| true, &exchange::event_text(None, &message.to_string())).await
    }

    /// Sends a message on the GET streams of one session.
    pub async fn push_to(&self, session: &str, message: Value) -> usize {
        self.push_where(|of| of == Some(session), &exchange::event_text(None, &message.to_string()))
            .await
    }

    /// Sends bytes as they are on every open GET stream.
    pub async fn push_raw(&self, text: &str) -> usize {
        self.push_where(|_| true, text).await
    }

    async fn push_where(&self, wanted: impl Fn(Option<&str>) -> bool, text: &str) -> usize {
        let outs: Vec<_> = self
            .shared
            .lock()
            .gets
            .iter()
            .filter(|get| wanted(get.session.as_deref()))
            .map(|get| get.out.clone())
            .collect();
        self.shared.judge.record_peer_message(None, text.as_bytes());
        let mut sent = 0;
        for out in outs {
            sent += usize::from(out.send(ReplyPart::Event(text.to_owned())).await.is_ok());
        }
        sent
    }

    pub async fn notify(&self, method: &str, params: Value) -> usize {
        self.push(json!({"jsonrpc": "2.0", "method": method, "params": params})).await
    }

    /// Holds the answers to GET back until the gate is open.
    pub fn hold_get_streams(&self, gate: &Gate) -> &Self {
        self.shared.lock().get_gate = Some(gate.clone());
        self
    }

    /// Ends the GET streams (orderly), as a server that polls would.
    pub async fn end_get_streams(&self) {
        let gets = std::mem::take(&mut self.shared.lock().gets);
        drop(gets);
    }

    // ---- messages it received ----

    pub fn recorded(&self) -> Vec<RecordedRequest> {
        self.shared.lock().seen.clone()
    }

    /// Drops the recorded requests, of which a long run makes too many to keep.
    pub fn forget_recorded(&self) {
        self.shared.lock().seen.clear();
    }

    /// Returns the recorded requests of one JSON-RPC method.
    pub fn recorded_of(&self, method: &str) -> Vec<RecordedRequest> {
        self.shared.lock().seen.iter().filter(|seen| seen.is(method)).cloned().collect()
    }

    pub fn count(&self, wanted: impl Fn(&RecordedRequest) -> bool) -> usize {
        self.shared.lock().seen.iter().filter(|seen| wanted(seen)).count()
    }

    /// Returns the first recorded request that matches, and waits for one if necessary.
    pub async fn wait_for(
        &self,
        what: &str,
        wanted: impl Fn(&RecordedRequest) -> bool,
    ) -> RecordedRequest {
        self.wait_state(what, |state| state.seen.iter().find(|seen| wanted(seen)).cloned()).await
    }

    /// Waits until `count` recorded requests match.
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

    /// Waits until this many GET streams are open.
    pub async fn wait_get_streams(&self, count: usize) {
        self.wait_state("open GET streams", |state| {
            state.gets.retain(|get| !get.out.is_closed());
            (state.gets.len() >= count).then_some(())
        })
        .await;
    }

    /// Waits until a session has an open GET stream.
    pub async fn wait_get_stream_of(&self, session: &str) {
        let is_open =
            |get: &GetStream| get.session.as_deref() == Some(session) && !get.out.is_closed();
        self.wait_state("its GET stream", |state| state.gets.iter().any(is_open).then_some(()))
            .await;
    }

    /// Returns the session ids that are alive now.
    pub fn live_sessions(&self) -> Vec<String> {
        self.shared.lock().sessions.iter().cloned().collect()
    }

    pub async fn wait_live_sessions(&self, wanted: impl Fn(usize) -> bool) {
        self.wait_state("the number of live sessions", |state| {
            wanted(state.sessions.len()).then_some(())
        })
        .await;
    }

    async fn wait_state<T>(&self, what: &str, look: impl Fn(&mut BackendState) -> Option<T>) -> T {
        let mut changed = self.shared.changed.subscribe();
        within(what, async {
            loop {
                if let Some(found) = look(&mut self.shared.lock()) {
                    return found;
                }
                changed.changed().await.expect("the sender lives as long as this backend");
            }
        })
        .await
    }
}

impl std::fmt::Debug for FakeBackend {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "FakeBackend({})", self.address)
    }
}

/// Returns a tool definition that accepts any arguments.
pub fn tool(name: &str) -> Value {
    json!({"name": name, "description": format!("the tool {name}"), "inputSchema": {"type": "object"}})
}

/// Returns a tool result with one text item.
pub fn text(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}
