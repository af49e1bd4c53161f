//! Tests of the HTTP client against real servers: reuse, TLS verification, egress, failures and
//! body limits.

use std::net::SocketAddr;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, Version};
use http_body_util::Full;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use transport::{
    BodyError, EgressPolicy, HttpClient, HttpClientConfig, HttpResponse, Resolver, ResponseBody,
    SendError, TlsSetupError, parse_http_url, read_body, socket_options::DEAD_AFTER,
};

use crate::http_server::{Authority, Server, self_signed};
use crate::soon;

fn local() -> HttpClientConfig {
    let egress = Arc::new(EgressPolicy { loopback: true, ..EgressPolicy::default() });
    HttpClientConfig {
        connect_timeout: Duration::from_secs(10),
        egress,
        ..HttpClientConfig::default()
    }
}

fn trusting(authority: &Authority) -> HttpClient {
    HttpClient::new(HttpClientConfig {
        extra_roots: vec![authority.certificate.clone()],
        ..local()
    })
    .unwrap()
}

fn post(url: &str, body: &'static str) -> Request<Full<Bytes>> {
    Request::builder()
        .method(Method::POST)
        .uri(parse_http_url(url).unwrap())
        .body(Full::from(body))
        .unwrap()
}

async fn send(client: &HttpClient, url: &str) -> Result<HttpResponse<ResponseBody>, SendError> {
    soon("an answer", client.send(post(url, "ping"))).await
}

async fn text(response: HttpResponse<ResponseBody>) -> String {
    String::from_utf8(read_body(response.into_body(), 1_000_000).await.unwrap().to_vec()).unwrap()
}

/// A server that waits for a request's head on each connection, answers with the given bytes, and
/// closes it.
async fn raw_server(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 4096];
            let _ = stream.read(&mut head).await;
            let _ = stream.write_all(answer).await;
            let _ = stream.shutdown().await;
        }
    });
    url
}

#[tokio::test]
async fn requests_one_after_the_other_share_a_connection() {
    let server = Server::plain().await;
    let client = HttpClient::new(local()).unwrap();
    let url = format!("http://127.0.0.1:{}/echo", server.port);
    for _ in 0..10 {
        let response = send(&client.clone(), &url).await.unwrap();
        assert_eq!(response.version(), Version::HTTP_11);
        assert_eq!(response.headers()["x-host"], format!("127.0.0.1:{}", server.port));
        assert_eq!(text(response).await, "ping");
    }
    assert_eq!((server.connections(), server.requests()), (1, 10));
}

#[tokio::test]
async fn a_name_with_several_addresses_reaches_the_one_that_listens() {
    let server = Server::plain().await;
    let client = HttpClient::new(local()).unwrap();
    assert_eq!(
        text(send(&client, &format!("http://localhost:{}/", server.port)).await.unwrap()).await,
        "ping"
    );
}

#[tokio::test]
async fn redirects_are_returned_and_not_followed() {
    let server = Server::plain().await;
    let client = HttpClient::new(local()).unwrap();
    let response =
        send(&client, &format!("http://127.0.0.1:{}/redirect", server.port)).await.unwrap();
    assert_eq!(response.status(), StatusCode::TEMPORARY_REDIRECT);
    assert_eq!(server.requests(), 1);
}

#[tokio::test]
async fn https_uses_http2_if_the_server_supports_it_and_http1_otherwise() {
    let authority = Authority::new();
    let server = Server::tls(authority.server(&["localhost", "127.0.0.1"])).await;
    let client = trusting(&authority);
    for host in ["localhost", "127.0.0.1"] {
        for _ in 0..3 {
            let response =
                send(&client, &format!("https://{host}:{}/", server.port)).await.unwrap();
            assert_eq!(response.version(), Version::HTTP_2);
            assert_eq!(text(response).await, "ping");
        }
    }
    assert_eq!((server.connections(), server.requests()), (2, 6));

    let mut http1_only = authority.server(&["localhost"]);
    http1_only.alpn_protocols = vec![b"http/1.1".to_vec()];
    let server = Server::tls(http1_only).await;
    let response = send(&client, &format!("https://localhost:{}/", server.port)).await.unwrap();
    assert_eq!(response.headers()["x-version"], "HTTP/1.1");
}

