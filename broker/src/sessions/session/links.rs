//! The links that a session uses, one for each backend.

use std::sync::Arc;

use protocol::{
    error::{ErrorKind, Refusal},
    ids::BackendId,
};

use super::{Session, first_wire_id};
use crate::{
    backends::link::{Era, Link, LinkUser},
    rules::link_sharing::LinkScope,
};

impl Session {
    /// What a request learns whose backend went while it was on its way.
    pub fn backend_gone(&self, backend: &BackendId) -> Refusal {
        Refusal::new(
            ErrorKind::BackendUnavailable,
            format!("backend {backend} is not registered any more"),
        )
    }

    /// The link to a backend: the one used before, or the one it shall use.
    pub fn link_to(self: &Arc<Self>, backend: &BackendId) -> Result<Arc<Link>, Refusal> {
        let gone = || self.backend_gone(backend);
        let mut state = self.lock();
        if let Some(link) = state.links.get(backend).filter(|link| !link.is_closed()) {
            return Ok(link.clone());
        }
        state.check_present()?;
        let link = self
            .tenant
            .backend(backend)
            .and_then(|backend| backend.link_for(self.link_user(), self.era()))
            .ok_or_else(gone)?;
        link.attach(self);
        if state.links.contains_key(backend) {
            state.backend_sessions.remove(backend); // it ended with the link before
        } else if let Some(stored) = state.backend_sessions.get(backend) {
            link.resume_with(stored.clone(), first_wire_id(self.epoch()));
        }
        if let Some(level) = state.log_level {
            link.raise_level(level);
        }
        state.links.insert(backend.clone(), link.clone());
        Ok(link)
    }

    fn link_user(&self) -> LinkUser<'_> {
        LinkUser {
            own: LinkScope::Session(self.id.clone()),
            principal: &self.caller.principal,
            client: &self.client,
        }
    }

    /// Who has no session is best served without one: what stands in for one here need not be one there.
    pub fn era(&self) -> Era {
        if self.has_client { Era::Sessions } else { Era::Stateless }
    }
}
