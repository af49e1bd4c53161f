//! HTTP backends that fail: dead, silent, too late, too loud, too large. The client gets an error,
//! and other clients notice nothing.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::{Value, json};
use testkit::{FakeBackend, Gate, GateAnswer, Reply, TestBroker, backend::tool, eventually};

use crate::{broker_with, builder, configured, configured_alone, echo, kind, text_of};

/// Calls the tool and returns the error.
async fn failing(broker: &TestBroker, tool: &str) -> Value {
    broker
        .connected(json!({}))
        .await
        .error("tools/call", json!({"name": format!("b__{tool}")}))
        .await
}

#[tokio::test]
async fn an_event_that_is_too_large_is_not_requested_again() {
    let backend = FakeBackend::echo().await;
    let config = json!({"limits": {"message_bytes": "256KiB"}});
    let broker = configured(config, backend.spec()).await;
    broker.admin().wait_backend_state("default", "b", "ready").await;
    backend.wait_get_streams(1).await;
    let event = |id: &str, text: &str| {
        let params = json!({"level": "info", "data": text});
        let message =
            json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params});
        format!("id: {id}\ndata: {message}\n\n")
    };
    backend.push_raw(&event("one", "small")).await;
    let before = backend.count(|seen| seen.http == "GET");
    backend.push_raw(&event("two", &"x".repeat(300 << 10))).await;
    backend.wait_count("another stream", before + 1, |seen| seen.http == "GET").await;
    let gets = backend.recorded().into_iter().filter(|seen| seen.http == "GET");
    let resumed: Vec<_> =
        gets.filter_map(|seen| seen.header("last-event-id").map(str::to_owned)).collect();
    assert_eq!(resumed, [""; 0], "the stream begins without the events before");
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
        assert_eq!(
            (error["code"].as_i64(), kind(&error)),
            (Some(1009), "outcome_unknown"),
            "{name}"
        );
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
    let listener =
        testkit::eventually("the port again", || tokio::net::TcpListener::bind(address)).await;
    let again = FakeBackend::on_listener(listener);
    again.list("tools", vec![tool("echo")]);
    testkit::eventually("a call to succeed", || async {
        let answer = client.request("tools/call", json!({"name": "b__echo"})).await;
        if answer.get("result").is_some() { Ok(()) } else { Err(answer) }
    })
    .await;
}

#[tokio::test]
async fn statuses_bodies_and_redirects_of_a_failing_backend_are_not_passed_on() {
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
        let response = client
            .post(crate::request(77, "tools/call", json!({"name": format!("b__{name}")})))
            .await;
        assert!(response.header("set-cookie").is_none() && response.header("location").is_none());
        let body = response.text().await;
        assert!(body.contains("\"error\"") && !body.contains("inner secret"), "{name}: {body}");
    }
    assert_eq!(target.recorded().len(), 0, "redirects are not followed");
}

#[tokio::test]
async fn a_call_that_the_backend_refuses_is_sent_once_and_affects_no_other() {
    let backend = FakeBackend::echo().await;
    for (name, status) in [("s401", 401), ("s403", 403), ("s413", 413)] {
        backend.tool(name, move |_| async move {
            Reply::Http { status, headers: Vec::new(), body: "".into() }
        });
    }
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    for name in ["s401", "s403", "s413"] {
        for _ in 0..3 {
            let error = client.error("tools/call", json!({"name": format!("b__{name}")})).await;
            assert_eq!(
                (kind(&error), &error["data"]["retryable"]),
                ("backend_protocol_error", &json!(false)),
                "{name}"
            );
        }
        assert_eq!(
            backend.recorded().iter().filter(|seen| seen.calls(name)).count(),
            3,
            "once for each request"
        );
    }
    client.call("b__echo", json!({})).await; // its breaker is closed
    // A task is not called again either.
    let task =
        client.result("tools/call", json!({"name": "b__s403", "task": {}})).await["task"]["taskId"]
            .clone();
    client.error("tasks/result", json!({"taskId": task})).await;
    assert_eq!(backend.recorded().iter().filter(|seen| seen.calls("s403")).count(), 4);
}

