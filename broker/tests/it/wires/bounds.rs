//! What one client of a duplex listener can hold up.

use serde_json::json;
use testkit::{FakeBackend, Gate, Reply, TestBroker, eventually};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use super::listening;
use crate::{initialize_body, request, stdio};

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
    broker.admin().wait_sessions("default", 1).await;
    other.call("b__large", json!({})).await;
}

/// Moves the limit of descriptors of a process that runs.
fn limit_descriptors(broker: &TestBroker, count: u64) {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let pid = Pid::from_raw(broker.pid().cast_signed()).unwrap();
    prlimit(Some(pid), Resource::Nofile, Rlimit { current: Some(count), maximum: Some(count) }).unwrap();
}

#[tokio::test]
async fn f_20_health_and_operators_are_served_when_clients_have_used_up_the_descriptors() {
    let broker = listening().backend("default", "b", stdio().spec()).start().await;
    let canary = broker.duplex().tcp(broker.tcp_address()).await.connected(json!({})).await;
    canary.call("b__echo", json!({})).await;
    limit_descriptors(&broker, 256);
    // Twice as many as there can be, on both listeners. The kernel takes them all.
    let mut strangers = Vec::new();
    for _ in 0..250 {
        for address in [broker.tcp_address(), broker.http_address()] {
            strangers.push(TcpStream::connect(address).await.unwrap());
        }
    }
    let admin = broker.admin();
    admin.wait_metric("mcp_rate_limited_total", &[("scope", "descriptors")], |count| count >= 2.0).await;
    assert_eq!(admin.get("/readyz").await.0, 200);
    let (cpu, begun) = (admin.metric("process_cpu_seconds_total", &[]).await.unwrap(), std::time::Instant::now());
    for _ in 0..20 {
        assert_eq!(admin.get("/healthz").await.0, 200);
        canary.call("b__echo", json!({})).await;
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let used = admin.metric("process_cpu_seconds_total", &[]).await.unwrap() - cpu;
    assert!(used < 0.2 * begun.elapsed().as_secs_f64(), "{used} s of {:?}", begun.elapsed());
    let open = admin.metric("process_open_fds", &[]).await.unwrap();
    // The reserve is a quarter of so low a limit; those who accept at the same time may reach into it, and so does this request.
    assert!((150.0..=200.0).contains(&open), "{open} open");
    assert!(broker.log().contains("only the reserve of file descriptors is left"));
    // A backend's process is not started from the reserve either.
    admin.put_backend("default", "c", &stdio().spec()).await;
    let failed = admin.wait_backend("default", "c", "a failure", |backend| !backend["last_error"].is_null()).await;
    assert!(failed["last_error"].as_str().unwrap().contains("descriptor"), "{failed}");
    drop(strangers);
    let client = broker.duplex().tcp(broker.tcp_address()).await.connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    admin.wait_backend_state("default", "c", "ready").await;
}
