//! Sharing of links to a backend, and the capabilities that the broker declares on them.
//!
//! A spare connection costs less than a leak between users. So a link is shared only if the
//! protocol can tell whose message is whose:
//!
//! - Principals never share a link, unless the operator declares that the backend keeps no user
//!   state.
//! - Sessions that can get requests from a backend never share a wire that cannot name the call
//!   behind such a request.

use protocol::{
    capabilities::ClientCapabilities,
    ids::{PrincipalId, SessionId, TaskId},
};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Sharing of links to a backend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LinkSharing {
    /// Shared where that is safe, otherwise one link per session.
    #[default]
    Auto,
    /// One link for the whole tenant, for servers without per-user state.
    Shared,
    /// Never shared.
    PerSession,
}

/// The users of a link.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LinkScope {
    /// No session: the link that fetches the lists.
    Catalog,
    /// No session: a link that reads the lists once, with fewer capabilities.
    Probe,
    /// All users of the tenant.
    Tenant,
    /// The sessions of one principal that declare the same capabilities.
    Principal(PrincipalId, u32),
    /// One session.
    Session(SessionId),
    /// One task whose session is in another process.
    Task(TaskId),
}

/// The kind of a backend's wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireKind {
    /// Streamable HTTP with session ids.
    HttpWithSessions,
    /// Streamable HTTP without sessions.
    HttpWithoutSessions,
    /// 2026-07-28, over any wire: each request names its client, and its answers and questions name
    /// the request.
    Stateless,
    /// One pipe for all messages. It tells answers apart, but not the backend's requests.
    Pipe,
}

/// Replaces the fingerprint of the capabilities, which each stateless request has of its own.
const STATELESS: u32 = u32::MAX;

/// Returns the scope of the link for a session, or for a task without one. `own` is the scope of a
/// link for this user only.
pub fn scope(
    sharing: LinkSharing,
    wire: WireKind,
    own: LinkScope,
    principal: &PrincipalId,
    client: &ClientCapabilities,
) -> LinkScope {
    match (sharing, wire) {
        (LinkSharing::PerSession, _) | (LinkSharing::Auto, WireKind::HttpWithSessions) => own,
        (LinkSharing::Shared, _) => LinkScope::Tenant,
        (LinkSharing::Auto, WireKind::Stateless) => {
            LinkScope::Principal(principal.clone(), STATELESS)
        }
        (LinkSharing::Auto, WireKind::HttpWithoutSessions) => {
            LinkScope::Principal(principal.clone(), client.fingerprint())
        }
        (LinkSharing::Auto, WireKind::Pipe) if client.can_answer() => own,
        (LinkSharing::Auto, WireKind::Pipe) => {
            LinkScope::Principal(principal.clone(), client.extensions_fingerprint())
        }
    }
}

