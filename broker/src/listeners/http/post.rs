//! Serves a POST: one message or a batch, for a session or to open one (MCP 2025-11-25, Sending
//! Messages to the Server).
//!
//! Invariant: each request among the messages gets exactly one answer, as the response or on the
//! event stream.

use std::sync::Arc;

use bytes::Bytes;
use config::MessageWire;
use http::{HeaderValue, Response, StatusCode};
use protocol::{
    envelope::{Body as Frames, Kind, Message, RefusedMessage, decode_body},
    error::{ErrorKind, Refusal},
    handshake,
    ids::RequestId,
    json::Limits,
    method::Method,
    version::Batches,
};
use rules::{
    client_transport::Transport,
    event_log::{Event, EventKind},
};
use tokio::time::Instant;
use transport::message_bound::{FREE_BYTES, MessageMemory};

use super::{
    body::{content_length, has_small_body, read_message},
    headers::{self, SESSION_ID, session_required},
    inbound_request::{InboundRequest, RequestBody, RequestSource, refuse_without_id},
    response::{self, Body, ServerResponse, event_stream_options, with_protocol_version},
    stateless,
};
use crate::{
    boxed::box_pin_with,
    listeners::{
        replicas::{
            forward::initialize_elsewhere,
            session_lookup::{SessionLocation, SessionLookup},
        },
        stateless::sessions_unsupported,
    },
    metrics::{Direction, Side},
    sessions::{
        call::CallFuture,
        session::{Session, count_refused, notifications, questions, session_moved},
        stream::{EventStream, StreamCursor, StreamEnd, StreamItem},
        submit,
    },
};

/// Reads the body and passes its messages to the replica of the session.
pub(super) async fn serve(
    request: &InboundRequest<'_>,
    body: impl RequestBody,
) -> Result<ServerResponse, RefusedMessage> {
    let given = &request.head.headers;
    check_media_types(request).map_err(refuse_without_id)?;
    let shared = &request.broker.shared;
    let (bytes_max, mut memory) = message_bound(request, &body);
    let limits = Limits::with_bytes_max(bytes_max);
    if !has_small_body(&body) {
        shared.limiters.overload.admits().map_err(refuse_without_id)?;
    }
    let time = shared.config.timeouts.request_read;
    let read = read_message(body, limits.bytes_max, time, memory.as_mut()).await;
    drop(memory);
    let frame = read.map_err(refuse_without_id)?;
    if let RequestSource::Client(..) | RequestSource::Operator(_) = request.source {
        shared.metrics.bytes(Direction::In, Side::Client, frame.len());
    }
    if shared.limiters.overload.is_over() {
        refuse_requests(request, &frame, &limits)?;
    }
    let parsed = match stateless::parse_body(
        request.cache.validated_head.names_stateless(given),
        &frame,
        &limits,
    )? {
        stateless::ParsedBody::Stateless(message) => {
            return box_pin_with(|| stateless::serve(request, message, &frame)).await;
        }
        stateless::ParsedBody::Session(message) => Some(Frames::One(message)),
        stateless::ParsedBody::Undecoded => None,
    };
    let served = match request.cache.validated_head.session_id(given).map_err(refuse_without_id)? {
        Some(id) => serve_session(request, id, frame, &limits, parsed).await?,
        None => {
            let frames =
                parsed.map_or_else(|| decode_body(frame, &limits, Batches::Refused), Ok)?;
            serve_frames(request, None, frames).await?
        }
    };
    Ok(served.end_with(request.until.as_ref()))
}

/// Checks the media types of the head, unless an equal head of the connection passed before.
fn check_media_types(request: &InboundRequest<'_>) -> Result<(), Refusal> {
    let (given, validated_head) = (&request.head.headers, &request.cache.validated_head);
    if !validated_head.is_validated() {
        headers::check_content_type(given)?;
        headers::check_post_accept(given)?;
        validated_head.record(given);
    }
    Ok(())
}

/// Returns the maximum size of the body, and the budget from which its reading takes permits.
fn message_bound(
    request: &InboundRequest<'_>,
    body: &impl RequestBody,
) -> (usize, Option<MessageMemory>) {
    match request.source {
        RequestSource::Client(..) | RequestSource::Operator(_) => {
            // Most bodies are so small that they need no permits.
            let is_free = content_length(body).is_some_and(|bytes| bytes <= FREE_BYTES);
            let memory = || {
                MessageMemory::new(request.tenant.message_budget.clone())
                    .limit_waits(request.cache.waiting_bodies.clone())
            };
            (request.tenant.message_bytes(MessageWire::Http), (!is_free).then(memory))
        }
        // The sending replica has already checked the size by the limit of its client's wire, and
        // has the whole message.
        RequestSource::Replica => (request.broker.shared.config.limits.message_bytes, None),
    }
}

