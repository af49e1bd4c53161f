//! The broker as an OAuth 2.1 client towards backends: discovery, token requests, tokens.
//!
//! Links ask [`MachineTokens`] for the header of each request, and report what a backend answers to
//! it.
//!
//! Invariants:
//! - Each request to an authorization server passes the egress policy of backends, uses TLS unless
//!   the server is on this machine, and follows no redirect.
//! - A credential goes to one issuer only.
//! - No token of a caller is ever sent: tokens come from token endpoints only.
//! - No error and no log line shows a token or a credential.

mod challenge;
mod discovery;
mod fetch;
mod machine;
mod token_request;

pub use self::{
    challenge::Challenge,
    fetch::OauthError,
    machine::{MachineTokens, TokenHeader},
};
