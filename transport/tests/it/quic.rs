//! The QUIC binding from outside: streams of requests, cancelling, moving, restarting, and clients that break the rules.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use quinn::{Endpoint, TransportConfig, VarInt, crypto::rustls::QuicClientConfig};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use tokio::sync::mpsc;
use transport::{
    CertificateSource, ClientAuth, ConnectError, FrameSink, FrameSource, Goodbye, ReadError, ServerTls, farewell,
    quic::{ConnectOptions, EstablishError, Limits, QuicClient, QuicConnection, QuicListener, QuicSink, QuicSource, connect},
};

use crate::{
    DEADLINE,
    certificates::{Authority, replace, uri},
    conformance::{
        Setup,
        wires::{QuicEnd, egress, quic_connection, quic_limits, quic_listener},
    },
    soon, until,
};

const ANYWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

fn limits() -> Limits {
    quic_limits(Setup { frame_bytes_max: 1024 * 1024, slice_bytes: None })
}

/// Both sides of a connection, and the listener.
async fn pair(limits: Limits) -> (QuicListener, (QuicConnection, QuicEnd), (QuicClient, QuicEnd)) {
    let (listener, tls) = quic_listener(limits.clone());
    let (server, client) = quic_connection(&listener, &tls, &limits).await;
    (listener, server, client)
}

fn frame(text: &str) -> Bytes {
    Bytes::from(text.to_owned())
}

async fn next(source: &mut QuicSource) -> Option<Bytes> {
    soon("a message", source.next()).await.unwrap()
}

#[tokio::test]
async fn each_request_has_a_stream_and_no_stream_waits_for_another() {
    let (_listener, (connection, mut server), (client, mut control)) = pair(limits()).await;
    let mut asked = Vec::new();
    for number in 0..50 {
        asked.push(client.open_request(frame(&format!("{{\"n\":{number}}}"))).await.unwrap());
    }
    let mut streams = Vec::new();
    for number in 0..50 {
        let mut stream = soon("a stream", connection.accept_request()).await.unwrap();
        assert_eq!(stream.receive().await.unwrap().unwrap(), format!("{{\"n\":{number}}}"));
        streams.push(stream);
    }
    // Answered from the last to the first, with something before each answer.
    for (number, stream) in streams.into_iter().enumerate().rev() {
        let (mut sink, _cancellation) = stream.answering();
        sink.send_all(&mut vec![frame("{\"progress\":1}"), frame(&format!("{{\"answer\":{number}}}"))]).await.unwrap();
        sink.close(Goodbye::Done).await;
        let asked = &mut asked[number];
        assert_eq!(next(&mut asked.source).await.unwrap(), "{\"progress\":1}");
        assert_eq!(next(&mut asked.source).await.unwrap(), format!("{{\"answer\":{number}}}"));
        assert_eq!(next(&mut asked.source).await, None);
    }
    // The control stream has been there all the time.
    server.sink.send_all(&mut vec![frame("{\"all\":true}")]).await.unwrap();
    assert_eq!(next(&mut control.source).await.unwrap(), "{\"all\":true}");
}

#[tokio::test]
async fn giving_up_a_stream_cancels_its_request_and_no_other() {
    let (_listener, (connection, _server), (client, _control)) = pair(limits()).await;
    let mut given_up = client.open_request(frame("{\"n\":1}")).await.unwrap();
    let mut kept = client.open_request(frame("{\"n\":2}")).await.unwrap();
    let mut first = soon("a stream", connection.accept_request()).await.unwrap();
    first.receive().await.unwrap();
    let mut second = soon("a stream", connection.accept_request()).await.unwrap();
    second.receive().await.unwrap();
    let (sink, mut cancellation) = first.answering();
    let (mut second_sink, mut second_cancellation) = second.answering();
    tokio::select! { biased;
        () = cancellation.cancelled(&sink) => panic!("nobody has cancelled"),
        () = std::future::ready(()) => {}
    }
    given_up.cancel();
    soon("the cancellation", cancellation.cancelled(&sink)).await;
    second_sink.send_all(&mut vec![frame("{\"answer\":2}")]).await.unwrap();
    second_sink.finish();
    assert_eq!(next(&mut kept.source).await.unwrap(), "{\"answer\":2}");
    tokio::select! { biased;
        () = second_cancellation.cancelled(&second_sink) => panic!("an answered request is not cancelled"),
        () = tokio::time::sleep(Duration::from_millis(50)) => {}
    }
}

