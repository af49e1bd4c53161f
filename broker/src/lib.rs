//! `mcp-broker`: one endpoint in front of many MCP servers, for many tenants.
//!
//! Read it in this order: [`listeners`] (sockets), [`sessions`] (state of clients), [`backends`]
//! (connections to servers), the crate `rules` (decisions). ARCHITECTURE.md describes the path of a
//! call, and docs/internals/glossary.md defines the terms.

pub mod admission;
pub mod auth;
pub mod backends;
mod boxed;
pub mod broker;
pub mod cli;
pub mod context;
pub mod control;
pub mod demo;
pub mod listeners;
mod long_work;
mod maps;
pub mod metrics;
pub mod oauth;
#[cfg(test)]
mod pages;
pub mod persistence;
mod reusable_timer;
pub mod sandbox;
pub mod serve;
pub mod session_location;
pub mod sessions;
mod sync;
pub mod telemetry;
mod ticks;
pub mod views;

/// Returns the name of the current request for answers and the log. Outside a request, returns a
/// random name.
pub fn request_id() -> String {
    telemetry::request::current_name()
        .unwrap_or_else(telemetry::request::RequestName::random)
        .to_string()
}
