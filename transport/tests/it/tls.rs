//! Tests of TLS on listeners and clients: accepted and refused peers, and the effect of a reload.

use std::{
    io::ErrorKind,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use rcgen::{CertificateParams, DnType};
use rustls::{
    ClientConfig, HandshakeKind, RootCertStore, SupportedProtocolVersion,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    version::{TLS12, TLS13},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_rustls::TlsConnector;
use transport::{
    CertificateSource, ClientAuth, ClientTls, ClientTlsFiles, ConnectError, ListenerKind,
    ServerTls, TlsError,
    tcp::{self, Stream},
    tls::{ClientIdentity, ClientIdentityFiles, TlsHandshakeError},
};

use crate::{
    DEADLINE,
    certificates::{Authority, expired, replace, uri},
    conformance::wires::egress,
    soon,
};

/// Accepts for ever. The channel yields the result of each connection.
async fn serve(
    server: Arc<ServerTls>,
) -> (SocketAddr, mpsc::Receiver<Result<Stream, TlsHandshakeError>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (accepted, outcomes) = mpsc::channel(64);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (server, accepted) = (Arc::clone(&server), accepted.clone());
            tokio::spawn(async move {
                let outcome =
                    server.accept(socket, ListenerKind::Tcp, Duration::from_millis(500)).await;
                let _ = accepted.send(outcome).await;
            });
        }
    });
    (address, outcomes)
}

async fn connect(address: SocketAddr, client: &ClientTls) -> Result<Stream, ConnectError> {
    tcp::connect(&address.to_string(), &egress(), Some(client), DEADLINE).await
}

/// Sends one message there and back, which also proves that the server has accepted the client's
/// certificate.
async fn talk(client: &mut Stream, server: &mut Stream) {
    client.write_all(b"ping").await.unwrap();
    let mut bytes = [0; 4];
    soon("the ping", server.read_exact(&mut bytes)).await.unwrap();
    server.write_all(&bytes).await.unwrap();
    soon("the pong", client.read_exact(&mut bytes)).await.unwrap();
    assert_eq!(&bytes, b"ping");
}

fn tls_reason(outcome: Result<Stream, ConnectError>) -> String {
    match outcome {
        Err(ConnectError::Tls { reason }) => reason,
        other => panic!("expected a tls error, not {other:?}"),
    }
}

#[tokio::test]
async fn a_connection_to_an_unverified_server_fails() {
    let authority = Authority::new();
    let stranger = Authority::new();
    let elsewhere = authority.sign("elsewhere", |params| params.subject_alt_names = vec![]);
    let outdated = authority.sign("outdated", expired);
    let unknown = stranger.sign("unknown", |_| {});
    for ((cert, key), reason) in
        [(elsewhere, "not valid for name"), (outdated, "expired"), (unknown, "UnknownIssuer")]
    {
        let server =
            ServerTls::load(CertificateSource::Files { cert, key }, ClientAuth::None).unwrap();
        let (address, _outcomes) = serve(Arc::new(server)).await;
        let refusal = tls_reason(connect(address, &authority.client()).await);
        assert!(refusal.contains(reason), "{refusal}");
    }
    let own = ServerTls::load(
        CertificateSource::SelfSigned { names: vec!["127.0.0.1".to_owned()] },
        ClientAuth::None,
    )
    .unwrap();
    let (address, _outcomes) = serve(Arc::new(own)).await;
    tls_reason(connect(address, &authority.client()).await);
}

#[tokio::test]
async fn the_expected_server_name_can_be_configured() {
    let authority = Authority::new();
    let (cert, key) = authority.sign("named", |params| {
        params.subject_alt_names = vec![rcgen::SanType::DnsName("mcp.example".try_into().unwrap())]
    });
    let (address, mut outcomes) = serve(Arc::new(
        ServerTls::load(CertificateSource::Files { cert, key }, ClientAuth::None).unwrap(),
    ))
    .await;
    tls_reason(connect(address, &authority.client()).await);
    assert!(outcomes.recv().await.unwrap().is_err());
    let named = ClientTlsFiles {
        ca: Some(authority.ca()),
        server_name: Some("mcp.example".to_owned()),
        identity: None,
    };
    let mut client = connect(address, &ClientTls::load(&named).unwrap()).await.unwrap();
    talk(&mut client, &mut outcomes.recv().await.unwrap().unwrap()).await;
}

