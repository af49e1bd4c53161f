//! QUIC in front: the control stream, streams of single requests, and duties of the connection
//! itself.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::{
    Authority, BrokerBuilder, DuplexClient, PacketFaults, PipeBackend, QuicPeer, TestBroker,
    UdpProxy, authority::CertificateFiles, eventually, within,
};
use tokio::{task::JoinSet, time::timeout};

use super::{answering, everything, features, listening};
use crate::{builder, kind, stdio, text_of};

fn over_quic(builder: BrokerBuilder, server: &CertificateFiles) -> BrokerBuilder {
    builder.config(json!({"listen": {"quic": "127.0.0.1:0"}, "tls": {"cert_file": server.cert, "key_file": server.key}}))
}

async fn started() -> (TestBroker, Authority) {
    let authority = Authority::new();
    let server = authority.server("server");
    (
        over_quic(builder().single_process(), &server)
            .backend("default", "b", stdio().spec())
            .start()
            .await,
        authority,
    )
}

async fn connected(
    broker: &TestBroker,
    authority: &Authority,
    capabilities: Value,
) -> (QuicPeer, DuplexClient) {
    let peer = QuicPeer::connect(broker.quic_address(), authority, None, "mcp").await.unwrap();
    let client =
        answering(broker.duplex()).over(peer.control().await).connected(capabilities).await;
    (peer, client)
}

fn call(id: u64, tool: &str, arguments: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool, "arguments": arguments, "_meta": {"progressToken": id}}})
}

/// Returns the id of the first request to the client on a request's stream.
async fn question(reader: &mut quinn::RecvStream) -> Value {
    let mut first = vec![0; 64 * 1024];
    let count = within("the question", reader.read(&mut first)).await.unwrap().unwrap();
    let question: Value = serde_json::from_slice(first[..count].trim_ascii()).unwrap();
    assert_eq!(question["method"], "elicitation/create");
    question["id"].clone()
}

#[tokio::test]
async fn every_feature_works_over_the_control_stream() {
    let (broker, authority) = started().await;
    let (peer, client) = connected(&broker, &authority, everything()).await;
    features::every_one(&client).await;
    assert_eq!(broker.admin().sessions("default").await[0]["transport"], "quic");
    peer.close(0);
    broker.admin().wait_sessions("default", 0).await;
}

#[tokio::test]
async fn a_request_may_have_a_stream_of_its_own() {
    let (broker, authority) = started().await;
    let (peer, client) = connected(&broker, &authority, everything()).await;
    let (_writer, reader) = peer.request(&call(100, "b__progress", json!({}))).await;
    let received = QuicPeer::lines(reader).await;
    assert_eq!(received.len(), 4, "{received:?}");
    assert!(received[..3].iter().all(|received| received["method"] == "notifications/progress"
        && received["params"]["progressToken"] == 100));
    assert_eq!((&received[3]["id"], text_of(&received[3]["result"])), (&json!(100), "done"));
    // An error of the request comes on its own stream.
    let (_writer, reader) = peer.request(&json!({"jsonrpc": "2.0", "id": 101, "method": "tools/call", "params": {"name": "nope"}})).await;
    assert_eq!(QuicPeer::lines(reader).await[0]["id"], 101);
    let (_writer, reader) = peer.request(&json!("nonsense")).await;
    assert_eq!(kind(&QuicPeer::lines(reader).await[0]["error"]), "invalid_request");
    let (_writer, reader) = peer.request(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}})).await;
    assert!(QuicPeer::lines(reader).await.is_empty());
    // The answers are large, and many at once.
    let mut reading = Vec::new();
    for id in 200..260 {
        let (_writer, reader) =
            peer.request(&call(id, "b__echo", json!({"text": "x".repeat(20_000)}))).await;
        reading.push((id, reader));
    }
    for (id, reader) in reading {
        assert_eq!(QuicPeer::lines(reader).await[0]["id"], id);
    }
    client.result("ping", json!({})).await;
}

