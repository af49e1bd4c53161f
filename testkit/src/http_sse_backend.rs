//! The scripted stdio backend behind HTTP+SSE (2024-11-05): each event stream is a process of its
//! own.

use std::{collections::HashMap, net::SocketAddr, process::Stdio, sync::Arc};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpListener,
    process::{Child, ChildStdin},
    task::AbortHandle,
};

use crate::{Gate, StdioScript, abort_on_drop::AbortOnDrop};

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// A backend on a port of 127.0.0.1; gone when dropped.
#[derive(Debug)]
pub struct HttpSseBackend {
    address: SocketAddr,
    shared: Arc<Shared>,
    _server: AbortOnDrop,
}

#[derive(Debug)]
struct Shared {
    script: StdioScript,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Data of the `endpoint` event, where `{}` stands for the number of the stream.
    endpoint: Option<String>,
    /// Status and body of every POST, instead of its delivery.
    refuse_posts: Option<(u16, String)>,
    /// Method whose POSTs wait for the gate before their delivery.
    held: Option<(String, Gate)>,
    /// Statuses of the POSTs that waited.
    held_statuses: Vec<u16>,
    seen: Vec<(Method, String, HeaderMap)>,
    streams: usize,
    inputs: HashMap<usize, Arc<tokio::sync::Mutex<ChildStdin>>>,
    /// Inputs of forgotten streams, which stay open.
    forgotten: Vec<Arc<tokio::sync::Mutex<ChildStdin>>>,
    connections: Vec<AbortHandle>,
}

impl HttpSseBackend {
    /// Starts the backend. The script is that of each stream's process.
    pub async fn start(script: &StdioScript) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let shared = Arc::new(Shared { script: script.clone(), state: Mutex::default() });
        let served = shared.clone();
        let server = AbortOnDrop(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let shared = served.clone();
                let service = service_fn(move |request| answer(shared.clone(), request));
                let connection = tokio::spawn(async move {
                    let _ = auto::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
                served.state.lock().connections.push(connection.abort_handle());
            }
        }));
        Self { address, shared, _server: server }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL of the event stream.
    pub fn url(&self) -> String {
        format!("http://{}/sse", self.address)
    }

    /// Returns the admin API's body for this backend.
    pub fn spec(&self) -> Value {
        json!({"transport": {"type": "sse", "url": self.url()}})
    }

    /// Sets the data of later `endpoint` events. `{}` stands for the number of the stream.
    pub fn endpoint(&self, data: &str) {
        self.shared.state.lock().endpoint = Some(data.to_owned());
    }

    /// Answers every POST with this status, or delivers them again.
    pub fn refuse_posts(&self, status: Option<u16>) {
        self.shared.state.lock().refuse_posts = status.map(|status| (status, String::new()));
    }

    /// Answers every POST with this status and body, where `@ID@` stands for the id of the request.
    pub fn refuse_posts_with(&self, status: u16, body: &str) {
        self.shared.state.lock().refuse_posts = Some((status, body.to_owned()));
    }

    /// Makes POSTs of this method wait for the gate.
    pub fn hold_posts(&self, method: &str, gate: &Gate) {
        self.shared.state.lock().held = Some((method.to_owned(), gate.clone()));
    }

    /// Returns the statuses of the POSTs that waited. 404: their stream had ended.
    pub fn held_statuses(&self) -> Vec<u16> {
        self.shared.state.lock().held_statuses.clone()
    }

    /// Forgets the sessions of all streams, which stay open. POSTs to them get 404.
    pub fn forget_streams(&self) {
        let mut state = self.shared.state.lock();
        let forgotten: Vec<_> = state.inputs.drain().map(|(_, input)| input).collect();
        state.forgotten.extend(forgotten);
    }

    /// Returns method, path and headers of every request so far.
    pub fn seen(&self) -> Vec<(Method, String, HeaderMap)> {
        self.shared.state.lock().seen.clone()
    }

    /// Returns the number of event streams so far.
    pub fn streams(&self) -> usize {
        self.shared.state.lock().streams
    }

    /// Ends every open connection, and with it every stream.
    pub fn cut(&self) {
        self.shared.state.lock().connections.drain(..).for_each(|connection| connection.abort());
    }
}

