//! Event streams towards clients: the stream of each message, event ids, and resuming.

use std::{collections::HashSet, time::Duration};

use serde_json::{Value, json};
use testkit::{
    Call, Event, EventReader, FakeBackend, Gate, Reply, TestBroker, TestClient,
    backend::{text, tool},
    within,
};

use crate::{broker_with, configured, echo, kind, refused, request, text_of};

/// Returns a backend whose tool `steps` sends `count` progress notifications and waits for the gate
/// before it answers.
async fn stepping(gate: &Gate) -> FakeBackend {
    let gate = gate.clone();
    FakeBackend::with_tool("steps", move |call| {
        let gate = gate.clone();
        async move {
            for step in 1..=call.arguments()["count"].as_u64().unwrap_or(1) {
                call.progress(step as f64, 100.0).await;
            }
            gate.passed().await;
            Reply::text(&call.arguments()["tag"].to_string())
        }
    })
    .await
}

fn steps_body(id: u64, count: u64, tag: &str) -> String {
    let arguments = json!({"count": count, "tag": tag});
    request(
        id,
        "tools/call",
        json!({"name": "b__steps", "arguments": arguments, "_meta": {"progressToken": id}}),
    )
}

/// Reads events until `count` messages came; returns every event.
async fn messages(events: &mut EventReader, count: usize) -> Vec<Event> {
    let mut read = Vec::new();
    while read.iter().filter(|event: &&Event| event.message().is_some()).count() < count {
        read.push(events.next().await.expect("the stream goes on"));
    }
    read
}

#[tokio::test]
async fn sse_01_a_stream_of_a_2025_11_25_client_starts_with_a_priming_event() {
    let gate = Gate::new();
    gate.open();
    let backend = stepping(&gate).await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let events = client.post_stream(steps_body(1, 1, "x")).await.rest().await;
    assert!(events[0].is_priming(), "{events:?}");
    assert_eq!(events.iter().filter(|event| event.is_priming()).count(), 1);
    let mut stream = client.open_get_stream().await;
    assert!(stream.next().await.unwrap().is_priming());
}

/// The Java SDK breaks off a stream at a line that begins with `retry`.
#[tokio::test]
async fn sse_01_a_client_of_the_java_sdk_gets_no_retry_field() {
    let gate = Gate::new();
    gate.open();
    let backend = stepping(&gate).await;
    let broker = broker_with(&backend).await;
    for (agent, has_retry) in [("Java-http-client/17.0.9", false), ("node", true)] {
        let client = broker.client("/mcp").header("user-agent", agent).connected(json!({})).await;
        let events = client.post_stream(steps_body(1, 1, "x")).await.rest().await;
        assert!(events[0].is_priming(), "{agent}: {events:?}");
        assert_eq!(events.iter().any(|event| event.retry.is_some()), has_retry, "{agent}");
        let first = client.open_get_stream().await.next().await.unwrap();
        assert!(first.is_priming(), "{agent}: {first:?}");
        assert_eq!(first.retry.is_some(), has_retry, "{agent}");
    }
}

#[tokio::test]
async fn sse_01_older_clients_get_no_priming_event() {
    let gate = Gate::new();
    gate.open();
    let backend = stepping(&gate).await;
    let broker = broker_with(&backend).await;
    for version in ["2025-06-18", "2025-03-26"] {
        let client = broker.client("/mcp");
        client.initialize(version, json!({})).await;
        let events = client.post_stream(steps_body(1, 2, "x")).await.rest().await;
        assert!(events.iter().all(|event| event.message().is_some()), "{version}: {events:?}");
        assert_eq!(events.len(), 3, "{version}");
    }
}

#[tokio::test]
async fn sse_03_event_ids_are_unique_over_all_streams_of_a_session() {
    let gate = Gate::new();
    gate.open();
    let backend = stepping(&gate).await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let mut ids = HashSet::new();
    let mut count = 0;
    for id in 1..=20 {
        for event in client.post_stream(steps_body(id, 3, "x")).await.rest().await {
            let id = event.id.expect("each event of a 2025-11-25 client has an id");
            assert!(!id.contains(['\n', '\r', '\0', ' ']));
            count += 1;
            ids.insert(id);
        }
    }
    for _ in 0..3 {
        ids.insert(client.open_get_stream().await.next().await.unwrap().id.unwrap());
        count += 1;
    }
    assert_eq!((ids.len(), count), (count, 20 * 5 + 3));
}

