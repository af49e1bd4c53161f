//! The users of a link: clients that subscribe through it, and tasks that run over it.
//!
//! A link for only one user ends with its last use.

use std::{
    collections::HashMap,
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use protocol::{capabilities::ClientCapabilities, ids::PrincipalId};
use rules::{link_sharing::LinkScope, log_level::LogLevel};

use super::{Era, Link};
use crate::backends::{
    asker::Asker,
    link_client::{LinkClient, is_same},
};

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
    clients: Vec<Weak<dyn LinkClient>>,
    /// Tasks that run over the link. They may outlive the session that created them.
    runs: Vec<Weak<dyn Asker>>,
    /// Tasks of the backend that one of the runs follows, by the backend's own id.
    backend_tasks: HashMap<String, Weak<dyn Asker>>,
    /// The wanted log level of the backend.
    pub(super) level: Option<LogLevel>,
    /// The log level that the current connection has accepted.
    pub(super) level_sent: Option<LogLevel>,
    /// Time since which the link has no user.
    idle_since: Option<Instant>,
}

impl Link {
    /// Adds a client to the users of the link.
    pub fn attach<Client: LinkClient + 'static>(&self, client: &Arc<Client>) {
        let mut users = self.lock();
        let client: Weak<Client> = Arc::downgrade(client);
        users.clients.retain(|other| other.strong_count() > 0);
        users.clients.push(client);
        users.idle_since = None;
    }

    /// Removes a client whose session has ended. Closes a link for this session only, unless a task
    /// still runs over it. A shared link drops the client's subscriptions.
    pub fn detach(self: &Arc<Self>, client: &Arc<impl LinkClient + 'static>) {
        let mut users = self.lock();
        users.clients.retain(|other| other.strong_count() > 0 && !is_same(other, client));
        let unused = users.note_if_unused();
        drop(users);
        if unused && self.is_personal() {
            self.backend.close_link(self);
        } else {
            self.subscriptions.drop_client(self, client);
        }
    }

    /// Adds a task run to the users of the link. The link stays open until the returned value is
    /// dropped.
    pub fn hold(self: &Arc<Self>, run: Weak<dyn Asker>) -> LinkHold {
        let mut users = self.lock();
        users.runs.push(run.clone());
        users.idle_since = None;
        drop(users);
        LinkHold { link: self.clone(), run }
    }

    /// Returns the tasks that run over this link now.
    pub fn task_runs(&self) -> Vec<Arc<dyn Asker>> {
        self.lock().runs.iter().filter_map(Weak::upgrade).collect()
    }

    /// Removes a client whose session was handed off. As [`Link::detach`], but the session at the
    /// backend is kept.
    pub fn hand_off(self: &Arc<Self>, client: &Arc<impl LinkClient + 'static>) {
        if matches!(self.scope, LinkScope::Session(_)) {
            self.handed_off.store(true, Ordering::Relaxed);
        }
        self.detach(client);
    }

    /// Returns the clients that use the link now.
    pub fn clients(&self) -> Vec<Arc<dyn LinkClient>> {
        self.lock().clients.iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns whether neither a client nor a task uses the link now.
    pub fn is_unused(&self) -> bool {
        self.lock().is_unused()
    }

    /// Returns whether unrelated requests may share the link.
    pub fn has_stateless_clients(&self) -> bool {
        self.clients().iter().any(|client| client.client_era() == Era::Stateless)
    }

    /// Returns the run that follows this task of the backend.
    pub fn asker_by_task(&self, backend_task: &str) -> Option<Arc<dyn Asker>> {
        self.lock().backend_tasks.get(backend_task).and_then(Weak::upgrade)
    }

    /// Sends the notifications about this task of the backend to `asker` from now on.
    pub fn follow_task(&self, backend_task: &str, asker: Weak<dyn Asker>) {
        self.lock().backend_tasks.insert(backend_task.to_owned(), asker);
    }

    /// Ends [`Link::follow_task`], unless another run follows the task by now.
    pub fn unfollow_task(&self, backend_task: &str, asker: &Weak<dyn Asker>) {
        let mut users = self.lock();
        if users.backend_tasks.get(backend_task).is_some_and(|known| known.ptr_eq(asker)) {
            users.backend_tasks.remove(backend_task);
        }
    }

    /// Returns the time since the last use of the link, or zero while it is used.
    pub fn idle_for(&self, now: Instant) -> Duration {
        self.lock().idle_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

impl LinkUsers {
    fn note_if_unused(&mut self) -> bool {
        let unused = self.is_unused();
        if unused {
            self.idle_since = Some(Instant::now());
        }
        unused
    }

    fn is_unused(&self) -> bool {
        self.clients.iter().all(|client| client.strong_count() == 0) && self.runs.is_empty()
    }
}

/// The use of a link by a task.
#[derive(Debug)]
pub struct LinkHold {
    pub link: Arc<Link>,
    run: Weak<dyn Asker>,
}

impl Drop for LinkHold {
    fn drop(&mut self) {
        let mut users = self.link.lock();
        if let Some(at) = users.runs.iter().position(|run| run.ptr_eq(&self.run)) {
            users.runs.remove(at);
        }
        users.clients.retain(|client| client.strong_count() > 0);
        let unused = users.note_if_unused();
        drop(users);
        if unused && self.link.is_personal() {
            self.link.backend.close_link(&self.link);
        }
    }
}
