//! Tests of QUIC handshakes: accepted and refused clients, the cost of a stranger, and clients that
//! break the rules.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use quinn::{Endpoint, TransportConfig, VarInt, crypto::rustls::QuicClientConfig};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use tokio::sync::mpsc;
use transport::{
    CertificateSource, ClientAuth, CloseReason, ConnectError, FrameSink, FrameSource, ServerTls,
    WriteError,
    quic::{
        ConnectOptions, EstablishError, Limits, QuicConnection, QuicListener, QuicSink, QuicSource,
        connect,
    },
};

use super::{ANYWHERE, frame, limits, next};
use crate::{
    DEADLINE,
    certificates::{Authority, replace, uri},
    conformance::wires::egress,
    soon,
};

/// A client with any protocol name and any transport parameters.
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

/// A listener that establishes every connection.
fn serve(tls: ServerTls, limits: Limits) -> (SocketAddr, Outcomes) {
    let listener = QuicListener::bind(ANYWHERE, Arc::new(tls), limits, None).unwrap();
    let address = listener.local_addr().unwrap();
    let (established, outcomes) = mpsc::channel(1000);
    tokio::spawn(async move {
        while let Some(incoming) = listener.accept().await {
            let established = established.clone();
            tokio::spawn(async move {
                drop(established.send(incoming.establish(Duration::from_secs(2)).await).await)
            });
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
        assert!(matches!(
            soon("the outcome", outcomes.recv()).await.unwrap(),
            Err(EstablishError::Failed(_))
        ));
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
    assert_eq!(
        connection.send_datagram(frame("{}")),
        Err(quinn::SendDatagramError::UnsupportedByPeer)
    );
}

#[tokio::test]
async fn a_client_that_opens_no_control_stream_times_out() {
    let authority = Authority::new();
    let (address, mut outcomes) = serve(authority.server(ClientAuth::None), limits());
    let connection = raw(&authority, address, "mcp", |_| {}).await.unwrap();
    assert!(matches!(
        soon("the outcome", outcomes.recv()).await.unwrap(),
        Err(EstablishError::Timeout { .. })
    ));
    soon("the end", connection.closed()).await;
}

#[tokio::test]
async fn the_first_stream_is_the_control_stream_in_any_order_of_arrival() {
    let authority = Authority::new();
    let (address, mut outcomes) = serve(authority.server(ClientAuth::None), limits());
    let connection = raw(&authority, address, "mcp", |_| {}).await.unwrap();
    let (mut control, _control_back) = connection.open_bi().await.unwrap();
    let (mut request, _request_back) = connection.open_bi().await.unwrap();
    request.write_all(b"{\"request\":1}\n").await.unwrap();
    let (server, mut source, _sink) = soon("the outcome", outcomes.recv()).await.unwrap().unwrap();
    assert_eq!(
        soon("the request", server.accept_request())
            .await
            .unwrap()
            .receive()
            .await
            .unwrap()
            .unwrap(),
        "{\"request\":1}"
    );
    control.write_all(b"{\"control\":1}\n").await.unwrap();
    assert_eq!(next(&mut source).await.unwrap(), "{\"control\":1}");
}

#[tokio::test]
async fn an_unread_request_stream_is_reset_with_its_code() {
    let authority = Authority::new();
    let (address, mut outcomes) = serve(
        authority.server(ClientAuth::None),
        Limits { stall_max: Duration::from_millis(100), ..limits() },
    );
    let window = VarInt::from_u32(16 * 1024);
    let connection = raw(&authority, address, "mcp", |transport| {
        transport.stream_receive_window(window);
    })
    .await
    .unwrap();
    let (mut control, _control_back) = connection.open_bi().await.unwrap();
    control.write_all(b"{}\n").await.unwrap();
    let (mut request, mut unread) = connection.open_bi().await.unwrap();
    request.write_all(b"{}\n").await.unwrap();
    let (server, mut source, mut control_sink) =
        soon("the outcome", outcomes.recv()).await.unwrap().unwrap();
    assert_eq!(next(&mut source).await.unwrap(), "{}");
    let (mut sink, _cancellation) =
        soon("the request", server.accept_request()).await.unwrap().into_response_sink();
    let stalled = soon("the stall", sink.send_all(&mut vec![frame(&"x".repeat(1024 * 1024))]))
        .await
        .unwrap_err();
    assert!(matches!(stalled, WriteError::Stalled { .. }), "{stalled}");
    sink.close(CloseReason::SlowReader).await;
    assert_eq!(
        soon("the reset", unread.received_reset()).await.unwrap(),
        Some(VarInt::from_u32(7))
    );
    // The connection stays open without it.
    control_sink.send_all(&mut vec![frame("{\"still\":\"here\"}")]).await.unwrap();
    assert!(connection.close_reason().is_none());
}

/// Sends on these streams until the server takes no more. Returns the number of bytes.
async fn pour(streams: &mut [quinn::SendStream]) -> usize {
    let pouring = streams.iter_mut().map(|stream| async {
        let mut sent = 0;
        let write = async |stream: &mut quinn::SendStream| {
            tokio::time::timeout(Duration::from_secs(1), stream.write(&[b'x'; 4096])).await
        };
        while let Ok(written) = write(stream).await {
            sent += written.unwrap();
        }
        sent
    });
    futures_util::future::join_all(pouring).await.into_iter().sum()
}

/// The library keeps what the server does not read.
#[tokio::test]
async fn a_client_has_little_unread_until_it_is_known() {
    let authority = Authority::new();
    let (address, mut outcomes) = serve(authority.server(ClientAuth::None), limits());
    // So many bytes of a stream are not acknowledged.
    let in_flight = 4096;
    let connection = raw(&authority, address, "mcp", |transport| {
        transport.send_window(in_flight as u64);
    })
    .await
    .unwrap();
    let (mut control, _control_back) = connection.open_bi().await.unwrap();
    control.write_all(b"{").await.unwrap();
    let (server, _source, _sink) = soon("the outcome", outcomes.recv()).await.unwrap().unwrap();
    let (mut streams, mut backs) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let (stream, back) = connection.open_bi().await.unwrap();
        streams.push(stream);
        backs.push(back);
    }
    let before = pour(&mut streams).await;
    assert!(before <= 64 * 1024 + in_flight, "{before}");
    server.open_window();
    let after = before + pour(&mut streams).await;
    assert!((256 * 1024..=512 * 1024 + in_flight).contains(&after), "{after}");
}

#[tokio::test]
async fn q_01_new_clients_must_validate_their_address_first() {
    let authority = Authority::new();
    let (address, mut outcomes) = serve(authority.server(ClientAuth::None), limits());
    let client_tls = authority.client();
    let egress = egress();
    let address_text = address.to_string();
    let limits = limits();
    let options = ConnectOptions {
        address: &address_text,
        egress: &egress,
        tls: &client_tls,
        limits: &limits,
        timeout: DEADLINE,
    };
    let (_client, _source, mut sink) = connect(options).await.unwrap();
    sink.send_all(&mut vec![frame("{}")]).await.unwrap();
    soon("the outcome", outcomes.recv()).await.unwrap().unwrap();
}

#[tokio::test]
async fn q_04_a_client_with_a_validated_address_can_be_refused_or_ignored() {
    let authority = Authority::new();
    let listener =
        QuicListener::bind(ANYWHERE, Arc::new(authority.server(ClientAuth::None)), limits(), None)
            .unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        soon("the first", listener.accept()).await.unwrap().refuse();
        drop(soon("the second", listener.accept()).await.unwrap());
        let _established =
            soon("the third", listener.accept()).await.unwrap().establish(DEADLINE).await;
    });
    for _ in 0..2 {
        let refusal = raw(&authority, address, "mcp", |_| {}).await.unwrap_err();
        assert!(refusal.to_string().contains("refused"), "{refusal}");
    }
    raw(&authority, address, "mcp", |_| {}).await.unwrap();
}