/// Serves a body for a session on the replica that has it. A session that moves meanwhile is looked
/// up again. `parsed` holds the message if the body is parsed already.
async fn serve_session(
    request: &InboundRequest<'_>,
    id: &str,
    frame: Bytes,
    limits: &Limits,
    mut parsed: Option<Frames>,
) -> Result<ServerResponse, RefusedMessage> {
    let mut lookup = SessionLookup::new(request, id);
    loop {
        let session = match lookup.locate(&frame).await {
            Ok(SessionLocation::Local(session)) => Ok(session),
            Ok(SessionLocation::Answered(response)) => return Ok(response.into()),
            // An error in the body of a batch has precedence over a missing session.
            Err(refusal) => Err(refusal),
        };
        // Only sessions of 2025-03-26 support batches.
        let batches = session
            .as_ref()
            .map_or(Batches::Refused, |session| session.agreement.version.batches());
        let frames = parsed.take().map_or_else(|| decode_body(frame.clone(), limits, batches), Ok);
        let frames = frames.inspect_err(|rejected| {
            if let Ok(session) = &session {
                questions::handle_malformed_answer(session, rejected);
            }
        })?;
        let served = serve_frames(request, Some(session.clone()), frames).await;
        match (session, served) {
            // The session was found, and moved before the request started.
            (Ok(session), Err(RefusedMessage { refusal, id, .. }))
                if refusal.kind == ErrorKind::SessionElsewhere =>
            {
                let retried = Box::pin(lookup.retry_elsewhere(&session, refusal)).await;
                if let Some(response) =
                    retried.map_err(|refusal| RefusedMessage::new(refusal, id))?
                {
                    return Ok(response.into());
                }
            }
            (_, served) => return served,
        }
    }
}

/// Refuses new requests under overload. Answers, notifications and pings are admitted, because they
/// help other requests to finish.
fn refuse_requests(
    request: &InboundRequest<'_>,
    frame: &Bytes,
    limits: &Limits,
) -> Result<(), RefusedMessage> {
    match decode_body(frame.clone(), limits, Batches::Permitted)? {
        Frames::One(message) if message.kind == Kind::Request && message.method != Method::Ping => {
            request
                .broker
                .shared
                .limiters
                .overload
                .admits()
                .map_err(|refusal| RefusedMessage::new(refusal, message.id.clone()))
        }
        // The requests of a batch are checked when each one starts.
        Frames::One(_) | Frames::Batch(_) => Ok(()),
    }
}

/// Serves messages. `session` is the result of the lookup for the header, or `None` without a
/// header.
async fn serve_frames(
    request: &InboundRequest<'_>,
    session: Option<Result<Arc<Session>, Refusal>>,
    frames: Frames,
) -> Result<ServerResponse, RefusedMessage> {
    let version = request.cache.validated_head.check_session_version(&request.head.headers);
    match frames {
        Frames::One(message) => {
            let reject = |refusal| RefusedMessage::new(refusal, message.id.clone());
            if !request.broker.shared.config.compat.eras.has_sessions() {
                return Err(reject(sessions_unsupported(&message)));
            }
            // The header's revision does not matter, because the message negotiates the revision.
            if message.method == Method::Initialize && !matches!(session, Some(Ok(_))) {
                return Box::pin(initialize(request, &message)).await.map(ServerResponse::from);
            }
            version.map_err(reject)?;
            let session = session.unwrap_or_else(|| Err(session_required())).map_err(reject)?;
            session.touch();
            handle_message(&session, message, request).await
        }
        Frames::Batch(messages) => {
            version.map_err(refuse_without_id)?;
            let session =
                session.unwrap_or_else(|| Err(session_required())).map_err(refuse_without_id)?;
            session.touch();
            Box::pin(batch(&session, messages, request))
                .await
                .map(ServerResponse::from)
                .map_err(refuse_without_id)
        }
    }
}

