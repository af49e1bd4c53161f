//! Tokens that are bound to a client's certificate (RFC 8705, 3), over every wire with TLS.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use testkit::{
    Authority, AuthorizationServer, FakeBackend, QuicPeer, TestBroker, authority::CertificateFiles,
    duplex::Wire, within,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{guarded, status, until_status};
use crate::{initialize_body, kind};

struct Rig {
    broker: TestBroker,
    authority: Authority,
    token: String,
}

impl Rig {
    /// Returns the status of an `initialize` over TLS with HTTP/1.1.
    async fn http1(&self, identity: Option<&CertificateFiles>) -> u16 {
        let port = self.broker.http_address().port();
        let mut stream = within("TLS", self.authority.connect(port, identity, &["http/1.1"]))
            .await
            .expect("a TLS connection");
        let more = format!("connection: close\r\nauthorization: Bearer {}\r\n", self.token);
        let text = testkit::http::post("/mcp", &more, &initialize_body("2025-11-25"));
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _no_close_notify = within("the answer", stream.read_to_end(&mut answer)).await;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        if answer.starts_with("HTTP/1.1 401") {
            assert!(answer.contains("error=\"invalid_token\""), "{answer}");
        }
        answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect(&answer)
    }

    /// Returns the status of a stream of HTTP+SSE.
    async fn http_sse(&self, identity: Option<&CertificateFiles>) -> u16 {
        let port = self.broker.http_address().port();
        let connecting = self.authority.connect(port, identity, &["http/1.1"]);
        let mut stream = within("TLS", connecting).await.expect("a TLS connection");
        let head = format!(
            "GET /sse HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\nauthorization: Bearer {}\r\n\r\n",
            self.token
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut status = [0; 12];
        within("the status", stream.read_exact(&mut status)).await.unwrap();
        String::from_utf8_lossy(&status[9..]).parse().expect("a status")
    }

    /// Returns the statuses of two requests on one connection with HTTP/2.
    async fn http2(&self, identity: Option<&CertificateFiles>) -> [u16; 2] {
        let port = self.broker.http_address().port();
        let stream = within("TLS", self.authority.connect(port, identity, &["h2"])).await.unwrap();
        let (io, executor) =
            (hyper_util::rt::TokioIo::new(stream), hyper_util::rt::TokioExecutor::new());
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(executor, io).await.unwrap();
        tokio::spawn(connection);
        let mut statuses = [0; 2];
        for status in &mut statuses {
            let request = http::Request::post(format!("https://127.0.0.1:{port}/mcp"))
                .header("authorization", format!("Bearer {}", self.token))
                .header("content-type", "application/json")
                .header("accept", "application/json, text/event-stream")
                .body(http_body_util::Full::new(bytes::Bytes::from(initialize_body("2025-11-25"))))
                .unwrap();
            let answer = within("a response", sender.send_request(request)).await.unwrap();
            *status = answer.status().as_u16();
        }
        statuses
    }

    /// Returns the status of the upgrade to a WebSocket.
    async fn websocket(&self, identity: Option<&CertificateFiles>) -> u16 {
        let port = self.broker.http_address().port();
        let stream =
            within("TLS", self.authority.connect(port, identity, &["http/1.1"])).await.unwrap();
        let bearer = format!("Bearer {}", self.token);
        let headers = [("authorization", bearer.as_str())];
        Wire::websocket(stream, "localhost", "/ws", &headers).await.map_or_else(|it| it, |_| 101)
    }

    /// Returns the answer to `initialize` over TCP.
    async fn tcp(&self, identity: Option<&CertificateFiles>) -> Value {
        let port = self.broker.tcp_address().port();
        let stream = within("TLS", self.authority.connect(port, identity, &["mcp"])).await.unwrap();
        let client = self.broker.duplex().over(Wire::lines(stream));
        client.initialize(json!({}), json!({"dev.mcp-broker/token": self.token})).await
    }

    /// Returns the answer to `initialize` over QUIC.
    async fn quic(&self, identity: Option<&CertificateFiles>) -> Value {
        let address = self.broker.quic_address();
        let peer = QuicPeer::connect(address, &self.authority, identity, "mcp").await.unwrap();
        let control = self.broker.duplex().over(peer.control().await);
        control.initialize(json!({}), json!({"dev.mcp-broker/token": self.token})).await
    }
}

fn thumbprint(certificate: &CertificateFiles) -> String {
    use aws_lc_rs::digest::{SHA256, digest};
    URL_SAFE_NO_PAD.encode(digest(&SHA256, certificate.der()))
}

#[tokio::test]
async fn a_bound_token_is_valid_with_its_certificate_only() {
    let (server, backend, authority) =
        (AuthorizationServer::start().await, FakeBackend::echo().await, Authority::new());
    let signed = authority.server("server");
    let listen = json!({
        "listen": {"tcp": "127.0.0.1:0", "quic": "127.0.0.1:0"},
        "tls": {
            "cert_file": signed.cert, "key_file": signed.key,
            "client_auth": "optional", "client_ca_file": authority.ca(),
        },
    });
    let broker =
        guarded(&server, &backend, json!({})).single_process().config(listen).start().await;
    until_status(&broker, &server.token("ann"), 200).await;
    // It names no principal of the broker; a certificate that does changes nothing.
    let (own, other) =
        (authority.server_called("own", "a.example"), authority.client("acme", "eve"));
    let bound = json!({"cnf": {"x5t#S256": thumbprint(&own)}});
    let token = server.token_with("ann", bound);
    let mut rig = Rig { broker, authority, token };
    assert_eq!(status(&rig.broker, &rig.token).await, 401, "without TLS");
    for round in 0..2 {
        // The second round finds a token that is remembered.
        assert_eq!(rig.http1(Some(&own)).await, 200, "{round}");
        assert_eq!(rig.http2(Some(&own)).await, [200; 2], "{round}");
        assert_eq!(rig.http_sse(Some(&own)).await, 200, "{round}");
        assert_eq!(rig.websocket(Some(&own)).await, 101, "{round}");
        assert!(rig.tcp(Some(&own)).await["result"].is_object(), "{round}");
        assert!(rig.quic(Some(&own)).await["result"].is_object(), "{round}");
        for identity in [None, Some(&other)] {
            assert_eq!(rig.http1(identity).await, 401, "{round}");
            assert_eq!(rig.http2(identity).await, [401; 2], "{round}");
            assert_eq!(rig.http_sse(identity).await, 401, "{round}");
            assert_eq!(rig.websocket(identity).await, 401, "{round}");
            assert_eq!(kind(&rig.tcp(identity).await["error"]), "unauthorized", "{round}");
            assert_eq!(kind(&rig.quic(identity).await["error"]), "unauthorized", "{round}");
        }
    }
    let sessions = rig.broker.admin().sessions("acme").await;
    let principal = format!("{} ann", server.issuer());
    assert!(sessions.iter().all(|session| session["principal"] == principal), "{sessions:?}");
    for cnf in [
        json!({"x5t#S256": thumbprint(&own), "jkt": "x"}),
        json!({"x5t#S256": [thumbprint(&own)]}),
        json!({}),
        json!(thumbprint(&own)),
    ] {
        rig.token = server.token_with("ann", json!({"cnf": cnf}));
        assert_eq!(rig.http1(Some(&own)).await, 401, "{cnf}");
    }
}
