//! Requests over a connection on behalf of a client: calls and tasks.

use std::sync::Arc;

use protocol::{envelope::Message, handshake, ids::RequestId, method::Method, splice::Splice};
use transport::VectoredBody;

use super::{
    Connection,
    requester::{Requester, SentRequest},
};
use crate::{
    backends::link::{
        Link,
        failure::Failure,
        request::{BackendRequest, WireRequest},
        stateless::exchange,
        wire::WireSender,
    },
    telemetry::{child_span::ChildSpan, request},
};

impl Connection {
    /// Sends a client's request and waits for its answer. Cancel-safe: a dropped wait frees its
    /// slot.
    pub async fn exchange(
        self: &Arc<Self>,
        link: &Arc<Link>,
        outgoing: BackendRequest<'_>,
    ) -> Result<Message, Failure> {
        if self.stateless().is_some() {
            // Boxed: this future is much larger than the one for other connections.
            return Box::pin(exchange::exchange(self, link, outgoing)).await;
        }
        let wire_id = self.next_wire_id();
        let (frame, span) = self.edited(link, wire_id, outgoing);
        outgoing
            .requester
            .sent_as(SentRequest { connection: self.clone(), wire_id }, outgoing.sent_at);
        let request = WireRequest::new(wire_id, frame).for_requester(outgoing.requester);
        let answer = match &span {
            // Boxed, because it would enlarge the future of every call.
            Some(span) => {
                Box::pin(request::with_outgoing_headers(
                    span.headers(),
                    self.send_and_wait(link, request),
                ))
                .await
            }
            None => self.send_and_wait(link, request).await,
        };
        if let Some(span) = span {
            match &answer {
                Ok(answer) => span.finish(answer, outgoing.message.method),
                Err(failure) => span.fail(failure.name()),
            }
        }
        answer
    }

    /// Returns the client's request as the backend gets it, and the span of this attempt. The wire
    /// id replaces the id and the progress token of the client.
    fn edited(
        &self,
        link: &Link,
        wire_id: u64,
        outgoing: BackendRequest<'_>,
    ) -> (VectoredBody, Option<ChildSpan>) {
        let mut buffer = itoa::Buffer::new();
        let digits = buffer.format(wire_id).as_bytes();
        let mut splice = Splice::new(&outgoing.message.frame);
        if let Some(span) = outgoing.message.id_span {
            splice.replace(span, digits);
        }
        if let Some(span) = outgoing.message.fields.meta_progress_token {
            splice.replace(span, digits);
        }
        for (span, text) in outgoing.edits {
            splice.replace(*span, &text[..]);
        }
        let in_meta = matches!(self.wire, WireSender::Pipe(_));
        let span = ChildSpan::attempt(
            outgoing.message,
            link.backend.id.as_str(),
            link.backend.transport(),
            in_meta,
            &mut splice,
        );
        (self.wire.finished(splice), span)
    }

    /// Sends a request of the broker on behalf of `requester`, and waits for as long as the backend
    /// needs. The backend may send questions for `requester` meanwhile.
    pub async fn request_for(
        self: &Arc<Self>,
        link: &Arc<Link>,
        method: Method,
        params: &[u8],
        requester: &Arc<dyn Requester>,
    ) -> Result<Message, Failure> {
        if self.stateless().is_some() {
            return Box::pin(exchange::request_for(self, link, method, params, requester)).await;
        }
        let wire_id = self.next_wire_id();
        let frame = handshake::request(&RequestId::from_u64(wire_id), method, Some(params)).into();
        let request = WireRequest::new(wire_id, frame).for_requester(requester);
        self.send_and_wait(link, request).await
    }
}
