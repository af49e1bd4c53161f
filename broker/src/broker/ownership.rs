//! Ownership of this process's sessions, as its lease and other replicas decide it.
//!
//! Called by `control` when the lease was lost and reclaimed, and when another replica requests a
//! session's end.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use records::SessionKey;

use super::Broker;

impl Broker {
    pub fn session_keys(&self) -> HashSet<SessionKey> {
        self.all_sessions().iter().map(|session| session.key).collect()
    }

    /// Keeps these sessions, under these epochs.
    pub fn apply_reclaimed(&self, sessions: &[(SessionKey, i64)]) {
        let (kept, node): (HashMap<_, _>, _) =
            (sessions.iter().copied().collect(), self.shared.persistence.node());
        for session in self.all_sessions() {
            if let Some(epoch) = kept.get(&session.key) {
                session.confirm_ownership(Some(*epoch), &node);
            }
        }
    }

    /// Abandons these sessions, because they have another owner now.
    pub fn drop_lost_sessions(&self, sessions: &HashSet<SessionKey>) {
        let node = self.shared.persistence.node();
        for session in self.all_sessions() {
            if sessions.contains(&session.key) && !session.confirm_ownership(None, &node) {
                self.remove_session(&session);
                session.abandon("the lease was lost");
            }
        }
    }

    /// Ends the sessions whose end was requested through the store.
    pub fn end_requested(self: &Arc<Self>, sessions: &[SessionKey]) {
        let mut unknown: HashSet<SessionKey> = sessions
            .iter()
            .copied()
            .filter(|key| !self.ending_sessions.contains_key(key))
            .collect();
        for session in self.all_sessions() {
            if sessions.contains(&session.key) {
                unknown.remove(&session.key);
                self.close_session(&session, "ended by an operator");
            }
        }
        if !unknown.is_empty() {
            self.end_unknown(unknown.into_iter().collect());
        }
    }
}