#[tokio::test]
async fn a_client_without_a_required_certificate_is_refused() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (address, mut outcomes) =
        serve(Arc::new(authority.server(ClientAuth::Required { ca: authority.ca(), crl: None })))
            .await;

    let known = authority
        .client_with(|params| params.subject_alt_names.push(uri("mcp-broker://acme/alice")));
    let mut client = connect(address, &known).await.unwrap();
    let mut server = outcomes.recv().await.unwrap().unwrap();
    talk(&mut client, &mut server).await;
    let identity = server.client_certificate().unwrap().identity().unwrap();
    assert_eq!((identity.tenant.as_str(), identity.principal.as_str()), ("acme", "alice"));

    // In TLS 1.3 the client finishes before the server has checked its certificate, so only the
    // server reports the refusal.
    let foreign = {
        let (cert, key) = stranger.sign("client", |_| {});
        let identity = Some(to_present(cert, key));
        ClientTls::load(&ClientTlsFiles { ca: Some(authority.ca()), identity, server_name: None })
            .unwrap()
    };
    for client in [authority.client(), foreign, authority.client_with(expired)] {
        let connected = connect(address, &client).await;
        let refusal = soon("the refusal", outcomes.recv()).await.unwrap().unwrap_err();
        assert!(matches!(refusal, TlsHandshakeError::Failed(_)), "{refusal}");
        if let Ok(mut stream) = connected {
            assert!(soon("the end", stream.read(&mut [0; 1])).await.is_err());
        }
    }
}

fn to_present(cert: PathBuf, key: PathBuf) -> Arc<ClientIdentity> {
    Arc::new(ClientIdentity::load(ClientIdentityFiles { cert, key }).unwrap())
}

#[tokio::test]
async fn an_optional_certificate_may_be_absent_but_not_invalid() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (address, mut outcomes) =
        serve(Arc::new(authority.server(ClientAuth::Optional { ca: authority.ca(), crl: None })))
            .await;

    let mut client = connect(address, &authority.client()).await.unwrap();
    let mut server = outcomes.recv().await.unwrap().unwrap();
    talk(&mut client, &mut server).await;
    assert_eq!(server.client_certificate(), None);

    let _client = connect(address, &authority.client_with(|_| {})).await.unwrap();
    assert!(outcomes.recv().await.unwrap().unwrap().client_certificate().is_some());

    let (cert, key) = stranger.sign("client", |_| {});
    let files = ClientTlsFiles {
        ca: Some(authority.ca()),
        identity: Some(to_present(cert, key)),
        server_name: None,
    };
    let _client = connect(address, &ClientTls::load(&files).unwrap()).await;
    assert!(soon("the refusal", outcomes.recv()).await.unwrap().is_err());
}

