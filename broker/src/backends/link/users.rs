//! The users of a link: clients that listen through it, and tasks that run over it.
//!
//! A link that only one of them can use ends with its last use.

use std::{
    collections::HashMap,
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use protocol::{capabilities::ClientCapabilities, ids::PrincipalId};

use super::{Era, Link};
use crate::{
    backends::{
        asker::Asker,
        link_client::{LinkClient, is_same},
    },
    rules::{link_sharing::LinkScope, log_level::LogLevel},
};

/// The user that asks a backend for a link.
#[derive(Debug)]
pub struct LinkUser<'a> {
    /// The scope of a link that nobody else uses.
    pub own: LinkScope,
    pub principal: &'a PrincipalId,
    /// The capabilities that the client declared.
    pub client: &'a ClientCapabilities,
}

#[derive(Debug, Default)]
pub(super) struct LinkUsers {
    clients: Vec<Weak<dyn LinkClient>>,
    /// Tasks that run over the link; they may outlive the session that made them.
    runs: Vec<Weak<dyn Asker>>,
    /// Tasks of the backend that one of the runs follows, by the backend's own id.
    backend_tasks: HashMap<String, Weak<dyn Asker>>,
    /// The log level the backend is to have.
    pub(super) level: Option<LogLevel>,
    /// The log level the connection there is has taken.
    pub(super) level_sent: Option<LogLevel>,
    /// Nobody has used the link since.
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

    /// A session is over. Its own link goes with it, unless a task of it still runs there; a shared one loses its
    /// subscriptions.
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

    /// A task runs over this link, which stays for as long as the returned value does.
    pub fn hold(self: &Arc<Self>, run: Weak<dyn Asker>) -> LinkHold {
        let mut users = self.lock();
        users.runs.push(run.clone());
        users.idle_since = None;
        drop(users);
        LinkHold { link: self.clone(), run }
    }

    /// Tasks that run over this link now.
    pub fn task_runs(&self) -> Vec<Arc<dyn Asker>> {
        self.lock().runs.iter().filter_map(Weak::upgrade).collect()
    }

    /// The session goes on elsewhere: as [`Link::detach`], but the session at the backend is left as it is.
    pub fn hand_off(self: &Arc<Self>, client: &Arc<impl LinkClient + 'static>) {
        if matches!(self.scope, LinkScope::Session(_)) {
            self.handed_off.store(true, Ordering::Relaxed);
        }
        self.detach(client);
    }

    /// Clients that use the link now.
    pub fn clients(&self) -> Vec<Arc<dyn LinkClient>> {
        self.lock().clients.iter().filter_map(Weak::upgrade).collect()
    }

    /// True when requests that know nothing of each other go over the link.
    pub fn has_stateless_clients(&self) -> bool {
        self.clients().iter().any(|client| client.client_era() == Era::Stateless)
    }

    /// Returns the run that follows this task of the backend.
    pub fn asker_by_task(&self, backend_task: &str) -> Option<Arc<dyn Asker>> {
        self.lock().backend_tasks.get(backend_task).and_then(Weak::upgrade)
    }

    /// From now on, `asker` receives what the backend says of this task.
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

    /// Nobody has used the link for this long.
    pub fn idle_for(&self, now: Instant) -> Duration {
        self.lock().idle_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

impl LinkUsers {
    fn note_if_unused(&mut self) -> bool {
        let unused = self.clients.is_empty() && self.runs.is_empty();
        if unused {
            self.idle_since = Some(Instant::now());
        }
        unused
    }
}

/// A task's use of a link.
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
