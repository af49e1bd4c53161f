//! MCP over QUIC (RFC 9000): this project's binding, in both roles. docs/transports.md has it in full.
//!
//! ALPN `mcp`, messages as lines. The first stream a client opens is the *control stream*: it lives as long as the session, and
//! anything may go over it. Every further stream a client opens carries one request; the server writes what belongs to it, the answer
//! last, and finishes it. A client that resets such a stream, or stops the server from sending on it, has cancelled the request. So a
//! lost packet holds up one exchange and not the others.
//!
//! Unidirectional streams and datagrams are refused, 0-RTT is not offered, clients may change their address. Used by the broker's
//! listener ([`QuicListener`]) and links ([`connect`]).

mod client;
mod connection;
mod frames;
mod gso;
mod listener;

use std::{sync::Arc, time::Duration};

use quinn::{IdleTimeout, TransportConfig, VarInt};

pub use self::{
    client::{ConnectOptions, QuicClient, connect},
    connection::{Cancellation, QuicConnection, RequestStream},
    frames::{QuicSink, QuicSource},
    listener::{EstablishError, ListenError, QuicIncoming, QuicListener},
};

/// What a client resets a stream, or stops it, with. Any code means the same; this one is in the binding.
const CODE_CANCELLED: VarInt = VarInt::from_u32(16);

/// Unread bytes of one stream; a message that is longer arrives as it is read.
const STREAM_WINDOW_BYTES: u32 = 512 * 1024;
/// Unread bytes of all streams of a connection.
const CONNECTION_WINDOW_BYTES: u32 = 2 * 1024 * 1024;
/// Sent and not acknowledged, for all streams of a connection.
const SEND_WINDOW_BYTES: u64 = 2 * 1024 * 1024;

/// Streams of requests that a client may open before the first of them was accepted; from then on it may have all. The library
/// keeps a place for each that may be opened, and most connections open none.
const FIRST_REQUEST_STREAMS: u32 = 12;

/// What one connection may cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Largest message accepted.
    pub message_bytes_max: usize,
    /// Requests of a client that have streams of their own at the same time.
    pub request_streams_max: u32,
    /// Of requests on streams of their own that are not whole yet, for one connection; the first few kilobytes of each are free.
    pub request_bytes_max: usize,
    /// How long nothing at all may be heard of the peer.
    pub silence_max: Duration,
    /// How often a client shows that it is there.
    pub keep_alive: Duration,
    /// How long a write may get nowhere.
    pub stall_max: Duration,
    /// Handshakes at the same time at all; beyond it newcomers are refused.
    pub handshakes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message_bytes_max: 4 * 1024 * 1024,
            request_streams_max: 100,
            request_bytes_max: 16 * 1024 * 1024,
            silence_max: Duration::from_secs(5 * 60),
            keep_alive: Duration::from_secs(20),
            stall_max: Duration::from_secs(30),
            handshakes_max: 1024,
        }
    }
}

impl Limits {
    /// For both roles; a client in addition keeps the connection alive, and lets the server open nothing.
    fn transport(&self) -> TransportConfig {
        let mut transport = TransportConfig::default();
        transport
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .datagram_receive_buffer_size(None)
            .max_idle_timeout(Some(idle_timeout(self.silence_max)))
            .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
            .receive_window(VarInt::from_u32(CONNECTION_WINDOW_BYTES))
            .send_window(SEND_WINDOW_BYTES);
        transport
    }

    fn server_transport(&self) -> Arc<TransportConfig> {
        let mut transport = self.transport();
        transport.max_concurrent_bidi_streams(streams_allowed(
            self.request_streams_max.min(FIRST_REQUEST_STREAMS),
        ));
        Arc::new(transport)
    }

    fn client_transport(&self) -> Arc<TransportConfig> {
        let mut transport = self.transport();
        transport
            .max_concurrent_bidi_streams(VarInt::from_u32(0))
            .keep_alive_interval(Some(self.keep_alive));
        Arc::new(transport)
    }
}

/// One more: the control stream.
fn streams_allowed(request_streams: u32) -> VarInt {
    VarInt::from_u32(request_streams.saturating_add(1))
}

/// In the milliseconds of the wire; what does not fit is as good as for ever.
fn idle_timeout(silence_max: Duration) -> IdleTimeout {
    IdleTimeout::try_from(silence_max).unwrap_or(IdleTimeout::from(VarInt::MAX))
}
