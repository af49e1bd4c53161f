//! SDK clients whose calls wait for the approval of a person (`/peers/clients/approvals.*`), in
//! sessions and without. The test is the person.

use std::time::Duration;

use serde_json::json;
use testkit::{AdminClient, BrokerBuilder};
use tokio::process::Command;

use super::{
    install::Peers,
    process::{Ended, run},
};
use crate::approvals::{bank, decide, list, policy_requiring_approval};

const RUN_WITHIN: Duration = Duration::from_secs(60);
/// Time between two looks of the person at the list.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
const CHECKS: usize = 3;

/// Approves what is sent to Ann, and denies the rest.
async fn decide_all(admin: &AdminClient) {
    loop {
        for approval in list(admin, "pending").await {
            let is_ann = approval["arguments"]["to"] == "Ann";
            let decision = if is_ann { "approve" } else { "deny" };
            let (status, answer) = decide(admin, approval["id"].as_str().unwrap(), decision).await;
            assert_eq!(status, 200, "{answer}");
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

async fn waits_for_a_person(mut client: Command, mode: &str) {
    let backend = bank().await;
    let broker = BrokerBuilder::new(env!("CARGO_BIN_EXE_mcp-broker"))
        .backend("default", "b", backend.spec())
        .start()
        .await;
    let policy = "/admin/v1/tenants/default/policy";
    let (status, answer) = broker.admin().put(policy, &policy_requiring_approval(json!({}))).await;
    assert_eq!(status, 201, "{answer}");
    client.args([&broker.url("/mcp"), mode]);
    let admin = broker.admin();
    let Ended { status, stdout, stderr } = tokio::select! {
        ended = run(client, RUN_WITHIN) => ended,
        () = decide_all(&admin) => unreachable!("the person never leaves"),
    };
    let passed = stdout.lines().filter(|line| line.starts_with("ok ")).count();
    assert!(status.success() && passed == CHECKS, "{status}\n{stdout}\n{stderr}");
    assert_eq!(backend.count(|seen| seen.calls("send")), 1, "one call was executed, once");
}

#[tokio::test]
async fn the_typescript_sdk_waits_in_sessions_and_without() {
    let peers = Peers::installed();
    for mode in ["legacy", "auto"] {
        let mut command = Command::new(peers.node());
        command.arg(Peers::ours("peers/clients/approvals.mjs"));
        waits_for_a_person(command, mode).await;
    }
}

#[tokio::test]
async fn the_python_sdk_waits_in_sessions_and_without() {
    let peers = Peers::installed();
    for mode in ["legacy", "auto"] {
        let mut command = Command::new(peers.python(2));
        command.arg("-B").arg(Peers::ours("peers/clients/approvals.py"));
        waits_for_a_person(command, mode).await;
    }
}
