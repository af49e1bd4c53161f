//! A raw Streamable HTTP client: every header and every byte is the test's own.
//!
//! [`TestClient`] is cheap to clone; clones share the session. A request is a [`Call`]: a task that
//! reads the answer, JSON or event stream, and returns each message as it comes. Dropping a `Call`
//! drops its connection.

mod attempt;
mod call;
mod sending;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

pub use attempt::AttemptOutcome;
pub use call::Call;
use call::CallEvent;

use crate::{
    abort_on_drop::AbortOnDrop,
    deadline::{eventually, within},
    events::EventReader,
    http::{Http2Connection, HttpVersion, RawResponse, post},
    judge::Judge,
};

pub const ACCEPT_BOTH: &str = "application/json, text/event-stream";
pub const LATEST: &str = "2025-11-25";

/// Answers to a server's requests: `Ok` is a result, `Err` an error object.
pub type Answers = Arc<dyn Fn(&str, &Value) -> Result<Value, Value> + Send + Sync>;

/// A message as it came, with the id of the event that carried it.
#[derive(Debug, Clone)]
pub struct ReceivedMessage {
    pub text: String,
    pub value: Value,
    pub event_id: Option<String>,
}

impl ReceivedMessage {
    fn new(text: String, event_id: Option<String>) -> Self {
        let value = serde_json::from_str(&text).unwrap_or(Value::Null);
        Self { text, value, event_id }
    }

    pub fn method(&self) -> Option<&str> {
        self.value["method"].as_str()
    }

    pub fn is_response(&self) -> bool {
        self.value.get("result").is_some() || self.value.get("error").is_some()
    }
}

#[derive(Default)]
struct ClientState {
    session: Option<String>,
    version: Option<String>,
    http2: Option<(Http2Connection, AbortOnDrop)>,
    content_excused: Option<&'static str>,
}

#[derive(Clone)]
pub struct TestClient {
    address: SocketAddr,
    path: String,
    http: HttpVersion,
    headers: Vec<(String, String)>,
    answers: Option<Answers>,
    next_id: Arc<AtomicU64>,
    judge: Option<Judge>,
    state: Arc<Mutex<ClientState>>,
}

impl std::fmt::Debug for TestClient {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "TestClient({}{})", self.address, self.path)
    }
}

impl TestClient {
    /// Returns a client of `http://ADDRESS/PATH`.
    pub fn new(address: SocketAddr, path: &str) -> Self {
        Self {
            address,
            path: path.to_owned(),
            http: HttpVersion::Http1,
            headers: Vec::new(),
            answers: None,
            next_id: Arc::new(AtomicU64::new(1)),
            judge: None,
            state: Arc::default(),
        }
    }

    pub fn http(mut self, version: HttpVersion) -> Self {
        self.http = version;
        self
    }

