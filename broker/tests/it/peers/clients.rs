//! SDK clients in front of `server-everything` behind the aggregated endpoint: once as an HTTP
//! backend, once as a child.
//!
//! The scripts in `/peers/clients` hold the checks. This module starts the processes they need and
//! requires their `ok` lines.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::{BrokerBuilder, Topology};
use tokio::process::Command;

use super::{
    install::Peers,
    process::{Ended, run},
};

/// The name under which `server-everything` is registered.
const BACKEND: &str = "everything";
/// Longest run of a client: dozens of checks, of which the slowest (tasks) take several seconds by
/// design of the server.
const RUN_WITHIN: Duration = Duration::from_secs(180);
/// Least number of printed checks, so that an empty run cannot pass.
const CHECKS_MIN: usize = 20;

async fn client_passes(topology: Topology, client: Command, transport: Value) {
    passes_checks(topology, client, transport, CHECKS_MIN).await;
}

/// Number of checks of `python_2_modern.py`.
const MODERN_CHECKS: usize = 15;

async fn passes_checks(topology: Topology, client: Command, transport: Value, checks: usize) {
    let spec = json!({"transport": transport});
    let broker = BrokerBuilder::new(env!("CARGO_BIN_EXE_mcp-broker"))
        .backend("default", BACKEND, spec)
        .on(topology)
        .start()
        .await;
    passes_at(&broker.url("/mcp"), client, checks).await;
}

/// Runs the checks of a client against an endpoint.
async fn passes_at(url: &str, mut client: Command, checks: usize) {
    client.args([url, BACKEND]);
    let Ended { status, stdout, stderr } = run(client, RUN_WITHIN).await;
    let passed = stdout.lines().filter(|line| line.starts_with("ok ")).count();
    let failed: Vec<&str> = stdout.lines().filter(|line| !line.starts_with("ok ")).collect();
    assert!(
        status.success() && failed.is_empty() && passed >= checks,
        "{passed} passed, {status}\n{}\n{stderr}",
        failed.join("\n")
    );
}

fn typescript(peers: &Peers) -> Command {
    let mut command = Command::new(peers.node());
    command.arg(Peers::ours("peers/clients/typescript.mjs"));
    command
}

fn python(peers: &Peers, line: u8) -> Command {
    let mut command = Command::new(peers.python(line));
    // Python would otherwise leave compiled files in the clone.
    command.arg("-B").arg(Peers::ours(&format!("peers/clients/python_{line}.py")));
    command
}

fn modern(peers: &Peers) -> Command {
    let mut command = Command::new(peers.python(2));
    command.arg("-B").arg(Peers::ours("peers/clients/python_2_modern.py"));
    command
}

async fn passes_over_http(topology: Topology, client: impl Fn(&Peers) -> Command) {
    let peers = Peers::installed();
    let server = peers.everything_over_http().await;
    client_passes(topology, client(&peers), json!({"type": "http", "url": server.url})).await;
}

async fn passes_over_stdio(topology: Topology, client: impl Fn(&Peers) -> Command) {
    let peers = Peers::installed();
    client_passes(topology, client(&peers), peers.everything_over_stdio()).await;
}

/// Runs the checks at the endpoint of a toolset that holds all of `server-everything`, and fixes no
/// argument. What clients see there is what they see at `/mcp`.
async fn passes_at_a_toolset(client: impl Fn(&Peers) -> Command, checks: usize) {
    let peers = Peers::installed();
    let all = json!([format!("{BACKEND}/*")]);
    let toolset = json!({
        "published": true, "include": {"tools": all, "prompts": all, "resources": all}
    });
    let broker = BrokerBuilder::new(env!("CARGO_BIN_EXE_mcp-broker"))
        .backend("default", BACKEND, json!({"transport": peers.everything_over_stdio()}))
        .config(json!({"tenants": {"default": {"toolsets": {"all": toolset}}}}))
        .start()
        .await;
    passes_at(&broker.url("/mcp/t/all"), client(&peers), checks).await;
}

#[tokio::test]
async fn typescript_sdk_at_a_toolset() {
    passes_at_a_toolset(typescript, CHECKS_MIN).await;
}

#[tokio::test]
async fn python_2_sdk_at_a_toolset() {
    passes_at_a_toolset(|peers| python(peers, 2), CHECKS_MIN).await;
}

#[tokio::test]
async fn python_2_sdk_of_2026_at_a_toolset() {
    passes_at_a_toolset(modern, MODERN_CHECKS).await;
}

/// Runs the checks in front of an HTTP+SSE server, whose kind the broker knows or finds out.
async fn passes_over_sse(kind: &str, client: impl Fn(&Peers) -> Command) {
    let peers = Peers::installed();
    let server = peers.everything_over_sse().await;
    let transport = json!({"type": kind, "url": server.url});
    client_passes(Topology::Sqlite, client(&peers), transport).await;
}

