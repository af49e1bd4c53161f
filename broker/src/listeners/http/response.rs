//! Responses of the data plane: a JSON document, an event stream, an error, or only a status.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt, Stream, StreamExt, stream};
use http::{
    HeaderMap, HeaderValue, Response, StatusCode,
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Body as _;
use protocol::{
    error::{ErrorKind, Refusal},
    ids::RequestId,
    sse,
    version::Version,
};
use rules::event_log::Event;

pub(in crate::listeners) use super::response_body::{Body, BodyAborted};
use config::EventLogStorage;

use super::{
    challenge,
    connection_cache::ConnectionCache,
    headers::{self, PROTOCOL_VERSION},
    response_body::{EventBody, ExpiringBody, UnreadBody, UnreadCounter},
};
use crate::{
    admission::outbox_budget::UnreadOwner,
    auth::CredentialExpiry,
    listeners::http2_requests::RunningRequest,
    metrics::{Direction, Side},
    sessions::{
        session::Session,
        shared::Shared,
        stream::{StreamCursor, StreamEnd, StreamItem},
        tenant::SharedPermit,
        unread_answer::UnreadAnswer,
    },
};

/// Response to a request.
pub(in crate::listeners) enum ServerResponse {
    /// One JSON document with status 200, the most common response.
    Json {
        /// Revision of the session.
        version: Option<Version>,
        text: Bytes,
    },
    /// Boxed, because the answer of every call would be moved with its space.
    Other(Box<Response<Body>>),
}

impl From<Response<Body>> for ServerResponse {
    fn from(response: Response<Body>) -> Self {
        Self::Other(Box::new(response))
    }
}

impl ServerResponse {
    pub(in crate::listeners) fn into_response(self) -> Response<Body> {
        match self {
            Self::Json { version, text } => {
                let mut response = json(StatusCode::OK, text);
                if let Some(version) = version {
                    response
                        .headers_mut()
                        .insert(PROTOCOL_VERSION, HeaderValue::from_static(version.as_str()));
                }
                response
            }
            Self::Other(response) => *response,
        }
    }

    /// Returns the size of an answer that is complete.
    pub(super) fn whole_bytes(&self) -> usize {
        match self {
            Self::Json { text, .. } => text.len(),
            Self::Other(response) => whole_bytes(response.body()),
        }
    }

    /// Limits an event stream to the lifetime of the client's credential. Other responses are
    /// unchanged.
    pub(super) fn end_with(self, until: Option<&CredentialExpiry>) -> Self {
        let Some(until) = until else { return self };
        match self {
            Self::Other(response) if is_event_stream(response.headers()) => {
                let until = until.clone();
                Self::from(response.map(|body| match body {
                    Either::Right(body) => Either::Right(
                        ExpiringBody { body, end: Box::pin(until.ended()) }.boxed_unsync(),
                    ),
                    whole => whole,
                }))
            }
            answer => answer,
        }
    }
}

/// Returns whether the body is an event stream.
pub(in crate::listeners) fn is_event_stream(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// Returns the first lines of the head of a [`ServerResponse::Json`], as constants.
pub(super) fn document_head(version: Option<Version>) -> &'static str {
    macro_rules! head {
        ($($more:literal)?) => {
            concat!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n", $("mcp-protocol-version: ", $more, "\r\n")?)
        };
    }
    match version {
        None => head!(),
        Some(Version::V2024_11_05) => head!("2024-11-05"),
        Some(Version::V2025_03_26) => head!("2025-03-26"),
        Some(Version::V2025_06_18) => head!("2025-06-18"),
        Some(Version::V2025_11_25) => head!("2025-11-25"),
        Some(Version::V2026_07_28) => head!("2026-07-28"),
    }
}

pub(in crate::listeners) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::default()));
    *response.status_mut() = status;
    response
}