    /// Adds a header to every request, after the usual ones.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn bearer(self, key: &str) -> Self {
        self.header("authorization", &format!("Bearer {key}"))
    }

    /// Answers the server's requests on every stream this client reads.
    pub fn answers(
        mut self,
        answers: impl Fn(&str, &Value) -> Result<Value, Value> + Send + Sync + 'static,
    ) -> Self {
        self.answers = Some(Arc::new(answers));
        self
    }

    /// Judges every message that the broker sends to this client. A client of [`crate::TestBroker`]
    /// has its broker's judge already.
    pub fn judged_by(mut self, judge: &Judge) -> Self {
        self.judge = Some(judge.clone());
        self
    }

    /// Restricts the judgement of messages to this client to their envelopes from now on. A backend
    /// of this test sends content that no schema allows, and the broker passes it on unchanged.
    /// `why` is for the reader.
    pub fn content_is_invalid_on_purpose(&self, why: &'static str) -> &Self {
        self.lock().content_excused = Some(why);
        self
    }

    /// Returns a client of the same session and credentials at another address, such as another
    /// replica's.
    pub fn to(&self, address: SocketAddr) -> Self {
        Self { address, ..self.clone() }
    }

    /// Returns a client of the same address and credentials without a session.
    pub fn fresh(&self) -> Self {
        Self { state: Arc::default(), ..self.clone() }
    }

    pub fn session(&self) -> Option<String> {
        self.lock().session.clone()
    }

    pub fn set_session(&self, session: Option<&str>) {
        self.lock().session = session.map(str::to_owned);
    }

    pub fn set_version(&self, version: Option<&str>) {
        self.lock().version = version.map(str::to_owned);
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, ClientState> {
        self.state.lock()
    }

    /// Returns the headers of a well-behaved client in this session.
    pub fn usual_headers(&self) -> Vec<(String, String)> {
        let mut headers = vec![
            ("content-type".to_owned(), "application/json".to_owned()),
            ("accept".to_owned(), ACCEPT_BOTH.to_owned()),
        ];
        let state = self.lock();
        headers.extend(state.session.iter().map(|id| ("mcp-session-id".to_owned(), id.clone())));
        headers.extend(
            state
                .version
                .iter()
                .map(|version| ("mcp-protocol-version".to_owned(), version.clone())),
        );
        headers.extend(self.headers.iter().cloned());
        headers
    }

    /// Returns a POST of this session as bytes on a socket, with `more` header lines.
    pub fn post_as_text(&self, more: &str, body: &str) -> String {
        let own = self.headers_without(&["content-type", "accept"]);
        let own: String = own.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        post(&self.path, &format!("{own}{more}"), body)
    }

    /// Returns the usual headers with some replaced or added.
    pub fn headers_with(&self, changes: &[(&str, &str)]) -> Vec<(String, String)> {
        let mut headers =
            self.headers_without(&changes.iter().map(|(name, _)| *name).collect::<Vec<_>>());
        headers
            .extend(changes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        headers
    }

    /// Returns the usual headers without some.
    pub fn headers_without(&self, names: &[&str]) -> Vec<(String, String)> {
        self.usual_headers()
            .into_iter()
            .filter(|(name, _)| !names.iter().any(|gone| gone.eq_ignore_ascii_case(name)))
            .collect()
    }

    /// Sends a request with the given (owned) headers and a deadline.
    pub async fn send_with(
        &self,
        method: &str,
        headers: Vec<(String, String)>,
        body: impl Into<Bytes>,
    ) -> RawResponse {
        within(&format!("the answer to {method}"), self.try_send(method, &headers, body.into()))
            .await
            .expect("the broker answers")
    }

    /// Sends a POST with the usual headers and this body.
    pub async fn post(&self, body: impl Into<Bytes>) -> RawResponse {
        self.send_with("POST", self.usual_headers(), body).await
    }

    /// Returns the result of `initialize`; the session id and version are kept for later requests.
    pub async fn initialize_only(&self, version: &str, capabilities: Value) -> Value {
        let id = self.take_id();
        let params = json!({"protocolVersion": version, "capabilities": capabilities, "clientInfo": {"name": "testkit", "version": "1"}});
        let body = json!({"jsonrpc": "2.0", "id": id, "method": "initialize", "params": params})
            .to_string();
        let response = self.post(body).await;
        let response = response.expect_status(200, "initialize is answered").await;
        let session = response.header("mcp-session-id").map(str::to_owned);
        let message = if response.is_event_stream() {
            response.events().find(|message| message.get("id").is_some()).await
        } else {
            response.json().await
        };
        let result = message
            .get("result")
            .cloned()
            .unwrap_or_else(|| panic!("initialize failed: {message}"));
        let mut state = self.lock();
        state.session = session;
        state.version = result["protocolVersion"].as_str().map(str::to_owned);
        result
    }

    /// Sends `initialize` and `notifications/initialized`; returns the result of the first.
    pub async fn initialize(&self, version: &str, capabilities: Value) -> Value {
        let result = self.initialize_only(version, capabilities).await;
        self.notify("notifications/initialized", json!({})).await;
        result
    }

    /// Opens a session of the newest version with these capabilities.
    pub async fn connected(self, capabilities: Value) -> Self {
        self.initialize(LATEST, capabilities).await;
        self
    }

    pub fn take_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a notification; it must be accepted (202).
    pub async fn notify(&self, method: &str, params: Value) {
        let response = self
            .post(json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string())
            .await;
        let status = response.status;
        let body = response.text().await;
        assert_eq!(
            (status, body.as_str()),
            (202, ""),
            "notification {method} accepted with an empty body"
        );
    }

    /// Starts a request.
    pub fn start_request(&self, method: &str, params: Value) -> Call {
        self.start_request_with_id(json!(self.take_id()), method, params)
    }

    pub fn start_request_with_id(&self, id: Value, method: &str, params: Value) -> Call {
        let body =
            json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string();
        self.start_raw(id, body)
    }

    /// Starts a request whose body is the test's own bytes; `id` is the id that the response must
    /// carry.
    pub fn start_raw(&self, id: Value, body: impl Into<Bytes>) -> Call {
        self.start_with_headers(id, self.usual_headers(), body)
    }

    /// Works as [`Self::start_raw`], with exactly these headers.
    pub fn start_with_headers(
        &self,
        id: Value,
        headers: Vec<(String, String)>,
        body: impl Into<Bytes>,
    ) -> Call {
        let (to_call, messages) = mpsc::channel(4096);
        let client = self.clone();
        let body = body.into();
        let reader = tokio::spawn(async move { client.read_answer(&headers, body, to_call).await });
        Call { id, messages, _reader: AbortOnDrop(reader), before: Vec::new(), status: None }
    }

    async fn read_answer(
        self,
        headers: &[(String, String)],
        body: Bytes,
        to_call: mpsc::Sender<CallEvent>,
    ) {
        let response = match self.try_send("POST", headers, body).await {
            Ok(response) => response,
            Err(error) => {
                let _ = to_call.send(CallEvent::Broken(error)).await;
                return;
            }
        };
        let _ = to_call
            .send(CallEvent::Head { status: response.status, stream: response.is_event_stream() })
            .await;
        if response.is_event_stream() {
            self.pump(response.events(), &to_call).await;
        } else {
            let item = match response.try_bytes().await {
                Ok(body) => CallEvent::Message(ReceivedMessage::new(
                    String::from_utf8_lossy(&body).into_owned(),
                    None,
                )),
                Err(error) => CallEvent::Broken(error),
            };
            let _ = to_call.send(item).await;
        }
    }

    /// Reads a stream to its end: answers the server's requests and passes every message on.
    async fn pump(&self, mut events: EventReader, to_call: &mpsc::Sender<CallEvent>) {
        while let Some(event) = events.advance().await {
            let item = match event.data {
                Some(text) if !text.is_empty() => {
                    let message = ReceivedMessage::new(text, event.id);
                    self.answer(&message).await;
                    CallEvent::Message(message)
                }
                _ => CallEvent::Bare(event),
            };
            if to_call.send(item).await.is_err() {
                return;
            }
        }
        if events.broken {
            let _ = to_call.send(CallEvent::Broken("the stream broke".to_owned())).await;
        }
    }

    async fn answer(&self, message: &ReceivedMessage) {
        let (Some(answers), Some(method), Some(id)) =
            (&self.answers, message.method(), message.value.get("id"))
        else {
            return;
        };
        match answers(method, &message.value["params"]) {
            Ok(result) => self.respond(id.clone(), result).await,
            Err(error) => self.respond_error(id.clone(), error).await,
        }
    }

    /// Answers a server's request with a result.
    pub async fn respond(&self, id: Value, result: Value) {
        let response =
            self.post(json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()).await;
        response.expect_status(202, "a response is accepted").await;
    }

    pub async fn respond_error(&self, id: Value, error: Value) {
        let response =
            self.post(json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string()).await;
        response.expect_status(202, "an error response is accepted").await;
    }

    /// Sends a request; returns the whole response message.
    pub async fn request(&self, method: &str, params: Value) -> Value {
        self.start_request(method, params).response().await.value
    }

    /// Sends a request; returns its result, and panics on an error.
    pub async fn result(&self, method: &str, params: Value) -> Value {
        let response = self.request(method, params).await;
        response.get("result").cloned().unwrap_or_else(|| panic!("{method} failed: {response}"))
    }

    /// Sends a request; returns its error, and panics on a result.
    pub async fn error(&self, method: &str, params: Value) -> Value {
        let response = self.request(method, params).await;
        response
            .get("error")
            .cloned()
            .unwrap_or_else(|| panic!("{method} did not fail: {response}"))
    }

    /// Returns the result of `tools/call`.
    pub async fn call(&self, tool: &str, arguments: Value) -> Value {
        self.result("tools/call", json!({"name": tool, "arguments": arguments})).await
    }

    pub fn start_call(&self, tool: &str, arguments: Value) -> Call {
        self.start_request("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// Reads every page of a list; returns the items under `member`.
    pub async fn list_all(&self, method: &str, member: &str) -> Vec<Value> {
        let mut items = Vec::new();
        let mut params = json!({});
        loop {
            let page = self.result(method, params).await;
            items.extend(
                page[member]
                    .as_array()
                    .unwrap_or_else(|| panic!("{method} has {member}: {page}"))
                    .iter()
                    .cloned(),
            );
            match page.get("nextCursor").and_then(Value::as_str) {
                Some(cursor) => params = json!({"cursor": cursor}),
                None => return items,
            }
        }
    }

    /// Returns the names in `tools/list`.
    pub async fn tool_names(&self) -> Vec<String> {
        self.list_all("tools/list", "tools")
            .await
            .iter()
            .map(|tool| tool["name"].as_str().unwrap_or("").to_owned())
            .collect()
    }

    /// Waits until `tools/list` has exactly these names.
    pub async fn wait_tools(&self, wanted: &[&str]) {
        eventually("the list of tools", || async {
            let names = self.tool_names().await;
            if names == wanted { Ok(()) } else { Err(names) }
        })
        .await;
    }

    /// Sends a GET for events; returns the answer, whatever its status.
    pub async fn get_stream_raw(&self, last_event_id: Option<&str>) -> RawResponse {
        within("the answer to GET", self.try_get_stream(last_event_id))
            .await
            .expect("the broker answers")
    }

    /// Opens the session's general stream.
    pub async fn open_get_stream(&self) -> EventReader {
        self.get_stream_raw(None).await.events()
    }

    /// Resumes a stream that broke.
    pub async fn resume(&self, last_event_id: &str) -> EventReader {
        self.get_stream_raw(Some(last_event_id)).await.events()
    }

    /// Sends a POST; returns the raw event stream of the answer.
    pub async fn post_stream(&self, body: impl Into<Bytes>) -> EventReader {
        self.post(body).await.events()
    }

    /// Sends DELETE; returns its status.
    pub async fn delete_session(&self) -> u16 {
        self.send_with("DELETE", self.headers_without(&["content-type", "accept"]), Bytes::new())
            .await
            .status
    }
}
