//! The links that a session uses, one for each backend.

use std::sync::Arc;

use protocol::{
    error::{ErrorKind, Refusal},
    ids::BackendId,
};
use rules::link_sharing::LinkScope;

use super::{Session, state::first_wire_id};
use crate::backends::link::{Era, Link, LinkUser};

impl Session {
    /// Returns the refusal of a request whose backend was removed meanwhile.
    pub fn backend_gone(&self, backend: &BackendId) -> Refusal {
        Refusal::new(
            ErrorKind::BackendUnavailable,
            format!("backend {backend} is not registered any more"),
        )
    }

    /// Returns the link to a backend. The first use opens it.
    pub fn link_to(self: &Arc<Self>, backend: &BackendId) -> Result<Arc<Link>, Refusal> {
        let gone = || self.backend_gone(backend);
        let mut state = self.lock();
        if let Some(link) = state.links.open_link(backend) {
            return Ok(link.clone());
        }
        state.check_present()?;
        let known = self.tenant.backend(backend).ok_or_else(gone)?;
        let link = loop {
            let link = known.link_for(self.link_user(), self.era()).ok_or_else(gone)?;
            if link.attach(self) {
                break link;
            }
        };
        if let Some(stored) = state.links.resumption(backend) {
            link.resume_with(stored, first_wire_id(self.epoch()));
        }
        let level = state.log_level;
        state.links.insert(backend.clone(), link.clone());
        drop(state);
        link.adapt_level(level);
        if link.lists.own().is_some() {
            self.on_own_lists_changed(); // another session of the link has caused them
        }
        Ok(link)
    }

    fn link_user(&self) -> LinkUser<'_> {
        LinkUser {
            own: LinkScope::Session(self.id.clone()),
            principal: &self.caller.principal,
            client: &self.agreement.client,
        }
    }

    /// Returns the era that fits the client. A request without a session is best served by a
    /// stateless backend, because its pooled session may need none there.
    pub fn era(&self) -> Era {
        if self.kind.has_client() { Era::Sessions } else { Era::Stateless }
    }
}
