//! The sending of one request over the wire of a connection, and the wait for its answer.

use std::{sync::Arc, time::Duration};

use protocol::{envelope::Message, splice};

use super::{Connection, pending::AnswerSlot};
use crate::{
    backends::link::{
        Link, failure::Failure, http::post_outcome::PostOutcome, request::WireRequest,
        request_streams::RequestStreams, stream_request, wire::WireSender,
    },
    metrics::{Direction, Side},
    persistence::fault_point,
};

/// Time that requests in flight wait for their own answers after the backend reported to one of
/// them that it forgot the session. It reports the same to the others, so the broker can send them
/// again. A stream may still bring its answer.
const FORGOTTEN_GRACE: Duration = Duration::from_secs(1);

impl Connection {
    /// Sends a request and waits for its answer until the connection ends. The answer to a request
    /// of a client has no members of `_meta` that only the broker sets.
    pub(in crate::backends::link) async fn send_and_wait(
        self: &Arc<Self>,
        link: &Arc<Link>,
        request: WireRequest<'_>,
    ) -> Result<Message, Failure> {
        if self.is_closed() {
            return Err(self.why_closed());
        }
        let is_for_client = request.requester.is_some();
        let slot = self.pending.expect(request.wire_id, request.requester);
        self.metrics.bytes(Direction::Out, Side::Backend, request.frame.len());
        let answer = tokio::select! {
            biased;
            answer = slot.answered() => answer,
            answer = self.send_request(link, request) => answer,
            // The answer may have come just before the end.
            () = self.closed_without_answer(&slot) => slot.take().unwrap_or_else(|| Err(self.loss())),
        };
        match &answer {
            Err(Failure::SessionGone) => self.close_forgotten(),
            Ok(_) => self.streams.get().into_iter().for_each(RequestStreams::record_ready),
            Err(_) => {}
        }
        match answer {
            Ok(answer) if is_for_client && answer.fields.meta_has_own => {
                splice::without_own_meta(&answer, |_| false)
                    .map_err(|refusal| Failure::Protocol(refusal.to_string()))
            }
            answer => answer,
        }
    }

    /// Sends a request and keeps the stream of its answer open. Resolves when the answer has come
    /// on that stream, or cannot come any more. Answers that are matched by id resolve
    /// [`AnswerSlot`] instead.
    async fn send_request(
        self: &Arc<Self>,
        link: &Arc<Link>,
        request: WireRequest<'_>,
    ) -> Result<Message, Failure> {
        let of_task = request.requester.is_some_and(|requester| requester.is_task());
        if let Some(stream) = self.streams.get().and_then(RequestStreams::try_open) {
            return Err(Box::pin(stream_request::exchange(stream, link, self, request)).await);
        }
        match &self.wire {
            WireSender::Pipe(queue) => match queue.push(request.frame.into_bytes()) {
                Ok(()) => std::future::pending().await,
                Err(Failure::NotSent(_)) if self.is_closed() => Err(self.why_closed()),
                Err(failure) => Err(failure),
            },
            WireSender::Http(http) => {
                let outcome = http.post_request(self, link, request).await?;
                if of_task {
                    fault_point::hit("task.request.written");
                }
                match outcome {
                    PostOutcome::Answer(answer) => Ok(answer),
                    PostOutcome::Stream(mut stream) => Err(stream.failed().await),
                }
            }
        }
    }

    /// Waits until no answer can come any more.
    async fn closed_without_answer(&self, slot: &AnswerSlot<'_>) {
        slot.connection_ended().await;
        self.grace_of_answers().await;
    }

    /// Waits for the time that answers in transit have after the end of the connection.
    pub(in crate::backends::link) async fn grace_of_answers(&self) {
        if self.is_forgotten() {
            tokio::time::sleep(FORGOTTEN_GRACE).await;
        }
    }
}
