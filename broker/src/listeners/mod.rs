//! Listeners of the broker: the data plane over HTTP ([`http`]) and over duplex connections
//! ([`duplex`]), requests between replicas ([`replicas`]), and the admin plane ([`admin`]).

mod address_counts;
pub mod admin;
mod connection_limits;
pub mod duplex;
pub mod handoff_listener;
pub mod http;
mod http2_requests;
mod http2_stall;
pub mod replicas;
mod stateless;
pub mod tls_acceptor;
mod trusted_proxies;
