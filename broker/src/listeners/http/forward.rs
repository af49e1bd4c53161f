//! A request whose session is on another replica: sent there, the answer sent back as it comes.
//!
//! Invariants: a request that may have had an effect is never sent twice, and none is sent twice to a process that may be
//! carrying it out; nothing is buffered for a slow client but one window of the stream between the replicas; a client that
//! hangs up ends the stream at the other replica.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method as HttpMethod, Request, Response, StatusCode, Uri,
    header::{ACCEPT, CONTENT_TYPE},
};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use protocol::{
    envelope::{Body as Frames, Kind, Message, Rejection, decode_body},
    error::{ErrorKind, Refusal},
    json::Limits,
};

use super::{
    exchange::{InboundRequest, RequestSource},
    replica_headers,
    response::{self, Body, BodyAborted},
};
use crate::{
    actors::{session::Session, shared::Shared, stateless::StatelessClient},
    auth::Caller,
    broker::{
        Broker,
        session_lookup::{self, ReplicaLookup},
    },
    limits::RELAYED_WHOLE_BYTES_MAX,
    metrics::ForwardOutcome,
    rules::endpoint::Endpoint,
    session_location::{ForwardFailure, LookupOutcome, PeerLookupOutcome, SessionOwner},
};

/// Where a request was, or is to be, served.
pub(super) enum SessionLocation {
    Local(Arc<Session>),
    Answered(Response<Body>),
}

/// One request on its way to its session.
pub(super) struct SessionLookup<'a> {
    id: &'a str,
    search: ReplicaLookup<'a>,
    outgoing: Option<ReplicaRequest>,
    /// Who was sent the request and did not answer: it may be at it still.
    unanswered: Option<SessionOwner>,
}

impl<'a> SessionLookup<'a> {
    pub(super) fn new(asked: &'a InboundRequest<'_>, id: &'a str) -> Self {
        let search = ReplicaLookup::new(asked.broker, id, &asked.caller, &asked.endpoint);
        Self { id, search, outgoing: None, unanswered: None }
    }
}

/// What came of sending a request to another replica.
enum ForwardResult {
    Answered(Response<Body>),
    /// It did nothing with the request.
    NotSent,
    /// The session is not to be had there; maybe the replica knows where it is.
    SessionMissing(ForwardFailure),
    /// No answer came, and the request does no harm if it is sent again.
    Retryable,
}

impl InboundRequest<'_> {
    /// Finds the session, wherever it is. A request for one on another replica is sent there.
    pub(super) async fn locate(
        &self,
        way: &mut SessionLookup<'_>,
        body: &Bytes,
    ) -> Result<SessionLocation, Refusal> {
        let located = self.search(way, body).await;
        if let Ok(SessionLocation::Local(session)) = &located {
            self.broker.taken_up(session).await;
        }
        located
    }

    /// The session was found here and left before the request was begun. `None`: it is to be located again. `Some`: whoever
    /// asks does that. The refusal: that took too long already.
    pub(super) async fn led_on(
        &self,
        way: &mut SessionLookup<'_>,
        session: &Session,
        refusal: Refusal,
    ) -> Result<Option<Response<Body>>, Refusal> {
        self.broker.release_settled(&session.key).await;
        match self.reach {
            RequestSource::Replica => Ok(Some(replica_headers::not_here(None))),
            RequestSource::Client(..) if way.search.may_go_on() => Ok(None),
            RequestSource::Client(..) => {
                Err(refusal.retry_after(self.broker.shared.config.session.lease))
            }
        }
    }

    async fn search(
        &self,
        way: &mut SessionLookup<'_>,
        body: &Bytes,
    ) -> Result<SessionLocation, Refusal> {
        if let RequestSource::Replica = self.reach {
            return Box::pin(inside(
                self.broker,
                &self.head.headers,
                way.id,
                &self.caller,
                &self.endpoint,
            ))
            .await;
        }
        let SessionLookup { search, outgoing, unanswered, .. } = way;
        loop {
            let found = match search.next().await {
                // Before anything is made ready for another replica: this is the way of almost every request.
                Ok(LookupOutcome::Local(session)) => return Ok(SessionLocation::Local(session)),
                Ok(LookupOutcome::Remote(owner)) => Ok(owner),
                Err(refusal) => Err(refusal),
            };
            let outgoing = outgoing.get_or_insert_with(|| self.outgoing(body));
            let owner = match found {
                Ok(owner) => owner,
                // Neither can it be said any more that nothing was done.
                Err(refusal) if unanswered.is_some() && refusal.kind.retryable() => {
                    return Ok(SessionLocation::Answered(outgoing.unknown(&self.broker.shared)));
                }
                Err(refusal) => return Err(refusal),
            };
            if unanswered.as_ref().is_some_and(|asked| asked.may_be(&owner)) {
                return Ok(SessionLocation::Answered(outgoing.unknown(&self.broker.shared)));
            }
            replica_headers::note_lease(
                &mut outgoing.headers,
                holds_lease(self.broker) && !search.insists(),
            );
            match Box::pin(forward(self.broker, &owner.address, outgoing)).await {
                ForwardResult::Answered(response) => {
                    return Ok(SessionLocation::Answered(response));
                }
                ForwardResult::NotSent => search.missed(&owner, ForwardFailure::Unreachable),
                ForwardResult::Retryable => {
                    search.missed(&owner, ForwardFailure::Unreachable);
                    *unanswered = outgoing.asks_something().then_some(owner);
                }
                ForwardResult::SessionMissing(miss) => missed(self.broker, search, &owner, miss),
            }
        }
    }

    /// A request for a new session, while this replica takes none: another one may.
    pub(super) async fn hand_over(&self, body: &Bytes) -> Option<Response<Body>> {
        if let RequestSource::Replica = self.reach {
            return Some(replica_headers::not_here(None));
        }
        let outgoing = self.outgoing(body);
        for replica in session_lookup::other_replicas(self.broker).await {
            if let ForwardResult::Answered(response) =
                forward(self.broker, &replica.address, &outgoing).await
            {
                return Some(response);
            }
        }
        None
    }

    /// A request that stands alone, for the replica where it began. `None`: it can not be served there any more.
    pub(super) async fn send_to(
        &self,
        replica: &SessionOwner,
        body: &Bytes,
    ) -> Option<Response<Body>> {
        sent_alone(self.broker, replica, &self.outgoing(body)).await
    }

    fn outgoing(&self, body: &Bytes) -> ReplicaRequest {
        ReplicaRequest {
            method: self.head.method.clone(),
            uri: self.head.uri.clone(),
            headers: replica_headers::outgoing(&self.head.headers, &self.caller),
            body: body.clone(),
        }
    }
}

