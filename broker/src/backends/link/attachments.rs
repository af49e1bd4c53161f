//! The beginning and the end of the use of a link. A link for only one user ends with its last use.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Instant,
};

use rules::{limits::LINK_IDLE_MAX, link_sharing::LinkScope};

use super::{Link, connection::requester::Requester};
use crate::backends::link_client::{LinkClient, is_same};

impl Link {
    /// Adds a client to the users of the link. Returns `false` if the link is closed, which may be
    /// because it was idle.
    pub fn attach<Client: LinkClient + 'static>(&self, client: &Arc<Client>) -> bool {
        let mut users = self.lock();
        if self.is_closed() {
            return false;
        }
        let client: Weak<Client> = Arc::downgrade(client);
        users.clients.retain(|other| other.strong_count() > 0);
        users.clients.push(client);
        users.idle_since = None;
        true
    }

    /// Shuts the link if it was unused for longer than [`LINK_IDLE_MAX`]. Returns whether it
    /// did. A user that comes later gets another link.
    pub fn shut_if_idle(&self, now: Instant) -> bool {
        let users = self.lock();
        let is_idle = users
            .idle_since
            .is_some_and(|since| now.saturating_duration_since(since) > LINK_IDLE_MAX);
        if is_idle {
            self.shut();
        }
        is_idle
    }

    /// Removes a client whose session has ended. Closes a link for this session only, unless a task
    /// still runs over it. A shared link drops the client's subscriptions.
    pub fn detach(self: &Arc<Self>, client: &Arc<impl LinkClient + 'static>) {
        let mut users = self.lock();
        users.clients.retain(|other| other.strong_count() > 0 && !is_same(other, client));
        let unused = users.record_if_unused();
        drop(users);
        if unused && self.is_personal() {
            self.backend.close_link(self);
        } else {
            self.subscriptions.drop_client(self, client);
            self.adapt_level(None);
        }
    }

    /// Adds a task run to the users of the link. The link stays open until the returned value is
    /// dropped. Returns `None` if the link is closed, which may be because it was idle.
    pub fn hold(self: &Arc<Self>, run: Weak<dyn Requester>) -> Option<LinkHold> {
        let mut users = self.lock();
        if self.is_closed() {
            return None;
        }
        users.runs.push(run.clone());
        users.idle_since = None;
        drop(users);
        Some(LinkHold { link: self.clone(), run })
    }

    /// Removes a client whose session was handed off. As [`Link::detach`], but the session at the
    /// backend is kept.
    pub fn hand_off(self: &Arc<Self>, client: &Arc<impl LinkClient + 'static>) {
        if matches!(self.scope, LinkScope::Session(_)) {
            self.handed_off.store(true, Ordering::Relaxed);
        }
        self.detach(client);
    }
}

/// The use of a link by a task.
#[derive(Debug)]
pub struct LinkHold {
    pub link: Arc<Link>,
    run: Weak<dyn Requester>,
}

impl Drop for LinkHold {
    fn drop(&mut self) {
        let mut users = self.link.lock();
        if let Some(at) = users.runs.iter().position(|run| run.ptr_eq(&self.run)) {
            users.runs.remove(at);
        }
        users.clients.retain(|client| client.strong_count() > 0);
        let unused = users.record_if_unused();
        drop(users);
        if unused && self.link.is_personal() {
            self.link.backend.close_link(&self.link);
        }
    }
}
