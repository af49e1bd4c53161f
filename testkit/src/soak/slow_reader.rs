//! A client over TCP that sends calls and reads no answer, until the broker disconnects it.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpSocket,
};

use super::visits::LoadState;
use crate::{client::LATEST, within};

/// Longer than the broker waits for a client from which it reads no more.
const PATIENCE: Duration = Duration::from_secs(40);
/// Together more than the buffers of two sockets and the outbox hold.
const CALLS: usize = 16;
const BYTES: usize = 500_000;
const RECEIVE_BUFFER: u32 = 4_096;

/// Does it over and over again until the load is over.
pub(super) async fn ignore_answers(state: Arc<LoadState>) {
    while !state.is_over() {
        let number = state.next_visit();
        let once = ignore(state.clone(), number);
        state.attempt(&format!("slow reader {number}"), once).await;
    }
}

async fn ignore(state: Arc<LoadState>, number: u64) {
    let (replica, key) = state.site.choose(number);
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(RECEIVE_BUFFER).expect("a socket has this option");
    let mut socket = socket.connect(state.site.replicas[replica].tcp).await.expect("it listens");
    let text: String = messages(key).iter().map(|message| format!("{message}\n")).collect();
    socket.write_all(text.as_bytes()).await.expect("the broker reads");
    let pause = async {
        let mut every = tokio::time::interval(Duration::from_secs(1));
        while !state.is_over() {
            every.tick().await;
        }
    };
    if tokio::time::timeout(PATIENCE, pause).await.is_ok() {
        return; // the load is over
    }
    let mut answers = Vec::new();
    // The end may be a reset.
    let _end = within("the end of a slow reader", socket.read_to_end(&mut answers)).await;
    assert!(answers.len() < CALLS * BYTES, "it got all {} bytes", answers.len());
    state.count("slow reader");
}

/// Returns the handshake and the calls.
fn messages(key: &str) -> Vec<Value> {
    let params = json!({
        "protocolVersion": LATEST, "capabilities": {}, "clientInfo": {"name": "slow", "version": "1"},
        "_meta": {"dev.mcp-broker/token": key},
    });
    let mut messages = vec![
        json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
    ];
    let params = json!({"name": "b__sized", "arguments": {"bytes": BYTES}});
    messages.extend(
        (1..=CALLS).map(
            |id| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}),
        ),
    );
    messages
}
