//! The broker as a client of Streamable HTTP backends.

use serde_json::{Value, json};
use testkit::{
    FakeBackend, Gate, Reply, Seen, TestBroker,
    backend::{text, tool},
};

use crate::{broker_with, builder, echo, kind, text_of};

/// The requests of the backend session that carried `wanted`.
fn session_of(seen: &[Seen], wanted: impl Fn(&Seen) -> bool) -> Vec<Seen> {
    let session = seen.iter().find(|seen| wanted(seen)).and_then(|seen| seen.header("mcp-session-id")).unwrap().to_owned();
    seen.iter().filter(|seen| seen.header("mcp-session-id") == Some(&session)).cloned().collect()
}

#[tokio::test]
async fn b_life_01_the_handshake_comes_first_and_whole() {
    let (broker, backend) = echo().await;
    broker.connected(json!({})).await.call("b__echo", json!({})).await;
    let seen: Vec<Seen> = backend.seen().into_iter().filter(|seen| seen.http == "POST").collect();
    assert_eq!((seen[0].method(), seen[1].method()), (Some("initialize"), Some("notifications/initialized")));
    let params = &seen[0].message["params"];
    assert_eq!(params["protocolVersion"], "2025-11-25");
    assert!(params["capabilities"].is_object() && params["clientInfo"]["name"].is_string() && params["clientInfo"]["version"].is_string());
}

#[tokio::test]
async fn b_life_02_older_versions_are_spoken_and_unknown_ones_fail_the_backend() {
    for version in ["2024-11-05", "2025-03-26", "2025-06-18"] {
        let backend = FakeBackend::echo().await;
        backend.version(version);
        let broker = broker_with(&backend).await;
        assert_eq!(text_of(&broker.connected(json!({})).await.call("b__echo", json!({"v": 1})).await), r#"{"v":1}"#);
        assert_eq!(broker.admin().backend("default", "b").await["protocol_version"], version);
    }
    let backend = FakeBackend::echo().await;
    backend.version("1999-01-01");
    let broker = builder().start().await;
    broker.admin().put_backend("default", "b", &backend.spec()).await;
    let view = broker.admin().wait_backend_state("default", "b", "failed").await;
    assert!(view["last_error"].as_str().unwrap().contains("1999-01-01"), "{view}");
    assert_eq!(backend.count(|seen| !seen.is("initialize")), 0, "nothing else is said to it");
}

#[tokio::test]
async fn b_life_03_only_lists_the_backend_offers_are_asked_for() {
    let backend = FakeBackend::echo().await;
    backend.capabilities(json!({"tools": {}}));
    let broker = broker_with(&backend).await;
    assert_eq!(broker.connected(json!({})).await.tool_names().await, ["b__echo"]);
    for method in ["prompts/list", "resources/list", "resources/templates/list", "logging/setLevel"] {
        assert_eq!(backend.seen_of(method).len(), 0, "{method}");
    }
}

#[tokio::test]
async fn b_http_01_each_message_is_a_post_that_accepts_both_types() {
    let (broker, backend) = echo().await;
    broker.connected(json!({})).await.call("b__echo", json!({})).await;
    for seen in backend.seen().iter().filter(|seen| seen.http == "POST") {
        let accept = seen.header("accept").unwrap();
        assert!(accept.contains("application/json") && accept.contains("text/event-stream"), "{accept}");
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
        call.raw(&format!("\u{feff}: c\r\n\r\nretry: 5\r\nevent: other\r\ndata: {{}}\r\n\r\ndata:{answer}\r\n\r\n")).await;
        Reply::End
    });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    assert_eq!(text_of(&client.call("b__json", json!({})).await), "json");
    assert_eq!(text_of(&client.call("b__stream", json!({})).await), "stream");
    assert_eq!(text_of(&client.call("b__odd-stream", json!({})).await), "odd");
}

#[tokio::test]
async fn b_http_03_b_http_06_session_and_version_are_on_every_later_request() {
    let backend = FakeBackend::echo().await;
    backend.sessions().version("2025-06-18");
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    client.delete_session().await;
    backend.wait_for("DELETE", |seen| seen.http == "DELETE").await;
    for seen in backend.seen() {
        if seen.is("initialize") {
            assert_eq!(seen.header("mcp-session-id"), None);
        } else {
            assert!(seen.header("mcp-session-id").is_some_and(|id| id.starts_with("fake-session-")), "{} {:?}", seen.http, seen.method());
            assert_eq!(seen.header("mcp-protocol-version"), Some("2025-06-18"), "{} {:?}", seen.http, seen.method());
        }
    }
    let of_call = session_of(&backend.seen(), |seen| seen.calls("echo"));
    assert!(of_call.iter().any(|seen| seen.http == "DELETE"), "the session of the call was closed");
}

