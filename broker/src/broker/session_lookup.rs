//! Location of sessions for listeners: the sources of [`crate::session_location`] in this process
//! and in the stores.

use std::sync::Arc;

use protocol::{error::Refusal, ids::SessionId};
use records::{NodeRecord, SessionKey};
use rules::endpoint::Endpoint;
use storage::OwnerHint;

use super::{Broker, adoption::AdoptionOutcome};
use crate::{
    auth::Caller,
    session_location::{
        self, ClaimOutcome, ForwardFailure, LookupOutcome, LookupSources, PeerLookupOutcome,
        PeerReplica, absence_key, no_session,
    },
    sessions::session::{Session, record},
};

/// One request's search for its session.
pub struct ReplicaLookup<'a> {
    broker: &'a Broker,
    lookup: session_location::OwnerLookup<LookupContext<'a>>,
}

impl<'a> ReplicaLookup<'a> {
    pub fn new(
        broker: &'a Arc<Broker>,
        id: &str,
        caller: &'a Caller,
        endpoint: &'a Endpoint,
    ) -> Self {
        let context = LookupContext::new(broker, id, caller, endpoint);
        let lease = broker.shared.config.session.lease;
        Self { broker, lookup: session_location::OwnerLookup::new(context, lease) }
    }

    /// Returns where to send the request next. After [`LookupOutcome::Remote`], call
    /// [`ReplicaLookup::record_failure`] and look again.
    pub async fn next(&mut self) -> Result<LookupOutcome, Refusal> {
        self.lookup.next().await
    }

    /// Returns whether there is time to look again for a session that was here and has left.
    pub fn may_retry(&mut self) -> bool {
        self.lookup.may_retry()
    }

    /// Notes that the owner did not serve the request. If it named this replica, that name is
    /// ignored: the lookup checks this replica itself.
    pub fn record_failure(&mut self, owner: &PeerReplica, failure: ForwardFailure) {
        let own = self.broker.shared.persistence.node();
        let failure = match failure {
            ForwardFailure::NotOwner(named) => {
                ForwardFailure::NotOwner(named.filter(|named| named.node != own.as_str()))
            }
            failure => failure,
        };
        self.lookup.record_failure(owner, failure);
    }

    /// Returns whether this replica could take the session over. An owner with a lapsed lease then
    /// does not serve it.
    pub fn asserts_lease(&self) -> bool {
        holds_lease(self.broker) && !self.lookup.owner_must_serve()
    }
}

/// Returns whether this replica could take a session over.
pub fn holds_lease(broker: &Broker) -> bool {
    let persistence = &broker.shared.persistence;
    persistence.is_shared() && persistence.lease.is_held()
}

/// Finds, or takes over, the session of a request that another replica sent.
pub async fn lookup_for_peer(
    broker: &Arc<Broker>,
    id: &str,
    caller: &Caller,
    endpoint: &Endpoint,
) -> Result<PeerLookupOutcome, Refusal> {
    session_location::inside(&LookupContext::new(broker, id, caller, endpoint)).await
}

/// Returns replicas that accept sessions and do not drain, in random order.
pub async fn other_replicas(broker: &Arc<Broker>) -> Vec<PeerReplica> {
    let persistence = &broker.shared.persistence;
    // If the store fails, no replica is known.
    let nodes =
        persistence.timed("list_nodes", persistence.store.live_nodes()).await.unwrap_or_default();
    let own = persistence.node();
    let mut others: Vec<PeerReplica> = nodes
        .into_iter()
        .filter(|node| node.node != own && !node.draining)
        .filter_map(owner)
        .collect();
    for last in (1..others.len()).rev() {
        others.swap(last, rand::random_range(0..=last));
    }
    others
}

/// Returns the replica of this name, which may be draining. Without one, returns a replica with the
/// same `node.id`: the replica may have another name since its lease lapsed.
pub async fn find_replica(
    broker: &Arc<Broker>,
    name: &str,
) -> Result<Option<PeerReplica>, Refusal> {
    let persistence = &broker.shared.persistence;
    let nodes = persistence.timed("list_nodes", persistence.store.live_nodes()).await?;
    let own = persistence.node();
    let others: Vec<PeerReplica> =
        nodes.into_iter().filter(|node| node.node != own).filter_map(owner).collect();
    let exact = others.iter().find(|other| other.node == name);
    let has_same_id = |other: &&PeerReplica| {
        node_id(name).is_some_and(|wanted| node_id(&other.node) == Some(wanted))
    };
    Ok(exact.or_else(|| others.iter().find(has_same_id)).cloned())
}

