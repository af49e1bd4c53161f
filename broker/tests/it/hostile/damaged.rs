//! Answers of backends that a bad network cuts short or changes.

use serde_json::{Value, json};
use testkit::{Direction, FakeBackend, FaultProxy, PipeBackend, Reply, eventually};

use super::flipped;
use crate::{builder, configured_alone, kind, stdio, text_of};

/// Cuts the answer to a call after the first byte, the second and so on, until it is whole.
async fn cut_at_every_byte(
    what: &str,
    spec: Value,
    proxy: &FaultProxy,
    tool: &str,
    calls: impl Fn() -> usize,
) {
    // A link that breaks is opened again ever more slowly, and each cut breaks one: it is the next
    // session's own.
    let has_link = spec["links"] == "per-session";
    let calls_each = if has_link { 2 } else { 1 };
    let config = json!({"breaker": {"enabled": false}});
    let broker = configured_alone(config, spec).await;
    let connected = async || {
        let client = broker.client("/mcp/b").connected(json!({})).await;
        // The link to the backend is there, and quiet.
        assert_eq!(text_of(&client.call("echo", json!({})).await), "{}", "{what}");
        client
    };
    let mut client = connected().await;
    let (mut lost, before) = (0, calls());
    for bytes in 1.. {
        let cuts = proxy.cuts();
        proxy.cut_after(Direction::Downstream, bytes);
        let answer =
            client.request("tools/call", json!({"name": tool, "arguments": {"cut": 12}})).await;
        if answer["result"].is_object() {
            assert_eq!(
                text_of(&answer["result"]),
                r#"{"cut":12}"#,
                "{what}, {bytes}: never half of it"
            );
        } else {
            assert_eq!(kind(&answer["error"]), "outcome_unknown", "{what}, {bytes}: {answer}");
            lost += 1;
        }
        if proxy.cuts() == cuts {
            // No answer was cut from here on. Cutting the bytes behind the answer, the end of a
            // line or a stream, costs no call.
            assert!(lost > 50 && lost + 12 >= bytes as usize, "{what}: {lost} of {bytes}");
            proxy.heal();
            eventually("all calls at the backend", || async {
                let seen = calls() - before;
                if seen == calls_each * bytes as usize - (calls_each - 1) {
                    Ok(())
                } else {
                    Err((seen, bytes))
                }
            })
            .await;
            return;
        }
        if has_link {
            client.delete_session().await;
            client = connected().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_16_an_answer_truncated_at_any_byte_over_http_is_never_accepted() {
    let backend =
        FakeBackend::with_tool(
            "echo",
            |call| async move { Reply::text(&call.arguments().to_string()) },
        )
        .await;
    backend.tool("told", |call| async move {
        call.notify("notifications/message", json!({"level": "debug", "data": 1})).await;
        Reply::text(&call.arguments().to_string())
    });
    let proxy = FaultProxy::start(backend.address()).await;
    let spec =
        json!({"transport": {"type": "http", "url": format!("http://{}/mcp", proxy.address())}});
    let calls = || backend.recorded_of("tools/call").len();
    cut_at_every_byte("JSON", spec.clone(), &proxy, "echo", calls).await;
    cut_at_every_byte("an event stream", spec, &proxy, "told", calls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_16_an_answer_truncated_at_any_byte_over_a_pipe_is_never_accepted() {
    let folder = tempfile::tempdir().unwrap();
    for wire in ["tcp", "websocket"] {
        let record = folder.path().join(wire);
        let script = stdio().record(&record);
        let backend = if wire == "tcp" {
            PipeBackend::tcp(&script).await
        } else {
            PipeBackend::websocket(&script).await
        };
        let proxy = FaultProxy::start(backend.address()).await;
        let spec = backend
            .spec()
            .to_string()
            .replace(&backend.address().to_string(), &proxy.address().to_string());
        let mut spec: Value = serde_json::from_str(&spec).unwrap();
        spec["links"] = json!("per-session");
        let calls = || {
            std::fs::read_to_string(&record).unwrap_or_default().matches("\"tools/call\"").count()
        };
        cut_at_every_byte(wire, spec, &proxy, "echo", calls).await;
    }
}

#[tokio::test]
async fn f_16_a_harmless_request_is_repeated_if_its_answer_was_truncated() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let backend = PipeBackend::tcp(&stdio().record(&record)).await;
    let proxy = FaultProxy::start(backend.address()).await;
    let spec = json!({"transport": {"type": "tcp", "address": proxy.address().to_string()}});
    let broker = builder().single_process().backend("default", "b", spec).start().await;
    let client = broker.client("/mcp/b").connected(json!({})).await;
    let read = async || client.result("resources/read", json!({"uri": "test://one"})).await;
    assert_eq!(read().await["contents"][0]["text"], "one");
    proxy.cut_after(Direction::Downstream, 40); // the id is among them
    assert_eq!(read().await["contents"][0]["text"], "one");
    let seen = std::fs::read_to_string(&record).unwrap();
    assert_eq!((proxy.cuts(), seen.matches("\"resources/read\"").count()), (1, 3), "{seen}");
}

#[tokio::test]
async fn f_17_flipped_bits_in_answers_fail_only_their_calls_and_are_counted() {
    let good =
        r#"{"jsonrpc":"2.0","id":@ID@,"result":{"content":[{"type":"text","text":"mine"}]}}"#;
    let backend = PipeBackend::tcp(&stdio()).await;
    let config = json!({"breaker": {"enabled": false}});
    let broker = configured_alone(config, backend.spec()).await;
    let client = broker.client("/mcp/b").connected(json!({})).await;
    client.content_is_invalid_on_purpose("the backend says what no schema allows");
    client.call("echo", json!({})).await;
    let connections = backend.accepted();
    let (mut flips, mut spoilt, mut refused) = (0_u32, 0, 0_u32);
    for flipped in flipped(good) {
        // The answer itself comes behind it, in case the damaged one cannot be read as an answer.
        let answer = client
            .request("tools/call", json!({"name": "say", "arguments": {"lines": [flipped, good]}}))
            .await;
        flips += 1;
        if answer["result"].is_object() {
            spoilt += usize::from(answer["result"]["content"][0]["text"] != "mine");
        } else {
            assert_eq!(kind(&answer["error"]), "backend_protocol_error", "{flipped}: {answer}");
            refused += 1;
        }
    }
    // Each call got two lines, of which at most one was its answer.
    let admin = broker.admin();
    eventually("what was dropped", || async {
        let count = async |name: &str, label: (&str, &str)| {
            admin.metric(name, &[label]).await.unwrap_or_default()
        };
        let noise = count("mcp_dropped_notifications_total", ("kind", "noise")).await;
        let unknown = count("mcp_dropped_answers_total", ("reason", "unknown_id")).await;
        let late = count("mcp_dropped_answers_total", ("reason", "late")).await;
        let counted =
            noise + unknown + late == f64::from(flips + refused) && noise > 0.0 && late > 0.0;
        if counted { Ok(()) } else { Err((noise, unknown, late, flips, refused)) }
    })
    .await;
    assert!(spoilt > 0 && refused > 0, "without TLS nobody notices all of it: {spoilt}, {refused}");
    assert_eq!(text_of(&client.call("echo", json!({})).await), "{}");
    assert_eq!(backend.accepted(), connections, "over the same connection");
    assert!(!broker.log().contains("panicked"));
}
