//! The sessions of this process, by the key that each is stored under. Pooled sessions are among
//! them.

use std::sync::{Arc, Weak};

use dashmap::DashMap;
use records::SessionKey;

use super::session::Session;

/// Map of the sessions that are here. A session adds itself when it begins, and removes itself when
/// it ends or moves.
#[derive(Debug, Default)]
pub struct SessionRegistry(DashMap<SessionKey, Weak<Session>>);

impl SessionRegistry {
    /// Adds a session.
    pub(super) fn add(&self, session: &Arc<Session>) {
        self.0.insert(session.key, Arc::downgrade(session));
    }

    /// Removes a session that is no longer here.
    pub(super) fn remove(&self, session: &Session) {
        self.0.remove_if(&session.key, |_, known| known.as_ptr() == std::ptr::from_ref(session));
    }

    pub(super) fn get(&self, key: &SessionKey) -> Option<Arc<Session>> {
        self.0.get(key).and_then(|session| session.upgrade())
    }
}
