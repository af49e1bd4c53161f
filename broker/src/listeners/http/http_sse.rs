//! HTTP+SSE, the transport of 2024-11-05: `GET /sse` is a stream of everything for the client, which begins by naming the
//! address its messages go to, `POST /messages?session=…`.
//!
//! Together the two are a duplex connection, and its session ends with the stream. Both are on one replica: the name in the
//! address is known to nobody else.

use std::{io, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use dashmap::DashMap;
use futures_util::stream;
use http::{
    HeaderValue, Method as HttpMethod, Request, Response, StatusCode,
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE},
    request::Parts,
};
use http_body_util::{BodyExt, Either, StreamBody};
use hyper::body::{Frame, Incoming};
use protocol::{
    error::{ErrorKind, Refusal},
    ids::BackendId,
    sse,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use transport::frame::{CloseReason, FrameSink, FrameSource, ReadError, WriteError};

use super::{
    ConnectionContext, challenge,
    exchange::{self, preflight, readable_by},
    post::{announced_bytes, fits, is_small, read_body},
    request_guard::{self, RequestGuard},
    response::{self, Body},
};
use crate::{
    auth::{AuthenticatedCaller, Caller, RemotePeer},
    broker::{Broker, unknown_backend},
    config::MessageWire,
    limits::{HTTP_SSE_NAME_BYTES, HTTP_SSE_QUEUE_FRAMES, UNFINISHED_REQUESTS_BYTES_MAX},
    listeners::duplex::{self, ConnectionParams, IncomingConnection},
    rules::endpoint::Endpoint,
};

const TRANSPORT: &str = "sse";
const STREAM: &str = "/sse";
const MESSAGES: &str = "/messages";

/// Where messages go, by the name in their address.
#[derive(Debug, Default)]
pub(super) struct SseStreams(DashMap<String, SseInbox>);

#[derive(Debug)]
struct SseInbox {
    caller: Caller,
    messages: mpsc::Sender<QueuedMessage>,
    /// For what waits.
    room: Arc<Semaphore>,
}

/// A message that waits for its turn, and its part of the room for them.
struct QueuedMessage {
    frame: Bytes,
    _room: OwnedSemaphorePermit,
}

/// Bytes that one permit of an inbox is for.
const PERMIT_BYTES: usize = 1024;

/// Whether a path is one of ours.
pub(super) fn is_meant(path: &str) -> bool {
    path == STREAM
        || path.strip_prefix(STREAM).is_some_and(|rest| rest.starts_with('/'))
        || path == MESSAGES
}

/// Serves one request.
pub(super) async fn handle(
    broker: &Arc<Broker>,
    gate: &RequestGuard,
    request: Request<Incoming>,
    floor: ConnectionContext,
) -> Response<Body> {
    let (origin, shown) = (
        request.headers().get(http::header::ORIGIN).cloned(),
        challenge::is_shown(request.headers()),
    );
    let response = match answered(broker, gate, request, floor).await {
        Ok(response) => response,
        Err(refusal) => {
            let mut response = response::refusal(&broker.shared, &refusal, None);
            if refusal.kind == ErrorKind::MethodNotAllowed {
                response
                    .headers_mut()
                    .insert(ALLOW, HeaderValue::from_static("GET, POST, OPTIONS"));
            }
            challenge::complete(&broker.shared.config.auth, "", shown, response)
        }
    };
    readable_by(response, gate, origin)
}

async fn answered(
    broker: &Arc<Broker>,
    gate: &RequestGuard,
    request: Request<Incoming>,
    floor: ConnectionContext,
) -> Result<Response<Body>, Refusal> {
    let (head, body) = request.into_parts();
    gate.admits(&head.headers, &head.uri)?;
    let is_stream = head.uri.path() != MESSAGES;
    let endpoint = endpoint(head.uri.path())?;
    match (&head.method, is_stream) {
        (&HttpMethod::OPTIONS, _) => return Ok(preflight(&head.headers)),
        (&HttpMethod::GET, true) | (&HttpMethod::POST, false) => {}
        _ => {
            return Err(Refusal::new(
                ErrorKind::MethodNotAllowed,
                "/sse takes GET, /messages takes POST",
            ));
        }
    }
    let proven = exchange::client(broker, &head, floor.remote_of(&head.headers)).await?;
    if is_stream {
        request_guard::accepts_events(&head.headers)?;
        return begin(broker, proven, endpoint, floor);
    }
    request_guard::is_json(&head.headers)?;
    if !is_small(&body) {
        broker.shared.overload.admits()?;
    }
    posted(broker, &head, body, &proven.caller, &floor.streams).await
}

/// A POST to a stream. A client that sends faster than it is served waits, before its body is read and then for its turn.
async fn posted(
    broker: &Broker,
    head: &Parts,
    body: Incoming,
    caller: &Caller,
    streams: &SseStreams,
) -> Result<Response<Body>, Refusal> {
    let config = &broker.shared.config;
    let (bytes_max, time) =
        (broker.message_bytes(caller, MessageWire::Http), config.timeouts.request_read);
    let name = head
        .uri
        .query()
        .and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("session=")));
    let inbox = name.and_then(|name| streams.0.get(name).filter(|inbox| inbox.caller == *caller));
    let inbox = inbox.map(|inbox| (inbox.messages.clone(), inbox.room.clone()));
    let busy = || Refusal::new(ErrorKind::Overloaded, "too many messages wait on this stream");
    let Some((messages, room)) = inbox else {
        // What is wrong with the body is said first.
        read_body(body, bytes_max, time).await?;
        return Err(gone());
    };
    fits(&body, bytes_max)?;
    let bytes = announced_bytes(&body).unwrap_or(bytes_max);
    let permits = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).map_err(|_| busy())?;
    let room = tokio::time::timeout(time, room.acquire_many_owned(permits))
        .await
        .map_err(|_| busy())?
        .map_err(|_| gone())?;
    let frame = read_body(body, bytes_max, time).await?;
    match tokio::time::timeout(time, messages.send(QueuedMessage { frame, _room: room })).await {
        Ok(Ok(())) => Ok(response::empty(StatusCode::ACCEPTED)),
        Ok(Err(_)) => Err(gone()),
        Err(_) => Err(busy()),
    }
}

