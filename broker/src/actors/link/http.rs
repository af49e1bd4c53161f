//! A link over Streamable HTTP, in the client's role (MCP 2025-11-25, Transports).
//!
//! Every message is a POST of its own over pooled connections. An answer is JSON or an event stream; a stream that ends
//! early is resumed with `Last-Event-ID` after the time the backend asked for. One GET stream carries what belongs to no
//! call; it is open before the first call is sent, because some servers lose what they can not deliver at once.

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method as HttpMethod, Response, StatusCode, Uri,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE},
};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use protocol::{
    envelope::{Kind, Message},
    json,
    sse::{SseError, SseEvent, SseParser},
    version::Version,
};
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};
use transport::http_client::{self, BodyError, HttpClient, SendError};

use super::{
    Link,
    connection::{Connection, Failure, STREAM_HEAD_WAIT, Wire},
};
use crate::{
    actors::{call::Call, incoming},
    limits::{BACKOFF_FIRST, BACKOFF_MAX, ERROR_BODY_BYTES_MAX, RESUME_ATTEMPTS_MAX, RETRY_DEFAULT, RETRY_MAX, STREAM_DRAIN},
    metrics::{Direction, Side},
};

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const JSON: &str = "application/json";
const EVENT_STREAM: &str = "text/event-stream";
/// Event ids remembered to notice a repetition.
const SEEN_EVENTS: usize = 64;

/// How requests to one HTTP backend are made.
#[derive(Debug)]
pub struct HttpWire {
    client: HttpClient,
    uri: Uri,
    /// Credentials and further headers of the operator.
    headers: HeaderMap,
    session: OnceLock<HeaderValue>,
    version: OnceLock<HeaderValue>,
    limits: json::Limits,
}

/// One request and what it is for.
pub(super) struct Request<'a> {
    pub(super) wire_id: u64,
    pub(super) frame: Bytes,
    pub(super) call: Option<&'a Arc<Call>>,
    /// It is `initialize`: its response carries the session id.
    pub(super) opening: bool,
}

/// The stream an answer is awaited on. Dropping it ends the stream, unless the answer has been seen.
pub(super) struct AnswerStream {
    failure: Option<oneshot::Receiver<Failure>>,
    _stop: Option<DropGuard>,
}

impl AnswerStream {
    /// The answer needs no stream.
    pub(super) fn none() -> Self {
        Self { failure: None, _stop: None }
    }

    /// Resolves when the stream can not bring the answer any more.
    pub(super) async fn failed(&mut self) -> Failure {
        match &mut self.failure {
            Some(failure) => match failure.await {
                Ok(failure) => failure,
                Err(_) => std::future::pending().await,
            },
            None => std::future::pending().await,
        }
    }
}

/// Connects: handshake, then the GET stream.
pub(super) async fn open(link: &Arc<Link>, url: &str) -> Result<Arc<Connection>, Failure> {
    let shared = &link.backend.shared;
    let uri = transport::url::parse_http_url(url).map_err(|error| Failure::NotSent(error.to_string()))?;
    let wire = Arc::new(HttpWire {
        client: shared.http.clone(),
        uri,
        headers: credentials(link)?,
        session: OnceLock::new(),
        version: OnceLock::new(),
        limits: json::Limits { bytes_max: shared.config.limits.message_bytes, ..json::Limits::default() },
    });
    let connection = Connection::new(Wire::Http(wire.clone()), shared.metrics.clone());
    connection.initialize(link).await?;
    let (opened, head) = oneshot::channel();
    shared.running.spawn(listen(wire, link.clone(), connection.clone(), opened));
    let _late_is_fine = tokio::time::timeout(STREAM_HEAD_WAIT, head).await;
    Ok(connection)
}

fn credentials(link: &Link) -> Result<HeaderMap, Failure> {
    let credentials = &link.backend.spec.credentials;
    let mut headers = HeaderMap::new();
    let bad = |_| Failure::NotSent("a credential is not a valid header".to_owned());
    for (name, value) in &credentials.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| Failure::NotSent("a header name is not valid".to_owned()))?;
        headers.insert(name, HeaderValue::from_str(value).map_err(bad)?);
    }
    if let Some(bearer) = &credentials.bearer {
        let mut value = HeaderValue::from_str(&format!("Bearer {bearer}")).map_err(bad)?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    Ok(headers)
}

impl HttpWire {
    pub(super) fn agree_on(&self, version: Version) {
        let _set_once = self.version.set(HeaderValue::from_static(version.as_str()));
    }

