//! Cancellation, progress, ping, pagination, logging, completion and `_meta`.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::{Value, json};
use testkit::{
    BackendCall, FakeBackend, Gate, Reply, TestClient,
    backend::{text, tool},
    eventually,
};

use crate::{broker_with, builder, configured, echo, kind, text_of};

/// Returns a backend whose tool `wait` reports each call. It answers when the gate opens, or never
/// if it is cancelled.
async fn waiting(gate: &Gate) -> FakeBackend {
    let gate = gate.clone();
    FakeBackend::with_tool("wait", move |call| {
        let gate = gate.clone();
        async move {
            call.open_stream().await;
            gate.passed().await;
            Reply::text("waited")
        }
    })
    .await
}

#[tokio::test]
async fn can_01_a_cancellation_has_the_id_of_the_same_call_at_the_backend() {
    let gate = Gate::new();
    let backend = waiting(&gate).await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let _first = client.start_request_with_id(
        json!("one"),
        "tools/call",
        json!({"name": "b__wait", "arguments": {"n": 1}}),
    );
    let _second = client.start_request_with_id(
        json!("two"),
        "tools/call",
        json!({"name": "b__wait", "arguments": {"n": 2}}),
    );
    let calls = backend.wait_count("both calls", 2, |seen| seen.calls("wait")).await;
    client.notify("notifications/cancelled", json!({"requestId": "two", "reason": "enough"})).await;
    let cancel = backend.wait_for("the cancel", |seen| seen.is("notifications/cancelled")).await;
    let second = calls.iter().find(|seen| seen.message["params"]["arguments"]["n"] == 2).unwrap();
    assert_eq!(cancel.message["params"]["requestId"], second.message["id"]);
    assert_eq!(cancel.message["params"]["reason"], "enough");
    gate.open();
}

#[tokio::test]
async fn can_02_initialize_is_never_cancelled() {
    let backend = FakeBackend::start().await;
    let gate = Gate::new();
    backend.on("initialize", gate.before(Reply::error(-32603, "too late")));
    let mut spec = backend.spec();
    spec["timeouts"] = json!({"initialize": "200ms"});
    let broker = builder().start().await;
    let (_, _) = broker.admin().put_backend("default", "b", &spec).await;
    broker
        .admin()
        .wait_backend("default", "b", "failed", |view| view["state"] != "connecting")
        .await;
    gate.open();
    assert_eq!(backend.recorded_of("notifications/cancelled").len(), 0);
    let client = broker.client("/mcp");
    client.initialize_only("2025-11-25", json!({})).await;
    client.notify("notifications/cancelled", json!({"requestId": 1})).await;
    client.notify("notifications/initialized", json!({})).await;
    client.result("ping", json!({})).await;
}

#[tokio::test]
async fn can_03_a_cancelled_call_is_not_answered_and_a_late_answer_is_dropped() {
    let gate = Gate::new();
    let backend = waiting(&gate).await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let mut call = client.start_request_with_id(json!(5), "tools/call", json!({"name": "b__wait"}));
    backend.wait_for("the call", |seen| seen.calls("wait")).await;
    client.notify("notifications/cancelled", json!({"requestId": 5})).await;
    backend.wait_for("the cancel", |seen| seen.is("notifications/cancelled")).await;
    gate.open();
    assert!(
        call.next_or_end()
            .await
            .is_none_or(|message| !message.is_response() || message.value["error"].is_object()),
        "no result"
    );
    broker.admin().wait_metric("mcp_requests_pending", &[], |value| value == 0.0).await;
    assert_eq!(
        client.start_request_with_id(json!(5), "ping", json!({})).result().await,
        json!({}),
        "the id is free again"
    );
}

#[tokio::test]
async fn can_04_unknown_finished_and_malformed_cancels_are_ignored() {
    let (broker, backend) = echo().await;
    let client = broker.connected(json!({})).await;
    client.start_request_with_id(json!(3), "tools/call", json!({"name": "b__echo"})).result().await;
    for params in [
        json!({"requestId": 3}),
        json!({"requestId": 99}),
        json!({"requestId": "3"}),
        json!({}),
        json!({"requestId": {}}),
        json!({"requestId": 1.5}),
    ] {
        let response = client
            .post(
                json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
                    .to_string(),
            )
            .await;
        assert!([202, 400].contains(&response.status), "{params}: {}", response.status);
    }
    client.result("ping", json!({})).await;
    assert_eq!(backend.recorded_of("notifications/cancelled").len(), 0);
}