#[tokio::test]
async fn sse_05_each_message_is_on_exactly_one_of_many_streams() {
    let gate = Gate::new();
    let backend = stepping(&gate).await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let gets = [
        client.open_get_stream().await,
        client.open_get_stream().await,
        client.open_get_stream().await,
    ];
    let mut posts = [
        client.post_stream(steps_body(1, 2, "one")).await,
        client.post_stream(steps_body(2, 2, "two")).await,
    ];
    for post in &mut posts {
        messages(post, 2).await;
    }
    backend.wait_get_streams(1).await;
    backend.list("prompts", vec![json!({"name": "new"})]);
    backend.notify("notifications/prompts/list_changed", json!({})).await;
    broker.admin().wait_backend("default", "b", "one prompt", |view| view["prompts"] == 1).await;
    gate.open();
    for post in &mut posts {
        for event in post.rest().await {
            let message = event.message();
            assert!(
                message.is_none_or(|message| message.get("result").is_some()),
                "only the response is left on a POST stream"
            );
        }
    }
    // The session's end closes the GET streams, so that all their events can be counted.
    let readers: Vec<_> = gets
        .into_iter()
        .map(|mut get| tokio::spawn(async move { collect(&mut get).await }))
        .collect();
    wait_until_refreshed(&client, &backend).await;
    client.delete_session().await;
    let mut received = 0;
    for reader in readers {
        received += reader
            .await
            .unwrap()
            .iter()
            .filter(|message| message["method"] == "notifications/prompts/list_changed")
            .count();
    }
    assert_eq!(received, 1);
}

async fn collect(events: &mut EventReader) -> Vec<Value> {
    let mut messages = Vec::new();
    while let Some(event) = events.advance().await {
        messages.extend(event.message());
    }
    messages
}

/// Sends a later notification on the same path: when the backend's catalog shows it, the earlier
/// one was delivered.
async fn wait_until_refreshed(client: &TestClient, backend: &FakeBackend) {
    backend.wait_for("the refreshed list", |seen| seen.is("prompts/list")).await;
    client.result("ping", json!({})).await;
    assert_eq!(client.list_all("prompts/list", "prompts").await.len(), 1);
}

#[tokio::test]
async fn sse_06_sse_07_responses_and_progress_use_the_post_and_the_rest_get() {
    let gate = Gate::new();
    let backend = stepping(&gate).await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let mut get = client.open_get_stream().await;
    let mut post = client.post_stream(steps_body(1, 2, "x")).await;
    messages(&mut post, 2).await;
    backend.wait_get_streams(1).await;
    backend.list("tools", vec![tool("steps"), tool("new")]);
    backend.notify("notifications/tools/list_changed", json!({})).await;
    let (_, on_get) = get.next_message().await.unwrap();
    assert_eq!(on_get["method"], "notifications/tools/list_changed");
    gate.open();
    let (_, answer) = post.next_message().await.unwrap();
    assert_eq!(text_of(&answer["result"]), "\"x\"");
    client.delete_session().await;
    assert_eq!(collect(&mut get).await, Vec::<Value>::new(), "nothing else came on the GET stream");
}

#[tokio::test]
async fn sse_08_a_stream_ends_after_its_response() {
    let gate = Gate::new();
    gate.open();
    let backend = stepping(&gate).await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let mut events = client.post_stream(steps_body(3, 1, "x")).await;
    let all = events.rest().await;
    assert!(!events.broken, "an orderly end");
    assert!(all.last().unwrap().message().unwrap().get("result").is_some());
}

async fn first_id(call: &mut Call) -> String {
    within("the first event", call.first_event_id()).await
}

#[tokio::test]
async fn sse_09_a_dropped_connection_does_not_cancel_and_the_result_is_kept() {
    let gate = Gate::new();
    let backend = stepping(&gate).await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let mut call = client.start_raw(json!(1), steps_body(1, 2, "kept"));
    let priming = first_id(&mut call).await;
    let progress = call.next().await.unwrap();
    drop(call);
    client.result("ping", json!({})).await;
    gate.open();
    // From the priming event: everything. From the first progress: every later event.
    let mut resumed = client.resume(progress.event_id.as_deref().unwrap()).await;
    let events = messages(&mut resumed, 2).await;
    let last = events.last().unwrap().message().unwrap();
    assert_eq!((text_of(&last["result"]), &last["id"]), ("\"kept\"", &json!(1)));
    assert!(resumed.rest().await.is_empty(), "the resumed stream ends after the response");
    let again = client.resume(&priming).await.rest().await;
    assert_eq!(again.iter().filter(|event| event.message().is_some()).count(), 3);
    assert_eq!(backend.recorded_of("notifications/cancelled").len(), 0);
    broker.admin().wait_metric("mcp_events_replayed_total", &[], |value| value >= 3.0).await;
}

