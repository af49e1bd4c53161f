//! Streamable HTTP towards clients: methods, headers, status codes, hosts and origins, sizes and
//! slow senders.

use std::time::{Duration, Instant};

use serde_json::json;
use testkit::{FakeBackend, HttpVersion, TestClient, client::ACCEPT_BOTH, within};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::{
    broker_with, builder, configured, configured_alone, echo, initialize_body, kind, raw_http,
    read_answer, read_to_close, refused, request,
};

const LATEST: &str = "2025-11-25";
const JSON: (&str, &str) = ("content-type", "application/json");
const ACCEPT: (&str, &str) = ("accept", ACCEPT_BOTH);

#[tokio::test]
async fn http_01_one_path_serves_post_and_get() {
    let (broker, _backend) = echo().await;
    for path in ["/mcp", "/mcp/b"] {
        let client = broker.client(path).connected(json!({})).await;
        assert_eq!(client.post(request(9, "ping", json!({}))).await.status, 200);
        assert!(client.get_stream_raw(None).await.is_event_stream());
    }
}

#[tokio::test]
async fn an_unknown_path_or_backend_is_not_found() {
    let (broker, _backend) = echo().await;
    for path in ["/", "/mcp/none", "/mcp/b/c", "/other", "/mcp/B", "/mcp/%62"] {
        let response = broker.client(path).post_raw(&[JSON, ACCEPT], initialize_body(LATEST)).await;
        let (status, error) = refused(response).await;
        assert_eq!(
            (status, error["code"].as_i64(), kind(&error)),
            (404, Some(-32600), "not_found"),
            "{path}"
        );
    }
}

#[tokio::test]
async fn http_02_a_hostile_origin_is_refused_on_every_method() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({})).await;
    for origin in [
        "https://evil.example",
        "http://localhost.evil.example",
        "null",
        "http://127.0.0.1.evil.example:80",
        "nonsense",
    ] {
        for method in ["POST", "GET", "DELETE"] {
            let body = if method == "POST" { request(1, "ping", json!({})) } else { String::new() };
            let response =
                client.send_with(method, client.headers_with(&[("origin", origin)]), body).await;
            let (status, error) = refused(response).await;
            assert_eq!((status, kind(&error)), (403, "origin_refused"), "{method} from {origin}");
        }
    }
    client.result("ping", json!({})).await;
}

#[tokio::test]
async fn http_02_loopback_and_configured_origins_are_served() {
    let backend = FakeBackend::echo().await;
    let origins = json!({"auth": {"allowed_origins": ["https://app.example.com"]}});
    let broker = configured(origins, backend.spec()).await;
    let client = broker.connected(json!({})).await;
    for origin in [
        "http://localhost:3000",
        "http://127.0.0.1",
        "http://[::1]:8080",
        "https://app.example.com",
    ] {
        let response = client
            .send_with(
                "POST",
                client.headers_with(&[("origin", origin)]),
                request(1, "ping", json!({})),
            )
            .await;
        assert_eq!(response.status, 200, "{origin}");
    }
}

#[tokio::test]
async fn http_03_a_foreign_host_is_refused_on_a_loopback_listener() {
    let (broker, _backend) = echo().await;
    let client = broker.client("/mcp");
    for host in
        ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example"]
    {
        let response =
            client.post_raw(&[JSON, ACCEPT, ("host", host)], initialize_body(LATEST)).await;
        let (status, error) = refused(response).await;
        assert_eq!((status, kind(&error)), (403, "host_refused"), "{host}");
    }
    for host in ["localhost", "localhost:1234", "[::1]:99", "127.0.0.1"] {
        let response =
            client.post_raw(&[JSON, ACCEPT, ("host", host)], initialize_body(LATEST)).await;
        assert_eq!(response.status, 200, "{host}");
    }
}

#[tokio::test]
async fn http_05_a_request_without_a_required_key_is_unauthorized() {
    let backend = FakeBackend::echo().await;
    let broker = builder()
        .auth_required()
        .admin_token("operator-of-tests")
        .backend("default", "b", backend.spec())
        .start()
        .await;
    let client = broker.client("/mcp");
    for method in ["POST", "GET", "DELETE"] {
        for key in [
            None,
            Some("Bearer nonsense"),
            Some("Bearer mcpb_AAAAAAAAAAAA_AAAA"),
            Some("Basic YTpi"),
        ] {
            let mut headers = vec![
                ("accept", ACCEPT_BOTH),
                ("content-type", "application/json"),
                ("mcp-session-id", "x"),
            ];
            headers.extend(key.map(|key| ("authorization", key)));
            let body = if method == "POST" { initialize_body(LATEST) } else { String::new() };
            let response = client.send(method, &headers, body).await;
            assert!(
                response
                    .header("www-authenticate")
                    .is_some_and(|value| value.starts_with("Bearer")),
                "{method} {key:?}"
            );
            let (status, error) = refused(response).await;
            assert_eq!((status, kind(&error)), (401, "unauthorized"), "{method} {key:?}");
        }
    }
    let key = broker.admin().create_key("default").await;
    let client = broker.client("/mcp").bearer(&key).connected(json!({})).await;
    assert_eq!(client.tool_names().await, ["b__echo"]);
}

