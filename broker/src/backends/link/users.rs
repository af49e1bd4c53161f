//! The users of a link: clients that subscribe through it, and tasks that run over it.

use std::{sync::Weak, time::Instant};

use protocol::{capabilities::ClientCapabilities, ids::PrincipalId};
use rules::link_sharing::LinkScope;
use tokio::sync::watch;

use super::connection::requester::Requester;
use crate::backends::link_client::LinkClient;

/// The user that requests a link of a backend.
#[derive(Debug)]
pub struct LinkUser<'a> {
    /// The scope of a link for this user only.
    pub own: LinkScope,
    pub principal: &'a PrincipalId,
    /// The capabilities that the client declared.
    pub client: &'a ClientCapabilities,
}

#[derive(Debug, Default)]
pub(super) struct LinkUsers {
    pub(super) clients: Vec<Weak<dyn LinkClient>>,
    /// Tasks that run over the link. They may outlive the session that created them.
    pub(super) runs: Vec<Weak<dyn Requester>>,
    /// Set once a user has set a log level. Until then, the backend decides.
    pub(super) has_level: bool,
    /// Set while a sender of the log level waits for its turn. Closed once it has sent the level.
    pub(super) waiting_level: Option<watch::Receiver<()>>,
    /// Time since which the link has no user.
    pub(super) idle_since: Option<Instant>,
}

impl LinkUsers {
    pub(super) fn record_if_unused(&mut self) -> bool {
        let unused = self.is_unused();
        if unused {
            self.idle_since = Some(Instant::now());
        }
        unused
    }

    pub(super) fn is_unused(&self) -> bool {
        self.clients.iter().all(|client| client.strong_count() == 0) && self.runs.is_empty()
    }
}
