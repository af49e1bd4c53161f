//! The links of one backend: made at first use, counted, and closed when they are idle or the backend goes.

use std::{sync::Arc, time::Instant};

use protocol::capabilities::ClientCapabilities;

use super::Backend;
use crate::{
    backends::link::{
        Era, Link, LinkUser,
        connection::{Connection, WireSender as ConnectionWire},
    },
    config::spec::TransportSpec,
    limits::LINK_IDLE_MAX,
    rules::link_sharing::{self, LinkScope, WireKind},
};

/// Everything a client can be asked, as the catalog's link declares it: some servers show a tool only to those who can
/// answer its questions.
const CATALOG_CAPABILITIES: &[u8] = br#"{"roots":{"listChanged":true},"sampling":{"tools":{},"context":{}},"elicitation":{"form":{},"url":{}},"tasks":{"list":{},"cancel":{},"requests":{"sampling":{"createMessage":{}},"elicitation":{"create":{}}}}}"#;

impl Backend {
    /// The link of a client that lives in this era, made at first use.
    pub fn link_for(self: &Arc<Self>, user: LinkUser<'_>, era: Era) -> Option<Arc<Link>> {
        if era == Era::Sessions {
            self.era.want_sessions();
        }
        self.link_in(user, era)
    }

    /// The link a task runs over whose session is not here.
    pub fn link_for_task(self: &Arc<Self>, user: LinkUser<'_>) -> Option<Arc<Link>> {
        self.link_in(user, Era::Sessions)
    }

    fn link_in(self: &Arc<Self>, user: LinkUser<'_>, era: Era) -> Option<Arc<Link>> {
        let LinkUser { own, principal, client } = user;
        let wire = match self.era.to(self.spec.protocol, era) {
            Some(Era::Stateless) => WireKind::Stateless,
            // Until the catalog has seen how the backend behaves, the cautious assumption holds.
            _ => self.status.lock().wire.unwrap_or(match self.spec.transport {
                TransportSpec::Http { .. } => WireKind::HttpWithSessions,
                TransportSpec::Tcp { .. }
                | TransportSpec::Websocket { .. }
                | TransportSpec::Quic { .. }
                | TransportSpec::Stdio { .. } => WireKind::Pipe,
            }),
        };
        let scope = link_sharing::scope(self.spec.links, wire, own, principal, client);
        let declared = link_sharing::declared(&scope, wire, client);
        let mut links = self.links.lock();
        if self.stop.is_cancelled() {
            return None; // whoever closed the backend has closed the links there were
        }
        let known = links
            .entry(scope.clone())
            .or_insert_with(|| Link::new(self.clone(), scope.clone(), declared.clone(), era));
        if known.is_closed() {
            *known = Link::new(self.clone(), scope, declared, era);
        }
        Some(known.clone())
    }

    /// One pipe carries everything, and nothing on it says on account of which request something is asked back.
    pub fn has_unattributed_requests(&self) -> bool {
        if self.era.to(self.spec.protocol, Era::Stateless) == Some(Era::Stateless) {
            return false; // it asks in its answers
        }
        let is_http = matches!(self.spec.transport, TransportSpec::Http { .. });
        self.status.lock().wire.map_or(!is_http, |wire| wire == WireKind::Pipe)
    }

    /// The link the catalog is fetched over.
    pub fn catalog_link(self: &Arc<Self>) -> Arc<Link> {
        let declared = ClientCapabilities::parse(CATALOG_CAPABILITIES)
            .unwrap_or_else(|_| ClientCapabilities::none());
        Link::new(self.clone(), LinkScope::Catalog, declared, Era::Sessions)
    }

    pub fn link_opened(&self, connection: &Connection) {
        let counts = connection.count(true);
        let mut status = self.status.lock();
        status.open_links += usize::from(counts);
        // Only connections that are sessions tell how a backend treats those.
        if connection.modern().is_none() {
            status.wire = Some(match connection.wire() {
                ConnectionWire::Pipe(_) => WireKind::Pipe,
                ConnectionWire::Http(http) if http.has_session() => WireKind::HttpWithSessions,
                ConnectionWire::Http(_) => WireKind::HttpWithoutSessions,
            });
        }
        drop(status);
        if counts {
            self.shared.metrics.links(self.transport(), "open", 1);
        }
        if connection.is_closed() {
            self.uncount(connection); // it ended while it was being counted
        }
    }

    fn uncount(&self, connection: &Connection) {
        if connection.count(false) {
            let mut status = self.status.lock();
            status.open_links = status.open_links.saturating_sub(1);
            drop(status);
            self.shared.metrics.links(self.transport(), "open", -1);
        }
    }

    /// A connection is gone. Clients that listen to resources through it get it back at once.
    pub fn connection_ended(&self, link: &Arc<Link>, connection: &Connection) {
        self.uncount(connection);
        if !link.subscriptions.is_empty() {
            let link = link.clone();
            self.shared.running.spawn(async move { link.open_for_listeners().await });
        }
    }

    /// It does not live in the era it lived in: it is asked again, by links that are made for what it then says.
    pub fn on_era_changed(self: &Arc<Self>, link: &Arc<Link>) {
        self.era.forget();
        self.status.lock().wire = None;
        self.refresh(); // so that the catalog's connection notices too
        if link.is_catalog() {
            return;
        }
        let clients = link.clients();
        self.close_link(link);
        clients.into_iter().for_each(|client| client.resubscribe(self.id.clone()));
    }

    /// Ends one link for good.
    pub fn close_link(&self, link: &Arc<Link>) {
        link.shut();
        let mut links = self.links.lock();
        if links.get(&link.scope).is_some_and(|known| Arc::ptr_eq(known, link)) {
            links.remove(&link.scope);
        }
        drop(links);
        let link = link.clone();
        self.shared.running.spawn(async move { link.close().await });
    }

    /// Closes links nobody has used for a while.
    pub fn close_idle_links(&self, now: Instant) {
        let idle: Vec<_> = self
            .links
            .lock()
            .values()
            .filter(|link| link.idle_for(now) > LINK_IDLE_MAX)
            .cloned()
            .collect();
        idle.iter().for_each(|link| self.close_link(link));
    }

    /// The backend is removed or replaced.
    pub fn close(&self) {
        self.stop.cancel();
        let links: Vec<_> = self.links.lock().values().cloned().collect();
        links.iter().for_each(|link| self.close_link(link));
    }

    pub fn links(&self) -> Vec<Arc<Link>> {
        self.links.lock().values().cloned().collect()
    }
}