#[tokio::test]
async fn http_05_the_admin_listener_requires_its_token() {
    let broker = builder().admin_token("operator-of-tests").start().await;
    for token in [None, Some("wrong"), Some("operator-of-tests2"), Some("")] {
        let admin = broker.admin().with_token(token);
        for (method, path) in [
            ("GET", "/admin/v1/tenants"),
            ("GET", "/admin/v1/sessions"),
            ("DELETE", "/admin/v1/tenants/default"),
            ("POST", "/admin/v1/drain"),
        ] {
            assert_eq!(
                admin.send(method, path, None).await.status,
                401,
                "{method} {path} with {token:?}"
            );
        }
    }
    assert_eq!(broker.admin().get("/admin/v1/tenants").await.0, 200);
}

#[tokio::test]
async fn http_06_a_body_that_is_not_one_message_is_refused() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({})).await;
    let two = format!("{}{}", request(1, "ping", json!({})), request(2, "ping", json!({})));
    for (body, code) in [
        ("[]", -32600),
        ("\"x\"", -32600),
        ("7", -32600),
        ("null", -32600),
        ("", -32700),
        (two.as_str(), -32700),
        ("{", -32700),
    ] {
        let (status, error) = refused(client.post(body.to_owned()).await).await;
        assert_eq!((status, error["code"].as_i64()), (400, Some(code)), "{body:?}");
    }
    client.result("ping", json!({})).await;
}

#[tokio::test]
async fn http_07_an_accepted_notification_is_202_and_empty() {
    let (broker, _backend) = echo().await;
    let client = broker.client("/mcp");
    client.initialize_only(LATEST, json!({})).await;
    client.notify("notifications/initialized", json!({})).await;
    client.notify("notifications/cancelled", json!({"requestId": 77})).await;
    client.notify("notifications/roots/list_changed", json!({})).await;
}

#[tokio::test]
async fn http_08_a_notification_or_response_of_an_unknown_session_is_refused() {
    let (broker, _backend) = echo().await;
    let client = broker.client("/mcp");
    client.set_session(Some("nobody-knows-this-session"));
    for body in [
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "id": 1, "result": {}}),
    ] {
        let response = client.post(body.to_string()).await;
        assert_eq!(response.status, 404, "{body}");
    }
}

#[tokio::test]
async fn http_09_requests_are_answered_as_json_or_event_stream() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({})).await;
    for (method, params) in [
        ("ping", json!({})),
        ("tools/list", json!({})),
        ("resources/list", json!({})),
        ("resources/templates/list", json!({})),
        ("prompts/list", json!({})),
        ("tools/call", json!({"name": "b__echo"})),
        ("tools/call", json!({"name": "none"})),
        ("nonsense", json!({})),
    ] {
        let response = client.post(request(5, method, params)).await;
        assert_eq!(response.status, 200, "{method}");
        assert!(
            ["application/json", "text/event-stream"].contains(&response.content_type()),
            "{method}: {:?}",
            response.headers
        );
    }
}

#[tokio::test]
async fn http_10_accept_must_allow_an_answer() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({})).await;
    for accept in [
        "text/html",
        "image/*",
        "application/xml, text/plain",
        "application/json;q=0, text/event-stream;q=0",
    ] {
        let response = client
            .send_with(
                "POST",
                client.headers_with(&[("accept", accept)]),
                request(1, "ping", json!({})),
            )
            .await;
        let (status, error) = refused(response).await;
        assert_eq!((status, kind(&error)), (406, "not_acceptable"), "{accept}");
    }
    for accept in [
        "*/*",
        "application/*, text/*",
        "text/event-stream, application/json;q=0.5",
        "APPLICATION/JSON,TEXT/EVENT-STREAM",
    ] {
        let response = client
            .send_with(
                "POST",
                client.headers_with(&[("accept", accept)]),
                request(1, "ping", json!({})),
            )
            .await;
        assert_eq!(response.status, 200, "{accept}");
    }
}