#[tokio::test]
async fn sse_09_a_call_continues_while_no_client_listens() {
    let gate = Gate::new();
    let backend = stepping(&gate).await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let mut call = client.start_raw(json!(1), steps_body(1, 1, "later"));
    let priming = first_id(&mut call).await;
    drop(call);
    // The client resumes while the call is still running: the stream continues live.
    let mut resumed = client.resume(&priming).await;
    let again = resumed.next().await.unwrap();
    assert!(
        again.is_priming() && again.id.as_ref() == Some(&priming),
        "what a client knows is told to each connection: {again:?}"
    );
    messages(&mut resumed, 1).await;
    gate.open();
    let (_, answer) = resumed.next_message().await.unwrap();
    assert_eq!(text_of(&answer["result"]), "\"later\"");
}

#[tokio::test]
async fn sse_04_sse_10_resuming_one_stream_gives_only_that_stream() {
    let gate = Gate::new();
    let backend = stepping(&gate).await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let mut one = client.start_raw(json!(1), steps_body(1, 3, "one"));
    let mut two = client.start_raw(json!(2), steps_body(2, 3, "two"));
    let (first_of_one, first_of_two) = (first_id(&mut one).await, first_id(&mut two).await);
    for call in [&mut one, &mut two] {
        call.next().await.unwrap();
    }
    drop(one);
    drop(two);
    gate.open();
    for (id, first, tag) in [(1, first_of_one, "\"one\""), (2, first_of_two, "\"two\"")] {
        for event in client.resume(&first).await.rest().await {
            let Some(message) = event.message() else { continue };
            match message.get("result") {
                Some(result) => assert_eq!((text_of(result), &message["id"]), (tag, &json!(id))),
                None => assert_eq!(message["params"]["progressToken"], id, "{message}"),
            }
        }
    }
}

#[tokio::test]
async fn a_resumed_get_stream_returns_the_missed_events() {
    let (broker, backend) = echo().await;
    let client = broker.connected(json!({})).await;
    let mut get = client.open_get_stream().await;
    let priming = get.next().await.unwrap().id.unwrap();
    drop(get);
    backend.wait_get_streams(1).await;
    backend.list("tools", vec![tool("echo"), tool("new")]);
    backend.notify("notifications/tools/list_changed", json!({})).await;
    let mut resumed = client.resume(&priming).await;
    resumed.find(|message| message["method"] == "notifications/tools/list_changed").await;
}

async fn two_sessions(broker: &TestBroker) -> (TestClient, String, TestClient) {
    let victim = broker.connected(json!({})).await;
    let mut call = victim.start_raw(json!(1), steps_body(1, 1, "secret"));
    let priming = first_id(&mut call).await;
    call.finish().await;
    (victim, priming, broker.connected(json!({})).await)
}

#[tokio::test]
async fn sse_11_an_event_id_of_another_session_is_reported_as_unknown() {
    let gate = Gate::new();
    gate.open();
    let backend = stepping(&gate).await;
    let broker = broker_with(&backend).await;
    let (victim, priming, thief) = two_sessions(&broker).await;
    let (status, error) = refused(thief.get_stream_raw(Some(&priming)).await).await;
    assert!([400, 404].contains(&status), "{status}");
    let altered = priming.chars().rev().collect::<String>();
    for id in ["x", "0", "999999-999999", "-1", &altered, "\u{7f}a"] {
        let mut headers = thief.headers_with(&[("accept", "text/event-stream")]);
        headers.push(("last-event-id".into(), id.into()));
        // A text that is not a header value at all is refused by the client's own library.
        let response = thief.try_send("GET", &headers, bytes::Bytes::new());
        let Ok(response) = within("an answer", response).await else { continue };
        let (absent_status, absent) = refused(response).await;
        assert_eq!((status, kind(&error)), (absent_status, kind(&absent)), "{id}");
    }
    assert!(!victim.resume(&priming).await.rest().await.is_empty());
}

