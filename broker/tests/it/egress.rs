//! Addresses that backends may not have: they are refused on every wire, in every spelling, at
//! every connect.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::{Value, json};
use testkit::TestBroker;
use tokio::net::{TcpListener, UdpSocket};

use crate::builder;

/// A listener that no backend connection may reach. It counts those that do.
struct Canary {
    port: u16,
    visits: Arc<AtomicUsize>,
}

impl Canary {
    /// Listens at an address of this machine that the policy of these tests refuses.
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let datagrams = UdpSocket::bind(("127.0.0.2", port)).await.unwrap();
        let visits = Arc::<AtomicUsize>::default();
        let (by_tcp, by_udp) = (visits.clone(), visits.clone());
        tokio::spawn(async move {
            while listener.accept().await.is_ok() {
                by_tcp.fetch_add(1, Ordering::SeqCst);
            }
        });
        tokio::spawn(async move {
            while datagrams.recv(&mut [0; 64]).await.is_ok() {
                by_udp.fetch_add(1, Ordering::SeqCst);
            }
        });
        Self { port, visits }
    }
}

async fn broker() -> TestBroker {
    let config = json!({"egress": {"allow": ["127.0.0.1/32"], "deny": ["127.0.0.2/32"]}});
    builder().single_process().config(config).start().await
}

fn transports(host: &str, port: u16) -> [(&'static str, Value); 4] {
    [
        ("http", json!({"type": "http", "url": format!("http://{host}:{port}/mcp")})),
        ("websocket", json!({"type": "websocket", "url": format!("ws://{host}:{port}/mcp")})),
        ("tcp", json!({"type": "tcp", "address": format!("{host}:{port}")})),
        (
            "quic",
            json!({"type": "quic", "address": format!("{host}:{port}"), "server_name": "localhost"}),
        ),
    ]
}

#[tokio::test]
async fn a_30_forbidden_addresses_are_refused_at_registration() {
    let (broker, canary) = (broker().await, Canary::start().await);
    for host in [
        "127.0.0.2",
        "[::ffff:127.0.0.2]",
        "[::ffff:7f00:2]",
        "[64:ff9b::7f00:2]",
        "[2002:7f00:2::1]",
        "169.254.169.254",
        "10.0.0.1",
        "[fd00::1]",
        "0.0.0.0",
    ] {
        for (name, transport) in transports(host, canary.port) {
            let answer = broker
                .admin()
                .send(
                    "PUT",
                    "/admin/v1/tenants/default/backends/x",
                    Some(&json!({"transport": transport})),
                )
                .await;
            assert!([400, 422].contains(&answer.status), "{name} {host}: {}", answer.status);
            assert!(answer.text().await.contains("refused address"), "{name} {host}");
        }
    }
    assert_eq!(canary.visits.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_30_a_31_host_names_are_checked_by_their_addresses_at_each_connect() {
    let (broker, canary) = (broker().await, Canary::start().await);
    let admin = broker.admin();
    // Our parsers do not accept it as an address, but the system's resolver reads it as 127.0.0.2.
    for (at, host) in
        ["127.2", "2130706434", "0x7f000002", "0177.0.0.2", "127.0.2"].iter().enumerate()
    {
        for (wire, transport) in transports(host, canary.port) {
            let name = format!("{wire}{at}");
            let (status, body) =
                admin.put_backend("default", &name, &json!({"transport": transport})).await;
            if [400, 422].contains(&status) {
                continue; // not even a name
            }
            assert!((200..300).contains(&status), "{wire} {host}: {body}");
            // Each probe is another connect.
            for _ in 0..2 {
                admin
                    .post(&format!("/admin/v1/tenants/default/backends/{name}/probe"), &json!({}))
                    .await;
            }
            let view = admin.wait_backend_state("default", &name, "failed").await;
            let error = view["last_error"].as_str().unwrap();
            assert!(
                error.contains("not allowed") || error.contains("resolved"),
                "{wire} {host}: {error}"
            );
        }
    }
    assert_eq!(canary.visits.load(Ordering::SeqCst), 0, "no request came");
}
