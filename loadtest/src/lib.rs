//! A load tester for MCP servers and the proxies in front of them. It keeps up a load over any
//! wire, checks every answer meanwhile, and reports latencies.
//!
//! Read the modules in this order:
//! - [`profile`]: the requested load.
//! - [`run`]: the callers and their timing.
//! - [`operation`]: the checks of answers.
//! - [`wire`]: the connections.
//! - [`recorder`] and [`report`]: the results.
//!
//! [`backend`] is a server that is fast enough not to limit the measurement.

pub mod answer;
pub mod backend;
pub mod compare;
pub mod era;
pub mod findings;
pub mod histogram;
pub mod mix;
pub mod operation;
pub mod process;
pub mod profile;
pub mod progress;
pub mod recorder;
pub mod report;
pub mod run;
pub mod schedule;
pub mod target;
pub mod tool_call;
pub mod wire;
