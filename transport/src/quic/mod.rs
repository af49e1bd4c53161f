//! MCP over QUIC (RFC 9000): this project's binding, in both roles. docs/transports.md specifies
//! it.
//!
//! ALPN `mcp`, messages as lines. The first stream that a client opens is the *control stream*. It
//! lives as long as the session and may carry any message. Every further stream of a client carries
//! one request. The server writes the messages of that request on it, the answer last, and finishes
//! it. A client cancels the request when it resets the stream or stops the server from sending on
//! it. So a lost packet delays one exchange and not the others.
//!
//! Unidirectional streams and datagrams are refused, 0-RTT is not offered, and clients may change
//! their address. Used by the broker's listener ([`QuicListener`]) and links ([`connect`]).

mod client;
mod connection;
mod connection_id;
mod frames;
mod gso;
mod listener;

use std::{sync::Arc, time::Duration};

use quinn::{IdleTimeout, TransportConfig, VarInt};

pub use self::{
    client::{ConnectOptions, QuicClient, connect},
    connection::{Cancellation, QuicConnection, RequestStream},
    frames::{QuicSink, QuicSource},
    listener::{EstablishError, ListenError, ListenerSecret, QuicIncoming, QuicListener},
};

/// Code with which a client resets or stops a stream. Any code has this meaning, but the binding
/// names this one.
const CODE_CANCELLED: VarInt = VarInt::from_u32(16);

/// Unread bytes of one stream of a backend. A longer message arrives as it is read.
const STREAM_WINDOW_BYTES: u32 = 512 * 1024;
/// Unread bytes of all streams of a backend.
const CONNECTION_WINDOW_BYTES: u32 = 2 * 1024 * 1024;
/// Unread bytes of one stream of a client.
const CLIENT_STREAM_WINDOW_BYTES: u32 = 128 * 1024;
/// Unread bytes of all streams of a client that [`QuicConnection::open_window`] has admitted.
const CLIENT_WINDOW_BYTES: u32 = 512 * 1024;
/// Unread bytes of all streams of a client before that.
const FIRST_CLIENT_WINDOW_BYTES: u32 = 64 * 1024;
/// Bytes sent and not acknowledged, for all streams of a connection.
const SEND_WINDOW_BYTES: u64 = 2 * 1024 * 1024;

/// Keep-alive packets that a client sends at least in the idle timeout of a connection.
const KEEP_ALIVES_PER_IDLE_TIMEOUT: u32 = 3;

/// Request streams that a client may open before the server has accepted the first one. After that
/// the full limit applies. The library allocates a slot for each allowed stream, and most
/// connections open none.
const FIRST_REQUEST_STREAMS: u32 = 12;

const _: () = assert!(CLIENT_STREAM_WINDOW_BYTES * 4 <= CLIENT_WINDOW_BYTES); // one request that waits must not block the others

/// Limits of one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Largest message accepted, in bytes.
    pub message_bytes_max: usize,
    /// Requests of a client with open streams at the same time.
    pub request_streams_max: u32,
    /// Memory for incomplete requests on their own streams, for one connection. The first few
    /// kilobytes of each are not counted.
    pub request_bytes_max: usize,
    /// Silence of the peer after which the connection ends.
    pub idle_timeout: Duration,
    /// Interval of a client's keep-alive packets. It sends some in each `idle_timeout` in any case.
    pub keep_alive: Duration,
    /// Time a write may make no progress.
    pub stall_max: Duration,
    /// Handshakes of the whole listener at the same time. Above the limit new clients are refused.
    pub handshakes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message_bytes_max: 4 * 1024 * 1024,
            request_streams_max: 100,
            request_bytes_max: 16 * 1024 * 1024,
            idle_timeout: Duration::from_secs(5 * 60),
            keep_alive: Duration::from_secs(20),
            stall_max: Duration::from_secs(30),
            handshakes_max: 1024,
        }
    }
}

impl Limits {
    /// Returns the settings for both roles. A client also keeps the connection alive and lets the
    /// server open no streams.
    fn transport(&self) -> TransportConfig {
        let mut transport = TransportConfig::default();
        transport
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .datagram_receive_buffer_size(None)
            .max_idle_timeout(Some(idle_timeout(self.idle_timeout)))
            .send_window(SEND_WINDOW_BYTES);
        transport
    }

    fn server_transport(&self) -> Arc<TransportConfig> {
        let mut transport = self.transport();
        transport
            .max_concurrent_bidi_streams(streams_allowed(
                self.request_streams_max.min(FIRST_REQUEST_STREAMS),
            ))
            .stream_receive_window(VarInt::from_u32(CLIENT_STREAM_WINDOW_BYTES))
            .receive_window(VarInt::from_u32(FIRST_CLIENT_WINDOW_BYTES));
        Arc::new(transport)
    }

    fn client_transport(&self) -> Arc<TransportConfig> {
        let mut transport = self.transport();
        transport
            .max_concurrent_bidi_streams(VarInt::from_u32(0))
            .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
            .receive_window(VarInt::from_u32(CONNECTION_WINDOW_BYTES))
            .keep_alive_interval(Some(self.keep_alive_interval()));
        Arc::new(transport)
    }

    /// Returns the interval of a client's keep-alive packets. A quiet server answers some of them
    /// before its silence ends the connection.
    fn keep_alive_interval(&self) -> Duration {
        self.keep_alive.min(self.idle_timeout / KEEP_ALIVES_PER_IDLE_TIMEOUT)
    }
}

/// Adds one stream for the control stream.
fn streams_allowed(request_streams: u32) -> VarInt {
    VarInt::from_u32(request_streams.saturating_add(1))
}

/// Converts to the milliseconds of the wire. A longer time becomes the maximum.
fn idle_timeout(silence_max: Duration) -> IdleTimeout {
    IdleTimeout::try_from(silence_max).unwrap_or(IdleTimeout::from(VarInt::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_keeps_a_quiet_connection_alive_with_any_idle_timeout() {
        assert_eq!(Limits::default().keep_alive_interval(), Limits::default().keep_alive);
        for seconds in [1, 15, 20, 3_600] {
            let idle_timeout = Duration::from_secs(seconds);
            let limits = Limits { idle_timeout, ..Limits::default() };
            let interval = limits.keep_alive_interval();
            assert!(interval * 2 < idle_timeout && interval <= limits.keep_alive, "{seconds} s");
        }
    }
}
