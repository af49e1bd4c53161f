//! What one client of a duplex listener can hold up.

use serde_json::json;
use testkit::{FakeBackend, Gate, Reply, eventually};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use super::listening;
use crate::{initialize_body, request};

/// More than the buffers of two sockets and the outbox hold together.
const ANSWERS: u64 = 100;
const ANSWER_BYTES: usize = 200_000;

#[tokio::test]
async fn f_19_a_client_that_does_not_read_is_cut_and_nobody_else_notices() {
    let (gate, waiting) = (Gate::new(), std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0)));
    let (at_gate, counted) = (gate.clone(), waiting.clone());
    let backend = FakeBackend::with_tool("large", move |call| {
        let (gate, counted) = (at_gate.clone(), counted.clone());
        async move {
            if call.arguments()["wait"] == true {
                counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                gate.passed().await;
            }
            Reply::text(&"x".repeat(ANSWER_BYTES))
        }
    })
    .await;
    let limits = json!({"limits": {"outbox_bytes": "1MiB"}});
    let broker = listening().config(limits).backend("default", "b", backend.spec()).start().await;
    let other = broker.duplex().tcp(broker.tcp_address()).await.connected(json!({})).await;
    let mut socket = TcpStream::connect(broker.tcp_address()).await.unwrap();
    socket2::SockRef::from(&socket).set_recv_buffer_size(4096).unwrap();
    let mut text = format!("{}\n{}\n", initialize_body("2025-11-25"), json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    for id in 0..ANSWERS {
        text.push_str(&request(10 + id, "tools/call", json!({"name": "b__large", "arguments": {"wait": true}})));
        text.push('\n');
    }
    socket.write_all(text.as_bytes()).await.unwrap();
    eventually("all calls at the backend", || async {
        let count = waiting.load(std::sync::atomic::Ordering::SeqCst);
        if count == ANSWERS { Ok(()) } else { Err(count) }
    })
    .await;
    gate.open();
    broker.admin().wait_metric("mcp_rate_limited_total", &[("scope", "outbox_bytes")], |count| count == 1.0).await;
    eventually("the end of its session", || async {
        let sessions = broker.admin().sessions("default").await.len();
        if sessions == 1 { Ok(()) } else { Err(sessions) }
    })
    .await;
    other.call("b__large", json!({})).await;
}
