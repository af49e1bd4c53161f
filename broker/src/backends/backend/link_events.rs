//! Events of the links of a backend: a connection opens or ends, or the era changes. A link is
//! closed because it is idle or the backend is removed.

use std::{sync::Arc, time::Instant};

use rules::link_sharing::WireKind;

use super::Backend;
use crate::backends::link::{Link, connection::Connection, wire::WireSender};

impl Backend {
    pub fn link_opened(&self, link: &Arc<Link>, connection: &Connection) {
        if connection.count(true) {
            self.links.record_opened();
            self.context.metrics.links(self.transport(), "open", 1);
        }
        // Only connections that are sessions show how a backend treats sessions.
        if connection.stateless().is_none() {
            self.links.record_wire(match connection.wire() {
                WireSender::Pipe(_) => WireKind::Pipe,
                WireSender::Http(http) if http.is_one_stream() => WireKind::Pipe,
                WireSender::Http(http) if http.has_session() => WireKind::HttpWithSessions,
                WireSender::Http(_) => WireKind::HttpWithoutSessions,
            });
        }
        // It may have ended while it was being counted.
        if connection.is_closed() && self.uncount(connection) {
            self.reopen_for_listeners(link);
        }
    }

    /// Returns whether the connection was counted.
    fn uncount(&self, connection: &Connection) -> bool {
        let was_counted = connection.count(false);
        if was_counted {
            self.links.record_ended();
            self.context.metrics.links(self.transport(), "open", -1);
        }
        was_counted
    }

    /// Handles the end of a connection. If clients subscribe to resources through the link, it
    /// reopens at once. A connection that failed in its handshake was never open, and those who
    /// wait for the link try again.
    pub fn connection_ended(&self, link: &Arc<Link>, connection: &Connection) {
        let was_open = self.uncount(connection);
        // The connection that replaced it may have shown its lists already.
        if link.live().is_none_or(|current| std::ptr::eq(&*current, connection)) {
            link.forget_own_lists();
        }
        if was_open {
            self.reopen_for_listeners(link);
        }
    }

    fn reopen_for_listeners(&self, link: &Arc<Link>) {
        if !link.subscriptions.is_empty() {
            let link = link.clone();
            self.context.running.spawn(async move { link.open_for_listeners().await });
        }
    }

    /// Forgets the era of a backend that changed it. New links probe the backend again and use its
    /// answer.
    pub fn on_era_changed(self: &Arc<Self>, link: &Arc<Link>) {
        self.era.forget();
        self.links.forget_wire();
        self.refresh(); // so that the catalog's connection notices too
        if link.has_no_client() {
            return;
        }
        let clients = link.clients();
        self.close_link(link);
        clients.into_iter().for_each(|client| client.resubscribe(self.id.clone()));
    }

    /// Closes one link permanently.
    pub fn close_link(&self, link: &Arc<Link>) {
        link.shut();
        self.links.remove(&link.scope, link);
        let link = link.clone();
        self.context.running.spawn(async move { link.close().await });
    }

    /// Closes the links that have been idle for too long.
    pub fn close_idle_links(&self, now: Instant) {
        self.links
            .all()
            .iter()
            .filter(|link| link.shut_if_idle(now))
            .for_each(|link| self.close_link(link));
    }

    /// Closes the backend, which is removed or replaced.
    pub fn close(&self) {
        self.stop.cancel();
        self.pins.end();
        self.admission.series.close();
        self.links.all().iter().for_each(|link| self.close_link(link));
    }
}
