//! Options of TCP sockets.
//!
//! They hold for every accepted socket and for every connection to a backend, HTTP included. The
//! kernel detects a dead peer within [`DEAD_AFTER`], even on an idle connection.

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// Time after which a peer that answers neither data nor keep-alive probes counts as dead.
pub const DEAD_AFTER: Duration = Duration::from_secs(30);
const PROBE_AFTER_IDLE: Duration = Duration::from_secs(15);
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;
/// Bytes that the kernel takes beyond those that it has sent. Without this limit it takes
/// megabytes. It would report space again only after a third of them was read. A peer that reads
/// slowly would then look as if it read nothing.
#[cfg(target_os = "linux")]
const UNSENT_BYTES_MAX: u32 = 128 * 1024;

/// Sets the socket options that every wire needs on an accepted or opened socket.
pub fn tune(socket: &TcpStream) {
    // The broker writes whole messages, so waiting for more data would only delay them.
    let _ = socket.set_nodelay(true);
    let keepalive = TcpKeepalive::new()
        .with_time(PROBE_AFTER_IDLE)
        .with_interval(PROBE_INTERVAL)
        .with_retries(PROBES);
    let socket = SockRef::from(socket);
    let _ = socket.set_tcp_keepalive(&keepalive);
    #[cfg(target_os = "linux")]
    {
        let _ = socket.set_tcp_user_timeout(Some(DEAD_AFTER));
        let _ = socket.set_tcp_notsent_lowat(UNSENT_BYTES_MAX);
    }
}
