//! Packets of TCP that are really lost: a network namespace whose only route drops packets that
//! come too fast.
//!
//! The test starts itself again inside the namespace. Without namespaces it prints that and passes.

use std::process::Command;

use serde_json::json;

use super::{answering, everything, features, with_tcp};
use crate::peers::moves::{passes_in_a_namespace, succeeds};

/// A queue so short that senders learn their rate from lost packets.
const NARROW: &str = "tc qdisc add dev lo root tbf rate 100mbit burst 16kb limit 24kb";

#[tokio::test]
async fn f_15_lost_packets_under_tcp_only_delay_calls() {
    if !passes_in_a_namespace("wires::losses::inside_a_namespace").await {
        eprintln!("no network namespaces here: no packet of TCP is lost");
    }
}

#[tokio::test]
#[ignore = "started by the test above, in a namespace"]
async fn inside_a_namespace() {
    assert!(succeeds("ip link set lo mtu 1500").await);
    let (broker, _backend) = with_tcp().await;
    let client =
        answering(broker.duplex()).tcp(broker.tcp_address()).await.connected(everything()).await;
    if !succeeds(NARROW).await {
        return eprintln!("no traffic control here: no packet of TCP is lost");
    }
    for _ in 0..3 {
        features::many_calls(&client).await;
        features::large_messages(&client).await;
    }
    let shown = Command::new("tc").args(["-s", "qdisc", "show", "dev", "lo"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let dropped =
        shown.split("dropped ").nth(1).and_then(|rest| rest.split(',').next()?.parse::<u64>().ok());
    assert!(dropped.is_some_and(|count| count > 0), "{shown}");
    assert_eq!(
        broker
            .admin()
            .metric(
                "mcp_requests_total",
                &[("method", "tools/call"), ("outcome", "refused"), ("transport", "tcp")]
            )
            .await,
        None
    );
    assert_eq!(json!(broker.admin().sessions("default").await.len()), 1);
}
