//! How many messages a second go through the broker over a duplex wire? Requests and answers counted, one at a time and
//! many in flight, beside a plain byte proxy of the same wire and beside no proxy at all.
//!
//! Client and backend are this process; the broker and the byte proxy are each a process of their own, as in life. Every
//! answer is checked to belong to a request that was sent. Streamable HTTP is measured by other means (a load tester).

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use benches::{Scale, Table, digits, median, shown};
use bytes::Bytes;
use futures_util::FutureExt as _;
use serde_json::{Value, json};
use testkit::{BrokerBuilder, TestBroker};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use transport::{
    egress::EgressPolicy,
    frame::{FrameSink, FrameSource},
    tcp::Stream,
    tls::{ClientTls, ClientTlsFiles},
    websocket,
};

const LINE_BYTES_MAX: usize = 1024 * 1024;
const STALL: Duration = Duration::from_secs(30);
/// How long a request, and an answer, are.
const MESSAGE_BYTES: usize = 256;
/// With this argument and an address the program is the byte proxy.
const PROXY: &str = "--byte-proxy";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, word, target] = &arguments[..]
        && word == PROXY
    {
        return byte_proxy(target);
    }
    benches::main("wires", bench)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    Tcp,
    WebSocket,
}

/// Connections, and requests in flight on each.
const LOADS: [(usize, usize); 3] = [(1, 1), (1, 64), (4, 64)];

async fn bench(scale: Scale) -> anyhow::Result<()> {
    for wire in [Wire::Tcp, Wire::WebSocket] {
        let backend = backend(wire).await?;
        let proxy = ByteProxy::start(backend)?;
        let broker = broker(wire, backend).await?;
        let behind = match wire {
            Wire::Tcp => broker.tcp_address(),
            Wire::WebSocket => broker.http_address(),
        };
        let mut table = Table::new(["load", "way", "messages/s", "of the byte proxy", "round trip"]);
        for (connections, window) in LOADS {
            let mut rates = [const { Vec::new() }; 3];
            // In turns, so that whatever else the machine does hits all of them.
            for _ in 0..scale.of(5, 1) {
                for (way, address) in [backend, proxy.address, behind].into_iter().enumerate() {
                    rates[way].push(load(wire, address, connections, window, scale).await?);
                }
            }
            let rates = rates.map(median);
            for (name, rate) in ["direct", "byte proxy", "broker"].into_iter().zip(rates) {
                let round_trip = Duration::from_secs_f64(2.0 * (connections * window) as f64 / rate);
                let ratio = format!("{:.2}", rate / rates[1]);
                table.row([format!("{connections} x {window}"), name.to_owned(), digits(rate), ratio, shown(round_trip)]);
            }
        }
        table.print(&format!("{wire:?}, tools/call of {MESSAGE_BYTES} bytes, connections x requests in flight"));
    }
    Ok(())
}

/// Messages a second.
async fn load(wire: Wire, address: SocketAddr, connections: usize, window: usize, scale: Scale) -> anyhow::Result<f64> {
    let time = scale.of(Duration::from_secs(1), Duration::from_millis(20));
    let mut clients = JoinSet::new();
    for _ in 0..connections {
        match wire {
            Wire::Tcp => {
                let (source, sink) = Stream::Plain(connected(address).await?).into_lines(LINE_BYTES_MAX, STALL);
                clients.spawn(client(source, sink, window, time));
            }
            Wire::WebSocket => {
                let (source, sink) = over_websocket(address).await?;
                clients.spawn(client(source, sink, window, time));
            }
        }
    }
    let mut rate = 0.0;
    while let Some(client) = clients.join_next().await {
        rate += client??;
    }
    Ok(rate)
}

async fn connected(address: SocketAddr) -> anyhow::Result<TcpStream> {
    let socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

async fn over_websocket(address: SocketAddr) -> anyhow::Result<websocket::TcpHalves> {
    let (egress, tls) = (EgressPolicy { loopback: true, ..EgressPolicy::default() }, ClientTls::load(&ClientTlsFiles::default())?);
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

/// Opens a session, and keeps so many calls in flight for a while.
async fn client(mut source: impl FrameSource, mut sink: impl FrameSink, window: usize, time: Duration) -> anyhow::Result<f64> {
    let meta = json!({"dev.mcp-broker/backend": "b"});
    let initialize =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}, "_meta": meta});
    let mut frames = vec![
        Bytes::from(json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": initialize}).to_string()),
        Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#),
    ];
    sink.send_all(&mut frames).await?;
    let opened = source.next().await?.context("no answer to initialize")?;
    ensure!(number_of(&opened).is_some(), "{}", String::from_utf8_lossy(&opened));

    let (mut next, mut calls) = (1_u64, 0_u64);
    let begun = Instant::now();
    while begun.elapsed() < time {
        let numbers = next..next + window as u64;
        next = numbers.end;
        frames.extend(numbers.clone().map(request));
        sink.send_all(&mut frames).await?;
        let mut due: u64 = numbers.sum();
        for _ in 0..window {
            let answer = source.next().await?.context("the connection ended")?;
            // Ids are of other lengths on their way.
            let number = number_of(&answer).filter(|_| answer.len() + 20 > MESSAGE_BYTES);
            due = due.wrapping_sub(number.with_context(|| String::from_utf8_lossy(&answer).into_owned())?);
        }
        ensure!(due == 0, "the answers are not those to the requests");
        calls += window as u64;
    }
    Ok(2.0 * calls as f64 / begun.elapsed().as_secs_f64())
}