#[tokio::test]
async fn status_503_is_an_unknown_outcome_unless_it_has_retry_after() {
    let backend = FakeBackend::start().await;
    for (name, has_retry_after) in [("plain", false), ("later", true)] {
        backend.tool(name, move |_| async move {
            let headers = if has_retry_after {
                vec![("retry-after".to_owned(), "1".to_owned())]
            } else {
                Vec::new()
            };
            Reply::Http { status: 503, headers, body: "".into() }
        });
    }
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let plain = client.error("tools/call", json!({"name": "b__plain"})).await;
    assert_eq!(
        (kind(&plain), &plain["data"]["retryable"]),
        ("outcome_unknown", &json!(false)),
        "a proxy may say so after the backend acted"
    );
    let later = client.error("tools/call", json!({"name": "b__later"})).await;
    assert_eq!((kind(&later), &later["data"]["retryable"]), ("backend_unavailable", &json!(true)));
    // The call of a task is not repeated either.
    let task = client.result("tools/call", json!({"name": "b__plain", "task": {}})).await["task"]["taskId"].clone();
    let outcome = client.error("tasks/result", json!({"taskId": task})).await;
    assert_eq!(kind(&outcome), "outcome_unknown", "{outcome}");
    assert_eq!(
        backend.recorded().iter().filter(|seen| seen.calls("plain")).count(),
        2,
        "once for each request"
    );
}

#[tokio::test]
async fn a_client_gets_the_retry_time_of_a_busy_backend() {
    let backend = FakeBackend::start().await;
    let cases = [
        ("throttled", 429, "7", 7_000),
        ("busy", 503, "3", 3_000),
        ("soon", 429, "0", 1_000),
        ("never", 429, "99999999999999999999", 3_600_000),
        ("past", 503, "Sun, 06 Nov 1994 08:49:37 GMT", 1_000),
        ("future", 429, "Fri, 06 Nov 2893 08:49:37 GMT", 3_600_000),
    ];
    for (name, status, value, _) in cases {
        backend.tool(name, move |_| async move {
            let headers = vec![("retry-after".to_owned(), value.to_owned())];
            Reply::Http { status, headers, body: "".into() }
        });
    }
    backend.tool("odd", |_| async {
        let headers = vec![("retry-after".to_owned(), "soon".to_owned())];
        Reply::Http { status: 429, headers, body: "".into() }
    });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    for (name, _, _, expected) in cases {
        let error = client.error("tools/call", json!({"name": format!("b__{name}")})).await;
        assert_eq!(kind(&error), "backend_unavailable", "{name}: {error}");
        assert_eq!(error["data"]["retryAfterMs"], expected, "{name}: {error}");
    }
    let odd = client.error("tools/call", json!({"name": "b__odd"})).await;
    assert_eq!(
        (kind(&odd), odd["data"].get("retryAfterMs")),
        ("backend_unavailable", None),
        "{odd}"
    );
}

#[tokio::test]
async fn b_08_an_answer_over_the_limit_is_refused_as_too_large() {
    let backend = FakeBackend::start().await;
    backend.tool("json", |_| async { Reply::text(&"x".repeat(400_000)) });
    backend.tool("stream", |call| async move {
        call.open_stream().await;
        Reply::text(&"x".repeat(400_000))
    });
    backend.tool("fine", |_| async { Reply::text("fine") });
    let config = json!({"limits": {"message_bytes": "256KiB"}});
    let broker = configured(config, backend.spec()).await;
    for name in ["json", "stream"] {
        let error = failing(&broker, name).await;
        assert_eq!(
            (error["code"].as_i64(), kind(&error)),
            (Some(1009), "result_too_large"),
            "{name}"
        );
    }
    assert_eq!(
        text_of(&broker.connected(json!({})).await.call("b__fine", json!({})).await),
        "fine"
    );
}

#[tokio::test]
async fn b_16_a_flood_of_notifications_does_not_lose_the_answer() {
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
    let mut call = client
        .start_request("tools/call", json!({"name": "b__flood", "_meta": {"progressToken": 1}}));
    assert_eq!(text_of(&call.finish().await.value["result"]), "after the flood");
    let logged: Vec<_> = call
        .before
        .iter()
        .filter(|message| message.method() == Some("notifications/message"))
        .collect();
    let numbers: Vec<_> =
        logged.iter().map(|message| message.value["params"]["data"].as_u64().unwrap()).collect();
    assert!(
        numbers.is_sorted() && numbers.last() == Some(&5_000),
        "what may be left out is the oldest: {:?}",
        numbers.last()
    );
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
        call.client_disconnected().await;
        Reply::Hang
    });
    let mut spec = backend.spec();
    spec["timeouts"] = json!({"call": "500ms"});
    let broker = builder().backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    let steady = client
        .result("tools/call", json!({"name": "b__steady", "_meta": {"progressToken": 1}}))
        .await;
    assert_eq!(text_of(&steady), "slow but steady");
    // Without a token of the client's the broker may request progress itself, or not. Silence ends
    // the call either way.
    let error = client
        .error("tools/call", json!({"name": "b__silent", "_meta": {"progressToken": 2}}))
        .await;
    assert_eq!(kind(&error), "timeout");
}

