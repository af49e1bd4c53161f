//! A load tester for MCP servers and what is before them: keeps a load up over any wire, checks every answer while it does,
//! and says how long the answers took.
//!
//! Read it in this order: [`profile`] (what is asked for), [`run`] (who asks, and when), [`operation`] (what an answer must
//! be), [`wire`] (how it gets there), [`recorder`] and [`report`] (what is known afterwards). [`backend`] is a server that is
//! fast enough not to be what is measured.

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
pub mod wire;
