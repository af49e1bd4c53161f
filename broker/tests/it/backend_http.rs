//! The broker as a client of Streamable HTTP backends: handshake, headers, and event streams read and resumed by the rules.

use std::collections::HashSet;

use serde_json::{Value, json};
use testkit::{FakeBackend, RecordedRequest, Reply, backend::text};

use crate::{alone_with, broker_with, builder, echo, kind, text_of};

#[tokio::test]
async fn b_life_01_the_complete_handshake_is_sent_first() {
    let backend = FakeBackend::echo().await;
    backend.sessions();
    let broker = broker_with(&backend).await;
    broker.connected(json!({})).await.call("b__echo", json!({})).await;
    let seen: Vec<RecordedRequest> = backend
        .recorded()
        .into_iter()
        .filter(|seen| seen.http == "POST" && !seen.is("server/discover"))
        .collect();
    assert!(seen[0].is("initialize"), "{:?}", seen[0].method());
    // Other connections, also those of another replica, have their handshakes at the same time.
    let mut initialized = HashSet::new();
    for request in seen.iter().filter(|seen| !seen.is("initialize")) {
        let session = request.header("mcp-session-id").expect("a session");
        let is_first = initialized.insert(session);
        assert_eq!(request.is("notifications/initialized"), is_first, "{:?}", request.method());
    }
    assert!(seen.iter().any(|seen| seen.calls("echo")));
    let params = &seen[0].message["params"];
    assert_eq!(params["protocolVersion"], "2025-11-25");
    assert!(
        params["capabilities"].is_object()
            && params["clientInfo"]["name"].is_string()
            && params["clientInfo"]["version"].is_string()
    );
}

#[tokio::test]
async fn b_life_02_older_versions_are_used_and_unknown_ones_fail_the_backend() {
    for version in ["2024-11-05", "2025-03-26", "2025-06-18"] {
        let backend = FakeBackend::echo().await;
        backend.version(version);
        let broker = broker_with(&backend).await;
        assert_eq!(
            text_of(&broker.connected(json!({})).await.call("b__echo", json!({"v": 1})).await),
            r#"{"v":1}"#
        );
        assert_eq!(broker.admin().backend("default", "b").await["protocol_version"], version);
    }
    let backend = FakeBackend::echo().await;
    backend.version("1999-01-01");
    let broker = builder().start().await;
    broker.admin().put_backend("default", "b", &backend.spec()).await;
    let view = broker.admin().wait_backend_state("default", "b", "failed").await;
    assert!(view["last_error"].as_str().unwrap().contains("1999-01-01"), "{view}");
    assert_eq!(
        backend.count(|seen| !seen.is("initialize") && !seen.is("server/discover")),
        0,
        "nothing else is said to it"
    );
}

#[tokio::test]
async fn b_life_03_only_lists_that_the_backend_offers_are_requested() {
    let backend = FakeBackend::echo().await;
    backend.capabilities(json!({"tools": {}}));
    let broker = broker_with(&backend).await;
    assert_eq!(broker.connected(json!({})).await.tool_names().await, ["b__echo"]);
    for method in ["prompts/list", "resources/list", "resources/templates/list", "logging/setLevel"]
    {
        assert_eq!(backend.recorded_of(method).len(), 0, "{method}");
    }
}

#[tokio::test]
async fn b_life_01_an_event_stream_after_a_notification_delays_nothing() {
    let backend = FakeBackend::echo().await;
    backend.on("notifications/initialized", |_| async { Reply::Hang });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    assert_eq!(text_of(&client.call("b__echo", json!({"n": 1})).await), r#"{"n":1}"#);
}

#[tokio::test]
async fn b_http_03_an_empty_session_id_is_none() {
    let backend = FakeBackend::echo().await;
    backend.on("initialize", |call| async move {
        let result = json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "stateless", "version": "1"}});
        let headers = [("content-type", "application/json"), ("mcp-session-id", "")];
        Reply::Http {
            status: 200,
            headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
            body: call.result_message(result).to_string().into(),
        }
    });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    client.delete_session().await;
    assert_eq!(backend.count(|seen| seen.header("mcp-session-id").is_some()), 0);
}

