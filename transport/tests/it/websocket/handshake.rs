//! Tests of the opening handshake (W-02), as a server and as a client.

use std::{net::SocketAddr, time::Duration};

use http::{HeaderMap, Request, Response, StatusCode, Version, header};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use transport::{
    ConnectError,
    websocket::{ConnectOptions, Limits, UpgradeError, accept, connect},
};

use crate::{certificates::Authority, conformance::wires::egress, soon};

/// Headers to replace. `None` removes a header.
type Changes = [(&'static str, Option<&'static str>)];

/// Returns the request of RFC 6455, 1.3, with these changes. A header without a value is removed.
fn request(changes: &Changes) -> Request<()> {
    let mut request = Request::builder()
        .uri("/ws")
        .header("host", "server.example.com")
        .header("upgrade", "websocket")
        .header("connection", "Upgrade")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
        .header("sec-websocket-version", "13")
        .body(())
        .unwrap();
    for (name, _) in changes {
        request.headers_mut().remove(*name);
    }
    for (name, value) in changes {
        if let Some(value) = value {
            request.headers_mut().append(*name, value.parse().unwrap());
        }
    }
    request
}

fn accepted(changes: &Changes) -> Response<()> {
    accept(&request(changes)).unwrap_or_else(|error| panic!("{changes:?}: {error}"))
}

#[test]
fn the_handshake_of_the_rfc_example_is_answered_as_documented() {
    let response = accepted(&[]);
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(response.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert_eq!(response.headers()["upgrade"], "websocket");
    assert_eq!(response.headers()["connection"], "upgrade");
    assert_eq!(response.headers().len(), 3);
}

#[test]
fn handshakes_of_browsers_and_libraries_are_accepted() {
    accepted(&[("upgrade", Some("WebSocket"))]);
    accepted(&[("connection", Some("keep-alive, UPGRADE"))]);
    accepted(&[("connection", Some("keep-alive")), ("connection", Some("upgrade"))]);
    accepted(&[("content-length", Some("0"))]);
}

#[test]
fn only_the_mcp_subprotocol_is_selected() {
    let chosen = |offers: &'static str| {
        accepted(&[("sec-websocket-protocol", Some(offers))])
            .headers()
            .get("sec-websocket-protocol")
            .cloned()
    };
    assert_eq!(chosen("mcp").unwrap(), "mcp");
    assert_eq!(chosen("chat,  mcp , bearer.abc").unwrap(), "mcp");
    assert_eq!(chosen("chat, MCP, mcp2"), None);
    let twice = accepted(&[
        ("sec-websocket-protocol", Some("chat")),
        ("sec-websocket-protocol", Some("mcp")),
    ]);
    assert_eq!(twice.headers()["sec-websocket-protocol"], "mcp");
}

#[test]
fn w_02_extensions_are_never_accepted() {
    for offer in [
        "permessage-deflate",
        "permessage-deflate; client_max_window_bits=99999999999",
        "x; a=\"unclosed",
        ";;;,,,",
        "\u{7f}",
    ] {
        let mut request = request(&[]);
        let Ok(offer) = offer.parse() else { continue };
        request.headers_mut().append("sec-websocket-extensions", offer);
        assert!(!accept(&request).unwrap().headers().contains_key("sec-websocket-extensions"));
    }
}

#[test]
fn w_02_an_invalid_upgrade_request_is_refused() {
    use UpgradeError::{Body, Key, NoUpgrade, Version as BadVersion};
    let key = "sec-websocket-key";
    let cases: &[(&Changes, UpgradeError)] = &[
        (&[("upgrade", None)], NoUpgrade),
        (&[("upgrade", Some("h2c"))], NoUpgrade),
        (&[("connection", None)], NoUpgrade),
        (&[("connection", Some("close"))], NoUpgrade),
        (&[("connection", Some("notupgrade"))], NoUpgrade),
        (&[("sec-websocket-version", None)], BadVersion),
        (&[("sec-websocket-version", Some("8"))], BadVersion),
        (&[("sec-websocket-version", Some("13, 8"))], BadVersion),
        (
            &[("sec-websocket-version", Some("13")), ("sec-websocket-version", Some("13"))],
            BadVersion,
        ),
        (&[(key, None)], Key),
        (&[(key, Some(""))], Key),
        (&[(key, Some("dGhlIHNhbXBsZSBub25jZQ"))], Key),
        (&[(key, Some("dGhlIHNhbXBsZSBub25jZTE2"))], Key),
        (&[(key, Some("not base64 at all!!!!!!!"))], Key),
        (&[(key, Some("dGhlIHNhbXBsZSBub25jZQ==")), (key, Some("dGhlIHNhbXBsZSBub25jZQ=="))], Key),
        (&[("content-length", Some("5"))], Body),
        (&[("transfer-encoding", Some("chunked"))], Body),
    ];
    for (changes, expected) in cases {
        assert_eq!(accept(&request(changes)).unwrap_err(), *expected, "{changes:?}");
    }
    let mut post = request(&[]);
    *post.method_mut() = http::Method::POST;
    assert_eq!(accept(&post).unwrap_err(), NoUpgrade);
    for version in [Version::HTTP_10, Version::HTTP_2] {
        let mut old = request(&[]);
        *old.version_mut() = version;
        assert_eq!(accept(&old).unwrap_err(), NoUpgrade);
    }
    assert_eq!(BadVersion.response().status(), StatusCode::UPGRADE_REQUIRED);
    assert_eq!(BadVersion.response().headers()[header::SEC_WEBSOCKET_VERSION], "13");
    assert_eq!(NoUpgrade.response().status(), StatusCode::UPGRADE_REQUIRED);
    assert_eq!(Key.response().status(), StatusCode::BAD_REQUEST);
}

