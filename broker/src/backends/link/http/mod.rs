//! A link over Streamable HTTP, in the client's role (MCP 2025-11-25, Transports).
//!
//! Each message is a POST over pooled connections. An answer is JSON or an event stream
//! ([`event_stream`]). One GET stream ([`get_stream`]) carries messages outside calls.
//! Notifications and answers are sent one after the other. A backend of 2024-11-05 uses [`http_sse`]
//! instead.

mod authorization;
mod content_kind;
mod error_status;
mod event_stream;
mod get_outcome;
mod get_stream;
pub(super) mod http_sse;
mod resumption;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method as HttpMethod, StatusCode, Uri,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE},
    uri::Scheme,
};
use http_body_util::Full;
use protocol::{envelope::Message, ids::PrincipalId, json, version::Version};
use rules::limits::{ERROR_BODY_BYTES_MAX, ONE_WAY_QUEUE_FRAMES, SESSION_DELETE_WAIT};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};
use transport::{
    HttpResponse, VectoredBody,
    http_client::{BodyError, HttpClient, PreparedPost, ResponseBody},
};

pub(super) use self::resumption::end_unused;
use self::{
    content_kind::{ContentKind, EVENT_STREAM, JSON},
    event_stream::EventStreamReader,
    http_sse::PostEndpoint,
};
use super::{
    Link,
    connection::Connection,
    failure::Failure,
    handshake_guard::HandshakeGuard,
    queue::{FrameQueue, QueuedFrame},
    request::WireRequest,
    stateless,
    wire::WireSender,
};
use crate::{
    backends::{backend::Backend, inbound},
    metrics::{Direction, Side},
    oauth::{LinkPost, LinkPosts, LinkTokens},
    telemetry,
};

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Longest time that the head of the GET stream may delay the opening of a link.
const STREAM_HEAD_WAIT: Duration = Duration::from_secs(1);

/// Sender of requests to one HTTP backend.
#[derive(Debug)]
pub struct HttpWire {
    client: HttpClient,
    uri: Uri,
    /// Credentials and further headers that the operator configured.
    headers: HeaderMap,
    /// Source of the access tokens, if the backend wants any.
    tokens: Option<LinkTokens>,
    session: OnceLock<HeaderValue>,
    version: OnceLock<HeaderValue>,
    /// The prepared head of a session's POSTs. They differ only in their bodies once the session is
    /// negotiated. `None` if the library cannot prepare heads.
    prepared: OnceLock<Option<PreparedPost>>,
    /// The same with the access token that was used last.
    prepared_with: LinkPosts,
    limits: json::Limits,
    /// Notifications and answers that wait for their POST.
    one_way: FrameQueue,
    /// Where POSTs go in HTTP+SSE. `None` in Streamable HTTP.
    endpoint: Option<PostEndpoint>,
    /// The status by which the backend refused a POST before the handshake was over.
    refused: OnceLock<StatusCode>,
}

/// The outcome of a POST.
pub(super) enum PostOutcome {
    Answer(Message),
    /// The answer arrives on this stream.
    Stream(AnswerStream),
}

/// The stream of an awaited answer. Dropping it ends the stream, unless the answer has come.
pub(super) struct AnswerStream {
    failure: oneshot::Receiver<Failure>,
    _stop: DropGuard,
}

impl AnswerStream {
    /// Waits until the stream cannot carry the answer any more.
    pub(super) async fn failed(&mut self) -> Failure {
        match (&mut self.failure).await {
            Ok(failure) => failure,
            Err(_) => std::future::pending().await,
        }
    }
}

/// Connects by Streamable HTTP, or by HTTP+SSE if the URL turns out to be one of that.
pub(super) async fn open(link: &Arc<Link>, url: &str) -> Result<Arc<Connection>, Failure> {
    if link.backend.era.uses_http_sse()
        && let Some(opened) = http_sse::open_again(link, url).await
    {
        return opened;
    }
    let wire = HttpWire::to(&link.backend, link.principal.clone(), url).await?;
    let (wire, frames) = (Arc::new(wire.0), wire.1);
    match open_streamable(link, url, &wire, frames).await {
        Err(failure) if wire.may_be_http_sse(link) => {
            http_sse::open_instead(link, url).await.ok_or(failure)
        }
        opened => opened,
    }
}

