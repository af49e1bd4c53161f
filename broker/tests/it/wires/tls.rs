//! TLS on the listeners of clients and operators, and towards backends.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{
    Authority, BrokerBuilder, DuplexClient, PipeBackend, QuicPeer, TestBroker,
    authority::{CertificateFiles, ClientStream},
    duplex::Wire,
    eventually, within,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{features, listening};
use crate::{builder, initialize_body, kind, stdio, text_of};

fn certified(builder: BrokerBuilder, signed: &CertificateFiles, more: Value) -> BrokerBuilder {
    builder
        .config(json!({"tls": {"cert_file": signed.cert, "key_file": signed.key}}))
        .config(json!({"tls": more}))
}

/// Sends one HTTP/1.1 request over TLS; returns the whole response.
async fn exchange(
    authority: &Authority,
    port: u16,
    identity: Option<&CertificateFiles>,
    text: &str,
) -> String {
    let mut stream =
        within("a TLS connection", authority.connect(port, identity, &["http/1.1"])).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _no_close_notify = within("the answer", stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
}

fn post(body: &str, more: &str) -> String {
    testkit::http::post("/mcp", &format!("connection: close\r\n{more}"), body)
}

#[tokio::test]
async fn every_listener_accepts_connections_with_and_without_tls() {
    let authority = Authority::new();
    let server = authority.server("server");
    let broker = certified(listening(), &server, json!({}))
        .backend("default", "b", stdio().spec())
        .start()
        .await;
    let answer = exchange(
        &authority,
        broker.http_address().port(),
        None,
        &post(&initialize_body("2025-11-25"), ""),
    )
    .await;
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.to_lowercase().contains("mcp-session-id"),
        "{answer}"
    );
    let answer = exchange(&authority, broker.admin_address().port(), None, &get("/readyz")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    for protocols in [&["mcp"][..], &[]] {
        let stream = within("TLS", authority.connect(broker.tcp_address().port(), None, protocols))
            .await
            .unwrap();
        let client = broker.duplex().over(Wire::lines(stream)).connected(json!({})).await;
        features::large_messages(&client).await;
        features::many_calls(&client).await;
    }
    assert!(
        within("a refusal", authority.connect(broker.tcp_address().port(), None, &["other"]))
            .await
            .is_err()
    );
    let stream =
        within("TLS", authority.connect(broker.http_address().port(), None, &["http/1.1"]))
            .await
            .unwrap();
    let (wire, _) = Wire::websocket(stream, "localhost", "/ws", &[]).await.unwrap();
    let client = broker.duplex().over(wire).connected(json!({})).await;
    features::large_messages(&client).await;
    // Connections without TLS work as before; the broker's log reports that.
    broker.connected(json!({})).await.call("b__echo", json!({})).await;
    broker.wait_for_log("tls.require_https is false").await;
}

#[tokio::test]
async fn http_2_is_chosen_by_alpn() {
    let authority = Authority::new();
    let broker =
        certified(builder().single_process(), &authority.server("server"), json!({})).start().await;
    for address in [broker.http_address(), broker.admin_address()] {
        let stream = within("TLS", authority.connect(address.port(), None, &["h2", "http/1.1"]))
            .await
            .unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]), "{address}");
        let io = hyper_util::rt::TokioIo::new(stream);
        let executor = hyper_util::rt::TokioExecutor::new();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(executor, io).await.unwrap();
        tokio::spawn(connection);
        let uri = format!("https://127.0.0.1:{}/readyz", address.port());
        let request =
            http::Request::get(uri).body(http_body_util::Empty::<bytes::Bytes>::new()).unwrap();
        let status = within("a response", sender.send_request(request)).await.unwrap().status();
        assert_eq!(status, if address == broker.admin_address() { 200 } else { 404 });
    }
}