/// A server that reads one request, answers with these bytes, and then stays silent.
async fn answering(answer: String) -> (SocketAddr, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(socket.read_u8().await.unwrap());
        }
        socket.write_all(answer.as_bytes()).await.unwrap();
        // The connection stays open: the client's check of the answer must not depend on its end.
        let _ = socket.read(&mut [0; 1]).await;
        String::from_utf8(head).unwrap()
    });
    (address, seen)
}

async fn outcome(url: &str, limit: Duration) -> Result<(), ConnectError> {
    let (egress, tls, limits) = (egress(), Authority::new().client(), Limits::default());
    let url = url.parse().unwrap();
    let headers = HeaderMap::from_iter([(header::AUTHORIZATION, "Bearer secret".parse().unwrap())]);
    connect(ConnectOptions {
        url: &url,
        headers,
        egress: &egress,
        tls: &tls,
        limits: &limits,
        timeout: limit,
    })
    .await
    .map(drop)
}

#[tokio::test]
async fn a_client_refuses_a_handshake_answer_that_does_not_match() {
    let long = format!("HTTP/1.1 101 Switching Protocols\r\nx: {}\r\n\r\n", "y".repeat(64 * 1024));
    let cases = [
        (
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
            "accept",
        ),
        (
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
            "accept",
        ),
        (
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
            "upgrade",
        ),
        ("SSH-2.0-OpenSSH_9.2\r\n\r\n", ""),
        (long.as_str(), ""),
    ];
    for (answer, reason) in cases {
        let (address, _seen) = answering(answer.to_owned()).await;
        let refusal = soon("a refusal", outcome(&format!("ws://{address}/"), crate::DEADLINE))
            .await
            .unwrap_err();
        assert!(matches!(refusal, ConnectError::Handshake { .. }), "{refusal}");
        assert!(refusal.to_string().to_lowercase().contains(reason), "{refusal}");
    }
}

#[tokio::test]
async fn a_client_reports_the_status_of_a_refusal_and_follows_no_redirect() {
    for status in [401, 403, 404, 302, 500, 200] {
        let (address, seen) = answering(format!(
            "HTTP/1.1 {status} No\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"
        ))
        .await;
        let refusal =
            soon("a refusal", outcome(&format!("ws://{address}/ws?x=1"), crate::DEADLINE))
                .await
                .unwrap_err();
        assert_eq!(
            refusal,
            ConnectError::Refused { status: StatusCode::from_u16(status).unwrap() }
        );
        let head = soon("the request", seen).await.unwrap().to_lowercase();
        assert!(head.starts_with("get /ws?x=1 http/1.1\r\n"), "{head}");
        for line in [
            &format!("host: {address}"),
            "authorization: bearer secret",
            "sec-websocket-protocol: mcp",
            "sec-websocket-version: 13",
        ] {
            assert!(head.contains(&format!("{line}\r\n")), "{line} in {head}");
        }
    }
}

#[tokio::test]
async fn a_client_times_out_and_connects_to_no_forbidden_address() {
    let (address, _seen) = answering(String::new()).await;
    assert_eq!(
        soon("the timeout", outcome(&format!("ws://{address}/"), Duration::from_millis(100))).await,
        Err(ConnectError::Timeout)
    );
    assert!(matches!(
        outcome("ws://169.254.169.254/", crate::DEADLINE).await,
        Err(ConnectError::Denied(_))
    ));
    assert!(matches!(
        outcome("http://127.0.0.1:1/", crate::DEADLINE).await,
        Err(ConnectError::Unreachable { .. })
    ));
    assert!(matches!(
        outcome("ws://127.0.0.1:1/", crate::DEADLINE).await,
        Err(ConnectError::Unreachable { .. })
    ));
}