#[tokio::test]
async fn a_reset_stream_cancels_its_request() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let authority = Authority::new();
    let server = authority.server("server");
    let broker = over_quic(builder().single_process(), &server)
        .backend("default", "b", stdio().record(&record).spec())
        .start()
        .await;
    let (peer, client) = connected(&broker, &authority, json!({})).await;
    let recorded = |what: &'static str, count: usize| {
        let record = record.clone();
        async move {
            let text = std::fs::read_to_string(&record).unwrap_or_default();
            if text.matches(what).count() == count { Ok(()) } else { Err(text) }
        }
    };
    let (_writer, mut reader) = peer.request(&call(300, "b__hang", json!({}))).await;
    eventually("the call", || recorded("\"hang\"", 1)).await;
    reader.stop(16_u32.into()).unwrap();
    eventually("the cancellation", || recorded("notifications/cancelled", 1)).await;
    // The other way: a stream that was not finished is reset.
    let (mut writer, _reader) = peer.connection.open_bi().await.unwrap();
    writer.write_all(format!("{}\n", call(301, "b__hang", json!({}))).as_bytes()).await.unwrap();
    eventually("the call", || recorded("\"hang\"", 2)).await;
    writer.reset(16_u32.into()).unwrap();
    eventually("the cancellation", || recorded("notifications/cancelled", 2)).await;
    // A request that is cancelled elsewhere: without an answer the stream does not end as if there
    // had been one.
    let (_writer, mut reader) = peer.request(&call(302, "b__hang", json!({}))).await;
    eventually("the call", || recorded("\"hang\"", 3)).await;
    client.notify("notifications/cancelled", json!({"requestId": 302})).await;
    assert_eq!(within("a reset", reader.received_reset()).await.unwrap(), Some(16_u32.into()));
    client.call("b__echo", json!({})).await;
    assert!(client.unread_messages().is_empty(), "{:?}", client.unread_messages());
}

#[tokio::test]
async fn q_07_a_client_that_moves_keeps_its_session() {
    let (broker, authority) = started().await;
    let (peer, client) = connected(&broker, &authority, everything()).await;
    // The client moves while a call waits for an answer.
    let (_writer, mut reader) =
        peer.request(&call(400, "b__elicit", json!({"message": "m"}))).await;
    let asked = question(&mut reader).await;
    peer.move_to_another_port();
    client
        .send(json!({"jsonrpc": "2.0", "id": asked, "result": {"action": "decline"}}).to_string())
        .await;
    assert!(text_of(&QuicPeer::lines(reader).await[0]["result"]).contains("decline"));
    features::many_calls(&client).await;
    assert_eq!(broker.admin().sessions("default").await.len(), 1);
}

#[tokio::test]
async fn q_08_lost_duplicated_and_reordered_packets_only_delay_calls() {
    let (broker, authority) = started().await;
    for weather in [
        PacketFaults { lost: 1, duplicated: 1, reordered: 1 },
        PacketFaults { lost: 10, duplicated: 10, reordered: 10 },
    ] {
        let network = UdpProxy::start(broker.quic_address(), weather).await;
        let peer = QuicPeer::connect(network.address(), &authority, None, "mcp").await.unwrap();
        let client =
            answering(broker.duplex()).over(peer.control().await).connected(json!({})).await;
        features::many_calls(&client).await;
        let mut reading = Vec::new();
        for id in 600..650 {
            reading.push((
                id,
                peer.request(&call(id, "b__echo", json!({"text": "x".repeat(5_000)}))).await,
            ));
        }
        for (id, (_writer, reader)) in reading {
            let received = QuicPeer::lines(reader).await;
            assert_eq!((received.len(), &received[0]["id"]), (1, &json!(id)), "{weather:?}");
        }
        peer.close(0);
    }
}

