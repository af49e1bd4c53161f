//! The real binary from outside: raw clients in front, scripted backends behind. One module per
//! topic.
//!
//! Each test cites the items of the compliance checklist it covers. The `stdio-backend` of the
//! testkit crate must be in the same folder as the broker (`cargo build -p testkit --bins`). With
//! `MCP_BROKER_TEST_ON=postgres` or `=cluster` the same tests run on PostgreSQL and Redis, or over
//! two replicas behind a balancer. Tests that choose their storage themselves are not affected.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod access_changes;
mod access_checks;
mod access_property;
mod accounts;
mod admin;
mod approvals;
mod apps;
mod arguments;
mod audit;
mod audit_chain;
mod backend_faults;
mod backend_http;
mod backend_links;
mod backend_stdio;
mod bad_input;
mod batch_calls;
mod batches;
mod capability_probe;
mod catalog;
mod catalog_loops;
mod chaos;
mod child_limits;
mod cli;
mod client_features;
mod clocks;
mod cluster;
mod cluster_outages;
mod cluster_streams;
mod compatibility;
mod config_folder;
mod configured_roots;
mod console;
mod console_logins;
mod counts;
mod crossings;
mod drain;
mod effective_configuration;
mod egress;
mod failover;
mod features;
mod framing;
mod full_disk;
mod handover;
mod hosted_tasks;
mod hostile;
mod hostile_headers;
mod hostile_http;
mod hostile_http2;
mod http_rules;
mod incomplete_messages;
mod leaks;
mod lifecycle;
mod limits;
mod links;
mod log_filter;
mod metrics;
mod moving;
mod oauth;
mod oauth_bindings;
mod oauth_clients;
mod oauth_drills;
mod oauth_exchange;
mod oauth_lists;
mod oauth_logins;
mod oauth_people;
mod oauth_registrations;
mod oauth_replicas;
mod oauth_secrets;
mod oauth_sign_ins;
mod operators;
mod peers;
mod pins;
mod policy;
mod process;
mod protection;
mod protection_calls;
mod protection_load;
mod protection_replicas;
mod proxies;
mod quic_amplification;
mod redis_failover;
mod relay;
mod repeated_heads;
mod replicas;
mod resource_roots;
mod restarts;
mod result_budgets;
mod revisions;
mod root_secret;
mod rpc;
mod sandbox;
mod secrets;
mod session_lists;
mod sessions;
mod sign_ins;
mod slow_clients;
mod sse;
mod starts;
mod stateless;
mod stateless_backends;
mod subscriptions;
mod task_crashes;
mod task_owners;
mod tasks;
mod tenants;
mod tokens;
mod toolsets;
mod traces;
mod utilities;
mod wires;

use std::net::SocketAddr;

use serde_json::{Value, json};
use testkit::{BrokerBuilder, FakeBackend, RawResponse, StdioScript, TestBroker, within};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const BINARY: &str = env!("CARGO_BIN_EXE_mcp-broker");

fn builder() -> BrokerBuilder {
    BrokerBuilder::new(BINARY)
}

/// Returns the path of the broker's binary.
fn binary() -> String {
    std::env::var("MCP_BROKER_BIN").unwrap_or_else(|_| BINARY.to_owned())
}

fn stdio() -> StdioScript {
    StdioScript::new(binary())
}

/// Starts a broker whose tenant `default` has this backend under the name `b`.
async fn broker_with(backend: &FakeBackend) -> TestBroker {
    builder().backend("default", "b", backend.spec()).start().await
}

/// Starts a broker with this backend, always as one process.
async fn alone_with(backend: &FakeBackend) -> TestBroker {
    builder().single_process().backend("default", "b", backend.spec()).start().await
}

/// Starts a broker with this configuration, whose tenant `default` has the backend `b`.
async fn configured(config: Value, backend: Value) -> TestBroker {
    builder().config(config).backend("default", "b", backend).start().await
}

/// Starts a broker with this configuration and the backend `b`, always as one process.
async fn configured_alone(config: Value, backend: Value) -> TestBroker {
    builder().single_process().config(config).backend("default", "b", backend).start().await
}

/// Starts a broker with an echo backend `b`.
async fn echo() -> (TestBroker, FakeBackend) {
    let backend = FakeBackend::echo().await;
    (broker_with(&backend).await, backend)
}

/// Returns a request as text.
fn request(id: u64, method: &str, params: Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

fn initialize_body(version: &str) -> String {
    let params = json!({"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}});
    request(1, "initialize", params)
}

/// Returns `error.data.kind`.
fn kind(error: &Value) -> &str {
    error["data"]["kind"].as_str().unwrap_or_else(|| panic!("the error has a kind: {error}"))
}

/// Returns the status and the error object of an answer that is a JSON-RPC error.
async fn refused(response: RawResponse) -> (u16, Value) {
    let status = response.status;
    let body = response.json().await;
    assert_eq!(body["jsonrpc"], "2.0", "{body}");
    assert!(
        body["error"]["code"].is_i64() && body["error"]["message"].is_string(),
        "an error object: {body}"
    );
    (status, body["error"].clone())
}

/// Returns the first text of a tool result.
fn text_of(result: &Value) -> &str {
    result["content"][0]["text"]
        .as_str()
        .unwrap_or_else(|| panic!("a tool result with text: {result}"))
}

/// Writes bytes on a new connection and reads until the broker closes it.
async fn raw_http(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.expect("the listener accepts");
    // The broker may close before everything is written.
    let _ = stream.write_all(bytes).await;
    read_to_close(&mut stream).await
}

/// Reads the next answer on a connection, which contains its length.
async fn read_answer(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let is_whole = |text: &str| {
        let length = text
            .to_lowercase()
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        text.split_once("\r\n\r\n")
            .zip(length)
            .is_some_and(|((_, body), length)| body.len() >= length)
    };
    loop {
        let count =
            within("an answer", stream.read_buf(&mut answer)).await.expect("the connection lives");
        let text = String::from_utf8_lossy(&answer).into_owned();
        assert!(count > 0, "the broker has closed the connection: {text}");
        if is_whole(&text) {
            return text;
        }
    }
}

async fn read_to_close(stream: &mut TcpStream) -> String {
    String::from_utf8_lossy(&read_bytes_to_close(stream).await).into_owned()
}

async fn read_bytes_to_close(stream: &mut TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    let _ = within("the broker to close the connection", stream.read_to_end(&mut answer)).await;
    answer
}