/// Returns the capabilities to declare to the backend, which never exceed those of the clients
/// behind the link.
pub fn declared(
    scope: &LinkScope,
    wire: WireKind,
    client: &ClientCapabilities,
) -> ClientCapabilities {
    match (scope, wire) {
        (LinkScope::Session(_) | LinkScope::Task(_), _)
        | (LinkScope::Principal(..), WireKind::HttpWithoutSessions) => client.clone(),
        (LinkScope::Principal(..), WireKind::Pipe) => client.extensions_only(),
        _ => ClientCapabilities::none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope_of(sharing: LinkSharing, wire: WireKind, capabilities: &str) -> LinkScope {
        let client = ClientCapabilities::parse(capabilities.as_bytes()).unwrap();
        scope(
            sharing,
            wire,
            LinkScope::Session(SessionId::new("s")),
            &PrincipalId::new("p"),
            &client,
        )
    }

    #[test]
    fn sessions_of_an_http_backend_stay_apart() {
        assert!(matches!(
            scope_of(LinkSharing::Auto, WireKind::HttpWithSessions, "{}"),
            LinkScope::Session(_)
        ));
    }

    #[test]
    fn a_pipe_is_shared_unless_a_client_can_answer_questions() {
        assert_eq!(
            scope_of(LinkSharing::Auto, WireKind::Pipe, "{}"),
            LinkScope::Principal(PrincipalId::new("p"), 0)
        );
        assert!(matches!(
            scope_of(LinkSharing::Auto, WireKind::Pipe, r#"{"sampling":{}}"#),
            LinkScope::Session(_)
        ));
    }

    #[test]
    fn a_pipe_declares_the_extensions_that_all_of_its_clients_declare() {
        let ui = r#"{"extensions":{"io.modelcontextprotocol/ui":{}}}"#;
        let shared = scope_of(LinkSharing::Auto, WireKind::Pipe, ui);
        assert!(matches!(shared, LinkScope::Principal(_, extensions) if extensions != 0));
        assert_eq!(shared, scope_of(LinkSharing::Auto, WireKind::Pipe, &ui.replace(':', " : ")));
        let client = ClientCapabilities::parse(ui.as_bytes()).unwrap();
        assert_eq!(declared(&shared, WireKind::Pipe, &client).raw(), ui.as_bytes());
        assert_eq!(declared(&LinkScope::Tenant, WireKind::Pipe, &client).raw(), b"{}");
    }

    #[test]
    fn cli_02_a_shared_pipe_declares_nothing() {
        let client = ClientCapabilities::parse(br#"{"sampling":{}}"#).unwrap();
        assert!(!declared(&LinkScope::Tenant, WireKind::Pipe, &client).can_answer());
        assert!(
            declared(&LinkScope::Session(SessionId::new("s")), WireKind::Pipe, &client)
                .can_answer()
        );
    }

    #[test]
    fn a_stateless_link_is_shared_by_clients_of_any_capabilities() {
        let shared = scope_of(LinkSharing::Auto, WireKind::Stateless, "{}");
        assert_eq!(shared, scope_of(LinkSharing::Auto, WireKind::Stateless, r#"{"sampling":{}}"#));
        assert_ne!(
            shared,
            scope_of(LinkSharing::Auto, WireKind::Pipe, "{}"),
            "not the link of clients of another era"
        );
    }

    #[test]
    fn principals_share_no_link_unless_the_operator_declares_it() {
        use WireKind::{HttpWithSessions, HttpWithoutSessions, Pipe, Stateless};
        let client = ClientCapabilities::parse(b"{}").unwrap();
        let of = |sharing, wire, name: &str| {
            let own = LinkScope::Session(SessionId::new(name));
            scope(sharing, wire, own, &PrincipalId::new(name), &client)
        };
        for wire in [HttpWithSessions, HttpWithoutSessions, Stateless, Pipe] {
            for sharing in [LinkSharing::Auto, LinkSharing::PerSession] {
                assert_ne!(of(sharing, wire, "ann"), of(sharing, wire, "bob"), "{wire:?}");
            }
            let shared = |name| of(LinkSharing::Shared, wire, name);
            assert_eq!(shared("ann"), shared("bob"), "{wire:?}");
        }
    }

    #[test]
    fn sessions_of_a_principal_share_sessionless_http_by_capabilities() {
        let wire = WireKind::HttpWithoutSessions;
        let (plain, with_sampling) =
            (scope_of(LinkSharing::Auto, wire, "{}"), r#"{"sampling":{}}"#);
        assert_eq!(plain, scope_of(LinkSharing::Auto, wire, "{}"));
        assert_ne!(plain, scope_of(LinkSharing::Auto, wire, with_sampling));
        let client = ClientCapabilities::parse(with_sampling.as_bytes()).unwrap();
        assert!(declared(&plain, wire, &client).can_answer());
        for scope in [LinkScope::Catalog, LinkScope::Probe, LinkScope::Tenant] {
            assert!(!declared(&scope, wire, &client).can_answer(), "{scope:?}");
        }
        assert!(!declared(&plain, WireKind::Stateless, &client).can_answer());
        let task = LinkScope::Task(TaskId::new("t"));
        assert!(declared(&task, WireKind::Pipe, &client).can_answer());
    }

    #[test]
    fn the_setting_of_the_operator_selects_the_sharing() {
        assert_eq!(
            scope_of(LinkSharing::Shared, WireKind::HttpWithSessions, r#"{"roots":{}}"#),
            LinkScope::Tenant
        );
        assert!(matches!(
            scope_of(LinkSharing::PerSession, WireKind::HttpWithoutSessions, "{}"),
            LinkScope::Session(_)
        ));
    }
}
