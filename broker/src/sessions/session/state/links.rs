//! The links of one session and its sessions at HTTP backends.

use std::{collections::HashMap, sync::Arc};

use protocol::ids::BackendId;
use rules::maps::FastMap;

use crate::backends::{
    link::{BackendSession, Link},
    link_lists::OwnLists,
};

/// Links and backend sessions of one session, by backend.
#[derive(Debug, Default)]
pub(in crate::sessions) struct SessionLinks {
    links: FastMap<BackendId, Arc<Link>>,
    /// Sessions at HTTP backends, which a new owner resumes.
    backend_sessions: HashMap<BackendId, BackendSession>,
}

impl SessionLinks {
    /// Adds the backend sessions that the last owner stored.
    pub(in crate::sessions) fn restore(&mut self, stored: HashMap<BackendId, BackendSession>) {
        self.backend_sessions = stored;
    }

    /// Returns the link to a backend, which may be closed.
    pub(in crate::sessions) fn get(&self, backend: &BackendId) -> Option<&Arc<Link>> {
        self.links.get(backend)
    }

    pub(in crate::sessions) fn open_link(&self, backend: &BackendId) -> Option<&Arc<Link>> {
        self.get(backend).filter(|link| !link.is_closed())
    }

    /// Returns the backend session that a new link resumes. Only the first link to a backend
    /// resumes one, because a backend session ends with its link.
    pub(in crate::sessions) fn resumption(
        &mut self,
        backend: &BackendId,
    ) -> Option<BackendSession> {
        if self.links.contains_key(backend) {
            self.backend_sessions.remove(backend);
        }
        self.backend_sessions.get(backend).cloned()
    }

    pub(in crate::sessions) fn insert(&mut self, backend: BackendId, link: Arc<Link>) {
        self.links.insert(backend, link);
    }

    pub(in crate::sessions) fn all(&self) -> impl Iterator<Item = &Arc<Link>> {
        self.links.values()
    }

    /// Returns the lists that backends show to links of this session alone.
    pub(in crate::sessions) fn own_lists(&self) -> Vec<(BackendId, Arc<OwnLists>)> {
        let own =
            |(backend, link): (&BackendId, &Arc<Link>)| Some((backend.clone(), link.lists.own()?));
        self.links.iter().filter_map(own).collect()
    }

    pub(in crate::sessions) fn backend_sessions(&self) -> &HashMap<BackendId, BackendSession> {
        &self.backend_sessions
    }

    /// Notes the session that a link has at its backend, or its end. Returns whether that differs
    /// from what was known.
    pub(in crate::sessions) fn record_backend_session(
        &mut self,
        backend: &BackendId,
        session: Option<BackendSession>,
    ) -> bool {
        let before = match &session {
            Some(session) => self.backend_sessions.insert(backend.clone(), session.clone()),
            None => self.backend_sessions.remove(backend),
        };
        before != session
    }

    pub(in crate::sessions) fn take_all(
        &mut self,
    ) -> (Vec<Arc<Link>>, Vec<(BackendId, BackendSession)>) {
        (
            self.links.drain().map(|(_, link)| link).collect(),
            self.backend_sessions.drain().collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use protocol::version::Version;

    use super::*;

    #[test]
    fn only_a_change_of_a_backend_session_is_stored() {
        let backend = BackendId::parse("b").unwrap();
        let session = |id: &str| BackendSession {
            url: "http://b/mcp".to_owned(),
            id: id.to_owned(),
            version: Version::V2025_11_25,
        };
        let mut links = SessionLinks::default();
        assert!(!links.record_backend_session(&backend, None));
        assert!(links.record_backend_session(&backend, Some(session("one"))));
        assert!(!links.record_backend_session(&backend, Some(session("one"))));
        assert!(links.record_backend_session(&backend, Some(session("two"))));
        assert_eq!(links.resumption(&backend), Some(session("two")));
        assert!(links.record_backend_session(&backend, None));
        assert_eq!(links.resumption(&backend), None);
    }
}
