//! The session that a link has at an HTTP backend, as the next owner of its client's session gets it.

use std::fmt;

use protocol::version::Version;

/// What a session has at one HTTP backend.
#[derive(Clone, PartialEq, Eq)]
pub struct BackendSession {
    /// The backend's URL: a session goes nowhere else.
    pub url: String,
    /// As the backend issued it: a secret.
    pub id: String,
    pub version: Version,
}

impl fmt::Debug for BackendSession {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "BackendSession({})", self.version.as_str())
    }
}