#[tokio::test]
async fn requests_at_once_share_one_http2_connection() {
    let authority = Authority::new();
    let server = Server::tls(authority.server(&["localhost"])).await;
    let client = trusting(&authority);
    let url = format!("https://localhost:{}/", server.port);
    assert_eq!(text(send(&client, &url).await.unwrap()).await, "ping");
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (client, url) = (client.clone(), url.clone());
        calls.spawn(async move { text(send(&client, &url).await.unwrap()).await });
    }
    assert!(calls.join_all().await.iter().all(|body| body == "ping"));
    assert_eq!((server.connections(), server.requests()), (1, 51));
}

#[tokio::test]
async fn open_event_streams_leave_room_for_other_requests_over_http2() {
    let authority = Authority::new();
    let server = Server::tls(authority.server(&["localhost"])).await;
    let client = HttpClient::new(HttpClientConfig {
        extra_roots: vec![authority.certificate.clone()],
        idle_timeout: Duration::from_secs(60),
        ..local()
    })
    .unwrap();
    let url = |path: &str| format!("https://localhost:{}/{path}", server.port);
    let mut open = Vec::new();
    for _ in 0..150 {
        open.push(send(&client, &url("stream")).await.unwrap());
        assert_eq!(text(send(&client, &url("echo")).await.unwrap()).await, "ping");
    }
    assert_eq!(server.connections(), 3);
    drop(open);
    assert_eq!(text(send(&client, &url("echo")).await.unwrap()).await, "ping");
    assert_eq!(server.connections(), 3, "the first connection is used again");
}

#[tokio::test]
async fn certificates_are_verified() {
    let authority = Authority::new();
    let cases = [
        ("wrong name", authority.server(&["other.example"])),
        ("expired", authority.server_until(&["localhost"], 2020)),
        ("self-signed", self_signed(&["localhost"])),
        ("unknown authority", Authority::new().server(&["localhost"])),
    ];
    let client = trusting(&authority);
    for (what, config) in cases {
        let server = Server::tls(config).await;
        let error = send(&client, &format!("https://localhost:{}/", server.port))
            .await
            .map(|_| ())
            .unwrap_err();
        assert!(
            matches!(&error, SendError::Tls { reason } if reason.contains("certificate")),
            "{what}: {error}"
        );
        assert!(error.is_safe_to_retry());
        assert_eq!(server.requests(), 0, "{what}");
    }
}

#[tokio::test]
async fn the_test_authority_is_not_trusted_without_being_named() {
    let authority = Authority::new();
    let server = Server::tls(authority.server(&["localhost"])).await;
    let client = HttpClient::new(local()).unwrap();
    let error = send(&client, &format!("https://localhost:{}/", server.port))
        .await
        .map(|_| ())
        .unwrap_err();
    assert!(matches!(error, SendError::Tls { .. }), "{error}");
}

#[test]
fn an_unusable_root_certificate_is_refused_with_its_position() {
    let good = Authority::new().certificate;
    let config = HttpClientConfig { extra_roots: vec![good, vec![1, 2, 3].into()], ..local() };
    assert!(matches!(HttpClient::new(config), Err(TlsSetupError::Root { position: 2, .. })));
}

#[tokio::test]
async fn a_plain_server_behind_https_is_a_tls_error() {
    let server = Server::plain().await;
    let client = HttpClient::new(local()).unwrap();
    let error = send(&client, &format!("https://127.0.0.1:{}/", server.port))
        .await
        .map(|_| ())
        .unwrap_err();
    assert!(matches!(error, SendError::Tls { .. }), "{error}");
}

