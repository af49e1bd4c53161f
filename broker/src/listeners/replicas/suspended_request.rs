//! Sends a stateless request to the replica where it is suspended.
//!
//! The owner has the suspension while its process lives, also under a new name. The request state
//! has the owner's address, so the search needs no database. Invariant: only the owner itself may
//! answer that a suspension has expired, if the call was started. An answer without the owner never
//! invites the client to repeat such a call.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method as HttpMethod, Response, Uri, header};
use protocol::{
    error::{ErrorKind, Refusal},
    ids::PrincipalId,
    method::Method,
};
use rules::limits::{OWNER_RETRY_JITTER, OWNER_RETRY_MIN, OWNER_SEARCH_EXTRA};
use tokio::time::{Instant, sleep};

use super::{
    forward::{ForwardResult, ReplicaRequest, forward},
    replica_headers,
};
use crate::{
    broker::{Broker, session_lookup},
    listeners::http::{inbound_request::InboundRequest, response::Body},
    session_location::PeerReplica,
    sessions::{
        stateless::{RequestStateError, StatelessClient, SuspensionId},
        tenant::Tenant,
    },
};

/// A request that continues a suspension of another replica.
struct SuspendedRequest<'a> {
    broker: &'a Arc<Broker>,
    tenant: &'a Tenant,
    principal: &'a PrincipalId,
    suspension: &'a SuspensionId,
    method: Method,
    outgoing: ReplicaRequest,
}

/// Result of one search for the owner.
enum SearchResult {
    Answered(Response<Body>),
    /// The owner may be alive. The refusal is for its client if the search ends.
    Unreachable(Refusal),
    /// No replica has the lease of the owner, and the owner cannot be reached.
    LeaseLapsed,
    /// Another process has the owner's address, and no replica has the owner's lease. Or the owner
    /// did not answer a request that may be sent again.
    Gone,
}

/// Sends a client's request to the replica where it is suspended.
pub(in crate::listeners) async fn forward_suspended(
    request: &InboundRequest<'_>,
    suspension: &SuspensionId,
    method: Method,
    body: &Bytes,
) -> Result<Response<Body>, Refusal> {
    let outgoing = ReplicaRequest::of(request, body);
    let InboundRequest { broker, tenant, caller, .. } = request;
    let principal = &caller.principal;
    SuspendedRequest { broker, tenant, principal, suspension, method, outgoing }.send().await
}

/// Sends a request that arrived over a connection, as a client would POST it.
pub(super) async fn forward_suspended_from_connection(
    broker: &Arc<Broker>,
    client: &StatelessClient,
    suspension: &SuspensionId,
    method: Method,
    body: &Bytes,
) -> Result<Response<Body>, Refusal> {
    let uri = Uri::try_from(client.endpoint.path("/mcp"))
        .map_err(|_| Refusal::new(ErrorKind::Internal, "the endpoint has no path"))?;
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    let headers = replica_headers::request_headers(&headers, &client.caller);
    let outgoing = ReplicaRequest::new(HttpMethod::POST, uri, headers, body, &client.caller);
    let (tenant, principal) = (&client.tenant, &client.caller.principal);
    SuspendedRequest { broker, tenant, principal, suspension, method, outgoing }.send().await
}

impl SuspendedRequest<'_> {
    /// Searches for the owner until it answers, or until it is gone. The owner may be unreachable
    /// for a moment, and its lease may lapse in an outage of the database or of its machine.
    async fn send(&self) -> Result<Response<Body>, Refusal> {
        if !self.broker.shared.persistence.is_shared() {
            return Err(self.lost());
        }
        let lease = self.broker.shared.config.session.lease;
        let deadline = Instant::now() + lease + OWNER_SEARCH_EXTRA;
        let (mut pause, mut is_charged) = (OWNER_RETRY_MIN, false);
        loop {
            let (refusal, is_final) = match self.search().await {
                SearchResult::Answered(response) => return Ok(response),
                SearchResult::Gone => (self.lost(), true),
                SearchResult::Unreachable(refusal) => (refusal, false),
                SearchResult::LeaseLapsed => (self.lost(), false),
            };
            // A request that an owner answers takes from the rate there. A client could send the
            // state of a lost owner for ever.
            if !std::mem::replace(&mut is_charged, true) {
                self.tenant.take_budget(self.principal)?;
            }
            if is_final {
                return Err(refusal);
            }
            let jitter = rand::random_range(Duration::ZERO..=OWNER_RETRY_JITTER);
            if Instant::now() + pause + jitter > deadline {
                return Err(refusal);
            }
            sleep(pause + jitter).await;
            pause *= 2;
        }
    }

    async fn search(&self) -> SearchResult {
        let own = self.broker.shared.persistence.address();
        let mut is_address_reused = false;
        if let Some(address) = self.suspension.address.as_deref().filter(|at| Some(*at) != own) {
            match forward(self.broker, address, &self.outgoing).await {
                ForwardResult::Answered(response) => return SearchResult::Answered(response),
                ForwardResult::SessionMissing(_) => is_address_reused = true,
                ForwardResult::NotSent => {}
                ForwardResult::Retryable => return SearchResult::Gone,
            }
        } else {
            // The request came to the address that its state names, and this process is another.
            is_address_reused = self.suspension.address.is_some();
        }
        let owner = match session_lookup::find_replica(self.broker, &self.suspension.node).await {
            Ok(owner) => owner,
            Err(refusal) => return SearchResult::Unreachable(refusal),
        };
        match owner {
            None if is_address_reused => SearchResult::Gone,
            None => SearchResult::LeaseLapsed,
            Some(owner) if Some(&owner.address) == self.suspension.address.as_ref() => {
                SearchResult::Unreachable(self.elsewhere())
            }
            Some(owner) => self.send_to(&owner).await,
        }
    }

    /// Sends the request to a replica that the database names.
    async fn send_to(&self, owner: &PeerReplica) -> SearchResult {
        match forward(self.broker, &owner.address, &self.outgoing).await {
            ForwardResult::Answered(response) => SearchResult::Answered(response),
            // A live replica with the same `node.id` may be another process than the owner.
            ForwardResult::SessionMissing(_) if owner.node != self.suspension.node => {
                SearchResult::LeaseLapsed
            }
            ForwardResult::NotSent | ForwardResult::SessionMissing(_) => {
                SearchResult::Unreachable(self.elsewhere())
            }
            ForwardResult::Retryable => SearchResult::Gone,
        }
    }

    fn elsewhere(&self) -> Refusal {
        let text = "the request waits at another replica, which cannot be reached now";
        Refusal::new(ErrorKind::SessionElsewhere, text)
            .retry_after(self.broker.shared.config.session.lease)
    }

    /// Returns the refusal of a request whose owner is gone.
    fn lost(&self) -> Refusal {
        if !self.suspension.is_started || self.method.is_idempotent() {
            return RequestStateError::Expired.refusal();
        }
        let text = "the replica where the request waited was lost: the request may or may not have been carried out";
        Refusal::new(ErrorKind::OutcomeUnknown, text)
    }
}
