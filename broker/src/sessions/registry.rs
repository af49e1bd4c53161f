//! Sessions that live in this process, with a client or without one, by the key they are stored under.

use std::sync::{Arc, Weak};

use dashmap::DashMap;

use super::session::Session;
use crate::persistence::SessionKey;

/// Kept by each session for as long as it lives.
#[derive(Debug, Default)]
pub struct SessionRegistry(DashMap<SessionKey, Weak<Session>>);

impl SessionRegistry {
    /// A session lives here from now on.
    pub(super) fn add(&self, session: &Arc<Session>) {
        self.0.insert(session.key, Arc::downgrade(session));
    }

    /// It does not any more.
    pub(super) fn remove(&self, session: &Session) {
        self.0.remove_if(&session.key, |_, known| known.as_ptr() == std::ptr::from_ref(session));
    }

    pub(super) fn get(&self, key: &SessionKey) -> Option<Arc<Session>> {
        self.0.get(key).and_then(|session| session.upgrade())
    }
}
