//! Clients that end their half of a connection and still wait for their answers.

use serde_json::json;
use testkit::{QuicPeer, TestClient, duplex::Wire, within};
use tokio::{io::AsyncWriteExt, net::TcpStream, sync::mpsc};

use super::{Topology, cancellations, opening, posted};
use crate::{
    read_to_close, request,
    wires::{
        half_closed, half_closes,
        matrix::{Doors, wire},
        sse_endpoint,
    },
};

/// Tests wires where one direction can end without the other. On the others a client that has ended
/// its own half is gone.
pub(super) async fn a_half_closed_client_gets_its_answers(topology: &Topology) {
    let (before, cancelled) = (topology.sessions().await, cancellations(&topology.backend));
    let other = topology.client().await;
    match topology.front {
        "http" => {
            let client = topology.broker.connected(json!({})).await;
            let mut socket = posted_half_closed(topology, &client).await;
            let received = read_to_close(&mut socket).await;
            assert_eq!(received, "", "nothing is answered on it any more");
            // The answer can still be fetched, as after any other end of a connection (sse.rs).
            client.result("ping", json!({})).await;
            assert_eq!(cancellations(&topology.backend), cancelled);
            client.delete_session().await;
        }
        "sse" => {
            let mut stream = TcpStream::connect(topology.broker.http_address()).await.unwrap();
            let path = sse_endpoint(&mut stream).await;
            for message in opening().iter().chain([&held_call()]) {
                assert!(
                    posted(topology.broker.http_address(), &path, message).await.contains(" 202 ")
                );
            }
            is_at_it(topology).await;
            stream.shutdown().await.unwrap();
            topology
                .backend
                .wait_count("its cancellation", cancelled + 1, |seen| {
                    seen.is("notifications/cancelled")
                })
                .await;
        }
        "websocket" => {
            let mut wire = send_held_call(topology).await.0;
            is_at_it(topology).await;
            drop(wire.out); // which says goodbye
            topology
                .backend
                .wait_count("its cancellation", cancelled + 1, |seen| {
                    seen.is("notifications/cancelled")
                })
                .await;
            within("the end", rest(&mut wire.incoming)).await;
        }
        "quic_streams" => {
            let peer =
                QuicPeer::connect(topology.broker.quic_address(), &topology.authority, None, "mcp")
                    .await
                    .unwrap();
            let Wire { out, mut incoming, .. } = peer.control().await;
            for message in opening() {
                out.send(message).await.unwrap();
            }
            assert!(
                within("a session", incoming.recv())
                    .await
                    .unwrap()
                    .unwrap()
                    .contains("protocolVersion")
            );
            let (_writer, reader) =
                peer.request(&serde_json::from_str(&held_call()).unwrap()).await;
            is_at_it(topology).await;
            let before = half_closes(&topology.broker);
            drop(out);
            half_closed(&topology.broker, before + 1).await;
            topology.held.open();
            assert!(json!(QuicPeer::lines(reader).await).to_string().contains("held no longer"));
            within("the end", rest(&mut incoming)).await;
        }
        _ => {
            let (mut wire, _peer) = send_held_call(topology).await;
            is_at_it(topology).await;
            let before = half_closes(&topology.broker);
            drop(wire.out);
            half_closed(&topology.broker, before + 1).await;
            topology.held.open();
            let received = within("the end", rest(&mut wire.incoming)).await;
            assert!(received.iter().any(|text| text.contains("held no longer")), "{received:?}");
        }
    }
    topology.held.open();
    topology.leave(other, before).await;
}

fn held_call() -> String {
    request(7_000, "tools/call", json!({"name": "b__held", "arguments": {}}))
}

async fn send_held_call(topology: &Topology) -> (Wire, Option<QuicPeer>) {
    let (wire, peer) = wire(topology.front, Doors::of(&topology.broker), &topology.authority).await;
    for message in opening().into_iter().chain([held_call()]) {
        wire.out.send(message).await.unwrap();
    }
    (wire, peer)
}

/// Waits until the call of a client that sends no more has arrived.
async fn is_at_it(topology: &Topology) {
    topology.backend.wait_count("the call", 1, |seen| seen.calls("held")).await;
}

/// Reads everything until the end.
async fn rest(incoming: &mut mpsc::Receiver<Result<String, String>>) -> Vec<String> {
    let mut received = Vec::new();
    while let Some(Ok(text)) = incoming.recv().await {
        received.push(text);
    }
    received
}

/// Sends a POST of a call and ends the client's half of the connection.
async fn posted_half_closed(topology: &Topology, client: &TestClient) -> TcpStream {
    let mut socket = TcpStream::connect(topology.broker.http_address()).await.unwrap();
    socket.write_all(client.post_as_text("", &held_call()).as_bytes()).await.unwrap();
    is_at_it(topology).await;
    socket.shutdown().await.unwrap();
    socket
}
