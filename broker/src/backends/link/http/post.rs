//! The POST of one request.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use protocol::{envelope::Body, method::Method, stateless::headers};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use transport::ResponseBody;

use super::{
    content_kind::ContentKind,
    event_stream::EventStreamReader,
    http_wire::{HttpWire, SESSION_ID},
    post_outcome::{AnswerStream, PostOutcome, accept_answer, accept_batch},
};
use crate::{
    backends::{
        inbound,
        link::{
            Link,
            connection::{Connection, requester::Requester},
            failure::Failure,
            request::WireRequest,
        },
    },
    metrics::{Direction, Side},
};

impl HttpWire {
    /// Sends a request. Returns a JSON answer. A task of its own reads an event stream.
    pub(in crate::backends::link) async fn post_request(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        link: &Arc<Link>,
        request: WireRequest<'_>,
    ) -> Result<PostOutcome, Failure> {
        if self.is_one_stream() {
            return Ok(self.post_in_background(connection, link, request));
        }
        let is_stateless = request.headers.is_some();
        // Calls have a requester, so they do not pay for the lookup.
        let is_discover = request.requester.is_none()
            && request.headers.as_ref().is_some_and(|headers| {
                headers
                    .get(headers::METHOD)
                    .is_some_and(|name| name == Method::ServerDiscover.name())
            });
        let (wire_id, requester) = (request.wire_id, request.requester);
        let response = self.send_post(request.frame, request.headers).await?;
        if request.is_initialize
            && let Some(session) = response.headers().get(SESSION_ID)
            && !session.is_empty()
        {
            let _set_once = self.session.set(session.clone());
        }
        let status = response.status();
        let kind = ContentKind::of(&response);
        match (status, kind) {
            (StatusCode::OK, ContentKind::EventStream) => {
                let mut reading = EventStreamReader::new(
                    self,
                    link,
                    connection,
                    Some(wire_id),
                    requester.cloned(),
                );
                reading.resumable = !is_stateless;
                Ok(PostOutcome::Stream(read_in_background(link, reading, response.into_body())))
            }
            (StatusCode::OK, ContentKind::Json) => {
                let body = self.body(response, self.limits.bytes_max).await?;
                self.accept_json(link, connection, wire_id, requester, body)
            }
            // Boxed, because they are rare and would enlarge the future of every call.
            _ if is_stateless => {
                Box::pin(self.handle_stateless_refusal(
                    link,
                    connection,
                    wire_id,
                    is_discover,
                    response,
                ))
                .await
            }
            _ => Box::pin(self.handle_session_refusal(link, connection, wire_id, response)).await,
        }
    }

    /// Decodes the body of a JSON response, and returns the answer to the request.
    fn accept_json(
        &self,
        link: &Arc<Link>,
        connection: &Arc<Connection>,
        wire_id: u64,
        requester: Option<&Arc<dyn Requester>>,
        body: Bytes,
    ) -> Result<PostOutcome, Failure> {
        link.backend.context.metrics.bytes(Direction::In, Side::Backend, body.len());
        let body = inbound::decode(connection, body, &self.limits)
            .map_err(|rejected| Failure::Protocol(rejected.refusal.to_string()))?;
        match body {
            Body::One(message) => accept_answer(connection, wire_id, message),
            Body::Batch(messages) => accept_batch(link, connection, wire_id, requester, messages),
        }
    }
}

/// Reads an event stream in a task of its own, until the answer has come or the returned value is
/// dropped.
fn read_in_background(link: &Link, reading: EventStreamReader, body: ResponseBody) -> AnswerStream {
    let (failed, failure) = oneshot::channel();
    let stop = CancellationToken::new();
    link.backend.context.running.spawn(reading.until_answered(body, stop.clone(), failed));
    AnswerStream { failure, _stop: stop.drop_guard() }
}