async fn initialize(
    request: &InboundRequest<'_>,
    message: &Message,
) -> Result<Response<Body>, RefusedMessage> {
    let reject = |refusal| RefusedMessage::new(refusal, message.id.clone());
    let Some(id) = message.id.as_ref().filter(|_| message.kind == Kind::Request) else {
        return Err(reject(Refusal::new(
            ErrorKind::InvalidRequest,
            "initialize must be a request with an id",
        )));
    };
    if request.broker.draining()
        && let Some(response) = initialize_elsewhere(request, &message.frame).await
    {
        return Ok(response);
    }
    let (session, result) = open_session(request, message).await.map_err(reject)?;
    let mut response = with_protocol_version(
        response::json(StatusCode::OK, handshake::success(id, &result)),
        &session,
    );
    if let Ok(value) = HeaderValue::from_str(session.id.as_str()) {
        response.headers_mut().insert(SESSION_ID, value);
    }
    Ok(response)
}

async fn open_session(
    request: &InboundRequest<'_>,
    message: &Message,
) -> Result<(Arc<Session>, Bytes), Refusal> {
    request
        .broker
        .open_session(request.caller.clone(), request.endpoint.clone(), Transport::Http, message)
        .await
}

/// Handles one message of an open session.
async fn handle_message(
    session: &Arc<Session>,
    message: Message,
    request: &InboundRequest<'_>,
) -> Result<ServerResponse, RefusedMessage> {
    match message.kind {
        Kind::Notification | Kind::Result | Kind::Error if session.has_moved() => {
            return Err(refuse_without_id(session_moved()));
        }
        // MCP 2025-11-25, Sending Messages to the Server: an error status if the input is not
        // accepted.
        Kind::Notification => {
            notifications::handle_notification(session, &message).map_err(refuse_without_id)?
        }
        Kind::Result | Kind::Error => questions::handle_answer(session, &message),
        Kind::Request => {
            let (id, stream) =
                (message.id.clone(), session.open_stream(message.id.iter().cloned().collect(), 0));
            let reader = stream.read_from(0).map_err(|_| {
                refuse_without_id(Refusal::new(
                    ErrorKind::Internal,
                    "the broker cannot read the event stream of the request",
                ))
            })?;
            let permit = session.tenant.wait_for_call().await;
            let call = submit::submit_request(session, message, &stream)
                .map_err(|refusal| RefusedMessage::new(refusal, id))?;
            drop(permit);
            return Ok(respond(session, reader, call, request).await);
        }
    }
    Ok(with_protocol_version(response::empty(StatusCode::ACCEPTED), session).into())
}

/// Waits for the first message to send. If that is the answer, the response is JSON. Otherwise, or
/// after a time limit, it is an event stream.
async fn respond(
    session: &Arc<Session>,
    mut reader: StreamCursor,
    call: Option<CallFuture>,
    request: &InboundRequest<'_>,
) -> ServerResponse {
    let latest = Instant::now() + session.shared.config.events.keepalive;
    let first = match call {
        // A call that is not finished by then continues by itself.
        Some(call) => request.cache.with_deadline(latest, reader.next_while_driving(call)).await,
        None => request.cache.with_deadline(latest, reader.next()).await,
    };
    let response = match first {
        Some(StreamItem::Event(event)) if event.kind == EventKind::Answer => {
            session.shared.metrics.bytes(Direction::Out, Side::Client, event.frame.len());
            return ServerResponse::Json {
                version: Some(session.agreement.version),
                text: event.frame,
            };
        }
        Some(StreamItem::Event(event)) => start_stream(session, reader, &[event], request),
        _ => start_stream(session, reader, &[], request),
    };
    with_protocol_version(response, session).into()
}

fn start_stream(
    session: &Arc<Session>,
    reader: StreamCursor,
    read: &[Event],
    request: &InboundRequest<'_>,
) -> Response<Body> {
    session.retain_stream(&reader.stream);
    let options = event_stream_options(session, &request.head.headers);
    response::event_stream(session, reader, read, options)
}

/// Handles a batch of 2025-03-26: each request separately, with all answers in one array or on one
/// stream. The stream starts after a time limit too. Returns an error if the session has moved and
/// nothing was started.
async fn batch(
    session: &Arc<Session>,
    messages: Vec<Result<Message, RefusedMessage>>,
    request: &InboundRequest<'_>,
) -> Result<Response<Body>, Refusal> {
    if session.has_moved() {
        return Err(session_moved());
    }
    let (stream, answers) = open_batch_stream(session, &messages);
    submit_batch(session, &stream, messages).await?;
    if answers == 0 {
        return Ok(with_protocol_version(response::empty(StatusCode::ACCEPTED), session));
    }
    let Ok(reader) = stream.read_from(0) else {
        return Ok(response::empty(StatusCode::INTERNAL_SERVER_ERROR));
    };
    Ok(with_protocol_version(respond_to_batch(session, reader, request).await, session))
}

