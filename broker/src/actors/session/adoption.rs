//! A session that another process began, taken up here. Its client is to notice nothing, or be told what it may have missed.

use std::{collections::HashSet, sync::Arc};

use protocol::{
    ids::{BackendId, SessionId},
    phase::SessionPhase,
};

use super::{Session, SessionKind, SessionParams, SessionState, record::PersistedSession};
use crate::{
    actors::shared::Shared,
    persistence::{NodeName, SubscriptionRecord},
    rules::{catalog::ListKind, routing::ResourceTarget},
};

/// What the store gave with the row.
#[derive(Debug)]
pub struct ClaimedSession {
    pub stored: PersistedSession,
    pub epoch: i64,
    pub created_at: jiff::Timestamp,
    pub subscriptions: Vec<SubscriptionRecord>,
    /// The name it was claimed under.
    pub owner: NodeName,
}

impl ClaimedSession {
    pub fn transport(&self) -> &'static str {
        self.stored.transport
    }
}

impl Session {
    /// The session as its last owner stored it. Nothing moves before [`Session::activate`].
    pub fn restore(
        id: SessionId,
        seat: SessionParams,
        claimed: ClaimedSession,
        shared: Arc<Shared>,
    ) -> Arc<Self> {
        let PersistedSession { agreement, mutable: changing, backend_sessions, .. } =
            claimed.stored;
        let key = super::record::session_key(&id);
        let mut state = SessionState::new(
            &shared,
            &key,
            claimed.epoch,
            SessionPhase::Ready,
            changing.announced_lists,
        );
        state.streams.may_inherit = true;
        state.owner = claimed.owner;
        state.log_level = changing.log_level;
        state.elicited = changing.elicited;
        state.backend_sessions = backend_sessions;
        state.lists_unchecked = true;
        let target = |one: SubscriptionRecord| {
            let target =
                ResourceTarget { backend: one.backend, uri: one.uri, exposed_uri: one.exposed_uri };
            (target.exposed_uri.clone(), target)
        };
        state.subscriptions = claimed.subscriptions.into_iter().map(target).collect();
        shared.metrics.subscriptions(i64::try_from(state.subscriptions.len()).unwrap_or(0));
        Self::build(
            id,
            claimed.epoch,
            claimed.created_at,
            (seat, agreement),
            state,
            (shared, SessionKind::Client),
        )
    }

    /// Puts back, in the background, what the session had: its subscriptions, with one `updated` each, as nobody knows what
    /// was missed, and what its client knows of its lists.
    pub fn activate(self: &Arc<Self>) {
        self.publish_location();
        let backends: HashSet<BackendId> =
            self.lock().subscriptions.values().map(|target| target.backend.clone()).collect();
        for backend in backends {
            if self.tenant.backend(&backend).is_some() {
                self.shared.running.spawn(self.clone().resubscribe(backend));
            } else {
                self.forget_subscriptions_of(&backend); // removed while nobody owned the session
            }
        }
    }

    /// Its lists are not compared yet: its backends may be only just being reached.
    pub fn has_unchecked_lists(&self) -> bool {
        self.lock().lists_unchecked
    }

    /// The backends had their chance: tells the client which of its lists are not what it was told.
    pub fn compare_lists(&self) {
        let methods = loop {
            let catalog = self.tenant.catalog();
            let now = catalog.digests(&self.endpoint); // computed without the lock, it may take a while
            let mut state = self.lock();
            if !Arc::ptr_eq(&catalog, &self.tenant.catalog()) {
                continue;
            }
            if !std::mem::take(&mut state.lists_unchecked) {
                return;
            }
            let changed = ListKind::ALL
                .into_iter()
                .zip(now.into_iter().zip(state.announced_lists))
                .filter(|(_, (now, told))| now != told);
            let methods: HashSet<_> =
                changed.filter_map(|(kind, _)| self.change_notification(kind)).collect();
            state.dirty.lists |= state.announced_lists != now;
            state.announced_lists = now;
            break methods;
        };
        methods.into_iter().for_each(|method| self.send_list_changed(method));
    }

    /// Whether the row became ours under the name we have. If not, whoever took back what was ours may have missed it.
    pub fn is_owned_by(&self, node: &NodeName) -> bool {
        self.lock().owner == *node
    }

    /// After a lapse of our lease the row is ours again under another name and epoch. `false`: it is not in `kept`, and was
    /// ours only under the name that lapsed.
    pub fn confirm_ownership(&self, kept: Option<i64>, node: &NodeName) -> bool {
        let mut state = self.lock();
        match kept {
            Some(epoch) => {
                self.epoch.store(epoch, std::sync::atomic::Ordering::Relaxed);
                state.streams.set_epoch(epoch);
                state.owner = node.clone();
                true
            }
            None => state.owner == *node,
        }
    }
}
