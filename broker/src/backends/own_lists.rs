//! Reads of the lists that a backend shows to the clients of one link alone.

use std::sync::Arc;

use rules::{
    catalog::ListKind,
    limits::{REFRESH_DEBOUNCE, REFRESH_INTERVAL_MIN},
};

use super::{
    link::{Era, Link, connection::Connection},
    list_fetch::{FetchedList, fetch_list, offered},
};

impl Link {
    /// Reads lists that the backend announced as changed on this link. If they differ from the
    /// shared ones, the clients of the link get them.
    pub fn read_own_lists(self: &Arc<Self>, kinds: &[ListKind]) {
        let has_sessions = || self.clients().iter().any(|one| one.client_era() == Era::Sessions);
        if self.backend.principal_lists.is_on() {
            return self.principal_lists_changed();
        }
        if self.has_no_client() || !has_sessions() || !self.lists.want(kinds) {
            return;
        }
        let link = self.clone();
        self.backend.context.running.spawn(async move {
            loop {
                let kinds = link.lists.take_wanted();
                if kinds.is_empty() {
                    return;
                }
                link.wait_or_closed(REFRESH_DEBOUNCE).await;
                let permit = link.backend.own_list_reads.acquire().await;
                if let Some(connection) = link.live() {
                    read_own(&link, &connection, &kinds).await;
                }
                drop(permit);
                link.wait_or_closed(REFRESH_INTERVAL_MIN).await;
            }
        });
    }

    /// Marks what pins hold by now in the own lists of the link. The backend is not asked: it may
    /// not answer.
    pub fn remark_own_lists(&self) {
        if self.backend.pins.publish_own_again(&self.lists) {
            self.announce_own_lists();
        }
    }

    /// Notifies the clients of the link that their own lists have changed.
    pub(super) fn announce_own_lists(&self) {
        self.clients().iter().for_each(|client| client.on_own_lists_changed());
    }

    /// Makes the lists of the link's principal due, because the backend announced a change to it.
    fn principal_lists_changed(&self) {
        let Some(principal) = &self.principal else { return };
        self.backend.principal_lists.expire_of(principal);
        if let Some(client) = self.clients().first() {
            client.on_principal_lists_due();
        }
    }

    /// Reads every list over this link, which may open. Used for a session whose backend may show
    /// it lists of its own.
    pub async fn read_all_lists(self: &Arc<Self>) {
        if self.connection().await.is_err() {
            return;
        }
        let _permit = self.backend.own_list_reads.acquire().await;
        if let Some(connection) = self.live() {
            read_own(self, &connection, &ListKind::ALL).await;
        }
    }
}

async fn read_own(link: &Arc<Link>, connection: &Arc<Connection>, kinds: &[ListKind]) {
    let Some(agreed) = connection.negotiated().filter(|_| connection.stateless().is_none()) else {
        return;
    };
    let mut has_changed = false;
    for kind in kinds.iter().copied().filter(|kind| offered(*kind, &agreed.capabilities)) {
        let read = fetch_list(link, connection, kind).await;
        let Ok(FetchedList { entries, definitions, .. }) = read else { continue };
        let (pins, budget) = (&link.backend.pins, &link.backend.own_list_budget);
        pins.admit_own(kind, definitions).await;
        let Some(shared) = link.backend.lists.load_full() else { continue };
        let stored = pins.publish_own(&link.lists, (kind, entries), &shared, budget);
        has_changed |= stored.unwrap_or_else(|| {
            tracing::warn!(tenant = %link.backend.tenant, backend = %link.backend.id, list = kind.member(), "the memory for session lists is full: the session gets the shared list");
            true
        });
    }
    if connection.is_closed() {
        has_changed |= link.lists.clear();
    }
    if has_changed {
        link.announce_own_lists();
    }
}
