//! The protocol crate from outside: everything here uses public signatures only.

mod capabilities;
mod corpus;
mod envelope;
mod handshake;
mod json;
mod oracle;
mod readers;
mod splice;
mod sse;
mod tables;
mod text;
mod transcripts;
