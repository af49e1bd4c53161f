//! Requests between replicas of one broker: HTTP/2 over TLS that both sides prove themselves in.
//!
//! Used by the broker where a session is on another replica. Whoever does not know the secret the replicas share can
//! neither serve nor call: certificates are accepted from an authority that is made of that secret, and from no other. A
//! peer that vanished is found out within [`PING_INTERVAL`] and [`PING_TIMEOUT`] together.

mod client;
mod identity;
mod server;

use std::time::Duration;

pub use self::{
    client::PeerClient,
    identity::{PeerIdentity, PeerIdentityError},
    server::PeerServer,
};

/// Every replica is called this in certificates; who it is follows from the address, that it is one from the authority.
const PEER_NAME: &str = "replica.mcp-broker.internal";
const ALPN_H2: &[u8] = b"h2";

/// How often each connection is asked whether its peer is alive, streams open or not.
pub const PING_INTERVAL: Duration = Duration::from_secs(2);
/// How long the peer may take to answer that.
pub const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// Resolving, connecting and the TLS handshake together, towards a peer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The same, for whoever connects to us.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);

/// Requests in flight on one connection: a peer forwards for all of its clients, streams included.
const STREAMS_MAX: u32 = 100_000;
/// What may be on its way to one stream whose reader waits; a slow client of a peer costs this much and no more.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
/// What may be on its way to all streams of a connection: two thousand slow readers do not hold up the others.
const CONNECTION_WINDOW_BYTES: u32 = 128 * 1024 * 1024;
/// Head of a request or response; more than the broker takes from its clients, as every header counts 32 bytes extra here.
const HEAD_BYTES_MAX: u32 = 128 * 1024;
/// Streams a client gave up whose late frames are expected for a while.
const GIVEN_UP_STREAMS_MAX: usize = 16 * 1024;
/// Connections to one peer: each is served by one task on either side.
const CONNECTIONS_PER_PEER: usize = 2;
/// Addresses whose connections are remembered; replicas that are gone are forgotten beyond that.
const PEERS_KEPT_MAX: usize = 64;
/// Connections of peers at once.
const PEER_CONNECTIONS_MAX: usize = 1_024;
/// Connections that have not proved themselves yet.
const HANDSHAKES_MAX: usize = 256;

const _: () = assert!(STREAM_WINDOW_BYTES as u64 * 1_000 < CONNECTION_WINDOW_BYTES as u64); // slow readers leave room for others
const _: () = assert!(PING_INTERVAL.as_secs() + PING_TIMEOUT.as_secs() <= 4); // about two leases: who is silent longer lost its sessions
