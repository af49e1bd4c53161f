//! What passes between replicas: requests whose session is on another replica ([`session_lookup`], [`forward`], [`tunnel`]), and
//! the listener that serves them there ([`server`]).

pub(in crate::listeners) mod forward;
pub(in crate::listeners) mod proxied_request;
pub(in crate::listeners) mod replica_headers;
mod server;
pub(in crate::listeners) mod session_lookup;
pub(in crate::listeners) mod tunnel;
mod tunnel_server;

pub use self::server::serve;