#[tokio::test]
async fn no_spelling_of_loopback_bypasses_the_policy() {
    let server = Server::plain().await;
    let client =
        HttpClient::new(HttpClientConfig { egress: Arc::new(EgressPolicy::default()), ..local() })
            .unwrap();
    for host in [
        "127.0.0.1",
        "localhost",
        "LOCALHOST",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "0.0.0.0",
        "2130706433",
        "0x7f.1",
        "127.1",
        "0177.0.0.1",
    ] {
        for scheme in ["http", "https"] {
            let error = send(&client, &format!("{scheme}://{host}:{}/", server.port))
                .await
                .map(|_| ())
                .unwrap_err();
            // A resolver that refuses an unusual spelling counts as a refusal.
            let refused = matches!(error, SendError::Denied(_))
                || (host.starts_with(char::is_numeric)
                    && matches!(error, SendError::Connect { .. }));
            assert!(refused, "{host}: {error}");
            assert!(error.is_safe_to_retry());
        }
    }
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn the_egress_lists_are_checked_at_each_connect() {
    let server = Server::plain().await;
    let url = format!("http://localhost:{}/", server.port);
    let block = |text: &str| vec![text.parse().unwrap()];
    let allowed = EgressPolicy { allow: block("127.0.0.0/8"), ..EgressPolicy::default() };
    let client =
        HttpClient::new(HttpClientConfig { egress: Arc::new(allowed.clone()), ..local() }).unwrap();
    assert_eq!(text(send(&client, &url).await.unwrap()).await, "ping");
    let denied = EgressPolicy {
        deny: [block("127.0.0.1"), block("::1")].concat(),
        loopback: true,
        ..allowed
    };
    let client = HttpClient::new(HttpClientConfig { egress: Arc::new(denied), ..local() }).unwrap();
    let error = send(&client, &url).await.map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("egress.deny"), "{error}");
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_name_that_changes_to_a_refused_address_is_refused_at_the_next_connect() {
    let server = Server::plain().await;
    let lookups = AtomicUsize::new(0);
    let resolver = Resolver::new(move |_| {
        let last = if lookups.fetch_add(1, Ordering::SeqCst) == 0 { 1 } else { 2 };
        Ok(vec![SocketAddr::from(([127, 0, 0, last], 0))])
    });
    let egress =
        EgressPolicy { allow: vec!["127.0.0.1".parse().unwrap()], ..EgressPolicy::default() };
    let config = HttpClientConfig { egress: Arc::new(egress), resolver, ..local() };
    let client = HttpClient::new(config).unwrap();
    let url = format!("http://backend.test:{}/", server.port);
    let unread = send(&client, &url).await.unwrap();
    assert!(matches!(send(&client, &url).await.unwrap_err(), SendError::Denied(_)));
    assert_eq!(text(unread).await, "ping");
}

#[tokio::test]
async fn a_closed_port_and_an_unknown_name_are_connect_errors() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let client = HttpClient::new(local()).unwrap();
    for host in ["127.0.0.1", "localhost", "no-such-name.invalid"] {
        let error = send(&client, &format!("http://{host}:{port}/")).await.map(|_| ()).unwrap_err();
        assert!(matches!(error, SendError::Connect { .. }), "{host}: {error}");
        assert!(error.is_safe_to_retry());
    }
}

#[tokio::test]
async fn a_silent_tls_server_causes_a_connect_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client =
        HttpClient::new(HttpClientConfig { connect_timeout: Duration::from_millis(50), ..local() })
            .unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let error = send(&client, &url).await.map(|_| ()).unwrap_err();
    assert_eq!(error, SendError::ConnectTimeout);
    assert!(error.is_safe_to_retry());
}

#[tokio::test]
async fn a_connection_lost_after_the_request_has_an_unknown_outcome() {
    let client = HttpClient::new(local()).unwrap();
    for answer in [&b""[..], b"HTTP/1.1 200 OK\r\nContent-", b"not http at all\r\n\r\n"] {
        let error = send(&client, &raw_server(answer).await).await.map(|_| ()).unwrap_err();
        assert!(matches!(error, SendError::Aborted { .. }), "{error}");
        assert!(!error.is_safe_to_retry());
    }
}

