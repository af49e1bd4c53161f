//! Which sessions are this process's own, as far as its lease and other replicas decide about that.
//!
//! Called by `control` when the lease was lost and taken anew, and when somebody asks for a session's end on another replica.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use storage::SessionKey;

use super::Broker;

impl Broker {
    pub fn session_keys(&self) -> HashSet<SessionKey> {
        self.all_sessions().iter().map(|session| session.key).collect()
    }

    /// These are ours still, under these epochs.
    pub fn reclaimed_sessions(&self, sessions: &[(SessionKey, i64)]) {
        let (kept, node): (HashMap<_, _>, _) =
            (sessions.iter().copied().collect(), self.shared.durable.node());
        for session in self.all_sessions() {
            if let Some(epoch) = kept.get(&session.key) {
                session.confirm_ownership(Some(*epoch), &node);
            }
        }
    }

    /// These have another owner by now: their clients are served there.
    pub fn lost_sessions(&self, sessions: &HashSet<SessionKey>) {
        let node = self.shared.durable.node();
        for session in self.all_sessions() {
            if sessions.contains(&session.key) && !session.confirm_ownership(None, &node) {
                self.take_out(&session);
                session.abandon("the lease was lost");
            }
        }
    }

    /// Somebody asked these to end, through the store.
    pub fn end_asked(self: &Arc<Self>, sessions: &[SessionKey]) {
        let mut unknown: HashSet<SessionKey> =
            sessions.iter().copied().filter(|key| !self.ending.contains(key)).collect();
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