fn request(number: u64) -> Bytes {
    let head = format!(r#"{{"jsonrpc":"2.0","id":{number},"method":"tools/call","params":{{"name":"echo","arguments":{{"text":""#);
    padded(head, r#""}}}"#)
}

fn answer(id: &[u8]) -> Bytes {
    let id = String::from_utf8_lossy(id);
    padded(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":""#), r#""}]}}"#)
}

fn padded(mut text: String, tail: &str) -> Bytes {
    text.extend(std::iter::repeat_n('x', MESSAGE_BYTES.saturating_sub(text.len() + tail.len())));
    (text + tail).into()
}

/// What stands behind `{"jsonrpc":"2.0","id":`, where a number does.
fn id_of(frame: &[u8]) -> Option<&[u8]> {
    let rest = frame.strip_prefix(br#"{"jsonrpc":"2.0","id":"#)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    (digits > 0).then(|| &rest[..digits])
}

fn number_of(frame: &[u8]) -> Option<u64> {
    std::str::from_utf8(id_of(frame)?).ok()?.parse().ok()
}

/// An MCP server with one tool, as fast as can be.
async fn backend(wire: Wire) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let _delayed_only = socket.set_nodelay(true);
            tokio::spawn(async move {
                match wire {
                    Wire::Tcp => {
                        let (source, sink) = Stream::Plain(socket).into_lines(LINE_BYTES_MAX, STALL);
                        serve(source, sink).await
                    }
                    Wire::WebSocket => {
                        let (source, sink) = upgraded(socket).await?;
                        serve(source, sink).await
                    }
                }
            });
        }
    });
    Ok(address)
}

/// The server's half of the upgrade, of a request whose head comes alone.
async fn upgraded(mut socket: TcpStream) -> anyhow::Result<websocket::TcpHalves> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        ensure!(socket.read_buf(&mut head).await? > 0, "the connection ended in the head");
    }
    let text = String::from_utf8(head)?;
    let fields = text.lines().skip(1).filter_map(|line| line.split_once(": "));
    let request = fields.fold(http::Request::get("/"), |request, (name, value)| request.header(name, value)).body(())?;
    let response = websocket::accept(&request)?;
    let mut lines = "HTTP/1.1 101 Switching Protocols\r\n".to_owned();
    for (name, value) in response.headers() {
        lines += &format!("{name}: {}\r\n", value.to_str()?);
    }
    socket.write_all((lines + "\r\n").as_bytes()).await?;
    Ok(websocket::server(Stream::Plain(socket), Bytes::new(), &websocket::Limits::default()))
}

async fn serve(mut source: impl FrameSource, mut sink: impl FrameSink) -> anyhow::Result<()> {
    let mut answers = Vec::new();
    while let Some(first) = source.next().await? {
        answers.extend(answered(&first));
        // What is here already is answered with one system call.
        while let Some(Some(frame)) = source.next().now_or_never().transpose()? {
            answers.extend(answered(&frame));
        }
        sink.send_all(&mut answers).await?;
    }
    Ok(())
}

fn answered(frame: &[u8]) -> Option<Bytes> {
    if let Some(id) = id_of(frame)
        && frame[22 + id.len()..].starts_with(br#","method":"tools/call""#)
    {
        return Some(answer(id));
    }
    let message: Value = serde_json::from_slice(frame).ok()?;
    let result = match message["method"].as_str()? {
        "initialize" => {
            json!({"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "fast", "version": "1"}})
        }
        "tools/list" => json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}),
        _ => json!({}),
    };
    let id = message.get("id")?;
    // The id where `number_of` looks for it.
    Some(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#).into())
}

/// The broker as it is built beside this bench.
async fn broker(wire: Wire, backend: SocketAddr) -> anyhow::Result<TestBroker> {
    let folder = std::env::current_exe()?.parent().and_then(|deps| deps.parent()).map(PathBuf::from).context("no target folder")?;
    let binary = folder.join("mcp-broker");
    ensure!(binary.exists(), "{} is not there: build the broker first, in the same profile", binary.display());
    let spec = match wire {
        Wire::Tcp => json!({"transport": {"type": "tcp", "address": backend.to_string()}}),
        Wire::WebSocket => json!({"transport": {"type": "websocket", "url": format!("ws://{backend}/")}}),
    };
    let limits = json!({"requests_per_second": 1_000_000, "burst": 1_000_000, "calls_in_flight_per_tenant": 10_000});
    let config = json!({"listen": {"tcp": "127.0.0.1:0"}, "limits": limits});
    Ok(BrokerBuilder::new(binary).config(config).backend("default", "b", spec).alone().start().await)
}

/// This program again, which passes bytes on and looks at none.
struct ByteProxy {
    address: SocketAddr,
    child: Child,
}

impl ByteProxy {
    fn start(target: SocketAddr) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?).args([PROXY, &target.to_string()]).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("it has an output")?).read_line(&mut line)?;
        Ok(Self { address: line.trim().parse()?, child })
    }
}

impl Drop for ByteProxy {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _status = self.child.wait();
    }
}

fn byte_proxy(target: &str) -> ExitCode {
    let serving = async {
        let target: SocketAddr = target.parse()?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        loop {
            let (mut client, _) = listener.accept().await?;
            let _delayed_only = client.set_nodelay(true);
            tokio::spawn(async move {
                let mut server = connected(target).await?;
                tokio::io::copy_bidirectional(&mut client, &mut server).await?;
                anyhow::Ok(())
            });
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let served: anyhow::Result<()> = runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(serving));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the byte proxy ended: {error:#}");
            ExitCode::FAILURE
        }
    }
}
