//! `mcp-broker`: one endpoint in front of many MCP servers, for many tenants.
//!
//! Read it in this order: [`listeners`] (sockets), [`sessions`] (what belongs to clients),
//! [`backends`] (what belongs to servers), [`rules`] (decisions). See ARCHITECTURE.md for the
//! glossary and the journey of a call.

pub mod admission;
pub mod auth;
pub mod backends;
mod boxed;
pub mod broker;
pub mod cli;
pub mod config;
pub mod context;
pub mod control;
pub mod demo;
pub mod limits;
pub mod listeners;
mod maps;
pub mod metrics;
#[cfg(test)]
mod pages;
pub mod persistence;
mod reusable_timer;
pub mod rules;
pub mod sandbox;
pub mod serve;
pub mod session_location;
pub mod sessions;
mod sync;
pub mod telemetry;
pub mod views;

/// `serverInfo` and `clientInfo` of the broker itself.
pub const BROKER_INFO: &str =
    concat!(r#"{"name":"mcp-broker","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);

/// Names the request that is being worked on, in an answer and in the log; where there is none, this one thing.
pub fn request_id() -> String {
    telemetry::request::current_name()
        .unwrap_or_else(telemetry::request::RequestName::random)
        .to_string()
}