/// Connects: the handshake, unless there is a session to resume, then the GET stream.
async fn open_streamable(
    link: &Arc<Link>,
    url: &str,
    wire: &Arc<HttpWire>,
    frames: mpsc::Receiver<QueuedFrame>,
) -> Result<Arc<Connection>, Failure> {
    let shared = &link.backend.shared;
    let connection = Connection::new(WireSender::Http(wire.clone()), shared.metrics.clone());
    let guard = HandshakeGuard::new(&connection, &shared.running);
    shared.running.spawn(send_one_way(wire.clone(), link.clone(), connection.clone(), frames));
    if !resumption::resume(link, url, wire, &connection).await {
        stateless::handshake::agree(&connection, link).await?;
    }
    if connection.modern().is_some() {
        shared.running.spawn(watch(link.clone(), connection.clone()));
        guard.disarm();
        return Ok(connection);
    }
    let (opened, head) = oneshot::channel();
    shared.running.spawn(get_stream::listen(
        wire.clone(),
        link.clone(),
        connection.clone(),
        opened,
    ));
    // Before the first call, because some servers lose messages that they cannot deliver at once.
    let _late_is_fine = tokio::time::timeout(STREAM_HEAD_WAIT, head).await;
    guard.disarm();
    Ok(connection)
}

/// Reports the end of a connection that has no GET stream.
async fn watch(link: Arc<Link>, connection: Arc<Connection>) {
    connection.closed().await;
    link.backend.connection_ended(&link, &connection);
}

/// Posts notifications and answers, in order. A frame that the backend does not take in time is
/// dropped. After the connection is closed, queued frames have [`SESSION_DELETE_WAIT`] left.
async fn send_one_way(
    wire: Arc<HttpWire>,
    link: Arc<Link>,
    connection: Arc<Connection>,
    mut frames: mpsc::Receiver<QueuedFrame>,
) {
    let limit = link.backend.timeouts().control;
    let sending = async {
        while let Some(frame) = frames.recv().await {
            match tokio::time::timeout(limit, wire.post_one_way(frame.into_frame())).await {
                Ok(Ok(())) => {}
                Ok(Err(failure)) => {
                    let told = link.backend.redactor.redact(&failure);
                    tracing::info!(backend = %link.backend.id, failure = told, "a notification or answer did not reach the backend");
                    if failure == Failure::SessionGone {
                        connection.close_forgotten();
                    }
                }
                Err(_) => {
                    tracing::info!(backend = %link.backend.id, "a notification or answer was not taken in time")
                }
            }
        }
    };
    let too_late = async {
        connection.closed().await;
        tokio::time::sleep(SESSION_DELETE_WAIT).await;
    };
    tokio::select! { () = sending => {}, () = too_late => {} }
    connection.mark_flushed();
}

