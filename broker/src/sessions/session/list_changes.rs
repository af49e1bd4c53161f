//! Notifications of changed lists, as the session has advertised them to its client.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering},
};

use futures_util::future::join_all;
use protocol::{
    capabilities::ServerCapabilities, handshake, ids::BackendId, method::Method,
    phase::SessionPhase,
};
use rules::{
    catalog::{Catalog, ListDigests, ListKind},
    event_log::{EventKind, Topic},
    limits::FIRST_CATALOG_WAIT,
};

use super::{Session, state::ListAnnouncements};
use crate::backends::link::Link;

impl Session {
    /// Sends the advertised notifications for lists that changed, once per method.
    pub fn on_lists_changed(&self, kinds: &[ListKind]) {
        announce_lists(self, |_, _| kinds.to_vec());
    }

    /// Notifies the client of the lists that differ from the last announced ones, because backends
    /// show other lists to this session alone now. Stateless requests see the shared lists (MCP
    /// 2026-07-28, Tools: lists do not vary by connection).
    pub(in crate::sessions) fn on_own_lists_changed(&self) {
        if !self.kind.has_client() {
            return;
        }
        self.has_own_lists.store(true, Ordering::Release);
        // Until nothing differs, because another thread may have announced older lists meanwhile.
        while announce_lists(self, ListAnnouncements::differing) {}
    }

    /// Reads own lists again after the shared lists of these backends were replaced. Returns `false`
    /// if the session never had own lists.
    pub(in crate::sessions) fn on_catalog_published(&self, replaced: &HashSet<BackendId>) -> bool {
        if !self.has_own_lists.load(Ordering::Acquire) {
            return false;
        }
        let links: Vec<Arc<Link>> = self.lock().links.all().cloned().collect();
        for link in links.iter().filter(|link| replaced.contains(&link.backend.id)) {
            if let Some(own) = link.lists.own() {
                link.read_own_lists(&own.difference.kinds().collect::<Vec<_>>());
            }
        }
        self.on_own_lists_changed();
        true
    }

    /// Returns whether the client's lists still have to be compared. The backends may only just be
    /// reached.
    pub fn has_unchecked_lists(&self) -> bool {
        self.lock().lists.is_unchecked()
    }
}

/// Returns the catalog that the client's lists show.
fn listed_catalog(session: &Session) -> Arc<Catalog> {
    session.visible_catalog().offered_to(session.question_kinds)
}

/// Announces the lists that `select` returns for the announced lists and those of now. Returns
/// whether there are some.
fn announce_lists(
    session: &Session,
    select: impl FnOnce(&ListAnnouncements, ListDigests) -> Vec<ListKind>,
) -> bool {
    // Computed without the lock, which the catalog takes.
    let now = listed_catalog(session).digests(&session.endpoint);
    let (methods, ready) = {
        let mut state = session.lock();
        if state.lists.is_unchecked() || session.is_leaving() {
            return false; // compared with the announced lists, here or by the next owner
        }
        let kinds = select(&state.lists, now);
        if kinds.is_empty() {
            return false;
        }
        let methods = notifications_of(&session.agreement.advertised, &kinds);
        let ready = state.phase == SessionPhase::Ready;
        state.lists.announce(&kinds, now);
        state.dirty.lists = true;
        if !ready {
            state.lists.hold(&methods);
        }
        (methods, ready)
    };
    if ready {
        methods.into_iter().for_each(|method| send_list_changed(session, method));
    }
    true
}

/// Reads the lists that backends show to an adopted session alone, if its client has other lists
/// than the shared ones. A session at an HTTP backend outlives its owner, and so do its own lists.
pub async fn restore_own_lists(session: &Arc<Session>) {
    let now = listed_catalog(session).digests(&session.endpoint);
    let backends: Vec<BackendId> = {
        let state = session.lock();
        if state.lists.differing(now).is_empty() {
            return;
        }
        state.links.backend_sessions().keys().cloned().collect()
    };
    let reading = backends.iter().filter_map(|backend| {
        let link = session.link_to(backend).ok()?;
        // Many sessions may come at once and wait for each other. What is late is announced.
        Some(session.shared.running.spawn(async move { link.read_all_lists().await }))
    });
    let _in_time = tokio::time::timeout(FIRST_CATALOG_WAIT, join_all(reading)).await;
}

/// Sends a notification for each list that differs from the client's last state. Called once
/// the backends have had time to answer.
pub fn compare_lists(session: &Session) {
    let methods = loop {
        let seen = || {
            let shared = session.tenant.catalog();
            let numbers = shared.numbers_of(&session.caller.principal);
            (shared, numbers, session.subject())
        };
        let (shared, numbers, subject) = seen();
        // Computed without the lock, it may take a while.
        let now = listed_catalog(session).digests(&session.endpoint);
        let mut state = session.lock();
        let now_seen = seen();
        if !(Arc::ptr_eq(&shared, &now_seen.0)
            && numbers == now_seen.1
            && Arc::ptr_eq(&subject, &now_seen.2))
        {
            continue;
        }
        let Some(changed) = state.lists.compare(now) else { return };
        state.dirty.lists |= !changed.is_empty();
        break notifications_of(&session.agreement.advertised, &changed);
    };
    methods.into_iter().for_each(|method| send_list_changed(session, method));
    if session.has_own_lists.load(Ordering::Acquire) {
        session.on_own_lists_changed(); // those that changed during the comparison
    }
}

pub(super) fn send_list_changed(session: &Session, method: Method) {
    session.deliver_coalesced(
        EventKind::Message,
        Some(Topic::List(method)),
        handshake::notification(method, None),
    );
}

/// Returns the notifications that the client was promised for changes of these lists.
fn notifications_of(advertised: &ServerCapabilities, kinds: &[ListKind]) -> HashSet<Method> {
    kinds.iter().filter_map(|kind| change_notification(advertised, *kind)).collect()
}

/// Returns the notification that the client was promised for changes of this list, if any.
fn change_notification(advertised: &ServerCapabilities, kind: ListKind) -> Option<Method> {
    let (promised, method) = match kind {
        ListKind::Tools => (advertised.tools_list_changed, Method::ToolsListChanged),
        ListKind::Prompts => (advertised.prompts_list_changed, Method::PromptsListChanged),
        ListKind::Resources | ListKind::ResourceTemplates => {
            (advertised.resources_list_changed, Method::ResourcesListChanged)
        }
    };
    promised.then_some(method)
}
