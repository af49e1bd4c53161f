//! One HTTP request, from its head to its response (MCP 2025-11-25, Streamable HTTP).
//!
//! The checks come in a fixed order: path, origin, method, credential, media types, body, envelope, version, session. A
//! session learns nothing of HTTP: it gets messages and pushes into streams.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method as HttpMethod, Request, Response, StatusCode,
    header::{CONTENT_LENGTH, EXPECT, ORIGIN, VARY},
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use protocol::{
    envelope::{Body as Frames, Kind, Message, Rejected, decode_body},
    error::{ErrorKind, Refusal},
    handshake,
    ids::{BackendId, RequestId},
    json::Limits,
    method::Method,
};

use super::{
    answer::{self, Body, EventStyle},
    gate::{self, Gate},
};
use crate::{
    actors::{
        session::{Resumed, Session},
        stream::{EventStream, Next, Reader},
    },
    auth::Caller,
    broker::{Broker, unknown_backend},
    limits::{DISCARD_WAIT, DISCARDED_BYTES_MAX},
    metrics::{Direction, Side},
    rules::{
        catalog::Endpoint,
        event_log::{Event, EventKind},
    },
};

const TRANSPORT: &str = "http";
const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Serves one request. Whatever is wrong with it becomes a response.
pub(super) async fn handle(broker: &Arc<Broker>, gate: &Gate, request: Request<Incoming>) -> Response<Body> {
    let origin = request.headers().get(ORIGIN).cloned();
    let mut response = match dispatch(broker, gate, request).await {
        Ok(response) => response,
        Err(Rejected { refusal, id, .. }) => answer::refusal(&broker.shared, &refusal, id.as_ref()),
    };
    // A page from an allowed origin may read the answer, the session id included.
    if let Some(origin) = origin.filter(|origin| gate.allows_origin(origin)) {
        let headers = response.headers_mut();
        headers.insert("access-control-allow-origin", origin);
        headers.insert("access-control-expose-headers", HeaderValue::from_static("mcp-session-id, mcp-protocol-version"));
        headers.append(VARY, HeaderValue::from_static("origin"));
    }
    response
}

async fn dispatch(broker: &Arc<Broker>, gate: &Gate, request: Request<Incoming>) -> Result<Response<Body>, Rejected> {
    let endpoint = endpoint(request.uri().path())?;
    gate.admits(request.headers(), request.uri()).map_err(anonymous)?;
    let method = request.method().clone();
    if method == HttpMethod::OPTIONS {
        return Ok(preflight());
    }
    if ![HttpMethod::POST, HttpMethod::GET, HttpMethod::DELETE].contains(&method) {
        return Err(anonymous(Refusal::new(ErrorKind::MethodNotAllowed, "this endpoint takes GET, POST and DELETE")));
    }
    let bearer = gate::bearer(request.headers(), request.uri()).map_err(anonymous)?;
    let caller = broker.authenticate(bearer).map_err(anonymous)?;
    if let Endpoint::Single(backend) = &endpoint {
        let known = broker.tenant(&caller.tenant).is_some_and(|tenant| tenant.backend(backend).is_some());
        if !known {
            return Err(anonymous(unknown_backend(backend)));
        }
    }
    if method == HttpMethod::POST {
        return Post::read(broker, caller, endpoint, request).await?.serve().await;
    }
    let (headers, version) = (request.headers(), gate::version(request.headers()));
    let session_id = session_id(headers).map_err(anonymous)?;
    if method == HttpMethod::GET {
        gate::accepts_events(headers).map_err(anonymous)?;
    }
    version.map_err(anonymous)?;
    let session_id = session_id.ok_or_else(|| anonymous(session_required()))?;
    let session = broker.session_for(session_id, &caller, &endpoint).await.map_err(anonymous)?;
    session.touch();
    if method == HttpMethod::DELETE {
        broker.delete_session(&session).await.map_err(anonymous)?;
        return Ok(answer::empty(StatusCode::NO_CONTENT));
    }
    listen(&session, headers).await.map_err(anonymous)
}