#[tokio::test]
async fn a_certificate_identifies_a_tenant_and_a_principal_or_no_caller() {
    let authority = Authority::new();
    let (address, mut outcomes) =
        serve(Arc::new(authority.server(ClientAuth::Required { ca: authority.ca(), crl: None })))
            .await;
    let subject = |params: &mut CertificateParams, names: &[(DnType, &str)]| {
        for (kind, name) in names {
            params.distinguished_name.push(kind.clone(), *name);
        }
    };
    type Change<'a> = Box<dyn FnOnce(&mut CertificateParams) + 'a>;
    let of_uris = |uris: &'static [&'static str]| -> Change<'_> {
        Box::new(move |params| {
            subject(params, &[(DnType::OrganizationName, "other"), (DnType::CommonName, "bob")]);
            params.subject_alt_names.extend(uris.iter().map(|text| uri(text)));
        })
    };
    let of_subject = |names: &'static [(DnType, &'static str)]| -> Change<'_> {
        Box::new(move |params| subject(params, names))
    };
    let cases: Vec<(Change<'_>, Option<(&str, &str)>)> = vec![
        (of_uris(&["mcp-broker://acme/alice"]), Some(("acme", "alice"))),
        (
            of_uris(&["spiffe://x/y", "mcp-broker://acme/ci-bot@example"]),
            Some(("acme", "ci-bot@example")),
        ),
        (of_uris(&["https://acme/alice"]), Some(("other", "bob"))),
        (of_uris(&["mcp-broker://acme/alice", "mcp-broker://acme/bob"]), None),
        (of_uris(&["mcp-broker://acme"]), None),
        (of_uris(&["mcp-broker:///alice"]), None),
        (of_uris(&["mcp-broker://acme/"]), None),
        (of_uris(&["mcp-broker://acme/a/b"]), None),
        (of_uris(&["mcp-broker://acme/a%2fb"]), None),
        (
            of_subject(&[(DnType::OrganizationName, "acme"), (DnType::CommonName, "zoë")]),
            Some(("acme", "zoë")),
        ),
        (of_subject(&[(DnType::CommonName, "alice")]), None),
        (of_subject(&[(DnType::OrganizationName, "acme")]), None),
        (of_subject(&[]), None),
    ];
    for (number, (change, expected)) in cases.into_iter().enumerate() {
        let _client = connect(address, &authority.client_with(change)).await.unwrap();
        let server = outcomes.recv().await.unwrap().unwrap();
        let identity = server.client_certificate().unwrap().identity();
        let found = identity
            .as_ref()
            .map(|identity| (identity.tenant.as_str(), identity.principal.as_str()));
        assert_eq!(found, expected, "case {number}");
    }
}

/// Returns the settings of a client with a certificate that resumes sessions.
fn resuming(
    authority: &Authority,
    (cert, key): &(PathBuf, PathBuf),
    version: &'static SupportedProtocolVersion,
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.ca()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(
            vec![CertificateDer::from_pem_file(cert).unwrap()],
            PrivateKeyDer::from_pem_file(key).unwrap(),
        )
        .unwrap()
}

/// A resumed session repeats the certificate of an earlier one, which may have expired since.
#[tokio::test]
async fn a_client_certificate_is_verified_in_each_handshake() {
    let authority = Authority::new();
    let identity = authority.sign("client", |_| {});
    for version in [&TLS13, &TLS12] {
        for (client_auth, second) in [
            (ClientAuth::None, HandshakeKind::Resumed),
            (ClientAuth::Optional { ca: authority.ca(), crl: None }, HandshakeKind::Full),
            (ClientAuth::Required { ca: authority.ca(), crl: None }, HandshakeKind::Full),
        ] {
            let (address, mut outcomes) = serve(Arc::new(authority.server(client_auth))).await;
            let connector = TlsConnector::from(Arc::new(resuming(&authority, &identity, version)));
            let mut kinds = Vec::new();
            for _ in 0..2 {
                let socket = TcpStream::connect(address).await.unwrap();
                let name = ServerName::try_from("127.0.0.1").unwrap();
                let stream = soon("a handshake", connector.connect(name, socket)).await.unwrap();
                kinds.extend(stream.get_ref().1.handshake_kind());
                let mut client = Stream::Tls(Box::new(stream.into()));
                talk(&mut client, &mut outcomes.recv().await.unwrap().unwrap()).await;
            }
            assert_eq!(kinds, [HandshakeKind::Full, second], "{version:?}");
        }
    }
}

