//! Headers of Streamable HTTP that disagree (H-10), and event ids of other clients' streams (H-16).
//! The headers that repeat the body in 2026-07-28 are tested in `stateless::http`.

use serde_json::{Value, json};
use testkit::{Event, FakeBackend, Reply, TestBroker, TestClient, client::ACCEPT_BOTH};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{builder, echo, initialize_body, kind, refused, request, text_of};

const HOST: (&str, &str) = ("host", "localhost");
const JSON: (&str, &str) = ("content-type", "application/json");
const BOTH: (&str, &str) = ("accept", ACCEPT_BOTH);

/// Returns the first line, and all headers, of the answer to a request that is written by hand.
async fn response_head(
    broker: &TestBroker,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> String {
    let headers: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let mut socket = TcpStream::connect(broker.http_address()).await.unwrap();
    let text = format!(
        "{method} {path} HTTP/1.1\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(text.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match testkit::within("a head", socket.read_u8()).await {
            Ok(byte) => head.push(byte),
            Err(error) => {
                panic!("{method} {path}: {error} after {}", String::from_utf8_lossy(&head))
            }
        }
    }
    String::from_utf8(head).unwrap().to_lowercase()
}

fn status(head: &str) -> u16 {
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn h_10_media_types_that_do_not_fit_are_refused_on_every_path() {
    let (broker, _backend) = echo().await;
    let text = ("content-type", "text/plain");
    let forms = ("content-type", "multipart/form-data; boundary=application/json");
    let both_in_one = ("content-type", "application/json, text/plain");
    for path in ["/mcp", "/mcp/b", "/messages?session=x"] {
        for headers in [
            &[HOST, BOTH][..],
            &[HOST, BOTH, text],
            &[HOST, BOTH, forms],
            &[HOST, BOTH, both_in_one],
            &[HOST, BOTH, ("content-type", "")],
            &[HOST, BOTH, JSON, text],
            &[HOST, BOTH, text, JSON],
            &[HOST, BOTH, JSON, ("content-encoding", "br")],
            &[HOST, BOTH, JSON, ("content-encoding", "identity"), ("content-encoding", "br")],
        ] {
            let head =
                response_head(&broker, "POST", path, headers, &initialize_body("2025-11-25")).await;
            assert_eq!(status(&head), 415, "{path} {headers:?}: {head}");
        }
    }
    for accept in [
        "application/json",
        "text/event-stream",
        "text/html",
        "application/json, text/event-stream;q=0",
        "",
    ] {
        let head = response_head(
            &broker,
            "POST",
            "/mcp",
            &[HOST, JSON, ("accept", accept)],
            &initialize_body("2025-11-25"),
        )
        .await;
        assert_eq!(status(&head), 406, "{accept:?}: {head}");
    }
    for path in ["/mcp", "/mcp/b", "/sse", "/sse/b"] {
        for accept in ["application/json", "text/html", "text/event-stream;q=0"] {
            let head = response_head(&broker, "GET", path, &[HOST, ("accept", accept)], "").await;
            assert_eq!(status(&head), 406, "{path} {accept}: {head}");
        }
    }
    assert!(broker.admin().sessions("default").await.is_empty());
}

#[tokio::test]
async fn h_10_an_unsupported_method_is_405_with_the_allowed_methods() {
    let (broker, _backend) = echo().await;
    for (path, taken) in [
        ("/mcp", &["get", "post", "delete"][..]),
        ("/mcp/b", &["get", "post", "delete"]),
        ("/sse", &["get"]),
        ("/messages?session=x", &["post"]),
        ("/ws", &["get"]),
    ] {
        for method in ["HEAD", "PUT", "PATCH", "TRACE", "post", "BREW", "GET", "POST", "DELETE"] {
            if taken.contains(&method.to_lowercase().as_str()) && method != "post" {
                continue;
            }
            let head = response_head(&broker, method, path, &[HOST, JSON, BOTH], "").await;
            assert_eq!(status(&head), 405, "{method} {path}: {head}");
            let allow = head
                .lines()
                .find_map(|line| line.strip_prefix("allow: "))
                .unwrap_or_else(|| panic!("{method} {path}: {head}"));
            assert!(taken.iter().all(|method| allow.contains(method)), "{method} {path}: {allow}");
        }
    }
}

#[tokio::test]
async fn h_10_an_invalid_or_repeated_version_header_is_refused() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({})).await;
    for version in
        ["", "2025-11-26", "20251125", "2025-11-25 x", "DRAFT-2025-v2", "2025-11-25\u{a0}"]
    {
        for method in ["POST", "GET", "DELETE"] {
            let session = client.session().unwrap();
            let headers = [
                HOST,
                JSON,
                BOTH,
                ("mcp-session-id", session.as_str()),
                ("mcp-protocol-version", version),
            ];
            let body = if method == "POST" { request(1, "ping", json!({})) } else { String::new() };
            assert_eq!(
                status(&response_head(&broker, method, "/mcp", &headers, &body).await),
                400,
                "{method} {version:?}"
            );
        }
    }
    for second in ["2025-11-25", "2025-06-18", "2099-01-01"] {
        let mut headers = client.usual_headers();
        headers.push(("mcp-protocol-version".to_owned(), second.to_owned()));
        let (status, error) =
            refused(client.send_with("POST", headers, request(1, "ping", json!({}))).await).await;
        assert_eq!((status, error["code"].as_i64()), (400, Some(-32600)), "{second}: {error}");
    }
    client.result("ping", json!({})).await;
}