/// `/mcp` and `/mcp/{backend}`, nothing else.
fn endpoint(path: &str) -> Result<Endpoint, Rejected> {
    let nowhere = || Refusal::new(ErrorKind::NotFound, "there is nothing here: MCP is at /mcp and /mcp/{backend}");
    match path.strip_prefix("/mcp") {
        Some("" | "/") => Ok(Endpoint::Aggregated),
        Some(rest) => {
            let name = rest.strip_prefix('/').map(|name| name.strip_suffix('/').unwrap_or(name));
            name.and_then(|name| BackendId::parse(name).ok()).map(Endpoint::Single).ok_or_else(|| anonymous(nowhere()))
        }
        None => Err(anonymous(nowhere())),
    }
}

/// CORS preflight (Fetch standard); a page that is not allowed gets no grant.
fn preflight() -> Response<Body> {
    let mut response = answer::empty(StatusCode::NO_CONTENT);
    let headers = response.headers_mut();
    headers.insert("allow", HeaderValue::from_static("GET, POST, DELETE, OPTIONS"));
    headers.insert("access-control-allow-methods", HeaderValue::from_static("GET, POST, DELETE"));
    let allowed = "authorization, content-type, accept, mcp-session-id, mcp-protocol-version, last-event-id";
    headers.insert("access-control-allow-headers", HeaderValue::from_static(allowed));
    headers.insert("access-control-max-age", HeaderValue::from_static("600"));
    response
}

/// A GET: a new general stream, or an old stream from where the client left it.
async fn listen(session: &Arc<Session>, headers: &HeaderMap) -> Result<Response<Body>, Refusal> {
    let (reader, gap) = match headers.get(LAST_EVENT_ID) {
        None => (session.open_general_stream().await?, false),
        Some(id) => {
            let Resumed { reader, gap } = session.resume(id.to_str().unwrap_or_default()).await?;
            if !gap {
                session.shared.metrics.events_replayed(reader.behind());
            }
            (reader, gap)
        }
    };
    Ok(stamped(answer::events(&session.shared, reader, &[], EventStyle { gap, ..style(session) }), session))
}

/// A POST, read and understood as far as its envelope.
struct Post<'a> {
    broker: &'a Arc<Broker>,
    caller: Caller,
    endpoint: Endpoint,
    headers: HeaderMap,
    /// The session the header names, as its owner finds it; `None` without a header.
    session: Option<Result<Arc<Session>, Refusal>>,
    frames: Frames,
}

impl<'a> Post<'a> {
    async fn read(broker: &'a Arc<Broker>, caller: Caller, endpoint: Endpoint, request: Request<Incoming>) -> Result<Self, Rejected> {
        let (head, body) = request.into_parts();
        gate::is_json(&head.headers).map_err(anonymous)?;
        gate::accepts_answers(&head.headers).map_err(anonymous)?;
        let shared = &broker.shared;
        let limits = Limits { bytes_max: shared.config.limits.message_bytes, ..Limits::default() };
        let frame = read_body(&head.headers, body, limits.bytes_max, shared.config.timeouts.request_read).await.map_err(anonymous)?;
        shared.metrics.bytes(Direction::In, Side::Client, frame.len());
        let session_id = session_id(&head.headers).map_err(anonymous)?;
        let session = match session_id {
            Some(id) => Some(broker.session_for(id, &caller, &endpoint).await),
            None => None,
        };
        // Only sessions of 2025-03-26 know batches.
        let batches = matches!(&session, Some(Ok(session)) if session.version.batches());
        let frames = decode_body(frame, &limits, batches)?;
        Ok(Self { broker, caller, endpoint, headers: head.headers, session, frames })
    }

    async fn serve(self) -> Result<Response<Body>, Rejected> {
        let version = gate::version(&self.headers);
        let session = self.session;
        match self.frames {
            Frames::One(message) => {
                let reject = |refusal| Rejected::new(refusal, message.id.clone());
                if message.is_modern() {
                    return Err(reject(gate::modern_era()));
                }
                version.map_err(reject)?;
                if message.method == Method::Initialize && !matches!(session, Some(Ok(_))) {
                    return initialize(self.broker, self.caller, self.endpoint, &message).await;
                }
                let session = session.unwrap_or_else(|| Err(session_required())).map_err(reject)?;
                session.touch();
                one(&session, message).await
            }
            Frames::Batch(messages) => {
                version.map_err(anonymous)?;
                let session = session.unwrap_or_else(|| Err(session_required())).map_err(anonymous)?;
                session.touch();
                Ok(batch(&session, messages).await)
            }
        }
    }
}