#[tokio::test]
async fn sse_12_a_resumption_from_an_evicted_event_is_refused() {
    let (first_read, end) = (Gate::new(), Gate::new());
    let backend = stepping(&end).await;
    let gates = (first_read.clone(), end.clone());
    backend.tool("burst", move |call| {
        let (first_read, end) = gates.clone();
        async move {
            call.progress(1.0, 100.0).await;
            first_read.passed().await;
            for step in 2..=40 {
                call.progress(f64::from(step), 100.0).await;
            }
            end.passed().await;
            Reply::text("over")
        }
    });
    let config = json!({"events": {"stream_events": 5}});
    let broker = configured(config, backend.spec()).await;
    let client = broker.connected(json!({})).await;
    let mut call = client.start_raw(json!(1), steps_body(1, 1, "x"));
    let priming = first_id(&mut call).await;
    call.next().await.unwrap();
    let body = request(2, "tools/call", json!({"name": "b__burst", "_meta": {"progressToken": 2}}));
    let mut other = client.post_stream(body).await;
    let oldest = other.next().await.unwrap().id.unwrap();
    other.find(|message| message["params"]["progress"] == 1.0).await;
    first_read.open();
    // More than the kept events pass while a client reads; the latest progress always comes.
    other.find(|message| message["params"]["progress"] == 40.0).await;
    drop(other);
    let (status, error) = refused(client.get_stream_raw(Some(&oldest)).await).await;
    assert_eq!((status, kind(&error)), (400, "events_gone"), "{error}");
    end.open();
    assert_eq!(text_of(&call.finish().await.value["result"]), "\"x\"");
    assert!(!client.resume(&priming).await.rest().await.is_empty(), "the other stream is unharmed");
}

#[tokio::test]
async fn r16_delivered_events_of_all_streams_are_bounded_in_bytes() {
    let backend = FakeBackend::with_tool("large", |call| async move {
        call.progress(1.0, 2.0).await;
        Reply::text(&"x".repeat(8 * 1024 * 1024))
    })
    .await;
    // Delivered events may have an eighth of 270 MiB.
    let config =
        json!({"overload": {"memory_bytes": "300MiB"}, "events": {"stream_bytes": "16MiB"}});
    let broker = configured(config, backend.spec()).await;
    let client = broker.connected(json!({})).await;
    let mut first_ids = Vec::new();
    for id in 1..=5 {
        let params = json!({"name": "b__large", "_meta": {"progressToken": id}});
        let events = client.post_stream(request(id, "tools/call", params)).await.rest().await;
        first_ids.push(events[0].id.clone().unwrap());
    }
    let (status, error) = refused(client.get_stream_raw(Some(&first_ids[0])).await).await;
    assert_eq!((status, kind(&error)), (400, "events_gone"), "{error}");
    let again = client.resume(&first_ids[4]).await.rest().await;
    assert!(again.iter().any(|event| event.message().is_some()), "the latest is still there");
}

#[tokio::test]
async fn sse_12_a_finished_stream_expires() {
    let gate = Gate::new();
    gate.open();
    let backend = stepping(&gate).await;
    let broker = configured(json!({"events": {"retain": "50ms"}}), backend.spec()).await;
    let client = broker.connected(json!({})).await;
    let priming =
        client.post_stream(steps_body(1, 1, "x")).await.rest().await[0].id.clone().unwrap();
    testkit::eventually("the stream to be forgotten", || async {
        let response = client.get_stream_raw(Some(&priming)).await;
        if response.status >= 400 { Ok(()) } else { Err(response.status) }
    })
    .await;
}

#[tokio::test]
async fn sse_13_line_breaks_in_a_backends_json_never_break_the_framing() {
    let backend = FakeBackend::start().await;
    let nasty = "line\nfeed\rreturn\u{2028}separator\n\ndata: forged\n\nid: 7";
    backend.tool("pretty", move |call| async move {
        call.progress(1.0, 2.0).await;
        let id = call.id();
        Reply::Message(format!(
            "{{\"jsonrpc\":\"2.0\",\ndata:  \"id\":{id},\ndata:  \"result\": {}}}",
            text(nasty)
        ))
    });
    backend.tool("as-json", move |call| async move {
        let pretty = serde_json::to_string_pretty(&call.result_message(text(nasty))).unwrap();
        Reply::Http {
            status: 200,
            headers: vec![("content-type".into(), "application/json".into())],
            body: pretty.replace('\n', "\r\n").into(),
        }
    });
    backend.tool("late-json", move |call| async move {
        call.progress(1.0, 2.0).await;
        Reply::text(nasty)
    });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    for name in ["pretty", "as-json", "late-json"] {
        let params = json!({"name": format!("b__{name}"), "_meta": {"progressToken": 1}});
        let result = client.result("tools/call", params).await;
        assert_eq!(text_of(&result), nasty, "{name}");
    }
}