#[tokio::test]
async fn a_client_without_a_session_cannot_fill_the_memory() {
    let (broker, authority) = started().await;
    let peer = QuicPeer::connect(broker.quic_address(), &authority, None, "mcp").await.unwrap();
    let (mut control, _back) = peer.connection.open_bi().await.unwrap();
    control.write_all(b"{").await.unwrap();
    let mut sending = JoinSet::new();
    for _ in 0..4 {
        let (mut stream, back) = peer.connection.open_bi().await.unwrap();
        sending.spawn(async move {
            stream.write_all(&vec![b'x'; 512 * 1024]).await.unwrap();
            stream.finish().unwrap();
            let _acknowledged = stream.stopped().await;
            drop(back);
        });
    }
    let all = async { while sending.join_next().await.is_some() {} };
    assert!(timeout(Duration::from_secs(2), all).await.is_err(), "the broker has taken 2 MiB");
    let sent = peer.connection.stats().udp_tx.bytes;
    assert!(sent < 256 * 1024, "{sent}");
}

#[tokio::test]
async fn q_11_another_protocol_and_another_authority_are_refused() {
    let (broker, authority) = started().await;
    assert!(QuicPeer::connect(broker.quic_address(), &authority, None, "h3").await.is_err());
    assert!(
        QuicPeer::connect(broker.quic_address(), &Authority::new(), None, "mcp").await.is_err()
    );
}

#[tokio::test]
async fn a_certificate_names_the_tenant_of_a_quic_client_too() {
    let authority = Authority::new();
    let server = authority.server("server");
    let broker = over_quic(builder().single_process(), &server)
        .config(json!({"tls": {"client_ca_file": authority.ca(), "client_auth": "optional"}}))
        .auth_required()
        .tenant("acme")
        .backend("acme", "b", stdio().spec())
        .start()
        .await;
    let ann = authority.client("acme", "ann");
    let peer =
        QuicPeer::connect(broker.quic_address(), &authority, Some(&ann), "mcp").await.unwrap();
    let client = broker.duplex().over(peer.control().await).connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    assert_eq!(broker.admin().sessions("acme").await[0]["principal"], "ann");
    let peer = QuicPeer::connect(broker.quic_address(), &authority, None, "mcp").await.unwrap();
    let refused = broker.duplex().over(peer.control().await).initialize(json!({}), json!({})).await;
    assert_eq!(kind(&refused["error"]), "unauthorized");
    assert!(peer.ended().await.contains("not allowed"));
}

#[tokio::test]
async fn a_drain_ends_a_connection_after_its_last_answer() {
    let (mut broker, authority) = started().await;
    let peer = QuicPeer::connect(broker.quic_address(), &authority, None, "mcp").await.unwrap();
    let client = broker.duplex().over(peer.control().await).connected(everything()).await;
    // Its request to the client comes on its own stream; the answer goes over the control stream.
    let (_writer, mut reader) =
        peer.request(&call(500, "b__elicit", json!({"message": "m"}))).await;
    let asked = question(&mut reader).await;
    broker.request_shutdown();
    client
        .send(json!({"jsonrpc": "2.0", "id": asked, "result": {"action": "decline"}}).to_string())
        .await;
    assert!(text_of(&QuicPeer::lines(reader).await[0]["result"]).contains("decline"));
    assert!(peer.ended().await.contains("going away"));
    assert!(broker.wait_for_exit().await.success());
}

/// An operator ends a session: its requests are reset with the code for that, and then its
/// connection is closed.
#[tokio::test]
async fn the_end_of_a_session_is_sent_as_close_codes() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let authority = Authority::new();
    let server = authority.server("server");
    let broker = over_quic(builder().single_process(), &server)
        .backend("default", "b", stdio().record(&record).spec())
        .start()
        .await;
    let (peer, _client) = connected(&broker, &authority, json!({})).await;
    let (_writer, mut reader) = peer.request(&call(800, "b__hang", json!({}))).await;
    eventually("the call", || async {
        let text = std::fs::read_to_string(&record).unwrap_or_default();
        if text.contains("\"hang\"") { Ok(()) } else { Err(text) }
    })
    .await;
    let session = broker.admin().sessions("default").await[0]["id"].as_str().unwrap().to_owned();
    let (status, answer) = broker.admin().delete(&format!("/admin/v1/sessions/{session}")).await;
    assert_eq!(status, 204, "{answer}");
    assert_eq!(within("a reset", reader.received_reset()).await.unwrap(), Some(1_u32.into()));
    let ended = within("the end", peer.connection.closed()).await;
    assert!(
        matches!(&ended, quinn::ConnectionError::ApplicationClosed(closed) if closed.error_code == 5_u32.into()),
        "{ended}"
    );
}

