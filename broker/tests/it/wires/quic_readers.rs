//! Clients of QUIC that do not receive the stream of a request, or do not read it: the answers and
//! errors they get, and the resources they hold.

use std::{net::SocketAddr, time::Duration};

use serde_json::{Value, json};
use testkit::{
    Authority, DuplexClient, FakeBackend, Gate, QuicPeer, Reply, TestBroker,
    abort_on_drop::AbortOnDrop, duplex::Wire, eventually, judge::Revision, within,
};
use tokio::{net::UdpSocket, sync::watch, time::timeout};

use super::telling_half_closes;
use crate::{builder, initialize_body, kind, request, stateless::meta};

/// Bytes that a client here accepts of each stream before it reads.
const NARROW: u32 = 4 * 1024;
const LARGE: usize = 100_000;
/// Time in which no packet reaches a client. It exceeds the time for the last frames of other
/// connections.
const HELD: Duration = Duration::from_secs(6);
/// Code with which a stream is reset that its client does not read (docs/transports.md).
const TOO_SLOW: u32 = 7;

async fn started(backend: &FakeBackend, limits: Value) -> (TestBroker, Authority) {
    let authority = Authority::new();
    let server = authority.server("server");
    let config = json!({
        "listen": {"quic": "127.0.0.1:0"}, "limits": limits, "tls": {"cert_file": server.cert, "key_file": server.key},
    });
    (
        builder()
            .single_process()
            .config(config)
            .config(telling_half_closes())
            .backend("default", "b", backend.spec())
            .start()
            .await,
        authority,
    )
}

/// Returns a connection with stateless requests.
async fn standing_alone(broker: &TestBroker, peer: &QuicPeer) -> DuplexClient {
    let client = broker.duplex().speaking(Revision::V2026_07_28).over(peer.control().await);
    client.result("tools/list", json!({"_meta": meta(json!({}))})).await;
    client
}

fn call(id: u64, tool: &str, mut meta: Value) -> Value {
    meta["progressToken"] = json!(id);
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool, "arguments": {}, "_meta": meta}})
}

async fn send_large_progress(call: &testkit::BackendCall, progress: usize) {
    let params = json!({"progressToken": call.progress_token(), "progress": progress, "message": "x".repeat(LARGE)});
    call.notify("notifications/progress", params).await;
}

#[tokio::test]
async fn a_finished_call_frees_its_permit_even_if_its_client_reads_slowly() {
    let gate = Gate::new();
    let at_gate = gate.clone();
    let backend = FakeBackend::echo().await;
    backend.tool("talk", move |call| {
        let gate = at_gate.clone();
        async move {
            send_large_progress(&call, 1).await;
            gate.passed().await;
            Reply::text("done")
        }
    });
    let (broker, authority) = started(&backend, json!({"calls_in_flight_per_tenant": 1})).await;
    let peer = QuicPeer::connect_narrowly(broker.quic_address(), &authority, NARROW).await;
    let client = standing_alone(&broker, &peer).await;
    let (_writer, mut reader) = peer.request(&call(1, "b__talk", meta(json!({})))).await;
    within("the first byte", reader.read_exact(&mut [0])).await.unwrap();
    let other = || {
        client.request(
            "tools/call",
            json!({"name": "b__echo", "arguments": {}, "_meta": meta(json!({}))}),
        )
    };
    assert_eq!(kind(&other().await["error"]), "too_many_calls", "the one permit is taken");
    gate.open();
    eventually("the permit to be free", || async {
        let answer = other().await;
        if answer["result"].is_object() { Ok(()) } else { Err(answer) }
    })
    .await;
    // Its client gets all of it, when it reads.
    let rest = within("the rest", reader.read_to_end(4 * LARGE)).await.unwrap();
    assert!(rest.len() > LARGE && String::from_utf8_lossy(&rest).contains("\"done\""));
}