fn gone() -> Refusal {
    Refusal::new(ErrorKind::SessionNotFound, "no such stream: open one with GET /sse")
}

/// `/sse` and `/sse/{backend}`.
fn endpoint(path: &str) -> Result<Endpoint, Refusal> {
    match path.strip_prefix(STREAM) {
        None | Some("" | "/") => Ok(Endpoint::Aggregated),
        Some(rest) => {
            let backend = BackendId::parse(rest.trim_matches('/')).ok().map(Endpoint::Single);
            backend.ok_or_else(|| {
                Refusal::new(
                    ErrorKind::NotFound,
                    "there is nothing here: streams are at /sse and /sse/{backend}",
                )
            })
        }
    }
}

/// A new stream, and the session to be on it.
fn begin(
    broker: &Arc<Broker>,
    AuthenticatedCaller { caller, until }: AuthenticatedCaller,
    endpoint: Endpoint,
    floor: ConnectionContext,
) -> Result<Response<Body>, Refusal> {
    if broker.draining() {
        return Err(Refusal::new(
            ErrorKind::Draining,
            "the broker is shutting down and takes no new sessions",
        ));
    }
    if let Endpoint::Single(backend) = &endpoint {
        let known =
            broker.tenant(&caller.tenant).is_some_and(|tenant| tenant.backend(backend).is_some());
        if !known {
            return Err(unknown_backend(backend));
        }
    }
    broker.shared.overload.admits()?;
    let place = duplex::place(broker, &caller)?;
    let name = URL_SAFE_NO_PAD.encode(rand::random::<[u8; HTTP_SSE_NAME_BYTES]>());
    let (messages, posted) = mpsc::channel(HTTP_SSE_QUEUE_FRAMES);
    let (events, taken) = mpsc::channel(1);
    let room = UNFINISHED_REQUESTS_BYTES_MAX
        .max(2 * broker.shared.config.limits.message_bytes)
        .div_ceil(PERMIT_BYTES);
    floor.streams.0.insert(
        name.clone(),
        SseInbox { caller: caller.clone(), messages, room: Arc::new(Semaphore::new(room)) },
    );
    let opening = format!("event: endpoint\ndata: {MESSAGES}?session={name}\n\n");
    let (source, sink) = (PostSource { posted, stream: events.clone() }, SseSink(Some(events)));
    let (broker_too, sessions) = (broker.clone(), floor.sessions.clone());
    sessions.spawn(async move {
        let known = ConnectionParams { caller, until, endpoint, can_come_back: false, place };
        let guest = IncomingConnection {
            transport: TRANSPORT,
            certified: None,
            remote: RemotePeer::default(),
            known: Some(known),
        };
        duplex::serve(broker_too, guest, source, sink, floor.stop.clone()).await;
        floor.streams.0.remove(&name);
        drop(floor.admitted);
    });
    Ok(response(broker, opening, taken))
}