/// Returns the `node.id` in the name of a replica.
fn node_id(name: &str) -> Option<&str> {
    name.rsplit_once('/').map(|(id, _)| id)
}

fn owner(node: NodeRecord) -> Option<PeerReplica> {
    Some(PeerReplica { node: node.node.as_str().to_owned(), address: node.address? })
}

/// A session's id, with the caller and endpoint of the request.
struct LookupContext<'a> {
    broker: &'a Arc<Broker>,
    id: SessionId,
    caller: &'a Caller,
    endpoint: &'a Endpoint,
}

impl<'a> LookupContext<'a> {
    fn new(broker: &'a Arc<Broker>, id: &str, caller: &'a Caller, endpoint: &'a Endpoint) -> Self {
        Self { broker, id: SessionId::new(id), caller, endpoint }
    }

    /// Returns whether the record did not have the session a moment ago.
    fn is_absent(&self) -> bool {
        self.broker.session_locator.absent.has(&absence_key(&self.id, self.caller, self.endpoint))
    }

    /// Returns the session's key. It is computed on demand, because a session that is here needs
    /// none.
    fn key(&self) -> SessionKey {
        record::session_key(&self.id)
    }
}

impl LookupSources for LookupContext<'_> {
    type Session = Arc<Session>;

    fn here(&self) -> Result<Option<Arc<Session>>, Refusal> {
        match self.broker.local_session(&self.id, self.caller, self.endpoint)? {
            None if !Session::is_valid_id(&self.id) => Err(no_session()),
            session => Ok(session),
        }
    }

    fn known(&self) -> Option<PeerReplica> {
        self.broker.session_locator.owners.get(&self.key())
    }

    fn charge(&self) -> Result<(), Refusal> {
        self.broker
            .tenant(&self.caller.tenant)
            .map_or(Ok(()), |tenant| tenant.take_budget(&self.caller.principal))
    }

    fn refund(&self) {
        if let Some(tenant) = self.broker.tenant(&self.caller.tenant) {
            tenant.give_back_budget(&self.caller.principal);
        }
    }

    async fn hint(&self) -> Option<PeerReplica> {
        if self.is_absent() {
            return None;
        }
        let (key, persistence) = (self.key(), &self.broker.shared.persistence);
        let OwnerHint { node, address } = persistence.hot.owner_hint(&key).await?;
        let is_own = node == persistence.node().as_str() || persistence.address() == Some(&address);
        (!is_own).then_some(PeerReplica { node, address })
    }

    async fn claim(&self) -> Result<ClaimOutcome<Arc<Session>>, Refusal> {
        if self.is_absent() {
            return Ok(ClaimOutcome::Absent);
        }
        Ok(match self.broker.adopt(&self.id, self.caller, self.endpoint).await? {
            AdoptionOutcome::Local(session) => ClaimOutcome::Local(session),
            AdoptionOutcome::Remote(node) => {
                ClaimOutcome::Remote { remaining_lease: node.remaining_lease, owner: owner(node) }
            }
            AdoptionOutcome::Unusable => ClaimOutcome::Absent,
            AdoptionOutcome::Absent => {
                self.broker.session_locator.absent.record(absence_key(
                    &self.id,
                    self.caller,
                    self.endpoint,
                ));
                ClaimOutcome::Absent
            }
        })
    }

    fn draining(&self) -> bool {
        self.broker.draining()
    }

    async fn replicas(&self) -> Vec<PeerReplica> {
        self.broker.wait_for_release(&self.key()).await;
        other_replicas(self.broker).await
    }

    fn record(&self, owner: &PeerReplica) {
        self.broker.session_locator.owners.record(self.key(), owner.clone());
    }

    fn forget(&self, owner: &PeerReplica) {
        self.broker.session_locator.owners.forget(&self.key(), owner);
    }
}
