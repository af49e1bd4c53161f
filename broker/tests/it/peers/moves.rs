//! A QUIC client whose address changes during the connection: two network namespaces, a cable
//! between them, aioquic in one of them.
//!
//! The test starts itself again inside a namespace, for which it needs root or user namespaces.
//! Without either it prints that, and only the client that rebinds its socket is tested
//! (`wires::quic::q_07_…`).

use std::process::Stdio;

use serde_json::json;
use testkit::{Authority, within};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::Command,
};

use super::wires::{certified, script};
use crate::{builder, stdio};

/// Address that exists in this namespace only.
const HOST: &str = "10.99.0.1";

pub(crate) async fn succeeds(line: &str) -> bool {
    let mut fields = line.split_whitespace();
    let mut command = Command::new(fields.next().unwrap());
    command.args(fields).stdin(Stdio::null()).stderr(Stdio::null());
    within(line, command.status()).await.is_ok_and(|status| status.success())
}

/// Runs an ignored test of this program in a network namespace of its own. Returns `false` if there
/// are none.
pub(crate) async fn passes_in_a_namespace(test: &str) -> bool {
    let mut unshare = "unshare --net";
    if !succeeds(&format!("{unshare} ip link set lo up")).await {
        unshare = "unshare --net --map-root-user";
    }
    if !succeeds(&format!("{unshare} ip link set lo up")).await {
        return false;
    }
    let mut command = Command::new("unshare");
    command.args(unshare.split_whitespace().skip(1)).args([
        "sh",
        "-c",
        "ip link set lo up && exec \"$0\" \"$@\"",
    ]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    let output = command.kill_on_drop(true).output().await.unwrap();
    let text = [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    true
}

#[tokio::test]
async fn q_07_a_client_in_a_namespace_keeps_its_calls_when_its_address_changes() {
    if !passes_in_a_namespace("peers::moves::inside_a_namespace").await {
        eprintln!("no network namespaces here: only the client that rebinds its socket is tested");
    }
}

#[tokio::test]
#[ignore = "started by the test above, in a namespace"]
async fn inside_a_namespace() {
    assert!(succeeds("ip link add cable0 type veth peer name cable1").await);
    assert!(succeeds(&format!("ip addr add {HOST}/24 dev cable0")).await);
    assert!(succeeds("ip link set cable0 up").await);
    let authority = Authority::new();
    let broker = certified(
        builder().single_process().config(json!({"listen": {"quic": format!("{HOST}:0")}, "auth": {"allow_anonymous_public": true}})),
        &authority,
    );
    let broker = broker.backend("default", "b", stdio().spec()).start().await;

    let python = script("quic_moves.py");
    let mut client = Command::new("unshare");
    client.arg("--net").arg(python.as_std().get_program()).args(python.as_std().get_args());
    client.args(["cable1", HOST]).arg(authority.ca());
    let mut client =
        client.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut input = client.stdin.take().unwrap();
    let mut output = BufReader::new(client.stdout.take().unwrap()).lines();
    // The process is in a namespace of its own once it is no longer `unshare`. Until then the cable
    // would not leave ours.
    let (pid, ours) = (client.id().unwrap(), std::fs::read_link("/proc/self/ns/net").unwrap());
    testkit::eventually("a namespace of the client's own", || async {
        let its = std::fs::read_link(format!("/proc/{pid}/ns/net"));
        if its.as_ref().is_ok_and(|its| *its != ours) { Ok(()) } else { Err(its) }
    })
    .await;
    assert!(succeeds(&format!("ip link set cable1 netns {pid}")).await);
    input.write_all(format!("{}\n", broker.quic_address().port()).as_bytes()).await.unwrap();

    let moved = within("the calls", output.next_line()).await.unwrap();
    assert_eq!(moved.as_deref(), Some("ok moved"));
    let sessions = broker.admin().sessions("default").await;
    assert_eq!((sessions.len(), &sessions[0]["transport"]), (1, &json!("quic")), "{sessions:?}");
    input.write_all(b"\n").await.unwrap();
    let last = within("the end", output.next_line()).await.unwrap().unwrap_or_default();
    assert!(last.starts_with("ok "), "{last}");
    assert!(within("the end", client.wait()).await.unwrap().success());
}
