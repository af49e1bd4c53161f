//! The session of a link at an HTTP backend, in the form that the next owner of the client's
//! session gets.

use std::fmt;

use protocol::version::Version;

/// The session at one HTTP backend.
#[derive(Clone, PartialEq, Eq)]
pub struct BackendSession {
    /// The URL of the backend. The session is used nowhere else.
    pub url: String,
    /// The id as the backend issued it. It is a secret.
    pub id: String,
    pub version: Version,
}

impl fmt::Debug for BackendSession {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "BackendSession({})", self.version.as_str())
    }
}
