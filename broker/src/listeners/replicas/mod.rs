//! Requests between replicas: forwarding of requests whose session is elsewhere
//! ([`session_lookup`], [`forward`], [`tunnel`]), the drain of another replica ([`drain_request`]), and
//! the listener that serves them ([`server`]).

pub(in crate::listeners) mod connection_notice;
pub(in crate::listeners) mod drain_request;
pub(in crate::listeners) mod forward;
pub(in crate::listeners) mod proxied_request;
mod relayed_source;
pub(in crate::listeners) mod replica_headers;
mod server;
pub(in crate::listeners) mod session_lookup;
pub(in crate::listeners) mod suspended_request;
pub(in crate::listeners) mod tunnel;
mod tunnel_server;

pub use self::server::serve;