#[tokio::test]
async fn can_07_a_cancellation_of_a_question_by_its_backend_is_forwarded() {
    let backend = FakeBackend::with_tool("ask", |call| async move {
        let (id, _answer) = call.start_question("roots/list", json!({})).await;
        call.notify("notifications/cancelled", json!({"requestId": id, "reason": "never mind"}))
            .await;
        Reply::text("done")
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({"roots": {}})).await;
    let mut call = client.start_call("b__ask", json!({}));
    assert_eq!(text_of(&call.finish().await.value["result"]), "done");
    let question = call
        .before
        .iter()
        .find(|message| message.method() == Some("roots/list"))
        .expect("the question");
    let cancel = call
        .before
        .iter()
        .find(|message| message.method() == Some("notifications/cancelled"))
        .expect("the cancel");
    assert_eq!(cancel.value["params"]["requestId"], question.value["id"]);
}

#[tokio::test]
async fn life_10_a_call_over_its_deadline_is_cancelled_at_the_backend() {
    let gate = Gate::new();
    let backend = waiting(&gate).await;
    let mut spec = backend.spec();
    spec["timeouts"] = json!({"call": "300ms"});
    let broker = builder().backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    let error = client.error("tools/call", json!({"name": "b__wait"})).await;
    assert_eq!((error["code"].as_i64(), kind(&error)), (Some(1069), "timeout"));
    let call = backend.wait_for("the call", |seen| seen.calls("wait")).await;
    let cancel = backend.wait_for("the cancel", |seen| seen.is("notifications/cancelled")).await;
    assert_eq!(cancel.message["params"]["requestId"], call.message["id"]);
}

async fn progress(call: &BackendCall, token: &Value, progress: f64) {
    call.notify(
        "notifications/progress",
        json!({"progressToken": token, "progress": progress, "total": 10.5, "message": "m"}),
    )
    .await;
}

#[tokio::test]
async fn prog_01_progress_has_the_token_of_the_client_with_its_type() {
    let backend = FakeBackend::with_tool("p", |call| async move {
        progress(&call, call.progress_token(), 1.5).await;
        Reply::text("done")
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    for token in [json!(1), json!("1"), json!("a b"), json!(0), json!(9_007_199_254_740_993_u64)] {
        let mut call = client.start_request(
            "tools/call",
            json!({"name": "b__p", "_meta": {"progressToken": token, "other": "kept"}}),
        );
        call.finish().await;
        assert_eq!(call.before.len(), 1, "{token}");
        let params = &call.before[0].value["params"];
        assert_eq!(
            *params,
            json!({"progressToken": token, "progress": 1.5, "total": 10.5, "message": "m"})
        );
    }
    let seen = backend.recorded_of("tools/call");
    let tokens: std::collections::HashSet<String> = seen
        .iter()
        .map(|seen| seen.message["params"]["_meta"]["progressToken"].to_string())
        .collect();
    assert_eq!(tokens.len(), seen.len(), "unique at the backend");
    assert!(seen.iter().all(|seen| seen.message["params"]["_meta"]["other"] == "kept"));
}

#[tokio::test]
async fn prog_01_a_token_of_another_type_or_a_long_one_is_refused() {
    let (broker, backend) = echo().await;
    let client = broker.connected(json!({})).await;
    let long = json!("t".repeat(1_024));
    for token in [json!({}), json!([]), Value::Null, json!(true), json!(1.5), long] {
        for (method, name) in [("tools/call", "b__echo"), ("ping", "")] {
            let params = json!({"name": name, "_meta": {"progressToken": token}});
            let error = client.error(method, params).await;
            assert_eq!(error["code"], -32602, "{token}: {error}");
            assert!(error["message"].as_str().unwrap().contains("progressToken"), "{error}");
        }
    }
    assert_eq!(backend.recorded_of("tools/call").len(), 0);
}

#[tokio::test]
async fn prog_02_progress_after_the_end_or_with_an_unknown_token_is_dropped() {
    let backend = FakeBackend::with_tool("p", |call| async move {
        progress(&call, &json!("nobody"), 1.0).await;
        progress(&call, &json!(424_242), 1.0).await;
        progress(&call, call.progress_token(), 2.0).await;
        let answer = call.result_message(text("done"));
        call.send(answer).await;
        progress(&call, call.progress_token(), 3.0).await;
        Reply::End
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let mut get = client.open_get_stream().await;
    let mut call = client
        .start_request("tools/call", json!({"name": "b__p", "_meta": {"progressToken": "mine"}}));
    call.finish().await;
    assert_eq!(call.before.len(), 1, "{:?}", call.before);
    assert_eq!(call.before[0].value["params"]["progress"], 2.0);
    assert!(call.next_or_end().await.is_none(), "nothing after the response");
    client.delete_session().await;
    while let Some(event) = get.next().await {
        assert!(event.message().is_none(), "{event:?}");
    }
}

#[tokio::test]
async fn prog_03_progress_towards_the_client_only_rises() {
    let backend = FakeBackend::with_tool("p", |call| async move {
        for value in [1.0, 1.0, 3.0, 2.0, 3.5, 3.5, 9.0] {
            progress(&call, call.progress_token(), value).await;
        }
        Reply::text("done")
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let mut call =
        client.start_request("tools/call", json!({"name": "b__p", "_meta": {"progressToken": 1}}));
    call.finish().await;
    let values: Vec<f64> = call
        .before
        .iter()
        .map(|message| message.value["params"]["progress"].as_f64().unwrap())
        .collect();
    assert_eq!(values, [1.0, 3.0, 3.5, 9.0]);
}

#[tokio::test]
async fn prog_05_a_client_without_a_progress_token_gets_no_progress() {
    let backend = FakeBackend::with_tool("p", |call| async move {
        let token = call.progress_token().clone();
        if !token.is_null() {
            progress(&call, &token, 1.0).await;
        }
        progress(&call, &json!(1), 1.0).await;
        Reply::text("done")
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let mut call = client.start_call("b__p", json!({}));
    call.finish().await;
    assert!(call.before.is_empty(), "{:?}", call.before);
}

#[tokio::test]
async fn ping_01_ping_is_answered_in_every_phase_and_while_calls_hang() {
    let gate = Gate::new();
    let backend = waiting(&gate).await;
    let broker = broker_with(&backend).await;
    let client = broker.client("/mcp");
    client.initialize_only("2025-11-25", json!({})).await;
    assert_eq!(client.result("ping", json!({})).await, json!({}));
    client.notify("notifications/initialized", json!({})).await;
    let _calls: Vec<_> = (0..20).map(|_| client.start_call("b__wait", json!({}))).collect();
    backend.wait_count("the calls", 20, |seen| seen.calls("wait")).await;
    assert_eq!(client.result("ping", json!({})).await, json!({}));
    assert_eq!(backend.recorded_of("ping").len(), 0, "a client's ping is ours to answer");
    gate.open();
}

#[tokio::test]
async fn ping_01_a_backends_ping_is_answered_by_the_broker() {
    let backend = FakeBackend::with_tool("p", |call| async move {
        let answer = call.request("ping", json!({})).await;
        Reply::text(&answer["result"].to_string())
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let mut call = client.start_call("b__p", json!({}));
    assert_eq!(text_of(&call.finish().await.value["result"]), "{}");
    assert!(call.before.is_empty());
}

#[tokio::test]
async fn ping_02_a_backend_that_stops_answering_is_detected_and_reconnected() {
    let backend = FakeBackend::echo().await;
    let (silent, answering) = (
        std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)),
        std::sync::atomic::Ordering::SeqCst,
    );
    for method in ["ping", "initialize"] {
        let silent = silent.clone();
        backend.on(method, move |call| {
            let (is_silent, initialize) = (silent.load(answering), call.message["method"] == "initialize");
            async move {
                match (is_silent, initialize) {
                    (true, _) => Reply::Hang,
                    (false, false) => Reply::Result(json!({})),
                    (false, true) => Reply::Result(json!({
                        "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "n", "version": "1"},
                    })),
                }
            }
        });
    }
    let config =
        json!({"timeouts": {"ping_interval": "100ms", "control": "300ms", "initialize": "300ms"}});
    let broker = configured(config, backend.spec()).await;
    backend.wait_count("pings of a backend that answers", 2, |seen| seen.is("ping")).await;
    assert_eq!(broker.admin().backend("default", "b").await["state"], "ready");
    silent.store(true, answering);
    let view = broker.admin().wait_backend_state("default", "b", "degraded").await;
    assert!(view["last_error"].is_string(), "{view}");
    silent.store(false, answering);
    broker.admin().wait_backend_state("default", "b", "ready").await;
    assert_eq!(text_of(&broker.connected(json!({})).await.call("b__echo", json!({})).await), "{}");
}

#[tokio::test]
async fn page_01_bad_and_foreign_cursors_are_32602() {
    let backend = FakeBackend::start().await;
    backend.list("tools", (0..150).map(|n| tool(&format!("t{n}"))).collect());
    backend.list("prompts", (0..150).map(|n| json!({"name": format!("p{n}")})).collect());
    let broker = builder()
        .tenant("other")
        .backend("default", "b", backend.spec())
        .backend("other", "b", backend.spec())
        .start()
        .await;
    let key = broker.admin().create_key("other").await;
    let client = broker.connected(json!({})).await;
    let cursor =
        client.result("tools/list", json!({})).await["nextCursor"].as_str().unwrap().to_owned();
    assert_eq!(
        client.result("tools/list", json!({"cursor": cursor})).await["tools"]
            .as_array()
            .unwrap()
            .len(),
        50
    );
    let altered = format!("{}{}", &cursor[1..], &cursor[..1]);
    for bad in ["", "x", "page:100", altered.as_str(), &cursor[..cursor.len() - 1]] {
        let error = client.error("tools/list", json!({"cursor": bad})).await;
        assert_eq!(
            (error["code"].as_i64(), kind(&error)),
            (Some(-32602), "cursor_invalid"),
            "{bad}"
        );
    }
    assert_eq!(client.error("tools/list", json!({"cursor": 7})).await["code"], -32602);
    assert_eq!(
        kind(&client.error("prompts/list", json!({"cursor": cursor})).await),
        "cursor_invalid",
        "another list"
    );
    let single = broker.client("/mcp/b").connected(json!({})).await;
    assert_eq!(
        kind(&single.error("tools/list", json!({"cursor": cursor})).await),
        "cursor_invalid",
        "another endpoint"
    );
    let foreign = broker.client("/mcp").bearer(&key).connected(json!({})).await;
    assert_eq!(
        kind(&foreign.error("tools/list", json!({"cursor": cursor})).await),
        "cursor_invalid",
        "another tenant"
    );
}

#[tokio::test]
async fn page_02_page_03_cursors_of_a_backend_are_sent_back_unchanged() {
    let backend = FakeBackend::start().await;
    let odd = "a b/ü+%20\u{1}\"\\";
    backend.on("tools/list", move |call| async move {
        match call.params()["cursor"].as_str() {
            None => Reply::Result(json!({"tools": [tool("one")], "nextCursor": odd})),
            Some(cursor) if cursor == odd => Reply::Result(json!({"tools": [], "nextCursor": ""})),
            Some("") => Reply::Result(json!({"tools": [tool("two")]})),
            Some(_) => Reply::error(-32602, "unknown cursor"),
        }
    });
    let broker = broker_with(&backend).await;
    assert_eq!(broker.connected(json!({})).await.tool_names().await, ["b__one", "b__two"]);
}

#[tokio::test]
async fn page_03_circular_cursors_of_a_backend_are_not_followed_endlessly() {
    let (circle, fine) = (FakeBackend::start().await, FakeBackend::echo().await);
    circle.on("tools/list", |call| async move {
        let next = if call.params()["cursor"] == "a" { "b" } else { "a" };
        Reply::Result(json!({"tools": [tool("again")], "nextCursor": next}))
    });
    let broker = builder().backend("default", "fine", fine.spec()).start().await;
    broker.admin().put_backend("default", "circle", &circle.spec()).await;
    broker
        .admin()
        .wait_backend("default", "circle", "an end", |view| view["state"] != "connecting")
        .await;
    assert!(
        broker.connected(json!({})).await.tool_names().await.contains(&"fine__echo".to_owned())
    );
    assert!(
        circle.recorded_of("tools/list").len() < 50,
        "{}",
        circle.recorded_of("tools/list").len()
    );
}

async fn log(call: &BackendCall, level: &str) {
    call.notify(
        "notifications/message",
        json!({"level": level, "data": {"said": level}, "logger": "l"}),
    )
    .await;
}

#[tokio::test]
async fn log_02_set_level_filters_per_session() {
    let backend = FakeBackend::with_tool("log", |call| async move {
        for level in
            ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
        {
            log(&call, level).await;
        }
        Reply::text("done")
    })
    .await;
    let broker = broker_with(&backend).await;
    let (quiet, loud) = (broker.connected(json!({})).await, broker.connected(json!({})).await);
    quiet.result("logging/setLevel", json!({"level": "error"})).await;
    loud.result("logging/setLevel", json!({"level": "debug"})).await;
    for (client, expected) in [(&quiet, 4), (&loud, 8)] {
        let mut call = client.start_call("b__log", json!({}));
        call.finish().await;
        let levels: Vec<_> = call
            .before
            .iter()
            .map(|message| message.value["params"]["level"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(levels.len(), expected, "{levels:?}");
        assert_eq!(call.before[0].value["params"]["data"]["said"], levels[0]);
    }
}

/// Starts a backend whose tool `log` logs at each level that `logging/setLevel` permits, and at all
/// levels until a level is set.
async fn with_log_level() -> FakeBackend {
    const LEVELS: [&str; 8] =
        ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];
    let least = Arc::new(AtomicUsize::new(0));
    let set = least.clone();
    let backend = FakeBackend::with_tool("log", move |call| {
        let least = least.load(Ordering::SeqCst);
        async move {
            for level in &LEVELS[least..] {
                log(&call, level).await;
            }
            Reply::text("done")
        }
    })
    .await;
    backend.on("logging/setLevel", move |call| {
        let named = LEVELS.iter().position(|level| call.params()["level"] == *level);
        set.store(named.unwrap(), Ordering::SeqCst);
        async { Reply::Result(json!({})) }
    });
    backend
}

async fn logged(client: &TestClient) -> usize {
    let mut call = client.start_call("b__log", json!({}));
    call.finish().await;
    call.before.len()
}

#[tokio::test]
async fn log_02_a_level_of_one_session_hides_nothing_from_another() {
    let backend = with_log_level().await;
    let broker = broker_with(&backend).await;
    let levels = || {
        let sent = backend.recorded_of("logging/setLevel").into_iter();
        sent.map(|seen| seen.message["params"]["level"].clone()).collect::<Vec<_>>()
    };
    let (quiet, silent) = (broker.connected(json!({})).await, broker.connected(json!({})).await);
    assert_eq!((logged(&quiet).await, logged(&silent).await), (8, 8));
    assert_eq!(levels(), [""; 0], "no session has set a level");
    quiet.result("logging/setLevel", json!({"level": "error"})).await;
    assert_eq!((logged(&quiet).await, logged(&silent).await), (4, 8));
    silent.result("logging/setLevel", json!({"level": "critical"})).await;
    assert_eq!((logged(&quiet).await, logged(&silent).await), (4, 3));
    assert_eq!(levels(), ["debug", "error"]);
    // The level of a session ends with it.
    quiet.delete_session().await;
    eventually("the level of the other session", || async {
        if levels() == ["debug", "error", "critical"] { Ok(()) } else { Err(levels()) }
    })
    .await;
    silent.delete_session().await;
    let next = broker.connected(json!({})).await;
    eventually("all messages", || async {
        let count = logged(&next).await;
        if count == 8 { Ok(()) } else { Err(count) }
    })
    .await;
    assert_eq!(levels(), ["debug", "error", "critical", "debug"]);
}

#[tokio::test]
async fn log_02_a_bad_level_is_32602() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({})).await;
    for params in
        [json!({"level": "loud"}), json!({"level": 3}), json!({}), json!({"level": "INFO"})]
    {
        let error = client.error("logging/setLevel", params.clone()).await;
        assert_eq!(error["code"], -32602, "{params}");
    }
}

#[tokio::test]
async fn log_04_a_shared_backend_gets_the_most_verbose_level() {
    let (broker, backend) = echo().await;
    let (quiet, loud) = (broker.connected(json!({})).await, broker.connected(json!({})).await);
    for client in [&quiet, &loud] {
        client.call("b__echo", json!({})).await;
    }
    quiet.result("logging/setLevel", json!({"level": "error"})).await;
    loud.result("logging/setLevel", json!({"level": "debug"})).await;
    quiet.result("logging/setLevel", json!({"level": "warning"})).await;
    backend
        .wait_for("the verbose level", |seen| {
            seen.is("logging/setLevel") && seen.message["params"]["level"] == "debug"
        })
        .await;
    quiet.call("b__echo", json!({})).await;
    let last = backend.recorded_of("logging/setLevel").pop().unwrap();
    assert_eq!(last.message["params"]["level"], "debug");
}

#[tokio::test]
async fn comp_01_at_most_100_values_are_passed_on() {
    let backend = FakeBackend::start().await;
    backend.list("prompts", vec![json!({"name": "p", "arguments": [{"name": "a"}]})]);
    backend.on("completion/complete", |_| async {
        let values: Vec<String> = (0..150).map(|n| format!("v{n}")).collect();
        Reply::Result(json!({"completion": {"values": values, "total": 150}}))
    });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let params = json!({"ref": {"type": "ref/prompt", "name": "b__p"}, "argument": {"name": "a", "value": "v"}});
    let completion = client.result("completion/complete", params).await["completion"].clone();
    assert_eq!(completion["values"].as_array().unwrap().len(), 100);
    assert_eq!(completion["hasMore"], true);
    assert_eq!(completion["values"][99], "v99");
}

#[tokio::test]
async fn comp_02_references_are_sent_with_the_names_of_the_backend() {
    let backend = FakeBackend::start().await;
    backend.list("prompts", vec![json!({"name": "p"})]);
    backend.list("resourceTemplates", vec![json!({"uriTemplate": "test://{id}", "name": "t"})]);
    backend.on("completion/complete", |_| async {
        Reply::Result(json!({"completion": {"values": ["x"]}}))
    });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let argument = json!({"name": "a", "value": "v"});
    let context = json!({"arguments": {"b": "c"}});
    for (reference, native) in [
        (json!({"type": "ref/prompt", "name": "b__p"}), json!({"type": "ref/prompt", "name": "p"})),
        (
            json!({"type": "ref/resource", "uri": "b+test://{id}"}),
            json!({"type": "ref/resource", "uri": "test://{id}"}),
        ),
    ] {
        let result = client
            .result(
                "completion/complete",
                json!({"ref": reference, "argument": argument, "context": context}),
            )
            .await;
        assert_eq!(result["completion"]["values"], json!(["x"]));
        let seen = backend.recorded_of("completion/complete").pop().unwrap();
        assert_eq!(
            seen.message["params"],
            json!({"ref": native, "argument": argument, "context": context})
        );
    }
    let error = client
        .error(
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "none"}, "argument": argument}),
        )
        .await;
    assert_eq!((error["code"].as_i64(), kind(&error)), (Some(-32602), "reference_not_found"));
}

#[tokio::test]
async fn meta_01_meta_02_meta_passes_in_both_directions_without_additions() {
    let backend = FakeBackend::with_tool("meta", |_| async {
        let meta = json!({"com.example/answer": [1, null], "plain": true, "io.modelcontextprotocol/unknown": {"x": 1}});
        Reply::Result(json!({"content": [], "_meta": meta}))
    })
    .await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let meta =
        json!({"com.example/ask": {"deep": [1, 2.50]}, "": 1, "modelcontextprotocol.io/x": 2});
    let result = client
        .result("tools/call", json!({"name": "b__meta", "arguments": {}, "_meta": meta}))
        .await;
    assert_eq!(
        result["_meta"],
        json!({"com.example/answer": [1, null], "plain": true, "io.modelcontextprotocol/unknown": {"x": 1}})
    );
    let seen = backend.recorded_of("tools/call").pop().unwrap();
    let mut at_backend = seen.message["params"]["_meta"].clone();
    at_backend.as_object_mut().unwrap().remove("progressToken");
    assert_eq!(at_backend, meta);
    for list in ["tools/list", "prompts/list"] {
        assert!(client.result(list, json!({})).await.get("_meta").is_none(), "{list}");
    }
}
