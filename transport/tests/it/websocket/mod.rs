//! Tests of WebSocket from outside: raw bytes for peers that misbehave, an independent
//! implementation for others.

mod abuse;
mod handshake;
mod keep_alive;
mod peers;

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use transport::websocket::{Limits, WsSink, WsSource, server_over};

use crate::soon;

type Source = WsSource<ReadHalf<DuplexStream>, WriteHalf<DuplexStream>>;
type Sink = WsSink<WriteHalf<DuplexStream>>;

const FINAL: u8 = 0x80;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// A client that can write any bytes.
struct Raw {
    io: DuplexStream,
}

/// Returns a server's halves, and the client on the other side of a pipe of this size.
fn connection(pipe_bytes: usize, limits: &Limits) -> (Raw, Source, Sink) {
    let (near, far) = duplex(pipe_bytes);
    let (reader, writer) = split(far);
    let (source, sink) = server_over(reader, writer, bytes::Bytes::new(), limits);
    (Raw { io: near }, source, sink)
}

fn limits() -> Limits {
    Limits { message_bytes_max: MESSAGE_BYTES_MAX, ..Limits::default() }
}

fn impatient() -> Limits {
    Limits {
        ping_interval: Duration::from_millis(20),
        idle_timeout: Duration::from_millis(200),
        ..limits()
    }
}

/// Returns the bytes of a masked frame. `first` contains the flags and the opcode.
fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [0x12, 0x00, 0xff, 0x81];
    let mut bytes = vec![first];
    match payload.len() {
        length @ 0..126 => bytes.push(0x80 | length as u8),
        length @ 126..=0xffff => {
            bytes.push(0x80 | 126);
            bytes.extend((length as u16).to_be_bytes());
        }
        length => {
            bytes.push(0x80 | 127);
            bytes.extend((length as u64).to_be_bytes());
        }
    }
    bytes.extend(mask);
    bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    bytes
}

fn closing(code: u16, reason: &str) -> Vec<u8> {
    [&code.to_be_bytes(), reason.as_bytes()].concat()
}

impl Raw {
    async fn send(&mut self, bytes: &[u8]) {
        soon("a write", self.io.write_all(bytes)).await.unwrap();
    }

    /// Returns the next frame of the server, opcode and payload, or `None` at the end.
    async fn receive(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut head = [0; 2];
        soon("a frame", self.io.read_exact(&mut head)).await.ok()?;
        let length = match head[1] {
            126 => usize::from(self.io.read_u16().await.unwrap()),
            127 => usize::try_from(self.io.read_u64().await.unwrap()).unwrap(),
            short => usize::from(short),
        };
        let mut payload = vec![0; length];
        soon("the payload", self.io.read_exact(&mut payload)).await.unwrap();
        assert_eq!(head[0] & 0xf0, FINAL, "servers send whole frames without flags");
        Some((head[0] & 0x0f, payload))
    }
}
