//! Clients whose connection is their session, and backends behind sockets.

mod backend_http_sse;
mod backend_quic;
mod backend_tcp;
mod backend_tls;
mod backend_websocket;
mod bounds;
mod certificate_files;
mod conduct;
mod faults;
mod features;
mod json_suite;
mod legacy;
mod losses;
pub(crate) mod matrix;
mod meta;
mod passed_on;
mod quic;
mod quic_readers;
mod tcp;
mod tls;
mod websocket;

use serde_json::{Value, json};
use testkit::{
    BrokerBuilder, DuplexClient, PipeBackend, TestBroker, TestClient, duplex::DuplexBuilder,
    eventually, within,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{builder, stdio};

/// Makes a test for each of `all`, named after it, which passes its wire to `conducts`. Another
/// test checks that none of them is missing.
macro_rules! over_each {
    ($all:expr, $conducts:path: $($name:ident),*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            $conducts(stringify!($name)).await;
        })*

        #[test]
        fn every_listed_name_has_a_test() {
            assert_eq!($all.as_slice(), [$(stringify!($name)),*].as_slice());
        }
    };
}
use over_each;

/// Returns a broker of one process that listens on TCP too.
fn listening() -> BrokerBuilder {
    builder().single_process().config(json!({"listen": {"tcp": "127.0.0.1:0"}}))
}

/// Opens a stream of HTTP+SSE; returns the address for its messages.
async fn sse_endpoint(stream: &mut TcpStream) -> String {
    stream
        .write_all(b"GET /sse HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n")
        .await
        .unwrap();
    let mut head = String::new();
    while !head.contains("session=") || !head.ends_with('\n') {
        let mut piece = [0; 1024];
        let count = within("the endpoint", stream.read(&mut piece)).await.unwrap();
        head.push_str(str::from_utf8(&piece[..count]).unwrap());
    }
    head.split("data: ").nth(1).unwrap().lines().next().unwrap().to_owned()
}

/// Opens a session on a client's connection; returns its id.
async fn session_of(client: &DuplexClient, capabilities: Value) -> String {
    let answer = client.initialize(capabilities, json!({})).await;
    let id = answer["result"]["_meta"]["dev.mcp-broker/session"].as_str();
    let id = id.unwrap_or_else(|| panic!("{answer}")).to_owned();
    client.notify("notifications/initialized", json!({})).await;
    id
}

/// Waits until a call of the backend's tool has a result, on a new connection.
async fn serves_again(client: &TestClient) {
    eventually("a new connection", || async {
        let answer =
            client.request("tools/call", json!({"name": "b__echo", "arguments": {}})).await;
        answer["result"].is_object().then_some(()).ok_or(answer)
    })
    .await;
}

/// Returns the configuration of brokers that log when a client ends its half of a connection.
fn telling_half_closes() -> Value {
    json!({"telemetry": {"log": "info,broker::listeners::duplex=debug"}})
}

/// Returns how many clients have ended their half.
fn half_closes(broker: &TestBroker) -> usize {
    broker.log().matches("the client closed its sending side").count()
}

/// Waits until so many clients have ended their half.
async fn half_closed(broker: &TestBroker, count: usize) {
    eventually("the end of what a client says", || async {
        let seen = half_closes(broker);
        if seen == count { Ok(()) } else { Err(seen) }
    })
    .await;
}

/// Starts a broker with the scripted backend as `b`, as a child process.
async fn with_stdio() -> TestBroker {
    listening().backend("default", "b", stdio().spec()).start().await
}

/// Starts a broker with the scripted backend as `b`, behind TCP.
async fn with_tcp() -> (TestBroker, PipeBackend) {
    let backend = PipeBackend::tcp(&stdio()).await;
    (listening().backend("default", "b", backend.spec()).start().await, backend)
}

/// Returns a client that can answer every request.
fn answering(builder: DuplexBuilder) -> DuplexBuilder {
    builder.answers(|method, params| match method {
        "sampling/createMessage" => {
            let text = params["messages"][0]["content"]["text"].as_str().unwrap_or_default();
            Ok(json!({"role": "assistant", "content": {"type": "text", "text": format!("re: {text}")}, "model": "m"}))
        }
        "elicitation/create" => Ok(json!({"action": "accept", "content": {"name": params["message"]}})),
        "roots/list" => Ok(json!({"roots": [{"uri": "file:///here"}]})),
        "ping" => Ok(json!({})),
        other => Err(json!({"code": -32601, "message": format!("no {other}")})),
    })
}

fn everything() -> Value {
    json!({"sampling": {}, "elicitation": {}, "roots": {}})
}
