//! The POST of one request.

use std::sync::Arc;

use http::StatusCode;
use protocol::{envelope::Body, method::Method, stateless::headers};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    content_kind::ContentKind,
    event_stream::EventStreamReader,
    http_wire::{HttpWire, SESSION_ID},
    post_outcome::{AnswerStream, PostOutcome, accept_answer, accept_batch},
};
use crate::{
    backends::{
        inbound,
        link::{Link, connection::Connection, failure::Failure, request::WireRequest},
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
        let is_modern = request.headers.is_some();
        // Calls have a requester, so they do not pay for the lookup.
        let is_discover = request.requester.is_none()
            && request.headers.as_ref().is_some_and(|headers| {
                headers
                    .get(headers::METHOD)
                    .is_some_and(|name| name == Method::ServerDiscover.name())
            });
        let response = self.send_post(request.frame, request.headers).await?;
        if request.is_initialize
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
                    request.requester.cloned(),
                );
                reading.resumable = !is_modern;
                link.backend.context.running.spawn(reading.until_answered(
                    response.into_body(),
                    stop.clone(),
                    failed,
                ));
                Ok(PostOutcome::Stream(AnswerStream { failure, _stop: stop.drop_guard() }))
            }
            (StatusCode::OK, ContentKind::Json) => {
                let body = self.body(response, self.limits.bytes_max).await?;
                link.backend.context.metrics.bytes(Direction::In, Side::Backend, body.len());
                let body = inbound::decode(connection, body, &self.limits)
                    .map_err(|rejected| Failure::Protocol(rejected.refusal.to_string()))?;
                match body {
                    Body::One(message) => accept_answer(connection, request.wire_id, message),
                    Body::Batch(messages) => {
                        let (wire_id, requester) = (request.wire_id, request.requester);
                        accept_batch(link, connection, wire_id, requester, messages)
                    }
                }
            }
            // Boxed, because they are rare and would enlarge the future of every call.
            _ if is_modern => {
                Box::pin(self.handle_stateless_refusal(
                    link,
                    connection,
                    request.wire_id,
                    is_discover,
                    response,
                ))
                .await
            }
            _ => {
                Box::pin(self.handle_session_refusal(link, connection, request.wire_id, response))
                    .await
            }
        }
    }
}