#[tokio::test]
async fn http_11_only_json_bodies_are_accepted() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({})).await;
    for media in ["text/plain", "application/jsonp", "application/x-www-form-urlencoded", "json"] {
        let response = client
            .send_with(
                "POST",
                client.headers_with(&[("content-type", media)]),
                request(1, "ping", json!({})),
            )
            .await;
        let (status, error) = refused(response).await;
        assert_eq!((status, kind(&error)), (415, "media_type_unsupported"), "{media}");
    }
    let response = client
        .send_with("POST", client.headers_without(&["content-type"]), request(1, "ping", json!({})))
        .await;
    assert_eq!(response.status, 415);
    let response = client
        .send_with(
            "POST",
            client.headers_with(&[("content-encoding", "gzip")]),
            request(1, "ping", json!({})),
        )
        .await;
    let (status, error) = refused(response).await;
    assert_eq!(
        (status, kind(&error)),
        (415, "media_type_unsupported"),
        "compressed bodies are not read"
    );
    for media in ["application/json; charset=utf-8", "Application/JSON"] {
        let response = client
            .send_with(
                "POST",
                client.headers_with(&[("content-type", media)]),
                request(1, "ping", json!({})),
            )
            .await;
        assert_eq!(response.status, 200, "{media}");
    }
}

#[tokio::test]
async fn http_12_get_needs_event_stream_in_accept() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({})).await;
    for accept in ["application/json", "text/html"] {
        let response =
            client.send_with("GET", client.headers_with(&[("accept", accept)]), "").await;
        assert!([405, 406].contains(&response.status), "{accept}: {}", response.status);
    }
    assert_eq!(client.get_stream_raw(None).await.content_type(), "text/event-stream");
}

#[tokio::test]
async fn http_13_an_unknown_protocol_version_header_is_refused() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({})).await;
    for version in ["abc", "2099-01-01", "", "2025-11-25, 2025-06-18"] {
        for method in ["POST", "GET", "DELETE"] {
            let body = if method == "POST" { request(1, "ping", json!({})) } else { String::new() };
            let response = client
                .send_with(method, client.headers_with(&[("mcp-protocol-version", version)]), body)
                .await;
            assert_eq!(response.status, 400, "{method} {version:?}");
        }
    }
    client.result("ping", json!({})).await;
}

#[tokio::test]
async fn http_14_without_the_version_header_the_version_of_the_session_is_used() {
    let (broker, _backend) = echo().await;
    for version in ["2025-11-25", "2025-06-18", "2025-03-26"] {
        let client = broker.client("/mcp");
        client.initialize(version, json!({})).await;
        client.set_version(None);
        assert_eq!(client.tool_names().await, ["b__echo"], "{version}");
    }
}

#[tokio::test]
async fn http_15_another_supported_version_in_the_header_is_tolerated() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({})).await;
    client.set_version(Some("2025-06-18"));
    assert_eq!(client.tool_names().await, ["b__echo"]);
}

#[tokio::test]
async fn http_16_other_methods_are_405_with_the_allowed_methods() {
    let (broker, _backend) = echo().await;
    for method in ["PUT", "PATCH", "TRACE"] {
        let response = broker.client("/mcp").send(method, &[JSON, ACCEPT], "").await;
        assert_eq!(response.status, 405, "{method}");
        let allow = response.header("allow").unwrap_or_default().to_owned();
        assert!(
            ["GET", "POST", "DELETE"].iter().all(|allowed| allow.contains(allowed)),
            "{method}: Allow: {allow}"
        );
    }
}

#[tokio::test]
async fn http_16_options_answers_allowed_origins_only() {
    let (broker, _backend) = echo().await;
    let backend_with_questions = |origin| {
        [
            ("origin", origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "mcp-session-id"),
        ]
    };
    let client = broker.client("/mcp");
    let hostile = client.send("OPTIONS", &backend_with_questions("https://evil.example"), "").await;
    assert!(hostile.status == 403 && hostile.header("access-control-allow-origin").is_none());
    let allowed =
        client.send("OPTIONS", &backend_with_questions("http://localhost:3000"), "").await;
    assert!((200..300).contains(&allowed.status), "{}", allowed.status);
}

