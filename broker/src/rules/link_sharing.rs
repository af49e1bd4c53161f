//! Who shares a link to a backend, and what the broker declares to the backend on it.
//!
//! A spare connection costs less than one user's state seen by another, so a link is shared only where the protocol can
//! tell whose message is whose: never between principals (unless the operator says the backend keeps no user state), and
//! never by sessions that can be asked back over a wire that cannot name the call that asked.

use protocol::{
    capabilities::ClientCapabilities,
    ids::{PrincipalId, SessionId, TaskId},
};

use crate::config::spec::LinkSharing;

/// Who may use a link.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LinkScope {
    /// No session: the link the lists are fetched over.
    Catalog,
    /// Everybody of the tenant.
    Tenant,
    /// The sessions of one principal that declare the same capabilities.
    Principal(PrincipalId, u32),
    /// One session.
    Session(SessionId),
    /// One task whose session lives elsewhere.
    Task(TaskId),
}

/// What is known about a backend's wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireKind {
    /// Streamable HTTP that issues session ids.
    HttpWithSessions,
    /// Streamable HTTP that keeps no session.
    HttpWithoutSessions,
    /// 2026-07-28, over whatever wire: each request says for whom it is, and its answers and questions are its own.
    Stateless,
    /// One pipe for everything: answers are told apart, questions are not.
    Pipe,
}

/// In place of capabilities, which each request has of its own.
const STATELESS: u32 = u32::MAX;

/// The scope of the link a session, or a task without one, uses. `own`: the scope that is for it alone.
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
        (LinkSharing::Auto, WireKind::Pipe) => LinkScope::Principal(principal.clone(), 0),
    }
}

/// What the broker declares to the backend: what the clients behind the link really can, never more.
pub fn declared(
    scope: &LinkScope,
    wire: WireKind,
    client: &ClientCapabilities,
) -> ClientCapabilities {
    match (scope, wire) {
        (LinkScope::Session(_) | LinkScope::Task(_), _)
        | (LinkScope::Principal(..), WireKind::HttpWithoutSessions) => client.clone(),
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
    fn a_pipe_is_shared_until_a_client_can_be_asked_back() {
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
    fn cli_02_a_shared_pipe_declares_nothing() {
        let client = ClientCapabilities::parse(br#"{"sampling":{}}"#).unwrap();
        assert!(!declared(&LinkScope::Tenant, WireKind::Pipe, &client).can_answer());
        assert!(
            declared(&LinkScope::Session(SessionId::new("s")), WireKind::Pipe, &client)
                .can_answer()
        );
    }

    #[test]
    fn a_modern_backend_tells_requests_apart_whatever_their_clients_declare() {
        let shared = scope_of(LinkSharing::Auto, WireKind::Stateless, "{}");
        assert_eq!(shared, scope_of(LinkSharing::Auto, WireKind::Stateless, r#"{"sampling":{}}"#));
        assert_ne!(
            shared,
            scope_of(LinkSharing::Auto, WireKind::Pipe, "{}"),
            "not the link of clients of another era"
        );
    }

    #[test]
    fn the_operator_decides() {
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
