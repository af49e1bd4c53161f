//! Tests of the protocol crate from outside: they use public signatures only.

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
