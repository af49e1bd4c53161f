//! HTTP+SSE, the transport of 2024-11-05. `GET /sse` is a stream of all messages to the client. Its
//! first event names the address for the client's messages, `POST /messages?session=…`.
//!
//! Stream and POSTs are a duplex connection, and its session ends with the stream. Both must reach
//! the same replica, because only that replica can resolve the name in the address.

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use config::MessageWire;
use futures_util::stream;
use http::{
    HeaderValue, Method as HttpMethod, Request, Response, StatusCode,
    header::{ALLOW, ORIGIN},
    request::Parts,
};
use hyper::body::Incoming;
use protocol::{
    error::{ErrorKind, Refusal},
    sse,
};
use rules::{
    client_transport::Transport,
    endpoint::Endpoint,
    limits::{HTTP_SSE_NAME_BYTES, HTTP_SSE_QUEUE_FRAMES, UNFINISHED_REQUESTS_BYTES_MAX},
};
use tokio::sync::{Semaphore, mpsc};
use transport::message_bound::{FREE_BYTES, MessageMemory};

use super::{
    authenticate::authenticate,
    body::{check_body_size, content_length, has_small_body, hold_message, read_message},
    challenge,
    connection::ConnectionContext,
    cors::{preflight, with_cors_headers},
    headers,
    request_guard::RequestGuard,
    response::{self, Body},
    sse_streams::{PostSource, QueuedMessage, SseEvents, SseInbox, SseSink},
};
use crate::{
    auth::{AuthenticatedCaller, Caller, RemotePeer},
    broker::Broker,
    listeners::duplex::{self, ConnectionParams, IncomingConnection},
    sessions::unread_answer::UnreadAnswer,
};

const STREAM: &str = "/sse";
const MESSAGES: &str = "/messages";

/// Number of bytes per permit of an inbox.
const PERMIT_BYTES: usize = 1024;

/// Returns whether a path belongs to this transport.
pub(super) fn matches_path(path: &str) -> bool {
    path == STREAM
        || path.strip_prefix(STREAM).is_some_and(|rest| rest.starts_with('/'))
        || path == MESSAGES
}

/// Serves one request.
pub(super) async fn handle(
    broker: &Arc<Broker>,
    guard: &RequestGuard,
    request: Request<Incoming>,
    context: ConnectionContext,
) -> Response<Body> {
    let (origin, shown, uri) = (
        request.headers().get(ORIGIN).cloned(),
        challenge::has_credential(request.headers()),
        request.uri().clone(),
    );
    let response = match handle_request(broker, guard, request, context).await {
        Ok(response) => response,
        Err(refusal) => {
            let mut response = response::refusal_response(&broker.shared, &refusal, None);
            if refusal.kind == ErrorKind::MethodNotAllowed {
                response
                    .headers_mut()
                    .insert(ALLOW, HeaderValue::from_static("GET, POST, OPTIONS"));
            }
            challenge::complete(&broker.auth(), &uri, "", shown, response)
        }
    };
    with_cors_headers(response, guard, origin)
}

async fn handle_request(
    broker: &Arc<Broker>,
    guard: &RequestGuard,
    request: Request<Incoming>,
    context: ConnectionContext,
) -> Result<Response<Body>, Refusal> {
    let (head, body) = request.into_parts();
    guard.check_origin_and_host(&head.headers, &head.uri)?;
    let is_stream = head.uri.path() != MESSAGES;
    let endpoint = endpoint(head.uri.path())?;
    match (&head.method, is_stream) {
        (&HttpMethod::OPTIONS, _) => return Ok(preflight(&head.headers)),
        (&HttpMethod::GET, true) | (&HttpMethod::POST, false) => {}
        _ => {
            return Err(Refusal::new(
                ErrorKind::MethodNotAllowed,
                "/sse supports only GET, and /messages supports only POST",
            ));
        }
    }
    let proven = authenticate(broker, &head, context.request_remote(&head.headers)).await?;
    if is_stream {
        headers::check_get_accept(&head.headers)?;
        return open_stream(broker, proven, endpoint, context).await;
    }
    headers::check_content_type(&head.headers)?;
    if !has_small_body(&body) {
        broker.shared.limiters.overload.admits()?;
    }
    receive_message(broker, &head, body, &proven.caller, &context).await
}

