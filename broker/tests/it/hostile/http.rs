//! Answers of a hostile backend to a POST: false framing, bodies without end, invalid event
//! streams.

use serde_json::{Value, json};
use testkit::{FakeBackend, TestClient, eventually, within};

use super::raw_http::{RawAnswer, RawHttp, json_answer};
use crate::{builder, configured_alone, kind};

const ANSWER: &str =
    r#"{"jsonrpc":"2.0","id":@ID@,"result":{"content":[{"type":"text","text":"mine"}]}}"#;
const SSE: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
const CHUNKED: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";

/// Kinds of errors that report a missing answer.
const FAILED: &[&str] = &[
    "outcome_unknown",
    "backend_protocol_error",
    "result_too_large",
    "timeout",
    "backend_unavailable",
];
/// The answer itself, or a clean failure: the rules permit both for these bytes.
const EITHER: &[&str] = &["", "outcome_unknown", "backend_protocol_error", "timeout"];

/// Returns tool, answer, and the possible kinds of the error; the empty kind means success.
fn rows() -> Vec<(&'static str, Vec<u8>, &'static [&'static str])> {
    let page = "<h1>canary-inner</h1>";
    let html = |status: &str| {
        format!(
            "HTTP/1.1 {status}\r\ncontent-type: text/html\r\ncontent-length: {}\r\n\r\n{page}",
            page.len()
        )
    };
    let text: Vec<(&str, String, &'static [&'static str])> = vec![
        ("b_04_half_json", json_answer(r#"{"jsonrpc":"2.0","id":@ID@,"res"#, ""), FAILED),
        ("b_04_no_json", json_answer("canary-inner", ""), FAILED),
        ("b_04_html_500", html("500 Oops"), FAILED),
        ("b_04_html_200", html("200 OK"), FAILED),
        ("b_04_empty_200", json_answer("", ""), FAILED),
        ("b_05_wrong_id", json_answer(r#"{"jsonrpc":"2.0","id":424242,"result":{}}"#, ""), FAILED),
        ("b_05_no_id", json_answer(r#"{"jsonrpc":"2.0","result":{}}"#, ""), FAILED),
        (
            "b_07_both",
            json_answer(
                r#"{"jsonrpc":"2.0","id":@ID@,"result":{},"error":{"code":1,"message":"x"}}"#,
                "",
            ),
            FAILED,
        ),
        (
            "b_07_error_text",
            json_answer(r#"{"jsonrpc":"2.0","id":@ID@,"error":"canary-inner"}"#, ""),
            FAILED,
        ),
        (
            "b_08_length_of_gigabytes",
            format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2147483648\r\n\r\n{ANSWER}"
            ),
            FAILED,
        ),
        (
            "b_08_header_of_megabytes",
            json_answer(ANSWER, &format!("x-long: {}\r\n", "x".repeat(8 << 20))),
            FAILED,
        ),
        ("b_08_thousands_of_headers", json_answer(ANSWER, &"x-many: 1\r\n".repeat(20_000)), FAILED),
        (
            "b_08_gzip",
            format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n{ANSWER}",
                ANSWER.len()
            ),
            EITHER,
        ),
        ("b_11_cut_in_an_event", format!("{SSE}data: {{\"jsonrpc\":\"2.0\",\"id\":@ID@,"), FAILED),
        ("b_11_event_without_end", format!("{SSE}data: {ANSWER}"), FAILED),
        ("b_11_carriage_returns", format!("{SSE}id: 1\rdata: {ANSWER}\r\r"), &[""]),
        (
            "b_11_endpoint",
            format!("{SSE}event: endpoint\ndata: http://127.0.0.1:1/canary\n\ndata: {ANSWER}\n\n"),
            &[""],
        ),
        (
            "b_11_retry_without_end",
            format!("{SSE}retry: 999999999999999999999\nid: \u{0}\ndata: {ANSWER}\n\n"),
            &[""],
        ),
        (
            "b_11_unknown_fields",
            format!("{SSE}: comment\nfoo: bar\nset-cookie: canary-inner\ndata: {ANSWER}\n\n"),
            &[""],
        ),
        (
            "b_11_noise_first",
            format!("{SSE}data: not json\n\ndata: {{}}\n\ndata: {ANSWER}\n\n"),
            EITHER,
        ),
        ("b_13_garbage_chunk_size", format!("{CHUNKED}zz\r\n{ANSWER}\r\n0\r\n\r\n"), FAILED),
        (
            "b_13_chunk_size_overflow",
            format!("{CHUNKED}ffffffffffffffff1\r\n{ANSWER}\r\n0\r\n\r\n"),
            FAILED,
        ),
        ("b_13_chunk_cut", format!("{CHUNKED}ffff\r\n{ANSWER}"), FAILED),
        (
            "b_13_early_close",
            format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 5000\r\n\r\n{ANSWER}"
            ),
            FAILED,
        ),
        (
            "b_13_two_lengths",
            format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n{ANSWER}"
            ),
            FAILED,
        ),
        ("b_13_http_0_9", "canary-inner".to_owned(), FAILED),
        (
            "b_13_http_1_0",
            format!("HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n{ANSWER}"),
            EITHER,
        ),
        ("b_13_status_line", format!("HTTP/1.1 9999 \r\n\r\n{ANSWER}"), FAILED),
        (
            "b_13_informational",
            format!("{}{}", "HTTP/1.1 103 Hints\r\n\r\n".repeat(3), json_answer(ANSWER, "")),
            EITHER,
        ),
        (
            "b_13_wrong_type",
            json_answer(ANSWER, "").replace("application/json", "text/plain"),
            EITHER,
        ),
    ];
    let mut rows: Vec<_> = text
        .into_iter()
        .map(|(name, answer_text, expect)| (name, answer_text.into_bytes(), expect))
        .collect();
    rows.push((
        "b_04_binary",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4\r\n\r\n\xff\xfe\x00\x01".to_vec(),
        FAILED,
    ));
    rows
}

async fn call(client: &TestClient, tool: &str) -> Value {
    let mut request = client.start_request("tools/call", json!({"name": tool, "arguments": {}}));
    within("the answer", request.finish()).await.value
}

async fn session(broker: &testkit::TestBroker) -> TestClient {
    let client = broker.client("/mcp/b").connected(json!({})).await;
    client.content_is_invalid_on_purpose("the backend says what no schema allows");
    client
}

#[tokio::test]
async fn b_04_b_05_b_07_b_08_b_11_b_13_a_bad_http_answer_fails_only_its_call() {
    let table = rows();
    let script: Vec<_> =
        table.iter().map(|(name, answer_text, _)| (*name, answer_text.clone())).collect();
    let backend = RawHttp::start(move |tool| {
        let answer_text = script.iter().find(|(name, _)| *name == tool)?;
        Some(RawAnswer::of(answer_text.1.clone()))
    })
    .await;
    let config = json!({"limits": {"message_bytes": "256KiB"}, "timeouts": {"call": "1s"}});
    let broker = configured_alone(config, backend.spec()).await;
    let client = session(&broker).await;
    for (name, _, expect) in table {
        let before = backend.calls();
        let answer = call(&client, name).await;
        let kind = answer["error"]["data"]["kind"].as_str().unwrap_or_default();
        assert!(expect.contains(&kind), "{name}: {answer}");
        assert!(!answer.to_string().contains("canary-inner"), "{name}: {answer}");
        assert_eq!(backend.calls(), before + 1, "{name} was sent once");
        eventually(name, || async {
            let fine = call(&client, "fine").await;
            if fine["result"]["content"][0]["text"] == "fine" { Ok(()) } else { Err(fine) }
        })
        .await;
    }
    assert!(!broker.log().contains("canary-inner") && !broker.log().contains("panicked"));
}

#[tokio::test]
async fn b_11_an_endless_stream_ends_with_its_call() {
    let backend = RawHttp::start(|tool| match tool {
        "comments" => Some(RawAnswer { endless: b": nothing\n\n".to_vec(), ..RawAnswer::of(SSE) }),
        "one_line" => Some(RawAnswer { endless: b"data: x".repeat(1_000), ..RawAnswer::of(SSE) }),
        "body" => Some(RawAnswer {
            endless: b" ".repeat(1_000),
            ..RawAnswer::of(CHUNKED.replace("transfer-encoding: chunked", "connection: close"))
        }),
        "head" => Some(RawAnswer {
            endless: b"x-more: 1\r\n".to_vec(),
            ..RawAnswer::of("HTTP/1.1 200 OK\r\n")
        }),
        _ => None,
    })
    .await;
    let config = json!({"limits": {"message_bytes": "64KiB"}, "timeouts": {"call": "500ms"}});
    let broker = configured_alone(config, backend.spec()).await;
    let client = session(&broker).await;
    for tool in ["comments", "one_line", "body", "head"] {
        let answer = call(&client, tool).await;
        assert!(FAILED.contains(&kind(&answer["error"])), "{tool}: {answer}");
        assert_eq!(call(&client, "fine").await["result"]["content"][0]["text"], "fine", "{tool}");
    }
}

#[tokio::test]
async fn b_12_b_14_redirects_challenges_and_headers_are_not_followed() {
    let canary = FakeBackend::echo().await;
    let url = canary.url();
    let script = move |tool: &str| {
        let answer_text = match tool {
            "challenge" => format!(
                "HTTP/1.1 401 No\r\nwww-authenticate: Bearer resource_metadata=\"{url}\"\r\ncontent-length: 0\r\n\r\n"
            ),
            "headers" => json_answer(
                ANSWER,
                "set-cookie: canary-inner=1\r\naccess-control-allow-origin: *\r\nmcp-session-id: canary-inner\r\n",
            ),
            "endpoint" => format!("{SSE}event: endpoint\ndata: {url}\n\ndata: {ANSWER}\n\n"),
            status => {
                format!("HTTP/1.1 {status} Moved\r\nlocation: {url}\r\ncontent-length: 0\r\n\r\n")
            }
        };
        (tool != "fine").then(|| RawAnswer::of(answer_text))
    };
    let backend = RawHttp::start(script).await;
    let broker = builder().single_process().backend("default", "b", backend.spec()).start().await;
    let client = session(&broker).await;
    for tool in ["301", "302", "303", "307", "308", "challenge", "headers", "endpoint"] {
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": tool, "arguments": {}}});
        let response = client.post(body.to_string()).await;
        for header in ["set-cookie", "location", "www-authenticate", "access-control-allow-origin"]
        {
            assert!(response.header(header).is_none(), "{tool}: {header}");
        }
        assert!(
            response.header("mcp-session-id").is_none_or(|id| !id.contains("canary-inner")),
            "{tool}"
        );
        assert!(!response.text().await.contains("canary-inner"), "{tool}");
    }
    assert_eq!(canary.recorded().len(), 0, "no request went there");
}