#[tokio::test]
async fn http_17_a_body_over_the_limit_is_413() {
    let backend = FakeBackend::echo().await;
    let limit = json!({"limits": {"message_bytes": "64KiB"}});
    let broker = configured(limit, backend.spec()).await;
    let client = broker.connected(json!({})).await;
    let body = request(
        1,
        "tools/call",
        json!({"name": "b__echo", "arguments": {"x": "y".repeat(70_000)}}),
    );
    let (status, error) = refused(client.post(body.clone()).await).await;
    assert_eq!((status, kind(&error)), (413, "message_too_large"));
    let session = client.session().unwrap();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\naccept: {ACCEPT_BOTH}\r\nmcp-session-id: {session}\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    let chunked = format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let answer = raw_http(broker.http_address(), chunked.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    let fits = request(
        1,
        "tools/call",
        json!({"name": "b__echo", "arguments": {"x": "y".repeat(50_000)}}),
    );
    assert_eq!(client.post(fits).await.status, 200);
}

#[tokio::test]
async fn http_17_the_default_limit_is_16_mib() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({})).await;
    let (status, error) = refused(client.post(vec![b' '; 17 << 20]).await).await;
    assert_eq!((status, kind(&error)), (413, "message_too_large"));
}

#[tokio::test]
async fn http_18_a_body_that_comes_byte_by_byte_is_served() {
    let (broker, _backend) = echo().await;
    let body = initialize_body(LATEST);
    let mut stream = TcpStream::connect(broker.http_address()).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\naccept: {ACCEPT_BOTH}\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    for byte in body.bytes() {
        stream.write_all(format!("1\r\n{}\r\n", byte as char).as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
    }
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    let answer = read_to_close(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("protocolVersion"), "{answer}");
}

#[tokio::test]
async fn http_18_pipelined_requests_are_answered_in_order() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({})).await;
    let one = |id: u64, close: &str| client.post_as_text(close, &request(id, "ping", json!({})));
    let pipelined = format!("{}{}{}", one(11, ""), one(12, ""), one(13, "connection: close\r\n"));
    let answer = raw_http(broker.http_address(), pipelined.as_bytes()).await;
    let offsets: Vec<_> =
        [11, 12, 13].iter().map(|id| answer.find(&format!("\"id\":{id}"))).collect();
    assert!(offsets.iter().all(Option::is_some) && offsets.is_sorted(), "{offsets:?} in {answer}");
}

#[tokio::test]
async fn http_18_life_11_slow_heads_and_bodies_are_refused_at_the_deadline() {
    let backend = FakeBackend::echo().await;
    let deadline = json!({"timeouts": {"request_read": "300ms"}});
    let broker = configured(deadline, backend.spec()).await;
    let head = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    for (what, bytes) in [
        ("half a head", head.to_owned()),
        (
            "half a body",
            format!("{head}accept: {ACCEPT_BOTH}\r\ncontent-length: 500\r\n\r\n{{\"jsonrpc\""),
        ),
        (
            "half a chunk",
            format!("{head}accept: {ACCEPT_BOTH}\r\ntransfer-encoding: chunked\r\n\r\nff\r\n{{"),
        ),
        ("silence", String::new()),
        ("one byte", "P".to_owned()),
        ("half a preface of HTTP/2", "PRI * HTTP/2.0\r\n".to_owned()),
    ] {
        let answer = within(what, raw_http(broker.http_address(), bytes.as_bytes())).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{what}: {answer}");
    }
    assert_eq!(broker.connected(json!({})).await.tool_names().await, ["b__echo"]);
}