/// Opens the stream of a batch. Returns it with the number of answers that are due on it.
fn open_batch_stream(
    session: &Arc<Session>,
    messages: &[Result<Message, RefusedMessage>],
) -> (Arc<EventStream>, usize) {
    let is_request = |message: &&Message| message.kind == Kind::Request;
    let malformed = messages.iter().filter(|message| message.is_err()).count();
    let requests = messages.iter().flatten().filter(is_request).count();
    let due: Vec<RequestId> = messages
        .iter()
        .flatten()
        .filter(is_request)
        .filter_map(|message| message.id.clone())
        .collect();
    let answers = malformed + requests;
    let unnamed = answers - due.len();
    (session.open_stream(due, unnamed), answers)
}

/// Starts the requests of a batch. Returns an error if the session has moved and nothing was
/// started.
async fn submit_batch(
    session: &Arc<Session>,
    stream: &Arc<EventStream>,
    messages: Vec<Result<Message, RefusedMessage>>,
) -> Result<(), Refusal> {
    let mut has_started = false;
    for message in messages {
        match message {
            Err(rejected) => refuse_into(session, stream, rejected),
            Ok(message) => {
                let _permit = session.tenant.wait_for_call().await;
                let (method, started_at) = (message.method, std::time::Instant::now());
                match submit_into(session, stream, message) {
                    Ok(is_request) => has_started |= is_request,
                    Err(RefusedMessage { refusal, .. })
                        if refusal.kind == ErrorKind::SessionElsewhere && !has_started =>
                    {
                        return Err(refusal);
                    }
                    Err(rejected) => {
                        // No other replica gets this request.
                        if rejected.refusal.kind == ErrorKind::SessionElsewhere {
                            count_refused(session, method, started_at.elapsed());
                        }
                        refuse_into(session, stream, rejected);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Waits for all answers of a batch and returns them as one array. If another message comes first,
/// or after a time limit, the response is an event stream.
async fn respond_to_batch(
    session: &Arc<Session>,
    mut reader: StreamCursor,
    request: &InboundRequest<'_>,
) -> Response<Body> {
    let latest = Instant::now() + session.shared.config.events.keepalive;
    let mut read = Vec::new();
    loop {
        match request.cache.with_deadline(latest, reader.next()).await {
            Some(StreamItem::Event(event)) if event.kind == EventKind::Answer => read.push(event),
            Some(StreamItem::Ended(StreamEnd::Complete)) => break,
            // Everything goes on a stream, first the messages that were read.
            other => {
                if let Some(StreamItem::Event(event)) = other {
                    read.push(event);
                }
                return start_stream(session, reader, &read, request);
            }
        }
    }
    // JSON-RPC 2.0, 6: an empty array is never sent. Cancelled requests have no answer.
    if read.is_empty() {
        return response::empty(StatusCode::ACCEPTED);
    }
    let answers: Vec<&[u8]> = read.iter().map(|event| &event.frame[..]).collect();
    let body = [&b"["[..], &answers.join(&b','), b"]"].concat();
    response::json(StatusCode::OK, body.into())
}

/// Handles a message of a batch. Returns true if it is a request, which is then started.
fn submit_into(
    session: &Arc<Session>,
    stream: &Arc<EventStream>,
    message: Message,
) -> Result<bool, RefusedMessage> {
    match message.kind {
        // A dropped notification is counted. The batch has one status for all its messages.
        Kind::Notification => drop(notifications::handle_notification(session, &message)),
        Kind::Result | Kind::Error => questions::handle_answer(session, &message),
        Kind::Request => {
            let id = message.id.clone();
            let submitted = if message.method == Method::Initialize {
                Err(Refusal::new(
                    ErrorKind::InvalidRequest,
                    "initialize must not be part of a batch",
                ))
            } else {
                submit::submit_detached(session, message, stream)
            };
            return submitted.map(|()| true).map_err(|refusal| RefusedMessage::new(refusal, id));
        }
    }
    Ok(false)
}

fn refuse_into(session: &Session, stream: &EventStream, rejected: RefusedMessage) {
    questions::handle_malformed_answer(session, &rejected);
    let frame = session.refusal_frame(&rejected.refusal, rejected.id.as_ref());
    let _cut = stream.push(std::time::Instant::now(), EventKind::Answer, frame);
}