/// Receives a POST for a stream. A client that sends too fast waits for capacity before its body is
/// read, and then for its turn.
async fn receive_message(
    broker: &Broker,
    head: &Parts,
    body: Incoming,
    caller: &Caller,
    context: &ConnectionContext,
) -> Result<Response<Body>, Refusal> {
    let config = &broker.shared.config;
    let time = config.timeouts.request_read;
    let tenant = broker.tenant(&caller.tenant).ok_or_else(stream_not_found)?;
    let (bytes_max, waits) =
        (tenant.message_bytes(MessageWire::Http), context.waiting_bodies.clone());
    let mut memory = MessageMemory::new(tenant.message_budget.clone()).limit_waits(waits.clone());
    let name = head
        .uri
        .query()
        .and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("session=")));
    let inbox =
        name.and_then(|name| context.streams.0.get(name).filter(|inbox| inbox.caller == *caller));
    let inbox = inbox.map(|inbox| (inbox.messages.clone(), inbox.byte_budget.clone()));
    let Some((messages, byte_permit)) = inbox else {
        // Errors of the body have precedence.
        read_message(body, bytes_max, time, Some(&mut memory)).await?;
        return Err(stream_not_found());
    };
    check_body_size(&body, bytes_max)?;
    let bytes = content_length(&body).unwrap_or(bytes_max);
    let permits = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).map_err(|_| busy())?;
    let byte_permit = match byte_permit.clone().try_acquire_many_owned(permits) {
        Ok(permit) => permit,
        Err(_) => {
            let _right = waits.map(Semaphore::try_acquire_owned).transpose().map_err(|_| busy())?;
            tokio::time::timeout(time, byte_permit.acquire_many_owned(permits))
                .await
                .map_err(|_| busy())?
                .map_err(|_| stream_not_found())?
        }
    };
    let frame = read_message(body, bytes_max, time, Some(&mut memory)).await?;
    let message = QueuedMessage { frame, memory, _byte_permit: byte_permit };
    enqueue(&messages, message, time).await?;
    Ok(response::empty(StatusCode::ACCEPTED))
}

