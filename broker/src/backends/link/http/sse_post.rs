//! The POST of one request over HTTP+SSE. Its answer arrives on the event stream.

use std::sync::Arc;

use bytes::Bytes;
use rules::limits::{ERROR_BODY_BYTES_MAX, STREAM_DRAIN};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    http_wire::HttpWire,
    post_outcome::{AnswerStream, PostOutcome},
};
use crate::backends::link::{Link, connection::Connection, failure::Failure, request::WireRequest};

impl HttpWire {
    /// Posts a request whose answer arrives on the stream. The answer may come before the response
    /// to the POST, which is then given time to end by itself.
    pub(super) fn post_in_background(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        link: &Arc<Link>,
        request: WireRequest<'_>,
    ) -> PostOutcome {
        let (failed, failure) = oneshot::channel();
        let stop = CancellationToken::new();
        let given_up = stop.clone();
        // The headers hold the trace of this task, so they are made here.
        let (wire_id, request) = (request.wire_id, self.post(request.frame.into_bytes(), None));
        let (wire, connection, link_of_post) = (self.clone(), connection.clone(), link.clone());
        link.backend.context.running.spawn(async move {
            let too_late = async {
                tokio::select! { () = given_up.cancelled() => {}, () = connection.closed() => {} }
                tokio::time::sleep(STREAM_DRAIN).await;
            };
            tokio::select! {
                posted = wire.post_for_later(&link_of_post, &connection, wire_id, request) => {
                    if let Err(failure) = posted {
                        let _receiver_dropped = failed.send(failure);
                    }
                }
                () = too_late => {}
            }
        });
        PostOutcome::Stream(AnswerStream { failure, _stop: stop.drop_guard() })
    }

    async fn post_for_later(
        &self,
        link: &Arc<Link>,
        connection: &Arc<Connection>,
        wire_id: u64,
        request: http::Request<http_body_util::Full<Bytes>>,
    ) -> Result<(), Failure> {
        let response = self.send(request).await?;
        if response.status().is_success() {
            let _drained = self.body(response, ERROR_BODY_BYTES_MAX).await;
            return Ok(());
        }
        // The body of a refusal may be the answer, which then does not arrive on the stream.
        if let PostOutcome::Answer(answer) =
            self.handle_error_status(link, connection, wire_id, response).await?
        {
            connection.deliver_answer(answer);
        }
        Ok(())
    }
}