#[tokio::test]
async fn a_client_that_closes_with_any_code_ends_its_session() {
    let (broker, authority) = started().await;
    for code in [0, 1, 7] {
        let (peer, _client) = connected(&broker, &authority, json!({})).await;
        assert_eq!(broker.admin().sessions("default").await.len(), 1);
        peer.close(code);
        broker.admin().wait_sessions("default", 0).await;
    }
}

#[tokio::test]
async fn every_feature_works_with_a_quic_backend() {
    let authority = Authority::new();
    let backend = PipeBackend::quic(&stdio(), authority.server("backend").server_config()).await;
    let broker = listening()
        .env("SSL_CERT_FILE", authority.ca().to_str().unwrap())
        .backend("default", "b", backend.spec())
        .start()
        .await;
    let client =
        answering(broker.duplex()).tcp(broker.tcp_address()).await.connected(everything()).await;
    features::every_one(&client).await;
    backend.cut();
    eventually("a new connection", || async {
        let answer =
            client.request("tools/call", json!({"name": "b__echo", "arguments": {}})).await;
        answer["result"].is_object().then_some(()).ok_or(answer)
    })
    .await;
}

#[tokio::test]
async fn unfinished_requests_share_one_memory_limit() {
    const PART: usize = 1 << 20;
    let authority = Authority::new();
    // There is capacity for two of the largest messages, or 16 MiB.
    let limited = builder().single_process().config(json!({"limits": {"message_bytes": "4MiB"}}));
    let broker = over_quic(limited, &authority.server("server"))
        .backend("default", "b", stdio().spec())
        .start()
        .await;
    let (peer, client) = connected(&broker, &authority, json!({})).await;
    let request = call(700, "b__echo", json!({"text": "x".repeat(PART + 1024)})).to_string();
    let (mut open, mut refused) = (Vec::new(), 0);
    // More than the 16 MiB there is capacity for.
    for _ in 0..24 {
        let (mut writer, reader) = within("a stream", peer.connection.open_bi()).await.unwrap();
        match within("room for a part", writer.write_all(&request.as_bytes()[..PART])).await {
            Ok(()) => open.push((writer, reader)),
            Err(error) => {
                assert_eq!(error, quinn::WriteError::Stopped(8_u32.into()));
                refused += 1;
            }
        }
    }
    testkit::deadline::eventually_within(
        std::time::Duration::from_secs(60),
        "a refusal",
        || async {
            let seen = broker
                .admin()
                .metric("mcp_rate_limited_total", &[("scope", "quic_request_bytes")])
                .await;
            if seen >= Some(1.0) { Ok(()) } else { Err(seen) }
        },
    )
    .await;
    client.call("b__echo", json!({})).await;
    let mut answered = 0;
    for (mut writer, reader) in open {
        // Ids are the client's own, and each is free again after its answer.
        if writer.write_all(&request.as_bytes()[PART..]).await.is_ok() && writer.finish().is_ok() {
            let mut reader = reader;
            match within("an answer", reader.read_to_end(4 << 20)).await {
                Ok(text) => answered += usize::from(!text.is_empty()),
                Err(error) => assert!(
                    error.to_string().contains('8') || error.to_string().contains("reset"),
                    "{error}"
                ),
            }
        }
    }
    assert!(answered >= 8, "{answered} answered, {refused} refused at once");
    client.call("b__echo", json!({})).await;
}