#[tokio::test]
async fn every_way_to_give_up_is_a_cancellation() {
    for way in 0..4 {
        let (_listener, (connection, _server), (client, control)) = pair(limits()).await;
        // Not finished: a reset of the request's direction has to count as well.
        let mut stream = client.open_stream().await.unwrap();
        stream.sink.send_all(&mut vec![frame("{\"n\":1}")]).await.unwrap();
        let mut accepted = soon("a stream", connection.accept_request()).await.unwrap();
        accepted.receive().await.unwrap();
        let (mut sink, mut cancellation) = accepted.answering();
        match way {
            0 => stream.cancel(),
            1 => stream.sink.close(Goodbye::Policy).await,
            2 => drop(stream),
            _ => client.close(Goodbye::Done),
        }
        soon("the cancellation", cancellation.cancelled(&sink)).await;
        if way != 1 {
            let writing = async { while sink.send_all(&mut vec![frame("{}")]).await.is_ok() {} };
            soon("an error", writing).await;
        }
        drop(control);
    }
}

#[tokio::test]
async fn a_request_reset_before_it_was_whole_is_cancelled() {
    let (_listener, (connection, _server), (client, _control)) = pair(limits()).await;
    let mut stream = client.open_stream().await.unwrap();
    stream.sink.send_all(&mut vec![Bytes::new()]).await.unwrap();
    let mut accepted = soon("a stream", connection.accept_request()).await.unwrap();
    stream.cancel();
    assert!(matches!(soon("the end", accepted.receive()).await, Err(ReadError::Cancelled)));
}

#[tokio::test]
async fn q_05_streams_are_limited_and_freed() {
    let (_listener, (connection, _server), (client, _control)) = pair(Limits { request_streams_max: 2, ..limits() }).await;
    let _first = client.open_request(frame("{}")).await.unwrap();
    let mut second = client.open_request(frame("{}")).await.unwrap();
    let third = client.open_request(frame("{\"n\":3}"));
    tokio::pin!(third);
    tokio::select! {
        _ = &mut third => panic!("more streams than allowed"),
        () = tokio::time::sleep(Duration::from_millis(50)) => {}
    }
    let mut accepted = Vec::new();
    for _ in 0..2 {
        let mut stream = soon("a stream", connection.accept_request()).await.unwrap();
        stream.receive().await.unwrap().unwrap();
        accepted.push(stream);
    }
    let (mut sink, cancellation) = accepted.pop().unwrap().answering();
    sink.finish();
    drop(cancellation);
    assert_eq!(next(&mut second.source).await, None);
    soon("a free place", third).await.unwrap();
    assert_eq!(soon("the third", connection.accept_request()).await.unwrap().receive().await.unwrap().unwrap(), "{\"n\":3}");
}

#[tokio::test]
async fn goodbyes_have_codes_and_what_was_sent_arrives_before_them() {
    for goodbye in Goodbye::ALL {
        let (_listener, (connection, mut server), (client, mut control)) = pair(limits()).await;
        let long = frame(&format!("{{\"pad\":\"{}\"}}", "x".repeat(200_000)));
        let saying = async {
            server.sink.send_all(&mut vec![long.clone(), frame("{\"last\":true}")]).await.unwrap();
            farewell(&mut server.source, &mut server.sink, goodbye).await;
        };
        let hearing = async {
            assert!(control.source.next().await.unwrap().unwrap() == long);
            assert_eq!(control.source.next().await.unwrap().unwrap(), "{\"last\":true}");
            // The stream ends before the connection does, and only the latter has a reason.
            let end = control.source.next().await;
            client.closed().await;
            end
        };
        let ((), end) = soon("the end", async { tokio::join!(saying, hearing) }).await;
        assert!(matches!(end, Ok(None) | Err(ReadError::Closed { .. })), "{end:?}");
        let refused = client.open_request(frame("{}")).await.unwrap_err();
        assert!(refused.to_string().contains("closed"), "{refused}");
        connection.closed().await;
    }
}

