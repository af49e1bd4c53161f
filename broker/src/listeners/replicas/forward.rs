//! Forwards requests whose session is on another replica, and streams the answers back.
//!
//! Invariants:
//! - A request that may have had an effect is never sent twice.
//! - No request is sent twice to a process that may still run it.
//! - For a slow client only one window of the stream between the replicas is buffered.
//! - A client that disconnects ends the stream at the other replica.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _};
use http::{HeaderMap, Method as HttpMethod, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Either, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Body as _, Frame, SizeHint};
use protocol::{
    envelope::{Body as Frames, Kind, Message, RefusedMessage, decode_body},
    error::{ErrorKind, Refusal},
    json::Limits,
};
use rules::limits::RELAYED_WHOLE_BYTES_MAX;
use transport::PeerBody;

use super::replica_headers;
use crate::{
    broker::{Broker, session_lookup},
    listeners::http::{
        inbound_request::{InboundRequest, RequestSource},
        response::{self, Body, BodyAborted},
    },
    metrics::ForwardOutcome,
    session_location::ForwardFailure,
    sessions::shared::Shared,
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
pub(super) struct ReplicaRequest(Request<Bytes>);

impl ReplicaRequest {
    pub(super) fn of(request: &InboundRequest<'_>, body: &Bytes) -> Self {
        let InboundRequest { head, caller, cache, .. } = request;
        let headers = cache
            .validated_head
            .forwarded_headers(caller, || replica_headers::request_headers(&head.headers, caller));
        Self::new(head.method.clone(), head.uri.clone(), headers, body)
    }

    pub(super) fn new(method: HttpMethod, uri: Uri, headers: HeaderMap, body: &Bytes) -> Self {
        let mut request = Request::new(body.clone());
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        Self(request)
    }

    pub(super) fn set_lease_header(&mut self, held: bool) {
        replica_headers::set_lease_header(self.0.headers_mut(), held);
    }

    /// Returns `None` for a body that no replica can parse, and so none has run.
    fn frames(&self) -> Option<Frames> {
        let body = self.0.body();
        let limits = Limits::with_bytes_max(body.len());
        let frames = decode_body(body.clone(), &limits, true).ok();
        frames.filter(|_| self.0.method() == HttpMethod::POST)
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

fn outcome_unknown(message: &Message) -> Refusal {
    let refusal = Refusal::new(
        ErrorKind::OutcomeUnknown,
        "the replica that served this session was lost before it answered: the request may or may not have been carried out",
    );
    if is_repeatable(message) { refusal.mark_idempotent() } else { refusal }
}

/// Returns an answer to each request of a batch.
fn unknown_batch(shared: &Shared, messages: &[Result<Message, RefusedMessage>]) -> Response<Body> {
    let requests = messages.iter().flatten().filter(|message| message.kind == Kind::Request);
    let unknown = |message: &Message| {
        let refusal = outcome_unknown(message);
        refusal.to_response(message.id.as_ref(), &shared.record_refusal(&refusal, None, None))
    };
    let answers: Vec<Bytes> = requests.map(unknown).collect();
    response::json(StatusCode::OK, [&b"["[..], &answers.join(&b','), b"]"].concat().into())
}

pub(super) async fn forward(
    broker: &Broker,
    address: &str,
    outgoing: &ReplicaRequest,
) -> ForwardResult {
    let shared = &broker.shared;
    let forwarded = match broker.session_locator.peers.send(address, &outgoing.0).await {
        Ok(response) => match replica_headers::read_miss(&response) {
            Some(miss) => ForwardResult::SessionMissing(miss),
            None => relay_response(shared, response, outgoing).await,
        },
        Err(error) => {
            tracing::debug!(address, %error, "a request was not answered by another replica");
            if error.is_safe_to_retry() {
                ForwardResult::NotSent
            } else {
                outgoing.unanswered(shared)
            }
        }
    };
    shared.metrics.forwarded(match &forwarded {
        ForwardResult::Answered(_) => ForwardOutcome::Answered,
        ForwardResult::NotSent => ForwardOutcome::Unreachable,
        ForwardResult::SessionMissing(_) => ForwardOutcome::NotThere,
        ForwardResult::Retryable => ForwardOutcome::Broken,
    });
    forwarded
}

/// Converts the other replica's response for the client of this one.
async fn relay_response(
    shared: &Shared,
    response: Response<PeerBody>,
    outgoing: &ReplicaRequest,
) -> ForwardResult {
    let (mut head, body) = response.into_parts();
    replica_headers::strip_response_headers(&mut head.headers);
    let is_events = response::is_event_stream(&head.headers);
    let is_small =
        !is_events && body.size_hint().exact().is_some_and(|size| size <= RELAYED_WHOLE_BYTES_MAX);
    if !is_small {
        return ForwardResult::Answered(Response::from_parts(
            head,
            Either::Right(relayed_body(shared, body, outgoing, is_events)),
        ));
    }
    match body.collect().await {
        Ok(body) => ForwardResult::Answered(Response::from_parts(
            head,
            Either::Left(Full::new(body.to_bytes())),
        )),
        Err(error) => {
            tracing::debug!(%error, "an answer of another replica broke off");
            outgoing.unanswered(shared)
        }
    }
}

/// Returns the body for the client of this replica. A stream that waits for no answer ends when
/// this replica closes, and its client resumes it elsewhere.
fn relayed_body(
    shared: &Shared,
    body: PeerBody,
    outgoing: &ReplicaRequest,
    is_events: bool,
) -> UnsyncBoxBody<Bytes, BodyAborted> {
    let relayed = RelayedBody { body, is_events };
    if outgoing.0.method() != HttpMethod::GET {
        return relayed.boxed_unsync();
    }
    let closing = shared.closing.clone().cancelled_owned();
    StreamBody::new(relayed.into_data_stream().map_ok(Frame::data).take_until(closing))
        .boxed_unsync()
}

/// A body that is relayed frame by frame.
#[derive(Debug)]
struct RelayedBody {
    body: PeerBody,
    /// True for an event stream: it ends cleanly at a break, so that the client resumes it. Other
    /// bodies break off at the client too.
    is_events: bool,
}

impl hyper::body::Body for RelayedBody {
    type Data = Bytes;
    type Error = BodyAborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyAborted>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(match frame {
            Some(Ok(frame)) => frame.is_data().then_some(Ok(frame)),
            None => None,
            Some(Err(error)) => {
                tracing::debug!(%error, "an answer of another replica broke off");
                (!self.is_events).then_some(Err(BodyAborted))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
