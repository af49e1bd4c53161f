//! Real MCP peers against the real binary: the official conformance suite in both roles, and the SDK clients of two
//! languages in front of `server-everything`, over HTTP and over stdio.
//!
//! The peers are pinned in `/peers` and installed by `scripts/install-peers.sh` (`make test` does it). A missing peer is a
//! failure with the command to run, never a skipped test. The scripts also run without a broker, which tells whether a
//! failure is ours: start the server, then `node peers/clients/typescript.mjs URL`.

mod clients;
mod conformance;
mod install;
mod process;