    /// Whether the backend issued a session id.
    pub fn has_session(&self) -> bool {
        self.session.get().is_some()
    }

    /// Sends a request. A JSON answer is delivered before this returns, a stream is read by a task of its own.
    pub(super) async fn post_request(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        link: &Arc<Link>,
        request: Request<'_>,
    ) -> Result<AnswerStream, Failure> {
        let response = self.send(self.post(request.frame)).await?;
        if request.opening
            && let Some(session) = response.headers().get(SESSION_ID)
        {
            let _set_once = self.session.set(session.clone());
        }
        let status = response.status();
        let kind = ContentKind::of(&response);
        match (status, kind) {
            (StatusCode::OK, ContentKind::EventStream) => {
                let (failed, failure) = oneshot::channel();
                let stop = CancellationToken::new();
                let reading = StreamReading {
                    wire: self.clone(),
                    link: link.clone(),
                    connection: connection.clone(),
                    answer_to: Some(request.wire_id),
                    call: request.call.cloned(),
                    last_event_id: None,
                    retry: RETRY_DEFAULT,
                    seen: VecDeque::new(),
                };
                link.backend.shared.running.spawn(reading.until_answered(response.into_body(), stop.clone(), failed));
                Ok(AnswerStream { failure: Some(failure), _stop: Some(stop.drop_guard()) })
            }
            (StatusCode::OK, ContentKind::Json) => {
                let body = self.body(response, self.limits.bytes_max).await?;
                link.backend.shared.metrics.bytes(Direction::In, Side::Backend, body.len());
                let message = Message::decode(body, &self.limits).map_err(|rejected| Failure::Protocol(rejected.refusal.to_string()))?;
                self.accept_answer(connection, request.wire_id, message)
            }
            _ => self.refused(connection, request.wire_id, response).await,
        }
    }

    fn accept_answer(&self, connection: &Arc<Connection>, wire_id: u64, message: Message) -> Result<AnswerStream, Failure> {
        let ours = message.is_response() && message.id.as_ref().and_then(protocol::ids::RequestId::as_u64) == Some(wire_id);
        if !ours {
            return Err(Failure::Protocol("the answer is not to this request".to_owned()));
        }
        connection.answered(message);
        Ok(AnswerStream::none())
    }

    /// Any other status: an answer in an odd dress, a lost session, or a failure.
    async fn refused(&self, connection: &Arc<Connection>, wire_id: u64, response: Response<Incoming>) -> Result<AnswerStream, Failure> {
        let status = response.status();
        if status == StatusCode::NOT_FOUND && self.has_session() {
            return Err(Failure::SessionGone);
        }
        let message = match self.body(response, ERROR_BODY_BYTES_MAX).await {
            Ok(body) => Message::decode(body, &self.limits).ok(),
            Err(_) => None,
        };
        if let Some(message) = message {
            // Some servers answer 400 "no valid session" where the specification asks for 404.
            let about_session = || message.text(message.error).is_none() && says_session(message.bytes(message.error));
            if message.kind == Kind::Error
                && status == StatusCode::BAD_REQUEST
                && self.has_session()
                && message.id.is_none()
                && about_session()
            {
                return Err(Failure::SessionGone);
            }
            if message.is_response() && message.id.is_some() {
                return self.accept_answer(connection, wire_id, message);
            }
        }
        Err(match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Failure::Busy(format!("status {status}")),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Failure::NotSent(format!("the backend refused the broker's credentials ({status})"))
            }
            status => Failure::Protocol(format!("status {status}")),
        })
    }

    /// Sends a notification or an answer; 2xx is enough.
    pub(super) async fn post_one_way(&self, frame: Bytes) -> Result<(), Failure> {
        let response = self.send(self.post(frame)).await?;
        let status = response.status();
        let _drained = self.body(response, ERROR_BODY_BYTES_MAX).await;
        match status {
            status if status.is_success() => Ok(()),
            StatusCode::NOT_FOUND if self.has_session() => Err(Failure::SessionGone),
            status => Err(Failure::Protocol(format!("status {status} to a notification or answer"))),
        }
    }

    /// Ends the backend's session; a backend may refuse (405).
    pub(super) async fn delete_session(&self) {
        if !self.has_session() {
            return;
        }
        let request = self.request(HttpMethod::DELETE, Bytes::new(), |_| {});
        if let Ok(Err(failure)) = tokio::time::timeout(Duration::from_secs(2), self.send(request)).await {
            tracing::debug!(%failure, "the backend's session could not be deleted");
        }
    }

    async fn send(&self, request: http::Request<Full<Bytes>>) -> Result<Response<Incoming>, Failure> {
        self.client.send(request).await.map_err(|error| match error {
            error if error.nothing_was_sent() => Failure::NotSent(error.to_string()),
            SendError::Aborted { reason } => Failure::Lost(reason),
            error => Failure::Lost(error.to_string()),
        })
    }

    async fn body(&self, response: Response<Incoming>, bytes_max: usize) -> Result<Bytes, Failure> {
        http_client::read_body(response.into_body(), bytes_max).await.map_err(|error| match error {
            BodyError::TooLarge { max } => Failure::TooLarge { max },
            BodyError::Aborted { reason } => Failure::Lost(reason),
        })
    }

    fn post(&self, frame: Bytes) -> http::Request<Full<Bytes>> {
        self.request(HttpMethod::POST, frame, |headers| {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
            headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        })
    }

    fn get(&self, last_event_id: Option<&str>) -> http::Request<Full<Bytes>> {
        self.request(HttpMethod::GET, Bytes::new(), |headers| {
            headers.insert(ACCEPT, HeaderValue::from_static(EVENT_STREAM));
            if let Some(id) = last_event_id.and_then(|id| HeaderValue::from_bytes(id.as_bytes()).ok()) {
                headers.insert(LAST_EVENT_ID, id);
            }
        })
    }

    fn request(&self, method: HttpMethod, body: Bytes, add: impl FnOnce(&mut HeaderMap)) -> http::Request<Full<Bytes>> {
        let mut request = http::Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        let headers = request.headers_mut();
        add(headers);
        if let Some(session) = self.session.get() {
            headers.insert(SESSION_ID, session.clone());
        }
        if let Some(version) = self.version.get() {
            headers.insert(PROTOCOL_VERSION, version.clone());
        }
        request
    }
}

