//! Forwards requests whose session is on another replica, and streams the answers back.
//!
//! Invariants:
//! - A request that may have had an effect is never sent twice.
//! - No request is sent twice to a process that may still run it.
//! - For a slow client only one window of the stream between the replicas is buffered. Slow clients
//!   that hold too many bytes together are cut.
//! - A client that disconnects ends the stream at the other replica.
//! - A drain of this replica leaves a request the rest of the grace period, and then answers it. It
//!   does not wait for a client that takes nothing of its answer.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, Method as HttpMethod, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Either, Full, combinators::UnsyncBoxBody};
use hyper::body::{Body as _, Frame, SizeHint};
use protocol::{
    envelope::{Body as Frames, Kind, Message, RefusedMessage, decode_body},
    error::{ErrorKind, Refusal},
    json::Limits,
    sse,
    version::Batches,
};
use rules::limits::RELAYED_WHOLE_BYTES_MAX;
use tokio_util::sync::WaitForCancellationFutureOwned;
use transport::{PeerBody, SendError};

use super::{
    relayed_source::{BrokenSource, RelayedSource},
    replica_headers,
};
use crate::{
    admission::outbox_budget::UnreadOwner,
    auth::Caller,
    broker::{Broker, session_lookup},
    listeners::http::{
        inbound_request::{InboundRequest, RequestSource},
        response::{self, Body, BodyAborted},
    },
    metrics::ForwardOutcome,
    session_location::ForwardFailure,
    sessions::{
        relayed_streams::{RelayedStream as _, RelayedStreamGuard},
        shared::Shared,
    },
    telemetry::request,
};

/// Result of sending a request to another replica.
pub(super) enum ForwardResult {
    Answered(Response<Body>),
    /// The replica did nothing with the request.
    NotSent,
    /// The replica does not have the session. It may know the owner.
    SessionMissing(ForwardFailure),
    /// No answer came, and the request can safely be sent again.
    Retryable,
}

/// Sends a request for a new session to another replica, while this one accepts none. Returns
/// `None` when no replica accepted it.
pub(in crate::listeners) async fn initialize_elsewhere(
    request: &InboundRequest<'_>,
    body: &Bytes,
) -> Option<Response<Body>> {
    if let RequestSource::Replica = request.source {
        return Some(replica_headers::not_here_response(None));
    }
    let outgoing = ReplicaRequest::of(request, body);
    for replica in session_lookup::other_replicas(request.broker).await {
        if let ForwardResult::Answered(response) =
            forward(request.broker, &replica.address, &outgoing).await
        {
            return Some(response);
        }
    }
    None
}

/// A client's request in the form for other replicas.
pub(super) struct ReplicaRequest {
    request: Request<Bytes>,
    /// Client for whom the answer waits.
    owner: UnreadOwner,
}

impl ReplicaRequest {
    pub(super) fn of(request: &InboundRequest<'_>, body: &Bytes) -> Self {
        let InboundRequest { head, caller, cache, .. } = request;
        let mut headers = cache
            .validated_head
            .forwarded_headers(caller, || replica_headers::request_headers(&head.headers, caller));
        // One connection of a proxy has requests of many clients.
        replica_headers::add_client_address(&mut headers, request::inbound_client());
        Self::new(head.method.clone(), head.uri.clone(), headers, body, caller)
    }

    pub(super) fn new(
        method: HttpMethod,
        uri: Uri,
        headers: HeaderMap,
        body: &Bytes,
        caller: &Caller,
    ) -> Self {
        let mut request = Request::new(body.clone());
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        Self { request, owner: caller.into() }
    }

    pub(super) fn set_lease_header(&mut self, held: bool) {
        replica_headers::set_lease_header(self.request.headers_mut(), held);
    }

    /// Returns `None` for a body that no replica can parse, and so none has run.
    fn frames(&self) -> Option<Frames> {
        frames_of(self.request.body()).filter(|_| self.is_post())
    }

    fn is_post(&self) -> bool {
        self.request.method() == HttpMethod::POST
    }

    /// Returns the result for a request that was sent and not answered.
    fn unanswered(&self, shared: &Shared) -> ForwardResult {
        let can_be_repeated = match self.frames() {
            Some(Frames::One(message)) => is_repeatable(&message),
            Some(Frames::Batch(messages)) => messages.iter().flatten().all(is_repeatable),
            None => true,
        };
        if can_be_repeated {
            ForwardResult::Retryable
        } else {
            ForwardResult::Answered(self.outcome_unknown_response(shared))
        }
    }