#[tokio::test]
async fn a_close_at_once_says_why() {
    let (_listener, (connection, _server), (_client, mut control)) = pair(limits()).await;
    connection.close(Goodbye::Overloaded);
    match soon("the end", control.source.next()).await {
        Err(ReadError::Closed { code, reason }) => assert_eq!((code, &*reason), (8, "overloaded, try again later")),
        other => panic!("{other:?}"),
    }
    assert!(control.source.next().await.unwrap().is_none());
}

#[tokio::test]
async fn q_07_a_client_that_moves_keeps_its_streams() {
    let (_listener, (connection, mut server), (client, mut control)) = pair(limits()).await;
    let serving = {
        let connection = connection.clone();
        tokio::spawn(async move {
            while let Some(mut stream) = connection.accept_request().await {
                tokio::spawn(async move {
                    let request = stream.receive().await.unwrap().unwrap();
                    let (mut sink, _cancellation) = stream.answering();
                    for _ in 0..20 {
                        sink.send_all(&mut vec![request.clone()]).await.unwrap();
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    sink.close(Goodbye::Done).await;
                });
            }
        })
    };
    let mut streams = Vec::new();
    for number in 0..10 {
        streams.push(client.open_request(frame(&format!("{{\"n\":{number}}}"))).await.unwrap());
    }
    let before = connection.remote();
    for (number, stream) in streams.iter_mut().enumerate() {
        let mut seen = 0;
        while let Some(message) = next(&mut stream.source).await {
            assert_eq!(message, format!("{{\"n\":{number}}}"));
            seen += 1;
            if number == 0 && seen % 5 == 0 {
                client.rebind().unwrap();
            }
        }
        assert_eq!(seen, 20, "stream {number}");
    }
    control.sink.send_all(&mut vec![frame("{\"still\":1}")]).await.unwrap();
    assert_eq!(next(&mut server.source).await.unwrap(), "{\"still\":1}");
    until("the new address is known", || connection.remote() != before).await;
    assert_eq!(connection.remote().ip(), before.ip());
    client.close(Goodbye::Done);
    soon("the end", serving).await.unwrap();
}

#[tokio::test]
async fn q_10_a_restarted_listener_resets_the_connections_of_the_one_before() {
    let authority = Authority::new();
    let (tls, client_tls) = (Arc::new(authority.server(ClientAuth::None)), authority.client());
    let secret = [7; 32];
    // A runtime of its own stands for the first process: only its end leaves no goodbye.
    let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let first = {
        let _inside = process.enter();
        QuicListener::bind(ANYWHERE, Arc::clone(&tls), limits(), Some(&secret)).unwrap()
    };
    let address = first.local_addr().unwrap();
    let ((connection, server), (_client, mut control)) = quic_connection(&first, &client_tls, &limits()).await;
    process.shutdown_background();
    drop((connection, server, first));
    let mut again = None;
    until("the address is free", || {
        again = QuicListener::bind(address, Arc::clone(&tls), limits(), Some(&secret)).ok();
        again.is_some()
    })
    .await;
    let listening = tokio::spawn(async move { again.unwrap().accept().await.map(drop) });
    control.sink.send_all(&mut vec![frame("{\"who\":\"are you\"}")]).await.unwrap();
    let end = tokio::time::timeout(Duration::from_secs(1), control.source.next()).await.expect("the client knows within a second");
    assert!(matches!(end, Err(ReadError::Io(_))), "{end:?}");
    listening.abort();
}

/// A client of its own making: any protocol name, any transport parameters.
async fn raw(
    authority: &Authority,
    address: SocketAddr,
    protocol: &str,
    change: impl FnOnce(&mut TransportConfig),
) -> Result<quinn::Connection, quinn::ConnectionError> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.ca()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    let mut transport = TransportConfig::default();
    change(&mut transport);
    config.transport_config(Arc::new(transport));
    let endpoint = Endpoint::client(ANYWHERE).unwrap();
    soon("the handshake", endpoint.connect_with(config, address, "localhost").unwrap()).await
}