#[tokio::test]
async fn b_http_04_a_forgotten_session_is_opened_anew_and_the_call_repeated_once() {
    let backend = FakeBackend::echo().await;
    backend.sessions().list("resources", vec![json!({"uri": "test://one", "name": "one"})]);
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    client.result("resources/subscribe", json!({"uri": "b+test://one"})).await;
    client.call("b__echo", json!({"n": 1})).await;
    backend.forget_sessions();
    assert_eq!(text_of(&client.call("b__echo", json!({"n": 2})).await), r#"{"n":2}"#);
    let after: Vec<Seen> = backend.seen();
    let answered = after.iter().filter(|seen| seen.calls("echo") && seen.message["params"]["arguments"]["n"] == 2).count();
    assert_eq!(answered, 2, "refused with 404 once, then repeated");
    backend.wait_count("the subscription again", 2, |seen| seen.is("resources/subscribe")).await;
}

#[tokio::test]
async fn b_http_05_delete_refused_with_405_is_tolerated() {
    let backend = FakeBackend::echo().await;
    backend.sessions().no_delete();
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    client.delete_session().await;
    backend.wait_for("DELETE", |seen| seen.http == "DELETE").await;
    assert_eq!(broker.connected(json!({})).await.tool_names().await, ["b__echo"]);
}

#[tokio::test]
async fn b_http_07_a_backend_without_get_stream_works() {
    let backend = FakeBackend::echo().await;
    backend.no_get_stream();
    let broker = broker_with(&backend).await;
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
    let mut call = client.begin("tools/call", json!({"name": "b__poll", "_meta": {"progressToken": 1}}));
    assert_eq!(text_of(&call.finish().await.value["result"]), "resumed");
    assert_eq!(call.before.len(), 2);
    let resume = backend.wait_for("GET", |seen| seen.header("last-event-id").is_some()).await;
    assert_eq!((resume.http.as_str(), resume.header("last-event-id")), ("GET", Some("ev-1")));
    assert_eq!(backend.seen_of("tools/call").len(), 1, "the call itself is never sent twice");
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
    let result = client.result("tools/call", json!({"name": "b__cut", "_meta": {"progressToken": 1}})).await;
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
    let mut call = client.begin_call("b__replay", json!({}));
    call.finish().await;
    let data: Vec<&Value> = call.before.iter().map(|message| &message.value["params"]["data"]).collect();
    assert_eq!(data, [&json!(1), &json!(2)]);
}

/// Calls the tool and gives the error.
async fn failing(broker: &TestBroker, tool: &str) -> Value {
    broker.connected(json!({})).await.error("tools/call", json!({"name": format!("b__{tool}")})).await
}

#[tokio::test]
async fn a_call_whose_answer_was_lost_has_an_unknown_outcome_and_is_not_repeated() {
    let backend = FakeBackend::start().await;
    backend.tool("cut", |_| async { Reply::Cut });
    backend.tool("cut-stream", |call| async move {
        call.open_stream().await;
        Reply::Cut
    });
    backend.tool("end", |_| async { Reply::End });
    let broker = broker_with(&backend).await;
    for name in ["cut", "cut-stream", "end"] {
        let error = failing(&broker, name).await;
        assert_eq!((error["code"].as_i64(), kind(&error)), (Some(1009), "outcome_unknown"), "{name}");
        assert_eq!(error["data"]["retryable"], false);
        assert_eq!(backend.count(|seen| seen.calls(name)), 1, "{name} was sent once");
    }
}

#[tokio::test]
async fn a_dead_backend_is_unavailable_and_nothing_was_sent() {
    let (broker, backend) = echo().await;
    let client = broker.connected(json!({})).await;
    backend.die().await;
    let error = client.error("tools/call", json!({"name": "b__echo"})).await;
    assert_eq!((error["code"].as_i64(), kind(&error)), (Some(1008), "backend_unavailable"));
    assert_eq!(error["data"]["retryable"], true);
    assert!(error["data"]["requestId"].is_string());
}

#[tokio::test]
async fn a_backend_that_comes_back_is_used_again() {
    let (broker, backend) = echo().await;
    let client = broker.connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    let address = backend.die().await;
    client.error("tools/call", json!({"name": "b__echo"})).await;
    let listener = testkit::eventually("the port again", || tokio::net::TcpListener::bind(address)).await;
    let again = FakeBackend::on_listener(listener);
    again.list("tools", vec![tool("echo")]);
    testkit::eventually("a call to succeed", || async {
        let answer = client.request("tools/call", json!({"name": "b__echo"})).await;
        if answer.get("result").is_some() { Ok(()) } else { Err(answer) }
    })
    .await;
}

#[tokio::test]
async fn statuses_bodies_and_redirects_of_a_failing_backend_stay_inside() {
    let target = FakeBackend::echo().await;
    let location = target.url();
    let backend = FakeBackend::start().await;
    for (name, status) in [
        ("s500", 500),
        ("s503", 503),
        ("s401", 401),
        ("s403", 403),
        ("s429", 429),
        ("s301", 301),
        ("s307", 307),
        ("s308", 308),
        ("s204", 204),
    ] {
        let location = location.clone();
        backend.tool(name, move |_| {
            let location = location.clone();
            async move {
                let headers = vec![
                    ("content-type".to_owned(), "text/html".to_owned()),
                    ("location".to_owned(), location),
                    ("set-cookie".to_owned(), "leak=1".to_owned()),
                ];
                let body = if status == 204 { "" } else { "<h1>inner secret</h1>" };
                Reply::Http { status, headers, body: body.into() }
            }
        });
    }
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    for name in ["s500", "s503", "s401", "s403", "s429", "s301", "s307", "s308", "s204"] {
        let response = client.post(crate::request(77, "tools/call", json!({"name": format!("b__{name}")}))).await;
        assert!(response.header("set-cookie").is_none() && response.header("location").is_none());
        let body = response.text().await;
        assert!(body.contains("\"error\"") && !body.contains("inner secret"), "{name}: {body}");
    }
    assert_eq!(target.seen().len(), 0, "redirects are not followed");
}

#[tokio::test]
async fn b_08_an_answer_over_the_limit_is_cut() {
    let backend = FakeBackend::start().await;
    backend.tool("json", |_| async { Reply::text(&"x".repeat(400_000)) });
    backend.tool("stream", |call| async move {
        call.open_stream().await;
        Reply::text(&"x".repeat(400_000))
    });
    backend.tool("fine", |_| async { Reply::text("fine") });
    let config = json!({"limits": {"message_bytes": "256KiB"}});
    let broker = builder().config(config).backend("default", "b", backend.spec()).start().await;
    for name in ["json", "stream"] {
        let error = failing(&broker, name).await;
        assert_eq!((error["code"].as_i64(), kind(&error)), (Some(1009), "result_too_large"), "{name}");
    }
    assert_eq!(text_of(&broker.connected(json!({})).await.call("b__fine", json!({})).await), "fine");
}

#[tokio::test]
async fn auth_07_a_clients_key_never_reaches_a_backend() {
    let backend = FakeBackend::echo().await;
    let broker = builder().auth_required().backend("default", "b", backend.spec()).start().await;
    let key = broker.admin().create_key("default").await;
    let client = broker.client("/mcp").bearer(&key).header("cookie", "c=1").header("x-forwarded-for", "1.2.3.4").connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    for seen in backend.seen() {
        assert!(
            ["authorization", "cookie", "x-forwarded-for", "origin"].iter().all(|name| seen.header(name).is_none()),
            "{:?}",
            seen.headers
        );
    }
}

#[tokio::test]
async fn sessions_of_a_backend_without_session_ids_share_one_link() {
    let (broker, backend) = echo().await;
    let clients = [broker.connected(json!({})).await, broker.connected(json!({})).await, broker.connected(json!({})).await];
    for client in &clients {
        client.call("b__echo", json!({})).await;
    }
    let handshakes = backend.seen_of("initialize").len();
    assert!(handshakes <= 2, "the catalog's link and one shared link, not {handshakes}");
}

#[tokio::test]
async fn a_backend_that_issues_session_ids_gets_one_session_per_client_session() {
    let backend = FakeBackend::with_tool("who", |call| async move { Reply::text(call.session.as_deref().unwrap_or("none")) }).await;
    backend.sessions();
    let broker = broker_with(&backend).await;
    let clients = [broker.connected(json!({})).await, broker.connected(json!({})).await];
    let mut own = Vec::new();
    for client in &clients {
        let first = text_of(&client.call("b__who", json!({})).await).to_owned();
        assert_eq!(text_of(&client.call("b__who", json!({})).await), first, "the same one for the same client");
        own.push(first);
    }
    assert_ne!(own[0], own[1]);
}

#[tokio::test]
async fn a_hundred_calls_at_once_each_get_their_own_answer() {
    let gate = Gate::new();
    let wait = gate.clone();
    let backend = FakeBackend::with_tool("n", move |call| {
        let wait = wait.clone();
        async move {
            wait.passed().await;
            Reply::text(&call.arguments()["n"].to_string())
        }
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let calls: Vec<_> = (0..100).map(|n| client.begin_call("b__n", json!({"n": n}))).collect();
    backend.wait_count("all calls", 100, |seen| seen.calls("n")).await;
    gate.open();
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(text_of(&call.result().await), n.to_string());
    }
}

#[tokio::test]
async fn a_backend_that_is_down_is_one_warning_and_not_one_for_each_attempt() {
    let backend = FakeBackend::start().await;
    backend.on("initialize", |_| async { Reply::Http { status: 500, headers: vec![], body: "".into() } });
    let broker = builder().start().await;
    let (_, _) = broker.admin().put_backend("default", "b", &backend.spec()).await;
    // The last attempt may still be going on; the ones before are over, and logged.
    for _ in 0..3 {
        let tried = backend.seen_of("initialize").len();
        broker.admin().post("/admin/v1/tenants/default/backends/b/probe", &json!({})).await;
        backend.wait_count("another attempt", tried + 1, |seen| seen.is("initialize")).await;
    }
    let log = broker.log();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("WARN") && line.contains("backend=b")).collect();
    assert_eq!(warnings.len(), 1, "{log}");
    assert!(warnings[0].contains("status 500"), "it says why: {}", warnings[0]);
}

#[tokio::test]
async fn b_16_a_flood_of_notifications_never_costs_the_answer() {
    let backend = FakeBackend::with_tool("flood", |call| async move {
        let mut text = String::new();
        for step in 1..=5_000 {
            let token = call.progress_token();
            text.push_str(&format!(
                "data: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{{\"progressToken\":{token},\"progress\":{step}}}}}\n\n"
            ));
            text.push_str(&format!(
                "data: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{{\"level\":\"info\",\"data\":{step}}}}}\n\n"
            ));
        }
        call.raw(&text).await;
        Reply::text("after the flood")
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let mut call = client.begin("tools/call", json!({"name": "b__flood", "_meta": {"progressToken": 1}}));
    assert_eq!(text_of(&call.finish().await.value["result"]), "after the flood");
    let logged: Vec<_> = call.before.iter().filter(|message| message.method() == Some("notifications/message")).collect();
    let numbers: Vec<_> = logged.iter().map(|message| message.value["params"]["data"].as_u64().unwrap()).collect();
    assert!(numbers.is_sorted() && numbers.last() == Some(&5_000), "what may be left out is the oldest: {:?}", numbers.last());
}

#[tokio::test]
async fn b_time_01_progress_keeps_a_slow_call_alive_and_silence_ends_it() {
    let backend = FakeBackend::start().await;
    backend.tool("steady", |call| async move {
        for step in 1..=6 {
            call.progress(f64::from(step), 6.0).await;
            tokio::time::sleep(std::time::Duration::from_millis(150)).await;
        }
        Reply::text("slow but steady")
    });
    backend.tool("silent", |call| async move {
        call.progress(1.0, 6.0).await;
        call.gone().await;
        Reply::Hang
    });
    let mut spec = backend.spec();
    spec["timeouts"] = json!({"call": "500ms"});
    let broker = builder().backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    let steady = client.result("tools/call", json!({"name": "b__steady", "_meta": {"progressToken": 1}})).await;
    assert_eq!(text_of(&steady), "slow but steady");
    // Without a token of the client's the broker may ask for progress itself, or not; silence ends the call either way.
    let error = client.error("tools/call", json!({"name": "b__silent", "_meta": {"progressToken": 2}})).await;
    assert_eq!(kind(&error), "timeout");
}

#[tokio::test]
async fn b_02_an_answer_after_the_deadline_is_given_to_nobody() {
    let gate = Gate::new();
    let wait = gate.clone();
    let backend = FakeBackend::with_tool("late", move |call| {
        let wait = wait.clone();
        async move {
            if call.arguments()["first"] == true {
                wait.passed().await;
                return Reply::text("late");
            }
            Reply::text("mine")
        }
    })
    .await;
    let mut spec = backend.spec();
    spec["timeouts"] = json!({"call": "300ms"});
    let broker = builder().backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    let error = client.begin_with_id(json!(5), "tools/call", json!({"name": "b__late", "arguments": {"first": true}})).error().await;
    assert_eq!(kind(&error), "timeout");
    let again = client.begin_with_id(json!(5), "tools/call", json!({"name": "b__late", "arguments": {"first": false}}));
    gate.open();
    assert_eq!(text_of(&again.result().await), "mine");
}

#[tokio::test]
async fn b_11_odd_event_streams_are_read_by_the_rules() {
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
async fn d3_shared_and_per_session_links_are_as_configured() {
    for (links, sharing) in [("shared", true), ("per-session", false)] {
        let backend = FakeBackend::with_tool("who", |call| async move { Reply::text(call.session.as_deref().unwrap_or("none")) }).await;
        backend.sessions();
        let mut spec = backend.spec();
        spec["links"] = json!(links);
        let broker = builder().backend("default", "b", spec).start().await;
        let clients = [broker.connected(json!({})).await, broker.connected(json!({"roots": {}})).await];
        let own = [
            text_of(&clients[0].call("b__who", json!({})).await).to_owned(),
            text_of(&clients[1].call("b__who", json!({})).await).to_owned(),
        ];
        assert_eq!(own[0] == own[1], sharing, "{links}: {own:?}");
    }
}

#[tokio::test]
async fn f_11_idle_connections_a_backend_closed_cost_no_call() {
    let (broker, backend) = echo().await;
    let client = broker.connected(json!({})).await;
    for round in 0..10 {
        assert_eq!(text_of(&client.call("b__echo", json!({"n": round})).await), json!({"n": round}).to_string());
        backend.cut_connections();
    }
    assert_eq!(backend.count(|seen| seen.calls("echo")), 10, "each call was sent once");
}

#[tokio::test]
async fn b_18_the_get_stream_is_resumed_from_its_last_event() {
    let (_broker, backend) = echo().await;
    backend.wait_get_streams(1).await;
    backend.push_raw("id: get-7\nretry: 10\ndata:\n\n").await;
    backend.end_get_streams().await;
    backend.wait_for("GET with Last-Event-ID", |seen| seen.http == "GET" && seen.header("last-event-id") == Some("get-7")).await;
}

#[tokio::test]
async fn d3_two_principals_never_share_a_link() {
    let backend = FakeBackend::echo().await;
    let broker = builder().auth_required().backend("default", "b", backend.spec()).start().await;
    let mut handshakes = backend.seen_of("initialize").len();
    for _ in 0..3 {
        let key = broker.admin().create_key("default").await;
        for _ in 0..2 {
            broker.client("/mcp").bearer(&key).connected(json!({})).await.call("b__echo", json!({})).await;
        }
        handshakes += 1;
        assert_eq!(backend.seen_of("initialize").len(), handshakes, "one link per principal");
    }
}

#[tokio::test]
async fn a_cancelled_call_does_not_wait_for_a_handshake_that_hangs() {
    let backend = FakeBackend::echo().await;
    backend.sessions();
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let good = broker.connected(json!({})).await;
    good.call("b__echo", json!({})).await;
    backend.on("initialize", |_| async { Reply::Hang });
    let mut call = client.begin_with_id(json!(9), "tools/call", json!({"name": "b__echo"}));
    let before = backend.seen_of("initialize").len();
    backend.wait_count("the handshake", before.max(3), |seen| seen.is("initialize")).await;
    assert_eq!(text_of(&good.call("b__echo", json!({"n": 1})).await), r#"{"n":1}"#, "others go on");
    client.notify("notifications/cancelled", json!({"requestId": 9})).await;
    assert!(call.next_or_end().await.is_none_or(|message| !message.is_response()));
    assert_eq!(client.begin_with_id(json!(9), "ping", json!({})).result().await, json!({}));
}

#[tokio::test]
async fn log_04_a_level_set_before_the_first_call_reaches_the_backend_with_its_link() {
    let backend = FakeBackend::echo().await;
    backend.sessions();
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    client.result("logging/setLevel", json!({"level": "debug"})).await;
    client.call("b__echo", json!({})).await;
    let call = backend.wait_for("the call", |seen| seen.calls("echo")).await;
    let session = call.header("mcp-session-id").unwrap();
    let seen = backend.wait_for("the level", |seen| seen.is("logging/setLevel") && seen.header("mcp-session-id") == Some(session)).await;
    assert_eq!(seen.message["params"]["level"], "debug");
}