    /// Returns whether the body contains requests. A body without requests may arrive twice at the
    /// same process.
    pub(super) fn has_requests(&self) -> bool {
        match self.frames() {
            Some(Frames::One(message)) => message.kind == Kind::Request,
            Some(Frames::Batch(messages)) => {
                messages.iter().flatten().any(|message| message.kind == Kind::Request)
            }
            None => false,
        }
    }

    /// Returns the response to a request for which the connection to its replica has no stream.
    fn overload_response(&self, shared: &Shared, error: &SendError) -> Response<Body> {
        let refusal = no_stream_left(error);
        match self.frames() {
            Some(Frames::One(message)) => {
                response::refusal_response(shared, &refusal, message.id.as_ref())
            }
            Some(Frames::Batch(_)) | None => response::refusal_response(shared, &refusal, None),
        }
    }

    /// Returns the response to a request whose outcome is unknown.
    pub(super) fn outcome_unknown_response(&self, shared: &Shared) -> Response<Body> {
        match self.frames() {
            Some(Frames::One(message)) => {
                response::refusal_response(shared, &outcome_unknown(&message), message.id.as_ref())
            }
            Some(Frames::Batch(messages)) => unknown_batch(shared, &messages),
            None => response::empty(StatusCode::SERVICE_UNAVAILABLE),
        }
    }
}

/// Returns whether a message may be sent again. The receiver drops an unexpected answer and a
/// repeated notification.
fn is_repeatable(message: &Message) -> bool {
    message.kind != Kind::Request || message.method.is_idempotent()
}

/// Returns the refusal of a request that was not sent, because its connection has no stream left.
pub(super) fn no_stream_left(error: &SendError) -> Refusal {
    Refusal::new(ErrorKind::Overloaded, error.to_string())
}

fn outcome_unknown(message: &Message) -> Refusal {
    let refusal = Refusal::new(
        ErrorKind::OutcomeUnknown,
        "the answer of the replica that serves this session was lost: the request may or may not have been carried out",
    );
    if is_repeatable(message) { refusal.mark_idempotent() } else { refusal }
}

/// Returns an answer to each request of a batch.
fn unknown_batch(shared: &Shared, messages: &[Result<Message, RefusedMessage>]) -> Response<Body> {
    let answers = unknown_answers(shared, messages.iter().flatten());
    response::json(StatusCode::OK, [&b"["[..], &answers.join(&b','), b"]"].concat().into())
}

/// Returns an answer to each request among these messages.
fn unknown_answers<'m>(shared: &Shared, messages: impl Iterator<Item = &'m Message>) -> Vec<Bytes> {
    let unknown = |message: &Message| {
        let refusal = outcome_unknown(message);
        refusal.to_response(message.id.as_ref(), &shared.record_refusal(&refusal, None, None))
    };
    messages.filter(|message| message.kind == Kind::Request).map(unknown).collect()
}

fn frames_of(body: &Bytes) -> Option<Frames> {
    decode_body(body.clone(), &Limits::with_bytes_max(body.len()), Batches::Permitted).ok()
}

pub(super) async fn forward(
    broker: &Broker,
    address: &str,
    outgoing: &ReplicaRequest,
) -> ForwardResult {
    let shared = &broker.shared;
    let _in_flight = shared.forwarded.token();
    let forwarding = async {
        match broker.session_locator.peers.send(address, &outgoing.request).await {
            Ok(response) => match replica_headers::read_miss(&response) {
                Some(miss) => (ForwardResult::SessionMissing(miss), Some(ForwardOutcome::NotThere)),
                None => relay_response(shared, response, outgoing).await,
            },
            Err(error @ SendError::NoStreamLeft { .. }) => {
                let response = outgoing.overload_response(shared, &error);
                (ForwardResult::Answered(response), Some(ForwardOutcome::Unreachable))
            }
            Err(error) => {
                tracing::debug!(address, %error, "a request was not answered by another replica");
                match error.is_safe_to_retry() {
                    true => (ForwardResult::NotSent, Some(ForwardOutcome::Unreachable)),
                    false => (outgoing.unanswered(shared), Some(ForwardOutcome::Broken)),
                }
            }
        }
    };
    let (forwarded, outcome) = tokio::select! {
        biased;
        forwarded = forwarding => forwarded,
        () = shared.shutdown.grace_over.cancelled() => {
            let response = outgoing.outcome_unknown_response(shared);
            (ForwardResult::Answered(response), Some(ForwardOutcome::Broken))
        }
    };
    if let Some(outcome) = outcome {
        shared.metrics.forwarded(outcome);
    }
    forwarded
}

