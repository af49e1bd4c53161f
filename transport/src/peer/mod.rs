//! Requests between replicas of one broker: HTTP/2 over TLS with certificates on both sides.
//!
//! Used by the broker when a session is on another replica. A process without the shared secret can
//! neither serve nor call: each side accepts only certificates of the authority derived from that
//! secret. A dead peer is detected within [`PING_INTERVAL`] plus [`PING_TIMEOUT`].

mod body;
mod client;
mod coalesced_writes;
mod identity;
mod server;

use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::{sleep, timeout};

pub use self::{
    body::PeerBody,
    client::PeerClient,
    identity::{PeerIdentity, PeerIdentityError},
    server::PeerServer,
};

/// Name of every replica in its certificate. The address identifies the replica, and the authority
/// proves that it is one.
const PEER_NAME: &str = "replica.mcp-broker.internal";
const ALPN_H2: &[u8] = b"h2";

/// Interval between pings on each connection, with or without open streams.
pub const PING_INTERVAL: Duration = Duration::from_secs(2);
/// Time the peer has to answer a ping.
pub const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for name resolution, connect and TLS handshake together, towards a peer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit for the TLS handshake of an incoming connection.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);

/// Requests in flight on one connection. A peer forwards the requests of all its clients, streams
/// included.
const STREAMS_MAX: u32 = 100_000;
/// Unread bytes of one stream. This bounds the cost of one slow client of a peer.
pub const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
/// Memory that the unread bytes of one stream can use until [`PeerBody::merge_unread`]: each of them
/// may have come in a piece of its own, which uses some 256 bytes.
pub const STREAM_MEMORY_BYTES_MAX: usize = STREAM_WINDOW_BYTES as usize * 256;
/// Unread bytes of all streams of a connection: the most that HTTP/2 allows. The broker cuts slow
/// readers long before they fill it, because they would stop all other streams.
const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;
/// Limit of the HTTP/2 library for unread small pieces of all streams. Beyond it, the library ends the
/// connection with all its streams, so there is none: the broker merges the pieces instead.
const DATA_FRAME_BUDGET: usize = usize::MAX;
/// Bytes of one read from a connection, below TLS. The TLS library itself reads 4 KiB at a time.
const READ_BYTES: usize = 16 * 1024;
/// Largest head of a request or response. It exceeds the broker's limit for clients, because HTTP/2
/// counts 32 extra bytes for each header.
const HEAD_BYTES_MAX: u32 = 128 * 1024;
/// Streams given up by clients for which late frames are still expected.
const GIVEN_UP_STREAMS_MAX: usize = 16 * 1024;
/// Connections to one peer. One task on each side serves each connection.
const CONNECTIONS_PER_PEER: usize = 2;
/// Number of addresses above which the client removes those without a connection in use.
const PEERS_KEPT_MAX: usize = 64;
/// Connections of peers at the same time.
const PEER_CONNECTIONS_MAX: usize = 1_024;
/// Connections whose handshake is not complete.
const HANDSHAKES_MAX: usize = 256;

const _: () = assert!(CONNECTION_WINDOW_BYTES / STREAM_WINDOW_BYTES > 32_000); // slow readers leave space for others
// The library counts at most 256 for each piece, so a window of single bytes ends no connection.
const _: () = assert!(DATA_FRAME_BUDGET / 256 > CONNECTION_WINDOW_BYTES as usize);
const _: () = assert!(PING_INTERVAL.as_secs() + PING_TIMEOUT.as_secs() <= 4); // about two leases: who is silent longer lost its sessions

/// Pings the peer. Resolves when an answer does not come in time.
async fn until_unanswered(pings: Option<PingPong>) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        sleep(PING_INTERVAL).await;
        match timeout(PING_TIMEOUT, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            // The connection ends by itself.
            Ok(Err(_)) => return std::future::pending().await,
            Err(_) => return,
        }
    }
}