/// Returns the certificate that the server presents to a new client.
async fn presented(address: SocketAddr, authority: &Authority) -> Vec<u8> {
    let stream = connect(address, &authority.client()).await.unwrap();
    let Stream::Tls(stream) = &stream else { panic!("not encrypted") };
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

fn certificate(path: &Path) -> Vec<u8> {
    CertificateDer::from_pem_file(path).unwrap().to_vec()
}

#[tokio::test]
async fn a_reload_applies_to_new_connections_and_keeps_open_ones() {
    let authority = Authority::new();
    let (old, new) = (authority.sign("server", |_| {}), authority.sign("renewed", |_| {}));
    let (old_leaf, new_leaf) = (certificate(&old.0), certificate(&new.0));
    let source = CertificateSource::Files { cert: old.0.clone(), key: old.1.clone() };
    let server = Arc::new(ServerTls::load(source, ClientAuth::None).unwrap());
    let (address, mut outcomes) = serve(Arc::clone(&server)).await;
    let mut early = connect(address, &authority.client()).await.unwrap();
    let mut early_server = outcomes.recv().await.unwrap().unwrap();
    assert_eq!(presented(address, &authority).await, old_leaf);

    // O-01: a key of another pair, half a file, no certificate at all, no file.
    let whole = std::fs::read(&old.0).unwrap();
    std::fs::copy(&new.1, &old.1).unwrap();
    assert!(matches!(server.reload(), Err(TlsError::Pair { .. })));
    std::fs::write(&old.0, &whole[..whole.len() / 2]).unwrap();
    assert!(matches!(server.reload(), Err(TlsError::File { .. } | TlsError::NoCertificate { .. })));
    std::fs::write(&old.0, "").unwrap();
    assert!(matches!(server.reload(), Err(TlsError::NoCertificate { .. })));
    std::fs::remove_file(&old.0).unwrap();
    assert!(matches!(server.reload(), Err(TlsError::File { .. })));
    assert_eq!(presented(address, &authority).await, old_leaf, "bad files change nothing");

    replace(&new, &old);
    server.reload().unwrap();
    assert_eq!(presented(address, &authority).await, new_leaf);
    talk(&mut early, &mut early_server).await;
}

#[tokio::test]
async fn plain_bytes_and_silence_end_cleanly() {
    let authority = Authority::new();
    let (address, mut outcomes) = serve(Arc::new(authority.server(ClientAuth::None))).await;
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\"}\n").await.unwrap();
    assert!(matches!(
        soon("the refusal", outcomes.recv()).await.unwrap(),
        Err(TlsHandshakeError::Failed(_))
    ));
    let mut answer = Vec::new();
    match soon("the end", plain.read_to_end(&mut answer)).await {
        // The answer is an alert record and nothing else: type 21, then version and length.
        Ok(_) => assert!(answer.first().is_none_or(|kind| *kind == 21), "{answer:?}"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    let mut silent = TcpStream::connect(address).await.unwrap();
    assert!(matches!(
        soon("the deadline", outcomes.recv()).await.unwrap(),
        Err(TlsHandshakeError::Timeout { .. })
    ));
    assert!(matches!(soon("the end", silent.read(&mut [0; 1])).await, Ok(0) | Err(_)));
}

/// Returns a ClientHello of TLS 1.0 or 1.1 (RFC 4346, 7.4.1.2): one cipher suite, no extensions.
fn old_client_hello(minor: u8) -> Vec<u8> {
    let mut hello = vec![3, minor];
    hello.extend([7; 32]); // random
    hello.extend([0, 0, 2, 0xc0, 0x13, 1, 0]); // no session, TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, no compression
    let mut record = vec![22, 3, 1];
    record.extend(u16::try_from(hello.len() + 4).unwrap().to_be_bytes());
    record.extend([1, 0, 0, u8::try_from(hello.len()).unwrap()]);
    record.extend(hello);
    record
}

#[tokio::test]
async fn tls_versions_below_1_2_are_refused() {
    let authority = Authority::new();
    let (address, mut outcomes) = serve(Arc::new(authority.server(ClientAuth::None))).await;
    for minor in [1, 2] {
        let mut old = TcpStream::connect(address).await.unwrap();
        old.write_all(&old_client_hello(minor)).await.unwrap();
        assert!(soon("the refusal", outcomes.recv()).await.unwrap().is_err());
        let mut answer = Vec::new();
        soon("the end", old.read_to_end(&mut answer)).await.unwrap();
        // A fatal alert: protocol_version (70), or handshake_failure (40) if the version check came
        // second.
        assert!(matches!(answer[..], [21, 3, _, 0, 2, 2, 70 | 40]), "{answer:?}");
    }
}

#[tokio::test]
async fn tls_1_2_is_accepted_and_a_foreign_protocol_name_is_refused() {
    let authority = Authority::new();
    let (address, mut outcomes) = serve(Arc::new(authority.server(ClientAuth::None))).await;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.ca()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    for (protocol, welcome) in [(None, true), (Some("mcp"), true), (Some("h2"), false)] {
        config.alpn_protocols = protocol.map(|name| name.as_bytes().to_vec()).into_iter().collect();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config.clone()));
        let socket = TcpStream::connect(address).await.unwrap();
        let connected = connector.connect(ServerName::try_from("localhost").unwrap(), socket).await;
        assert_eq!(connected.is_ok(), welcome, "{protocol:?}");
        assert_eq!(soon("the outcome", outcomes.recv()).await.unwrap().is_ok(), welcome);
    }
}