/// Queues a message. It keeps its part of the memory until its session has handled it.
async fn enqueue(
    messages: &mpsc::Sender<QueuedMessage>,
    mut message: QueuedMessage,
    time: Duration,
) -> Result<(), Refusal> {
    // The first bytes of one message are free, those of a whole queue are not.
    let is_first = messages.capacity() == messages.max_capacity();
    let bytes = message.frame.len() + if is_first { 0 } else { FREE_BYTES };
    hold_message(&mut message.memory, bytes, time).await?;
    match tokio::time::timeout(time, messages.send(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(stream_not_found()),
        Err(_) => Err(busy()),
    }
}

fn busy() -> Refusal {
    Refusal::new(ErrorKind::Overloaded, "too many messages wait on this stream")
}

fn stream_not_found() -> Refusal {
    Refusal::new(
        ErrorKind::SessionNotFound,
        "the stream does not exist: open a stream with GET /sse",
    )
}

/// Returns the endpoint of `/sse`, `/sse/{backend}` and `/sse/t/{toolset}`. A message is for the
/// endpoint of its stream, which the path of the message does not name.
fn endpoint(path: &str) -> Result<Endpoint, Refusal> {
    if path == MESSAGES {
        return Ok(Endpoint::Aggregated);
    }
    let nowhere =
        "the path does not exist: streams are at /sse, /sse/{backend} and /sse/t/{toolset}";
    Endpoint::at(STREAM, path).ok_or_else(|| Refusal::new(ErrorKind::NotFound, nowhere))
}

/// Opens a stream, and the session on it.
async fn open_stream(
    broker: &Arc<Broker>,
    AuthenticatedCaller { caller, until, .. }: AuthenticatedCaller,
    endpoint: Endpoint,
    context: ConnectionContext,
) -> Result<Response<Body>, Refusal> {
    if broker.draining() {
        return Err(Refusal::new(
            ErrorKind::Draining,
            "the broker is shutting down and takes no new sessions",
        ));
    }
    broker.check_endpoint(&caller, &endpoint)?;
    broker.shared.limiters.overload.admits()?;
    let permit = duplex::acquire_connection(broker, &caller).await?;
    let name = URL_SAFE_NO_PAD.encode(rand::random::<[u8; HTTP_SSE_NAME_BYTES]>());
    let (messages, posted) = mpsc::channel(HTTP_SSE_QUEUE_FRAMES);
    let (events, taken) = mpsc::channel(1);
    let byte_budget = UNFINISHED_REQUESTS_BYTES_MAX
        .max(2 * broker.shared.config.limits.message_bytes)
        .div_ceil(PERMIT_BYTES);
    context.streams.0.insert(
        name.clone(),
        SseInbox {
            caller: caller.clone(),
            messages,
            byte_budget: Arc::new(Semaphore::new(byte_budget)),
        },
    );
    let opening = format!("event: endpoint\ndata: {MESSAGES}?session={name}\n\n");
    let mut source = PostSource { posted, stream: events.clone(), held: None };
    let budget = broker.shared.unread_budget.clone();
    let mut sink = SseSink { stream: Some(events), budget, owner: (&caller).into() };
    let (broker_too, sessions) = (broker.clone(), context.sessions.clone());
    sessions.spawn(async move {
        let known = ConnectionParams { caller, until, endpoint, can_come_back: false, permit };
        let incoming = IncomingConnection {
            transport: Transport::HttpSse,
            certified: None,
            remote: RemotePeer::default(),
            known: Some(known),
        };
        duplex::serve(broker_too, incoming, &mut source, &mut sink, context.stop.clone()).await;
        context.streams.0.remove(&name);
        drop(context.admitted);
    });
    Ok(response(broker, opening, taken))
}

fn response(
    broker: &Arc<Broker>,
    opening: String,
    events: mpsc::Receiver<SseEvents>,
) -> Response<Body> {
    let keepalive = broker.shared.config.events.keepalive;
    let state = SseBodyState { opening: Some(opening), events, unread: None };
    let body = stream::unfold(state, move |state| next_chunk(state, keepalive));
    response::event_stream_response(body)
}

struct SseBodyState {
    opening: Option<String>,
    events: mpsc::Receiver<SseEvents>,
    /// Counts the last events until the client has taken them.
    unread: Option<Arc<UnreadAnswer>>,
}

/// Returns the next part of the stream. The stream ends after events that the budget of unread bytes
/// cut.
async fn next_chunk(mut state: SseBodyState, keepalive: Duration) -> Option<(Bytes, SseBodyState)> {
    if state.unread.take().is_some_and(|unread| unread.is_cut()) {
        return None;
    }
    let piece = match state.opening.take() {
        Some(opening) => opening.into(),
        None => match tokio::time::timeout(keepalive, state.events.recv()).await {
            Ok(events) => {
                let SseEvents { text, unread } = events?;
                state.unread = unread;
                text
            }
            Err(_) => {
                let mut comment = Vec::new();
                sse::write_comment(&mut comment, "keepalive");
                comment.into()
            }
        },
    };
    Some((piece, state))
}

#[cfg(test)]
mod tests {
    use rules::limits::OUTBOX_STEP_BYTES;
    use transport::{
        frame::{FrameSink, FrameSource},
        message_bound::{MessageBudget, MessageMemory},
    };

    use super::*;
    use crate::{
        admission::outbox_budget::UnreadOwner, metrics::Metrics, sessions::stream::UnreadBudget,
    };

    #[tokio::test(start_paused = true)]
    async fn queued_messages_keep_their_memory_until_they_are_handled() {
        let budget = MessageBudget::new(64 * 1024);
        let (messages, posted) = mpsc::channel(10);
        let (stream, _events) = mpsc::channel(1);
        let mut source = PostSource { posted, stream, held: None };
        let permits = Arc::new(Semaphore::new(10));
        let post = async |bytes: usize| {
            let message = QueuedMessage {
                frame: Bytes::from(vec![b' '; bytes]),
                memory: MessageMemory::new(budget.clone()),
                _byte_permit: permits.clone().acquire_owned().await.unwrap(),
            };
            let posted = enqueue(&messages, message, Duration::from_secs(30)).await;
            posted.map_err(|refusal| refusal.kind)
        };
        assert_eq!(post(60 * 1024).await, Ok(()));
        assert_eq!(post(60 * 1024).await, Ok(()), "one message may exceed the budget");
        assert_eq!(post(60 * 1024).await, Err(ErrorKind::Overloaded));
        assert_eq!(post(10 * 1024).await, Ok(()), "there is some left");
        assert_eq!(post(6 * 1024).await, Err(ErrorKind::Overloaded), "many small ones count too");
        source.next().await.unwrap().unwrap();
        assert_eq!(post(60 * 1024).await, Err(ErrorKind::Overloaded), "its session may wait");
        source.next().await.unwrap().unwrap();
        assert_eq!(post(20 * 1024).await, Ok(()));
        for _ in 0..2 {
            source.next().await.unwrap().unwrap();
        }
        assert_eq!(post(60 * 1024).await, Ok(()), "a client that is slow for a while is served");
    }

    #[tokio::test]
    async fn events_in_the_channel_and_in_the_body_count_as_unread() {
        let metrics = Arc::new(Metrics::new(false));
        let budget = UnreadBudget::new(8 * OUTBOX_STEP_BYTES, metrics.clone());
        let shown = || {
            let text = metrics.render();
            let value = text.lines().find_map(|line| line.strip_prefix("mcp_outbox_bytes "));
            value.and_then(|value| value.parse::<usize>().ok()).unwrap() / OUTBOX_STEP_BYTES
        };
        let (stream, events) = mpsc::channel(1);
        let mut sink =
            SseSink { stream: Some(stream), budget: budget.clone(), owner: UnreadOwner::default() };
        let frames = |steps: usize| vec![Bytes::from(vec![b'x'; steps * OUTBOX_STEP_BYTES])];
        let state = SseBodyState { opening: None, events, unread: None };
        sink.send_all(&mut frames(1)).await.unwrap();
        assert_eq!(shown(), 1);
        let (_event, state) = next_chunk(state, Duration::MAX).await.unwrap();
        sink.send_all(&mut frames(5)).await.unwrap();
        assert_eq!(shown(), 6);
        let (_event, state) = next_chunk(state, Duration::MAX).await.unwrap();
        assert_eq!(shown(), 5, "the client has taken the first");
        let other =
            UnreadAnswer::count(&budget, 4 * OUTBOX_STEP_BYTES, UnreadOwner::default).unwrap();
        assert!(!other.is_cut());
        let ended = next_chunk(state, Duration::MAX).await;
        assert!(ended.is_none(), "the event was cut");
        assert_eq!(shown(), 4);
    }
}