/// Resumes from this id; returns status and error, without the members that name this one refusal.
async fn resuming(client: &TestClient, id: &str) -> (u16, Value) {
    let mut headers = client.headers_with(&[("accept", "text/event-stream")]);
    headers.push(("last-event-id".to_owned(), id.to_owned()));
    let (status, mut error) = refused(client.send_with("GET", headers, "").await).await;
    error["data"].as_object_mut().unwrap().remove("requestId");
    (status, error)
}

#[tokio::test]
async fn h_16_an_event_id_of_a_foreign_stream_is_reported_as_unknown() {
    let backend = FakeBackend::with_tool("steps", |call| async move {
        call.progress(1.0, 2.0).await;
        Reply::text("secret")
    })
    .await;
    let broker = builder().backend("default", "b", backend.spec()).start().await;
    let (victim, thief) = (broker.connected(json!({})).await, broker.connected(json!({})).await);
    let body = request(
        1,
        "tools/call",
        json!({"name": "b__steps", "arguments": {}, "_meta": {"progressToken": 1}}),
    );
    let events = victim.post_stream(body).await.rest().await;
    let ids: Vec<String> = events.iter().filter_map(|event| event.id.clone()).collect();
    assert!(ids.len() > 1, "{events:?}");
    // The refusal does not name the owner of an event id. It is the same as for an id that never
    // existed.
    let never = resuming(&thief, "123456789-1").await;
    assert_eq!((never.0, kind(&never.1)), (400, "invalid_request"), "{never:?}");
    for id in &ids {
        assert_eq!(resuming(&thief, id).await, never, "{id}");
    }
    let (stream, _) = ids[0].split_once('-').unwrap();
    for forged in [
        "",
        "-",
        "1-",
        "-1",
        "x",
        "1-x",
        "0x1-1",
        "1-1-!",
        "1-1-e30",
        "18446744073709551616-1",
        "1-18446744073709551616",
        "+1-+1",
        "1-1\t1",
    ] {
        let (status, error) = resuming(&thief, forged).await;
        assert!(
            status == 400 && ["invalid_request", "events_gone"].contains(&kind(&error)),
            "{forged:?}: {error}"
        );
    }
    assert_eq!(resuming(&thief, &"9".repeat(8_000)).await, never);
    // With two ids it is not defined which one counts.
    let mut twice = victim.headers_with(&[("accept", "text/event-stream")]);
    twice.extend(ids[..2].iter().map(|id| ("last-event-id".to_owned(), id.clone())));
    assert_eq!(refused(victim.send_with("GET", twice, "").await).await.0, 400);
    // An id beyond the end of the client's own stream: no such event existed.
    let (status, error) = resuming(&victim, &format!("{stream}-9999")).await;
    assert_eq!((status, kind(&error)), (400, "events_gone"), "{error}");
    assert!(error["message"].as_str().unwrap().contains("Last-Event-ID"), "{error}");
    // None of these requests had an effect on the victim.
    let again = victim.resume(&ids[0]).await.rest().await;
    let answer = again.last().and_then(Event::message).unwrap();
    assert_eq!(text_of(&answer["result"]), "secret");
}

#[tokio::test]
async fn h_16_ids_of_requests_never_break_the_framing() {
    let backend = FakeBackend::with_tool("steps", |call| async move {
        call.progress(1.0, 2.0).await;
        Reply::text("here")
    })
    .await;
    let broker = builder().backend("default", "b", backend.spec()).start().await;
    let client = broker.connected(json!({})).await;
    for id in
        ["a\u{0}b", "a\n\ndata: forged\n\nid: 7\r", "\u{2028}\u{85}\u{feff}", &"x".repeat(500)]
    {
        let params = json!({"name": "b__steps", "arguments": {}, "_meta": {"progressToken": id}});
        let mut call = client.start_request_with_id(json!(id), "tools/call", params);
        let answer = call.finish().await;
        assert_eq!((&answer.value["id"], text_of(&answer.value["result"])), (&json!(id), "here"));
        assert_eq!(call.before[0].value["params"]["progressToken"], id);
    }
}
