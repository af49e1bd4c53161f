//! Finds the session of a request: here, or on another replica, which then gets the request.
//!
//! POST, GET and DELETE call it with [`SessionLookup`], and a request of another replica with
//! [`locate_for_peer`]. Invariant: a request that may have had an effect is never sent twice. No
//! request is sent twice to a process that may still run it.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response};
use protocol::error::Refusal;
use rules::{client_transport::Transport, endpoint::Endpoint};

use super::{
    forward::{ForwardResult, ReplicaRequest, forward},
    replica_headers,
};
use crate::{
    auth::Caller,
    broker::{
        Broker, check_transport,
        session_lookup::{self, ReplicaLookup},
    },
    listeners::http::{
        inbound_request::{InboundRequest, RequestSource},
        response::Body,
    },
    session_location::{ForwardFailure, LookupOutcome, PeerLookupOutcome, PeerReplica},
    sessions::session::Session,
};

/// The local session, or the response of the replica that served the request.
pub(in crate::listeners) enum SessionLocation {
    Local(Arc<Session>),
    Answered(Response<Body>),
}

/// Lookup of one request's session.
pub(in crate::listeners) struct SessionLookup<'a> {
    request: &'a InboundRequest<'a>,
    id: &'a str,
    /// `None` while the connection's cache has the session.
    lookup: Option<ReplicaLookup<'a>>,
    outgoing: Option<ReplicaRequest>,
    /// Replica that was sent the request and did not answer. It may still run it.
    unanswered: Option<PeerReplica>,
}

impl<'a> SessionLookup<'a> {
    pub(in crate::listeners) fn new(request: &'a InboundRequest<'_>, id: &'a str) -> Self {
        Self { request, id, lookup: None, outgoing: None, unanswered: None }
    }

    /// Finds the session. Sends the request with its `body` to the replica that has the session.
    pub(in crate::listeners) async fn locate(
        &mut self,
        body: &Bytes,
    ) -> Result<SessionLocation, Refusal> {
        if let Some(session) = self.cached_session()? {
            return Ok(SessionLocation::Local(session));
        }
        // Boxed: nearly every request of a connection after the first finds the session above.
        let location = Box::pin(self.find_session(body)).await;
        if let Ok(SessionLocation::Local(session)) = &location {
            check_transport(session, Transport::Http)?;
            self.request.broker.wait_until_adopted(session).await;
            self.request.cache.validated_head.cache_session(session);
        }
        location
    }

    /// Returns the session that an earlier request with this head has found here.
    fn cached_session(&self) -> Result<Option<Arc<Session>>, Refusal> {
        let InboundRequest { broker, caller, endpoint, cache, .. } = self.request;
        let known = cache.validated_head.session();
        known.map_or(Ok(None), |session| broker.claim_local(session, caller, endpoint))
    }

    /// Handles a session that moved before the request started. Returns `None` if the session must
    /// be located again. Returns the response if the request came from a replica, which then
    /// locates it. Returns an error at the time limit.
    pub(in crate::listeners) async fn retry_elsewhere(
        &mut self,
        session: &Session,
        refusal: Refusal,
    ) -> Result<Option<Response<Body>>, Refusal> {
        let broker = self.request.broker;
        broker.wait_for_release(&session.key).await;
        match self.request.source {
            RequestSource::Replica => Ok(Some(replica_headers::not_here_response(None))),
            _ if self.lookup.get_or_insert_with(|| start(self.request, self.id)).may_retry() => {
                Ok(None)
            }
            RequestSource::Client(..) | RequestSource::Operator(_) => {
                Err(refusal.retry_after(broker.shared.config.session.lease))
            }
        }
    }

    async fn find_session(&mut self, body: &Bytes) -> Result<SessionLocation, Refusal> {
        let Self { request, id, lookup, outgoing, unanswered } = self;
        let InboundRequest { broker, caller, endpoint, head, .. } = request;
        if let RequestSource::Replica = request.source {
            return Box::pin(locate_for_peer(broker, &head.headers, id, caller, endpoint)).await;
        }
        let lookup = lookup.get_or_insert_with(|| start(request, id));
        loop {
            let found = match lookup.next().await {
                // Nothing is prepared for another replica before this point, because almost every
                // request ends here.
                Ok(LookupOutcome::Local(session)) => return Ok(SessionLocation::Local(session)),
                Ok(LookupOutcome::Remote(owner)) => Ok(owner),
                Err(refusal) => Err(refusal),
            };
            let outgoing = outgoing.get_or_insert_with(|| ReplicaRequest::of(request, body));
            let unknown = |outgoing: &ReplicaRequest| {
                SessionLocation::Answered(outgoing.outcome_unknown_response(&broker.shared))
            };
            let owner = match found {
                Ok(owner) => owner,
                // The request may have run, so this refusal would be wrong.
                Err(refusal) if unanswered.is_some() && refusal.kind.retryable() => {
                    return Ok(unknown(outgoing));
                }
                Err(refusal) => return Err(refusal),
            };
            if unanswered.as_ref().is_some_and(|replica| replica.may_be(&owner)) {
                return Ok(unknown(outgoing));
            }
            outgoing.set_lease_header(lookup.asserts_lease());
            match Box::pin(forward(broker, &owner.address, outgoing)).await {
                ForwardResult::Answered(response) => {
                    return Ok(SessionLocation::Answered(response));
                }
                ForwardResult::NotSent => {
                    lookup.record_failure(&owner, ForwardFailure::Unreachable)
                }
                ForwardResult::Retryable => {
                    lookup.record_failure(&owner, ForwardFailure::Unreachable);
                    *unanswered = outgoing.has_requests().then_some(owner);
                }
                ForwardResult::SessionMissing(failure) => lookup.record_failure(&owner, failure),
            }
        }
    }
}

fn start<'a>(request: &'a InboundRequest<'_>, id: &str) -> ReplicaLookup<'a> {
    ReplicaLookup::new(request.broker, id, &request.caller, &request.endpoint)
}

/// Finds the session for another replica, or returns the response that it is not here.
pub(super) async fn locate_for_peer(
    broker: &Arc<Broker>,
    headers: &HeaderMap,
    id: &str,
    caller: &Caller,
    endpoint: &Endpoint,
) -> Result<SessionLocation, Refusal> {
    // The replica that reaches the database can find the session's owner.
    if replica_headers::holds_lease(headers)
        && broker.shared.persistence.is_shared()
        && !session_lookup::holds_lease(broker)
    {
        return Ok(SessionLocation::Answered(replica_headers::lease_lapsed_response()));
    }
    Ok(match session_lookup::lookup_for_peer(broker, id, caller, endpoint).await? {
        PeerLookupOutcome::Local(session) => SessionLocation::Local(session),
        PeerLookupOutcome::NotLocal(owner) => {
            SessionLocation::Answered(replica_headers::not_here_response(owner.as_ref()))
        }
    })
}