#[tokio::test]
async fn connections_without_tls_are_closed_if_tls_is_required() {
    let authority = Authority::new();
    let server = authority.server("server");
    let config = json!({"listen": {"http": "127.0.0.1:0", "admin": "127.0.0.1:0", "tcp": "127.0.0.1:0"},
        "tls": {"cert_file": server.cert, "key_file": server.key, "require_https": true}});
    let folder = tempfile::tempdir().unwrap();
    let broker = Started::new(&folder, config).await;
    for name in ["http", "admin", "tcp"] {
        let mut socket = TcpStream::connect(("127.0.0.1", broker.port(name))).await.unwrap();
        let text = if name == "tcp" {
            format!("{}\n", initialize_body("2025-11-25"))
        } else {
            get("/readyz")
        };
        socket.write_all(text.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _reset = within("the end", socket.read_to_end(&mut answer)).await;
        assert_eq!(answer, b"", "{name}");
    }
    let answer = exchange(&authority, broker.port("admin"), None, &get("/readyz")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// A broker whose admin API a test cannot reach as usual.
struct Started {
    child: std::process::Child,
    ready: String,
}

impl Started {
    async fn new(folder: &tempfile::TempDir, mut config: Value) -> Self {
        use std::io::{BufRead as _, BufReader};
        config["storage"] =
            json!({"url": format!("sqlite:{}", folder.path().join("broker.db").display())});
        let file = folder.path().join("config.yaml");
        std::fs::write(&file, config.to_string()).unwrap();
        let mut command = std::process::Command::new(crate::binary());
        command
            .args(["serve", "--config"])
            .arg(&file)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null());
        let mut child = command.spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let reading = tokio::task::spawn_blocking(move || BufReader::new(stdout).lines().next());
        let ready = within("the ready line", reading).await.unwrap().unwrap().unwrap();
        Self { child, ready }
    }

    fn port(&self, name: &str) -> u16 {
        let address = self
            .ready
            .split_whitespace()
            .find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        address
            .and_then(|address| address.rsplit_once(':')?.1.parse().ok())
            .unwrap_or_else(|| panic!("{name} in {}", self.ready))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn a_certificate_of_a_client_names_its_tenant_and_principal() {
    let authority = Authority::new();
    let server = authority.server("server");
    let optional = json!({"client_ca_file": authority.ca(), "client_auth": "optional"});
    let broker = certified(listening(), &server, optional)
        .auth_required()
        .tenant("acme")
        .backend("acme", "b", stdio().spec())
        .start()
        .await;
    let (ann, stranger) = (authority.client("acme", "ann"), authority.client("nobody", "ann"));
    let over_tcp = async |identity: Option<&CertificateFiles>| {
        let stream =
            within("TLS", authority.connect(broker.tcp_address().port(), identity, &["mcp"]))
                .await
                .unwrap();
        broker.duplex().over(Wire::lines(stream))
    };
    let client = over_tcp(Some(&ann)).await.connected(json!({})).await;
    assert_eq!(text_of(&client.call("b__echo", json!({})).await), "{}");
    let sessions = broker.admin().sessions("acme").await;
    assert_eq!(
        (&sessions[0]["tenant"], &sessions[0]["principal"]),
        (&json!("acme"), &json!("ann"))
    );
    for identity in [None, Some(&stranger)] {
        let refused = over_tcp(identity).await.initialize(json!({}), json!({})).await;
        assert_eq!(kind(&refused["error"]), "unauthorized", "{identity:?}");
    }
    let port = broker.http_address().port();
    let answer =
        exchange(&authority, port, Some(&ann), &post(&initialize_body("2025-11-25"), "")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let answer = exchange(&authority, port, None, &post(&initialize_body("2025-11-25"), "")).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    // A sent key counts, good or bad.
    let answer = exchange(
        &authority,
        port,
        Some(&ann),
        &post(&initialize_body("2025-11-25"), "authorization: Bearer wrong\r\n"),
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    // A certificate of another authority does not pass the handshake.
    let other = Authority::new().client("acme", "ann");
    let mut refused =
        match authority.connect(broker.tcp_address().port(), Some(&other), &["mcp"]).await {
            Ok(stream) => stream,
            Err(_) => return,
        };
    let _ = refused.write_all(b"\n").await;
    let read = within("the end", refused.read_to_end(&mut Vec::new())).await;
    assert!(!matches!(read, Ok(count) if count > 0));
}

#[tokio::test]
async fn the_organizational_units_of_a_certificate_are_groups() {
    let authority = Authority::new();
    let server = authority.server("server");
    let optional = json!({"client_ca_file": authority.ca(), "client_auth": "optional"});
    let broker = certified(listening(), &server, optional)
        .auth_required()
        .tenant("acme")
        .backend("acme", "b", stdio().spec())
        .start()
        .await;
    let policy = json!({"default": "deny", "rules": [
        {"id": "dev", "effect": "allow", "subjects": {"groups": ["dev"]}},
    ]});
    assert_eq!(broker.admin().put("/admin/v1/tenants/acme/policy", &policy).await.0, 201);
    for (unit, is_allowed) in [("dev", true), ("ops", false)] {
        let ann = authority.client_of_unit("acme", "ann", unit);
        let stream = authority.connect(broker.tcp_address().port(), Some(&ann), &["mcp"]);
        let stream = within("TLS", stream).await.unwrap();
        let client = broker.duplex().over(Wire::lines(stream)).connected(json!({})).await;
        let listed = client.result("tools/list", json!({})).await;
        assert_eq!(listed["tools"] != json!([]), is_allowed, "{unit}: {listed}");
    }
}

/// Opens a session on each wire with this certificate; returns the state that keeps them open.
async fn on_every_wire(
    broker: &TestBroker,
    authority: &Authority,
    identity: &CertificateFiles,
) -> (Vec<DuplexClient>, QuicPeer, ClientStream) {
    let tcp =
        within("TLS", authority.connect(broker.tcp_address().port(), Some(identity), &["mcp"]))
            .await
            .unwrap();
    let http = within(
        "TLS",
        authority.connect(broker.http_address().port(), Some(identity), &["http/1.1"]),
    )
    .await
    .unwrap();
    let (websocket, _) = Wire::websocket(http, "localhost", "/ws", &[]).await.unwrap();
    let quic =
        QuicPeer::connect(broker.quic_address(), authority, Some(identity), "mcp").await.unwrap();
    let mut clients = Vec::new();
    for wire in [Wire::lines(tcp), websocket, quic.control().await] {
        clients.push(broker.duplex().over(wire).connected(json!({})).await);
    }
    let mut events = within(
        "TLS",
        authority.connect(broker.http_address().port(), Some(identity), &["http/1.1"]),
    )
    .await
    .unwrap();
    events
        .write_all(b"GET /sse HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n")
        .await
        .unwrap();
    within("the stream", events.read(&mut [0; 1024])).await.unwrap();
    (clients, quic, events)
}

async fn all_end((clients, quic, mut events): (Vec<DuplexClient>, QuicPeer, ClientStream)) {
    for client in &clients {
        client.wait_for_close().await;
    }
    assert!(quic.ended().await.contains("not allowed"));
    let _no_close_notify = within("the end", events.read_to_end(&mut Vec::new())).await;
}

#[tokio::test]
async fn a_session_ends_when_trust_in_its_certificate_ends() {
    let authority = Authority::new();
    let server = authority.server("server");
    // The file of authorities is its own, which a reload will find changed.
    let believed = server.cert.with_file_name("clients.pem");
    std::fs::copy(authority.ca(), &believed).unwrap();
    let broker = certified(
        listening(),
        &server,
        json!({"client_ca_file": believed, "client_auth": "optional"}),
    )
    .config(json!({"listen": {"quic": "127.0.0.1:0"}}))
    .auth_required()
    .tenant("acme")
    .start()
    .await;
    let short = authority.client_for("acme", "bob", Duration::from_secs(6));
    let ends = on_every_wire(&broker, &authority, &short).await;
    let (ann, key) = (authority.client("acme", "ann"), broker.admin().create_key("acme").await);
    let long = on_every_wire(&broker, &authority, &ann).await;
    all_end(ends).await;
    broker.admin().wait_sessions("acme", 3).await;
    for client in &long.0 {
        client.result("ping", json!({})).await;
    }
    // A sent key counts, and not the certificate.
    let stream =
        within("TLS", authority.connect(broker.tcp_address().port(), Some(&ann), &["mcp"]))
            .await
            .unwrap();
    let keyed = broker
        .duplex()
        .over(Wire::lines(stream))
        .connected_with(json!({}), json!({"dev.mcp-broker/token": key}))
        .await;
    std::fs::copy(Authority::new().ca(), &believed).unwrap();
    broker.signal(Signal::HUP);
    all_end(long).await;
    broker.admin().wait_sessions("acme", 1).await;
    keyed.result("ping", json!({})).await;
}

#[tokio::test]
async fn a_revoked_certificate_is_refused_and_its_sessions_end() {
    let authority = Authority::new();
    let server = authority.server("server");
    let lists = server.cert.with_file_name("revoked.pem");
    std::fs::write(&lists, authority.revocation_list(&[3])).unwrap();
    let config = json!({"client_ca_file": authority.ca(), "client_crl_file": lists, "client_auth": "optional"});
    let broker = certified(listening(), &server, config)
        .config(json!({"listen": {"quic": "127.0.0.1:0"}}))
        .auth_required()
        .tenant("acme")
        .start()
        .await;
    let [ann, bob, eve] = [("ann", 1), ("bob", 2), ("eve", 3)]
        .map(|(name, serial)| authority.client_numbered("acme", name, serial));
    let refused = async |identity: &CertificateFiles| {
        // A TLS 1.3 client learns it only after its own part of the handshake.
        if let Ok(stream) =
            authority.connect(broker.tcp_address().port(), Some(identity), &["mcp"]).await
        {
            broker.duplex().over(Wire::lines(stream)).wait_for_close().await;
        }
        if let Ok(peer) =
            QuicPeer::connect(broker.quic_address(), &authority, Some(identity), "mcp").await
        {
            let why = peer.ended().await;
            assert!(why.to_lowercase().contains("revoked"), "{why}");
        }
    };
    refused(&eve).await;
    let (anns, bobs) = (
        on_every_wire(&broker, &authority, &ann).await,
        on_every_wire(&broker, &authority, &bob).await,
    );
    // A list that cannot be read changes nothing.
    std::fs::write(&lists, "nobody").unwrap();
    broker.signal(Signal::HUP);
    broker.wait_for_log("the configuration was not reloaded").await;
    refused(&eve).await;
    std::fs::write(&lists, authority.revocation_list(&[2, 3])).unwrap();
    broker.signal(Signal::HUP);
    all_end(bobs).await;
    refused(&bob).await;
    for client in &anns.0 {
        client.result("ping", json!({})).await;
    }
}

/// Opens a WebSocket over TLS.
async fn websocket(
    broker: &TestBroker,
    authority: &Authority,
    identity: Option<&CertificateFiles>,
    headers: &[(&str, &str)],
) -> DuplexClient {
    let port = broker.http_address().port();
    let stream = within("TLS", authority.connect(port, identity, &["http/1.1"])).await.unwrap();
    let (wire, _) = Wire::websocket(stream, "localhost", "/ws", headers).await.unwrap();
    broker.duplex().over(wire)
}

#[tokio::test]
async fn a_revoked_certificate_ends_the_session_of_a_key_that_it_resumed() {
    let authority = Authority::new();
    let server = authority.server("server");
    let lists = server.cert.with_file_name("revoked.pem");
    std::fs::write(&lists, authority.revocation_list(&[])).unwrap();
    let config = json!({"client_ca_file": authority.ca(), "client_crl_file": lists, "client_auth": "optional"});
    let broker =
        certified(listening(), &server, config).auth_required().tenant("acme").start().await;
    let ann = authority.client_numbered("acme", "ann", 1);
    let keys = "/admin/v1/tenants/acme/keys";
    let (_, key) = broker.admin().post(keys, &json!({"principal": "ann"})).await;
    let bearer = format!("Bearer {}", key["key"].as_str().unwrap());
    let key = [("authorization", bearer.as_str())];
    let mut resumed = Vec::new();
    for shown in [&[][..], &key] {
        let opened = websocket(&broker, &authority, None, &key).await;
        let answer = opened.initialize(json!({}), json!({})).await;
        let id = answer["result"]["_meta"]["dev.mcp-broker/session"].as_str().unwrap();
        opened.notify("notifications/initialized", json!({})).await;
        opened.result("ping", json!({})).await;
        opened.disconnect();
        let headers = [&[("mcp-session-id", id)], shown].concat();
        let client = websocket(&broker, &authority, Some(&ann), &headers).await;
        client.result("ping", json!({})).await;
        resumed.push(client);
    }
    std::fs::write(&lists, authority.revocation_list(&[1])).unwrap();
    broker.signal(Signal::HUP);
    resumed[0].wait_for_close().await;
    broker.admin().wait_sessions("acme", 1).await;
    // Its key has precedence over the certificate.
    resumed[1].result("ping", json!({})).await;
}

#[tokio::test]
async fn clients_without_a_required_certificate_are_disconnected() {
    let authority = Authority::new();
    let required = json!({"client_ca_file": authority.ca(), "client_auth": "required"});
    let broker = certified(listening(), &authority.server("server"), required).start().await;
    let ann = authority.client("default", "ann");
    let stream =
        within("TLS", authority.connect(broker.tcp_address().port(), Some(&ann), &["mcp"]))
            .await
            .unwrap();
    broker.duplex().over(Wire::lines(stream)).connected(json!({})).await;
    // A TLS 1.3 client learns it only after its own part of the handshake.
    if let Ok(stream) = authority.connect(broker.tcp_address().port(), None, &["mcp"]).await {
        let client = broker.duplex().over(Wire::lines(stream));
        client.wait_for_close().await;
    }
    // A connection without TLS is refused too.
    let client = broker.duplex().tcp(broker.tcp_address()).await;
    client.send("{}").await;
    client.wait_for_close().await;
    // Operators need no certificate.
    assert_eq!(broker.admin().get("/admin/v1/tenants").await.0, 200);
}

#[tokio::test]
async fn certificates_are_reloaded_without_disconnecting_clients() {
    let authority = Authority::new();
    let first = authority.server("server");
    let broker = certified(listening(), &first, json!({}))
        .backend("default", "b", stdio().spec())
        .start()
        .await;
    let port = broker.tcp_address().port();
    let served = async || {
        let stream = within("TLS", authority.connect(port, None, &["mcp"])).await.unwrap();
        stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
    };
    let stream = within("TLS", authority.connect(port, None, &["mcp"])).await.unwrap();
    let client = broker.duplex().over(Wire::lines(stream)).connected(json!({})).await;
    let before = served().await;
    // files that cannot be used change nothing.
    std::fs::write(&first.key, "no key").unwrap();
    broker.signal(Signal::HUP);
    broker.wait_for_log("the configuration was not reloaded").await;
    assert_eq!(served().await, before);
    let second = authority.server("second");
    // O-01: a certificate that does not fit its key, and one that is half written.
    let whole = std::fs::read(&second.cert).unwrap();
    for broken in [whole.clone(), whole[..whole.len() / 2].to_vec()] {
        let refused = async || {
            broker
                .admin()
                .metric(
                    "mcp_certificate_reloads_total",
                    &[("listener", "clients"), ("outcome", "refused")],
                )
                .await
        };
        let so_far = refused().await;
        std::fs::write(&first.cert, broken).unwrap();
        broker.signal(Signal::HUP);
        eventually("another refusal", || async {
            let now = refused().await;
            if now > so_far { Ok(()) } else { Err(now) }
        })
        .await;
        assert_eq!(served().await, before);
    }
    let ends_at =
        broker.admin().metric("mcp_certificate_expiry_seconds", &[("listener", "clients")]).await;
    assert!(ends_at.is_some_and(|at| at > 1.7e9), "{ends_at:?}");
    std::fs::copy(&second.cert, &first.cert).unwrap();
    std::fs::copy(&second.key, &first.key).unwrap();
    broker.signal(Signal::HUP);
    eventually("the new certificate", || async {
        let now = served().await;
        if now != before { Ok(()) } else { Err("the old one") }
    })
    .await;
    client.call("b__echo", json!({})).await;
}

#[tokio::test]
async fn a_warning_is_logged_for_a_development_certificate() {
    let broker = listening().config(json!({"tls": {"self_signed": true}})).start().await;
    broker.wait_for_log("a certificate that clients cannot verify").await;
    let error = Authority::new()
        .connect(broker.http_address().port(), None, &[])
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("certificate"), "{error}");
}

#[tokio::test]
async fn unusable_certificates_are_refused_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({"tls": {"cert_file": "/does/not/exist.pem", "key_file": "/does/not/exist.key"},
        "listen": {"http": "127.0.0.1:0", "admin": "127.0.0.1:0"}});
    std::fs::write(folder.path().join("config.yaml"), config.to_string()).unwrap();
    let ended = builder().run(folder.path(), &["serve", "--config", "config.yaml"]).await;
    assert_eq!(ended.code, Some(64), "{}", ended.stderr);
    assert!(ended.stderr.contains("/does/not/exist.pem"), "{}", ended.stderr);
}

#[tokio::test]
async fn a_backend_with_tls_must_prove_its_identity() {
    let authority = Authority::new();
    let signed = authority.server("backend");
    let backend = PipeBackend::tls(&stdio(), signed.server_config()).await;
    let trusting =
        builder().single_process().env("SSL_CERT_FILE", authority.ca().to_str().unwrap());
    let broker = trusting.backend("default", "b", backend.spec()).start().await;
    broker.connected(json!({})).await.call("b__echo", json!({})).await;
    // Another name than the certificate's.
    let mut spec = backend.spec();
    spec["transport"]["tls"] = json!({"server_name": "other.example"});
    broker.admin().put_backend("default", "c", &spec).await;
    let failed = broker
        .admin()
        .wait_backend("default", "c", "a failure", |backend| !backend["last_error"].is_null())
        .await;
    assert!(failed["last_error"].as_str().unwrap().contains("certificate"), "{failed}");
    // The certificate comes from an authority that the broker does not trust.
    let other = builder().single_process().start().await;
    other.admin().put_backend("default", "b", &backend.spec()).await;
    other
        .admin()
        .wait_backend("default", "b", "a failure", |backend| !backend["last_error"].is_null())
        .await;
}
