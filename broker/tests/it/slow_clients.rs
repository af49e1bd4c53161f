//! R17: clients that send as slowly as they can, many at a time. A few in `make test`, a thousand
//! of each in `make chaos WHAT=limits`.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use testkit::eventually;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

use crate::{builder, configured_alone, counts::count, initialize_body, request, stdio};

/// Time that the listener waits for a head or a body.
const ALLOWED: Duration = Duration::from_secs(2);
/// Time for all of them to be cut on a machine that does other work too.
const CUT_WITHIN: Duration = Duration::from_secs(20);
/// Time after which a client that reads nothing is cut. Until then its outbox stays within its
/// limit, because the broker reads no more of its requests.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time to make and read the answers for one more client in a debug build.
const EACH: Duration = Duration::from_millis(200);

const SLOW_HEAD: &str = "POST /mcp HTTP/1.1\r\nhost: localhost\r\nx-slow: ";
const SLOW_BODY: &str = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                         accept: application/json, text/event-stream\r\ncontent-length: 100000\r\n\r\n{";

/// Connects, sends the beginning, and then a byte now and then until the connection ends. Returns
/// the time of that.
async fn drip(address: SocketAddr, begins: &'static str) -> Duration {
    let started = Instant::now();
    let mut socket = TcpStream::connect(address).await.unwrap();
    if socket.write_all(begins.as_bytes()).await.is_err() {
        return started.elapsed();
    }
    let mut answer = [0; 1_024];
    loop {
        tokio::select! {
            read = socket.read(&mut answer) => match read {
                Ok(0) | Err(_) => return started.elapsed(),
                Ok(_) => {} // the messages that it gets before the end
            },
            () = tokio::time::sleep(Duration::from_millis(300)) => {
                if !begins.is_empty() && socket.write_all(b"x").await.is_err() {
                    return started.elapsed();
                }
            }
        }
    }
}

/// Calls of a client that reads no answer: together they are more than the buffers of two sockets
/// and its outbox hold.
const UNREAD: u64 = 16;
const UNREAD_BYTES: usize = 500_000;

/// Returns a TCP connection on which a client has opened a session and sent so many equal calls. It
/// has read nothing yet.
pub(crate) async fn send_calls(
    address: SocketAddr,
    calls: u64,
    tool: &str,
    arguments: Value,
) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(call_messages(calls, tool, &arguments).as_bytes()).await.unwrap();
    socket
}

/// Does the same for a client that will not read, with as little capacity in its socket as
/// possible.
pub(crate) async fn send_calls_without_reading(
    address: SocketAddr,
    calls: u64,
    tool: &str,
    arguments: Value,
) -> TcpStream {
    send_without_reading(address, &call_messages(calls, tool, &arguments)).await
}

async fn send_without_reading(address: SocketAddr, text: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket2::SockRef::from(&socket).set_recv_buffer_size(4096).unwrap();
    socket.write_all(text.as_bytes()).await.unwrap();
    socket
}

