//! Peers of single wires that share no code with the broker: aioquic, the Python `websockets`, `openssl s_client`, a script
//! of twenty lines, and nghttp2's `h2load`.

use std::{process::Stdio, time::Duration};

use serde_json::{Value, json};
use testkit::{Authority, BrokerBuilder, TestBroker, within};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::Command,
};

use super::{
    install::Peers,
    process::{Ended, run},
};
use crate::{builder, configured_alone, initialize_body, request, stdio, text_of};

const RUN_WITHIN: Duration = Duration::from_secs(120);

pub(super) fn script(name: &str) -> Command {
    let mut command = Command::new(Peers::installed().python_of_wires());
    command.arg("-B").arg(Peers::ours(&format!("peers/clients/{name}")));
    command
}

/// Runs a client that prints its checks, and requires this number of them.
async fn passes(command: Command, checks: usize) {
    let Ended { status, stdout, stderr } = run(command, RUN_WITHIN).await;
    let passed = stdout.lines().filter(|line| line.starts_with("ok ")).count();
    assert!(
        status.success() && passed == checks,
        "{passed} of {checks} passed, {status}\n{stdout}\n{stderr}"
    );
}

pub(super) fn certified(builder: BrokerBuilder, authority: &Authority) -> BrokerBuilder {
    let server = authority.server("server");
    builder.config(json!({"tls": {"cert_file": server.cert, "key_file": server.key}}))
}

async fn over_tls(listen: Value) -> (TestBroker, Authority) {
    let authority = Authority::new();
    let broker =
        certified(builder().single_process().config(json!({"listen": listen})), &authority);
    (broker.backend("default", "b", stdio().spec()).start().await, authority)
}

#[tokio::test]
async fn aioquic_clients_use_the_quic_binding() {
    let authority = Authority::new();
    let record = authority.ca().with_file_name("record");
    let broker = certified(
        builder().single_process().config(json!({"listen": {"quic": "127.0.0.1:0"}})),
        &authority,
    );
    let mut broker = broker.backend("default", "b", stdio().record(&record).spec()).start().await;
    let mut client = script("quic_wire.py");
    client.args([broker.quic_address().ip().to_string(), broker.quic_address().port().to_string()]);
    client.arg(authority.ca()).arg(record).arg(broker.pid().to_string());
    passes(client, 8).await;
    assert!(within("the end of the broker", broker.wait_for_exit()).await.success());
}

#[tokio::test]
async fn q_03_invalid_transport_parameters_are_refused() {
    let (broker, authority) = over_tls(json!({"quic": "127.0.0.1:0"})).await;
    let mut client = script("quic_strangers.py");
    client
        .args([broker.quic_address().ip().to_string(), broker.quic_address().port().to_string()])
        .arg(authority.ca());
    // Q-06 is among them: no early data.
    passes(client, 5).await;
    assert!(!broker.log().contains("panicked"));
}

#[tokio::test]
async fn python_websockets_clients_use_the_websocket_endpoint() {
    let config = json!({"limits": {"message_bytes": 1 << 20}, "timeouts": {"websocket_ping": "100ms", "websocket_idle": "500ms"}});
    let broker = configured_alone(config, stdio().spec()).await;
    let mut client = script("websocket_wire.py");
    client.arg(format!("ws://{}/ws", broker.http_address()));
    passes(client, 7).await;
}

#[tokio::test]
async fn a_script_of_twenty_lines_uses_the_tcp_listener() {
    let (broker, authority) = over_tls(json!({"tcp": "127.0.0.1:0"})).await;
    for tls in [false, true] {
        let mut client = script("tcp_wire.py");
        client.args(["localhost", &broker.tcp_address().port().to_string()]);
        if tls {
            client.arg(authority.ca());
        }
        passes(client, 3).await;
    }
}

/// Returns `openssl s_client` to the TCP listener.
fn s_client(broker: &TestBroker, authority: &Authority, more: &[&str]) -> Command {
    let mut command = Command::new("openssl");
    command.args([
        "s_client",
        "-quiet",
        "-verify_return_error",
        "-connect",
        &broker.tcp_address().to_string(),
        "-CAfile",
    ]);
    command
        .arg(authority.ca())
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    command
}

#[tokio::test]
async fn openssl_clients_use_the_tcp_listener_with_tls() {
    let (broker, authority) = over_tls(json!({"tcp": "127.0.0.1:0"})).await;
    for more in [&["-alpn", "mcp"][..], &["-tls1_2"], &["-tls1_3"]] {
        let mut child = s_client(&broker, &authority, more).spawn().expect("openssl is installed");
        let mut input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let call =
            request(2, "tools/call", json!({"name": "b__echo", "arguments": {"over": more}}));
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        input
            .write_all(
                format!("{}\n{initialized}\n{call}\n", initialize_body("2025-11-25")).as_bytes(),
            )
            .await
            .unwrap();
        for id in [1, 2] {
            let line = within("an answer", output.next_line())
                .await
                .unwrap()
                .unwrap_or_else(|| panic!("{more:?}: no answer {id}"));
            let answer: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(answer["id"], id);
            if id == 2 {
                assert_eq!(text_of(&answer["result"]), json!({"over": more}).to_string());
            }
        }
    }
    for more in [&["-alpn", "h3"][..], &["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"]] {
        let mut command = s_client(&broker, &authority, more);
        command.stdin(Stdio::null());
        assert!(
            !within("a refusal", command.status()).await.unwrap().success(),
            "{more:?} was let in"
        );
    }
}

#[tokio::test]
async fn h2load_drives_http_2_with_and_without_tls() {
    let (broker, authority) = over_tls(json!({})).await;
    let client = broker.connected(json!({})).await;
    let body = authority.ca().with_file_name("body");
    std::fs::write(&body, request(1, "tools/list", json!({}))).unwrap();
    let session = format!("mcp-session-id: {}", client.session().unwrap());
    for (scheme, protocol) in [("http", "h2c"), ("https", "h2")] {
        let mut load = Command::new("h2load");
        load.args([
            "-n",
            "2000",
            "-c",
            "4",
            "-m",
            "50",
            "-H",
            "content-type: application/json",
            "-H",
            &session,
        ]);
        load.args(["-H", "accept: application/json, text/event-stream", "-d"]).arg(&body);
        load.arg(format!("{scheme}://{}/mcp", broker.http_address()));
        let Ended { status, stdout, stderr } = run(load, RUN_WITHIN).await;
        assert!(status.success(), "{stdout}{stderr}");
        assert!(stdout.contains(&format!("Application protocol: {protocol}\n")), "{stdout}");
        assert!(stdout.contains("2000 succeeded, 0 failed, 0 errored"), "{stdout}");
        assert!(stdout.contains("status codes: 2000 2xx"), "{stdout}");
    }
    client.result("ping", json!({})).await;
}
