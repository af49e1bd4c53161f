//! Sockets to sessions: the data plane over HTTP ([`http`]) and over connections that are sessions ([`duplex`]), what replicas
//! ask of each other ([`replicas`]) and the admin plane ([`admin`]).

pub mod admin;
mod connection_limits;
pub mod tls_acceptor;
pub mod duplex;
pub mod http;
pub mod replicas;
mod stateless;
pub mod handoff_listener;
mod trusted_proxies;