/// The same of one that came over a connection, as a client would POST it.
pub(super) async fn sent_from_connection(
    broker: &Broker,
    replica: &SessionOwner,
    visitor: &StatelessClient,
    body: &Bytes,
) -> Option<Response<Body>> {
    let uri = match &visitor.endpoint {
        Endpoint::Aggregated => Uri::from_static("/mcp"),
        Endpoint::Single(backend) => Uri::try_from(format!("/mcp/{backend}")).ok()?,
    };
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    let outgoing = ReplicaRequest {
        method: HttpMethod::POST,
        uri,
        headers: replica_headers::outgoing(&headers, &visitor.caller),
        body: body.clone(),
    };
    sent_alone(broker, replica, &outgoing).await
}

async fn sent_alone(
    broker: &Broker,
    replica: &SessionOwner,
    outgoing: &ReplicaRequest,
) -> Option<Response<Body>> {
    match forward(broker, &replica.address, outgoing).await {
        ForwardResult::Answered(response) => Some(response),
        ForwardResult::NotSent | ForwardResult::SessionMissing(_) | ForwardResult::Retryable => {
            None
        }
    }
}

/// Finds the session that another replica asks for, or says that it is not to be had here.
pub(super) async fn inside(
    broker: &Arc<Broker>,
    headers: &HeaderMap,
    id: &str,
    caller: &Caller,
    endpoint: &Endpoint,
) -> Result<SessionLocation, Refusal> {
    // Who can reach the database finds out whose session it is by now.
    if replica_headers::holds_lease(headers)
        && broker.shared.durable.is_shared()
        && !holds_lease(broker)
    {
        return Ok(SessionLocation::Answered(replica_headers::lapsed()));
    }
    Ok(match session_lookup::inside(broker, id, caller, endpoint).await? {
        PeerLookupOutcome::Here(session) => SessionLocation::Local(session),
        PeerLookupOutcome::NotLocal(owner) => {
            SessionLocation::Answered(replica_headers::not_here(owner.as_ref()))
        }
    })
}

/// Whether this replica could take a session over.
pub(super) fn holds_lease(broker: &Broker) -> bool {
    let durable = &broker.shared.durable;
    durable.is_shared() && durable.lease.is_held()
}

