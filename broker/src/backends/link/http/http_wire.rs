//! The sender of HTTP requests to one backend: their headers, the session and the tokens. It knows
//! neither the connection nor the link that it sends for.

use std::sync::OnceLock;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method as HttpMethod, StatusCode, Uri,
    header::{ACCEPT, CONTENT_TYPE},
    uri::Scheme,
};
use http_body_util::Full;
use protocol::{json, version::Version};
use rules::limits::{ERROR_BODY_BYTES_MAX, SESSION_DELETE_WAIT};
use tokio_util::sync::CancellationToken;
use transport::{
    HttpResponse, VectoredBody,
    http_client::{BodyError, HttpClient, PreparedPost, ResponseBody},
    url::resolve_in_origin,
};

use super::{
    authorization,
    content_kind::{ContentKind, EVENT_STREAM, JSON},
};
use crate::{
    backends::link::{
        failure::Failure,
        queue::{FrameQueue, QueueOwner},
    },
    oauth::{LinkPost, LinkPosts, LinkTokens},
    telemetry,
};

pub(super) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Sender of requests to one HTTP backend.
#[derive(Debug)]
pub struct HttpWire {
    pub(super) client: HttpClient,
    pub(super) uri: Uri,
    /// Credentials and further headers that the operator configured.
    pub(super) headers: HeaderMap,
    /// Source of the access tokens, if the backend wants any.
    pub(super) tokens: Option<LinkTokens>,
    pub(super) session: OnceLock<HeaderValue>,
    pub(super) version: OnceLock<HeaderValue>,
    /// The prepared head of a session's POSTs. They differ only in their bodies once the session is
    /// negotiated. `None` if the library cannot prepare heads.
    pub(super) prepared: OnceLock<Option<PreparedPost>>,
    /// The same with the access token that was used last.
    pub(super) prepared_with: LinkPosts,
    pub(super) limits: json::Limits,
    /// Notifications and answers that wait for their POST.
    pub(super) one_way: FrameQueue,
    /// Where POSTs go in HTTP+SSE. `None` in Streamable HTTP.
    pub(super) endpoint: Option<PostEndpoint>,
    /// The status by which the backend refused a POST before the handshake was over.
    pub(super) refused: OnceLock<StatusCode>,
    /// Held while a refused request probes the era of the backend. True once a backend that had
    /// sessions turned out to be stateless.
    pub(super) era_check: tokio::sync::Mutex<bool>,
}

/// The URL for POSTs, once the backend has named it.
#[derive(Debug, Default)]
pub(super) struct PostEndpoint {
    /// The URL, or the fault of the event.
    pub(super) named: OnceLock<Result<Uri, String>>,
    pub(super) found: CancellationToken,
}

impl HttpWire {
    pub(in crate::backends::link) fn agree_on(&self, version: Version) {
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

    /// Returns the queue of notifications and answers.
    pub(in crate::backends::link) fn one_way(&self) -> &FrameQueue {
        &self.one_way
    }

    /// Sends a notification or an answer. Any 2xx status is a success. Some servers then open an
    /// event stream that brings nothing and does not end, so the broker does not read it.
    pub(in crate::backends::link) async fn post_one_way(
        &self,
        frame: Bytes,
    ) -> Result<(), Failure> {
        let response = self.send_post(frame.into(), None).await?;
        let status = response.status();
        if ContentKind::of(&response) != ContentKind::EventStream {
            let _drained = self.body(response, ERROR_BODY_BYTES_MAX).await;
        }
        match status {
            status if status.is_success() => Ok(()),
            StatusCode::NOT_FOUND if self.is_session() => Err(Failure::SessionGone),
            status => Err(Failure::Protocol(format!(
                "the backend answered a notification or response with status {status}"
            ))),
        }
    }

    /// Deletes the backend's session. A backend may refuse that (405).
    pub(in crate::backends::link) async fn delete_session(&self) {
        if !self.has_session() {
            return;
        }
        let request = self.request(HttpMethod::DELETE, Bytes::new(), |_| {});
        if let Ok(Err(failure)) =
            tokio::time::timeout(SESSION_DELETE_WAIT, self.send(request)).await
        {
            let QueueOwner { tenant, backend } = &self.one_way.owner;
            tracing::debug!(%tenant, %backend, %failure, "the backend's session could not be deleted");
        }
    }

    pub(super) async fn send(
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

    pub(super) async fn send_post(
        &self,
        frame: VectoredBody,
        more: Option<Box<HeaderMap>>,
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

    pub(super) async fn body(
        &self,
        response: HttpResponse<ResponseBody>,
        bytes_max: usize,
    ) -> Result<Bytes, Failure> {
        response.into_body().read_whole(bytes_max).await.map_err(|error| match error {
            BodyError::TooLarge { max } => Failure::TooLarge { max },
            BodyError::Aborted { reason } => Failure::Lost(reason),
            BodyError::Crowded => Failure::Lost(BodyError::Crowded.to_string()),
        })
    }

    pub(super) fn post(
        &self,
        frame: Bytes,
        more: Option<Box<HeaderMap>>,
    ) -> http::Request<Full<Bytes>> {
        self.request(HttpMethod::POST, frame, |headers| {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
            headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
            headers.extend(more.into_iter().flat_map(|more| *more));
        })
    }

    pub(super) fn get(&self, last_event_id: Option<&str>) -> http::Request<Full<Bytes>> {
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
        // A request of 2026-07-28 names its revision, and belongs to no session.
        if headers.contains_key(PROTOCOL_VERSION) {
            return request;
        }
        if let Some(session) = self.session.get() {
            headers.insert(SESSION_ID, session.clone());
        }
        if let Some(version) = self.version.get() {
            headers.insert(PROTOCOL_VERSION, version.clone());
        }
        request
    }

    /// Returns whether all answers arrive on one stream, as in HTTP+SSE.
    pub fn is_one_stream(&self) -> bool {
        self.endpoint.is_some()
    }

    /// Returns whether the requests belong to a session that the backend can forget.
    pub(super) fn is_session(&self) -> bool {
        self.has_session() || self.is_one_stream()
    }

    /// Returns whether the backend could not read a request before the handshake was over.
    pub(in crate::backends::link) fn refused_as_bad_request(&self) -> bool {
        let unread = [StatusCode::BAD_REQUEST, StatusCode::UNPROCESSABLE_ENTITY];
        self.refused.get().is_some_and(|status| unread.contains(status))
    }

    /// Returns where requests of this method go.
    fn target(&self, method: &HttpMethod) -> &Uri {
        let named = self.endpoint.as_ref().filter(|_| method == HttpMethod::POST);
        match named.and_then(|endpoint| endpoint.named.get()) {
            Some(Ok(endpoint)) => endpoint,
            _ => &self.uri,
        }
    }

    /// Stores the URL of an `endpoint` event. The first one counts.
    pub(super) fn record_endpoint(&self, data: &Bytes) {
        let Some(endpoint) = &self.endpoint else { return };
        let named = std::str::from_utf8(data)
            .map_err(|error| error.to_string())
            .and_then(|text| resolve_in_origin(&self.uri, text).map_err(|error| error.to_string()));
        let _first_counts = endpoint.named.set(named);
        endpoint.found.cancel();
    }
}
