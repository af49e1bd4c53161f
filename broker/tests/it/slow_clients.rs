//! R17: clients that say what they have to say as slowly as they can, many at a time. A few in `make test`, a thousand of each in
//! `make chaos WHAT=limits`.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use serde_json::json;
use testkit::eventually;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

use crate::{builder, counts::count};

/// What the listener waits for a head or a body.
const ALLOWED: Duration = Duration::from_secs(2);
/// Time for all of them to be cut on a machine that does other things too.
const CUT_WITHIN: Duration = Duration::from_secs(20);

const SLOW_HEAD: &str = "POST /mcp HTTP/1.1\r\nhost: localhost\r\nx-slow: ";
const SLOW_BODY: &str = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                         accept: application/json, text/event-stream\r\ncontent-length: 100000\r\n\r\n{";

/// Connects, says how it begins, and then a byte now and then until the connection ends. Gives how long that took.
async fn drip(address: SocketAddr, begins: &'static str) -> Duration {
    let begun = Instant::now();
    let mut socket = TcpStream::connect(address).await.unwrap();
    if socket.write_all(begins.as_bytes()).await.is_err() {
        return begun.elapsed();
    }
    let mut answer = [0; 1_024];
    loop {
        tokio::select! {
            read = socket.read(&mut answer) => match read {
                Ok(0) | Err(_) => return begun.elapsed(),
                Ok(_) => {} // what it is told before the end
            },
            () = tokio::time::sleep(Duration::from_millis(300)) => {
                if !begins.is_empty() && socket.write_all(b"x").await.is_err() {
                    return begun.elapsed();
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r17_many_slow_clients_are_cut_and_nobody_else_notices() {
    let each = count(40, 1_000);
    let config = json!({
        "timeouts": {"request_read": "2s"},
        "limits": {"connections_per_address": 10_000, "connection_burst_per_address": 20_000, "connections": 10_000},
    });
    let backend = testkit::FakeBackend::echo().await;
    let broker = builder().alone().config(config).backend("default", "b", backend.spec()).start().await;
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
        "R17: {} slow clients cut after {:?} to {worst:?}; {} calls beside them, {middle:?} in the middle",
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
