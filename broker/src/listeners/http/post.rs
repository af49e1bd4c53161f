//! A POST: one message or a batch, for a session or to open one (MCP 2025-11-25, Sending Messages to the Server).
//!
//! Invariant: each request among the messages gets exactly one answer, as the response or on the event stream it becomes.

use std::{pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderValue, Response, StatusCode};
use protocol::{
    envelope::{Body as Frames, Kind, Message, Rejection, decode_body},
    error::{ErrorKind, Refusal},
    handshake,
    ids::RequestId,
    json::Limits,
    method::Method,
};
use tokio::time::Instant;
use transport::BodyError;

use super::{
    connection_cache::ConnectionCache,
    exchange::{
        InboundRequest, RequestBody, RequestSource, SESSION_ID, anonymous, session_required,
        stamped, style,
    },
    forward::{SessionLocation, SessionLookup},
    request_guard,
    response::{self, Body, ServerResponse},
    stateless,
};
use crate::{
    actors::{
        call::CallFuture,
        session::{Session, session_moved},
        stream::{EventStream, StreamCursor, StreamEnd, StreamItem},
    },
    boxed::in_place,
    config::MessageWire,
    limits::OVERLOAD_BODY_BYTES_MAX,
    listeners::stateless::no_sessions,
    metrics::{Direction, Side},
    rules::event_log::{Event, EventKind},
};

const TRANSPORT: &str = "http";

impl InboundRequest<'_> {
    /// Reads the body and serves it where its session is.
    pub(super) async fn post(self, body: impl RequestBody) -> Result<ServerResponse, Rejection> {
        let headers = &self.head.headers;
        if !self.kept.vetted.is() {
            request_guard::is_json(headers).map_err(anonymous)?;
            request_guard::accepts_answers(headers).map_err(anonymous)?;
            self.kept.vetted.note(headers);
        }
        let shared = &self.broker.shared;
        // What another replica sends was judged there, by its client's wire.
        let bytes_max = match self.reach {
            RequestSource::Client(..) => self.broker.message_bytes(&self.caller, MessageWire::Http),
            RequestSource::Replica => shared.config.limits.message_bytes,
        };
        let limits = Limits { bytes_max, ..Limits::default() };
        if !is_small(&body) {
            shared.overload.admits().map_err(anonymous)?;
        }
        let frame = read_body(body, limits.bytes_max, shared.config.timeouts.request_read)
            .await
            .map_err(anonymous)?;
        if let RequestSource::Client(..) = self.reach {
            shared.metrics.bytes(Direction::In, Side::Client, frame.len());
        }
        if shared.overload.is_over() {
            self.refuse_requests(&frame, &limits)?;
        }
        let mut read =
            match stateless::read(self.kept.vetted.names_modern(headers), &frame, &limits)? {
                stateless::ParsedBody::Stateless(message) => {
                    return in_place(|| self.serve_modern(message, &frame)).await;
                }
                stateless::ParsedBody::Session(message) => Some(Frames::One(message)),
                stateless::ParsedBody::Undecoded => None,
            };
        let Some(id) = self.kept.vetted.session_id(headers).map_err(anonymous)? else {
            let frames = read.map_or_else(|| decode_body(frame, &limits, false), Ok)?;
            return self.serve(None, frames).await;
        };
        let mut way = SessionLookup::new(&self, id);
        loop {
            let session = match self.locate(&mut way, &frame).await {
                Ok(SessionLocation::Local(session)) => Ok(session),
                Ok(SessionLocation::Answered(response)) => return Ok(response.into()),
                // What is wrong with the body comes first.
                Err(refusal) => Err(refusal),
            };
            // Only sessions of 2025-03-26 know batches.
            let batches = matches!(&session, Ok(session) if session.version.batches());
            let frames =
                read.take().map_or_else(|| decode_body(frame.clone(), &limits, batches), Ok)?;
            let served = self.serve(Some(session.clone()), frames).await;
            match (session, served) {
                // It was found, and left before the request was begun.
                (Ok(session), Err(Rejection { refusal, id, .. }))
                    if refusal.kind == ErrorKind::SessionElsewhere =>
                {
                    let led_on = Box::pin(self.led_on(&mut way, &session, refusal)).await;
                    if let Some(response) = led_on.map_err(|refusal| Rejection::new(refusal, id))? {
                        return Ok(response.into());
                    }
                }
                (_, served) => return served,
            }
        }
    }

    /// What is too much are new requests, and a search for their sessions. Answers, notifications and pings bring others to
    /// their end.
    fn refuse_requests(&self, frame: &Bytes, limits: &Limits) -> Result<(), Rejection> {
        match decode_body(frame.clone(), limits, true)? {
            Frames::One(message)
                if message.kind == Kind::Request && message.method != Method::Ping =>
            {
                self.broker
                    .shared
                    .overload
                    .admits()
                    .map_err(|refusal| Rejection::new(refusal, message.id.clone()))
            }
            // Which of a batch are requests is seen when each is begun.
            Frames::One(_) | Frames::Batch(_) => Ok(()),
        }
    }

    /// `session`: the one the header names, as it was found; `None` without a header.
    async fn serve(
        &self,
        session: Option<Result<Arc<Session>, Refusal>>,
        frames: Frames,
    ) -> Result<ServerResponse, Rejection> {
        let fits = self.kept.vetted.fits_sessions(&self.head.headers);
        match frames {
            Frames::One(message) => {
                let reject = |refusal| Rejection::new(refusal, message.id.clone());
                if !self.broker.shared.config.compat.eras.has_sessions() {
                    return Err(reject(no_sessions(&message)));
                }
                // Whichever revision it names: what is spoken is agreed on by the message.
                if message.method == Method::Initialize && !matches!(session, Some(Ok(_))) {
                    return Box::pin(self.initialize(&message)).await.map(ServerResponse::from);
                }
                fits.map_err(reject)?;
                let session = session.unwrap_or_else(|| Err(session_required())).map_err(reject)?;
                session.touch();
                one(&session, message, self.kept).await
            }
            Frames::Batch(messages) => {
                fits.map_err(anonymous)?;
                let session =
                    session.unwrap_or_else(|| Err(session_required())).map_err(anonymous)?;
                session.touch();
                Box::pin(batch(&session, messages))
                    .await
                    .map(ServerResponse::from)
                    .map_err(anonymous)
            }
        }
    }

    async fn initialize(&self, message: &Message) -> Result<Response<Body>, Rejection> {
        let reject = |refusal| Rejection::new(refusal, message.id.clone());
        let Some(id) = message.id.as_ref().filter(|_| message.kind == Kind::Request) else {
            return Err(reject(Refusal::new(
                ErrorKind::InvalidRequest,
                "initialize is a request and has an id",
            )));
        };
        if self.broker.draining()
            && let Some(response) = self.hand_over(&message.frame).await
        {
            return Ok(response);
        }
        let (session, result) = self.open_session(message).await.map_err(reject)?;
        let mut response =
            stamped(response::json(StatusCode::OK, handshake::success(id, &result)), &session);
        if let Ok(value) = HeaderValue::from_str(session.id.as_str()) {
            response.headers_mut().insert(SESSION_ID, value);
        }
        Ok(response)
    }

    async fn open_session(&self, message: &Message) -> Result<(Arc<Session>, Bytes), Refusal> {
        self.broker
            .open_session(self.caller.clone(), self.endpoint.clone(), TRANSPORT, message)
            .await
    }
}

