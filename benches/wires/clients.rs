//! Clients that keep so many calls in flight for a while, over any wire. Every answer is checked to
//! belong to a request that was sent.

use std::{
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use loadtest::{
    target::Target,
    wire::{HttpStream, http::post_head},
};
use serde_json::json;
use tokio::{net::TcpStream, task::JoinSet};
use transport::{
    egress::EgressPolicy,
    frame::{FrameSink, FrameSource},
    quic,
    tcp::Stream,
    tls::{ClientTls, ClientTlsFiles},
    websocket,
};

use crate::Wire;

const LINE_BYTES_MAX: usize = 1024 * 1024;
const STALL: Duration = Duration::from_secs(30);
/// Bytes of a request; its answer is a little shorter.
pub(crate) const MESSAGE_BYTES: usize = 256;
const ANSWER_BYTES_MIN: usize = 200;

/// Returns the messages per second, requests and answers counted.
pub(crate) async fn load(
    wire: Wire,
    address: SocketAddr,
    ca: &Path,
    connections: usize,
    window: usize,
    time: Duration,
) -> anyhow::Result<f64> {
    let mut clients = JoinSet::new();
    for _ in 0..connections {
        match wire {
            Wire::Tcp => {
                let socket = TcpStream::connect(address).await?;
                socket.set_nodelay(true)?;
                let (source, sink) = Stream::Plain(socket).into_lines(LINE_BYTES_MAX, STALL);
                clients.spawn(client(source, sink, window, time, ()));
            }
            Wire::WebSocket => {
                let (source, sink) = over_websocket(address).await?;
                clients.spawn(client(source, sink, window, time, ()));
            }
            Wire::Quic => {
                let (connection, source, sink) = over_quic(address, ca).await?;
                clients.spawn(client(source, sink, window, time, connection));
            }
            // One request at a time on each connection: as many connections as requests.
            Wire::Http => (0..window).for_each(|_| drop(clients.spawn(over_http(address, time)))),
        }
    }
    let mut rate = 0.0;
    while let Some(client) = clients.join_next().await {
        rate += client??;
    }
    Ok(rate)
}

async fn over_websocket(address: SocketAddr) -> anyhow::Result<websocket::TcpHalves> {
    let (egress, tls) = (
        EgressPolicy { loopback: true, ..EgressPolicy::default() },
        ClientTls::load(&ClientTlsFiles::default())?,
    );
    let options = websocket::ConnectOptions {
        url: &format!("ws://{address}/ws/b").parse()?,
        headers: http::HeaderMap::new(),
        egress: &egress,
        tls: &tls,
        limits: &websocket::Limits::default(),
        timeout: STALL,
    };
    Ok(websocket::connect(options).await?)
}

async fn over_quic(
    address: SocketAddr,
    ca: &Path,
) -> anyhow::Result<(quic::QuicClient, quic::QuicSource, quic::QuicSink)> {
    let files = ClientTlsFiles { ca: Some(ca.to_owned()), ..ClientTlsFiles::default() };
    let (egress, tls) =
        (EgressPolicy { loopback: true, ..EgressPolicy::default() }, ClientTls::load(&files)?);
    let (address, limits) = (address.to_string(), quic::Limits::default());
    Ok(quic::connect(quic::ConnectOptions {
        address: &address,
        egress: &egress,
        tls: &tls,
        limits: &limits,
        timeout: STALL,
    })
    .await?)
}

fn opening() -> [Bytes; 2] {
    let meta = json!({"dev.mcp-broker/backend": "b"});
    let initialize = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}, "_meta": meta});
    [
        Bytes::from(
            json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": initialize})
                .to_string(),
        ),
        Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#),
    ]
}

/// Opens a session, and keeps so many calls in flight for a while.
async fn client(
    mut source: impl FrameSource,
    mut sink: impl FrameSink,
    window: usize,
    time: Duration,
    _kept: impl Send,
) -> anyhow::Result<f64> {
    let mut frames = opening().to_vec();
    sink.send_all(&mut frames).await?;
    let opened = source.next().await?.context("no answer to initialize")?;
    ensure!(number_of(&opened).is_some(), "{}", String::from_utf8_lossy(&opened));

    let (mut next, mut calls) = (1_u64, 0_u64);
    let started = Instant::now();
    while started.elapsed() < time {
        let numbers = next..next + window as u64;
        next = numbers.end;
        frames.extend(numbers.clone().map(request));
        sink.send_all(&mut frames).await?;
        let mut due: u64 = numbers.sum();
        for _ in 0..window {
            due =
                due.wrapping_sub(checked(&source.next().await?.context("the connection ended")?)?);
        }
        ensure!(due == 0, "the answers are not those to the requests");
        calls += window as u64;
    }
    Ok(2.0 * calls as f64 / started.elapsed().as_secs_f64())
}

/// Makes one call after the other, in a session of its own.
async fn over_http(address: SocketAddr, time: Duration) -> anyhow::Result<f64> {
    let target: Target = format!("http://{address}/mcp/b").parse()?;
    let mut stream = HttpStream::connect(&target.address).await?;
    let [initialize, initialized] = opening();
    let opened = stream.post(&post_head(&target, None, None), &initialize).await?;
    let head = post_head(&target, None, opened.session_id.as_deref());
    stream.post(&head, &initialized).await?;
    let (mut calls, started) = (0_u64, Instant::now());
    while started.elapsed() < time {
        calls += 1;
        let answer = stream.post(&head, &request(calls)).await?;
        ensure!(checked(&answer.body)? == calls, "the answer is not that to the request");
    }
    Ok(2.0 * calls as f64 / started.elapsed().as_secs_f64())
}

fn request(number: u64) -> Bytes {
    let mut text = format!(
        r#"{{"jsonrpc":"2.0","id":{number},"method":"tools/call","params":{{"name":"echo","arguments":{{"text":""#
    );
    let tail = r#""}}}"#;
    text.extend(std::iter::repeat_n('x', MESSAGE_BYTES.saturating_sub(text.len() + tail.len())));
    (text + tail).into()
}

/// Checks a whole answer and returns the number of its id.
fn checked(answer: &[u8]) -> anyhow::Result<u64> {
    let number = number_of(answer).filter(|_| answer.len() >= ANSWER_BYTES_MIN);
    number.with_context(|| String::from_utf8_lossy(answer).into_owned())
}

/// Returns the number behind `{"jsonrpc":"2.0","id":`, if there is one.
fn number_of(frame: &[u8]) -> Option<u64> {
    let rest = frame.strip_prefix(br#"{"jsonrpc":"2.0","id":"#)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}
