//! Compares the cost of a message in this project's WebSocket codec, in tokio-tungstenite and in
//! fastwebsockets.
//!
//! Each codec takes masked text frames of a client and sends each of them back, over a connection
//! that costs nothing itself. Its input is already there, and its output is counted and dropped.
//! The bench also measures the memory of a connection that waits after a large message.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    process::{Command, ExitCode},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use benches::{Scale, Table, digits, median, shown};
use bytes::Bytes;
use fastwebsockets::{FragmentCollector, Frame, OpCode, Payload, Role as FastRole};
use futures_util::{FutureExt as _, SinkExt as _, StreamExt as _, future::BoxFuture};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::{WebSocketStream, tungstenite::protocol::Role};
use transport::{
    frame::{FrameSink as _, FrameSource as _},
    websocket::{Limits, server_over},
};

const SIZES: [(usize, &str); 4] =
    [(256, "256 B"), (2048, "2 KB"), (65_536, "64 KB"), (1_048_576, "1 MB")];
/// Bytes that one read of a socket brings.
const READ_BYTES: usize = 64 * 1024;
/// Bytes of messages in one measurement.
const STREAM_BYTES: usize = 16 * 1024 * 1024;
const WAITING: usize = 32;
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// Sends back every message until the peer's close frame.
type Echo = fn(Wire) -> BoxFuture<'static, anyhow::Result<()>>;

/// The codecs with their names. The first is this project's own.
const CODECS: [(&str, Echo); 3] = [
    ("ours", |wire| ours(wire).boxed()),
    ("tokio-tungstenite", |wire| tungstenite(wire).boxed()),
    ("fastwebsockets", |wire| fast(wire).boxed()),
];

/// Argument before a codec's name: the program measures the memory of waiting connections.
const HELD: &str = "--held";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [held, name] if held == HELD => {
            let codec = CODECS
                .iter()
                .find(|(codec, _)| codec == name)
                .expect("the bench names one of them");
            println!("{}", held_by(codec.1).expect("a process may read what it holds"));
            ExitCode::SUCCESS
        }
        _ => benches::main("websocket", bench),
    }
}

async fn bench(scale: Scale) -> anyhow::Result<()> {
    let mut table = Table::new(["message", "codec", "a message", "GB/s", "of ours"]);
    for (bytes, size) in SIZES {
        let count = scale.of((STREAM_BYTES / bytes).min(20_000), 2);
        let stream = stream(bytes, count);
        let mut times = [const { Vec::new() }; CODECS.len()];
        for _ in 0..scale.of(15, 1) {
            for ((name, echo), times) in CODECS.iter().zip(&mut times) {
                let wire = Wire::new(stream.clone(), false);
                let (written, started) = (wire.written.clone(), Instant::now());
                echo(wire).await.with_context(|| format!("{name}, {size}"))?;
                times.push(started.elapsed().as_secs_f64() / count as f64);
                ensure!(
                    written.load(Ordering::Relaxed) >= count * bytes,
                    "{name} does not send everything back"
                );
            }
        }
        let times = times.map(median);
        for ((name, _), time) in CODECS.iter().zip(times) {
            let (took, rate) =
                (shown(Duration::from_secs_f64(time)), digits(bytes as f64 / time / 1e9));
            table.row([
                size.to_owned(),
                (*name).to_owned(),
                took,
                rate,
                format!("{:.2}", time / times[0]),
            ]);
        }
    }
    table.print("A text message, read and sent back by a server");
    held()
}

/// Measures the memory of connections that wait after a message of a megabyte. Each codec has a
/// process of its own, so that none reuses memory that another has freed.
fn held() -> anyhow::Result<()> {
    let mut table = Table::new(["codec", "held by each connection"]);
    for (name, _) in CODECS {
        let output = Command::new(std::env::current_exe()?).args([HELD, name]).output()?;
        let bytes: f64 = String::from_utf8(output.stdout)?
            .trim()
            .parse()
            .with_context(|| format!("{name} held nothing"))?;
        table.row([name.to_owned(), format!("{:.0} KiB", bytes / 1024.0)]);
    }
    table.print("A connection that waits after a message of 1 MB");
    Ok(())
}

