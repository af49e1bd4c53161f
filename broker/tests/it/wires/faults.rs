//! A bad network between a client and the broker, and between the broker and a backend.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Value, json};
use testkit::{Direction, DuplexClient, FaultProxy, PipeBackend, TestBroker, eventually, within};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::listening;
use crate::{hostile::flipped, initialize_body, kind, request, stdio, text_of};

/// A broker, a backend that records its input, and a proxy on either side of the broker.
struct Ways {
    broker: TestBroker,
    front: FaultProxy,
    back: FaultProxy,
    record: PathBuf,
    _backend: PipeBackend,
    _folder: tempfile::TempDir,
}

impl Ways {
    async fn new(config: Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let record = folder.path().join("record");
        let backend = PipeBackend::tcp(&stdio().record(&record)).await;
        let back = FaultProxy::start(backend.address()).await;
        let mut spec = backend.spec();
        spec["transport"]["address"] = json!(back.address().to_string());
        let broker = listening().config(config).backend("default", "b", spec).start().await;
        let front = FaultProxy::start(broker.tcp_address()).await;
        Self { broker, front, back, record, _backend: backend, _folder: folder }
    }

    async fn client(&self) -> DuplexClient {
        self.broker.duplex().tcp(self.front.address()).await.connected(json!({})).await
    }

    fn recorded(&self, what: &str) -> usize {
        count(&self.record, what)
    }
}

fn count(record: &Path, what: &str) -> usize {
    std::fs::read_to_string(record).unwrap_or_default().matches(what).count()
}

#[tokio::test]
async fn f_11_a_call_on_a_connection_that_was_reset_is_not_sent_again() {
    let ways = Ways::new(json!({})).await;
    let client = ways.client().await;
    let call = client.start_call("b__hang", json!({})).await;
    eventually("the call at the backend", || async {
        if ways.recorded("\"hang\"") == 1 { Ok(()) } else { Err("not there") }
    })
    .await;
    ways.back.reset();
    let answer = within("the answer", call.response_or_end())
        .await
        .expect("the client's own connection is as before");
    assert_eq!(kind(&answer["error"]), "outcome_unknown", "{answer}");
    eventually("a new connection", || async {
        let answer =
            client.request("tools/call", json!({"name": "b__echo", "arguments": {}})).await;
        answer["result"].is_object().then_some(()).ok_or(answer)
    })
    .await;
    assert_eq!(ways.recorded("\"hang\""), 1);
    // The reset is on the client's side.
    ways.front.reset();
    client.wait_for_close().await;
    ways.client().await.call("b__echo", json!({})).await;
}

#[tokio::test]
async fn f_13_a_call_with_a_swallowed_answer_times_out_and_is_not_sent_again() {
    let ways = Ways::new(json!({"timeouts": {"call": "1s"}})).await;
    let client = ways.client().await;
    client.call("b__echo", json!({})).await;
    ways.back.hole(Direction::Downstream, true);
    let answer = client
        .request("tools/call", json!({"name": "b__echo", "arguments": {"swallowed": true}}))
        .await;
    // In time, and distinct from errors that permit a retry: the backend may have acted.
    assert_eq!(
        (kind(&answer["error"]), &answer["error"]["data"]["retryable"]),
        ("timeout", &json!(false)),
        "{answer}"
    );
    assert_eq!(ways.recorded("swallowed"), 1);
    client.result("ping", json!({})).await;
}

#[tokio::test]
async fn f_14_slow_networks_delay_calls_and_cause_no_retries() {
    let ways = Ways::new(json!({})).await;
    // 300 ms, and 200 more or less.
    let mut late = (0..).map(|n: u64| Duration::from_millis(100 + n * 137 % 401));
    let mut jitter = || {
        for proxy in [&ways.front, &ways.back] {
            for way in [Direction::Upstream, Direction::Downstream] {
                proxy.latency(way, late.next().unwrap());
            }
        }
    };
    jitter();
    let client = ways.client().await;
    let mut calls = Vec::new();
    for n in 0..50 {
        jitter();
        calls.push((n, client.start_call("b__echo", json!({"n": n})).await));
        // The pause keeps them from travelling with the same delay.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for (n, call) in calls {
        assert_eq!(text_of(&call.result().await), format!("{{\"n\":{n}}}"));
    }
    assert_eq!(ways.recorded("\"n\":"), 50);
}

#[tokio::test]
async fn f_16_a_message_truncated_at_any_byte_is_never_accepted() {
    let ways = Ways::new(json!({})).await;
    let hello = format!(
        "{}\n{}\n",
        initialize_body("2025-11-25"),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"})
    );
    let call = request(2, "tools/call", json!({"name": "b__echo", "arguments": {"cut": 12}}));
    for length in 0..call.len() {
        let mut socket = TcpStream::connect(ways.broker.tcp_address()).await.unwrap();
        socket.write_all(format!("{hello}{}", &call[..length]).as_bytes()).await.unwrap();
        socket.shutdown().await.unwrap();
        let mut received = Vec::new();
        within("the end", socket.read_to_end(&mut received)).await.unwrap();
        assert!(
            !String::from_utf8_lossy(&received).contains("\"result\":{\"content\""),
            "{length}"
        );
    }
    ways.client().await.call("b__echo", json!({"whole": true})).await;
    assert_eq!((ways.recorded("\"cut\""), ways.recorded("\"whole\"")), (0, 1));
}

#[tokio::test]
async fn f_17_flipped_bits_cause_errors_and_the_connection_continues() {
    let ways = Ways::new(json!({})).await;
    let client = ways.client().await;
    // An id that the client itself will not reach.
    let call =
        request(7_000, "tools/call", json!({"name": "b__echo", "arguments": {"text": "flip"}}));
    let mut unreadable = 0;
    for flipped in flipped(&call) {
        unreadable += u32::from(serde_json::from_str::<Value>(&flipped).is_err());
        client.send(flipped).await;
    }
    client.call("b__echo", json!({"after": true})).await;
    let admin = ways.broker.admin();
    assert_eq!(admin.get("/readyz").await.0, 200);
    // Each text that is not JSON any more is counted. A damaged text that still is may be any
    // message of the client.
    assert!(unreadable > 40, "{unreadable}");
    admin
        .wait_metric("mcp_errors_total", &[("code", "-32700")], |count| {
            count == f64::from(unreadable)
        })
        .await;
}

#[tokio::test]
async fn f_18_calls_succeed_over_slow_links_and_in_single_bytes() {
    let ways = Ways::new(json!({})).await;
    let client = ways.client().await;
    for proxy in [&ways.front, &ways.back] {
        for way in [Direction::Upstream, Direction::Downstream] {
            proxy.slice(way, true);
        }
    }
    let text = "x".repeat(1_000); // each byte is four times a segment of its own
    assert!(text_of(&client.call("b__echo", json!({"text": text})).await).contains(&text));
    for proxy in [&ways.front, &ways.back] {
        proxy.heal();
        for way in [Direction::Upstream, Direction::Downstream] {
            proxy.rate(way, Some(64 * 1024));
        }
    }
    let text = "y".repeat(100_000);
    assert!(text_of(&client.call("b__echo", json!({"text": text})).await).contains(&text));
}