fn response(
    broker: &Arc<Broker>,
    opening: String,
    events: mpsc::Receiver<Bytes>,
) -> Response<Body> {
    let keepalive = broker.shared.config.events.keepalive;
    let body = stream::unfold((Some(opening), events), move |state| next_piece(state, keepalive));
    let body = StreamBody::new(body);
    let mut response = Response::new(Either::Right(body.boxed_unsync()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

type SseBodyState = (Option<String>, mpsc::Receiver<Bytes>);

async fn next_piece(
    (opening, mut events): SseBodyState,
    keepalive: Duration,
) -> Option<(Result<Frame<Bytes>, response::BodyAborted>, SseBodyState)> {
    let piece = match opening {
        Some(opening) => opening.into(),
        None => match tokio::time::timeout(keepalive, events.recv()).await {
            Ok(piece) => piece?,
            Err(_) => {
                let mut comment = Vec::new();
                sse::write_comment(&mut comment, "keepalive");
                comment.into()
            }
        },
    };
    Some((Ok(Frame::data(piece)), (None, events)))
}

/// What a client POSTs, for as long as it takes the stream.
struct PostSource {
    posted: mpsc::Receiver<QueuedMessage>,
    stream: mpsc::Sender<Bytes>,
}

impl FrameSource for PostSource {
    async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        tokio::select! {
            biased;
            () = self.stream.closed() => Err(io::Error::from(io::ErrorKind::ConnectionAborted).into()),
            waiting = self.posted.recv() => Ok(waiting.map(|waiting| waiting.frame)),
        }
    }

    fn allow(&mut self, _: usize, _: Option<&Arc<Semaphore>>) {
        // Each is read whole before it comes here, of a client that is known.
    }

    async fn drain(&mut self) {
        // What was POSTed was answered: nothing is lost that its client does not know of.
    }
}

/// The stream, `None` once it has ended.
struct SseSink(Option<mpsc::Sender<Bytes>>);

impl FrameSink for SseSink {
    async fn send_all(&mut self, frames: &mut Vec<Bytes>) -> Result<(), WriteError> {
        let mut piece =
            Vec::with_capacity(frames.iter().map(|frame| frame.len() + EVENT_EXTRA_BYTES).sum());
        frames.drain(..).for_each(|frame| sse::write_message(&mut piece, None, &frame));
        let stream = self.0.as_ref().ok_or(WriteError::Closed)?;
        stream.send(piece.into()).await.map_err(|_| WriteError::Closed)
    }

    async fn close(&mut self, _: CloseReason) {
        // The response ends once the other sender is gone too, which is in the source beside this sink.
        self.0 = None;
    }
}

/// What stands around a message in the stream.
const EVENT_EXTRA_BYTES: usize = 24;