#[tokio::test]
async fn b_02_an_answer_after_the_deadline_is_dropped() {
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
    let error = client
        .start_request_with_id(
            json!(5),
            "tools/call",
            json!({"name": "b__late", "arguments": {"first": true}}),
        )
        .error()
        .await;
    assert_eq!(kind(&error), "timeout");
    let again = client.start_request_with_id(
        json!(5),
        "tools/call",
        json!({"name": "b__late", "arguments": {"first": false}}),
    );
    gate.open();
    assert_eq!(text_of(&again.result().await), "mine");
}

#[tokio::test]
async fn f_11_no_call_fails_when_a_backend_closes_idle_connections() {
    let (broker, backend) = echo().await;
    let client = broker.connected(json!({})).await;
    for round in 0..10 {
        assert_eq!(
            text_of(&client.call("b__echo", json!({"n": round})).await),
            json!({"n": round}).to_string()
        );
        backend.cut_connections();
    }
    assert_eq!(backend.count(|seen| seen.calls("echo")), 10, "each call was sent once");
}

#[tokio::test]
async fn a_request_that_cannot_be_sent_shows_that_the_backend_is_gone() {
    let backend = FakeBackend::echo().await;
    // Another replica would notice it by its own requests and pings.
    let config = json!({"timeouts": {"ping_interval": "10m"}});
    let broker = configured_alone(config, backend.spec()).await;
    let client = broker.connected(json!({})).await;
    client.result("tools/call", json!({"name": "b__echo", "arguments": {"message": "m"}})).await;
    backend.die().await;
    client.error("tools/call", json!({"name": "b__echo", "arguments": {"message": "m"}})).await;
    broker.admin().wait_backend_state("default", "b", "degraded").await;
}

#[tokio::test]
async fn a_get_stream_that_cannot_be_opened_again_shows_that_the_backend_is_gone() {
    let backend = FakeBackend::echo().await;
    let config = json!({"timeouts": {"ping_interval": "10m"}});
    let broker = configured_alone(config, backend.spec()).await;
    broker.admin().wait_backend_state("default", "b", "ready").await;
    backend.wait_get_streams(1).await;
    backend.die().await;
    broker.admin().wait_backend_state("default", "b", "degraded").await;
}

#[tokio::test]
async fn an_unavailable_backend_is_logged_once_and_not_at_each_attempt() {
    let backend = FakeBackend::start().await;
    backend.on("initialize", |_| async {
        Reply::Http { status: 500, headers: vec![], body: "".into() }
    });
    let broker = builder().single_process().start().await;
    let (_, _) = broker.admin().put_backend("default", "b", &backend.spec()).await;
    // The last attempt may still run. The ones before are over, and logged.
    for _ in 0..3 {
        let tried = backend.recorded_of("initialize").len();
        broker.admin().post("/admin/v1/tenants/default/backends/b/probe", &json!({})).await;
        backend.wait_count("another attempt", tried + 1, |seen| seen.is("initialize")).await;
    }
    broker.wait_for_log("status 500").await;
    let log = broker.log();
    let warnings: Vec<&str> =
        log.lines().filter(|line| line.contains("WARN") && line.contains("backend=b")).collect();
    assert_eq!(warnings.len(), 1, "{log}");
    assert!(warnings[0].contains("status 500"), "it says why: {}", warnings[0]);
}

#[tokio::test]
async fn answers_that_a_backend_refuses_do_not_fill_the_log() {
    const PINGS: usize = 20;
    let (broker, backend) = echo().await;
    backend.wait_get_streams(1).await;
    let refused = Arc::new(AtomicUsize::new(0));
    let counted = refused.clone();
    backend.gate(move |_, headers| {
        let is_post = headers.contains_key("content-type");
        is_post.then(|| {
            counted.fetch_add(1, Ordering::Relaxed);
            GateAnswer { status: 500, headers: vec![], body: json!({}) }
        })
    });
    for id in 0..PINGS {
        backend.push(json!({"jsonrpc": "2.0", "id": id, "method": "ping"})).await;
    }
    eventually("the answers of the broker", || async {
        let refused = refused.load(Ordering::Relaxed);
        if refused >= PINGS { Ok(()) } else { Err(refused) }
    })
    .await;
    broker.wait_for_log("did not reach the backend").await;
    let log = broker.log();
    let lines = log.lines().filter(|line| line.contains("did not reach the backend")).count();
    assert!(lines < PINGS / 4, "{lines} lines: {log}");
}