/// Converts the other replica's response for the client of this one. Returns it with how the request
/// counts, or with `None` if the body counts the request at its end.
async fn relay_response(
    shared: &Arc<Shared>,
    response: Response<PeerBody>,
    outgoing: &ReplicaRequest,
) -> (ForwardResult, Option<ForwardOutcome>) {
    let (mut head, body) = response.into_parts();
    replica_headers::strip_response_headers(&mut head.headers);
    let is_events = response::is_event_stream(&head.headers);
    let is_small =
        !is_events && body.size_hint().exact().is_some_and(|size| size <= RELAYED_WHOLE_BYTES_MAX);
    if !is_small {
        let body = Either::Right(relayed_body(shared, body, outgoing, is_events));
        let counted = (!outgoing.is_post()).then_some(ForwardOutcome::Answered);
        return (ForwardResult::Answered(Response::from_parts(head, body)), counted);
    }
    match body.collect().await {
        Ok(body) => {
            let response = Response::from_parts(head, Either::Left(Full::new(body.to_bytes())));
            (ForwardResult::Answered(response), Some(ForwardOutcome::Answered))
        }
        Err(error) => {
            tracing::debug!(%error, "an answer of another replica broke off");
            (outgoing.unanswered(shared), Some(ForwardOutcome::Broken))
        }
    }
}

/// Returns the body for the client of this replica.
fn relayed_body(
    shared: &Arc<Shared>,
    body: PeerBody,
    outgoing: &ReplicaRequest,
    is_events: bool,
) -> UnsyncBoxBody<Bytes, BodyAborted> {
    let request = outgoing.is_post().then(|| RelayedRequest {
        body: outgoing.request.body().clone(),
        events: RelayedEvents::default(),
        count: RelayedCount { shared: Arc::clone(shared), outcome: ForwardOutcome::Answered },
    });
    let in_flight = request.is_some().then(|| shared.forwarded.token());
    let over = match request {
        Some(_) => &shared.shutdown.grace_over,
        None => &shared.shutdown.closing,
    };
    let over = Box::pin(over.clone().cancelled_owned());
    let (source, guard) = RelayedSource::watched(shared, outgoing.owner.clone(), body, in_flight);
    RelayedBody { source, is_events, request, over, is_cut: false, _guard: guard }.boxed_unsync()
}

/// A body that is relayed frame by frame. When this replica closes, the stream of a GET ends, and its
/// client resumes it elsewhere. The answer to a request is cut at the end of the grace period.
struct RelayedBody {
    source: Arc<RelayedSource>,
    /// True for an event stream: it ends cleanly at a break if the client can resume it. Other bodies
    /// break off at the client too.
    is_events: bool,
    /// The request that the body answers. `None`: the stream of a GET.
    request: Option<RelayedRequest>,
    over: Pin<Box<WaitForCancellationFutureOwned>>,
    is_cut: bool,
    _guard: RelayedStreamGuard,
}

struct RelayedRequest {
    body: Bytes,
    events: RelayedEvents,
    count: RelayedCount,
}

/// Counts a forwarded request when the relay of its answer ends.
struct RelayedCount {
    shared: Arc<Shared>,
    outcome: ForwardOutcome,
}

impl Drop for RelayedCount {
    fn drop(&mut self) {
        self.shared.metrics.forwarded(self.outcome);
    }
}

/// What a client has got of an event stream.
#[derive(Debug, Default)]
struct RelayedEvents {
    is_inside_line: bool,
    is_inside_event: bool,
    has_id: bool,
    /// True once a complete event had an id. The client can then get the answer elsewhere.
    can_resume: bool,
    has_any: bool,
}