fn says_session(error: Option<&[u8]>) -> bool {
    error.is_some_and(|text| text.to_ascii_lowercase().windows(7).any(|word| word == b"session"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContentKind {
    Json,
    EventStream,
    Other,
}

impl ContentKind {
    fn of(response: &Response<Incoming>) -> Self {
        let text = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        match text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
            JSON => ContentKind::Json,
            EVENT_STREAM => ContentKind::EventStream,
            _ => ContentKind::Other,
        }
    }
}

/// Reading one stream of events, over as many responses as it takes.
struct StreamReading {
    wire: Arc<HttpWire>,
    link: Arc<Link>,
    connection: Arc<Connection>,
    /// The request whose answer ends the stream; `None` on the GET stream.
    answer_to: Option<u64>,
    call: Option<Arc<Call>>,
    last_event_id: Option<String>,
    retry: Duration,
    seen: VecDeque<String>,
}

/// How a response body ended.
#[derive(Debug, PartialEq, Eq)]
enum BodyEnd {
    /// The answer was in it.
    Answered,
    Ended,
    Broken(Failure),
}

impl StreamReading {
    /// Reads until the answer has come, resuming where the backend allows it.
    async fn until_answered(mut self, body: Incoming, stop: CancellationToken, failed: oneshot::Sender<Failure>) {
        let connection = self.connection.clone();
        tokio::select! {
            failure = self.read_and_resume(body) => {
                if let Some(failure) = failure {
                    let _nobody_waits = failed.send(failure);
                }
            }
            () = stop.cancelled() => {}
            () = connection.closed() => {}
        }
    }

    /// `None` once the answer was seen.
    async fn read_and_resume(&mut self, mut body: Incoming) -> Option<Failure> {
        let mut attempts = 0;
        loop {
            let end = self.read(&mut body).await;
            if end == BodyEnd::Answered {
                drain_later(&self.link, body);
                return None;
            }
            if self.last_event_id.is_none() {
                return Some(match end {
                    BodyEnd::Broken(failure) => failure,
                    _ => Failure::Lost("the event stream ended without the answer".to_owned()),
                });
            }
            body = loop {
                if attempts == RESUME_ATTEMPTS_MAX {
                    return Some(Failure::Lost("the event stream could not be resumed".to_owned()));
                }
                attempts += 1;
                tokio::time::sleep(self.retry).await; // MCP 2025-11-25, Transports: the client waits for `retry`
                match self.wire.send(self.wire.get(self.last_event_id.as_deref())).await {
                    Ok(response) if response.status() == StatusCode::OK && ContentKind::of(&response) == ContentKind::EventStream => {
                        break response.into_body();
                    }
                    Ok(response) if response.status().is_client_error() => {
                        return Some(Failure::Lost(format!("the event stream was not resumed ({})", response.status())));
                    }
                    _ => {}
                }
            };
            // A backend that polls may do so for as long as its call takes; only failures in a row count.
            attempts = 0;
        }
    }

    /// Reads one response body to its end or to the answer.
    async fn read(&mut self, body: &mut Incoming) -> BodyEnd {
        let mut parser = SseParser::new(self.wire.limits.bytes_max);
        loop {
            loop {
                match parser.next_event() {
                    Ok(Some(event)) => {
                        if self.take(event) {
                            return BodyEnd::Answered;
                        }
                    }
                    Ok(None) => break,
                    Err(SseError::TooLarge { max }) => return BodyEnd::Broken(Failure::TooLarge { max }),
                    Err(error) => return BodyEnd::Broken(Failure::Protocol(error.to_string())),
                }
            }
            match body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.link.backend.shared.metrics.bytes(Direction::In, Side::Backend, data.len());
                        parser.push(&data);
                    }
                }
                Some(Err(error)) => return BodyEnd::Broken(Failure::Lost(format!("the event stream broke: {error}"))),
                None => return BodyEnd::Ended,
            }
        }
    }

    /// Takes one event; `true` when it is the awaited answer.
    fn take(&mut self, event: SseEvent) -> bool {
        if let Some(retry) = event.retry {
            self.retry = Duration::from_millis(retry).min(RETRY_MAX);
        }
        if let Some(id) = event.id {
            let repeated = self.seen.contains(&id);
            if !repeated {
                self.seen.push_back(id.clone());
                if self.seen.len() > SEEN_EVENTS {
                    self.seen.pop_front();
                }
            }
            self.last_event_id = (!id.is_empty()).then_some(id);
            if repeated {
                return false;
            }
        }
        let Some(data) = event.data.filter(|data| !data.is_empty()) else { return false };
        match Message::decode(data, &self.wire.limits) {
            Ok(message) => {
                let answers = message.is_response() && self.answer_to.is_some();
                let ours = answers && message.id.as_ref().and_then(protocol::ids::RequestId::as_u64) == self.answer_to;
                incoming::receive(&self.link, &self.connection, message, self.call.as_ref());
                ours
            }
            Err(rejected) => {
                self.connection.broken_answer(&rejected);
                false
            }
        }
    }
}

