//! The HTTP side of the fake backend: sessions, streams, and the built-in answers.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc};

use super::{
    BackendCall, BackendShared, BackendState, GetStream, RecordedRequest, Reply,
    exchange::{ReplyPart, ReplyStream, event_text},
};
use crate::judge::{JudgedExchange, Recipient, Revision};

type Body = BoxBody<Bytes, std::io::Error>;

/// Events that a handler may send ahead of its reader.
const STREAM_QUEUE: usize = 256;

pub(super) async fn serve(shared: Arc<BackendShared>, listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let to_service = shared.clone();
        let service = service_fn(move |request| answer(to_service.clone(), request));
        let connection = tokio::spawn(async move {
            let _ = auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
        let mut state = shared.lock();
        state.connections.retain(|connection| !connection.is_finished());
        state.connections.push(connection.abort_handle());
    }
}

async fn answer(
    shared: Arc<BackendShared>,
    request: Request<Incoming>,
) -> Result<Response<Body>, std::io::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    let message: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let seen = RecordedRequest {
        http: parts.method.to_string(),
        headers: parts.headers.clone(),
        body: body.clone(),
        message: message.clone(),
    };
    shared.lock().seen.push(seen);
    shared.touch();
    let gate = shared.lock().gate.clone();
    if let Some(refused) = gate.and_then(|gate| gate(parts.uri.path(), &parts.headers)) {
        let body = Bytes::from(refused.body.to_string());
        return Ok(respond(refused.status, &refused.headers, body));
    }
    judge(&shared, &parts.headers, &body);
    let session =
        parts.headers.get("mcp-session-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
    let opening = message["method"] == "initialize";
    if let (false, Some(status)) = (opening, session_fault(&shared.lock(), session.as_deref())) {
        return Ok(empty(status));
    }
    match parts.method.as_str() {
        "GET" => {
            let gate = shared.lock().get_gate.clone();
            if let Some(gate) = gate {
                gate.passed().await;
            }
            Ok(get(&shared, &parts.headers, session))
        }
        "DELETE" => Ok(delete(&shared, session)),
        "POST" => post(shared, parts.headers, body, message, session).await,
        _ => Ok(empty(405)),
    }
}

fn judge(shared: &BackendShared, headers: &HeaderMap, body: &[u8]) {
    if body.is_empty() {
        return;
    }
    let mut hearing = JudgedExchange::new(&shared.judge, Recipient::Backend);
    let named = headers
        .get("mcp-protocol-version")
        .and_then(|version| Revision::of(version.to_str().ok()?));
    let state = shared.lock();
    hearing.named = named.or_else(|| Revision::of(&state.version));
    hearing.content_excused = state.content_excused;
    drop(state);
    hearing.check_broker_message(body);
}

fn session_fault(state: &BackendState, session: Option<&str>) -> Option<u16> {
    match (state.issue_sessions, session) {
        (true, None) => Some(400),
        (true, Some(id)) if !state.sessions.contains(id) => Some(404),
        _ => None,
    }
}

fn empty(status: u16) -> Response<Body> {
    respond(status, &[], Bytes::new())
}

fn respond(status: u16, headers: &[(String, String)], body: Bytes) -> Response<Body> {
    let mut response =
        Response::builder().status(StatusCode::from_u16(status).expect("tests use valid statuses"));
    for (name, value) in headers {
        response = response.header(name, value);
    }
    let body = Full::new(body).map_err(|never: Infallible| match never {}).boxed();
    response.body(body).expect("tests use valid headers")
}

fn event_stream(
    first: Option<ReplyPart>,
    events: mpsc::Receiver<ReplyPart>,
    headers: &[(String, String)],
) -> Response<Body> {
    let frames = stream::unfold((first, events, false), |(first, mut events, ended)| async move {
        if ended {
            return None;
        }
        let out = match first {
            Some(out) => Some(out),
            None => events.recv().await,
        }?;
        match out {
            ReplyPart::Event(text) => {
                Some((Ok(Frame::data(Bytes::from(text))), (None, events, false)))
            }
            ReplyPart::Answer(text) => {
                Some((Ok(Frame::data(Bytes::from(event_text(None, &text)))), (None, events, true)))
            }
            ReplyPart::Http { .. } | ReplyPart::Cut => {
                // Earlier events are sent first: the server flushes when it has to wait.
                tokio::task::yield_now().await;
                Some((Err(std::io::Error::other("cut by the test")), (None, events, true)))
            }
        }
    });
    let mut response = Response::builder().status(200).header("content-type", "text/event-stream");
    for (name, value) in headers {
        response = response.header(name, value);
    }
    response.body(StreamBody::new(frames).boxed()).expect("these headers are valid")
}

fn get(shared: &BackendShared, headers: &HeaderMap, session: Option<String>) -> Response<Body> {
    let (out, events) = mpsc::channel(STREAM_QUEUE);
    let last_id = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let waiting = last_id.and_then(|id| shared.lock().resumes.remove(id));
    if let Some(waiting) = waiting {
        let _ = waiting.send(out);
        return event_stream(Some(ReplyPart::Event(": resumed\n\n".to_owned())), events, &[]);
    }
    if last_id.is_some() && !shared.lock().resumable {
        return empty(400);
    }
    if !shared.lock().get_streams {
        return empty(405);
    }
    shared.lock().gets.push(GetStream { session, out });
    shared.touch();
    event_stream(Some(ReplyPart::Event(": open\n\n".to_owned())), events, &[])
}

fn delete(shared: &BackendShared, session: Option<String>) -> Response<Body> {
    let mut state = shared.lock();
    if !state.delete_allowed {
        return empty(405);
    }
    if let Some(id) = session {
        state.sessions.remove(&id);
        state.gets.retain(|get| get.session.as_deref() != Some(&id));
    }
    drop(state);
    shared.touch();
    empty(200)
}

async fn post(
    shared: Arc<BackendShared>,
    headers: HeaderMap,
    body: Bytes,
    message: Value,
    session: Option<String>,
) -> Result<Response<Body>, std::io::Error> {
    if message.get("method").is_none() {
        if let Some(waiting) =
            message.get("id").and_then(|id| shared.lock().pending_requests.remove(&id.to_string()))
        {
            let _ = waiting.send(message);
        }
        return Ok(empty(202));
    }
    let method = message["method"].as_str().unwrap_or("").to_owned();
    if message.get("id").is_none() {
        let handler = shared.lock().handlers.get(&method).cloned();
        if let Some(handler) = handler {
            let call = BackendCall {
                message,
                body,
                headers,
                session,
                shared: shared.clone(),
                line: ReplyStream::default(),
            };
            match handler(call).await {
                Reply::Http { status, headers, body } => {
                    return Ok(respond(status, &headers, body));
                }
                // Some servers open an event stream for a notification, and leave it open.
                Reply::Hang => {
                    let (out, events) = mpsc::channel(STREAM_QUEUE);
                    tokio::spawn(async move { out.closed().await });
                    let opened = ReplyPart::Event(": open\n\n".to_owned());
                    return Ok(event_stream(Some(opened), events, &[]));
                }
                _ => {}
            }
        }
        return Ok(empty(202));
    }
    let mut extra = Vec::new();
    if method == "initialize" {
        extra.extend(new_session(&shared).map(|id| ("mcp-session-id".to_owned(), id)));
    }
    let (out, mut events) = mpsc::channel(STREAM_QUEUE);
    let call = BackendCall {
        message,
        body,
        headers,
        session,
        shared: shared.clone(),
        line: ReplyStream::new(out, &shared.judge),
    };
    tokio::spawn(run(shared, method, call));
    let Some(first) = events.recv().await else {
        return Err(std::io::Error::other("the handler gave up"));
    };
    match first {
        ReplyPart::Answer(text) => {
            extra.push(("content-type".to_owned(), "application/json".to_owned()));
            Ok(respond(200, &extra, Bytes::from(text)))
        }
        ReplyPart::Http { status, headers, body } => {
            extra.extend(headers);
            Ok(respond(status, &extra, body))
        }
        ReplyPart::Cut => Err(std::io::Error::other("cut by the test")),
        event @ ReplyPart::Event(_) => Ok(event_stream(Some(event), events, &extra)),
    }
}

fn new_session(shared: &BackendShared) -> Option<String> {
    let mut state = shared.lock();
    if !state.issue_sessions {
        return None;
    }
    state.sessions_issued += 1;
    let id = format!("fake-session-{}", state.sessions_issued);
    state.sessions.insert(id.clone());
    drop(state);
    shared.touch();
    Some(id)
}

async fn run(shared: Arc<BackendShared>, method: String, call: BackendCall) {
    let handler = {
        let state = shared.lock();
        let by_tool = (method == "tools/call")
            .then(|| call.params()["name"].as_str().and_then(|name| state.tools.get(name)))
            .flatten();
        state.handlers.get(&method).or(by_tool).cloned()
    };
    let (line, id) = (call.line.clone(), call.id().clone());
    let reply = match handler {
        Some(handler) => handler(call).await,
        None => built_in(&shared.lock(), &method, &call),
    };
    line.finish(&id, reply).await;
}

fn built_in(state: &BackendState, method: &str, call: &BackendCall) -> Reply {
    match method {
        "initialize" => {
            let mut result = json!({
                "protocolVersion": state.version, "capabilities": state.capabilities, "serverInfo": state.server_info,
            });
            if let Some(text) = &state.instructions {
                result["instructions"] = json!(text);
            }
            Reply::Result(result)
        }
        "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe" => {
            Reply::Result(json!({}))
        }
        "tools/list" => page(state, "tools", call),
        "prompts/list" => page(state, "prompts", call),
        "resources/list" => page(state, "resources", call),
        "resources/templates/list" => page(state, "resourceTemplates", call),
        "tools/call" => Reply::Result(
            json!({"content": [{"type": "text", "text": call.arguments().to_string()}]}),
        ),
        "resources/read" => {
            Reply::Result(json!({"contents": [{"uri": call.params()["uri"], "text": "content"}]}))
        }
        "prompts/get" => {
            let text =
                format!("{}: {}", call.params()["name"].as_str().unwrap_or(""), call.arguments());
            Reply::Result(
                json!({"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}),
            )
        }
        other => Reply::error(-32601, &format!("the fake backend has no {other}")),
    }
}

fn page(state: &BackendState, member: &'static str, call: &BackendCall) -> Reply {
    let items = state.lists.get(member).cloned().unwrap_or_default();
    let start = match call.params()["cursor"].as_str() {
        None => 0,
        Some(cursor) => {
            match cursor.strip_prefix("page:").and_then(|at| at.parse::<usize>().ok()) {
                Some(start) => start,
                None => return Reply::error(-32602, "unknown cursor"),
            }
        }
    };
    let end = start.saturating_add(state.page_size).min(items.len());
    let mut result = json!({ member: items.get(start..end).unwrap_or_default() });
    if end < items.len() {
        result["nextCursor"] = json!(format!("page:{end}"));
    }
    Reply::Result(result)
}
