//! Published servers with apps (MCP Apps), in front of the official host library in a real browser:
//! each app renders, and its own calls succeed.

use std::time::Duration;

use testkit::BrokerBuilder;
use tokio::process::Command;

use super::{
    install::Peers,
    process::{Ended, run},
};

const RUN_WITHIN: Duration = Duration::from_secs(180);

/// Names of the backends in `apps.mjs`, with the packages that they run.
const SERVERS: [(&str, &str); 3] =
    [("vanilla", "basic-vanillajs"), ("monitor", "system-monitor"), ("budget", "budget-allocator")];
/// Each app at two endpoints, in two eras.
const CHECKS: usize = SERVERS.len() * 2 * 2;

#[tokio::test]
async fn apps_of_published_servers_run_in_the_official_host() {
    let peers = Peers::installed();
    let builder = SERVERS
        .iter()
        .fold(BrokerBuilder::new(env!("CARGO_BIN_EXE_mcp-broker")), |builder, (name, package)| {
            builder.backend("default", name, peers.app(package))
        });
    let broker = builder.single_process().start().await;
    let mut host = Command::new(peers.node());
    host.arg(Peers::ours("peers/clients/apps.mjs")).arg(broker.url("/mcp"));
    let Ended { status, stdout, stderr } = run(host, RUN_WITHIN).await;
    let passed = stdout.lines().filter(|line| line.starts_with("ok ")).count();
    assert!(
        status.success() && passed == CHECKS,
        "{passed} passed, {status}\n{stdout}\n{stderr}\n{}",
        broker.log()
    );
}