/// One message of an open session.
async fn one(
    session: &Arc<Session>,
    message: Message,
    kept: &ConnectionCache,
) -> Result<ServerResponse, Rejection> {
    match message.kind {
        Kind::Notification | Kind::Result | Kind::Error if session.has_moved() => {
            return Err(anonymous(session_moved()));
        }
        // MCP 2025-11-25, Sending Messages to the Server: an error status where the input cannot be accepted.
        Kind::Notification => session.handle_notification(&message).map_err(anonymous)?,
        Kind::Result | Kind::Error => session.handle_answer(&message),
        Kind::Request => {
            let (id, stream) =
                (message.id.clone(), session.open_stream(message.id.iter().cloned().collect(), 0));
            let reader = stream.read_from(0).map_err(|_| {
                anonymous(Refusal::new(ErrorKind::Internal, "a new stream can not be read"))
            })?;
            let call = session
                .handle_request(message, &stream)
                .map_err(|refusal| Rejection::new(refusal, id))?;
            return Ok(respond(session, reader, call, kept).await);
        }
    }
    Ok(stamped(response::empty(StatusCode::ACCEPTED), session).into())
}

/// Whether it takes little to find out what a body is.
pub(super) fn is_small(body: &impl RequestBody) -> bool {
    announced_bytes(body).is_some_and(|bytes| bytes <= OVERLOAD_BODY_BYTES_MAX)
}