async fn initialize(broker: &Arc<Broker>, caller: Caller, endpoint: Endpoint, message: &Message) -> Result<Response<Body>, Rejected> {
    let reject = |refusal| Rejected::new(refusal, message.id.clone());
    let Some(id) = message.id.as_ref().filter(|_| message.kind == Kind::Request) else {
        return Err(reject(Refusal::new(ErrorKind::InvalidRequest, "initialize is a request and has an id")));
    };
    let (session, result) = broker.open_session(caller, endpoint, TRANSPORT, message).await.map_err(reject)?;
    let mut response = stamped(answer::json(StatusCode::OK, handshake::success(id, &result)), &session);
    if let Ok(value) = HeaderValue::from_str(session.id.as_str()) {
        response.headers_mut().insert(SESSION_ID, value);
    }
    Ok(response)
}

/// One message of an open session.
async fn one(session: &Arc<Session>, message: Message) -> Result<Response<Body>, Rejected> {
    match message.kind {
        Kind::Notification => session.notify(&message),
        Kind::Result | Kind::Error => session.answer(&message),
        Kind::Request => {
            let (id, stream) = (message.id.clone(), session.open_stream(message.id.iter().cloned().collect(), 0));
            let reader = stream.read_from(0).map_err(|_| anonymous(Refusal::new(ErrorKind::Internal, "a new stream can not be read")))?;
            session.submit(message, &stream).map_err(|refusal| Rejected::new(refusal, id))?;
            return Ok(respond(session, reader).await);
        }
    }
    Ok(stamped(answer::empty(StatusCode::ACCEPTED), session))
}

/// Waits for the first thing to send: when that is the answer the response is JSON, otherwise (or when it takes long) an
/// event stream.
async fn respond(session: &Arc<Session>, mut reader: Reader) -> Response<Body> {
    let first = tokio::time::timeout(session.shared.config.events.keepalive, reader.next()).await;
    let response = match first {
        Ok(Next::Event(event)) if event.kind == EventKind::Answer => {
            session.shared.metrics.bytes(Direction::Out, Side::Client, event.frame.len());
            answer::json(StatusCode::OK, event.frame)
        }
        Ok(Next::Event(event)) => begin_stream(session, reader, &[event]),
        _ => begin_stream(session, reader, &[]),
    };
    stamped(response, session)
}

fn begin_stream(session: &Arc<Session>, reader: Reader, read: &[Event]) -> Response<Body> {
    session.keep_stream(&reader.stream);
    answer::events(&session.shared, reader, read, style(session))
}

/// A batch of 2025-03-26: each request on its own, the answers together, in one array or on one stream.
async fn batch(session: &Arc<Session>, messages: Vec<Result<Message, Rejected>>) -> Response<Body> {
    let is_request = |message: &Result<Message, Rejected>| message.as_ref().map_or(true, |message| message.kind == Kind::Request);
    let answers = messages.iter().filter(|message| is_request(message)).count();
    let due: Vec<RequestId> =
        messages.iter().flatten().filter(|message| message.kind == Kind::Request).filter_map(|m| m.id.clone()).collect();
    let unnamed = answers - due.len();
    let stream = session.open_stream(due, unnamed);
    for message in messages {
        match message {
            Err(rejected) => refuse_into(session, &stream, rejected),
            Ok(message) => submit_into(session, &stream, message),
        }
    }
    if answers == 0 {
        return stamped(answer::empty(StatusCode::ACCEPTED), session);
    }
    let Ok(mut reader) = stream.read_from(0) else { return answer::empty(StatusCode::INTERNAL_SERVER_ERROR) };
    let mut read = Vec::new();
    loop {
        match reader.next().await {
            Next::Event(event) => {
                let answers_only = event.kind == EventKind::Answer;
                read.push(event);
                if !answers_only {
                    // Something else comes before the last answer: everything goes on a stream, what was read first.
                    return stamped(begin_stream(session, reader, &read), session);
                }
            }
            Next::End => break,
            Next::Pause | Next::Displaced | Next::Cut => return stamped(begin_stream(session, reader, &read), session),
        }
    }
    let answers: Vec<&[u8]> = read.iter().map(|event| &event.frame[..]).collect();
    let body = [&b"["[..], &answers.join(&b','), b"]"].concat();
    stamped(answer::json(StatusCode::OK, body.into()), session)
}

