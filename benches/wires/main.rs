//! Measures the messages per second through the broker over a wire, requests and answers counted.
//! The loads are one at a time and many in flight.
//!
//! They are compared with a plain byte proxy of the same wire and with no proxy at all. Client and
//! backend are this process. The broker and the byte proxy are each a process of their own, as in
//! production.

mod byte_proxy;
mod clients;
mod open_loop;

use std::{net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use benches::{Scale, Table, digits, median, shown};
use loadtest::backend::{Backend, BackendOptions};
use serde_json::json;
use testkit::{Authority, BrokerBuilder, TestBroker};
use transport::tls::{CertificateSource, ClientAuth, ServerTls};

use crate::{
    byte_proxy::ByteProxy,
    clients::{MESSAGE_BYTES, load},
};

/// Connections, and requests in flight on each; over HTTP as many connections as requests.
const LOADS: [(usize, usize); 3] = [(1, 1), (1, 64), (4, 64)];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    Tcp,
    WebSocket,
    Quic,
    Http,
}

fn main() -> ExitCode {
    byte_proxy::run_if_requested().unwrap_or_else(|| benches::main("wires", bench))
}

async fn bench(scale: Scale) -> anyhow::Result<()> {
    let authority = Authority::new();
    let mut paced = Table::new(["wire", "way", "messages/s", "p50", "p99"]);
    for wire in [Wire::Tcp, Wire::WebSocket, Wire::Quic, Wire::Http] {
        let backend = backend(wire, &authority).await?;
        let proxy = ByteProxy::start(backend.address(), wire == Wire::Quic)?;
        let broker = broker(wire, backend.address(), &authority).await?;
        let ways = [
            ("direct", backend.address()),
            ("byte proxy", proxy.address),
            ("broker", front(wire, &broker)),
        ];
        let mut table =
            Table::new(["load", "way", "messages/s", "of the byte proxy", "round trip"]);
        for (connections, window) in LOADS {
            let mut rates = [const { Vec::new() }; 3];
            // The ways take turns, so that other load on the machine affects all of them.
            for _ in 0..scale.of(5, 1) {
                for ((_, address), rates) in ways.iter().zip(&mut rates) {
                    let time = scale.of(Duration::from_secs(1), Duration::from_millis(20));
                    rates.push(
                        load(wire, *address, &authority.ca(), connections, window, time).await?,
                    );
                }
            }
            let rates = rates.map(median);
            for ((name, _), rate) in ways.iter().zip(rates) {
                let round_trip =
                    Duration::from_secs_f64(2.0 * (connections * window) as f64 / rate);
                let ratio = format!("{:.2}", rate / rates[1]);
                table.row([
                    format!("{connections} x {window}"),
                    (*name).to_owned(),
                    digits(rate),
                    ratio,
                    shown(round_trip),
                ]);
            }
        }
        table.print(&format!(
            "{wire:?}, tools/call of {MESSAGE_BYTES} bytes, connections x requests in flight"
        ));
        open_loop::rows(&mut paced, wire, &ways, scale).await?;
    }
    paced.print(
        "So many messages a second by a schedule, over four connections: how long a call takes",
    );
    Ok(())
}

async fn backend(wire: Wire, authority: &Authority) -> anyhow::Result<Backend> {
    let (address, offer) = ("127.0.0.1:0", &BackendOptions::default());
    match wire {
        Wire::Tcp => Backend::tcp(address, offer).await,
        Wire::WebSocket => Backend::websocket(address, offer).await,
        Wire::Http => Backend::http(address, offer).await,
        Wire::Quic => {
            let signed = authority.server("backend");
            let source = CertificateSource::Files { cert: signed.cert, key: signed.key };
            Backend::quic(address, Arc::new(ServerTls::load(source, ClientAuth::None)?), offer)
                .await
        }
    }
}

fn front(wire: Wire, broker: &TestBroker) -> SocketAddr {
    match wire {
        Wire::Tcp => broker.tcp_address(),
        Wire::Quic => broker.quic_address(),
        Wire::WebSocket | Wire::Http => broker.http_address(),
    }
}

/// Starts the broker that was built with this bench, with the same wire on both sides.
async fn broker(
    wire: Wire,
    backend: SocketAddr,
    authority: &Authority,
) -> anyhow::Result<TestBroker> {
    let signed = authority.server("broker");
    let spec = match wire {
        Wire::Tcp => json!({"transport": {"type": "tcp", "address": backend.to_string()}}),
        Wire::WebSocket => {
            json!({"transport": {"type": "websocket", "url": format!("ws://{backend}/")}})
        }
        Wire::Quic => json!({"transport": {"type": "quic", "address": backend.to_string()}}),
        Wire::Http => {
            json!({"transport": {"type": "http", "url": format!("http://{backend}/mcp")}})
        }
    };
    let listen = match wire {
        Wire::Quic => {
            json!({"listen": {"quic": "127.0.0.1:0"}, "tls": {"cert_file": signed.cert, "key_file": signed.key}})
        }
        _ => json!({"listen": {"tcp": "127.0.0.1:0"}}),
    };
    let limits = json!({"requests_per_second": 1_000_000, "burst": 1_000_000, "calls_in_flight_per_tenant": 10_000});
    let builder = BrokerBuilder::new(benches::broker_binary()?)
        .config(json!({"limits": limits}))
        .config(listen);
    let trusting = authority.ca().to_string_lossy().into_owned();
    Ok(builder
        .env("SSL_CERT_FILE", &trusting)
        .backend("default", "b", spec)
        .single_process()
        .start()
        .await)
}