type Outcomes = mpsc::Receiver<Result<(QuicConnection, QuicSource, QuicSink), EstablishError>>;

/// A listener that establishes whoever comes.
fn serve(tls: ServerTls, limits: Limits) -> (SocketAddr, Outcomes) {
    let listener = QuicListener::bind(ANYWHERE, Arc::new(tls), limits, None).unwrap();
    let address = listener.local_addr().unwrap();
    let (established, outcomes) = mpsc::channel(1000);
    tokio::spawn(async move {
        while let Some(incoming) = listener.accept().await {
            let established = established.clone();
            tokio::spawn(async move { drop(established.send(incoming.establish(Duration::from_secs(2)).await).await) });
        }
    });
    (address, outcomes)
}

#[tokio::test]
async fn q_11_another_protocol_is_refused() {
    let authority = Authority::new();
    let (address, mut outcomes) = serve(authority.server(ClientAuth::None), limits());
    for protocol in ["h3", "mcp2", "MCP"] {
        let refusal = raw(&authority, address, protocol, |_| {}).await.unwrap_err();
        assert!(refusal.to_string().contains("protocol"), "{refusal}");
        assert!(matches!(soon("the outcome", outcomes.recv()).await.unwrap(), Err(EstablishError::Failed(_))));
    }
    raw(&authority, address, "mcp", |_| {}).await.unwrap();
}

#[tokio::test]
async fn q_05_unidirectional_streams_and_datagrams_are_refused() {
    let authority = Authority::new();
    let (address, _outcomes) = serve(authority.server(ClientAuth::None), limits());
    let connection = raw(&authority, address, "mcp", |_| {}).await.unwrap();
    tokio::select! {
        stream = connection.open_uni() => panic!("{stream:?}"),
        () = tokio::time::sleep(Duration::from_millis(100)) => {}
    }
    assert_eq!(connection.max_datagram_size(), None);
    assert_eq!(connection.send_datagram(frame("{}")), Err(quinn::SendDatagramError::UnsupportedByPeer));
}

#[tokio::test]
async fn a_client_that_opens_no_control_stream_is_not_waited_for() {
    let authority = Authority::new();
    let (address, mut outcomes) = serve(authority.server(ClientAuth::None), limits());
    let connection = raw(&authority, address, "mcp", |_| {}).await.unwrap();
    assert!(matches!(soon("the outcome", outcomes.recv()).await.unwrap(), Err(EstablishError::Timeout { .. })));
    soon("the end", connection.closed()).await;
}

#[tokio::test]
async fn the_first_stream_is_the_control_stream_whatever_arrives_first() {
    let authority = Authority::new();
    let (address, mut outcomes) = serve(authority.server(ClientAuth::None), limits());
    let connection = raw(&authority, address, "mcp", |_| {}).await.unwrap();
    let (mut control, _control_back) = connection.open_bi().await.unwrap();
    let (mut request, _request_back) = connection.open_bi().await.unwrap();
    request.write_all(b"{\"request\":1}\n").await.unwrap();
    let (server, mut source, _sink) = soon("the outcome", outcomes.recv()).await.unwrap().unwrap();
    assert_eq!(soon("the request", server.accept_request()).await.unwrap().receive().await.unwrap().unwrap(), "{\"request\":1}");
    control.write_all(b"{\"control\":1}\n").await.unwrap();
    assert_eq!(next(&mut source).await.unwrap(), "{\"control\":1}");
}

#[tokio::test]
async fn q_01_with_many_handshakes_open_newcomers_prove_their_address_first() {
    let authority = Authority::new();
    let (address, mut outcomes) = serve(authority.server(ClientAuth::None), Limits { unproved_handshakes_max: 0, ..limits() });
    let client_tls = authority.client();
    let egress = egress();
    let address_text = address.to_string();
    let limits = limits();
    let options = ConnectOptions { address: &address_text, egress: &egress, tls: &client_tls, limits: &limits, timeout: DEADLINE };
    let (_client, _source, mut sink) = connect(options).await.unwrap();
    sink.send_all(&mut vec![frame("{}")]).await.unwrap();
    soon("the outcome", outcomes.recv()).await.unwrap().unwrap();
}