#[tokio::test]
async fn q_01_an_unanswered_hello_is_not_amplified() {
    let authority = Authority::new();
    let (address, _outcomes) = serve(authority.server(ClientAuth::None), limits());
    // An ordinary hello goes through a socket of this test, which sends no second packet.
    let proxy = tokio::net::UdpSocket::bind(ANYWHERE).await.unwrap();
    let through = proxy.local_addr().unwrap();
    let _client =
        tokio::spawn(async move { raw(&authority, through, "mcp", |_| {}).await.map(drop) });
    let mut hello = [0; 2048];
    let (sent, _) = soon("a hello", proxy.recv_from(&mut hello)).await.unwrap();
    let victim = tokio::net::UdpSocket::bind(ANYWHERE).await.unwrap();
    victim.send_to(&hello[..sent], address).await.unwrap();
    let mut received = 0;
    let mut packet = [0; 2048];
    while let Ok(Ok(count)) =
        tokio::time::timeout(Duration::from_secs(2), victim.recv(&mut packet)).await
    {
        received += count;
    }
    assert!(received > 0 && received <= 3 * sent, "{received} bytes for {sent}");
}

#[tokio::test]
async fn q_02_garbage_gets_no_answer() {
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
    // A long header of an unknown version, too short to deserve an answer, and a version
    // negotiation packet.
    socket.send_to(&[0xc0, 0xba, 0xba, 0xba, 0xba, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0], address).unwrap();
    socket.send_to(&[0x80, 0, 0, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 1], address).unwrap();
    let connection = raw(&authority, address, "mcp", |_| {}).await.unwrap();
    connection.open_bi().await.unwrap().0.write_all(b"{}\n").await.unwrap();
    soon("the outcome", outcomes.recv()).await.unwrap().unwrap();
    assert!(socket.recv(&mut [0; 64]).is_err(), "garbage was answered");
}

