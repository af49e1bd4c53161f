//! Which sessions are this process's own, as far as its lease and other replicas decide about that.
//!
//! Called by `control` when the lease was lost and taken anew, and when somebody asks for a session's end on another replica.

use std::collections::HashSet;

use storage::SessionKey;

use super::Broker;
use crate::actors::session::Session;

impl Broker {
    pub fn session_keys(&self) -> HashSet<SessionKey> {
        self.all_sessions().iter().map(|session| key(session)).collect()
    }

    /// These are ours still, under these epochs.
    pub fn reclaimed_sessions(&self, sessions: &[(SessionKey, i64)]) {
        tracing::debug!(sessions = sessions.len(), "sessions were taken back");
    }

    /// These have another owner by now: their clients are served there.
    pub fn lost_sessions(&self, sessions: &HashSet<SessionKey>) {
        for session in self.all_sessions().iter().filter(|session| sessions.contains(&key(session))) {
            self.close_session(session, "another replica has it");
        }
    }

    pub fn end_session_by_key(&self, wanted: &SessionKey, why: &str) {
        for session in self.all_sessions().iter().filter(|session| key(session) == *wanted) {
            self.close_session(session, why);
        }
    }
}

fn key(session: &Session) -> SessionKey {
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, session.id.as_str().as_bytes());
    SessionKey::from_slice(hash.as_ref()).expect("SHA-256 has the length of a key")
}
