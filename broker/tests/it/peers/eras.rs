//! SDK clients of both eras in front of one server of both: once used in sessions, once without.
//! The clients take the same steps directly and through the broker, and must see the same results
//! (`/peers/clients/eras.py`).

use std::time::Duration;

use serde_json::json;
use testkit::{BrokerBuilder, Topology};
use tokio::process::Command;

use super::{
    install::Peers,
    process::{Ended, run},
};

const RUN_WITHIN: Duration = Duration::from_secs(180);
/// Lines that a client prints for one mode and one backend: its revision, nine steps, and a client
/// that declares nothing.
const STEPS: usize = 11;

/// Runs the client in these modes in front of both backends.
async fn sees_the_same(topology: Topology, client: impl Fn(&Peers) -> Command, modes: &[&str]) {
    let peers = Peers::installed();
    let server = peers.both_eras().await;
    let spec = |protocol: &str| json!({"transport": {"type": "http", "url": server.url}, "protocol": protocol});
    let broker = BrokerBuilder::new(env!("CARGO_BIN_EXE_mcp-broker"))
        .backend("default", "old", spec("legacy"))
        .backend("default", "new", spec("modern"))
        .on(topology);
    compares(broker, client, modes, &peers, &server.url).await;
}

/// Runs the client at the server itself and at the backends `old` and `new`.
async fn compares(
    broker: BrokerBuilder,
    client: impl Fn(&Peers) -> Command,
    modes: &[&str],
    peers: &Peers,
    url: &str,
) {
    let broker = broker.start().await;
    let mut client = client(peers);
    client.args([url, &broker.url("")]).args(modes);
    let Ended { status, stdout, stderr } = run(client, RUN_WITHIN).await;
    let (passed, failed): (Vec<&str>, Vec<&str>) =
        stdout.lines().partition(|line| line.starts_with("ok "));
    let wanted = STEPS * modes.len() * 2;
    let output =
        || format!("{} of {wanted}, {status}\n{}\n{stderr}", passed.len(), failed.join("\n"));
    assert!(status.success() && failed.is_empty() && passed.len() == wanted, "{}", output());
}

fn python(interpreter: std::path::PathBuf, script: &str) -> Command {
    let mut command = Command::new(interpreter);
    command.arg("-B").arg(Peers::ours(&format!("peers/clients/{script}")));
    command
}

on_every_ground! {
    /// `auto` is the SDK's default.
    async fn python_sdk_2_gets_the_same_as_without_the_broker(topology: Topology) {
        sees_the_same(topology, |peers| python(peers.python(2), "python_2_eras.py"), &["auto", "legacy"]).await;
    }

    async fn typescript_sdk_2_gets_the_same_as_without_the_broker(topology: Topology) {
        let client = |peers: &Peers| {
            let mut command = Command::new(peers.node());
            command.arg(Peers::ours("peers/clients/typescript_eras.mjs"));
            command
        };
        sees_the_same(topology, client, &["auto", "legacy"]).await;
    }
}

/// The server behind the broker speaks HTTP+SSE of 2024-11-05, once as registered and once as found
/// out.
#[tokio::test]
async fn python_sdk_2_gets_the_same_with_an_http_and_sse_backend() {
    let peers = Peers::installed();
    let (direct, sse) = (peers.both_eras().await, peers.both_eras_over_sse().await);
    let spec = |kind: &str| json!({"transport": {"type": kind, "url": sse.url}});
    let broker = BrokerBuilder::new(env!("CARGO_BIN_EXE_mcp-broker"))
        .backend("default", "old", spec("sse"))
        .backend("default", "new", spec("http"));
    let client = |peers: &Peers| python(peers.python(2), "python_2_eras.py");
    compares(broker, client, &["auto", "legacy"], &peers, &direct.url).await;
}

/// The server behind the broker keeps the era of the first request for its whole process.
#[tokio::test]
async fn python_sdk_2_gets_the_same_with_a_stdio_backend() {
    let peers = Peers::installed();
    let direct = peers.both_eras().await;
    let broker = BrokerBuilder::new(env!("CARGO_BIN_EXE_mcp-broker"))
        .backend("default", "old", peers.both_eras_over_stdio())
        .backend("default", "new", peers.both_eras_over_stdio());
    let client = |peers: &Peers| python(peers.python(2), "python_2_eras.py");
    compares(broker, client, &["auto", "legacy"], &peers, &direct.url).await;
}

#[tokio::test]
async fn fastmcp_gets_the_same_as_without_the_broker() {
    sees_the_same(
        Topology::Sqlite,
        |peers| python(peers.python_of_fastmcp(), "fastmcp_eras.py"),
        &["auto", "legacy"],
    )
    .await;
}

/// `initialize` is the SDK's default, and names 2026-07-28.
#[tokio::test]
async fn rust_sdk_gets_the_same_as_without_the_broker() {
    sees_the_same(
        Topology::Sqlite,
        |peers| Command::new(peers.rust_sdk()),
        &["discover", "auto", "initialize"],
    )
    .await;
}