#[tokio::test]
async fn sse_13_a_silent_stream_is_kept_alive_by_comments() {
    let backend = FakeBackend::echo().await;
    let config = json!({"events": {"keepalive": "30ms"}});
    let broker = configured(config, backend.spec()).await;
    let client = broker.connected(json!({})).await;
    let mut get = client.open_get_stream().await;
    get.next().await;
    backend.wait_get_streams(1).await;
    // The reader of a silent stream sees comments only, never an event.
    for _ in 0..20 {
        if get.comments() >= 2 {
            return;
        }
        let event = get.next_event(Duration::from_millis(100)).await;
        assert_eq!(event, Err(()), "a silent stream has no events");
    }
    panic!("no comments within two seconds");
}

#[tokio::test]
async fn a_client_that_never_reads_loses_its_stream_and_affects_no_other() {
    let backend = FakeBackend::with_tool("flood", |call| async move {
        let filler = "x".repeat(60_000);
        for step in 0..200 {
            let params = json!({"level": "info", "data": filler, "logger": step.to_string()});
            if !call.notify("notifications/message", params).await {
                break;
            }
        }
        Reply::text("flooded")
    })
    .await;
    let config = json!({"events": {"stream_bytes": "256KiB", "stream_events": 50}});
    let broker = configured(config, backend.spec()).await;
    let slow = broker.connected(json!({})).await;
    let _never_read = slow.post(request(1, "tools/call", json!({"name": "b__flood"}))).await;
    let other = broker.connected(json!({})).await;
    assert_eq!(other.tool_names().await, ["b__flood"]);
    assert_eq!(other.result("ping", json!({})).await, json!({}));
}

#[tokio::test]
async fn f_01_a_vanished_reader_is_noticed_without_a_write() {
    let (broker, backend) = echo().await;
    let client = broker.connected(json!({})).await;
    let stream = client.open_get_stream().await;
    let open = async || broker.admin().sessions("default").await[0]["streams"].as_u64();
    assert_eq!(open().await, Some(1));
    drop(stream);
    testkit::eventually("the stream to be closed", || async {
        match open().await {
            Some(0) => Ok(()),
            other => Err(other),
        }
    })
    .await;
    // Notifications wait meanwhile for the next stream.
    backend.wait_get_streams(1).await;
    backend.list("tools", vec![tool("echo"), tool("new")]);
    backend.notify("notifications/tools/list_changed", json!({})).await;
    broker.admin().wait_backend("default", "b", "two tools", |view| view["tools"] == 2).await;
    let mut next = client.open_get_stream().await;
    next.find(|message| message["method"] == "notifications/tools/list_changed").await;
}

#[tokio::test]
async fn sse_12_a_client_can_open_its_stream_again_after_an_overflow() {
    let backend = FakeBackend::echo().await;
    backend.sessions();
    let config = json!({"events": {"stream_events": 5}});
    let broker = configured(config, backend.spec()).await;
    let client = broker.connected(json!({"roots": {}})).await;
    client.call("b__echo", json!({})).await;
    backend.wait_get_streams(2).await;
    for id in 0..20 {
        backend.push(json!({"jsonrpc": "2.0", "id": id, "method": "roots/list"})).await;
    }
    testkit::eventually("the flood to have arrived", || async {
        let dropped = broker
            .admin()
            .metric("mcp_dropped_notifications_total", &[("kind", "slow_client")])
            .await
            .unwrap_or_default();
        if dropped >= 10.0 { Ok(()) } else { Err(dropped) }
    })
    .await;
    let mut stream = client.open_get_stream().await;
    let (_, message) = stream.next_message().await.unwrap();
    assert_eq!(message["method"], "roots/list");
}

#[tokio::test]
async fn repeated_changes_are_sent_once_to_a_client_that_was_absent() {
    let backend = FakeBackend::echo().await;
    backend.list(
        "resources",
        ["one", "two"].map(|name| json!({"uri": format!("test://{name}"), "name": name})).to_vec(),
    );
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    for uri in ["b+test://one", "b+test://two"] {
        client.result("resources/subscribe", json!({"uri": uri})).await;
    }
    backend.wait_get_streams(1).await;
    for _ in 0..20 {
        backend.notify("notifications/resources/updated", json!({"uri": "test://one"})).await;
    }
    backend.notify("notifications/resources/updated", json!({"uri": "test://two"})).await;
    broker
        .admin()
        .wait_metric("mcp_dropped_notifications_total", &[("kind", "repeated")], |count| {
            count == 19.0
        })
        .await;
    let mut stream = client.open_get_stream().await;
    let mut received = Vec::new();
    while received.last().is_none_or(|uri: &Value| uri != "b+test://two") {
        received.push(stream.next_message().await.unwrap().1["params"]["uri"].clone());
    }
    assert_eq!(received, ["b+test://one", "b+test://two"]);
}
