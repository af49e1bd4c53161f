//! Sockets to sessions: the data plane ([`http`]), what replicas ask of each other ([`internal`]) and the admin plane
//! ([`admin`]).

pub mod admin;
pub mod http;
pub mod internal;