/// Number of checks of `session_lists.mjs`.
const SESSION_LIST_CHECKS: usize = 4;

/// Runs the SDK in front of servers that change their lists for one session. `everything` is the
/// transport of `server-everything`.
async fn sees_own_lists(everything: Value) {
    let peers = Peers::installed();
    let toolsets = json!({"type": "stdio", "command": peers.python(1), "args": ["-B", Peers::ours("peers/servers/toolsets.py")]});
    // The server is a file of the clone, which the sandbox does not show.
    let toolsets =
        json!({"transport": toolsets, "sandbox": {"read": [Peers::ours("peers/servers")]}});
    let broker = BrokerBuilder::new(env!("CARGO_BIN_EXE_mcp-broker"))
        .backend("default", BACKEND, json!({"transport": everything}))
        .backend("default", "toolsets", toolsets)
        .start()
        .await;
    let mut client = Command::new(peers.node());
    client.arg(Peers::ours("peers/clients/session_lists.mjs")).arg(broker.url("/mcp"));
    let Ended { status, stdout, stderr } = run(client, RUN_WITHIN).await;
    let passed = stdout.lines().filter(|line| line.starts_with("ok ")).count();
    assert!(
        status.success() && passed == SESSION_LIST_CHECKS,
        "{passed} passed, {status}\n{stdout}\n{stderr}"
    );
}

#[tokio::test]
async fn typescript_sdk_sees_lists_of_one_session_over_http() {
    let server = Peers::installed().everything_over_http().await;
    sees_own_lists(json!({"type": "http", "url": server.url})).await;
}

#[tokio::test]
async fn typescript_sdk_sees_lists_of_one_session_over_stdio() {
    sees_own_lists(Peers::installed().everything_over_stdio()).await;
}

/// Number of checks of `wires.mjs`.
const WIRE_CHECKS: usize = 11;

async fn passes_over(kind: &str, scheme: &str, path: &str) {
    let peers = Peers::installed();
    let spec = json!({"transport": peers.everything_over_stdio()});
    let broker = BrokerBuilder::new(env!("CARGO_BIN_EXE_mcp-broker"))
        .single_process()
        .backend("default", BACKEND, spec)
        .start()
        .await;
    let mut client = Command::new(peers.node());
    client.arg(Peers::ours("peers/clients/wires.mjs"));
    client.args([kind, &format!("{scheme}://{}{path}", broker.http_address()), BACKEND]);
    let Ended { status, stdout, stderr } = run(client, RUN_WITHIN).await;
    let passed = stdout.lines().filter(|line| line.starts_with("ok ")).count();
    assert!(
        status.success() && passed == WIRE_CHECKS,
        "{passed} passed, {status}\n{stdout}\n{stderr}"
    );
}

#[tokio::test]
async fn typescript_sdk_over_http_and_sse() {
    passes_over("sse", "http", "/sse").await;
}

#[tokio::test]
async fn typescript_sdk_over_websocket() {
    passes_over("websocket", "ws", "/ws").await;
}

#[tokio::test]
async fn typescript_sdk_with_http_and_sse_backend() {
    passes_over_sse("sse", typescript).await;
}

#[tokio::test]
async fn typescript_sdk_with_http_and_sse_backend_that_is_detected() {
    passes_over_sse("http", typescript).await;
}

#[tokio::test]
async fn python_sdk_2_with_http_and_sse_backend() {
    passes_over_sse("sse", |peers| python(peers, 2)).await;
}

on_every_ground! {
    async fn typescript_sdk_with_http_backend(topology: Topology) {
        passes_over_http(topology, typescript).await;
    }

    async fn typescript_sdk_with_stdio_backend(topology: Topology) {
        passes_over_stdio(topology, typescript).await;
    }

    async fn python_sdk_1_with_http_backend(topology: Topology) {
        passes_over_http(topology, |peers| python(peers, 1)).await;
    }

    async fn python_sdk_1_with_stdio_backend(topology: Topology) {
        passes_over_stdio(topology, |peers| python(peers, 1)).await;
    }

    async fn python_sdk_2_with_http_backend(topology: Topology) {
        passes_over_http(topology, |peers| python(peers, 2)).await;
    }

    async fn python_sdk_2_with_stdio_backend(topology: Topology) {
        passes_over_stdio(topology, |peers| python(peers, 2)).await;
    }

    /// Runs the SDK in its default mode, which stays with 2026-07-28.
    async fn python_sdk_2_without_sessions_with_http_backend(topology: Topology) {
        let peers = Peers::installed();
        let server = peers.everything_over_http().await;
        passes_checks(topology, modern(&peers), json!({"type": "http", "url": server.url}), MODERN_CHECKS).await;
    }

    async fn python_sdk_2_without_sessions_with_stdio_backend(topology: Topology) {
        let peers = Peers::installed();
        passes_checks(topology, modern(&peers), peers.everything_over_stdio(), MODERN_CHECKS).await;
    }
}