fn submit_into(session: &Arc<Session>, stream: &Arc<EventStream>, message: Message) {
    match message.kind {
        Kind::Notification => session.notify(&message),
        Kind::Result | Kind::Error => session.answer(&message),
        Kind::Request => {
            let id = message.id.clone();
            let refusal = if message.method == Method::Initialize {
                Err(Refusal::new(ErrorKind::InvalidRequest, "initialize is never part of a batch"))
            } else {
                session.submit(message, stream)
            };
            if let Err(refusal) = refusal {
                refuse_into(session, stream, Rejected::new(refusal, id));
            }
        }
    }
}

fn refuse_into(session: &Session, stream: &EventStream, rejected: Rejected) {
    let frame = session.refusal_frame(&rejected.refusal, rejected.id.as_ref());
    let _cut = stream.push(std::time::Instant::now(), EventKind::Answer, frame);
}

fn style(session: &Session) -> EventStyle {
    let events = &session.shared.config.events;
    // Clients before 2025-11-25 may take an empty event for a broken message.
    EventStyle { priming: session.version.priming_event(), gap: false, retry: events.retry, keepalive: events.keepalive }
}

fn stamped(mut response: Response<Body>, session: &Session) -> Response<Body> {
    response.headers_mut().insert(PROTOCOL_VERSION, HeaderValue::from_static(session.version.as_str()));
    response
}

/// The session id header: at most one, visible ASCII (MCP 2025-11-25, Session Management).
fn session_id(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let mut given = headers.get_all(SESSION_ID).iter();
    let Some(value) = given.next() else { return Ok(None) };
    match value.to_str() {
        Ok(text) if given.next().is_none() => Ok(Some(text)),
        _ => Err(Refusal::new(ErrorKind::InvalidRequest, "Mcp-Session-Id must be given once, in visible ASCII")),
    }
}

fn session_required() -> Refusal {
    Refusal::new(ErrorKind::SessionRequired, "Mcp-Session-Id is missing: open a session with initialize")
}

/// A refusal of a message whose id is not known (yet).
fn anonymous(refusal: Refusal) -> Rejected {
    Rejected::new(refusal, None)
}

async fn read_body(headers: &HeaderMap, mut body: Incoming, bytes_max: usize, time: Duration) -> Result<Bytes, Refusal> {
    let too_large =
        || Refusal::new(ErrorKind::MessageTooLarge, format!("a message has at most {bytes_max} bytes")).with("maxBytes", bytes_max);
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()).and_then(|text| text.parse::<usize>().ok());
    if announced.is_some_and(|length| length > bytes_max) {
        // Who asks first is told at once; who sends anyway looks for the answer only when everything is sent.
        if !headers.contains_key(EXPECT) {
            discard(body).await;
        }
        return Err(too_large());
    }
    match tokio::time::timeout(time, Limited::new(&mut body, bytes_max).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            discard(body).await;
            Err(too_large())
        }
        Ok(Err(_)) => Err(Refusal::new(ErrorKind::InvalidRequest, "the request body broke off")),
        Err(_) => Err(Refusal::new(ErrorKind::InvalidRequest, "the request body did not come in time")),
    }
}

/// Reads on, within reason, what a client is still sending: most look for an answer only when they have sent everything,
/// and closing the connection under them would take the answer away.
async fn discard(mut body: Incoming) {
    let reading = async {
        let mut left = DISCARDED_BYTES_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            let Some(rest) = left.checked_sub(length) else { return };
            left = rest;
        }
    };
    let _in_time = tokio::time::timeout(DISCARD_WAIT, reading).await;
}
