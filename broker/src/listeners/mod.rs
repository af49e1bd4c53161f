//! Sockets to sessions: the data plane ([`http`]) and the admin plane ([`admin`]).

pub mod admin;
pub mod http;