#[tokio::test]
async fn q_01_an_unanswered_hello_is_not_amplified() {
    let authority = Authority::new();
    let (address, _outcomes) = serve(authority.server(ClientAuth::None), limits());
    // A hello like any other, sent through a socket of ours and never followed up.
    let proxy = tokio::net::UdpSocket::bind(ANYWHERE).await.unwrap();
    let through = proxy.local_addr().unwrap();
    let _client = tokio::spawn(async move { raw(&authority, through, "mcp", |_| {}).await.map(drop) });
    let mut hello = [0; 2048];
    let (sent, _) = soon("a hello", proxy.recv_from(&mut hello)).await.unwrap();
    let victim = tokio::net::UdpSocket::bind(ANYWHERE).await.unwrap();
    victim.send_to(&hello[..sent], address).await.unwrap();
    let mut received = 0;
    let mut packet = [0; 2048];
    while let Ok(Ok(count)) = tokio::time::timeout(Duration::from_secs(2), victim.recv(&mut packet)).await {
        received += count;
    }
    assert!(received > 0 && received <= 3 * sent, "{received} bytes for {sent}");
}

#[tokio::test]
async fn q_02_garbage_is_answered_with_silence() {
    let authority = Authority::new();
    let (address, mut outcomes) = serve(authority.server(ClientAuth::None), limits());
    let socket = UdpSocket::bind(ANYWHERE).unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut seed = 1_u32;
    for length in 0..300 {
        let garbage: Vec<u8> = (0..length)
            .map(|_| {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (seed >> 24) as u8
            })
            .collect();
        socket.send_to(&garbage, address).unwrap();
    }
    // A long header of an unknown version, too short to be worth an answer; a version negotiation packet.
    socket.send_to(&[0xc0, 0xba, 0xba, 0xba, 0xba, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0], address).unwrap();
    socket.send_to(&[0x80, 0, 0, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 1], address).unwrap();
    let connection = raw(&authority, address, "mcp", |_| {}).await.unwrap();
    connection.open_bi().await.unwrap().0.write_all(b"{}\n").await.unwrap();
    soon("the outcome", outcomes.recv()).await.unwrap().unwrap();
    assert!(socket.recv(&mut [0; 64]).is_err(), "garbage was answered");
}

#[tokio::test]
async fn who_the_client_is_stands_in_its_certificate() {
    let authority = Authority::new();
    let (address, mut outcomes) = serve(authority.server(ClientAuth::Required { ca: authority.ca() }), limits());
    let address = address.to_string();
    let egress = egress();
    let limits = limits();
    let known = authority.client_with(|params| params.subject_alt_names.push(uri("mcp-broker://acme/alice")));
    let options = ConnectOptions { address: &address, egress: &egress, tls: &known, limits: &limits, timeout: DEADLINE };
    let (_client, _source, mut sink) = connect(options).await.unwrap();
    sink.send_all(&mut vec![frame("{}")]).await.unwrap();
    let (connection, _, _) = soon("the outcome", outcomes.recv()).await.unwrap().unwrap();
    let identity = connection.client_certificate().unwrap().identity().unwrap();
    assert_eq!((&*identity.tenant, &*identity.principal), ("acme", "alice"));

    let nobody = authority.client();
    let options = ConnectOptions { address: &address, egress: &egress, tls: &nobody, limits: &limits, timeout: DEADLINE };
    // The client is done first; what the server thinks of it comes after.
    let connected = connect(options).await;
    assert!(soon("the outcome", outcomes.recv()).await.unwrap().is_err());
    if let Ok((client, mut source, _sink)) = connected {
        assert!(soon("the end", source.next()).await.is_err());
        soon("the end", client.closed()).await;
    }
}

