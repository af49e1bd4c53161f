//! Limits of bytes that many clients share.

use std::time::Duration;

/// Bytes that wait for all clients, unless the configuration or the available memory sets
/// another limit.
pub const OUTBOX_BYTES_TOTAL_DEFAULT: usize = 1024 * 1024 * 1024;
/// Unit in which the bytes for one client count against the bytes for all clients.
pub const OUTBOX_STEP_BYTES: usize = 256 * 1024;
/// Bytes of delivered events of all clients, or an eighth of the memory if that is less.
pub const RETAINED_EVENTS_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Unread bytes that a replica holds of answers and tunnels of other replicas, or an eighth of the
/// memory if that is less.
pub const RELAYED_UNREAD_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Interval at which a replica with many such streams adds up their unread bytes.
pub const RELAYED_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes of incomplete or waiting messages of one tenant, or a sixteenth of the memory if that is less.
pub const UNFINISHED_TENANT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Unread bytes of one request body over HTTP/2.
pub const HTTP2_STREAM_WINDOW_BYTES: usize = 128 * 1024;
/// Request bodies of one HTTP/2 connection that wait for memory of their tenants, or for their
/// HTTP+SSE stream.
pub const HTTP2_WAITING_BODIES_MAX: usize = 8;