/// The search goes on without this owner. That the session is here is best looked up here.
pub(super) fn missed(
    broker: &Broker,
    search: &mut ReplicaLookup<'_>,
    owner: &SessionOwner,
    miss: ForwardFailure,
) {
    let own = broker.shared.durable.node();
    search.missed(
        owner,
        match miss {
            ForwardFailure::NotOwner(told) => {
                ForwardFailure::NotOwner(told.filter(|told| told.node != own.as_str()))
            }
            miss => miss,
        },
    );
}

/// A client's request as other replicas get it.
struct ReplicaRequest {
    method: HttpMethod,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
}

impl ReplicaRequest {
    fn request(&self) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }

    /// `None`: nothing that is understood, which is nothing that was carried out.
    fn frames(&self) -> Option<Frames> {
        let limits = Limits { bytes_max: self.body.len(), ..Limits::default() };
        decode_body(self.body.clone(), &limits, true)
            .ok()
            .filter(|_| self.method == HttpMethod::POST)
    }

    /// It was sent, and no answer came.
    fn unanswered(&self, shared: &Shared) -> ForwardResult {
        let can_be_repeated = match self.frames() {
            Some(Frames::One(message)) => is_repeatable(&message),
            Some(Frames::Batch(messages)) => messages.iter().flatten().all(is_repeatable),
            None => true,
        };
        if can_be_repeated {
            ForwardResult::Retryable
        } else {
            ForwardResult::Answered(self.unknown(shared))
        }
    }

    /// Whether it has requests in it. What has none may come twice to the same process.
    fn asks_something(&self) -> bool {
        match self.frames() {
            Some(Frames::One(message)) => message.kind == Kind::Request,
            Some(Frames::Batch(messages)) => {
                messages.iter().flatten().any(|message| message.kind == Kind::Request)
            }
            None => false,
        }
    }

    /// The answer to a request of which nobody knows what became.
    fn unknown(&self, shared: &Shared) -> Response<Body> {
        match self.frames() {
            Some(Frames::One(message)) => {
                response::refusal(shared, &outcome_unknown(&message), message.id.as_ref())
            }
            Some(Frames::Batch(messages)) => unknown_batch(shared, &messages),
            None => response::empty(StatusCode::SERVICE_UNAVAILABLE),
        }
    }
}

/// An answer nobody waits for is dropped, as is a second notification of the same.
fn is_repeatable(message: &Message) -> bool {
    message.kind != Kind::Request || message.method.is_repeatable()
}

fn outcome_unknown(message: &Message) -> Refusal {
    let refusal = Refusal::new(
        ErrorKind::OutcomeUnknown,
        "the replica that served this session was lost before it answered: the request may or may not have been carried out",
    );
    if is_repeatable(message) { refusal.harmless_again() } else { refusal }
}

/// An answer to each request of a batch.
fn unknown_batch(shared: &Shared, messages: &[Result<Message, Rejection>]) -> Response<Body> {
    let requests = messages.iter().flatten().filter(|message| message.kind == Kind::Request);
    let unknown = |message: &Message| {
        let refusal = outcome_unknown(message);
        refusal.to_response(message.id.as_ref(), &shared.note_refusal(&refusal, None, None))
    };
    let answers: Vec<Bytes> = requests.map(unknown).collect();
    response::json(StatusCode::OK, [&b"["[..], &answers.join(&b','), b"]"].concat().into())
}

async fn forward(broker: &Broker, address: &str, outgoing: &ReplicaRequest) -> ForwardResult {
    let shared = &broker.shared;
    let forwarded = match broker.placement.peers.send(address, outgoing.request()).await {
        Ok(response) => match replica_headers::miss(&response) {
            Some(miss) => ForwardResult::SessionMissing(miss),
            None => relayed(shared, response, outgoing).await,
        },
        Err(error) => {
            tracing::debug!(address, %error, "a request was not answered by another replica");
            if error.nothing_was_sent() {
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

/// The other replica's response, as this one's client gets it.
async fn relayed(
    shared: &Shared,
    response: Response<Incoming>,
    outgoing: &ReplicaRequest,
) -> ForwardResult {
    let (mut head, body) = response.into_parts();
    replica_headers::incoming(&mut head.headers);
    let is_events = head
        .headers
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    let is_small =
        !is_events && body.size_hint().exact().is_some_and(|size| size <= RELAYED_WHOLE_BYTES_MAX);
    if !is_small {
        return ForwardResult::Answered(Response::from_parts(
            head,
            Either::Right(RelayedBody { body, is_events }.boxed_unsync()),
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

/// A body on its way through, frame by frame.
#[derive(Debug)]
struct RelayedBody {
    body: Incoming,
    /// Ends when it breaks off, so that its client comes back for the rest. Anything else breaks off at the client, too.
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