#[tokio::test]
async fn f_19_an_unread_stream_is_reset_when_others_need_the_memory() {
    let gates = [Gate::new(), Gate::new()];
    let at_gates = gates.clone();
    let backend = FakeBackend::echo().await;
    backend.tool("flood", move |call| {
        let gate = at_gates[usize::from(call.arguments()["alone"] == true)].clone();
        async move {
            send_large_progress(&call, 1).await;
            gate.passed().await;
            for progress in 2..60 {
                send_large_progress(&call, progress).await;
            }
            Reply::Hang
        }
    });
    let (broker, authority) = started(&backend, json!({"outbox_bytes_total": "2MiB"})).await;
    let peers = [
        QuicPeer::connect_narrowly(broker.quic_address(), &authority, NARROW).await,
        QuicPeer::connect_narrowly(broker.quic_address(), &authority, NARROW).await,
    ];
    let with_session = broker.duplex().over(peers[0].control().await).connected(json!({})).await;
    let alone = standing_alone(&broker, &peers[1]).await;
    for (n, meta) in [(0, json!({})), (1, meta(json!({})))] {
        let mut call = call(100, "b__flood", meta);
        call["params"]["arguments"]["alone"] = json!(n == 1);
        let (_writer, mut reader) = peers[n].request(&call).await;
        within("the first byte", reader.read_exact(&mut [0])).await.unwrap();
        gates[n].open();
        assert_eq!(
            within("a reset", reader.received_reset()).await.unwrap(),
            Some(TOO_SLOW.into())
        );
        backend
            .wait_count("its cancellation", n + 1, |seen| seen.is("notifications/cancelled"))
            .await;
        let so_far = (n + 1) as f64;
        broker
            .admin()
            .wait_metric("mcp_rate_limited_total", &[("scope", "outbox_bytes")], |count| {
                count == so_far
            })
            .await;
    }
    broker.admin().wait_metric("mcp_outbox_bytes", &[], |bytes| bytes == 0.0).await;
    with_session.call("b__echo", json!({})).await;
    alone
        .result("tools/call", json!({"name": "b__echo", "arguments": {}, "_meta": meta(json!({}))}))
        .await;
}

/// A network of one client that can hold the packets to the client.
struct HeldNetwork {
    address: SocketAddr,
    holds: watch::Sender<bool>,
    _relay: AbortOnDrop,
}

impl HeldNetwork {
    async fn start(broker: SocketAddr) -> Self {
        let inside = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let outside = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        outside.connect(broker).await.unwrap();
        let (address, holds) = (inside.local_addr().unwrap(), watch::Sender::new(false));
        let relay = tokio::spawn(relay(inside, outside, holds.subscribe()));
        Self { address, holds, _relay: AbortOnDrop(relay) }
    }

    fn hold(&self, holds: bool) {
        self.holds.send_replace(holds);
    }
}

async fn relay(inside: UdpSocket, outside: UdpSocket, mut holds: watch::Receiver<bool>) {
    let (mut client, mut held) = (None, Vec::new());
    let (mut up, mut down) = (vec![0; 65_507], vec![0; 65_507]);
    loop {
        tokio::select! {
            received = inside.recv_from(&mut up) => {
                let Ok((count, from)) = received else { return };
                client = Some(from);
                let _gone = outside.send(&up[..count]).await;
            }
            received = outside.recv(&mut down) => {
                held.extend(received.ok().map(|count| down[..count].to_vec()));
            }
            changed = holds.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
        let is_held = *holds.borrow();
        let Some(client) = client.filter(|_| !is_held) else { continue };
        for packet in held.drain(..) {
            let _gone = inside.send_to(&packet, client).await;
        }
    }
}

/// The end of a connection discards what its client has not received. A client that has closed its
/// half of the control stream still gets the answers of the other streams.
#[tokio::test]
async fn an_answer_arrives_before_the_end_of_its_connection_over_any_network() {
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string();
    let list = request(1, "tools/list", json!({"_meta": meta(json!({}))}));
    for (opening, meta) in [
        (vec![initialize_body("2025-11-25"), initialized], json!({})),
        (vec![list], meta(json!({}))),
    ] {
        let gate = Gate::new();
        let backend =
            FakeBackend::with_tool("large", gate.before(Reply::text(&"x".repeat(5 * LARGE)))).await;
        let (broker, authority) = started(&backend, json!({})).await;
        let network = HeldNetwork::start(broker.quic_address()).await;
        let peer = QuicPeer::connect(network.address, &authority, None, "mcp").await.unwrap();
        let Wire { out, mut incoming, .. } = peer.control().await;
        for message in opening {
            out.send(message).await.unwrap();
        }
        within("the first answer", incoming.recv()).await.unwrap().unwrap();
        let (_writer, reader) = peer.request(&call(2, "b__large", meta)).await;
        backend.wait_count("the call", 1, |seen| seen.calls("large")).await;
        drop(out);
        network.hold(true);
        gate.open();
        let ended = timeout(HELD, broker.wait_for_log("connection ended")).await;
        assert!(ended.is_err(), "the client has not received its answer");
        network.hold(false);
        let received = QuicPeer::lines(reader).await;
        let text = received.last().unwrap()["result"]["content"][0]["text"].as_str().unwrap();
        assert_eq!(text.len(), 5 * LARGE);
        broker.wait_for_log("connection ended").await;
    }
}