/// Servers with an older Java SDK refuse members of these capabilities, most with status 400.
#[tokio::test]
async fn b_life_01_a_backend_that_refuses_newer_capabilities_gets_older_ones() {
    for by_status in [true, false] {
        let backend = FakeBackend::echo().await;
        backend.on("initialize", move |call| {
            let declared = call.params()["capabilities"].clone();
            let is_known = ["sampling", "elicitation"]
                .into_iter()
                .all(|name| declared.get(name).is_none_or(|members| *members == json!({})));
            async move {
                match (is_known, by_status) {
                    (true, _) => Reply::Result(json!({
                        "protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                        "serverInfo": {"name": "old", "version": "1"}
                    })),
                    (false, true) => Reply::status(400),
                    (false, false) => Reply::error(-32603, "Unrecognized field"),
                }
            }
        });
        let broker = alone_with(&backend).await;
        assert_eq!(broker.connected(json!({})).await.tool_names().await, ["b__echo"]);
        let of_catalog = backend.recorded_of("initialize")[1].message["params"].clone();
        assert_eq!(
            of_catalog["capabilities"],
            json!({"roots": {"listChanged": true}, "sampling": {}, "elicitation": {}})
        );
        let client = broker.connected(json!({"elicitation": {"form": {}}})).await;
        assert_eq!(text_of(&client.call("b__echo", json!({"n": 1})).await), r#"{"n":1}"#);
        let of_client = backend.recorded_of("initialize").pop().unwrap();
        assert_eq!(of_client.message["params"]["capabilities"], json!({"elicitation": {}}));
    }
}

/// A server that has issued a session would start another one, whose id the broker would not use.
#[tokio::test]
async fn b_life_01_a_backend_that_refuses_the_handshake_in_a_session_gets_no_second_one() {
    let backend = FakeBackend::start().await;
    backend.sessions();
    backend.on("initialize", |_| async { Reply::error(-32603, "not now") });
    let broker = builder().start().await;
    broker.admin().put_backend("default", "b", &backend.spec()).await;
    broker
        .admin()
        .wait_backend("default", "b", "failed", |view| view["state"] != "connecting")
        .await;
    let in_session =
        |seen: &RecordedRequest| seen.is("initialize") && seen.header("mcp-session-id").is_some();
    assert_eq!(backend.count(in_session), 0);
}

#[tokio::test]
async fn b_http_01_each_message_is_a_post_that_accepts_both_types() {
    let (broker, backend) = echo().await;
    broker.connected(json!({})).await.call("b__echo", json!({})).await;
    for seen in backend.recorded().iter().filter(|seen| seen.http == "POST") {
        let accept = seen.header("accept").unwrap();
        assert!(
            accept.contains("application/json") && accept.contains("text/event-stream"),
            "{accept}"
        );
        assert_eq!(seen.header("content-type"), Some("application/json"));
        assert!(seen.message.is_object());
    }
}

#[tokio::test]
async fn b_http_02_json_and_event_stream_answers_are_both_read() {
    let backend = FakeBackend::start().await;
    backend.tool("json", |_| async { Reply::text("json") });
    backend.tool("stream", |call| async move {
        call.open_stream().await;
        Reply::text("stream")
    });
    backend.tool("odd-stream", |call| async move {
        let answer = call.result_message(text("odd")).to_string();
        call.raw(&format!(
            "\u{feff}: c\r\n\r\nretry: 5\r\nevent: other\r\ndata: {{}}\r\n\r\ndata:{answer}\r\n\r\n"
        ))
        .await;
        Reply::End
    });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    assert_eq!(text_of(&client.call("b__json", json!({})).await), "json");
    assert_eq!(text_of(&client.call("b__stream", json!({})).await), "stream");
    assert_eq!(text_of(&client.call("b__odd-stream", json!({})).await), "odd");
}

#[tokio::test]
async fn b_http_07_a_backend_without_get_stream_works() {
    let backend = FakeBackend::echo().await;
    backend.no_get_stream();
    let broker = alone_with(&backend).await;
    let client = broker.connected(json!({})).await;
    backend.wait_for("GET", |seen| seen.http == "GET").await;
    client.call("b__echo", json!({})).await;
    let gets = backend.count(|seen| seen.http == "GET");
    assert!(gets <= 2, "405 is not asked again: {gets} times");
    let view = broker.admin().backend("default", "b").await;
    assert_eq!(view["state"], "ready");
}

#[tokio::test]
async fn b_http_07_an_ended_get_stream_is_opened_again() {
    let (_broker, backend) = echo().await;
    backend.wait_get_streams(1).await;
    let before = backend.count(|seen| seen.http == "GET");
    backend.end_get_streams().await;
    backend.wait_count("GET again", before + 1, |seen| seen.http == "GET").await;
    backend.wait_get_streams(1).await;
}

#[tokio::test]
async fn b_http_08_a_stream_that_ends_early_is_resumed_by_get() {
    let backend = FakeBackend::with_tool("poll", |call| async move {
        call.raw("id: ev-1\nretry: 20\ndata:\n\n").await;
        call.progress(1.0, 2.0).await;
        call.end_until_resumed("ev-1").await;
        call.progress(2.0, 2.0).await;
        Reply::text("resumed")
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let mut call = client
        .start_request("tools/call", json!({"name": "b__poll", "_meta": {"progressToken": 1}}));
    assert_eq!(text_of(&call.finish().await.value["result"]), "resumed");
    assert_eq!(call.before.len(), 2);
    let resume = backend.wait_for("GET", |seen| seen.header("last-event-id").is_some()).await;
    assert_eq!((resume.http.as_str(), resume.header("last-event-id")), ("GET", Some("ev-1")));
    assert_eq!(backend.recorded_of("tools/call").len(), 1, "the call itself is never sent twice");
}

#[tokio::test]
async fn b_http_08_a_silent_call_may_be_polled_for_any_number_of_times() {
    let backend = FakeBackend::with_tool("poll", |call| async move {
        call.raw("id: ev-1\nretry: 1\ndata:\n\n").await;
        for _ in 0..8 {
            call.end_until_resumed("ev-1").await;
        }
        Reply::text("late")
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    assert_eq!(text_of(&client.call("b__poll", json!({})).await), "late");
    assert_eq!(backend.recorded_of("tools/call").len(), 1);
}

#[tokio::test]
async fn b_http_08_a_cut_connection_is_resumed_from_the_last_event() {
    let backend = FakeBackend::with_tool("cut", |call| async move {
        call.raw("id: c-1\nretry: 1\ndata:\n\n").await;
        let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": call.progress_token(), "progress": 1}});
        call.send_with_id("c-2", progress).await;
        call.cut_until_resumed("c-2").await;
        Reply::text("resumed")
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let result =
        client.result("tools/call", json!({"name": "b__cut", "_meta": {"progressToken": 1}})).await;
    assert_eq!(text_of(&result), "resumed");
}

#[tokio::test]
async fn b_http_10_an_event_seen_twice_counts_once() {
    let backend = FakeBackend::with_tool("replay", |call| async move {
        let message = |n: u64| json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": n}});
        call.raw("id: p\nretry: 1\ndata:\n\n").await;
        call.send_with_id("r-1", message(1)).await;
        call.end_until_resumed("r-1").await;
        call.send_with_id("r-1", message(1)).await;
        call.send_with_id("r-2", message(2)).await;
        Reply::text("done")
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let mut call = client.start_call("b__replay", json!({}));
    call.finish().await;
    let data: Vec<&Value> =
        call.before.iter().map(|message| &message.value["params"]["data"]).collect();
    assert_eq!(data, [&json!(1), &json!(2)]);
}

#[tokio::test]
async fn b_11_events_with_an_empty_id_are_no_repetitions() {
    let backend = FakeBackend::with_tool("reset", |call| async move {
        for n in [1, 2] {
            let message = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": n}});
            call.send_with_id("", message).await;
        }
        Reply::text("done")
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let mut call = client.start_call("b__reset", json!({}));
    call.finish().await;
    let data: Vec<&Value> =
        call.before.iter().map(|message| &message.value["params"]["data"]).collect();
    assert_eq!(data, [&json!(1), &json!(2)]);
}

#[tokio::test]
async fn b_11_unusual_event_streams_are_parsed_by_the_standard() {
    let backend = FakeBackend::start().await;
    backend.tool("fields", |call| async move {
        let answer = call.result_message(text("fine")).to_string();
        let (first, second) = answer.split_at(answer.find(',').unwrap() + 1);
        call.raw(&format!(
            "event: endpoint\ndata: /elsewhere\n\nretry: 999999999\nid: a\0b\n\nunknown: x\ndata: {first}\ndata: {second}\n\n"
        ))
        .await;
        Reply::End
    });
    backend.tool("cr", |call| async move {
        let answer = call.result_message(text("fine")).to_string();
        call.raw(&format!(": c\rdata: {answer}\r\r")).await;
        Reply::End
    });
    backend.tool("half", |call| async move {
        let answer = call.result_message(text("never")).to_string();
        call.raw(&format!("data: {answer}\n")).await;
        Reply::End
    });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    assert_eq!(text_of(&client.call("b__fields", json!({})).await), "fine");
    assert_eq!(text_of(&client.call("b__cr", json!({})).await), "fine");
    let error = client.error("tools/call", json!({"name": "b__half"})).await;
    assert_eq!(kind(&error), "outcome_unknown", "half an event is no event");
}

#[tokio::test]
async fn b_18_a_get_stream_without_the_earlier_events_may_use_their_ids_again() {
    let backend = FakeBackend::start().await;
    backend.list("resources", vec![json!({"uri": "test://one", "name": "one"})]);
    backend.no_resumption().sessions();
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let mut events = client.open_get_stream().await;
    client.result("resources/subscribe", json!({"uri": "b+test://one"})).await;
    let subscription =
        backend.wait_for("the subscription", |seen| seen.is("resources/subscribe")).await;
    // The catalog has a session and a GET stream too, without the subscription.
    let session = subscription.header("mcp-session-id").unwrap();
    backend.wait_get_stream_of(session).await;
    let update = json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "test://one"}});
    for start in 0..2 {
        backend.push_raw(&format!("id: 1\nretry: 10\ndata: {update}\n\n")).await;
        let (_, message) = events.next_message().await.unwrap();
        assert_eq!(message["params"]["uri"], "b+test://one", "stream {start}");
        backend.end_get_streams().await;
        backend.wait_get_stream_of(session).await;
        // The gap is reported at once. A report of the next one waits (`STABLE_AFTER`).
        if start == 0 {
            let (_, message) = events.next_message().await.unwrap();
            assert_eq!(message["params"]["uri"], "b+test://one", "the gap after the stream");
        }
    }
    let repeated = [("kind", "repeated")];
    backend.push_raw(&format!("id: 1\ndata: {update}\n\n").repeat(2)).await;
    broker
        .admin()
        .wait_metric("mcp_dropped_notifications_total", &repeated, |count| count >= 1.0)
        .await;
}

#[tokio::test]
async fn b_18_the_get_stream_is_resumed_from_its_last_event() {
    let (_broker, backend) = echo().await;
    backend.wait_get_streams(1).await;
    backend.push_raw("id: get-7\nretry: 10\ndata:\n\n").await;
    backend.end_get_streams().await;
    backend
        .wait_for("GET with Last-Event-ID", |seen| {
            seen.http == "GET" && seen.header("last-event-id") == Some("get-7")
        })
        .await;
}