#[tokio::test]
async fn a_response_head_over_the_limit_is_refused() {
    let server = Server::plain().await;
    let url = format!("http://127.0.0.1:{}/header", server.port);
    let client = HttpClient::new(HttpClientConfig { head_bytes_max: 10_000, ..local() }).unwrap();
    assert!(matches!(send(&client, &url).await, Err(SendError::Aborted { .. })));
    let client = HttpClient::new(HttpClientConfig { head_bytes_max: 30_000, ..local() }).unwrap();
    assert_eq!(text(send(&client, &url).await.unwrap()).await, "ping");
}

#[tokio::test]
async fn a_relative_url_is_refused() {
    let client = HttpClient::new(local()).unwrap();
    let error = client.send(Request::new(Full::default())).await.map(|_| ()).unwrap_err();
    assert!(matches!(&error, SendError::Connect { .. }) && error.is_safe_to_retry(), "{error}");
}

#[tokio::test]
async fn bodies_are_read_up_to_the_limit() {
    let client = HttpClient::new(local()).unwrap();
    let declared = raw_server(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n12345678").await;
    let chunked = raw_server(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n123\r\n5\r\n45678\r\n0\r\n\r\n",
    )
    .await;
    let until_closed = raw_server(b"HTTP/1.1 200 OK\r\n\r\n12345678").await;
    for url in [declared, chunked, until_closed] {
        for (bytes_max, expected) in [
            (8, Ok(Bytes::from("12345678"))),
            (7, Err(BodyError::TooLarge { max: 7 })),
            (0, Err(BodyError::TooLarge { max: 0 })),
        ] {
            let body = send(&client, &url).await.unwrap().into_body();
            assert_eq!(soon("the body", read_body(body, bytes_max)).await, expected, "{url}");
        }
    }
    let empty = raw_server(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n").await;
    assert_eq!(
        read_body(send(&client, &empty).await.unwrap().into_body(), 0).await,
        Ok(Bytes::new())
    );
}

#[tokio::test]
async fn a_body_cut_short_is_an_error() {
    let client = HttpClient::new(local()).unwrap();
    let url = raw_server(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n12345678").await;
    let body = send(&client, &url).await.unwrap().into_body();
    assert!(matches!(
        soon("an error", read_body(body, 1000)).await,
        Err(BodyError::Aborted { .. })
    ));
}

/// Returns the time until the kernel probes the other end of the connection, or `None` if it never
/// does. `near` is the end of this process.
fn time_until_probe(near: SocketAddr, far: SocketAddr) -> Option<Duration> {
    const PROBE_TIMER: &str = "02";
    const TICKS_PER_SECOND: u32 = 100;
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let has_port = |field: &str, port: u16| field.ends_with(&format!(":{port:04X}"));
    table.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let is_wanted = has_port(fields[1], near.port()) && has_port(fields[2], far.port());
        let (kind, ticks) = fields[5].split_once(':')?;
        (is_wanted && kind == PROBE_TIMER).then(|| {
            Duration::from_secs(1) * u32::from_str_radix(ticks, 16).unwrap() / TICKS_PER_SECOND
        })
    })
}

#[tokio::test]
async fn f_12_the_kernel_probes_the_server_of_a_silent_event_stream() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let far = listener.local_addr().unwrap();
    let client = HttpClient::new(local()).unwrap();
    let response = tokio::spawn(async move { send(&client, &format!("http://{far}/mcp")).await });
    let (mut stream, near) = soon("a connection", listener.accept()).await.unwrap();
    stream
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        .await
        .unwrap();
    let open = response.await.unwrap().unwrap();
    assert_eq!(open.status(), StatusCode::OK);
    let probed = time_until_probe(near, far).expect("the kernel probes the server");
    assert!(probed < DEAD_AFTER, "{probed:?}");
}