impl Drop for HttpSseBackend {
    fn drop(&mut self) {
        self.cut();
    }
}

async fn answer(
    shared: Arc<Shared>,
    request: Request<Incoming>,
) -> Result<Response<Body>, std::io::Error> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    shared.state.lock().seen.push((parts.method.clone(), path, parts.headers));
    let stream = parts.uri.query().and_then(|query| query.strip_prefix("stream=")?.parse().ok());
    match (parts.method, parts.uri.path(), stream) {
        (Method::GET, "/sse", _) => Ok(open(&shared)),
        (Method::POST, "/messages", Some(stream)) => {
            let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
            let held = shared.state.lock().held.clone();
            let held = held.filter(|(method, _)| is_of(&body, method));
            if let Some((_, gate)) = &held {
                gate.passed().await;
            }
            let (status, text) = deliver(&shared, stream, &body).await;
            if held.is_some() {
                shared.state.lock().held_statuses.push(status);
            }
            Ok(respond(status, text))
        }
        (_, "/sse", _) => Ok(respond(405, String::new())),
        _ => Ok(respond(404, String::new())),
    }
}

fn is_of(body: &[u8], method: &str) -> bool {
    serde_json::from_slice::<Value>(body).is_ok_and(|message| message["method"] == method)
}

/// Returns the status and the body of the response.
async fn deliver(shared: &Shared, stream: usize, body: &[u8]) -> (u16, String) {
    let input = {
        let state = shared.state.lock();
        match (&state.refuse_posts, state.inputs.get(&stream)) {
            (Some((status, text)), _) => {
                let message: Value = serde_json::from_slice(body).unwrap_or_default();
                return (*status, text.replace("@ID@", &message["id"].to_string()));
            }
            (None, None) => return (404, String::new()),
            (None, Some(input)) => input.clone(),
        }
    };
    let line = [body, b"\n"].concat();
    match input.lock().await.write_all(&line).await {
        Ok(()) => (202, "Accepted".to_owned()),
        Err(_) => (404, String::new()),
    }
}

/// The child of one stream, whose end ends the stream and the other way round.
struct OpenStream {
    shared: Arc<Shared>,
    number: usize,
    _child: Child,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.shared.state.lock().inputs.remove(&self.number);
    }
}

fn open(shared: &Arc<Shared>) -> Response<Body> {
    let mut command = shared.script.command();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().expect("the scripted backend starts");
    let input = child.stdin.take().expect("it is piped");
    let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let (number, endpoint) = {
        let mut state = shared.state.lock();
        state.streams += 1;
        let number = state.streams;
        state.inputs.insert(number, Arc::new(tokio::sync::Mutex::new(input)));
        let endpoint = state.endpoint.as_deref().unwrap_or("/messages?stream={}");
        (number, endpoint.replace("{}", &number.to_string()))
    };
    let kept = OpenStream { shared: shared.clone(), number, _child: child };
    let first = format!(": welcome\n\nevent: endpoint\ndata: {endpoint}\n\n");
    let events =
        stream::unfold((Some(first), lines, kept), |(first, mut lines, kept)| async move {
            let text = match first {
                Some(first) => first,
                // A server may send events of its own between those of MCP.
                None => format!(
                    "event: heartbeat\ndata: now\n\nevent: message\ndata: {}\n\n",
                    lines.next_line().await.ok()??
                ),
            };
            Some((Ok(Frame::data(Bytes::from(text))), (None, lines, kept)))
        });
    Response::builder()
        .header("content-type", "text/event-stream; charset=utf-8")
        .body(StreamBody::new(events).boxed_unsync())
        .expect("these headers are valid")
}

fn respond(status: u16, text: String) -> Response<Body> {
    let body = Full::from(text).map_err(|never: std::convert::Infallible| match never {});
    Response::builder().status(status).body(body.boxed_unsync()).expect("tests use valid statuses")
}