/// How long a body says it is.
pub(super) fn announced_bytes(body: &impl RequestBody) -> Option<usize> {
    body.size_hint().exact().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Waits for the first thing to send: when that is the answer the response is JSON, otherwise (or when it takes long) an
/// event stream.
async fn respond(
    session: &Arc<Session>,
    mut reader: StreamCursor,
    call: Option<CallFuture>,
    kept: &ConnectionCache,
) -> ServerResponse {
    let latest = Instant::now() + session.shared.config.events.keepalive;
    let first = match call {
        // What is not over by then goes on by itself.
        Some(call) => kept.in_time(latest, reader.next_while_driving(call)).await,
        None => kept.in_time(latest, reader.next()).await,
    };
    let response = match first {
        Some(StreamItem::Event(event)) if event.kind == EventKind::Answer => {
            session.shared.metrics.bytes(Direction::Out, Side::Client, event.frame.len());
            return ServerResponse::Json { version: Some(session.version), text: event.frame };
        }
        Some(StreamItem::Event(event)) => begin_stream(session, reader, &[event]),
        _ => begin_stream(session, reader, &[]),
    };
    stamped(response, session).into()
}

fn begin_stream(session: &Arc<Session>, reader: StreamCursor, read: &[Event]) -> Response<Body> {
    session.retain_stream(&reader.stream);
    response::events(&session.shared, reader, read, style(session))
}

/// A batch of 2025-03-26: each request on its own, the answers together, in one array or on one stream. `Err`: nothing was
/// begun, as the session has left.
async fn batch(
    session: &Arc<Session>,
    messages: Vec<Result<Message, Rejection>>,
) -> Result<Response<Body>, Refusal> {
    if session.has_moved() {
        return Err(session_moved());
    }
    let is_request = |message: &Result<Message, Rejection>| {
        message.as_ref().map_or(true, |message| message.kind == Kind::Request)
    };
    let answers = messages.iter().filter(|message| is_request(message)).count();
    let due: Vec<RequestId> = messages
        .iter()
        .flatten()
        .filter(|message| message.kind == Kind::Request)
        .filter_map(|m| m.id.clone())
        .collect();
    let unnamed = answers - due.len();
    let stream = session.open_stream(due, unnamed);
    let mut begun = false;
    for message in messages {
        match message {
            Err(rejected) => refuse_into(session, &stream, rejected),
            Ok(message) => match submit_into(session, &stream, message) {
                Ok(is_request) => begun |= is_request,
                Err(Rejection { refusal, .. })
                    if refusal.kind == ErrorKind::SessionElsewhere && !begun =>
                {
                    return Err(refusal);
                }
                Err(rejected) => refuse_into(session, &stream, rejected),
            },
        }
    }
    if answers == 0 {
        return Ok(stamped(response::empty(StatusCode::ACCEPTED), session));
    }
    let Ok(mut reader) = stream.read_from(0) else {
        return Ok(response::empty(StatusCode::INTERNAL_SERVER_ERROR));
    };
    let mut read = Vec::new();
    loop {
        match reader.next().await {
            StreamItem::Event(event) => {
                let answers_only = event.kind == EventKind::Answer;
                read.push(event);
                if !answers_only {
                    // Something else comes before the last answer: everything goes on a stream, what was read first.
                    return Ok(stamped(begin_stream(session, reader, &read), session));
                }
            }
            StreamItem::Ended(StreamEnd::Complete) => break,
            StreamItem::Ended(_) => {
                return Ok(stamped(begin_stream(session, reader, &read), session));
            }
        }
    }
    let answers: Vec<&[u8]> = read.iter().map(|event| &event.frame[..]).collect();
    let body = [&b"["[..], &answers.join(&b','), b"]"].concat();
    Ok(stamped(response::json(StatusCode::OK, body.into()), session))
}

/// Whether it was a request, which is begun now.
fn submit_into(
    session: &Arc<Session>,
    stream: &Arc<EventStream>,
    message: Message,
) -> Result<bool, Rejection> {
    match message.kind {
        // One that is dropped has been counted; a batch has one status for all that is in it.
        Kind::Notification => drop(session.handle_notification(&message)),
        Kind::Result | Kind::Error => session.handle_answer(&message),
        Kind::Request => {
            let id = message.id.clone();
            let submitted = if message.method == Method::Initialize {
                Err(Refusal::new(ErrorKind::InvalidRequest, "initialize is never part of a batch"))
            } else {
                session.admit(message, stream)
            };
            return submitted.map(|()| true).map_err(|refusal| Rejection::new(refusal, id));
        }
    }
    Ok(false)
}

fn refuse_into(session: &Session, stream: &EventStream, rejected: Rejection) {
    let frame = session.refusal_frame(&rejected.refusal, rejected.id.as_ref());
    let _cut = stream.push(std::time::Instant::now(), EventKind::Answer, frame);
}

/// A body that says it is too long is refused at once. What is still sent is thrown away behind the answer, with the connection.
pub(super) fn fits(body: &impl RequestBody, bytes_max: usize) -> Result<(), Refusal> {
    if announced_bytes(body).is_some_and(|bytes| bytes > bytes_max) {
        Err(too_large(bytes_max))
    } else {
        Ok(())
    }
}

fn too_large(bytes_max: usize) -> Refusal {
    Refusal::new(ErrorKind::MessageTooLarge, format!("a message has at most {bytes_max} bytes"))
        .with("maxBytes", bytes_max)
}

pub(super) async fn read_body(
    mut body: impl RequestBody,
    bytes_max: usize,
    time: Duration,
) -> Result<Bytes, Refusal> {
    fits(&body, bytes_max)?;
    let read = {
        let mut reading = pin!(transport::read_body(&mut body, bytes_max));
        // Mostly it came with the head, and no time is needed to wait for it.
        match reading.as_mut().now_or_never() {
            Some(read) => Ok(read),
            None => tokio::time::timeout(time, reading).await,
        }
    };
    match read {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(BodyError::TooLarge { .. })) => Err(too_large(bytes_max)),
        Ok(Err(BodyError::Aborted { .. })) => {
            Err(Refusal::new(ErrorKind::InvalidRequest, "the request body broke off"))
        }
        Err(_) => {
            Err(Refusal::new(ErrorKind::InvalidRequest, "the request body did not come in time"))
        }
    }
}