/// A balancer sends requests on connections that it has kept open for a while.
#[tokio::test]
async fn http_18_an_unused_connection_stays_open_for_longer_than_a_head_may_take() {
    let backend = FakeBackend::echo().await;
    let deadline = json!({"timeouts": {"request_read": "300ms"}});
    let broker = configured_alone(deadline, backend.spec()).await;
    let client = broker.connected(json!({})).await;
    let ping = |id: u64| client.post_as_text("", &request(id, "ping", json!({})));
    // A connection of plain POSTs alone, and one that another request has handed to the library.
    for other in ["", "GET /nowhere HTTP/1.1\r\nhost: localhost\r\n\r\n"] {
        let mut stream = TcpStream::connect(broker.http_address()).await.unwrap();
        stream.write_all(ping(1).as_bytes()).await.unwrap();
        assert!(read_answer(&mut stream).await.starts_with("HTTP/1.1 200 "));
        stream.write_all(other.as_bytes()).await.unwrap();
        if !other.is_empty() {
            assert!(read_answer(&mut stream).await.starts_with("HTTP/1.1 404 "));
        }
        // The broker closes these connections because their heads have taken too long.
        for _ in 0..3 {
            let half = raw_http(broker.http_address(), b"POST /mcp HTTP/1.1\r\n");
            within("the end of half a head", half).await;
        }
        stream.write_all(ping(2).as_bytes()).await.unwrap();
        let answer = read_answer(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{other:?}: {answer}");
    }
}

#[tokio::test]
async fn http_18_a_connection_stays_open_while_requests_arrive_in_time() {
    let wait = Duration::from_secs(1);
    let backend = FakeBackend::echo().await;
    let deadline = json!({"timeouts": {"request_read": "1s", "http_idle": "1s"}});
    let broker = configured_alone(deadline, backend.spec()).await;
    let client = broker.connected(json!({})).await;
    // Three connections: plain POSTs alone; one that another request has handed to the library; one
    // whose next request has begun and not ended.
    for (other, partial_request) in [
        ("", ""),
        ("GET /nowhere HTTP/1.1\r\nhost: localhost\r\n\r\n", ""),
        ("", "POST /mcp HTTP/1.1\r\nhost: lo"),
    ] {
        let mut stream = TcpStream::connect(broker.http_address()).await.unwrap();
        let began = Instant::now();
        let mut served = 0;
        while began.elapsed() < wait * 3 / 2 {
            served += 1;
            let text = client.post_as_text("", &request(served, "ping", json!({})));
            stream.write_all(text.as_bytes()).await.unwrap();
            let answer = read_answer(&mut stream).await;
            assert!(
                answer.starts_with("HTTP/1.1 200 ") && !answer.contains("connection: close"),
                "{answer}"
            );
        }
        stream.write_all(other.as_bytes()).await.unwrap();
        if !other.is_empty() {
            assert!(read_answer(&mut stream).await.starts_with("HTTP/1.1 404 "));
        }
        stream.write_all(partial_request.as_bytes()).await.unwrap();
        let rest = read_to_close(&mut stream).await;
        assert!(!rest.contains("HTTP/1.1 2"), "{other:?} {partial_request:?}: {rest}");
        assert!(
            began.elapsed() >= wait * 2,
            "{other:?} {partial_request:?}: {:?}",
            began.elapsed()
        );
    }
}

#[tokio::test]
async fn http2_with_prior_knowledge_supports_a_whole_session() {
    let backend = FakeBackend::with_tool("slow", |call| async move {
        call.progress(1.0, 2.0).await;
        testkit::Reply::text(&call.arguments()["n"].to_string())
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.client("/mcp").http(HttpVersion::Http2).connected(json!({})).await;
    let calls: Vec<_> = (0..30)
        .map(|n| {
            client.start_request(
                "tools/call",
                json!({"name": "b__slow", "arguments": {"n": n}, "_meta": {"progressToken": n}}),
            )
        })
        .collect();
    for (n, mut call) in calls.into_iter().enumerate() {
        let answer = call.finish().await;
        assert_eq!(answer.value["result"]["content"][0]["text"], n.to_string());
        assert_eq!(call.before.len(), 1, "one progress notification");
    }
    assert!((200..300).contains(&client.delete_session().await));
}

#[tokio::test]
async fn header_names_and_the_session_header_are_case_insensitive() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({})).await;
    let session = client.session().unwrap();
    let body = request(1, "ping", json!({}));
    let bytes = format!(
        "POST /mcp HTTP/1.1\r\nHOST: localhost\r\nCONTENT-TYPE: application/json\r\nACCEPT: {ACCEPT_BOTH}\r\nMCP-SESSION-ID: {session}\r\nCONNECTION: close\r\nCONTENT-LENGTH: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = raw_http(broker.http_address(), bytes.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn hostile_framing_is_refused_and_never_read_as_a_second_request() {
    let (broker, _backend) = echo().await;
    let smuggled = "GET /smuggled HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for head in [
        format!(
            "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello{smuggled}"
        ),
        format!("POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n{smuggled}"),
        format!("POST /mcp HTTP/1.1\r\nhost : localhost\r\n\r\n{smuggled}"),
        format!(
            "POST /mcp HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{smuggled}"
        ),
        format!("POST /mcp HTTP/1.1\r\nhost: localhost\r\nx: a\0b\r\n\r\n{smuggled}"),
    ] {
        let answer = raw_http(broker.http_address(), head.as_bytes()).await;
        assert!(answer.matches("HTTP/1.1 ").count() <= 1, "{head:?} gave {answer}");
        assert!(!answer.starts_with("HTTP/1.1 2"), "{head:?} gave {answer}");
    }
    TestClient::new(broker.http_address(), "/mcp").connected(json!({})).await;
}
