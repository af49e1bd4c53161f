//! Measures the memory of an idle connection: thousands of each wire, each with its session. The
//! table compares their share of the broker's resident memory with the promise. Over HTTP a session
//! needs no connection, so sessions alone are measured too.
//!
//! Each wire gets a broker of its own. The first connections are not counted: they pay for shared
//! memory.

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context as _;
use benches::{Scale, Table};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use loadtest::{
    backend::{Backend, BackendOptions},
    process,
    wire::{LoadTarget, Session},
};
use quinn::{
    ClientConfig, Connection, Endpoint, RecvStream, SendStream, TransportConfig,
    crypto::rustls::QuicClientConfig,
};
use serde_json::{Value, json};
use testkit::{Authority, BrokerBuilder, TestBroker};
use transport::tls::ClientTlsFiles;

/// Connections opened at the same time.
const OPENING: usize = 32;
/// Time for the allocator to give back the memory of the openings.
const SETTLING: Duration = Duration::from_secs(3);
/// Interval of keep-alives for QUIC, which closes a connection after 30 s of silence.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const WIRES: [(Wire, u64); 5] = [
    (Wire::Http, 4),
    (Wire::Tcp, 24),
    (Wire::WebSocket, 24),
    (Wire::Quic, 48),
    (Wire::HttpStream, 40),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    Tcp,
    WebSocket,
    Quic,
    /// A session over HTTP, without a connection.
    Http,
    /// HTTP with an open GET stream.
    HttpStream,
}

impl Wire {
    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::WebSocket => "WebSocket",
            Self::Quic => "QUIC",
            Self::Http => "HTTP, the session alone",
            Self::HttpStream => "HTTP with a GET stream",
        }
    }
}

fn main() -> ExitCode {
    benches::main("idle", bench)
}

async fn bench(scale: Scale) -> anyhow::Result<()> {
    let count = scale.of(10_000, 60);
    let mut table = Table::new(["wire", "connections", "resident, each", "promised"]);
    for (wire, promised) in WIRES {
        let bytes = measure(wire, count, scale).await.with_context(|| wire.name())?;
        let each = format!("{:.1} KiB", bytes / 1024.0);
        table.row([wire.name().to_owned(), count.to_string(), each, format!("{promised} KiB")]);
    }
    table.print("Resident memory of the broker for each idle connection with its session");
    Ok(())
}

/// Returns the bytes for each connection.
async fn measure(wire: Wire, count: usize, scale: Scale) -> anyhow::Result<f64> {
    let authority = Authority::new();
    let signed = authority.server("broker");
    let backend = Backend::http("127.0.0.1:0", &BackendOptions::default()).await?;
    let config = match wire {
        Wire::Quic => {
            json!({"listen": {"quic": "127.0.0.1:0"}, "tls": {"cert_file": signed.cert, "key_file": signed.key}})
        }
        Wire::Tcp => json!({"listen": {"tcp": "127.0.0.1:0"}}),
        Wire::WebSocket | Wire::Http | Wire::HttpStream => json!({}),
    };
    let broker = broker(config, &backend).await?;
    let open = async |many: usize| -> anyhow::Result<Vec<OpenConnection>> {
        match wire {
            Wire::Quic => over_quic(&broker, &authority, many).await,
            _ => sessions(wire, &broker, many).await,
        }
    };
    let first = open(count / 10).await?;
    settle(scale).await;
    let before = process::usage(broker.pid())?.resident_bytes;
    let idle = open(count).await?;
    settle(scale).await;
    let after = process::usage(broker.pid())?.resident_bytes;
    anyhow::ensure!(
        first.iter().chain(&idle).all(OpenConnection::is_alive),
        "not all connections have lived until they were counted"
    );
    drop((first, idle));
    Ok(after.saturating_sub(before) as f64 / count as f64)
}

async fn settle(scale: Scale) {
    tokio::time::sleep(scale.of(SETTLING, Duration::from_millis(50))).await;
}

/// State that keeps a connection open.
enum OpenConnection {
    Session(Arc<Session>),
    Quic(Connection, #[expect(dead_code, reason = "only held")] (SendStream, RecvStream)),
}

impl OpenConnection {
    fn is_alive(&self) -> bool {
        match self {
            Self::Session(session) => session.is_alive(),
            Self::Quic(connection, _) => connection.close_reason().is_none(),
        }
    }
}

async fn sessions(
    wire: Wire,
    broker: &TestBroker,
    count: usize,
) -> anyhow::Result<Vec<OpenConnection>> {
    let target = match wire {
        Wire::Tcp => format!("tcp://{}/fast", broker.tcp_address()),
        Wire::WebSocket => format!("ws://{}/ws/fast", broker.http_address()),
        Wire::Quic | Wire::Http | Wire::HttpStream => {
            format!("http://{}/mcp/fast", broker.http_address())
        }
    };
    let site =
        LoadTarget::new(target.parse()?, &ClientTlsFiles::default(), Duration::from_secs(30))?;
    let opened = stream::iter(0..count).map(|_| async {
        let session = Session::open(&site, None).await?;
        if wire == Wire::HttpStream {
            session.listen().await?;
        }
        Ok(OpenConnection::Session(session))
    });
    opened.buffer_unordered(OPENING).try_collect().await
}

/// Opens all connections over one socket: a client's socket for each would cost this process far
/// more than the broker.
async fn over_quic(
    broker: &TestBroker,
    authority: &Authority,
    count: usize,
) -> anyhow::Result<Vec<OpenConnection>> {
    let crypto = QuicClientConfig::try_from(authority.trusting(None, &["mcp"]))?;
    let mut endpoint = Endpoint::client(([127, 0, 0, 1], 0).into())?;
    let (mut config, mut transport) =
        (ClientConfig::new(Arc::new(crypto)), TransportConfig::default());
    // Otherwise the first connections end before the last ones begin.
    transport.keep_alive_interval(Some(KEEP_ALIVE));
    config.transport_config(Arc::new(transport));
    endpoint.set_default_client_config(config);
    let (endpoint, address) = (&endpoint, broker.quic_address());
    let opened = stream::iter(0..count).map(|_| async move {
        let connection = endpoint.connect(address, "localhost")?.await?;
        let (mut sink, mut source) = connection.open_bi().await?;
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "idle", "version": "1"},
            "_meta": {"dev.mcp-broker/backend": "fast"},
        });
        sink.write_all(format!("{}\n", json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})).as_bytes()).await?;
        let mut answer = vec![0; 64 * 1024];
        source.read(&mut answer).await?.context("an answer to initialize")?;
        sink.write_all(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n").await?;
        Ok(OpenConnection::Quic(connection, (sink, source)))
    });
    opened.buffer_unordered(OPENING).try_collect().await
}

async fn broker(config: Value, backend: &Backend) -> anyhow::Result<TestBroker> {
    let limits = json!({"limits": {
        "connections": 100_000, "connections_per_address": 100_000, "connections_per_second_per_address": 0,
        "connections_per_tenant": 100_000, "sessions_per_tenant": 100_000, "sessions_per_principal": 100_000,
    }});
    let spec =
        json!({"transport": {"type": "http", "url": format!("http://{}/mcp", backend.address())}});
    let builder = BrokerBuilder::new(benches::broker_binary()?).config(limits).config(config);
    Ok(builder.backend("default", "fast", spec).single_process().start().await)
}