#[tokio::test]
async fn servers_that_prove_nothing_are_not_spoken_to() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (address, _outcomes) = serve(stranger.server(ClientAuth::None), limits());
    let (address, egress, tls, limits) = (address.to_string(), egress(), authority.client(), limits());
    let options = ConnectOptions { address: &address, egress: &egress, tls: &tls, limits: &limits, timeout: DEADLINE };
    let refusal = connect(options).await.unwrap_err();
    assert!(matches!(refusal, ConnectError::Tls { .. }), "{refusal}");
}

#[tokio::test]
async fn nobody_there_is_a_timeout_and_forbidden_addresses_are_not_tried() {
    let (egress, tls, limits) = (egress(), Authority::new().client(), limits());
    let silent = UdpSocket::bind(ANYWHERE).unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let at = |address| ConnectOptions { address, egress: &egress, tls: &tls, limits: &limits, timeout: Duration::from_millis(200) };
    assert_eq!(connect(at(&address)).await.unwrap_err(), ConnectError::Timeout);
    assert!(matches!(connect(at("169.254.169.254:443")).await, Err(ConnectError::Denied(_))));
    for nonsense in ["127.0.0.1", ":1", "127.0.0.1:x", "::1:1", "127.0.0.1:70000"] {
        assert!(matches!(connect(at(nonsense)).await, Err(ConnectError::Unreachable { .. })), "{nonsense}");
    }
}

#[tokio::test]
async fn a_reload_changes_what_newcomers_see_and_drops_nobody() {
    let authority = Authority::new();
    let (old, new) = (authority.sign("server", |_| {}), authority.sign("renewed", |_| {}));
    let source = CertificateSource::Files { cert: old.0.clone(), key: old.1.clone() };
    let tls = Arc::new(ServerTls::load(source, ClientAuth::None).unwrap());
    let listener = QuicListener::bind(ANYWHERE, Arc::clone(&tls), limits(), None).unwrap();
    let address = listener.local_addr().unwrap();
    let leaf = |connection: &quinn::Connection| {
        connection.peer_identity().unwrap().downcast::<Vec<CertificateDer<'static>>>().unwrap()[0].to_vec()
    };
    let serving = async {
        let mut kept = Vec::new();
        loop {
            let incoming = listener.accept().await.unwrap();
            kept.push(incoming.establish(DEADLINE).await.unwrap());
        }
    };
    let testing = async {
        let early = raw(&authority, address, "mcp", |_| {}).await.unwrap();
        let (mut early_stream, _back) = early.open_bi().await.unwrap();
        early_stream.write_all(b"{}\n").await.unwrap();
        let first = leaf(&early);
        replace(&new, &old);
        tls.reload().unwrap();
        let late = raw(&authority, address, "mcp", |_| {}).await.unwrap();
        assert_ne!(leaf(&late), first);
        let (mut late_stream, _back) = late.open_bi().await.unwrap();
        late_stream.write_all(b"{}\n").await.unwrap();
        early_stream.write_all(b"{}\n").await.unwrap();
        early_stream.finish().unwrap();
        assert_eq!(early_stream.stopped().await.unwrap(), None::<VarInt>);
        assert!(early.close_reason().is_none());
    };
    tokio::select! {
        () = serving => {}
        () = async { soon("the reload", testing).await } => {}
    }
}

#[tokio::test]
async fn a_closed_listener_says_goodbye_to_all() {
    let (listener, (connection, server), (_client, mut control)) = pair(limits()).await;
    listener.stop_accepting();
    listener.close(Goodbye::GoingAway);
    assert!(next(&mut control.source).await.is_none());
    assert!(soon("the end of accepting", listener.accept()).await.is_none());
    drop((connection, server, control));
    soon("quiet", listener.wait_idle()).await;
}

#[test]
fn codes_on_the_wire_are_distinct() {
    let mut codes: Vec<u32> = Goodbye::ALL.iter().map(|goodbye| goodbye.quic_code()).collect();
    codes.dedup();
    assert_eq!(codes, (0..9).collect::<Vec<u32>>());
    for goodbye in Goodbye::ALL {
        assert!(goodbye.reason().len() <= 123, "fits into a close frame of WebSocket");
    }
}