/// Reads what is left after the answer, so that the connection can be used again.
fn drain_later(link: &Link, body: Incoming) {
    link.backend.shared.running.spawn(async move {
        let _in_time = tokio::time::timeout(STREAM_DRAIN, http_client::read_body(body, ERROR_BODY_BYTES_MAX)).await;
    });
}

/// The GET stream: opened at once, opened again when it ends, until the connection is closed.
async fn listen(wire: Arc<HttpWire>, link: Arc<Link>, connection: Arc<Connection>, opened: oneshot::Sender<()>) {
    let mut reading = StreamReading {
        wire: wire.clone(),
        link: link.clone(),
        connection: connection.clone(),
        answer_to: None,
        call: None,
        last_event_id: None,
        retry: RETRY_DEFAULT,
        seen: VecDeque::new(),
    };
    let mut opened = Some(opened);
    let mut failures = 0_u32;
    let session = async {
        loop {
            let response = wire.send(wire.get(reading.last_event_id.as_deref())).await;
            opened.take().map(|opened| opened.send(()));
            match response {
                Ok(response) if response.status() == StatusCode::OK && ContentKind::of(&response) == ContentKind::EventStream => {
                    failures = 0;
                    let mut body = response.into_body();
                    let _end = reading.read(&mut body).await;
                    if link.is_catalog() {
                        link.backend.refresh(); // what was said meanwhile is lost when the backend keeps no log
                    }
                }
                // The backend forgot the session: the next call opens a new one.
                Ok(response) if response.status() == StatusCode::NOT_FOUND && wire.has_session() => return,
                // No such stream here (405), or none for us: calls work without.
                Ok(response) if response.status().is_client_error() => return std::future::pending().await,
                _ => failures += 1,
            }
            let pause = if failures == 0 { reading.retry } else { BACKOFF_FIRST.saturating_mul(1 << failures.min(10)).min(BACKOFF_MAX) };
            tokio::time::sleep(pause).await;
        }
    };
    tokio::select! {
        () = session => connection.close_now(),
        () = connection.closed() => {}
    }
    link.backend.connection_ended(&link, &connection);
}
