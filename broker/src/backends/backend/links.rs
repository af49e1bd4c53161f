//! The links that a backend makes: one for each scope, at first use.

use std::sync::Arc;

use config::spec::TransportSpec;
use protocol::capabilities::ClientCapabilities;
use rules::link_sharing::{self, LinkScope, WireKind};

use super::Backend;
use crate::backends::link::{Era, Link, LinkParams, LinkUser};

/// Every capability of a client, for the catalog's link. Some servers offer a tool only to clients
/// that can answer its questions, or that show apps.
pub(in crate::backends) const CATALOG_CAPABILITIES: &[u8] = br#"{"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}},"roots":{"listChanged":true},"sampling":{"tools":{},"context":{}},"elicitation":{"form":{},"url":{}},"tasks":{"list":{},"cancel":{},"requests":{"sampling":{"createMessage":{}},"elicitation":{"create":{}}}}}"#;

impl Backend {
    /// Returns the link of a client of this era. Creates it at first use.
    pub fn link_for(self: &Arc<Self>, user: LinkUser<'_>, era: Era) -> Option<Arc<Link>> {
        if era == Era::Sessions {
            self.era.want_sessions();
        }
        self.link_in(user, era)
    }

    /// Returns the link for a task whose session is not in this process.
    pub fn link_for_task(self: &Arc<Self>, user: LinkUser<'_>) -> Option<Arc<Link>> {
        self.link_in(user, Era::Sessions)
    }

    fn link_in(self: &Arc<Self>, user: LinkUser<'_>, era: Era) -> Option<Arc<Link>> {
        let LinkUser { own, principal, client } = user;
        let wire = match self.era.to(self.spec.protocol, era) {
            Some(Era::Stateless) => WireKind::Stateless,
            // Until a connection has shown how the backend behaves, the cautious assumption holds.
            _ => self.links.wire().unwrap_or(match self.spec.transport {
                TransportSpec::Http { .. } => WireKind::HttpWithSessions,
                TransportSpec::Tcp { .. }
                | TransportSpec::Sse { .. }
                | TransportSpec::Websocket { .. }
                | TransportSpec::Quic { .. }
                | TransportSpec::Stdio { .. } => WireKind::Pipe,
            }),
        };
        let scope = link_sharing::scope(self.spec.links, wire, own, principal, client);
        let mut declared = link_sharing::declared(&scope, wire, client);
        if self.roots.are_configured() && wire != WireKind::Stateless {
            declared = declared.with_roots(); // the broker answers for every client
        }
        let params = LinkParams {
            scope: scope.clone(),
            principal: (scope != LinkScope::Tenant).then(|| principal.clone()),
            declared,
            client_era: era,
        };
        let make = || Link::new(self.clone(), params.clone());
        self.links.get_or_make(scope, &self.stop, |link| !link.is_closed(), make)
    }

    /// Returns whether the backend's requests arrive on one pipe without a reference to the request
    /// that they belong to.
    pub fn has_unattributed_requests(&self) -> bool {
        if self.era.to(self.spec.protocol, Era::Stateless) == Some(Era::Stateless) {
            return false; // it requests input in its answers
        }
        let is_http = matches!(self.spec.transport, TransportSpec::Http { .. });
        self.links.wire().map_or(!is_http, |wire| wire == WireKind::Pipe)
    }

    /// Returns a new link for fetching the catalog.
    pub fn catalog_link(self: &Arc<Self>) -> Arc<Link> {
        let declared = ClientCapabilities::parse(CATALOG_CAPABILITIES)
            .unwrap_or_else(|_| ClientCapabilities::none());
        let params = LinkParams {
            scope: LinkScope::Catalog,
            principal: None,
            declared,
            client_era: Era::Sessions,
        };
        let link = Link::new(self.clone(), params);
        self.links.set_reader(&link);
        link
    }
}
