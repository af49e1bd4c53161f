//! Adoption of a session that another process began. Its client notices nothing, or gets
//! notifications of everything it may have missed.

use std::sync::Arc;

use protocol::{ids::SessionId, phase::SessionPhase};
use records::{NodeName, SubscriptionRecord};
use rules::{
    client_transport::Transport, endpoint::Endpoint, exposed_names, routing::ResourceTarget,
};

use super::{
    Session, SessionKind, SessionParams, SessionParts, persisted_state::SessionPersister,
    record::PersistedSession, subscriptions,
};
use crate::sessions::shared::Shared;

/// A claimed row of the store, decoded.
#[derive(Debug)]
pub struct ClaimedSession {
    pub stored: PersistedSession,
    pub epoch: i64,
    pub created_at: jiff::Timestamp,
    pub subscriptions: Vec<SubscriptionRecord>,
    /// The name of this process at the claim.
    pub owner: NodeName,
}

impl ClaimedSession {
    pub fn transport(&self) -> Transport {
        self.stored.transport
    }
}

impl Session {
    /// Restores the session as its last owner stored it. [`Session::activate`] starts its work.
    pub fn restore(
        id: SessionId,
        params: SessionParams,
        claimed: ClaimedSession,
        shared: Arc<Shared>,
    ) -> Arc<Self> {
        let PersistedSession { agreement, mutable: changing, backend_sessions, .. } =
            claimed.stored;
        let key = super::record::session_key(&id);
        let mut state = Self::new_state(
            &params,
            &key,
            claimed.epoch,
            SessionPhase::Ready,
            changing.announced_lists,
        );
        state.streams.may_inherit = true;
        state.ownership.owner = claimed.owner;
        state.log_level = changing.log_level;
        state.questions.restore_elicited(changing.elicited);
        state.links.restore(backend_sessions);
        state.lists.set_unchecked();
        if changing.were_lists_logged {
            state.lists.set_logged();
        }
        let target = |one: SubscriptionRecord| restored_target(one, &params.endpoint);
        state.subscriptions = claimed.subscriptions.into_iter().map(target).collect();
        shared.metrics.subscriptions(i64::try_from(state.subscriptions.len()).unwrap_or(0));
        Self::build(
            SessionParts {
                id,
                epoch: claimed.epoch,
                created_at: claimed.created_at,
                params,
                agreement,
                state,
                kind: SessionKind::Client,
            },
            shared,
        )
    }

    /// Restores in the background what the session had: its location and its subscriptions. Each
    /// subscription sends one `updated`, because updates may have been missed.
    pub fn activate(self: &Arc<Self>) {
        SessionPersister::new(self).publish_location();
        let backends = self.lock().subscriptions.backends();
        for backend in backends {
            if self.tenant.backend(&backend).is_some() {
                self.shared.running.spawn(subscriptions::resubscribe(self.clone(), backend));
            } else {
                subscriptions::forget_subscriptions_of(self, &backend); // removed while the session had no owner
            }
        }
    }

    /// Returns whether this process took the row under its present name. If not, a reclaim after a
    /// lapsed lease may have missed the session.
    pub fn is_owned_by(&self, node: &NodeName) -> bool {
        self.lock().ownership.owner == *node
    }

    /// Keeps the session after a lapse of the lease, under the new epoch and name. Returns false if
    /// it is not in `kept` and belonged to the lapsed name.
    pub fn confirm_ownership(&self, kept: Option<i64>, node: &NodeName) -> bool {
        let mut state = self.lock();
        match kept {
            Some(epoch) => {
                self.epoch.store(epoch, std::sync::atomic::Ordering::Relaxed);
                state.streams.set_epoch(epoch);
                state.ownership.owner = node.clone();
                true
            }
            None => state.ownership.owner == *node,
        }
    }
}

/// Returns a stored subscription by the URI that this build exposes. An earlier build may have
/// stored another form ([`exposed_names::earlier_uri`]).
fn restored_target(stored: SubscriptionRecord, endpoint: &Endpoint) -> ResourceTarget {
    let SubscriptionRecord { exposed_uri, backend, uri } = stored;
    let exposed_uri = match endpoint {
        Endpoint::Single(_) => exposed_uri,
        Endpoint::Aggregated | Endpoint::Toolset(_) => exposed_names::exposed_uri(&backend, &uri),
    };
    ResourceTarget { backend, uri, exposed_uri }
}

#[cfg(test)]
mod tests {
    use protocol::ids::BackendId;

    use super::*;

    #[test]
    fn a_subscription_of_an_earlier_build_has_the_uri_that_clients_use_now() {
        let backend = BackendId::parse("1password").unwrap();
        let exposed_at = |endpoint: &Endpoint, exposed_uri: &str| {
            let (backend, exposed_uri) = (backend.clone(), exposed_uri.to_owned());
            let stored = SubscriptionRecord { exposed_uri, backend, uri: "op://x".to_owned() };
            restored_target(stored, endpoint).exposed_uri
        };
        for stored in ["1password+op://x", "b.1password+op://x"] {
            assert_eq!(exposed_at(&Endpoint::Aggregated, stored), "b.1password+op://x");
        }
        assert_eq!(exposed_at(&Endpoint::Single(backend.clone()), "op://x"), "op://x");
    }
}