fn held_by(echo: Echo) -> anyhow::Result<usize> {
    let large: Bytes = frame(1, &vec![b'x'; 1_048_576]).into();
    let serve = || {
        let mut served = echo(Wire::new(large.clone(), true));
        // All of the message is there: the codec then waits at the next read.
        (&mut served).now_or_never().is_none().then_some(served)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _entered = runtime.enter();
    drop(serve());
    let before = resident_bytes()?;
    let waiting: Vec<_> = (0..WAITING).map_while(|_| serve()).collect();
    ensure!(waiting.len() == WAITING, "a connection ended while its peer was there");
    Ok(resident_bytes()?.saturating_sub(before) / WAITING)
}

fn resident_bytes() -> anyhow::Result<usize> {
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    let pages: usize = pages.split(' ').nth(1).context("statm has no second number")?.parse()?;
    Ok(pages * rustix::param::page_size())
}

async fn ours(mut wire: Wire) -> anyhow::Result<()> {
    let limits = Limits::default();
    let (mut source, mut sink) = server_over(wire.reading(), wire, Bytes::new(), &limits);
    let mut frames = Vec::new();
    while let Some(message) = source.next().await? {
        frames.push(message);
        sink.send_all(&mut frames).await?;
    }
    Ok(())
}

async fn tungstenite(wire: Wire) -> anyhow::Result<()> {
    let mut socket = WebSocketStream::from_raw_socket(wire, Role::Server, None).await;
    while let Some(message) = socket.next().await {
        let message = message?;
        if message.is_close() {
            return Ok(());
        }
        socket.send(message).await?;
    }
    Ok(())
}

async fn fast(wire: Wire) -> anyhow::Result<()> {
    let mut socket =
        FragmentCollector::new(fastwebsockets::WebSocket::after_handshake(wire, FastRole::Server));
    loop {
        let frame = socket.read_frame().await?;
        if frame.opcode == OpCode::Close {
            return Ok(());
        }
        // Owned, because the message is passed on to another task.
        let message = match frame.payload {
            Payload::Bytes(message) => message.freeze(),
            other => Bytes::copy_from_slice(&other),
        };
        socket.write_frame(Frame::text(Payload::Borrowed(&message))).await?;
    }
}

/// Returns so many text messages of a client, and its close frame.
fn stream(bytes: usize, count: usize) -> Bytes {
    let text: Vec<u8> = b"It was the best of times, it was the worst of times; "
        .iter()
        .copied()
        .cycle()
        .take(bytes)
        .collect();
    let (message, close) = (frame(1, &text), frame(8, &1000_u16.to_be_bytes()));
    [message.repeat(count), close].concat().into()
}

/// Returns a masked frame (RFC 6455, 5.2).
fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x80 | opcode];
    match payload.len() {
        length @ 0..126 => frame.push(0x80 | length as u8),
        length @ 126..=0xffff => {
            frame.push(0x80 | 126);
            frame.extend((length as u16).to_be_bytes());
        }
        length => {
            frame.push(0x80 | 127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend(MASK);
    frame.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}

/// A connection in memory.
#[derive(Debug)]
struct Wire {
    unread: Bytes,
    /// Set when the peer stays after all was read.
    stays: bool,
    written: Arc<AtomicUsize>,
}

impl Wire {
    fn new(unread: Bytes, stays: bool) -> Self {
        Self { unread, stays, written: Arc::default() }
    }

    /// Returns the reading half; this one writes from then on.
    fn reading(&mut self) -> Self {
        Self {
            unread: std::mem::take(&mut self.unread),
            stays: self.stays,
            written: Arc::clone(&self.written),
        }
    }

    fn take(&self, bytes: usize) -> Poll<io::Result<usize>> {
        self.written.fetch_add(bytes, Ordering::Relaxed);
        Poll::Ready(Ok(bytes))
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.unread.is_empty() && self.stays {
            return Poll::Pending;
        }
        let bytes = self.unread.len().min(buffer.remaining()).min(READ_BYTES);
        buffer.put_slice(&self.unread.split_to(bytes));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.take(bytes.len())
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.take(slices.iter().map(|slice| slice.len()).sum())
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
