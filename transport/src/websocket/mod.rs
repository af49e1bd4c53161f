//! WebSocket (RFC 6455) without extensions: one message per text frame, in both roles.
//!
//! Used by the broker's `/ws` listener and by links to WebSocket backends. The parts:
//! - `handshake`: HTTP heads.
//! - `codec`: frames in bytes, no I/O.
//! - `shared_writer`: the one writer that data and control frames share.
//! - `source` and `sink`: the two halves.
//!
//! Invariants: an announced length takes no memory before the bytes arrive. A waiting connection
//! holds no buffer. A ping is answered even if the sink is idle. No frame follows a close frame.
//!
//! The project has its own codec for two reasons. The halves must not share a lock over reading.
//! Existing codecs keep their buffers at the largest size they ever had. `make autobahn` runs
//! the public test suite against it.

mod client;
mod codec;
mod echo;
mod handshake;
mod message_splitter;
mod shared_writer;
mod sink;
mod source;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};

pub use self::{
    client::{ConnectOptions, connect},
    echo::echo,
    handshake::{SUBPROTOCOL, UpgradeError, accept},
    sink::WsSink,
    source::WsSource,
};
use self::{
    codec::{Decoder, Role},
    shared_writer::SharedWriter,
};
use crate::{
    stall::StallGuard,
    tcp::{ReadHalf, Stream, WriteHalf},
};

/// Limits of one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Largest message accepted, in one frame or in fragments.
    pub message_bytes_max: usize,
    /// Interval of pings to the peer.
    pub ping_interval: Duration,
    /// Silence of the peer after which the connection ends.
    pub idle_timeout: Duration,
    /// Time a write may make no progress.
    pub stall_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message_bytes_max: 4 * 1024 * 1024,
            ping_interval: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(5 * 60),
            stall_max: Duration::from_secs(30),
        }
    }
}

/// The halves of a connection over TCP.
pub type TcpHalves = (WsSource<ReadHalf, StallGuard<WriteHalf>>, WsSink<StallGuard<WriteHalf>>);

/// Creates the server's side of a connection after the handshake. `prefix` contains the bytes read
/// after the request's head.
pub fn server(stream: Stream, prefix: Bytes, limits: &Limits) -> TcpHalves {
    over_tcp(stream, prefix, limits, Role::Server)
}

/// Creates the server's side over halves of any kind. The halves handle stalled writes themselves.
pub fn server_over<R, W>(
    reader: R,
    writer: W,
    prefix: Bytes,
    limits: &Limits,
) -> (WsSource<R, W>, WsSink<W>)
where
    R: AsyncRead + Unpin + Send,
    W: AsyncWrite + Unpin + Send,
{
    halves(reader, writer, prefix, limits, Role::Server)
}

fn over_tcp(stream: Stream, prefix: Bytes, limits: &Limits, role: Role) -> TcpHalves {
    let (reader, writer) = stream.split();
    halves(reader, StallGuard::new(writer, limits.stall_max), prefix, limits, role)
}

fn halves<R, W>(
    reader: R,
    writer: W,
    prefix: Bytes,
    limits: &Limits,
    role: Role,
) -> (WsSource<R, W>, WsSink<W>)
where
    R: AsyncRead + Unpin + Send,
    W: AsyncWrite + Unpin + Send,
{
    let outgoing = Arc::new(SharedWriter::new(writer, role));
    let decoder = Decoder::new(role, limits.message_bytes_max);
    (
        WsSource::new(reader, prefix, decoder, Arc::clone(&outgoing), limits),
        WsSink::new(outgoing, role),
    )
}