/// Returns all messages of a client that opens a session and calls a tool so many times.
pub(crate) fn call_messages(calls: u64, tool: &str, arguments: &Value) -> String {
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string();
    let calls = (0..calls)
        .map(|id| request(10 + id, "tools/call", json!({"name": tool, "arguments": arguments})));
    [initialize_body("2025-11-25"), initialized]
        .into_iter()
        .chain(calls)
        .map(|line| line + "\n")
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r17_many_clients_that_never_read_are_cut_and_others_are_not_affected() {
    let count = count(10, 250);
    let config = json!({
        "listen": {"tcp": "127.0.0.1:0"},
        "limits": {
            "outbox_bytes": "512KiB", "connections_per_address": 2_000, "connections_per_second_per_address": 0,
            "calls_in_flight_per_tenant": 100_000, "calls_queued_per_backend": 100_000, "calls_queued": 100_000,
            "sessions_per_principal": 2_000, "sessions_per_tenant": 2_000,
        },
    });
    let backend = testkit::FakeBackend::echo().await;
    // The tool runs in a process of its own, which has no other work.
    let mut large = stdio().spec();
    large["links"] = json!("shared");
    let broker = builder()
        .single_process()
        .config(config)
        .backend("default", "b", backend.spec())
        .backend("default", "large", large)
        .start()
        .await;
    let canary = broker.connected(json!({})).await;
    canary.call("b__echo", json!({})).await;
    let of_broker = async |name: &str, labels: &[(&str, &str)]| {
        broker.admin().metric(name, labels).await.unwrap_or(0.0)
    };
    let before = of_broker("process_open_fds", &[]).await;
    // All calls are sent before the first answer comes. A client from which the broker stops
    // reading, because much waits for it, is cut after `PATIENCE`.
    let asked = call_messages(UNREAD, "sized", &json!({"bytes": UNREAD_BYTES, "pause_ms": 500}));
    let (opening, calls) = asked.split_once('\n').unwrap();
    let mut opening: Value = serde_json::from_str(opening).unwrap();
    opening["params"]["_meta"] = json!({"dev.mcp-broker/backend": "large"});
    let asked = format!("{opening}\n{calls}");
    let (started, mut deaf_ones) = (Instant::now(), Vec::new());
    for _ in 0..count {
        deaf_ones.push(send_without_reading(broker.tcp_address(), &asked).await);
    }
    let connected = started.elapsed();
    let (mut calls, until) =
        (Vec::new(), Instant::now() + CUT_WITHIN + PATIENCE + EACH * count as u32);
    let cut = [("scope", "outbox_bytes")];
    loop {
        let asked = Instant::now();
        canary.call("b__echo", json!({})).await;
        calls.push(asked.elapsed());
        let cut_now = of_broker("mcp_rate_limited_total", &cut).await;
        if cut_now >= count as f64 {
            break;
        }
        assert!(Instant::now() < until, "{cut_now} of {count} are cut");
    }
    calls.sort_unstable();
    println!(
        "R17: {count} clients that read nothing have asked after {connected:?} and are cut after {:?}; {} calls meanwhile, {:?} in the middle",
        started.elapsed(),
        calls.len(),
        calls[calls.len() / 2]
    );
    // Their sessions end; the client that reads is there as before.
    broker.admin().wait_sessions("default", 1).await;
    broker.admin().wait_metric("mcp_outbox_bytes", &[], |bytes| bytes == 0.0).await;
    canary.call("b__echo", json!({})).await;
    // The broker has closed their connections, whatever they do.
    eventually("the descriptors back", || async {
        let now = of_broker("process_open_fds", &[]).await;
        if now <= before + 10.0 { Ok(()) } else { Err(now) }
    })
    .await;
    drop(deaf_ones);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r17_many_slow_clients_are_cut_and_others_are_not_affected() {
    let each = count(40, 1_000);
    let config = json!({
        "timeouts": {"request_read": "2s"},
        "limits": {"connections_per_address": 10_000, "connection_burst_per_address": 20_000, "connections": 10_000},
    });
    let backend = testkit::FakeBackend::echo().await;
    let broker = configured_alone(config, backend.spec()).await;
    let canary = broker.connected(json!({})).await;
    canary.call("b__echo", json!({})).await;
    let open = async || broker.admin().metric("process_open_fds", &[]).await.unwrap();
    let before = open().await;
    let mut slow = JoinSet::new();
    for begins in [SLOW_HEAD, SLOW_BODY, ""] {
        for _ in 0..each {
            slow.spawn(drip(broker.http_address(), begins));
        }
    }
    let mut calls = Vec::new();
    let mut cut = Vec::new();
    while !slow.is_empty() {
        let asked = Instant::now();
        canary.call("b__echo", json!({})).await;
        calls.push(asked.elapsed());
        while let Some(ended) = slow.try_join_next() {
            cut.push(ended.unwrap());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    calls.sort_unstable();
    cut.sort_unstable();
    let (middle, worst) = (calls[calls.len() / 2], cut[cut.len() - 1]);
    println!(
        "R17: {} slow clients cut after {:?} to {worst:?}; {} calls meanwhile, {middle:?} in the middle",
        cut.len(),
        cut[0],
        calls.len()
    );
    assert_eq!(cut.len(), 3 * each);
    assert!(cut[0] >= ALLOWED / 2 && worst < CUT_WITHIN, "{:?} to {worst:?}", cut[0]);
    eventually("the descriptors back", || async {
        let now = open().await;
        if now <= before + 5.0 { Ok(()) } else { Err(now) }
    })
    .await;
}
