//! Sockets to sessions: the data plane over HTTP ([`http`]) and over connections that are sessions ([`duplex`]), what replicas
//! ask of each other ([`replicas`]) and the admin plane ([`admin`]).

pub mod admin;
mod admission;
pub mod door;
pub mod duplex;
pub mod http;
pub mod replicas;
mod stateless;
pub mod port;
mod proxies;