fn credentials(backend: &Backend) -> Result<HeaderMap, Failure> {
    let credentials = &backend.spec.credentials;
    let mut headers = HeaderMap::new();
    let bad = |_| Failure::NotSent("a credential is not a valid header".to_owned());
    for (name, value) in &credentials.headers {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| Failure::NotSent("a header name is not valid".to_owned()))?;
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
    /// Creates the sender for a backend, without a session, and the queue of its notifications and
    /// answers.
    async fn to(
        backend: &Backend,
        principal: Option<PrincipalId>,
        url: &str,
    ) -> Result<(Self, mpsc::Receiver<QueuedFrame>), Failure> {
        let shared = &backend.shared;
        let (one_way, frames) =
            FrameQueue::new(ONE_WAY_QUEUE_FRAMES, shared.metrics.queue_depth("http_one_way"));
        let wire = Self {
            client: backend
                .resources
                .tls_clients
                .http_client(&shared.http, backend.spec.tls.identity())
                .await?,
            uri: transport::url::parse_http_url(url)
                .map_err(|error| Failure::NotSent(error.to_string()))?,
            headers: credentials(backend)?,
            tokens: backend.tokens.clone().map(|source| LinkTokens { source, principal }),
            session: OnceLock::new(),
            version: OnceLock::new(),
            prepared: OnceLock::new(),
            prepared_with: LinkPosts::default(),
            limits: json::Limits { bytes_max: backend.message_bytes(), ..json::Limits::default() },
            one_way,
            endpoint: None,
            refused: OnceLock::new(),
        };
        Ok((wire, frames))
    }

    pub(super) fn agree_on(&self, version: Version) {
        let _set_once = self.version.set(HeaderValue::from_static(version.as_str()));
    }

    /// Returns the session id that the backend issued.
    pub fn session_id(&self) -> Option<String> {
        self.session.get().and_then(|session| session.to_str().ok()).map(str::to_owned)
    }

    /// Returns whether the backend issued a session id.
    pub fn has_session(&self) -> bool {
        self.session.get().is_some()
    }

    /// Sends a request. Returns a JSON answer. A task of its own reads an event stream.
    pub(super) async fn post_request(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        link: &Arc<Link>,
        request: WireRequest<'_>,
    ) -> Result<PostOutcome, Failure> {
        if self.is_one_stream() {
            return Ok(self.post_in_background(connection, link, request.frame.into_bytes()));
        }
        let is_modern = request.headers.is_some();
        let response = self.send_post(request.frame, request.headers).await?;
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
                let mut reading = EventStreamReader::new(
                    self,
                    link,
                    connection,
                    Some(request.wire_id),
                    request.asker.cloned(),
                );
                reading.resumable = !is_modern;
                link.backend.shared.running.spawn(reading.until_answered(
                    response.into_body(),
                    stop.clone(),
                    failed,
                ));
                Ok(PostOutcome::Stream(AnswerStream { failure, _stop: stop.drop_guard() }))
            }
            (StatusCode::OK, ContentKind::Json) => {
                let body = self.body(response, self.limits.bytes_max).await?;
                link.backend.shared.metrics.bytes(Direction::In, Side::Backend, body.len());
                let message = Message::decode(body, &self.limits)
                    .map_err(|rejected| Failure::Protocol(rejected.refusal.to_string()))?;
                accept_answer(link, connection, request.wire_id, message)
            }
            // Boxed, because they are rare and would enlarge the future of every call.
            _ if is_modern => {
                Box::pin(self.modern_refused(link, connection, request.wire_id, response)).await
            }
            _ => {
                Box::pin(self.handle_error_status(link, connection, request.wire_id, response))
                    .await
            }
        }
    }

    /// Returns the queue of notifications and answers.
    pub(super) fn one_way(&self) -> &FrameQueue {
        &self.one_way
    }

    /// Sends a notification or an answer. Any 2xx status is a success.
    pub(super) async fn post_one_way(&self, frame: Bytes) -> Result<(), Failure> {
        let response = self.send_post(frame.into(), None).await?;
        let status = response.status();
        let _drained = self.body(response, ERROR_BODY_BYTES_MAX).await;
        match status {
            status if status.is_success() => Ok(()),
            StatusCode::NOT_FOUND if self.is_session() => Err(Failure::SessionGone),
            status => {
                Err(Failure::Protocol(format!("status {status} to a notification or answer")))
            }
        }
    }

    /// Deletes the backend's session. A backend may refuse that (405).
    pub(super) async fn delete_session(&self) {
        if !self.has_session() {
            return;
        }
        let request = self.request(HttpMethod::DELETE, Bytes::new(), |_| {});
        if let Ok(Err(failure)) =
            tokio::time::timeout(SESSION_DELETE_WAIT, self.send(request)).await
        {
            tracing::debug!(%failure, "the backend's session could not be deleted");
        }
    }

    async fn send(
        &self,
        request: http::Request<Full<Bytes>>,
    ) -> Result<HttpResponse<ResponseBody>, Failure> {
        match &self.tokens {
            None => self.client.send(request).await.map_err(Failure::of_send),
            // Boxed, because it would enlarge the future of every call.
            Some(tokens) => {
                Box::pin(authorization::send(&self.client, tokens, request, None)).await
            }
        }
    }

    async fn send_post(
        &self,
        frame: VectoredBody,
        more: Option<HeaderMap>,
    ) -> Result<HttpResponse<ResponseBody>, Failure> {
        // Trace headers differ from request to request.
        let is_usual = more.is_none()
            && self.version.get().is_some()
            && !telemetry::request::has_outgoing_headers();
        if is_usual
            && self.tokens.is_none()
            && let Some(prepared) = self
                .prepared
                .get_or_init(|| self.client.prepare(self.post(Bytes::new(), None).map(drop)))
        {
            return self.client.send_prepared(prepared, frame).await.map_err(Failure::of_send);
        }
        if is_usual
            && let Some(tokens) = &self.tokens
            && let Some(prepared) = self.prepared_with_token(tokens)
        {
            // Boxed, because it would enlarge the future of every call.
            return Box::pin(authorization::send_prepared(
                &self.client,
                tokens,
                prepared,
                frame,
                |body| self.post(body, None),
            ))
            .await;
        }
        // Boxed, because it is rare and would enlarge the future of every call.
        Box::pin(self.send(self.post(frame.into_bytes(), more))).await
    }

    /// Returns the prepared head of a POST with the token of now, if that needs no request.
    fn prepared_with_token(&self, tokens: &LinkTokens) -> Option<LinkPost> {
        if let Some(last) = self.prepared_with.last(tokens.changes()) {
            return Some(last);
        }
        let is_plain = self.uri.scheme() == Some(&Scheme::HTTP);
        let token = tokens.held().filter(|_| is_plain)?;
        let bare = || self.post(Bytes::new(), None).map(drop);
        self.prepared_with.with(&self.client, token, bare)
    }

    async fn body(
        &self,
        response: HttpResponse<ResponseBody>,
        bytes_max: usize,
    ) -> Result<Bytes, Failure> {
        response.into_body().read_whole(bytes_max).await.map_err(|error| match error {
            BodyError::TooLarge { max } => Failure::TooLarge { max },
            BodyError::Aborted { reason } => Failure::Lost(reason),
        })
    }

    fn post(&self, frame: Bytes, more: Option<HeaderMap>) -> http::Request<Full<Bytes>> {
        self.request(HttpMethod::POST, frame, |headers| {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
            headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
            headers.extend(more.into_iter().flatten());
        })
    }

    fn get(&self, last_event_id: Option<&str>) -> http::Request<Full<Bytes>> {
        self.request(HttpMethod::GET, Bytes::new(), |headers| {
            headers.insert(ACCEPT, HeaderValue::from_static(EVENT_STREAM));
            if let Some(id) =
                last_event_id.and_then(|id| HeaderValue::from_bytes(id.as_bytes()).ok())
            {
                headers.insert(LAST_EVENT_ID, id);
            }
        })
    }

    fn request(
        &self,
        method: HttpMethod,
        body: Bytes,
        add: impl FnOnce(&mut HeaderMap),
    ) -> http::Request<Full<Bytes>> {
        let mut request = http::Request::new(Full::new(body));
        *request.uri_mut() = self.target(&method).clone();
        *request.method_mut() = method;
        *request.headers_mut() = self.headers.clone();
        let headers = request.headers_mut();
        add(headers);
        telemetry::request::inject_headers(headers);
        if let Some(session) = self.session.get() {
            headers.insert(SESSION_ID, session.clone());
        }
        if let Some(version) = self.version.get() {
            headers.insert(PROTOCOL_VERSION, version.clone());
        }
        request
    }
}

/// Returns the answer to the sender directly, without a lookup by wire id.
fn accept_answer(
    link: &Arc<Link>,
    connection: &Arc<Connection>,
    wire_id: u64,
    message: Message,
) -> Result<PostOutcome, Failure> {
    if !message.is_response_to(wire_id) {
        return Err(Failure::Protocol("the answer is not to this request".to_owned()));
    }
    inbound::task_created(link, connection, &message);
    Ok(PostOutcome::Answer(message))
}