impl RelayedEvents {
    fn record(&mut self, piece: &[u8]) {
        for line in piece.split_inclusive(|byte| *byte == b'\n') {
            if !self.is_inside_line && line == b"\n" {
                self.can_resume |= std::mem::take(&mut self.has_id);
                self.is_inside_event = false;
                continue;
            }
            if !self.is_inside_line {
                self.has_id |= line.starts_with(b"id:");
                self.has_any |= line.starts_with(b"data:");
                self.is_inside_event = true;
            }
            self.is_inside_line = !line.ends_with(b"\n");
        }
    }
}

impl RelayedRequest {
    /// Returns the end of the answer, which is not complete. A client that can resume the stream gets
    /// the rest elsewhere. Another one gets the answer that the outcome is unknown. Where neither is
    /// possible, the body breaks off.
    fn last_piece(mut self, is_events: bool) -> Option<Result<Frame<Bytes>, BodyAborted>> {
        if is_events && self.events.can_resume {
            return None;
        }
        self.count.outcome = ForwardOutcome::Broken;
        match frames_of(&self.body).filter(|_| is_events && !self.events.is_inside_event) {
            Some(Frames::One(message)) => Some(Ok(self.last_events([&message].into_iter()))),
            Some(Frames::Batch(messages)) if !self.events.has_any => {
                Some(Ok(self.last_events(messages.iter().flatten())))
            }
            Some(Frames::Batch(_)) | None => Some(Err(BodyAborted)),
        }
    }

    /// Returns the end of the answer of a lost replica. After an event without an id, which may have
    /// been the answer, the body breaks off.
    fn piece_after_loss(mut self, is_events: bool) -> Option<Result<Frame<Bytes>, BodyAborted>> {
        self.count.outcome = ForwardOutcome::Broken;
        match is_events && self.events.has_any && !self.events.can_resume {
            true => Some(Err(BodyAborted)),
            false => self.last_piece(is_events),
        }
    }

    fn last_events<'m>(&self, messages: impl Iterator<Item = &'m Message>) -> Frame<Bytes> {
        let mut events = Vec::new();
        for answer in unknown_answers(&self.count.shared, messages) {
            sse::write_message(&mut events, None, &answer);
        }
        Frame::data(events.into())
    }
}

impl hyper::body::Body for RelayedBody {
    type Data = Bytes;
    type Error = BodyAborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyAborted>>> {
        if self.is_cut {
            return Poll::Ready(None);
        }
        let Poll::Ready(frame) = self.source.poll_frame(context) else {
            ready!(self.over.as_mut().poll(context));
            self.is_cut = true;
            self.source.cut();
            let (request, is_events) = (self.request.take(), self.is_events);
            return Poll::Ready(request.and_then(|request| request.last_piece(is_events)));
        };
        Poll::Ready(match frame {
            Some(Ok(frame)) => {
                let is_events = self.is_events;
                let request = self.request.as_mut().filter(|_| is_events);
                if let (Some(data), Some(request)) = (frame.data_ref(), request) {
                    request.events.record(data);
                }
                frame.is_data().then_some(Ok(frame))
            }
            None => None,
            Some(Err(error)) => {
                tracing::debug!(%error, "an answer of another replica broke off");
                self.is_cut = true;
                self.source.cut();
                match (error, self.request.take()) {
                    (BrokenSource::Cut, _) => Some(Err(BodyAborted)),
                    (BrokenSource::Lost(_), Some(request)) => {
                        request.piece_after_loss(self.is_events)
                    }
                    (BrokenSource::Lost(_), None) => (!self.is_events).then_some(Err(BodyAborted)),
                }
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.is_cut || self.source.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.source.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_can_be_resumed_after_a_complete_event_with_an_id() {
        for (pieces, can_resume, is_inside_event) in [
            (&[": silent\n\n"][..], false, false),
            (&["id: 1\ndata:", " {}\n"], false, true),
            (&["id: 1\ndata:", " id: 2\n", "\n"], true, false),
            (&["data: {}\n\n", "data: id:\n\n"], false, false),
            (&["data: ", "id: 1\n\n"], false, false),
            (&["id: 1\n", "", "\n", "data: {"], true, true),
        ] {
            let mut events = RelayedEvents::default();
            pieces.iter().for_each(|piece| events.record(piece.as_bytes()));
            let seen = (events.can_resume, events.is_inside_event);
            assert_eq!(seen, (can_resume, is_inside_event), "{pieces:?}");
        }
    }
}