pub(in crate::listeners) fn json(status: StatusCode, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::new(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn whole_bytes(body: &Body) -> usize {
    match body {
        Either::Left(whole) => usize::try_from(whole.size_hint().lower()).unwrap_or(usize::MAX),
        Either::Right(_) => 0,
    }
}

/// Counts a large body among the unread bytes of the head's caller until the client has taken it.
pub(in crate::listeners) fn count_unread(
    shared: &Shared,
    cache: &ConnectionCache,
    response: Response<Body>,
) -> Response<Body> {
    let owner = || cache.validated_head.unread_owner();
    let bytes = whole_bytes(response.body());
    let Some(unread) = UnreadAnswer::count(&shared.unread_budget, bytes, owner) else {
        return response;
    };
    response.map(|mut body| match body.frame().now_or_never() {
        Some(Some(Ok(frame))) => {
            let answer = frame.into_data().unwrap_or_default();
            Either::Right(UnreadBody::new(answer, unread).boxed_unsync())
        }
        _ => body,
    })
}

/// Tracks the response's body until the client has taken it. The request ends with it.
pub(super) fn track(response: Response<Body>, request: RunningRequest) -> Response<Body> {
    let unsent = request.connection().stalls.clone();
    response.map(|body| match body {
        Either::Left(mut answer) => match answer.frame().now_or_never() {
            Some(Some(Ok(frame))) => {
                let answer = unsent.track(frame.into_data().unwrap_or_default());
                let answer = answer.map_err(|never| match never {});
                Either::Right(request.end_with(answer).boxed_unsync())
            }
            _ => Either::Left(answer),
        },
        // Already in pieces.
        Either::Right(body) => Either::Right(request.end_with(unsent.watch(body)).boxed_unsync()),
    })
}

/// Returns an error response of the broker, with the status of its kind.
pub(in crate::listeners) fn refusal_response(
    shared: &Shared,
    refusal: &Refusal,
    id: Option<&RequestId>,
) -> Response<Body> {
    let request_id = shared.record_refusal(refusal, None, None);
    let status = StatusCode::from_u16(refusal.kind.http_status())
        .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json(status, refusal.to_response(id, &request_id));
    let headers = response.headers_mut();
    if let Some(after) = refusal.retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(after.as_secs_f64().ceil() as u64));
    }
    match refusal.kind {
        ErrorKind::Unauthorized => {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        ErrorKind::InsufficientScope | ErrorKind::Forbidden => {
            if let Some(challenge) = challenge::insufficient_scope(refusal) {
                headers.insert(WWW_AUTHENTICATE, challenge);
            }
        }
        ErrorKind::MethodNotAllowed => {
            headers.insert(ALLOW, HeaderValue::from_static("GET, POST, DELETE, OPTIONS"));
        }
        _ => {}
    }
    response
}

/// Options of an event stream.
pub(super) struct EventStreamOptions {
    /// Sends the priming event of 2025-11-25: an id without data, so that the client can resume
    /// from the start.
    pub(super) priming: bool,
    /// Sends a comment about lost events at the start of the stream.
    pub(super) gap: bool,
    /// Adds ids to events. Without ids a client cannot resume a stream.
    pub(super) ids: bool,
    /// Wait before the client opens the stream again. `None`: the client must not get the field.
    pub(super) retry: Option<Duration>,
    pub(super) keepalive: Duration,
    /// Permit among the connections of the tenant. `None` for a request's stream, which the limit
    /// of requests in flight covers.
    pub(super) _permit: Option<SharedPermit>,
}

/// Returns an event stream: first the events `read`, then those of the reader.
pub(super) fn event_stream(
    session: &Session,
    reader: StreamCursor,
    read: &[Event],
    style: EventStreamOptions,
) -> Response<Body> {
    let mut opening = Vec::new();
    if style.gap {
        sse::write_comment(&mut opening, "events lost");
    }
    // On a resumed stream, the priming event names the client's position. Some clients (the
    // TypeScript SDK among them) remember only the ids of one connection. A connection that ends
    // without an event must not cost them their position.
    if style.priming && style.ids {
        let id = read
            .first()
            .map_or_else(|| reader.event_id(), |event| reader.stream.event_id(event.sequence - 1));
        sse::write_priming(&mut opening, &id, style.retry.map(millis));
    }
    for event in read {
        let id = style.ids.then(|| reader.stream.event_id(event.sequence));
        sse::write_message(&mut opening, id.as_deref(), &event.frame);
    }
    if !opening.is_empty() && style.ids {
        reader.stream.mark_resumable();
    }
    let state = SseEventWriter {
        shared: session.shared.clone(),
        reader,
        opening: Some(opening),
        style,
        over: false,
    };
    let events = stream::unfold(state, SseEventWriter::step);
    counted_event_stream(&session.shared, (&session.caller).into(), events)
}

/// Returns a stream of frames without resumption: it ends with its connection.
pub(super) fn frame_stream(
    shared: &Arc<Shared>,
    owner: UnreadOwner,
    frames: impl Stream<Item = Bytes> + Send + 'static,
) -> Response<Body> {
    let keepalive = shared.config.events.keepalive;
    let written = stream::unfold(Box::pin(frames), move |mut frames| async move {
        let mut out = Vec::new();
        match tokio::time::timeout(keepalive, frames.next()).await {
            Err(_) => sse::write_comment(&mut out, "keepalive"),
            Ok(Some(frame)) => sse::write_message(&mut out, None, &frame),
            Ok(None) => return None,
        }
        Some((Bytes::from(out), frames))
    });
    counted_event_stream(shared, owner, written)
}

/// Returns an event stream response of these events, which count as unread until they are sent.
fn counted_event_stream(
    shared: &Arc<Shared>,
    owner: UnreadOwner,
    events: impl Stream<Item = Bytes> + Send + 'static,
) -> Response<Body> {
    event_stream_of(events, Some(UnreadCounter { shared: shared.clone(), owner, current: None }))
}

/// Returns an event stream response of these events. Their session counts them.
pub(super) fn event_stream_response(
    events: impl Stream<Item = Bytes> + Send + 'static,
) -> Response<Body> {
    event_stream_of(events, None)
}

fn event_stream_of(
    events: impl Stream<Item = Bytes> + Send + 'static,
    unread_counter: Option<UnreadCounter>,
) -> Response<Body> {
    let body = EventBody { unread_counter, events: events.boxed(), rest: Bytes::new() };
    let mut response = Response::new(Either::Right(body.boxed_unsync()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct SseEventWriter {
    shared: Arc<Shared>,
    reader: StreamCursor,
    opening: Option<Vec<u8>>,
    style: EventStreamOptions,
    over: bool,
}

impl SseEventWriter {
    async fn step(mut self) -> Option<(Bytes, Self)> {
        if self.over {
            return None;
        }
        let mut out = self.opening.take().unwrap_or_default();
        if out.is_empty() {
            match tokio::time::timeout(self.style.keepalive, self.reader.next()).await {
                Err(_) => sse::write_comment(&mut out, "keepalive"),
                Ok(StreamItem::Event(event)) => {
                    let id = self.style.ids.then(|| self.reader.event_id());
                    if id.is_some() {
                        self.reader.stream.mark_resumable();
                    }
                    sse::write_message(&mut out, id.as_deref(), &event.frame);
                }
                Ok(StreamItem::Ended(StreamEnd::Paused)) => {
                    sse::write_retry(&mut out, millis(self.style.retry?));
                    self.over = true;
                }
                Ok(StreamItem::Ended(StreamEnd::Slow | StreamEnd::Lost)) => {
                    self.shared.metrics.dropped_notification("slow_client");
                    return None;
                }
                Ok(StreamItem::Ended(StreamEnd::Complete | StreamEnd::Displaced)) => return None,
            }
        }
        self.shared.metrics.bytes(Direction::Out, Side::Client, out.len());
        Some((out.into(), self))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn event_stream_options(
    session: &Session,
    request_headers: &HeaderMap,
) -> EventStreamOptions {
    let events = &session.shared.config.events;
    // Clients before 2025-11-25 may refuse an empty event as a broken message.
    EventStreamOptions {
        priming: session.agreement.version.priming_event(),
        gap: false,
        ids: events.log != EventLogStorage::Off,
        retry: (!headers::refuses_retry(request_headers)).then_some(events.retry),
        keepalive: events.keepalive,
        _permit: None,
    }
}

pub(super) fn with_protocol_version(
    mut response: Response<Body>,
    session: &Session,
) -> Response<Body> {
    response
        .headers_mut()
        .insert(PROTOCOL_VERSION, HeaderValue::from_static(session.agreement.version.as_str()));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cached_head_equals_that_of_each_response() {
        for version in Version::ALL.map(Some).into_iter().chain([None]) {
            let response = ServerResponse::Json { version, text: Bytes::new() }.into_response();
            let lines = response
                .headers()
                .iter()
                .map(|(name, value)| format!("{name}: {}\r\n", value.to_str().unwrap()));
            assert_eq!(
                document_head(version),
                format!("HTTP/1.1 {}\r\n{}", response.status(), lines.collect::<String>())
            );
        }
    }
}