#[tokio::test]
async fn tls_to_a_plain_port_fails_and_the_plain_side_gets_invalid_bytes() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let authority = Authority::new();
    let accepting = async {
        let (mut source, _sink) =
            Stream::Plain(listener.accept().await.unwrap().0).into_lines(200, DEADLINE);
        // A ClientHello exceeds the limit or contains line ends. The result is noise or an error,
        // never a hang.
        soon("something", source.next()).await.map(drop)
    };
    let client = authority.client();
    let (_, connected) = tokio::join!(accepting, connect(address, &client));
    tls_reason(connected);
}

#[test]
fn unusable_files_are_named_in_the_error() {
    let authority = Authority::new();
    let (cert, key) = authority.sign("server", |_| {});
    let missing = authority.folder.path().join("missing.pem");
    let source = |cert: &Path, key: &Path| CertificateSource::Files {
        cert: cert.to_owned(),
        key: key.to_owned(),
    };
    let load = |source, auth| ServerTls::load(source, auth).unwrap_err().to_string();
    assert!(load(source(&missing, &key), ClientAuth::None).contains("missing.pem"));
    assert!(load(source(&cert, &missing), ClientAuth::None).contains("missing.pem"));
    assert!(load(source(&key, &key), ClientAuth::None).contains("has no certificate"));
    assert!(
        load(source(&cert, &key), ClientAuth::Required { ca: missing.clone(), crl: None })
            .contains("missing.pem")
    );
    assert!(
        load(source(&cert, &key), ClientAuth::Required { ca: authority.ca(), crl: Some(missing) })
            .contains("missing.pem")
    );
    let crl = Some(authority.ca());
    assert!(
        load(source(&cert, &key), ClientAuth::Required { ca: authority.ca(), crl })
            .contains("has no revocation list")
    );
    let bad_name =
        ClientTlsFiles { server_name: Some("not a name".to_owned()), ..ClientTlsFiles::default() };
    assert!(matches!(ClientTls::load(&bad_name), Err(TlsError::ServerName { .. })));
}

#[test]
fn o_01_the_expiry_of_a_certificate_is_reported_in_advance() {
    let authority = Authority::new();
    for (year, seconds) in [
        (2002, 1_009_843_200),
        (2049, 2_493_072_000),
        (2050, 2_524_608_000),
        (2999, 32_472_144_000),
    ] {
        let (cert, key) =
            authority.sign("server", |params| params.not_after = rcgen::date_time_ymd(year, 1, 1));
        let server =
            ServerTls::load(CertificateSource::Files { cert, key }, ClientAuth::None).unwrap();
        let until = server.valid_until().unwrap().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(until.as_secs(), seconds, "{year}");
    }
}