#[tokio::test]
async fn the_identity_of_a_client_comes_from_its_certificate() {
    let authority = Authority::new();
    let (address, mut outcomes) =
        serve(authority.server(ClientAuth::Required { ca: authority.ca(), crl: None }), limits());
    let address = address.to_string();
    let egress = egress();
    let limits = limits();
    let known = authority
        .client_with(|params| params.subject_alt_names.push(uri("mcp-broker://acme/alice")));
    let options = ConnectOptions {
        address: &address,
        egress: &egress,
        tls: &known,
        limits: &limits,
        timeout: DEADLINE,
    };
    let (_client, _source, mut sink) = connect(options).await.unwrap();
    sink.send_all(&mut vec![frame("{}")]).await.unwrap();
    let (connection, _, _) = soon("the outcome", outcomes.recv()).await.unwrap().unwrap();
    let identity = connection.client_certificate().unwrap().identity().unwrap();
    assert_eq!((&*identity.tenant, &*identity.principal), ("acme", "alice"));

    let nobody = authority.client();
    let options = ConnectOptions {
        address: &address,
        egress: &egress,
        tls: &nobody,
        limits: &limits,
        timeout: DEADLINE,
    };
    // The client completes the handshake first, and the server refuses it afterwards.
    let connected = connect(options).await;
    assert!(soon("the outcome", outcomes.recv()).await.unwrap().is_err());
    if let Ok((client, mut source, _sink)) = connected {
        assert!(soon("the end", source.next()).await.is_err());
        soon("the end", client.closed()).await;
    }
}

#[tokio::test]
async fn connections_to_unverified_servers_fail() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (address, _outcomes) = serve(stranger.server(ClientAuth::None), limits());
    let (address, egress, tls, limits) =
        (address.to_string(), egress(), authority.client(), limits());
    let options = ConnectOptions {
        address: &address,
        egress: &egress,
        tls: &tls,
        limits: &limits,
        timeout: DEADLINE,
    };
    let refusal = connect(options).await.unwrap_err();
    assert!(matches!(refusal, ConnectError::Tls { .. }), "{refusal}");
}

#[tokio::test]
async fn a_silent_address_times_out_and_a_forbidden_one_is_not_tried() {
    let (egress, tls, limits) = (egress(), Authority::new().client(), limits());
    let silent = UdpSocket::bind(ANYWHERE).unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let at = |address| ConnectOptions {
        address,
        egress: &egress,
        tls: &tls,
        limits: &limits,
        timeout: Duration::from_millis(200),
    };
    assert_eq!(connect(at(&address)).await.unwrap_err(), ConnectError::Timeout);
    assert!(matches!(connect(at("169.254.169.254:443")).await, Err(ConnectError::Denied(_))));
    for nonsense in ["127.0.0.1", ":1", "127.0.0.1:x", "::1:1", "127.0.0.1:70000"] {
        assert!(
            matches!(connect(at(nonsense)).await, Err(ConnectError::Unreachable { .. })),
            "{nonsense}"
        );
    }
}

#[tokio::test]
async fn a_reload_applies_to_new_connections_and_keeps_open_ones() {
    let authority = Authority::new();
    let (old, new) = (authority.sign("server", |_| {}), authority.sign("renewed", |_| {}));
    let source = CertificateSource::Files { cert: old.0.clone(), key: old.1.clone() };
    let tls = Arc::new(ServerTls::load(source, ClientAuth::None).unwrap());
    let listener = QuicListener::bind(ANYWHERE, Arc::clone(&tls), limits(), None).unwrap();
    let address = listener.local_addr().unwrap();
    let leaf = |connection: &quinn::Connection| {
        connection.peer_identity().unwrap().downcast::<Vec<CertificateDer<'static>>>().unwrap()[0]
            .to_vec()
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
